"use strict";
// How a heat map is drawn and steered; what it knows is in heatmap.js.

Object.assign(hrx.Heatmap.prototype, {
  /** Where things are, in CSS pixels; `right` is the margin on that side. */
  layout(width, right = HEAT.right) {
    const matrix = Math.round(Math.min(320, Math.max(140, this.item.rows * 4)));
    const top = HEAT.top + HEAT.window + HEAT.gap;
    const strip = top + matrix + HEAT.gap;
    return { left: HEAT.left, right: width - right, top, matrix, strip, height: strip + HEAT.strip + HEAT.axis };
  },

  x(position) {
    const { left, right } = this.place;
    return left + ((position - this.view.from) / (this.view.to - this.view.from)) * (right - left);
  },

  draw() {
    if (!this.item) return;
    const width = Math.max(240, this.canvas.parentElement.clientWidth);
    this.place = this.layout(width);
    this.paintOn(hrx.surface(this.canvas, this.place.height).context);
    this.drawLegend();
  },

  /** All panels and axes on a context, at `this.place`. */
  paintOn(context) {
    this.context = context;
    context.save();
    context.beginPath();
    context.rect(this.place.left, 0, this.place.right - this.place.left, this.place.height - HEAT.axis);
    context.clip();
    this.drawWindow();
    this.drawMatrix();
    context.restore();
    this.drawAxes();
  },

  /** The window's values, truth and forecast; below them what the chosen step reads, and what all share. */
  drawWindow() {
    const { context, item, lookback } = this;
    const all = [...item.x, ...item.truth, ...item.forecast].filter((value) => value !== null);
    const [low, high] = [Math.min(...all), Math.max(...all)];
    const floor = HEAT.top + HEAT.window;
    const room = HEAT.window * 0.62;
    this.y = (value) => HEAT.top + 4 + room * (1 - (value - low) / (high - low || 1));
    this.range = [low, high];
    const reach = HEAT.window * 0.3;
    const row = this.values.subarray(this.cursor.row * lookback, (this.cursor.row + 1) * lookback);
    const [most, mostShared] = [Math.max(...row) || 1, Math.max(...this.shared) || 1];
    context.fillStyle = this.colour("own");
    const thick = Math.max(1, this.x(1) - this.x(0));
    row.forEach((value, t) => {
      const size = (reach * value) / most;
      context.fillRect(this.x(t - lookback), floor - size, thick, size);
    });
    this.line(this.shared, -lookback, (value) => floor - (reach * value) / mostShared, "muted", [], 1);
    this.line(item.x, -lookback, this.y, "ink", [], 1.2);
    this.line(item.truth, 0, this.y, "truth", [], 1.4);
    this.line(item.forecast, 0, this.y, "forecast", [5, 3], 1.8);
    const step = item.steps[this.cursor.row];
    context.fillStyle = this.colour("forecast");
    context.beginPath();
    context.arc(this.x(step - 0.5), this.y(item.forecast[step - 1]), 4.5, 0, 7);
    context.fill();
    this.rule(0, HEAT.top, this.place.strip + HEAT.strip, "muted");
  },

  line(values, start, y, colour, dash, width) {
    const { context } = this;
    context.strokeStyle = this.colour(colour);
    context.lineWidth = width;
    context.setLineDash(dash);
    context.beginPath();
    let pen = false;
    values.forEach((value, k) => {
      if (value === null) {
        pen = false;
        return;
      }
      const [px, py] = [this.x(start + k + 0.5), y(value)];
      if (pen) context.lineTo(px, py);
      else context.moveTo(px, py);
      pen = true;
    });
    context.stroke();
    context.setLineDash([]);
  },

  rule(position, from, to, colour) {
    const { context } = this;
    context.strokeStyle = this.colour(colour);
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(this.x(position), from);
    context.lineTo(this.x(position), to);
    context.stroke();
  },

  drawMatrix() {
    const { context, view, place, item, lookback, cursor } = this;
    context.imageSmoothingEnabled = false;
    const rowHeight = place.matrix / (view.bottom - view.top);
    const yOf = (row) => place.top + (row - view.top) * rowHeight;
    const width = this.x(0) - this.x(-lookback);
    context.save();
    context.beginPath();
    context.rect(place.left, place.top, place.right - place.left, place.matrix);
    context.clip();
    context.drawImage(this.image, this.x(-lookback), yOf(0), width, rowHeight * item.rows);
    // Under the forecast there is no matrix: a line leads from each row to the step that it explains.
    context.strokeStyle = this.colour("muted");
    context.setLineDash([2, 3]);
    context.beginPath();
    item.steps.forEach((step, row) => context.lineTo(this.x(step - 0.5), yOf(row + 0.5)));
    context.stroke();
    context.setLineDash([]);
    this.frame(this.x(-lookback), yOf(cursor.row), width, rowHeight);
    this.frame(this.x(cursor.at - lookback), yOf(cursor.row), Math.max(3, this.x(1) - this.x(0)), rowHeight);
    context.fillStyle = this.colour("forecast");
    context.beginPath();
    context.arc(this.x(item.steps[cursor.row] - 0.5), yOf(cursor.row + 0.5), 4.5, 0, 7);
    context.fill();
    context.restore();
    context.drawImage(this.strip, this.x(-lookback), place.strip, width, HEAT.strip);
  },

  /** A box that shows on dark and on light cells. */
  frame(x, y, width, height) {
    const { context } = this;
    context.lineWidth = 3;
    context.strokeStyle = "#000";
    context.strokeRect(x, y, width, Math.max(2, height));
    context.lineWidth = 1.2;
    context.strokeStyle = "#fff";
    context.strokeRect(x, y, width, Math.max(2, height));
  },

  drawAxes() {
    const { context, view, place, item } = this;
    context.fillStyle = this.colour("soft");
    context.textBaseline = "middle";
    context.textAlign = "right";
    hrx.ticks(this.range[0], this.range[1], 5).forEach((value) =>
      context.fillText(hrx.short(value), place.left - 6, this.y(value)));
    const rowHeight = place.matrix / (view.bottom - view.top);
    const every = Math.max(1, Math.ceil(22 / rowHeight));
    for (let row = Math.ceil(view.top); row < view.bottom - 0.5; row += every) {
      context.fillText(String(item.steps[row]), place.left - 6, place.top + (row + 0.5 - view.top) * rowHeight);
    }
    context.fillText("shared", place.left - 6, place.strip + HEAT.strip / 2);
    this.sideways(item.unit || "value (standardised)", HEAT.top + HEAT.window / 2 - 8);
    this.sideways("forecast step h", place.top + place.matrix / 2);
    context.textBaseline = "top";
    context.textAlign = "center";
    const bottom = place.strip + HEAT.strip + 4;
    hrx.ticks(view.from, view.to, (place.right - place.left) / 80).forEach((position) =>
      context.fillText(String(position).replace("-", "−"), this.x(position), bottom));
    const label = "steps from the start of the forecast";
    context.fillText(label, (place.left + place.right) / 2, bottom + 16);
  },

  sideways(text, y) {
    const { context } = this;
    context.save();
    context.translate(8, y);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText(text, 0, 0);
    context.restore();
  },

  /** Colour, text and dash of each line. */
  keys() {
    const truth = this.item.truth.length ? [["truth", "truth", false]] : [];
    return [["ink", "lookback", false], ...truth, ["forecast", "forecast", true],
      ["own", `what step ${this.item.steps[this.cursor.row]} reads`, false], ["muted", "what all steps share (Ē)", false]];
  },

  drawLegend() {
    this.scale.replaceChildren(
      ...this.keys().map(([name, text, dashed]) => hrx.el("span", { class: `key ${dashed ? "dashed" : ""}`, "data-key": name }, text)),
      hrx.el("span", { class: "key", "data-key": "ramp" }, `E / max E, square-root scale: blue 0, yellow ${hrx.short(this.capped)}${this.capped < 1 ? " and above" : ""}`));
  },

  /** The cell under a pointer event; null outside the matrix. */
  cell(event) {
    const box = this.canvas.getBoundingClientRect();
    const { view, place } = this;
    const share = (event.clientX - box.left - place.left) / (place.right - place.left);
    const down = (event.clientY - box.top - place.top) / place.matrix;
    const position = view.from + share * (view.to - view.from);
    const row = view.top + Math.min(Math.max(down, 0), 0.9999) * (view.bottom - view.top);
    const inside = down >= 0 && down < 1 && position >= view.from && position < Math.min(0, view.to);
    return { position, row, inside };
  },

  listen() {
    const { canvas } = this;
    let start = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button === 0 && this.item) start = this.cell(event);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (this.item && !event.buttons) this.point(event);
    });
    canvas.addEventListener("pointerup", (event) => {
      if (!this.item) return;
      const end = this.cell(event);
      const dragged = start && start.inside && Math.abs(end.position - start.position) > 4;
      if (dragged) {
        const [from, to] = [start.position, end.position].sort((a, b) => a - b);
        const [top, bottom] = [start.row, end.row].sort((a, b) => a - b);
        this.limit(from, to, Math.floor(top), Math.ceil(bottom));
      } else this.point(event);
      start = null;
    });
    canvas.addEventListener("dblclick", () => this.item && this.whole());
    canvas.addEventListener("keydown", (event) => this.key(event));
  },

  point(event) {
    const { position, row, inside } = this.cell(event);
    if (!inside) return;
    this.cursor = { row: Math.floor(row), at: Math.floor(position) + this.lookback };
    this.moved();
  },

  key(event) {
    if (!this.item || event.ctrlKey || event.metaKey || event.altKey) return;
    const far = event.shiftKey ? 10 : 1;
    const { cursor } = this;
    const moves = {
      ArrowLeft: () => { cursor.at -= far; }, ArrowRight: () => { cursor.at += far; },
      ArrowUp: () => { cursor.row -= far; }, ArrowDown: () => { cursor.row += far; },
      Home: () => { cursor.at = 0; }, End: () => { cursor.at = this.lookback - 1; },
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), 0: () => this.whole(),
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    moves[event.key]();
    cursor.at = Math.min(this.lookback - 1, Math.max(0, cursor.at));
    cursor.row = Math.min(this.item.rows - 1, Math.max(0, cursor.row));
    this.moved();
  },
});

