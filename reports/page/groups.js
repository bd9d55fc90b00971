"use strict";
// The evidence: the gains of every group with its interval drawn beside it. Python computed every number; this script
// counts runs and looks groups up.

const FEW = 10; // a group with fewer configurations is shown faint
const FOREST = { width: 220, height: 22, pad: 8 };
const SCOPES = { yes: 2, all: 3, no: 4 };

/** The statistics of a group `{grouping: code}` of a scope; of `n: 0` without runs, null where Python computed none. */
hrx.lookUp = function (statistics, runs, group, beats) {
  // Combinations of filters with the same groups are stored once.
  const names = statistics.computed[runs.groupings.filter((name) => name in group).join(" ")];
  if (names === null || !(names in statistics.groups)) return null;
  const codes = names.split(" ").filter((name) => name).map((name) => group[name]);
  const found = statistics.groups[names][codes.join(" ")];
  const [n, own, ownLow, ownHigh, shuffled, margin, low, high, positive, rank, bins, clusters, judged] = (found && found[SCOPES[beats]]) || [0];
  return { share: found ? found[0] : null, seasonal: found ? found[1] : null, n, g_own: own, own_low: ownLow, own_high: ownHigh,
    g_shuffled: shuffled, g_margin: margin, low, high, positive, rank, bins: bins || [], clusters, judged };
};

/** Loads the groups that the page does not have at once, if a state needs them: a promise, or null. */
hrx.laterGroups = function (statistics, runs, state) {
  const missing = [state.by, "model", "backbone"].some((by) => {
    const names = statistics.computed[runs.groupings.filter((name) => name === by || state[name]).join(" ")];
    return typeof names === "string" && !(names in statistics.groups);
  });
  if (!missing || statistics.refused) return null;
  return hrx.part("further-groups").then(({ groups, figures }) => {
    Object.assign(statistics.groups, groups);
    statistics.figures.push(...figures);
  }).catch((error) => {
    statistics.refused = error.message;
  });
};

/** "[-0.010, +0.120]"; in words where there is none. */
hrx.interval = (low, high) => (isNumber(low) && isNumber(high) ? `[${hrx.signed(low)}, ${hrx.signed(high)}]` : "(no interval)");

