"use strict";
// The evidence: the gains of every group with its interval drawn beside it, and the gain against the rank.

const FEW = 10; // a group with fewer configurations is shown faint
const FOREST = { width: 260, height: 22, pad: 8 };

hrx.Groups = class {
  constructor(view, statistics) {
    this.view = view;
    this.statistics = statistics;
    const titles = { model: "Model", dataset: "Dataset", domain: "Domain", setting: "Setting", estimator: "Estimator", leakage: "Leakage" };
    this.buttons = view.groupings.map((name) =>
      hrx.el("button", { type: "button", "data-by": name, onclick: () => view.set({ by: name }) }, titles[name]));
    hrx.byId("grouping").append(...this.buttons);
    view.watch(["beats", "by", "sort", "down"], () => this.show());
    this.columns = [
      { key: "name", text: true },
      { key: "n", title: "n", minor: false, hint: "configurations: runs with their seeds folded" },
      { key: "beats", title: "beats naive", minor: true, hint: "share of the group's scored runs" },
      { key: "g_own", title: "g_own", minor: true },
      { key: "g_shuffled", title: "g_shuffled", minor: true },
      { key: "g_margin", title: "g_margin", hint: "median" },
      { key: "interval", title: "95 % interval", minor: true, sort: "low" },
      { key: "positive", title: "positive", hint: "share of configurations with g_margin above 0" },
      { key: "rank", title: "rank", minor: true, hint: "median" },
    ];
    this.titles = titles;
  }

  /** Python's own numbers where the filters leave each group whole; else those of the runs that are left. */
  gain(name, code, runs) {
    const { state, filtered } = this.view;
    const scope = { yes: "beating", all: "scored" }[state.beats];
    const by = code === null ? "all" : state.by;
    const whole = code === null ? !filtered.length : filtered.every((filter) => filter === state.by);
    if (scope && whole) {
      const group = this.statistics[scope][by][code === null ? 0 : code];
      if (!group) return hrx.statistic([], [], []);
      const [median, low, high, positive, n] = group[name];
      return { median, low, high, positive, n };
    }
    const { numbers, configuration } = this.view.runs;
    return hrx.statistic(runs, numbers[name], configuration, name === "g_margin");
  }

  rows() {
    const { view } = this;
    const { texts, numbers, configuration, gains, beats_naive: naive } = view.runs;
    const { values, codes } = texts[view.state.by];
    const split = (runs) => {
      const found = new Map();
      runs.forEach((run) => {
        if (!found.has(codes[run])) found.set(codes[run], []);
        found.get(codes[run]).push(run);
      });
      return found;
    };
    const chosen = split(view.scored());
    return Array.from(split(view.scored("all")), ([code, all]) => {
      const runs = chosen.get(code) || [];
      const row = { name: values[code], code, beats: all.filter((run) => naive[run] === 1).length / all.length };
      gains.forEach((gain) => { row[gain] = this.gain(gain, code, runs); });
      row.rank = hrx.median(hrx.fold(runs, numbers.rank, configuration));
      return row;
    });
  }

  sortValue(row, key) {
    if (key === "name") return row.name;
    if (key === "beats" || key === "rank") return row[key];
    if (key === "interval") return row.g_margin.low;
    if (key === "n" || key === "positive") return row.g_margin[key];
    return row[key].median;
  }

  show() {
    const { state } = this.view;
    this.buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.by === state.by)));
    const rows = hrx.sorted(this.rows(), (row) => this.sortValue(row, state.sort), state.down === "1");
    const scale = this.scale(rows);
    hrx.byId("groups").replaceChildren(this.head(scale), hrx.el("tbody", {}, rows.map((row) => this.row(row, scale))));
    this.tell(rows);
    hrx.later("rank", () => this.drawRank());
  }

  tell(rows) {
    const { view } = this;
    const all = view.scored();
    const gain = this.gain("g_margin", null, all);
    const kind = { yes: " that beat naive", no: " that do not beat naive", all: "" }[view.state.beats];
    const runs = `${all.length} scored run${all.length === 1 ? "" : "s"}${kind}`;
    hrx.byId("matching").replaceChildren(hrx.el("a", { href: view.recordsOf({}) }, runs), gain.n
      ? `: median g_margin ${hrx.signed(gain.median)} [${hrx.signed(gain.low)}, ${hrx.signed(gain.high)}], ` +
        `positive in ${hrx.percent(gain.positive)} of ${gain.n} configurations.` : ". There is nothing to compute.");
    const few = rows.filter((row) => row.g_margin.n < FEW).length;
    const whole = view.filtered.every((filter) => filter === view.state.by) && view.state.beats !== "no";
    hrx.byId("groups-note").textContent =
      (few ? `${few} group${few === 1 ? " is" : "s are"} faint: fewer than ${FEW} configurations. ` : "") +
      (whole ? "Medians and intervals are those of the ledger (10,000 seeded resamples)."
        : "Medians, shares and n are computed here from the filtered runs; intervals are the bootstrap's limit for endless resamples.");
  }

  head(scale) {
    const { state } = this.view;
    const cells = this.columns.map((column) => hrx.header(column,
      column.key === "name" ? this.titles[state.by] : column.title, state.sort === column.key && state.down,
      () => this.view.set({ sort: column.key, down: state.sort === column.key && state.down === "1" ? "0" : "1" })));
    const axis = hrx.el("svg", { width: FOREST.width, height: 18, "aria-hidden": "true" },
      scale.ticks.map((tick) => hrx.el("text", { x: scale.x(tick), y: 14, "text-anchor": "middle" }, String(tick).replace("-", "−"))));
    return hrx.el("thead", {}, hrx.el("tr", {}, cells,
      hrx.el("th", { class: "forest", scope: "col" }, hrx.el("span", {}, "g_margin (share of forecast variance)"), axis)));
  }

  /** The common axis: wide enough for the intervals of groups that are large enough, and for zero. */
  scale(rows) {
    const solid = rows.filter((row) => row.g_margin.n >= FEW);
    const shown = (solid.length ? solid : rows).map((row) => row.g_margin).filter((gain) => gain.n);
    const low = Math.min(0, ...shown.map((gain) => gain.low));
    const high = Math.max(0, ...shown.map((gain) => gain.high));
    const room = 0.05 * (high - low) || 1;
    const [from, to] = [low - room, high + room];
    const inner = FOREST.width - 2 * FOREST.pad;
    return { from, to, x: (value) => FOREST.pad + ((value - from) / (to - from)) * inner, ticks: hrx.ticks(from, to, 4) };
  }

  row(row, scale) {
    const { view } = this;
    const gain = row.g_margin;
    const records = (text) => hrx.el("a", { href: view.recordsOf({ [view.state.by]: row.name }) }, text);
    const content = {
      name: hrx.el("span", { class: "name", title: row.name }, row.name),
      n: records(String(gain.n)), beats: hrx.el("a", { href: view.recordsOf({ [view.state.by]: row.name, beats: "all" }) }, hrx.percent(row.beats)),
      g_own: records(hrx.signed(row.g_own.median)), g_shuffled: records(hrx.signed(row.g_shuffled.median)),
      g_margin: records(hrx.signed(gain.median)),
      interval: gain.n > 1 ? `[${hrx.signed(gain.low)}, ${hrx.signed(gain.high)}]` : "–",
      positive: hrx.percent(gain.positive), rank: Number.isFinite(row.rank) ? row.rank.toFixed(2) : "–",
    };
    const cells = this.columns.map((column) => hrx.el(column.key === "name" ? "th" : "td",
      { class: `${column.text ? "" : "number"} ${column.minor ? "minor" : ""}`, scope: column.key === "name" ? "row" : null,
        "data-column": column.key }, content[column.key]));
    return hrx.el("tr", { class: gain.n < FEW ? "few" : "", "data-group": row.name }, cells,
      hrx.el("td", { class: "forest" }, this.forest(gain, scale)));
  }

  forest(gain, scale) {
    const y = FOREST.height / 2;
    const clip = (value) => scale.x(Math.min(Math.max(value, scale.from), scale.to));
    const parts = [hrx.el("line", { class: "zero", x1: scale.x(0), x2: scale.x(0), y1: 0, y2: FOREST.height })];
    if (gain.n) {
      parts.push(hrx.el("line", { class: "whisker", x1: clip(gain.low), x2: clip(gain.high), y1: y, y2: y }));
      if (gain.low < scale.from) parts.push(hrx.el("path", { class: "beyond", d: `M2 ${y}l6 -4v8z` }));
      if (gain.high > scale.to) parts.push(hrx.el("path", { class: "beyond", d: `M${FOREST.width - 2} ${y}l-6 -4v8z` }));
      if (gain.median >= scale.from && gain.median <= scale.to) {
        parts.push(hrx.el("circle", { class: "median", cx: scale.x(gain.median), cy: y, r: 4.5 }));
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

/** A sorted copy; what has no value comes last either way. */
hrx.sorted = function (items, value, down) {
  const missing = (one) => one === null || one === undefined || Number.isNaN(one);
  return items.map((item) => [value(item), item]).sort(([a], [b]) => {
    if (missing(a) || missing(b)) return missing(a) - missing(b);
    const order = typeof a === "string" ? a.localeCompare(b) : a - b;
    return down ? -order : order;
  }).map(([, item]) => item);
};
