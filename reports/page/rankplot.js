"use strict";
// g_margin of each configuration against the rank of its matrix, with the medians of bins of equal count. Points, bins
// and the limits of the axis are Python's.

hrx.Groups.prototype.drawRank = function () {
  const { beats } = this.view.state;
  hrx.part(`rank-${beats}`).then((points) => {
    if (this.view.state.beats === beats) this.drawPoints(points);
  }).catch((error) => { hrx.byId("rank-note").textContent = error.message; });
};

hrx.Groups.prototype.drawPoints = function ({ run, rank, gain, limits, of }) {
  const { view } = this;
  const passes = view.passes();
  const points = [];
  run.forEach((one, k) => { if (passes(one)) points.push([Math.max(1, rank[k]), gain[k]]); });
  hrx.byId("rank-plot").hidden = points.length < 3;
  if (points.length < 3) {
    hrx.byId("rank-note").textContent = `${hrx.counted(points.length, "configuration")} in this selection: too few to draw.`;
    return;
  }
  const { context, width, height } = hrx.surface(hrx.byId("rank-plot"), 300);
  const [low, high] = limits;
  const most = Math.max(...points.map((point) => point[0])) * 1.05;
  const box = { left: 60, right: width - 12, top: 10, bottom: height - 44 };
  const x = (value) => box.left + (Math.log(value) / Math.log(most)) * (box.right - box.left);
  const y = (value) => box.bottom - ((value - low) / (high - low)) * (box.bottom - box.top);
  this.rankAxes(context, box, x, y, low, high, most);
  context.globalAlpha = Math.min(0.7, Math.max(0.12, 60 / points.length));
  context.fillStyle = hrx.colour("own");
  const size = points.length > 500 ? 4 : 7;
  const inside = points.filter((point) => point[1] >= low && point[1] <= high);
  inside.forEach((point) => context.fillRect(x(point[0]) - size / 2, y(point[1]) - size / 2, size, size));
  context.globalAlpha = 1;
  const statistic = this.statistic();
  const medians = statistic === null ? [] : statistic.bins;
  context.strokeStyle = context.fillStyle = hrx.colour("ink");
  context.lineWidth = 2;
  context.beginPath();
  medians.forEach((point) => context.lineTo(x(point[0]), y(point[1])));
  context.stroke();
  medians.forEach((point) => context.fillRect(x(point[0]) - 4, y(point[1]) - 4, 8, 8));
  const beyond = points.length - inside.length;
  hrx.byId("rank-note").textContent = hrx.counted(points.length, "configuration") +
    (medians.length ? `; squares are medians of ${medians.length} bins with equally many of them` : "") +
    (beyond ? `; ${beyond} lie beyond the axis` : "") + (of > run.length ? `; ${run.length} of ${of} in the whole ledger are drawn` : "") + ".";
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
