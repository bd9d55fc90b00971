"use strict";
// One forecast: the heat map, the points that the chosen step reads most, and the deletion curves.

(function () {
  const item = hrx.data("window");
  const heatmap = new hrx.Heatmap(hrx.byId("heatmap"), item.palette);
  const most = 10;

  /** The points that the chosen row and the shared vector weigh most, side by side. */
  function tell() {
    const { lookback, values, shared, cursor } = heatmap;
    const row = values.subarray(cursor.row * lookback, (cursor.row + 1) * lookback);
    const total = (numbers) => numbers.reduce((sum, value) => sum + value, 0) || 1;
    const [all, allShared] = [total(row), total(shared)];
    const order = Array.from(row.keys()).sort((a, b) => row[b] - row[a]).slice(0, most);
    const step = item.steps[cursor.row];
    hrx.byId("steps-note").textContent =
      `Step ${step} of ${item.forecast.length}, forecast ${hrx.short(item.forecast[step - 1])}. The ${order.length} points that weigh most ` +
      `hold ${hrx.percent(order.reduce((sum, at) => sum + row[at], 0) / all)} of its row.`;
    const cell = (value, kind) => hrx.el("td", { class: kind }, value);
    hrx.byId("top-points").replaceChildren(
      hrx.el("thead", {}, hrx.el("tr", {}, ["position", item.labels ? "date" : null, "value", "share of the row", "share of the shared vector"]
        .filter((title) => title !== null).map((title, k) => hrx.el("th", { scope: "col", class: k ? "number" : "" }, title)))),
      hrx.el("tbody", {}, order.map((at) => hrx.el("tr", {}, cell(String(at - lookback), ""),
        item.labels ? cell(item.labels[at], "number") : null, cell(hrx.short(item.x[at]), "number"),
        cell(hrx.percent(row[at] / all), "number"), cell(hrx.percent(shared[at] / allShared), "number")))));
  }

  const moved = heatmap.moved.bind(heatmap);
  heatmap.moved = () => {
    moved();
    tell();
  };
  hrx.drawCurves(hrx.byId("curves"), item.curves);
  heatmap.show(item).then(() => { document.body.dataset.ready = "yes"; });
})();
