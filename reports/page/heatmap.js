"use strict";
// One window and its explanation matrix on one canvas: values and forecast, a row per forecast step, the shared vector.
// All panels share the time axis. Pointer, touch and keyboard reach the same cells.

const HEAT = { left: 58, right: 10, top: 8, window: 170, gap: 10, strip: 18, axis: 40 };

/** Halves from base64 of deflated byte planes, as Python packs them. */
hrx.unpack = async function (text) {
  const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  const planes = new Uint8Array(await new Response(stream).arrayBuffer());
  const count = planes.length / 2;
  const values = new Float32Array(count);
  for (let k = 0; k < count; k += 1) {
    const exponent = planes[k] >> 2;
    const fraction = ((planes[k] & 3) << 8) | planes[count + k];
    values[k] = exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024);
  }
  return values;
};

hrx.Heatmap = class {
  constructor(host, palette) {
    const id = `heat-help-${hrx.Heatmap.made += 1}`;
    this.host = host;
    this.palette = Uint8Array.from(palette.match(/../g), (pair) => parseInt(pair, 16));
    this.canvas = hrx.el("canvas", {
      tabindex: 0, role: "application", "aria-roledescription": "heat map", "aria-describedby": id,
    });
    this.title = hrx.el("p", { class: "heat-title" });
    this.readout = hrx.el("p", { class: "readout", role: "status" });
    this.step = hrx.el("input", { type: "range", "aria-label": "Forecast step", min: 0, max: 0, value: 0, oninput: () => this.pickRow(+this.step.value) });
    this.stepName = hrx.el("output", {});
    const button = (text, label, action) =>
      hrx.el("button", { type: "button", class: "quiet", "aria-label": label, onclick: action }, text);
    this.tools = hrx.el("div", { class: "tools" },
      hrx.el("label", { class: "field grow" }, "Forecast step ", this.stepName, this.step),
      button("+", "Zoom in", () => this.zoom(0.5)),
      button("−", "Zoom out", () => this.zoom(2)),
      button("Whole", "Show the whole window", () => this.whole()),
      this.bright = hrx.el("button", { type: "button", class: "quiet on", "aria-pressed": "true", onclick: () => this.brighten() }, "Brighten"),
      button("Save as PNG", "Save this heat map as PNG", () => this.save()));
    const help = hrx.el("p", { class: "note heat-help", id },
      "Point at a cell for its value, drag across cells to zoom in. On the keyboard: arrows move (with Shift by ten), " +
      "+ and − zoom, 0 shows the whole window.");
    this.scale = hrx.el("p", { class: "legend" });
    host.append(this.title, hrx.el("div", { class: "heat" }, this.canvas), this.readout, this.tools, this.scale, help);
    this.listen();
    this.stop = hrx.whenShown(host, () => this.draw());
  }

  /** A colour of the style sheet, in the theme of the place where the heat map is. */
  colour(name) {
    return hrx.colour(name, this.host);
  }

  /** Shows a window; resolves when it is drawn. */
  async show(item) {
    this.item = null;
    const [values, shared] = await Promise.all([hrx.unpack(item.matrix), hrx.unpack(item.shared)]);
    this.item = item;
    this.values = values;
    this.shared = shared;
    this.lookback = item.x.length;
    this.horizon = item.forecast.length;
    this.colourIn();
    this.cursor = { row: 0, at: this.lookback - 1 };
    this.step.max = item.rows - 1;
    this.title.replaceChildren(hrx.el("strong", {}, `${item.heading}.`), hrx.el("span", { class: item.why ? "warning" : "" }, ` ${item.title}`));
    this.canvas.setAttribute("aria-label", `Importance of each past value for each forecast step. ${item.heading}. ${item.title}`);
    this.whole();
  }

  /** Both images, coloured up to the maximum, or up to the 99th percentile where one position outshines the rest. */
  colourIn() {
    const bright = this.bright.getAttribute("aria-pressed") === "true" ? 1 : 0;
    const [top, topShared] = this.item.tops.map((ends) => ends[bright] || 1);
    const scaled = (values, largest) => values.map((value) => Math.min(1, value / largest));
    this.capped = top;
    this.image = this.paint(scaled(this.values, top), this.item.rows);
    this.strip = this.paint(scaled(this.shared, topShared), 1);
  }

  brighten() {
    const on = this.bright.getAttribute("aria-pressed") !== "true";
    this.bright.setAttribute("aria-pressed", String(on));
    this.bright.classList.toggle("on", on);
    this.colourIn();
    this.draw();
  }

  /** Values from 0 to 1 as an image, a pixel each; the square root lifts what is small. */
  paint(values, rows) {
    const image = new ImageData(this.lookback, rows);
    for (let k = 0; k < values.length; k += 1) {
      const colour = 3 * Math.min(255, Math.round(255 * Math.sqrt(values[k])));
      image.data.set([this.palette[colour], this.palette[colour + 1], this.palette[colour + 2], 255], 4 * k);
    }
    const canvas = document.createElement("canvas");
    canvas.width = this.lookback;
    canvas.height = rows;
    canvas.getContext("2d").putImageData(image, 0, 0);
    return canvas;
  }

  whole() {
    this.view = { from: -this.lookback, to: this.horizon, top: 0, bottom: this.item.rows };
    this.moved();
  }

  /** Zooms by a factor around the cursor. */
  zoom(factor) {
    const { view, cursor, lookback } = this;
    this.limit(
      ...HEAT_SPAN(cursor.at - lookback + 0.5, view.from, view.to, factor),
      ...HEAT_SPAN(cursor.row + 0.5, view.top, view.bottom, factor));
  }

  limit(from, to, top, bottom) {
    const least = 8;
    const clamp = (low, high, first, last) => {
      const size = Math.min(last - first, Math.max(least, high - low));
      const start = Math.min(Math.max(first, (low + high - size) / 2), last - size);
      return [start, start + size];
    };
    [this.view.from, this.view.to] = clamp(from, to, -this.lookback, this.horizon);
    const rows = this.item.rows;
    [this.view.top, this.view.bottom] = rows <= least ? [0, rows] : clamp(top, bottom, 0, rows);
    this.draw();
  }

  pickRow(row) {
    this.cursor.row = Math.min(this.item.rows - 1, Math.max(0, row));
    this.moved();
  }

  /** After the cursor moved: scrolls it into view, describes the cell in words, draws. */
  moved() {
    const { view, cursor, lookback } = this;
    const at = cursor.at - lookback;
    const [width, height] = [view.to - view.from, view.bottom - view.top];
    if (at < view.from) [view.from, view.to] = [at, at + width];
    if (at + 1 > view.to) [view.from, view.to] = [at + 1 - width, at + 1];
    if (cursor.row < view.top) [view.top, view.bottom] = [cursor.row, cursor.row + height];
    if (cursor.row + 1 > view.bottom) [view.top, view.bottom] = [cursor.row + 1 - height, cursor.row + 1];
    this.step.value = cursor.row;
    this.stepName.textContent = `${this.item.steps[cursor.row]} of ${this.horizon}`;
    this.describe();
    this.draw();
  }

  describe() {
    const { item, cursor, lookback } = this;
    const share = this.values[cursor.row * lookback + cursor.at];
    const step = item.steps[cursor.row];
    const when = item.labels ? ` (${item.labels[cursor.at]})` : "";
    this.readout.textContent =
      `Step ${step} reads position ${cursor.at - lookback}${when}: E = ${hrx.short(share * item.largest)}, ` +
      `${hrx.short(share)} of the largest; shared vector ${hrx.short(this.shared[cursor.at] * item.largest)}; ` +
      `value there ${hrx.short(item.x[cursor.at])}, forecast of the step ${hrx.short(item.forecast[step - 1])}.`;
  }
};

hrx.Heatmap.made = 0;

/** A span scaled around a point. */
function HEAT_SPAN(point, low, high, factor) {
  const centre = Math.min(Math.max(point, low), high);
  return [centre - (centre - low) * factor, centre + (high - centre) * factor];
}
