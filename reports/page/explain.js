"use strict";
// One forecast: the heat map, the points that the chosen step reads most, and the deletion curves.

(function () {
  const item = hrx.data("window");
  const heatmap = new hrx.Heatmap(hrx.byId("heatmap"), item.palette);

  /** The points that the chosen row weighs most, beside their weight in the shared vector. */
  function showPoints() {
    const { lookback, cursor } = heatmap;
    const { share, points } = item.points[cursor.row];
    const step = item.steps[cursor.row];
    hrx.byId("steps-note").textContent =
      `Step ${step} of ${item.forecast.length}, forecast ${hrx.short(item.forecast[step - 1])}. The ${points.length} points that weigh most ` +
      `hold ${share} of its row.`;
    const cell = (value, kind) => hrx.el("td", { class: kind }, value);
    hrx.byId("top-points").replaceChildren(
      hrx.el("thead", {}, hrx.el("tr", {}, ["position", item.labels ? "date" : null, "value", "share of the row", "share of the shared vector"]
        .filter((title) => title !== null).map((title, k) => hrx.el("th", { scope: "col", class: k ? "number" : "" }, title)))),
      hrx.el("tbody", {}, points.map(([at, own, shared]) => hrx.el("tr", {}, cell(String(at - lookback), ""),
        item.labels ? cell(item.labels[at], "number") : null, cell(hrx.short(item.x[at]), "number"),
        cell(own, "number"), cell(shared, "number")))));
  }

  const moved = heatmap.moved.bind(heatmap);
  heatmap.moved = () => {
    moved();
    showPoints();
  };
  hrx.drawCurves(hrx.byId("curves"), item.curves);
  heatmap.show(item).then(() => { document.body.dataset.ready = "yes"; });
})();
