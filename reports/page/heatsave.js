"use strict";
// A heat map as a picture that explains itself: title, legend, and a colour bar with its unit, in light colours.

const SAVED = { width: 1100, left: 8, right: 96, scale: 2, pad: 16, line: 18, bar: 14 };

Object.assign(hrx.Heatmap.prototype, {
  /** Saves the current view under the name of its run. */
  save() {
    if (!this.item) return;
    this.picture().toBlob((content) => hrx.save(`${this.item.file}.png`, content));
  },

  /** The current view with all that a reader needs, on a canvas of its own. */
  picture() {
    const { theme } = this.host.dataset;
    this.host.dataset.theme = "light"; // paper is light; nothing is painted before the theme is back
    const canvas = document.createElement("canvas");
    const context = canvas.getContext("2d");
    context.font = "12px system-ui, sans-serif";
    const lines = this.wrapped(context, this.item.title, SAVED.width - 2 * SAVED.pad);
    const top = SAVED.pad + SAVED.line * (lines.length + 1) + 8;
    this.place = this.layout(SAVED.width - SAVED.left, SAVED.right);
    const height = top + this.place.height + SAVED.line + SAVED.pad;
    [canvas.width, canvas.height] = [SAVED.width * SAVED.scale, height * SAVED.scale];
    context.setTransform(SAVED.scale, 0, 0, SAVED.scale, 0, 0);
    context.fillStyle = this.colour("card");
    context.fillRect(0, 0, SAVED.width, height);
    this.saveTitle(context, lines);
    context.translate(SAVED.left, top);
    context.font = "12px system-ui, sans-serif";
    this.paintOn(context);
    this.saveBar(context);
    this.saveLegend(context, this.place.height + SAVED.line / 2);
    if (theme) this.host.dataset.theme = theme;
    else delete this.host.dataset.theme;
    this.draw();
    return canvas;
  },

  /** The text in lines of at most `width` pixels. */
  wrapped(context, text, width) {
    const lines = [""];
    text.split(" ").forEach((word) => {
      const longer = lines.at(-1) ? `${lines.at(-1)} ${word}` : word;
      if (context.measureText(longer).width <= width) lines[lines.length - 1] = longer;
      else lines.push(word);
    });
    return lines;
  },

  saveTitle(context, lines) {
    context.textBaseline = "top";
    context.textAlign = "left";
    context.fillStyle = this.colour("ink");
    context.font = "600 15px system-ui, sans-serif";
    context.fillText(this.item.heading, SAVED.pad, SAVED.pad, SAVED.width - 2 * SAVED.pad);
    context.font = "12px system-ui, sans-serif";
    context.fillStyle = this.colour("soft");
    lines.forEach((line, k) => context.fillText(line, SAVED.pad, SAVED.pad + SAVED.line * (k + 1) + 4));
  },

  /** The colours from 0 to the largest value; their scale is the square root. */
  saveBar(context) {
    const { place, palette, capped } = this;
    const x = place.right + 20;
    for (let pixel = 0; pixel < place.matrix; pixel += 1) {
      const colour = 3 * Math.round(255 * (1 - pixel / (place.matrix - 1)));
      context.fillStyle = `rgb(${palette[colour]}, ${palette[colour + 1]}, ${palette[colour + 2]})`;
      context.fillRect(x, place.top + pixel, SAVED.bar, 1.5);
    }
    context.fillStyle = this.colour("soft");
    context.textAlign = "left";
    context.textBaseline = "middle";
    [0, 0.05, 0.2, 0.4, 0.6, 0.8, 1].forEach((share) => context.fillText(
      (share === 1 && capped < 1 ? "≥ " : "") + hrx.short(share * capped), x + SAVED.bar + 4, place.top + place.matrix * (1 - Math.sqrt(share))));
    context.save();
    context.translate(SAVED.width - SAVED.left - 8, place.top + place.matrix / 2);
    context.rotate(-Math.PI / 2);
    context.textAlign = "center";
    context.fillText("E / max E (no unit, square-root scale)", 0, 0);
    context.restore();
  },

  saveLegend(context, y) {
    let x = HEAT.left;
    context.textAlign = "left";
    context.textBaseline = "middle";
    this.keys().forEach(([name, text, dashed]) => {
      context.strokeStyle = this.colour(name);
      context.lineWidth = 3;
      context.setLineDash(dashed ? [5, 3] : []);
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(x + 24, y);
      context.stroke();
      context.setLineDash([]);
      context.fillStyle = this.colour("ink");
      context.fillText(text, x + 30, y);
      x += 30 + context.measureText(text).width + 22;
    });
  },
});
