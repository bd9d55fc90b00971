"use strict";
// Shared by every page and by the widget: elements made of text only, numbers formatted as on the terminal, colours.

const hrx = {};

/** An element. Strings become text, never markup; `on…` attributes are listeners. */
hrx.el = function (tag, attributes, ...children) {
  const svg = hrx.SVG_TAGS.has(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
};
hrx.SVG_TAGS = new Set(["svg", "line", "circle", "path", "polyline", "rect", "text", "g"]);

hrx.byId = (id) => document.getElementById(id);

/** Embedded data; null where the page has none of that name. */
hrx.data = function (id) {
  const node = hrx.byId(id);
  return node && node.type === "application/json" ? JSON.parse(node.textContent) : null;
};

/** A promise of a part of the data: embedded, or in a script beside the page that is loaded when it is first read. */
hrx.part = function (name) {
  if (!hrx.parts.has(name)) {
    hrx.parts.set(name, new Promise((resolve, reject) => {
      const embedded = hrx.data(name);
      if (embedded !== null) {
        resolve(embedded);
        return;
      }
      hrx.awaited.set(name, resolve);
      const missing = () => reject(new Error(`index-data/${name}.js is missing beside this page: keep both together.`));
      document.head.append(hrx.el("script", { src: `index-data/${name}.js`, nonce: hrx.nonce, onerror: missing }));
    }));
  }
  return hrx.parts.get(name);
};
hrx.parts = new Map();
hrx.awaited = new Map();
hrx.nonce = typeof document !== "undefined" && document.currentScript ? document.currentScript.nonce : "";

/** Called by a script beside the page. */
hrx.receive = (name, data) => hrx.awaited.get(name)(data);

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);

/** "+0.120", "-0.031", "0.000": three decimals, and an exponent where they would hide the value. */
hrx.signed = function (value) {
  if (!isNumber(value)) return "–";
  if (value === 0) return "0.000";
  const size = Math.abs(value);
  const digits = size >= 0.0005 && size < 1000 ? size.toFixed(3) : hrx.exponent(size, 1);
  return (value > 0 ? "+" : "-") + digits;
};

hrx.exponent = (value, digits) => value.toExponential(digits).replace(/e([+-])(\d)$/, "e$10$2");

/** "86 %"; a share that is not whole never rounds to 0 % or 100 %. */
hrx.percent = function (share) {
  if (!isNumber(share)) return "–";
  // Halves to the even number, as Python rounds them.
  const whole = Math.floor(100 * share);
  const rest = 100 * share - whole;
  const rounded = rest > 0.5 || (rest === 0.5 && whole % 2) ? whole + 1 : whole;
  if (rounded === 100 && share < 1) return ">99 %";
  return rounded === 0 && share > 0 ? "<1 %" : `${rounded} %`;
};

/** Three significant digits. */
hrx.short = function (value) {
  if (!isNumber(value)) return "–";
  const size = Math.abs(value);
  return size !== 0 && (size < 0.001 || size >= 1e5) ? hrx.exponent(value, 2) : String(Number(value.toPrecision(3)));
};

/** "1 run", "14 runs". */
hrx.counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

/** Part of a file name. */
hrx.slug = (text) => text.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 40) || "unnamed";

/** Saves content under a name, without a network. */
hrx.save = function (name, content) {
  const address = URL.createObjectURL(content);
  hrx.el("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 60000);
};

/** A cell of a CSV file. A text that a spreadsheet would read as a formula starts with an apostrophe. */
hrx.csvCell = function (value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r\n]/.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

/** Saves rows of texts, numbers and nulls as CSV. */
hrx.saveCsv = function (name, rows) {
  const text = rows.map((row) => `${row.map(hrx.csvCell).join(",")}\r\n`).join("");
  hrx.save(`${name}.csv`, new Blob([text], { type: "text/csv;charset=utf-8" }));
};

/** The visible rows of a table that Python wrote. */
hrx.tableRows = function (table) {
  const shown = [...table.rows].filter((row) => !row.hidden);
  return shown.map((row) => [...row.cells].map((cell) => {
    const named = cell.querySelector("[title]");
    const text = (named ? named.title : cell.textContent).trim();
    const number = cell.matches("td.number") && text !== "" && Number.isFinite(Number(text));
    return number ? Number(text) : text === "–" ? null : text;
  }));
};

/** A colour of the style sheet as it is at an element, for canvases. */
hrx.colour = (name, element) => getComputedStyle(element || document.documentElement).getPropertyValue(`--${name}`).trim();

/** Round steps for an axis: about `wanted` of them between `low` and `high`. */
hrx.ticks = function (low, high, wanted) {
  if (!(high > low)) return [low];
  const raw = (high - low) / Math.max(1, wanted);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const found = [];
  for (let k = Math.ceil(low / step - 1e-9); k * step <= high + 1e-9 * step; k += 1) {
    found.push(Number((k * step).toPrecision(12)));
  }
  return found;
};

/** A canvas as wide as its parent and `height` high, in device pixels, with its context. */
hrx.surface = function (canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = Math.max(240, Math.floor(canvas.parentElement.clientWidth));
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  return { context, width, height };
};

/** Runs an action once in the next frame, however often it is requested: the table is updated first. */
hrx.later = function (name, action) {
  if (!hrx.waiting.size) {
    requestAnimationFrame(() => setTimeout(() => {
      const actions = [...hrx.waiting.values()];
      hrx.waiting.clear();
      actions.forEach((one) => one());
    }));
  }
  hrx.waiting.set(name, action);
};
hrx.waiting = new Map();

/** Runs `draw` now and whenever the width, the theme or the medium changes. Returns what ends that. */
hrx.whenShown = function (element, draw) {
  let width = -1;
  const observer = new ResizeObserver(() => {
    if (element.clientWidth === width) return;
    width = element.clientWidth;
    draw();
  });
  observer.observe(element);
  hrx.redraws.add(draw);
  return () => {
    observer.disconnect();
    hrx.redraws.delete(draw);
  };
};
hrx.redraws = new Set();
hrx.redraw = () => hrx.redraws.forEach((draw) => draw());