/** Deletion curves `(3, 2, K)` of a window: how far the forecast moves as more of the lookback is deleted. */
hrx.drawCurves = function (host, curves) {
  host.replaceChildren();
  if (!curves) return;
  const names = ["own row", "shared vector", "all rows (mean)"];
  const orders = ["most relevant first", "least relevant first"];
  const values = curves.flat(2).filter((value) => value !== null);
  const high = Math.max(...values, 1e-12);
  const [width, height, left, right, bottom] = [340, 210, 52, 22, 40];
  const charts = orders.map((order, which) => {
    const x = (k) => left + (k / (curves[0][0].length - 1)) * (width - left - right);
    const y = (value) => height - bottom - (value / high) * (height - bottom - 12);
    const tick = (value) => hrx.el("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, hrx.short(value));
    return hrx.el("figure", { class: "curve" },
      hrx.el("figcaption", {}, `Deleted ${order}`),
      hrx.el("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Deletion curves, ${order}` },
        hrx.el("line", { class: "axis", x1: left, x2: width - right, y1: y(0), y2: y(0) }),
        hrx.ticks(0, high, 4).map(tick),
        [0, 0.5, 1].map((share) => hrx.el("text",
          { x: x(share * (curves[0][0].length - 1)), y: height - bottom + 16, "text-anchor": "middle" }, hrx.percent(share))),
        hrx.el("text", { x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, "deleted share of the lookback"),
        names.map((name, k) => hrx.el("polyline", {
          class: `curve-${k}`, points: curves[k][which].map((value, at) => `${x(at)},${y(value || 0)}`).join(" ") }))));
  });
  const legend = hrx.el("p", { class: "legend" },
    names.map((name, k) => hrx.el("span", { class: "key", "data-key": `curve-${k}` }, name)));
  host.append(hrx.el("h3", {}, "Deletion curves of the run"), hrx.el("div", { class: "curves" }, charts), legend,
    hrx.el("p", { class: "note" }, "Squared change of the forecast, divided by the variance of the forecasts; mean of the scored steps."));
};
