"use strict";
// The report: one view of the runs, and the sections that show it.

(function () {
  const runs = hrx.data("runs");
  const examples = hrx.data("examples");
  const view = new hrx.View(runs);
  new hrx.Filters(view, hrx.byId("filters"));
  const groups = new hrx.Groups(view, hrx.data("statistics"), hrx.data("rank-points"));
  const records = new hrx.Records(view);
  const heatmap = examples.shown.length ? new hrx.Heatmap(hrx.byId("heatmap"), examples.palette) : null;
  const select = hrx.byId("example");
  let shown = null;

  const name = (item) => ["model", "dataset", "series", "setting"].map((column) => records.value(item.run, column));
  const title = (item) => {
    const [model, dataset, series, setting] = name(item);
    const reach = records.value(item.run, "effective_lookback");
    const verdict = records.value(item.run, "beats_naive") === "yes" ? "the run beats naive" : "the run does not beat naive: its gains are not meaningful";
    const far = reach === null ? "" : `; 90 % of a row lies in the last ${hrx.short(reach)} of ${item.x.length} steps on average`;
    return `${model} on ${dataset}, series ${series}, ${setting}: ${verdict}; g_own ${hrx.signed(records.value(item.run, "g_own"))}, ` +
      `g_margin ${hrx.signed(records.value(item.run, "g_margin"))}${far}.`;
  };

  /** The examples of the view, in the list and on the canvas. */
  function offer() {
    const passes = view.passes();
    const offered = examples.shown.filter((item) => passes(item.run));
    select.replaceChildren(...offered.map((item) => hrx.el("option", { value: item.run }, name(item).join(" · "))));
    const left = examples.stored - examples.shown.length;
    hrx.byId("examples-note").textContent = !examples.stored ? "The ledger holds no examples."
      : `${offered.length} of ${examples.stored} stored examples match the filters` +
        (left ? `; ${left} are left out to keep this page small` : "") + ".";
    const still = offered.find((item) => item === shown) || offered[0] || null;
    hrx.byId("heatmap").hidden = hrx.byId("curves").hidden = select.parentElement.hidden = !still;
    if (still) {
      select.value = still.run;
      if (still !== shown) open(still);
    }
  }

  function open(item) {
    shown = item;
    item.title = title(item);
    hrx.drawCurves(hrx.byId("curves"), item.curves);
    heatmap.show(item).then(() => { document.body.dataset.example = String(item.run); });
  }

  select.addEventListener("change", () => open(examples.shown.find((item) => item.run === Number(select.value))));
  view.watch([], () => hrx.later("examples", offer));
  view.read();
  hrx.whenShown(hrx.byId("rank-figure"), () => groups.drawRank());
  document.body.dataset.ready = "yes";
})();