hrx.Groups = class {
  constructor(view, statistics) {
    this.view = view;
    this.statistics = statistics;
    this.buttons = view.groupings.map((name) =>
      hrx.el("button", { type: "button", "data-by": name, onclick: () => view.set({ by: name }) }, hrx.TITLES[name]));
    hrx.byId("grouping").append(...this.buttons);
    hrx.byId("save-groups").addEventListener("click", () => this.save());
    view.watch(["beats", "by", "sort", "down"], () => this.show());
    this.columns = [
      { key: "name", text: true },
      { key: "runs", title: "runs", minor: true, hint: "scored runs of the group that pass the filters" },
      { key: "n", title: "n", hint: "configurations: runs with their seeds folded" },
      { key: "share", title: "beats naive", minor: true, hint: "share of the group's scored runs" },
      { key: "seasonal", title: "beats season", minor: true, hint: "share of the group's scored runs with an error below seasonal naive; not part of the verdict" },
      { key: "g_own", title: "g_own", minor: true, hint: "median source; with one source, median series" },
      { key: "g_shuffled", title: "g_shuffled", minor: true, hint: "median source; with one source, median series" },
      { key: "g_margin", title: "g_margin", hint: "median source; with one source, median series" },
      { key: "low", title: "95 % interval", minor: true, hint: "of the median source or series, from five on (of five, 94 %)" },
      { key: "positive", title: "positive", hint: "share of sources, or of the series of one source, with g_margin above 0" },
      { key: "clusters", title: "count once", minor: true, hint: "what the median, the interval and the share are over" },
      { key: "rank", title: "rank", minor: true, hint: "median" },
    ];
  }

  /** The statistics of the filters, or of one value of the grouping within them. */
  statistic(code) {
    const { view } = this;
    // Filters that exclude each other leave no run: such a group is not stored.
    if (code === undefined && !view.scored("all").length) return { n: 0 };
    const group = code === undefined ? view.filterCodes : { ...view.filterCodes, [view.state.by]: code };
    return hrx.lookUp(this.statistics, view.runs, group, view.state.beats);
  }

  rows() {
    const { values, codes } = this.view.runs.texts[this.view.state.by];
    const count = (runs) => {
      const counts = new Map();
      runs.forEach((run) => counts.set(codes[run], (counts.get(codes[run]) || 0) + 1));
      return counts;
    };
    const chosen = count(this.view.scored());
    return Array.from(count(this.view.scored("all")).keys(), (code) =>
      ({ name: values[code], runs: chosen.get(code) || 0, ...this.statistic(code) }));
  }

  show() {
    const { state } = this.view;
    this.buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.by === state.by)));
    const rows = hrx.sorted(this.rows(), (row) => row[state.sort], state.down === "1");
    const scale = this.scale(rows);
    hrx.byId("groups").replaceChildren(this.head(scale), hrx.el("tbody", {}, rows.map((row) => this.row(row, scale))));
    this.describe(rows);
    hrx.later("rank", () => this.drawRank());
  }

  /** The sentences above and below the table. */
  describe(rows) {
    const { view } = this;
    const count = view.scored().length;
    const kind = { yes: " that beat naive", no: " that do not beat naive", all: "" }[view.state.beats];
    const gain = this.statistic();
    const unknown = this.statistics.refused || "Medians of this combination of filters are not computed, because the ledger has too many groups: clear a filter to see them.";
    const sentence = gain === null ? `. ${unknown}` : gain.n
      ? `: g_margin ${hrx.signed(gain.g_margin)} ${hrx.interval(gain.low, gain.high)}, ` +
        `positive in ${hrx.percent(gain.positive)} of ${gain.clusters}, from ${hrx.counted(gain.n, "configuration")}.` : ".";
    hrx.byId("matching").replaceChildren(
      hrx.el("a", { href: view.recordsOf({}) }, `${hrx.counted(count, "scored run")}${kind}`), sentence);
    const few = rows.filter((row) => row.n < FEW).length;
    const missing = rows.length && rows[0].n === undefined;
    hrx.byId("groups-note").textContent = missing && gain !== null ? unknown
      : few ? `${hrx.counted(few, "group")} ${few === 1 ? "is" : "are"} faint: fewer than ${FEW} configurations.` : "";
  }

  /** The groups of this view as CSV, with the digits that the page holds. */
  save() {
    const { view } = this;
    const columns = ["runs", "n", "share", "seasonal", "g_own", "own_low", "own_high", "g_shuffled", "g_margin", "low", "high", "positive", "clusters", "rank"];
    const titles = ["runs", "n", "beats_naive", "beats_seasonal", "g_own", "g_own_low", "g_own_high", "g_shuffled", "g_margin", "g_margin_low", "g_margin_high", "positive", "count_once", "rank"];
    const rows = hrx.sorted(this.rows(), (row) => row[view.state.sort], view.state.down === "1");
    hrx.saveCsv(`hrx-gains-by-${view.state.by}${view.fileName}`,
      [[view.state.by, ...titles], ...rows.map((row) => [row.name, ...columns.map((column) => row[column])])]);
  }

  head(scale) {
    const { state } = this.view;
    const cells = this.columns.map((column) => hrx.header(column,
      column.key === "name" ? hrx.TITLES[state.by] : column.title, state.sort === column.key && state.down,
      () => this.view.set({ sort: column.key, down: state.sort === column.key && state.down === "1" ? "0" : "1" })));
    const axis = hrx.el("svg", { width: FOREST.width, height: 18, "aria-hidden": "true" },
      scale.ticks.map((tick) => hrx.el("text", { x: scale.x(tick), y: 14, "text-anchor": "middle" }, String(tick).replace("-", "−"))));
    return hrx.el("thead", {}, hrx.el("tr", {}, cells,
      hrx.el("th", { class: "forest", scope: "col" }, hrx.el("span", {}, "g_margin / Var(ŷ)"), axis)));
  }

  /** The common axis: wide enough for zero and for the intervals of the large groups. */
  scale(rows) {
    const known = rows.filter((row) => row.n).map((row) => (isNumber(row.low) ? row : { ...row, low: row.g_margin, high: row.g_margin }));
    const large = known.filter((row) => row.n >= FEW);
    const shown = large.length ? large : known;
    const low = Math.min(0, ...shown.map((row) => row.low));
    const high = Math.max(0, ...shown.map((row) => row.high));
    const room = 0.05 * (high - low) || 1;
    const [from, to] = [low - room, high + room];
    const inner = FOREST.width - 2 * FOREST.pad;
    return { from, to, x: (value) => FOREST.pad + ((value - from) / (to - from)) * inner, ticks: hrx.ticks(from, to, 4) };
  }

  row(row, scale) {
    const { view } = this;
    const records = (text, more) => hrx.el("a", { href: view.recordsOf({ [view.state.by]: row.name, ...more }) }, text);
    const content = {
      name: hrx.el("span", { class: "name", title: row.name }, row.name),
      runs: records(String(row.runs)), n: row.n === undefined ? "–" : records(String(row.n)),
      share: records(hrx.percent(row.share), { beats: "all" }),
      g_own: records(hrx.signed(row.g_own)), g_shuffled: records(hrx.signed(row.g_shuffled)), g_margin: records(hrx.signed(row.g_margin)),
      seasonal: hrx.percent(row.seasonal),
      low: isNumber(row.low) ? hrx.interval(row.low, row.high) : "–",
      positive: hrx.percent(row.positive), clusters: row.clusters || "–", rank: Number.isFinite(row.rank) ? row.rank.toFixed(2) : "–",
    };
    const cells = this.columns.map((column) => hrx.el(column.key === "name" ? "th" : "td",
      { class: `${column.text ? "" : "number"} ${column.minor ? "minor" : ""}`, scope: column.key === "name" ? "row" : null,
        "data-column": column.key }, content[column.key]));
    return hrx.el("tr", { class: row.n < FEW ? "few" : "", "data-group": row.name }, cells,
      hrx.el("td", { class: "forest" }, this.forest(row, scale)));
  }

  forest(row, scale) {
    const y = FOREST.height / 2;
    const clip = (value) => scale.x(Math.min(Math.max(value, scale.from), scale.to));
    const parts = [hrx.el("line", { class: "zero", x1: scale.x(0), x2: scale.x(0), y1: 0, y2: FOREST.height })];
    if (row.n) {
      if (isNumber(row.low)) parts.push(hrx.el("line", { class: "whisker", x1: clip(row.low), x2: clip(row.high), y1: y, y2: y }));
      if (row.low < scale.from) parts.push(hrx.el("path", { class: "beyond", d: `M2 ${y}l6 -4v8z` }));
      if (row.high > scale.to) parts.push(hrx.el("path", { class: "beyond", d: `M${FOREST.width - 2} ${y}l-6 -4v8z` }));
      if (row.g_margin >= scale.from && row.g_margin <= scale.to) {
        parts.push(hrx.el("circle", { class: "median", cx: scale.x(row.g_margin), cy: y, r: 4.5 }));
      }
    }
    return hrx.el("svg", { width: FOREST.width, height: FOREST.height, "aria-hidden": "true" }, parts);
  }
};

/** A header cell that sorts its column. */
hrx.header = function (column, title, sorted, action) {
  const state = sorted === false ? "none" : sorted === "1" ? "descending" : "ascending";
  return hrx.el("th", { scope: "col", class: `${column.text ? "" : "number"} ${column.minor ? "minor" : ""}`, "aria-sort": state, title: column.hint },
    hrx.el("button", { type: "button", class: "sort", onclick: action, "data-sort": column.key }, title,
      hrx.el("span", { "aria-hidden": "true" }, { none: "", descending: " ↓", ascending: " ↑" }[state])));
};

/** A sorted copy; items without a value come last in either order. */
hrx.sorted = function (items, value, down) {
  const missing = (one) => one === null || one === undefined || Number.isNaN(one);
  return items.map((item) => [value(item), item]).sort(([a], [b]) => {
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    const order = typeof a === "string" ? a.localeCompare(b) : a - b;
    return down ? -order : order;
  }).map(([, item]) => item);
};
