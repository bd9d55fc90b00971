"use strict";
// The report: one view of the runs, and the sections that show it.

(function () {
  const runs = hrx.data("runs");
  const examples = hrx.data("examples");
  const view = new hrx.View(runs);
  new hrx.Filters(view, hrx.byId("filters"));
  const statistics = hrx.data("statistics");
  view.prepare = (state) => hrx.laterGroups(statistics, runs, state);
  new hrx.Verdicts(view, statistics, hrx.data("exclusions"));
  const groups = new hrx.Groups(view, statistics);
  const records = new hrx.Records(view, hrx.data("commands"));
  const heatmap = examples.shown.length ? new hrx.Heatmap(hrx.byId("heatmap"), examples.palette) : null;
  const select = hrx.byId("example");
  let shown = null;

  const name = (item) => ["model", "dataset", "series", "setting"].map((column) => records.value(item.run, column));
  const title = (item) => {
    const reach = item.effective_lookback;
    const seasonal = { yes: ", and seasonal naive too", no: ", but not seasonal naive" }[records.value(item.run, "beats_seasonal")] || "; seasonal naive: unknown";
    const verdict = item.why ? `Not to be interpreted: ${item.why}` : `The run beats naive${seasonal}`;
    const far = reach === null ? "" : `; 90 % of a row lies in the last ${hrx.short(reach)} of ${item.x.length} steps on average`;
    const zeros = item.padded;
    const padded = zeros ? `; before these steps the model reads ${zeros} zeros that its library adds` : "";
    return `${verdict}; g_own ${hrx.signed(item.g_own)}, g_margin ${hrx.signed(item.g_margin)}${far}${padded}.`;
  };

  /** The examples of the view, in the list and on the canvas. */
  function offer() {
    const [passes, chosen] = [view.passes(), view.chosen()];
    const offered = examples.shown.filter((item) => chosen(item.run));
    const others = examples.shown.filter((item) => passes(item.run)).length;
    select.replaceChildren(...offered.map((item) => hrx.el("option", { value: item.run }, name(item).join(" · ") + (item.why ? " (not to be interpreted)" : ""))));
    const left = examples.stored - examples.shown.length;
    const kind = view.state.beats === "no" ? "does not beat naive" : "beats naive";
    hrx.byId("examples-note").replaceChildren(...(!examples.stored ? ["The ledger holds no examples."]
      : !offered.length && others ? [`No stored example of the selection is of a run that ${kind}. `,
        hrx.el("button", { type: "button", class: "quiet", id: "other-examples", onclick: () => view.set({ beats: "all" }) }, `Show ${hrx.counted(others, "other example")}`)]
      : [`${offered.length} of ${hrx.counted(examples.stored, "stored example")} match the filters` +
        (left ? `; ${left} are left out to keep this page small` : "") + "."]));
    const still = offered.find((item) => item === shown) || offered[0] || null;
    hrx.byId("heatmap").hidden = hrx.byId("curves").hidden = select.parentElement.hidden = !still;
    if (still) {
      select.value = still.run;
      if (still !== shown) open(still);
    }
  }

  function open(item) {
    shown = item;
    hrx.part(`example-${item.run}`).then((found) => {
      Object.assign(item, found);
      if (shown === item) draw(item);
    }).catch((error) => { hrx.byId("examples-note").textContent = error.message; });
  }

  function draw(item) {
    const [model, dataset, series, setting] = name(item);
    item.heading = `${model} on ${dataset}, series ${series}, ${setting}`;
    item.title = title(item);
    hrx.drawCurves(hrx.byId("curves"), item.curves);
    heatmap.show(item).then(() => { document.body.dataset.example = String(item.run); });
  }

  select.addEventListener("change", () => open(examples.shown.find((item) => item.run === Number(select.value))));
  view.watch(["beats"], () => hrx.later("examples", offer));
  view.read();
  const ready = () => {
    if (!view.state) {
      setTimeout(ready, 20); // the address names filters whose statistics are not here yet
      return;
    }
    hrx.whenShown(hrx.byId("rank-figure"), () => groups.drawRank());
    document.body.dataset.ready = "yes";
  };
  ready();
})();
