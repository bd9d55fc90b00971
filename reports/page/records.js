"use strict";
// The records: fifty at a time, sorted by any column, and one of them in full.

const PAGE = 50;

hrx.Records = class {
  constructor(view, commands) {
    this.view = view;
    this.commands = commands;
    const { runs } = view;
    Object.assign(runs, { key: [], seed: [], command: [], numbers: Object.fromEntries(runs.names.map((name) => [name, []])) });
    this.here = new Set();
    this.columns = [
      { key: "key", title: "key", text: true }, { key: "model", title: "model", text: true },
      { key: "dataset", title: "dataset", text: true }, { key: "series", title: "series", text: true, minor: true },
      { key: "setting", title: "L×H", text: true, minor: true }, { key: "seed", title: "seed", minor: true },
      { key: "status", title: "status", text: true }, { key: "beats_naive", title: "beats naive", text: true, minor: true },
      { key: "beats_seasonal", title: "beats season", text: true, minor: true, hint: "error below seasonal naive; not part of the verdict" },
      { key: "g_own", title: "g_own", minor: true }, { key: "g_shuffled", title: "g_shuffled", minor: true },
      { key: "g_margin", title: "g_margin" },
      { key: "g_margin_se", title: "error", minor: true, hint: "Monte Carlo standard error of g_margin" },
      { key: "rank", title: "rank", minor: true }, { key: "mse", title: "mse", minor: true, hint: "mean squared error, standardised scale" },
    ];
    const status = hrx.byId("status");
    status.append(hrx.el("option", { value: "" }, "any"), ...view.runs.texts.status.values.map((value) => hrx.el("option", { value }, value)));
    status.addEventListener("change", () => view.set({ status: status.value }));
    const search = hrx.byId("search");
    search.addEventListener("input", () => view.set({ search: search.value }));
    hrx.byId("save-records").addEventListener("click", () => this.save());
    view.watch(["beats", "status", "search", "order", "page"], () => this.show());
  }

  /** Loads the parts that hold the numbers of these runs: a promise, or null where all are here. */
  load(wanted) {
    const { runs } = this.view;
    const parts = [...new Set(wanted.map((run) => Math.floor(run / runs.part)))].filter((part) => !this.here.has(part));
    if (!parts.length) return null;
    return Promise.all(parts.map((part) => hrx.part(`records-${part}`).then((found) => {
      const columns = [[runs, found, "key"], [runs, found, "seed"], [runs, found, "command"],
        ...runs.names.map((name) => [runs.numbers, found.numbers, name])];
      columns.forEach(([to, from, name]) => from[name].forEach((value, k) => { to[name][part * runs.part + k] = value; }));
      this.here.add(part);
    }))).catch((error) => {
      hrx.byId("records-count").textContent = error.message;
      return Promise.reject(error);
    });
  }

  /** The value of a record in a column: a text, a number, or null. */
  value(run, key) {
    const { runs } = this.view;
    if (key === "key") return runs.key[run];
    if (runs.texts[key]) return runs.texts[key].values[runs.texts[key].codes[run]];
    if (key === "beats_naive" || key === "beats_seasonal") return { 1: "yes", 0: "no" }[runs[key][run]] || "–";
    return key === "seed" ? runs.seed[run] : runs.numbers[key][run];
  }

  shown(run, key) {
    const value = this.value(run, key);
    if (key === "key") return hrx.el("button", { type: "button", class: "key-button", title: "Show this record in full", onclick: () => this.open(run) }, value.slice(0, 8));
    if (key === "dataset") return hrx.el("span", {}, hrx.el("span", { class: "name", title: value }, value), hrx.el("small", { class: "phone" }, this.value(run, "setting")));
    if (typeof value === "string") return hrx.el("span", { class: "name", title: value }, value);
    if (key === "seed" || value === null) return value === null ? "–" : String(value);
    return /^g_\w+(?<!_se)$/.test(key) ? hrx.signed(value) : hrx.short(value);
  }

  show() {
    const { view } = this;
    const { state } = view;
    hrx.byId("status").value = state.status;
    if (hrx.byId("search").value !== state.search) hrx.byId("search").value = state.search;
    const [by, down] = [state.order.replace(/^-/, ""), state.order.startsWith("-")];
    const known = this.columns.some((column) => column.key === by);
    const byNumber = known && !view.runs.texts[by] && !by.startsWith("beats_");
    const byKey = /^[0-9a-f]{4,}$/i.test(state.search);
    const loading = byNumber || byKey ? this.load(Array.from({ length: view.runs.count }, (_, run) => run)) : null;
    if (loading) {
      this.wait(loading);
      return;
    }
    let found = view.records();
    const total = found.length;
    if (known) found = hrx.sorted(found, (run) => this.value(run, by), down);
    const pages = Math.max(1, Math.ceil(total / PAGE));
    const page = Math.min(pages - 1, Math.max(0, Number(state.page) || 0));
    const here = found.slice(page * PAGE, (page + 1) * PAGE);
    const rest = this.load(here);
    if (rest) {
      this.wait(rest);
      return;
    }
    hrx.byId("records-count").textContent = `${total} of ${hrx.counted(view.runs.count, "record")}.`;
    hrx.byId("record-table").replaceChildren(
      hrx.el("thead", {}, hrx.el("tr", {}, this.columns.map((column) => hrx.header(column, column.title,
        known && by === column.key && (down ? "1" : "0"), () => view.set({ order: by === column.key && !down ? `-${column.key}` : column.key }))))),
      hrx.el("tbody", {}, here.map((run) => hrx.el("tr", { class: this.value(run, "status") === "done" ? "" : "few" },
        this.columns.map((column) => hrx.el("td", { class: `${column.text ? "" : "number"} ${column.minor ? "minor" : ""}`, "data-column": column.key },
          this.shown(run, column.key)))))));
    this.pager(page, pages);
  }

  wait(loading) {
    hrx.byId("records-count").textContent = "Loading the records…";
    loading.then(() => this.show(), () => {});
  }

  pager(page, pages) {
    const button = (text, to) => hrx.el("button", { type: "button", class: "quiet", disabled: to < 0 || to >= pages,
      onclick: () => this.view.set({ page: String(to) }) }, text);
    hrx.byId("pager").replaceChildren(button("Previous", page - 1), hrx.el("span", {}, `page ${page + 1} of ${pages}`), button("Next", page + 1));
  }

  get names() {
    const { runs } = this.view;
    return [...Object.keys(runs.texts), "seed", "beats_naive", "beats_seasonal", ...Object.keys(runs.numbers)];
  }

  /** The records of the list as CSV, in full precision. */
  save() {
    const { view } = this;
    const loading = this.load(view.records());
    if (loading) {
      loading.then(() => this.save(), () => {});
      return;
    }
    const value = (run, name) => (this.value(run, name) === "–" ? null : this.value(run, name));
    hrx.saveCsv(`hrx-records${view.fileName}`, [["key", ...this.names],
      ...view.records().map((run) => ["key", ...this.names].map((name) => value(run, name)))]);
  }

  /** The command that measures a record again; empty where the ledger does not store the settings of its audit. */
  command(run) {
    const command = this.commands[this.view.runs.command[run]];
    if (!command) return "";
    const data = command.narrow ? `${command.data}:${this.value(run, "dataset")}` : command.data;
    const words = ["hrx", "audit", ...command.models, "--data", data, "--settings", this.value(run, "setting"),
      "--seeds", String(this.value(run, "seed") + 1), ...command.rest];
    const quoted = (word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", `'"'"'`)}'`);
    return words.map(quoted).join(" ");
  }

  /** Every column of one record that the page holds. */
  open(run) {
    const { runs } = this.view;
    const shown = (name) => {
      const value = this.value(run, name);
      return value === null ? "–" : String(value);
    };
    const command = this.command(run);
    const detail = hrx.byId("detail");
    detail.replaceChildren(hrx.el("h3", {}, `Record ${runs.key[run]}…`),
      hrx.el("dl", { class: "record" }, this.names.flatMap((name) => [hrx.el("dt", {}, name), hrx.el("dd", {}, shown(name))])),
      hrx.el("p", { class: "note" }, "Numbers in full precision; a dash for an unknown or impossible number. hrx.reports.read(…) gives all columns of the ledger."),
      hrx.el("h4", {}, "Reproduce"),
      command ? hrx.el("pre", { id: "record-command" }, command) : hrx.el("p", { class: "note" }, "The ledger does not store the settings of this run’s audit; see Reproduce below."),
      command ? hrx.el("p", { class: "note" }, "This measures the run, with the other series and lower seeds of its dataset and setting, in hrx-audit; the record there has the same key." +
        (command.includes("PATH/") ? " Replace PATH by the folder of that file or directory." : "")) : null);
    detail.focus();
    detail.scrollIntoView({ block: "nearest" });
  }
};
