"use strict";
// g_margin of each configuration against the rank of its matrix, with the medians of bins of equal count.

const RANK_BINS = 8;

hrx.Groups.prototype.drawRank = function () {
  const { runs } = this.view;
  const chosen = this.view.scored();
  const points = hrx.pairs(chosen, runs.numbers.rank, runs.numbers.g_margin, runs.configuration);
  hrx.byId("rank-figure").hidden = points.length < 3;
  if (points.length < 3) return;
  const canvas = hrx.byId("rank-plot");
  const { context, width, height } = hrx.surface(canvas, 300);
  const gains = points.map((point) => point[1]).sort((a, b) => a - b);
  const quantile = (share) => gains[Math.round(share * (gains.length - 1))];
  const cut = points.length > 200 ? 0.01 : 0;
  const [low, high] = [Math.min(0, quantile(cut)), Math.max(0, quantile(1 - cut))];
  const most = Math.max(...points.map((point) => point[0])) * 1.05;
  const box = { left: 60, right: width - 12, top: 10, bottom: height - 44 };
  const x = (rank) => box.left + (Math.log(rank) / Math.log(most)) * (box.right - box.left);
  const room = 0.06 * (high - low) || 1;
  const y = (gain) => box.bottom - ((gain - low + room) / (high - low + 2 * room)) * (box.bottom - box.top);
  this.rankAxes(context, box, x, y, low - room, high + room, most);
  context.globalAlpha = Math.min(0.7, Math.max(0.12, 60 / points.length));
  context.fillStyle = hrx.colour("own");
  const size = points.length > 500 ? 4 : 7;
  const inside = points.filter(([, gain]) => gain >= low - room && gain <= high + room);
  inside.forEach(([rank, gain]) => {
    context.fillRect(x(rank) - size / 2, y(gain) - size / 2, size, size);
  });
  context.globalAlpha = 1;
  const bins = points.length >= 2 * FEW ? this.rankBins(points) : [];
  context.strokeStyle = context.fillStyle = hrx.colour("ink");
  context.lineWidth = 2;
  context.beginPath();
  bins.forEach(([rank, gain]) => context.lineTo(x(rank), y(gain)));
  context.stroke();
  bins.forEach(([rank, gain]) => context.fillRect(x(rank) - 4, y(gain) - 4, 8, 8));
  const beyond = points.length - inside.length;
  hrx.byId("rank-note").textContent = `${points.length} configurations` +
    (bins.length ? `; squares are medians of ${bins.length} bins with equally many of them` : "") +
    (beyond ? `; ${beyond} lie beyond the axis` : "") + ".";
};

hrx.Groups.prototype.rankAxes = function (context, box, x, y, low, high, most) {
  context.fillStyle = hrx.colour("soft");
  context.strokeStyle = hrx.colour("line");
  context.lineWidth = 1;
  context.textAlign = "right";
  context.textBaseline = "middle";
  hrx.ticks(low, high, 5).forEach((gain) => {
    context.strokeStyle = hrx.colour(gain === 0 ? "muted" : "line");
    context.beginPath();
    context.moveTo(box.left, y(gain));
    context.lineTo(box.right, y(gain));
    context.stroke();
    context.fillText(String(gain).replace("-", "−"), box.left - 6, y(gain));
  });
  context.textAlign = "center";
  context.textBaseline = "top";
  const ranks = [1, 1.25, 1.5, 2, 3, 5, 10, 20, 50, 100].filter((rank) => rank <= most);
  let last = -Infinity;
  ranks.forEach((rank) => {
    if (x(rank) - last < 34) return;
    last = x(rank);
    context.fillText(String(rank), last, box.bottom + 6);
  });
  context.fillText("rank of the matrix (participation ratio, log scale)", (box.left + box.right) / 2, box.bottom + 24);
  context.save();
  context.translate(10, (box.top + box.bottom) / 2);
  context.rotate(-Math.PI / 2);
  context.fillText("g_margin / Var(ŷ)", 0, 0);
  context.restore();
};

/** Median rank and gain of bins with equally many points, by rank. */
hrx.Groups.prototype.rankBins = function (points) {
  const ordered = [...points].sort((a, b) => a[0] - b[0]);
  const count = Math.min(RANK_BINS, Math.floor(ordered.length / FEW));
  return Array.from({ length: count }, (_, k) => {
    const part = ordered.slice(Math.round((k * ordered.length) / count), Math.round(((k + 1) * ordered.length) / count));
    return [hrx.median(part.map((point) => point[0])), hrx.median(part.map((point) => point[1]))];
  });
};

/** Two quantities of each configuration, folded over its seeds, where both are known. */
hrx.pairs = function (runs, first, second, configuration) {
  const known = runs.filter((run) => first[run] !== null && second[run] !== null);
  const a = hrx.fold(known, first, configuration);
  const b = hrx.fold(known, second, configuration);
  return a.map((value, k) => [Math.max(1, value), b[k]]);
};
