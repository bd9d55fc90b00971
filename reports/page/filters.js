"use strict";
// Which runs are shown. The whole state is in the address after #, so that a view can be linked and saved.

hrx.TITLES = { backbone: "Backbone", model: "Model", dataset: "Dataset", domain: "Domain", setting: "Setting", estimator: "Estimator", leakage: "Leakage" };

hrx.View = class {
  constructor(runs) {
    this.runs = runs;
    this.groupings = runs.groupings;
    const several = runs.texts.model.values.length > 1;
    const grouped = document.querySelector('.verdict[data-by="backbone"]') !== null;
    this.defaults = { by: grouped ? "backbone" : several ? "model" : "dataset", beats: "yes", status: "", search: "", sort: "g_margin", down: "1", order: "", page: "0" };
    this.groupings.forEach((name) => { this.defaults[name] = ""; });
    this.listeners = [];
    addEventListener("hashchange", () => this.read());
  }

  /** Reads the state from the address, and scrolls to the section that it names. */
  read() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const plain = hrx.byId(location.hash.slice(1));
    if (plain && !asked.get("at")) {
      if (!this.state) this.apply({});
      return; // an ordinary link within the page: the view stays as it is
    }
    const state = {};
    Object.keys(this.defaults).forEach((name) => {
      if (asked.has(name)) state[name] = asked.get(name);
    });
    this.apply(state);
    const part = hrx.byId(asked.get("at") || "");
    if (part) part.scrollIntoView();
  }

  /** Runs an action whenever one of the filters, or of these further parts of the state, has changed. */
  watch(names, action) {
    this.listeners.push({ names: [...this.groupings, ...names], action });
  }

  /** Shows a state, after the statistics that it needs are loaded. */
  apply(state) {
    const waiting = this.prepare && this.prepare({ ...this.defaults, ...state });
    if (waiting) {
      waiting.then(() => this.apply(state));
      return;
    }
    const before = this.state;
    this.state = { ...this.defaults, ...state };
    this.listeners.forEach(({ names, action }) => {
      if (!before || names.some((name) => before[name] !== this.state[name])) action();
    });
  }

  /** Changes some of the state without scrolling. Whatever narrows the list starts it at its first page. */
  set(changes) {
    const state = { ...this.state, page: "0", ...changes };
    history.replaceState(null, "", this.address(state));
    this.apply(state);
  }

  /** The address of a state; `at` names the section to scroll to. */
  address(changes, at) {
    const state = { ...this.defaults, ...changes };
    const query = new URLSearchParams();
    if (at) query.set("at", at);
    Object.entries(state).forEach(([name, value]) => {
      if (value !== this.defaults[name]) query.set(name, value);
    });
    return `#${query.toString() || "at=top"}`;
  }

  /** The address of the records behind a number of this view. */
  recordsOf(changes) {
    return this.address({ ...this.state, status: "done", search: "", page: "0", ...changes }, "records");
  }

  get filtered() {
    return this.groupings.filter((name) => this.state[name]);
  }

  /** The filters as numbers of their texts: {grouping: code}. */
  get filterCodes() {
    return Object.fromEntries(this.filtered.map((name) => [name, this.runs.texts[name].values.indexOf(this.state[name])]));
  }

  /** Whether a run passes the filters of the groupings. */
  passes() {
    const wanted = Object.entries(this.filterCodes).map(([name, code]) => [this.runs.texts[name].codes, code]);
    return (run) => wanted.every(([codes, value]) => codes[run] === value);
  }

  /** The filters in words, the one on naive forecasts left out. */
  describe() {
    const parts = this.filtered.map((name) => `${hrx.TITLES[name].toLowerCase()} ${this.state[name]}`);
    return parts.join(", ") || "all runs";
  }

  /** The end of a file name that holds this view. */
  get fileName() {
    return [...this.filtered.map((name) => `--${hrx.slug(this.state[name])}`), this.state.beats === "yes" ? "" : `--beats-naive-${this.state.beats}`].join("");
  }

  /** Whether a run passes every filter; the one on naive forecasts is about scored runs. */
  chosen() {
    const { texts, beats_naive: naive } = this.runs;
    const { beats } = this.state;
    const passes = this.passes();
    const done = texts.status.values.indexOf("done");
    return (run) => passes(run) && (beats === "all" || texts.status.codes[run] !== done || (naive[run] === 1) === (beats === "yes"));
  }

  /** Scored runs of the view; `beats` "yes", "no" or "all". */
  scored(beats = this.state.beats) {
    const { texts, count, beats_naive: naive } = this.runs;
    const done = texts.status.values.indexOf("done");
    const passes = this.passes();
    const found = [];
    for (let run = 0; run < count; run += 1) {
      if (texts.status.codes[run] !== done || !passes(run)) continue;
      if (beats === "all" || (naive[run] === 1) === (beats === "yes")) found.push(run);
    }
    return found;
  }

  /** All runs of the record list: those that pass the filters, the status and the search. */
  records() {
    const { texts, count, key } = this.runs;
    const { status, search } = this.state;
    const chosen = this.chosen();
    const wanted = texts.status.values.indexOf(status);
    const words = search.toLowerCase();
    const columns = Object.values(texts).map(({ values, codes }) =>
      [codes, new Set(values.flatMap((value, code) => (value.toLowerCase().includes(words) ? [code] : [])))]);
    const found = [];
    for (let run = 0; run < count; run += 1) {
      if (!chosen(run) || (status && texts.status.codes[run] !== wanted)) continue;
      if (words && !columns.some(([codes, hits]) => hits.has(codes[run])) && !(key[run] || "").startsWith(words)) continue;
      found.push(run);
    }
    return found;
  }
};

