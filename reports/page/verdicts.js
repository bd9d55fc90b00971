"use strict";
// Verdicts, exclusions and admission checks of the selection. Python wrote those of the whole ledger into the page, and
// computed the verdict of every selection; this script counts runs and looks verdicts up.

hrx.Verdicts = class {
  constructor(view, statistics, exclusions) {
    this.view = view;
    this.statistics = statistics;
    this.exclusions = exclusions;
    this.cards = [...document.querySelectorAll(".verdict[data-name]")];
    this.cards.forEach((card) => { card.dataset.whole = card.dataset.tone; });
    view.watch(["beats"], () => this.show());
  }

  show() {
    const { view } = this;
    const { state } = view;
    const narrowed = view.filtered.some((name) => name !== "model" && name !== "backbone");
    hrx.byId("verdict-note").textContent = (narrowed ? `Of the selection only: ${view.describe()}.`
      : `Of all runs of the ${state.model ? "model" : state.backbone ? "backbone" : "ledger"}.`) +
      (state.beats === "yes" ? "" : " A verdict counts the runs that beat naive, whatever the filter “Beats naive” is.");
    const counts = narrowed ? { model: this.count("model"), backbone: this.count("backbone") } : null;
    const shown = this.named();
    this.cards.forEach((card) => {
      card.hidden = Boolean(state.model || state.backbone) && !shown[card.dataset.by].has(card.dataset.name);
      const [whole, selected] = [card.querySelector(".whole"), card.querySelector(".selected")];
      whole.hidden = narrowed;
      selected.hidden = !narrowed;
      card.dataset.tone = card.dataset.whole;
      if (narrowed && !card.hidden) this.fill(card, selected, counts[card.dataset.by]);
    });
    // The models of a backbone stay behind its card, unless one of them is chosen.
    document.querySelectorAll(".members").forEach((members) => {
      members.hidden = !members.querySelector(".verdict:not([hidden])");
      if (state.model) members.open = true;
    });
    this.showExcluded();
    this.showChecks();
  }

  /** The models and backbones that the filters “Model” and “Backbone” leave. One model alone has no card of its backbone. */
  named() {
    const { model, backbone } = this.view.runs.texts;
    const { state } = this.view;
    const found = { model: new Set(), backbone: new Set() };
    model.codes.forEach((code, run) => {
      const [name, of] = [model.values[code], backbone ? backbone.values[backbone.codes[run]] : ""];
      if ((state.model && state.model !== name) || (state.backbone && state.backbone !== of)) return;
      found.model.add(name);
      if (!state.model) found.backbone.add(of);
    });
    return found;
  }

  /** What happened to the runs of the selection, for each model or backbone. */
  count(by) {
    const { view } = this;
    if (!view.runs.texts[by]) return [];
    const { texts, count, beats_naive: naive, beats_seasonal: seasonal } = view.runs;
    const passes = view.passes();
    const found = texts[by].values.map(() => ({ runs: 0, done: 0, excluded: 0, failed: 0, naive: 0, seasonal: 0, known: 0, lost: 0, compared: 0 }));
    for (let run = 0; run < count; run += 1) {
      if (!passes(run)) continue;
      const mine = found[texts[by].codes[run]];
      const status = texts.status.values[texts.status.codes[run]];
      mine.runs += 1;
      if (status in mine) mine[status] += 1;
      if (status !== "done") continue;
      if (naive[run] === 1) mine.naive += 1;
      if (seasonal[run] !== null) mine.known += 1;
      if (seasonal[run] === 1) mine.seasonal += 1;
      // Whether most runs that beat naive lose to the season is part of what a verdict says.
      if (naive[run] === 1 && seasonal[run] !== null) mine.compared += 1;
      if (naive[run] === 1 && seasonal[run] === 0) mine.lost += 1;
    }
    return found;
  }

  /** The verdict of the selection on one model, and its figures. */
  fill(card, host, counts) {
    const { view } = this;
    const { by, name: label } = card.dataset;
    const code = view.runs.texts[by].values.indexOf(label);
    const mine = counts[code];
    const gain = hrx.lookUp(this.statistics, view.runs, { ...view.filterCodes, [by]: code }, "yes");
    const [tone, says, because] = this.verdict(mine, gain);
    card.dataset.tone = tone;
    const figure = (term, big, ...small) => hrx.el("div", {}, hrx.el("dt", {}, term),
      hrx.el("dd", {}, hrx.el("span", { class: "big" }, big), ...small.map((text) => hrx.el("small", {}, text))));
    const link = (text, changes) => hrx.el("a", { href: view.recordsOf({ [by]: label, beats: "all", ...changes }) }, text);
    const known = gain && gain.n ? gain : null;
    const share = (name) => (gain && mine.done ? hrx.percent(gain[name]) : "–");
    const states = [["done", "scored"], ["excluded", "excluded"], ["failed", "failed"]].filter(([name]) => mine[name]);
    host.replaceChildren(hrx.el("p", { class: "says" }, says), hrx.el("p", { class: "because" }, because),
      hrx.el("dl", { class: "figures" },
        figure("g_margin", hrx.signed(known && known.g_margin), known ? hrx.interval(known.low, known.high) : ""),
        figure("g_own", hrx.signed(known && known.g_own), known ? hrx.interval(known.own_low, known.own_high) : ""),
        figure("beats naive", share("share"), link(`${mine.naive} of ${hrx.counted(mine.done, "scored run")}`, {})),
        figure("beats seasonal naive", share("seasonal"), mine.known ? `${mine.seasonal} of ${hrx.counted(mine.known, "scored run")}` +
          (mine.known < mine.done ? `, ${mine.done - mine.known} unknown` : "") : "unknown"),
        figure("runs", String(mine.runs), hrx.el("span", {}, states.flatMap(([status, word], k) =>
          [k ? ", " : "", link(`${mine[status]} ${word}`, { status })])))));
  }

  /** Tone, headline and reasons. */
  verdict(mine, gain) {
    if (!mine.runs) return ["none", "No run in this selection", "No run passes the filters."];
    if (!mine.done) return ["none", "Not scored", `None of ${hrx.counted(mine.runs, "run")} of this selection was scored.`];
    if (!mine.naive) return ["few", "No gain is meaningful", "No run of this selection beats both naive forecasts."];
    if (!gain) return ["none", "Not computed", "The ledger has too many groups: clear a filter to see a verdict."];
    const [tone, headline] = this.statistics.findings[gain.judged[0]];
    return [tone, headline, this.statistics.figures[gain.judged[1]] +
      (2 * mine.lost > mine.compared ? ` But ${mine.lost} of ${hrx.counted(mine.compared, "run")} that beat naive lose to seasonal naive.` : "")];
  }

  /** Counts the excluded and failed runs of the selection; rows without one are hidden. */
  showExcluded() {
    const { view, exclusions } = this;
    const note = hrx.byId("excluded-note");
    if (!note) return;
    const passes = view.passes();
    const done = view.runs.texts.status.values.indexOf("done");
    const counts = exclusions.rows.map(() => 0);
    let [runs, refused] = [0, 0];
    exclusions.of.forEach((row, run) => {
      if (!passes(run)) return;
      runs += 1;
      if (view.runs.texts.status.codes[run] !== done) refused += 1;
      if (row >= 0) counts[row] += 1;
    });
    note.textContent = `${refused} of ${hrx.counted(runs, "run")} ${view.filtered.length ? "of the selection " : ""}were excluded or failed.`;
    document.querySelectorAll("#excluded-runs tr[data-row]").forEach((row) => {
      const number = Number(row.dataset.row);
      const { status, search } = exclusions.rows[number];
      row.hidden = !counts[number];
      row.querySelector("a").textContent = String(counts[number]);
      row.querySelector("a").href = view.address({ ...view.state, status, search, beats: "all", page: "0" }, "records");
    });
    hrx.byId("excluded-runs").parentElement.hidden = !refused;
  }

  /** The checks of the chosen model and setting; without a setting, the worst over all of them. */
  showChecks() {
    const { model, setting } = this.view.state;
    document.querySelectorAll("#admission-checks tbody tr").forEach((row) => {
      row.hidden = (row.dataset.setting || "") !== setting || (Boolean(model) && row.dataset.model !== model);
    });
  }
};