/** The filters: a list for each grouping, disabled where it has one value. */
hrx.Filters = class {
  constructor(view, form) {
    this.view = view;
    const names = { ...hrx.TITLES, setting: "Setting (L×H)" };
    // A phone shows the verdict first; the summary line still names the filters that are set.
    const box = hrx.byId("filter-box");
    if (matchMedia("(max-width: 46rem)").matches) box.open = false;
    this.selects = view.groupings.map((name) => {
      const { values } = view.runs.texts[name];
      const options = values.length > 1 ? [hrx.el("option", { value: "" }, "all")] : [];
      const sorted = name === "setting" ? values : [...values].sort((a, b) => a.localeCompare(b));
      sorted.forEach((value) => options.push(hrx.el("option", { value: values.length > 1 ? value : "" }, value)));
      return this.field(form, names[name], name, options, values.length < 2);
    });
    const beats = [["yes", "yes"], ["all", "yes or no"], ["no", "no"]];
    this.selects.push(this.field(form, "Beats naive", "beats",
      beats.map(([value, text]) => hrx.el("option", { value }, text)), false));
    this.clear = hrx.el("button", { type: "button", class: "quiet", id: "clear", onclick: () => this.reset() }, "Clear filters");
    form.append(this.clear);
    form.addEventListener("submit", (event) => event.preventDefault());
    view.watch(["beats"], () => this.show());
  }

  field(form, text, name, options, off) {
    const select = hrx.el("select", { name, id: `filter-${name}`, disabled: off,
      onchange: () => this.view.set({ [name]: select.value }) }, options);
    form.append(hrx.el("label", { class: "field" }, `${text} `, select));
    return select;
  }

  reset() {
    const empty = Object.fromEntries(this.view.groupings.map((name) => [name, ""]));
    this.view.set({ ...empty, beats: "yes", status: "", search: "" });
  }

  show() {
    const { state, filtered } = this.view;
    this.selects.forEach((select) => { if (!select.disabled) select.value = state[select.name]; });
    this.clear.disabled = !filtered.length && state.beats === "yes";
    const kind = { yes: "that beat naive", all: "that beat naive or not", no: "that do not beat naive" }[state.beats];
    hrx.byId("selection").textContent = `${this.view.describe()}${filtered.length ? ": runs" : ""} ${kind}`;
  }
};
