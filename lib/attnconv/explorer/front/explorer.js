// The head explorer's front end, shared by the Jupyter widget (default export, for anywidget) and the exported page
// (`openPage`). No framework, no build step, no network.
//
// First the arithmetic, without a browser (tested with `node --test`): arrays, attention maps, numbers about a map.
// Then the page: one `Explorer` per element. A `host` stands between it and Python: it holds the data, takes messages,
// and tells when data changed. The exported page has a host that answers from what the file holds.

import { clamp, softmax } from "./maths.js";
import { canvasOf, element, luminance, onTheme, rgb, themeOf } from "./page.js";

// --- arrays ---------------------------------------------------------------------------------------------------------

const TYPES = { uint8: Uint8Array, uint16: Uint16Array, float32: Float32Array };

/** {dtype, shape, data: ArrayBuffer or view} -> typed array; copied, so that any offset is aligned. */
export function typed({ dtype, data }) {
  const bytes = ArrayBuffer.isView(data) ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : new Uint8Array(data);
  return new TYPES[dtype](bytes.slice().buffer);
}

/** The tree that `attnconv.explorer.pack` wrote (already gunzipped): length, JSON, bytes. */
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const start = 4 + length;
  return JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)), (_, value) =>
    value && value.$bytes ? new Uint8Array(buffer, start + value.$bytes[0], value.$bytes[1]) : value);
}

/** Rows quantized by `attnconv.explorer.quantize`: low + step * code. */
class Quantized {
  constructor(source) {
    this.length = source.codes.shape.at(-1);
    [this.codes, this.low, this.step] = [source.codes, source.low, source.step].map(typed);
  }

  /** Add row r to `out`, from place `start` on. */
  add(r, out) {
    const [low, step, first] = [this.low[r], this.step[r], r * this.length];
    for (let k = 0; k < this.length; k++) out[k] += low + step * this.codes[first + k];
  }

  value(r, k) {
    return this.low[r] + this.step[r] * this.codes[r * this.length + k];
  }
}

// --- attention maps -------------------------------------------------------------------------------------------------

/** Standard deviation det(Sigma)^(1/4) of a Gaussian head, from Sigma^{-1} as [rr, rc, cr, cc]. */
export const sigmaOf = (p) => Math.max(p[0] * p[3] - p[1] * p[2], 0) ** -0.25;

/** Sigma^{-1} scaled to another sigma: the shape stays; round where the head has no scale (as Python does it). */
export function rescaled(precision, sigma) {
  const old = sigmaOf(precision);
  if (!(old < 1000)) return [sigma ** -2, 0, 0, sigma ** -2];
  return precision.map((value) => value * (old / sigma) ** 2);
}

/** The same place on another grid: the pixel that holds the query's middle. */
export const project = (query, from, to) => query.map((q, i) => Math.min(to[i] - 1, Math.floor(((q + 0.5) * to[i]) / from[i])));

/** One model: gives the logits and the map of any head at any query. `edits` maps "layer.head" to {centre, sigma, off}. */
export class Model {
  constructor(side) {
    Object.assign(this, { name: side.name, title: side.title, heads: side.heads, encoding: side.encoding, grid: side.grid });
    [this.height, this.width] = side.grid;
    this.pixels = this.height * this.width;
    this.most = Math.max(...side.heads); // arrays are padded to this many heads a layer
    for (const name of ["centres", "precisions", "rows", "columns"]) if (side[name]) this[name] = typed(side[name]);
    if (side.path) {
      this.path = { epochs: side.path.epochs };
      for (const name of ["measured", "centres", "precisions"]) if (side.path[name]) this.path[name] = typed(side.path[name]);
    }
    this.content = side.encoding === "content";
    this.replayed = Boolean(this.path && this.path.centres); // P of every epoch can be computed
    this.epoch = null; // null: the trained model
    this.edits = {};
    this.scores = this.averages = null;
    this.work = new Float32Array(this.pixels);
  }

  /** Scores of one image, and averages: lists by layer, as Python sends them. */
  setScores(maps) {
    this.scores = maps && maps.map((layer) => ({
      content: new Quantized(layer.content), rows: new Quantized(layer.rows), columns: new Quantized(layer.columns),
    }));
  }

  setAverages(maps) {
    this.averages = maps && maps.map((layer) => Object.fromEntries(
      ["full", "position", "content"].map((part) => [part, new Quantized(layer[part])])));
  }

  /** Whether the scores that are to be shown, of one image or the average, are not there. */
  lacks(average) {
    return this.content && !(average ? this.averages : this.scores);
  }

  /** Centre (row, column) and Sigma^{-1} of a Gaussian head as it is now: at the chosen epoch, or as the reader set it. */
  gaussian(layer, head, pristine = false) {
    const index = layer * this.most + head;
    const replay = this.epoch !== null && this.replayed;
    const from = replay ? this.path : this;
    const at = replay ? this.epoch * this.heads.length * this.most + index : index;
    let centre = [from.centres[2 * at], from.centres[2 * at + 1]];
    let precision = Array.from(from.precisions.subarray(4 * at, 4 * at + 4));
    const edit = pristine || replay ? null : this.edits[`${layer}.${head}`];
    if (edit && edit.centre) centre = edit.centre;
    if (edit && edit.sigma) precision = rescaled(precision, edit.sigma);
    return { centre, precision };
  }

  /** Logits of one head at query (i, j) over all key pixels; `part` and `average` matter with content only. */
  logits(layer, head, [i, j], out, part = "full", average = false) {
    const { height, width } = this;
    if (this.encoding === "quadratic") {
      const { centre, precision: [a, b, c, d] } = this.gaussian(layer, head);
      for (let k = 0, at = 0; k < height; k++) {
        const r = k - i - centre[0];
        for (let l = 0; l < width; l++, at++) {
          const s = l - j - centre[1];
          out[at] = -0.5 * (a * r * r + (b + c) * r * s + d * s * s);
        }
      }
    } else if (this.encoding === "learned") {
      const row = (layer * this.most + head) * (2 * height - 1) + height - 1 - i;
      const column = (layer * this.most + head) * (2 * width - 1) + width - 1 - j;
      for (let k = 0, at = 0; k < height; k++)
        for (let l = 0; l < width; l++, at++) out[at] = this.rows[row + k] + this.columns[column + l];
    } else {
      const query = (head * height + i) * width + j;
      out.fill(0);
      if (average) this.averages[layer][part].add(query, out);
      else {
        const { content, rows, columns } = this.scores[layer];
        if (part !== "position") content.add(query, out);
        if (part !== "content")
          for (let k = 0, at = 0; k < height; k++) {
            const row = rows.value(query, k);
            for (let l = 0; l < width; l++, at++) out[at] += row + columns.value(query, l);
          }
      }
    }
    return out;
  }

  /** P of one head at a query: sums to 1. */
  probabilities(layer, head, query, out, part, average) {
    return softmax(this.logits(layer, head, query, this.work, part, average), out);
  }

  /** Where the recorded path of a head went: [[row, column], ...] by epoch. */
  track(layer, head) {
    if (!this.path) return [];
    const from = this.path.centres || this.path.measured;
    return Array.from({ length: this.path.epochs }, (_, epoch) => {
      const at = 2 * ((epoch * this.heads.length + layer) * this.most + head);
      return [from[at], from[at + 1]];
    });
  }
}

/** Numbers about a map, as `attnconv.heads.describe` defines them. */
export function describe(map, height, width, [i, j]) {
  let row = 0, column = 0, reach = 0, entropy = 0, best = 0;
  for (let k = 0, at = 0; k < height; k++)
    for (let l = 0; l < width; l++, at++) {
      const p = map[at];
      row += p * (k - i);
      column += p * (l - j);
      reach += p * Math.hypot(k - i, l - j);
      if (p > 0) entropy -= p * Math.log(p);
      if (p > map[best]) best = at;
    }
  const covariance = [0, 0, 0];
  for (let k = 0, at = 0; k < height; k++)
    for (let l = 0; l < width; l++, at++) {
      const [r, s] = [k - i - row, l - j - column];
      covariance[0] += map[at] * r * r;
      covariance[1] += map[at] * r * s;
      covariance[2] += map[at] * s * s;
    }
  return {
    centre: [row, column], covariance, reach, entropy,
    spread: Math.sqrt((covariance[0] + covariance[2]) / 2), // root mean square along an axis, pixels
    peak: [Math.floor(best / width) - i, (best % width) - j], mass: map[best],
  };
}

/** Half axes and angle of the ellipse that holds a share of a Gaussian with this covariance [rr, rc, cc]. */
export function ellipse([a, b, c], share) {
  const mean = (a + c) / 2, apart = Math.hypot((a - c) / 2, b);
  const scale = Math.sqrt(-2 * Math.log(1 - share));
  return {
    major: scale * Math.sqrt(mean + apart), minor: scale * Math.sqrt(Math.max(mean - apart, 0)),
    angle: Math.atan2(mean + apart - c, b || 1e-12), // of the major axis, from the columns' axis towards rows
  };
}

/** Covariance [rr, rc, cc] from Sigma^{-1} [rr, rc, cr, cc]; very wide where it has no inverse. */
export function covarianceOf([a, b, c, d]) {
  const det = a * d - b * c;
  return det > 1e-9 ? [d / det, -(b + c) / 2 / det, a / det] : [1e4, 0, 1e4];
}

// Lightness rises or falls all along (seaborn's mako), so the ramps read without colour vision, and in print.
const MAKO = ["#0b0405", "#251729", "#382a54", "#413f80", "#395d9c", "#357ba3", "#3497a9", "#3eb4ad", "#60ceac", "#a9e1bd", "#def5e5"];

/** 256 colours, packed r, g, b; from light to dark on a light page, from dark to light on a dark one. */
export function ramp(dark) {
  const stops = ["#f4faf6", ...MAKO.slice(0, -1).reverse()].map(rgb);
  if (dark) stops.reverse();
  const out = new Uint8ClampedArray(768);
  for (let i = 0; i < 256; i++) {
    const place = (i / 255) * (stops.length - 1), low = Math.min(Math.floor(place), stops.length - 2);
    for (let c = 0; c < 3; c++) out[3 * i + c] = stops[low][c] + (place - low) * (stops[low + 1][c] - stops[low][c]);
  }
  return out;
}

/** Brightness 0..255 of every value. Probabilities: their root, against the largest. Logits: the top 12 of their range. */
export function brightness(values, logits, largest, out) {
  let top = -Infinity, bottom = Infinity;
  for (const value of values) {
    if (value > top) top = value;
    if (value < bottom) bottom = value;
  }
  bottom = Math.max(bottom, top - 12);
  const range = top - bottom || 1, scale = largest || top || 1;
  for (let k = 0; k < values.length; k++)
    out[k] = 255 * (logits ? clamp((values[k] - bottom) / range, 0, 1) : Math.sqrt(clamp(values[k] / scale, 0, 1)));
  return out;
}

const signed = (value, digits = 2) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);
const shiftText = ([r, c], digits) => `(${signed(r, digits)}, ${signed(c, digits)})`;
const percent = (p) => (p >= 0.0995 ? `${(100 * p).toFixed(0)}%` : p >= 0.0001 ? `${(100 * p).toFixed(p < 0.001 ? 2 : 1)}%` : "<0.01%");

/** An upload's messages: parts of half a megabyte or so, as one message to a Jupyter server holds 10 MB at most. */
export function* inParts(name, buffer, size = 1 << 20) {
  const parts = Math.max(1, Math.ceil(buffer.byteLength / size));
  for (let part = 0; part < parts; part++)
    yield [{ kind: "upload", name, part, parts }, buffer.slice(part * size, (part + 1) * size)];
}

// --- the page -------------------------------------------------------------------------------------------------------

const QUERY = "#D55E00"; // as in the library's figures
const IMAGE_SIDE = 240; // px, as the chosen head's map
const TILE = 14; // px, the smallest side of a head's map
const PATIENCE = 20000; // ms after which a silent Python is mentioned
let count = 0;

/** One model's part of the page: its grid of heads, and the chosen head large. */
class Panel {
  constructor(explorer, index) {
    this.explorer = explorer;
    this.index = index;
    const id = (this.id = `attnconv-${++count}`);
    this.title = element("h3");
    this.grid = element("canvas", { className: "ax-grid", tabIndex: 0, role: "application", "aria-describedby": `${id}-numbers` });
    this.zoom = element("canvas", { className: "ax-zoom", role: "img" });
    this.track = element("canvas", { className: "ax-track", role: "img" });
    this.numbers = element("dl", { className: "ax-numbers", id: `${id}-numbers` });
    this.epoch = this.slider("epoch", 0, 1, 1, (value) => {
      explorer.stop();
      explorer.setEpoch(index, value);
    });
    this.play = element("button", { type: "button", textContent: "▶", title: "Play training", "aria-label": "Play training", onclick: () => explorer.play(index) });
    this.epochRow = element("div", { className: "ax-epoch" }, this.play, this.epoch.row);
    this.predictions = element("div", { className: "ax-predictions" });
    this.headTitle = element("h4");
    this.trackBox = element("figure", { className: "ax-small" }, this.track, element("figcaption", { textContent: "centre through training" }));
    this.sliders = this.index === 0 ? this.makeSliders() : null;
    this.answer = element("div", { className: "ax-column ax-answer" }, element("h4", { textContent: "Prediction" }), this.predictions);
    this.zoomBox = element("figure", { className: "ax-small" }, this.zoom, element("figcaption", { textContent: "attention over the image" }));
    this.detail = element("div", { className: "ax-detail" },
      this.zoomBox,
      element("div", { className: "ax-column" }, this.headTitle, this.numbers, this.sliders && this.sliders.box),
      this.trackBox, this.answer);
    this.root = element("section", { className: "ax-panel" }, this.title, this.epochRow, this.grid, this.detail);
    this.atlas = document.createElement("canvas");
    this.grid.addEventListener("click", (event) => explorer.pickHead(this, event));
    this.grid.addEventListener("pointermove", (event) => explorer.inspect(this, event));
    this.grid.addEventListener("pointerleave", () => explorer.say(""));
    this.grid.addEventListener("keydown", (event) => explorer.key(event));
  }

  slider(label, min, max, step, act, format = (value) => String(value)) {
    const id = `attnconv-${++count}`;
    const input = element("input", { type: "range", id, min, max, step, oninput: () => act(Number(input.value)) });
    const output = element("output", { htmlFor: id });
    const set = (value, limits = {}) => {
      Object.assign(input, limits);
      input.value = value;
      output.textContent = format(Number(value));
      input.setAttribute("aria-valuetext", `${label} ${output.textContent}`);
    };
    return { input, set, row: element("div", { className: "ax-slider" }, element("label", { htmlFor: id, textContent: label }), input, output) };
  }

  makeSliders() {
    const { explorer } = this;
    const [low, high] = explorer.host.choices.sigmas.map(Math.log);
    const part = (axis) => (value) => explorer.edit((edit, now) => { edit.centre = now.centre.map((c, i) => (i === axis ? value : c)); });
    const row = this.slider("centre row", -8, 8, 0.05, part(0), (v) => signed(v));
    const column = this.slider("centre column", -8, 8, 0.05, part(1), (v) => signed(v));
    const sigma = this.slider("spread σ", low, high, 0.01, (value) => explorer.edit((edit) => { edit.sigma = clamp(Math.exp(value), ...explorer.host.choices.sigmas); }), (v) => `${Math.exp(v).toFixed(2)} px`);
    const off = element("input", { type: "checkbox", onchange: () => explorer.edit((edit) => { edit.off = !off.checked; }) });
    const reset = element("button", { type: "button", textContent: "Reset head", onclick: () => explorer.reset(false) });
    const undo = element("button", { type: "button", textContent: "Undo", onclick: () => explorer.undo() });
    const resetAll = element("button", { type: "button", textContent: "Reset all", onclick: () => explorer.reset(true) });
    const gaussian = element("div", {}, row.row, column.row, sigma.row);
    const box = element("div", { className: "ax-sliders" }, gaussian,
      element("div", { className: "ax-row" }, element("label", {}, off, " head on"), undo, reset, resetAll));
    return { box, gaussian, row, column, sigma, off, undo, reset, resetAll };
  }

  /** The width below which it cannot stand beside another. */
  least() {
    return Math.max(IMAGE_SIDE + 10, 30 + (TILE + 4) * this.model.most);
  }

  /** Sizes of the grid on screen: each tile has the image's proportions, and all fit into the width. */
  layout(width) {
    const { model } = this, centres = this.explorer.state.view === "centres";
    const ratio = window.devicePixelRatio || 1;
    const columns = centres ? Math.min(model.heads.length, Math.max(1, Math.floor(width / 190))) : model.most;
    const rows = centres ? Math.ceil(model.heads.length / columns) : model.heads.length;
    const [left, top, gap] = centres ? [0, 20, 14] : [26, 18, 4];
    const wide = clamp(Math.floor((width - left) / columns - gap), TILE, centres ? 300 : 92);
    const tall = Math.round(centres ? wide : (wide * model.height) / model.width);
    const down = tall + (centres ? 26 : gap);
    this.box = { left, top, gap, wide, tall, down, columns, ratio };
    const [w, h] = [left + columns * (wide + gap), top + rows * down];
    if (this.grid.width !== w * ratio || this.grid.height !== h * ratio) {
      Object.assign(this.grid, { width: w * ratio, height: h * ratio });
      Object.assign(this.grid.style, { width: `${w}px`, height: `${h}px` });
    }
    this.context = this.grid.getContext("2d");
  }

  /** Layer, head and key pixel under a point of the grid; head undefined where there is none. */
  under(event) {
    const { left, top, gap, wide, tall, down, columns } = this.box, { model } = this;
    if (!this.maps || this.waits()) return {};
    const [x, y] = [event.offsetX - left, event.offsetY - top];
    const [column, row] = [Math.floor(x / (wide + gap)), Math.floor(y / down)];
    const [inX, inY] = [x - column * (wide + gap), y - row * down];
    if (column < 0 || row < 0 || column >= columns || inX >= wide || inY >= tall) return {};
    if (this.explorer.state.view !== "centres")
      return row < model.heads.length && column < model.heads[row]
        ? { layer: row, head: column, key: [Math.floor((inY / tall) * model.height), Math.floor((inX / wide) * model.width)] } : {};
    const layer = row * columns + column;
    if (layer >= model.heads.length) return {};
    const scale = wide / (2 * this.range);
    let best, nearest = 16; // as close as this, in pixels of the page
    for (let head = 0; head < model.heads[layer]; head++) {
      const { centre } = this.shape(layer, head);
      const away = Math.hypot(wide / 2 + centre[1] * scale - inX, wide / 2 + centre[0] * scale - inY);
      if (away < nearest) [best, nearest] = [head, away];
    }
    return best === undefined ? {} : { layer, head: best };
  }

  /** Centre and covariance of a head: a Gaussian's own, otherwise measured on its map at this query. */
  shape(layer, head) {
    const { model, explorer } = this;
    if (model.encoding === "quadratic") {
      const { centre, precision } = model.gaussian(layer, head);
      return { centre, covariance: covarianceOf(precision) };
    }
    return describe(this.maps[layer][head], model.height, model.width, explorer.queryOf(model));
  }

  off(layer, head) {
    const edit = this.model.edits[`${layer}.${head}`];
    return Boolean(edit && edit.off && this.model.epoch === null);
  }

  /** Compute all maps at the query. */
  compute() {
    const { model, explorer: { state } } = this, query = this.explorer.queryOf(model);
    if (!this.maps || this.maps.length !== model.heads.length || this.maps.some((maps, l) => maps.length !== model.heads[l] || (maps[0] && maps[0].length !== model.pixels)))
      this.maps = model.heads.map((heads) => Array.from({ length: heads }, () => new Float32Array(model.pixels)));
    this.largest = 0;
    model.heads.forEach((heads, layer) => {
      for (let head = 0; head < heads; head++) {
        const map = this.maps[layer][head];
        model.probabilities(layer, head, query, map, state.part, state.average);
        if (state.shared) for (const p of map) if (p > this.largest) this.largest = p;
      }
    });
  }

  /** What is drawn of a head: its probabilities, or its logits. */
  values(layer, head) {
    const { model, explorer: { state } } = this;
    if (state.scale === "probabilities") return this.maps[layer][head];
    return model.logits(layer, head, this.explorer.queryOf(model), model.work, state.part, state.average);
  }

  drawGrid(waits) {
    const { model, box, context, explorer } = this, { state, colours } = explorer;
    const { left, top, gap, wide, tall, down, ratio } = box, { height, width } = model;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.grid.width, this.grid.height);
    context.font = `11px ${colours.font}`;
    if (waits) {
      context.textAlign = "left";
      context.fillStyle = colours.faint;
      return context.fillText(state.average ? `averaging over ${explorer.host.choices.averaged} images …` : "…", left, top + 12);
    }
    if (state.view === "centres") return this.drawCentres();

    // All maps pixel by pixel into one small picture; then each is enlarged into its tile.
    const layers = model.heads.length;
    if (!this.data || this.data.width !== model.most * width || this.data.height !== layers * height) {
      Object.assign(this.atlas, { width: model.most * width, height: layers * height });
      this.pen = this.atlas.getContext("2d");
      this.data = this.pen.createImageData(this.atlas.width, this.atlas.height);
      this.levels = new Float32Array(model.pixels);
    }
    const pixels = this.data.data, table = colours.ramp;
    model.heads.forEach((heads, layer) => {
      for (let head = 0; head < heads; head++) {
        brightness(this.values(layer, head), state.scale === "logits", state.shared && this.largest, this.levels);
        for (let k = 0, at = 0; k < height; k++) {
          let to = 4 * ((layer * height + k) * this.data.width + head * width);
          for (let l = 0; l < width; l++, at++, to += 4) {
            const from = 3 * Math.round(this.levels[at]);
            pixels[to] = table[from];
            pixels[to + 1] = table[from + 1];
            pixels[to + 2] = table[from + 2];
            pixels[to + 3] = 255;
          }
        }
      }
    });
    this.pen.putImageData(this.data, 0, 0);
    context.imageSmoothingEnabled = false;
    const [i, j] = explorer.queryOf(model), [cellX, cellY] = [wide / width, tall / height];
    context.textAlign = "center";
    context.fillStyle = colours.faint;
    for (let head = 0; head < model.most; head++) context.fillText(head + 1, left + head * (wide + gap) + wide / 2, top - 6);
    model.heads.forEach((heads, layer) => {
      const y = top + layer * down;
      context.fillStyle = colours.faint;
      context.textAlign = "left";
      context.fillText(`L${layer + 1}`, 0, y + tall / 2 + 4);
      for (let head = 0; head < heads; head++) {
        const x = left + head * (wide + gap), off = this.off(layer, head);
        context.globalAlpha = off ? 0.25 : 1;
        context.drawImage(this.atlas, head * width, layer * height, width, height, x, y, wide, tall);
        context.globalAlpha = 1;
        context.lineWidth = 1.5;
        context.strokeStyle = QUERY;
        context.strokeRect(x + j * cellX - 0.25, y + i * cellY - 0.25, cellX + 0.5, cellY + 0.5);
        if (off) this.cross(x, y, wide, tall);
        const selected = layer === state.layer && head === state.head;
        context.lineWidth = selected ? 2.5 : 1;
        context.strokeStyle = selected ? colours.accent : colours.line;
        context.strokeRect(x - 0.5, y - 0.5, wide + 1, tall + 1);
        if (model.epoch === null && model.edits[`${layer}.${head}`]) {
          context.fillStyle = QUERY;
          context.beginPath();
          context.arc(x + wide - 2, y + 2, 4, 0, 7);
          context.fill();
        }
      }
    });
  }

  cross(x, y, wide, tall) {
    const { context } = this;
    context.strokeStyle = this.explorer.colours.text;
    context.beginPath();
    context.moveTo(x + 3, y + 3);
    context.lineTo(x + wide - 3, y + tall - 3);
    context.moveTo(x + wide - 3, y + 3);
    context.lineTo(x + 3, y + tall - 3);
    context.stroke();
  }

  /** Every layer's heads around the query, as the paper's figure 4: a dot at the centre, rings at 50% and 90%. */
  drawCentres() {
    const { model, box, context, explorer } = this, { state, colours, host } = explorer;
    const { top, gap, wide, down, columns } = box;
    const drawn = explorer.panels.filter((panel) => !panel.waits());
    this.range = Math.max(...drawn.map((panel) => panel.extent())); // the same beside each other
    const scale = wide / (2 * this.range);
    model.heads.forEach((heads, layer) => {
      const [x, y] = [(layer % columns) * (wide + gap) + 1, top + Math.floor(layer / columns) * down];
      context.fillStyle = colours.text;
      context.textAlign = "left";
      context.fillText(`Layer ${layer + 1}`, x, y - 6);
      context.save();
      context.beginPath();
      context.rect(x, y, wide - 1, wide - 1);
      context.fillStyle = colours.panel;
      context.fill();
      context.strokeStyle = colours.line;
      context.lineWidth = 1;
      context.stroke();
      context.clip();
      pixelGrid(context, x + wide / 2, y + wide / 2, scale, this.range, colours);
      for (let head = 0; head < heads; head++) {
        const { centre, covariance } = this.shape(layer, head);
        const selected = layer === state.layer && head === state.head;
        const colour = host.choices.colours[head % host.choices.colours.length];
        const [cx, cy] = [x + wide / 2 + centre[1] * scale, y + wide / 2 + centre[0] * scale];
        context.globalAlpha = this.off(layer, head) ? 0.25 : 1;
        context.strokeStyle = context.fillStyle = colour;
        for (const [share, dashes] of [[0.5, []], [0.9, [2, 3]]]) {
          const { major, minor, angle } = ellipse(covariance, share);
          context.setLineDash(dashes);
          context.lineWidth = selected ? 2.5 : 1.2;
          context.beginPath();
          context.ellipse(cx, cy, Math.min(major * scale, 2000), Math.min(minor * scale, 2000), angle, 0, 2 * Math.PI);
          context.stroke();
        }
        context.setLineDash([]);
        context.beginPath();
        context.arc(cx, cy, selected ? 8 : 6.5, 0, 7);
        context.fill();
        context.strokeStyle = selected ? colours.text : colours.panel;
        context.lineWidth = selected ? 2 : 1;
        context.stroke();
        context.fillStyle = luminance(rgb(colour)) > 0.42 ? "#000" : "#fff";
        context.textAlign = "center";
        context.font = `bold 9px ${colours.font}`;
        context.fillText(head + 1, cx, cy + 3);
        context.font = `11px ${colours.font}`;
        context.globalAlpha = 1;
      }
      context.restore();
    });
  }

  /** Half the side of the centres' plots, in pixels of the grid: it holds nearly all centres, and stays put in an edit. */
  extent() {
    const { model } = this, far = [];
    model.heads.forEach((heads, layer) => {
      for (let head = 0; head < heads; head++) {
        const { centre } = model.encoding === "quadratic" ? model.gaussian(layer, head, true) : this.shape(layer, head);
        far.push(Math.max(Math.abs(centre[0]), Math.abs(centre[1])));
      }
    });
    far.sort((a, b) => a - b);
    const usual = far[Math.floor(0.95 * (far.length - 1))] || 0;
    return clamp(Math.ceil(usual) + 1, 3, Math.max(model.height, model.width)) + 0.5;
  }

  /** The chosen head: its map over the image, numbers, path, sliders. */
  drawDetail() {
    const { model, explorer } = this, { state, colours } = explorer;
    const { layer, head } = state, map = this.maps[layer] && this.maps[layer][head];
    this.zoomBox.hidden = this.numbers.hidden = !map;
    this.headTitle.textContent = `Layer ${layer + 1}, head ${head + 1}` + (!map ? ": this model has no such head" : this.off(layer, head) ? " (off)" : "");
    if (!map) {
      this.trackBox.hidden = true;
      this.told = "";
      if (this.sliders) this.sliders.box.hidden = true;
      return;
    }
    const query = explorer.queryOf(model), told = describe(map, model.height, model.width, query);
    const rows = [
      ["centre", shiftText(told.centre)], ["spread", `${told.spread.toFixed(2)} px`],
      ["best shift", `${shiftText(told.peak, 0)}: ${percent(told.mass)}`],
      ["reach", `${told.reach.toFixed(2)} px`], ["entropy", `${told.entropy.toFixed(2)} nats`],
    ];
    if (model.encoding === "quadratic") {
      const { centre, precision } = model.gaussian(layer, head);
      rows.push(["parameters", shiftText(centre)], ["σ", `${Math.min(sigmaOf(precision), 999).toFixed(2)} px`]);
    }
    const text = rows.map(([name, value]) => `${name} ${value}`).join(", ");
    if (this.told !== text) {
      this.told = text;
      this.numbers.replaceChildren(...rows.flatMap(([name, value]) => [element("dt", { textContent: name }), element("dd", { textContent: value })]));
      this.zoom.setAttribute("aria-label", `${this.headTitle.textContent}, query row ${query[0]}, column ${query[1]}: ${text}`);
    }
    this.drawZoom(map, query, told, this.values(layer, head));
    this.drawTrack(layer, head);
    if (this.sliders) this.setSliders(layer, head);
  }

  drawZoom(map, query, told, values) {
    const { model, explorer } = this, { state, colours } = explorer;
    const side = IMAGE_SIDE, wide = model.width >= model.height ? side : (side * model.width) / model.height, tall = (wide * model.height) / model.width;
    const pen = canvasOf(this.zoom, wide, tall);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(explorer.picture, 0, 0, wide, tall);
    const [cellX, cellY] = [wide / model.width, tall / model.height];
    const levels = brightness(values, state.scale === "logits", 0, new Float32Array(model.pixels)), table = colours.spot;
    for (let at = 0; at < model.pixels; at++) {
      const level = Math.round(levels[at]);
      pen.fillStyle = `rgba(${table[3 * level]},${table[3 * level + 1]},${table[3 * level + 2]},${0.5 + (0.4 * level) / 255})`;
      pen.fillRect((at % model.width) * cellX, Math.floor(at / model.width) * cellY, cellX + 0.5, cellY + 0.5);
    }
    const middle = ([r, c]) => [(c + 0.5) * cellX, (r + 0.5) * cellY];
    const [qx, qy] = middle(query), [cx, cy] = middle([query[0] + told.centre[0], query[1] + told.centre[1]]);
    pen.strokeStyle = QUERY;
    pen.lineWidth = 2.5;
    pen.strokeRect(qx - cellX / 2, qy - cellY / 2, cellX, cellY);
    for (const [colour, line] of [["rgba(255,255,255,.85)", 4.5], [QUERY, 2]]) { // a pale edge keeps it visible on any colour
      pen.strokeStyle = colour;
      pen.lineWidth = line;
      pen.beginPath();
      pen.moveTo(qx, qy);
      pen.lineTo(cx, cy);
      pen.moveTo(cx + 5, cy);
      pen.arc(cx, cy, 5, 0, 7);
      pen.stroke();
    }
  }

  drawTrack(layer, head) {
    const { model, explorer: { colours } } = this, points = model.track(layer, head).filter(([r]) => Number.isFinite(r));
    this.trackBox.hidden = points.length < 2;
    if (this.trackBox.hidden) return;
    const side = 168, pen = canvasOf(this.track, side, side);
    const range = clamp(Math.ceil(Math.max(...points.flat().map(Math.abs))) + 1, 3, 40) + 0.5, scale = side / (2 * range);
    const at = ([r, c]) => [side / 2 + c * scale, side / 2 + r * scale];
    pen.fillStyle = colours.panel;
    pen.fillRect(0, 0, side, side);
    pixelGrid(pen, side / 2, side / 2, scale, range, colours);
    pen.strokeStyle = colours.accent;
    pen.lineWidth = 1.8;
    pen.lineJoin = "round";
    pen.beginPath();
    points.forEach((point) => pen.lineTo(...at(point)));
    pen.stroke();
    const dot = (point, fill, radius = 4) => {
      pen.beginPath();
      pen.arc(...at(point), radius, 0, 7);
      pen.fillStyle = fill;
      pen.fill();
      pen.stroke();
    };
    dot(points[0], colours.panel);
    dot(points.at(-1), colours.accent);
    pen.strokeStyle = QUERY;
    if (model.epoch !== null && points[model.epoch]) dot(points[model.epoch], QUERY, 5);
    const words = points.map((p) => shiftText(p));
    this.track.setAttribute("aria-label", `Centre before training ${words[0]}, after ${words.length - 1} epochs ${words.at(-1)}`);
  }

  setSliders(layer, head) {
    const { model, sliders, explorer } = this, replay = model.epoch !== null;
    sliders.gaussian.hidden = model.encoding !== "quadratic";
    sliders.box.hidden = replay || !explorer.host.live && model.encoding !== "quadratic" && !Object.keys(model.edits).length;
    sliders.off.parentElement.hidden = !explorer.host.live;
    sliders.off.checked = !this.off(layer, head);
    sliders.reset.disabled = !model.edits[`${layer}.${head}`];
    sliders.undo.disabled = !explorer.past.length;
    sliders.resetAll.disabled = !Object.keys(model.edits).length;
    if (sliders.gaussian.hidden) return;
    const { centre, precision } = model.gaussian(layer, head), own = model.gaussian(layer, head, true).centre;
    const reach = (c) => Math.max(8, Math.ceil(Math.abs(c)) + 4);
    sliders.row.set(centre[0], { min: -reach(own[0]), max: reach(own[0]) });
    sliders.column.set(centre[1], { min: -reach(own[1]), max: reach(own[1]) });
    sliders.sigma.set(Math.log(sigmaOf(precision)));
  }

  /** Class probabilities: a bar each; with changed heads, before (outline) and after (filled). */
  drawPrediction(before, after, label) {
    const { classes } = this.explorer.host.choices, now = after || before;
    const order = classes.map((_, c) => c).sort((a, b) => before[b] - before[a]).slice(0, 10);
    if (this.model.epoch !== null)
      return this.predictions.replaceChildren(element("p", { className: "ax-note", textContent: "Of earlier epochs only the heads are recorded, not the weights: no prediction." }));
    const stale = !this.explorer.host.live && !after && Object.keys(this.model.edits).length > 0;
    this.predictions.replaceChildren(...order.map((c) => {
      const bar = element("span", { className: "ax-bar" }, element("i"), after ? element("b") : null);
      bar.firstChild.style.width = `${100 * now[c]}%`;
      if (after) bar.lastChild.style.width = `${100 * before[c]}%`;
      const [was, is] = [percent(before[c]), percent(now[c])], change = was === is ? is : `${was.replace("%", "")} → ${is}`;
      return element("div", { className: c === label ? "ax-class ax-true" : "ax-class", title: c === label ? "the image's class" : "" },
        element("span", { textContent: (c === label ? "✓ " : "") + classes[c] }), bar, element("span", { textContent: change }));
    }), ...(stale ? [element("p", { className: "ax-note", textContent: "Of the unchanged model: the effect of a change needs Python." })] : []));
  }

  /** Whether Python has yet to send what is to be drawn. */
  waits() {
    return this.model.lacks(this.explorer.state.average);
  }

  draw() {
    const waits = this.waits();
    this.detail.style.visibility = waits ? "hidden" : "";
    this.drawGrid(waits);
    if (!waits) this.drawDetail();
  }
}

/** Lines between whole shifts around a query pixel, which is filled. */
function pixelGrid(pen, x, y, scale, range, colours) {
  pen.strokeStyle = colours.line;
  pen.lineWidth = 0.5;
  pen.beginPath();
  for (let n = -Math.ceil(range) + 0.5; n < range; n++) {
    pen.moveTo(x + n * scale, y - range * scale);
    pen.lineTo(x + n * scale, y + range * scale);
    pen.moveTo(x - range * scale, y + n * scale);
    pen.lineTo(x + range * scale, y + n * scale);
  }
  pen.stroke();
  pen.fillStyle = colours.text;
  pen.fillRect(x - scale / 2, y - scale / 2, scale, scale);
}

export class Explorer {
  constructor(root, host) {
    Object.assign(this, { root, host, pending: new Map(), serial: 0, timings: [], waiting: null, past: [] });
    const [height, width] = host.sides[0].grid;
    this.state = {
      query: [height >> 1, width >> 1], locked: false, layer: 0, head: 0, view: "maps", part: "full", scale: "probabilities",
      shared: true, average: false, compare: null, epochs: [null, null], edits: {}, notice: "", ...(host.state || {}),
    };
    this.build();
    this.load();
    host.listen((what, value) => this.told(what, value));
    this.resized = new ResizeObserver(([{ contentRect: { width } }]) => {
      if (width !== this.width) this.theme(); // also the first time, when the element has come into the page
      this.width = width;
    });
    this.resized.observe(this.root);
    this.endTheme = onTheme(() => this.theme());
    root.attnconv = this; // for tests, benchmarks and the curious
  }

  remove() {
    this.stop();
    this.resized.disconnect();
    this.endTheme();
    this.root.replaceChildren();
  }

  // -- elements

  build() {
    const { host } = this, choose = (label, options, act) => {
      const select = element("select", { onchange: () => act(select.value) }, ...options.map(([value, text]) => element("option", { value, textContent: text })));
      return [element("label", { className: "ax-field" }, element("span", { textContent: label }), select), select];
    };
    const runs = host.choices.runs.map((run) => [run.name, run.title]);
    const button = (text, act, title = "") => element("button", { type: "button", textContent: text, title, onclick: act });
    [this.runField, this.run] = choose("Model", runs.length ? runs : [["model", "model"]], (name) => this.ask({ kind: "run", name }));
    [this.compareField, this.compare] = choose("Compare with", [["", "nothing"], ["epoch", "another epoch"], ...runs], (name) => this.setCompare(name));
    [this.viewField, this.view] = choose("Show", [["maps", "attention maps"], ["centres", "centres"]], (view) => this.set({ view }, true));
    [this.partField, this.part] = choose("Score", [["full", "full"], ["position", "position only"], ["content", "content only"]], (part) => this.set({ part }));
    [this.scaleField, this.scale] = choose("Values", [["probabilities", "probabilities"], ["logits", "logits"]], (scale) => this.set({ scale }));
    [this.averageField, this.average] = choose("Over", [["image", "this image"], ["average", `average of ${host.choices.averaged} images`]], (value) => this.setAverage(value === "average"));
    [this.sharedField, this.shared] = choose("Brightness", [["shared", "one scale for all"], ["own", "each head its own"]], (value) => this.set({ shared: value === "shared" }));
    [this.layerField, this.layer] = choose("Layer", [], (value) => this.set({ layer: Number(value), head: 0 }));
    [this.headField, this.head] = choose("Head", [], (value) => this.set({ head: Number(value) }));
    [this.classField, this.classes] = choose("Class", [["", "any"], ...host.choices.classes.map((name, c) => [c, name])], () => this.newImage());
    this.classField.hidden = !host.choices.by_class;
    this.file = element("input", { type: "file", accept: "image/*", hidden: true, onchange: () => this.upload(this.file.files[0]) });
    this.notice = element("div", { className: "ax-notice", role: "alert", hidden: true });
    this.spoken = element("div", { className: "ax-spoken", role: "status", "aria-live": "polite" });
    this.hint = element("p", { className: "ax-hint" });
    this.image = element("canvas", { className: "ax-image", tabIndex: 0, role: "application", "aria-roledescription": "image with a query pixel" });
    this.caption = element("p", { className: "ax-caption" });
    this.lock = element("p", { className: "ax-lock" });
    this.picture = document.createElement("canvas");
    this.panels = [];
    this.panelBox = element("div", { className: "ax-panels" });
    this.controls = element("div", { className: "ax-controls", role: "toolbar", "aria-label": "What is shown" },
      this.runField, this.compareField, this.viewField, this.scaleField, this.partField, this.averageField, this.sharedField);
    this.seen = element("div", { className: "ax-view" }, this.image, element("div", { className: "ax-words" }, this.lock, this.caption));
    this.tools = element("aside", { className: "ax-tools" },
      element("div", { className: "ax-row" }, this.classField, button("Random image", () => this.newImage(), "Another image of this class")),
      host.live ? element("div", { className: "ax-row" }, button("Your image …", () => this.file.click(), "Any image file; it is cropped and resized"), this.file) : null,
      element("div", { className: "ax-row" }, this.layerField, this.headField),
      element("div", { className: "ax-row" }, button("Save PNG", () => this.savePng(), "This view as a picture"),
        host.live ? button("Export HTML", () => this.exportPage(), "This explorer as one file that works without Python") : null),
      this.notice);
    this.root.classList.add("attnconv-explorer");
    this.root.replaceChildren(this.controls, element("div", { className: "ax-main" }, this.seen, this.panelBox, this.tools), this.hint, this.spoken);

    const { image } = this;
    image.addEventListener("pointermove", (event) => this.state.locked && !event.buttons || this.moveTo(event));
    image.addEventListener("pointerdown", (event) => { this.pressed = [...this.state.query, this.state.locked]; if (event.pointerType === "touch") this.moveTo(event, true); });
    image.addEventListener("click", (event) => this.click(event));
    image.addEventListener("keydown", (event) => this.key(event));
    // Lists and sliders use these keys themselves; JupyterLab would change cells, or delete this one.
    this.root.addEventListener("keydown", (event) => event.ctrlKey || event.metaKey || event.stopPropagation());
    this.root.addEventListener("dragover", (event) => host.live && event.preventDefault());
    this.root.addEventListener("drop", (event) => { if (host.live && event.dataTransfer.files.length) { event.preventDefault(); this.upload(event.dataTransfer.files[0]); } });
  }

  // -- data

  /** Take over all data of the host. */
  load() {
    this.stop();
    const { host, state } = this, epoch = state.compare === "epoch";
    const sides = epoch ? [host.sides[0], host.sides[0]] : host.sides;
    this.models = sides.map((side) => new Model(side));
    state.layer = Math.min(state.layer, this.heads().length - 1);
    state.head = clamp(state.head, 0, Math.max(0, this.heads()[state.layer] - 1));
    state.query = state.query.map((q, i) => clamp(q, 0, this.models[0].grid[i] - 1));
    if (epoch && state.epochs[1] === null) state.epochs[1] = 0;
    if (!epoch) state.compare = host.sides.length > 1 ? host.sides[1].name : null;
    while (this.panels.length > sides.length) this.panels.pop().root.remove();
    while (this.panels.length < sides.length) {
      this.panels.push(new Panel(this, this.panels.length));
      this.panelBox.append(this.panels.at(-1).root);
    }
    this.panels.forEach((panel, i) => {
      const model = (panel.model = this.models[i]);
      const { [i]: shown = null } = state.epochs; // another run may have fewer
      model.epoch = state.epochs[i] = model.replayed && shown < model.path.epochs - 1 ? shown : null;
      panel.maps = panel.data = null;
      panel.epochRow.hidden = !model.replayed;
    });
    this.models[0].edits = state.edits;
    const content = this.models.some((model) => model.content);
    this.partField.hidden = this.averageField.hidden = !content;
    if (!content) Object.assign(state, { part: "full", average: false });
    this.compare.querySelector("[value=epoch]").hidden = this.compare.querySelector("[value=epoch]").disabled = !this.models[0].replayed;
    this.runField.hidden = !host.live;
    this.compareField.hidden = !host.live && !this.models[0].replayed;
    if (!host.live) for (const option of this.compare.options) option.hidden = option.disabled = !["", "epoch"].includes(option.value) && option.value !== state.compare;
    this.averageField.hidden ||= !host.live && !host.average.length;
    if (!host.live && !host.average.length) state.average = false;
    this.takeAverage();
    this.takeImage();
    this.later(true);
    this.askAverage(); // Python drops it with every change of models
  }

  /** Heads of every layer that can be chosen: those of either model. */
  heads() {
    const layers = Math.max(...this.models.map((model) => model.heads.length));
    return Array.from({ length: layers }, (_, layer) => Math.max(...this.models.map((model) => model.heads[layer] || 0)));
  }

  takeImage() {
    const { image, edited } = this.host, [height, width, channels] = image.pixels.shape, pixels = typed(image.pixels);
    Object.assign(this.picture, { width, height });
    const pen = this.picture.getContext("2d"), data = pen.createImageData(width, height);
    for (let at = 0; at < height * width; at++) {
      for (let c = 0; c < 3; c++) data.data[4 * at + c] = pixels[at * channels + (channels === 1 ? 0 : c)];
      data.data[4 * at + 3] = 255;
    }
    pen.putImageData(data, 0, 0);
    this.caption.textContent = image.title;
    this.models.forEach((model, i) => {
      const seen = this.state.compare === "epoch" ? image.sides[0] : image.sides[i];
      model.setScores((i === 0 && edited && edited.maps) || (seen && seen.maps));
      if (seen) this.panels[i].drawPrediction(seen.probabilities, i === 0 && edited && edited.heads && edited.heads.length ? edited.probabilities : null, image.label);
    });
    this.later(true);
  }

  takeAverage() {
    this.models.forEach((model, i) => model.setAverages(this.host.average[i] || null));
  }

  /** The host says that something changed, or that Python answered. */
  told(what, value) {
    if (what === "done") {
      const failed = value === this.averaging && !this.host.average.length;
      clearTimeout(this.pending.get(value));
      this.pending.delete(value);
      this.root.classList.toggle("ax-busy", this.pending.size > 0);
      if (!this.pending.size && this.waiting) {
        const next = this.waiting;
        this.waiting = null; // first: the exported page answers at once
        next();
      }
      if (failed) this.set({ average: false }, true);
    } else if (what === "notice") this.complain(value);
    else if (what === "file") this.download(new Blob([value.content], { type: value.type }), value.name);
    else if (what === "sides") {
      if (this.host.sides[0].name !== this.models[0].name) [this.past, this.state.edits] = [[], {}]; // another model's
      this.load();
      this.askAgain();
    } else if (what === "average") {
      this.takeAverage();
      this.later(true);
    } else {
      this.takeImage();
      if (what === "image") this.askAgain();
    }
  }

  /** Changed heads stay changed on another image or beside another run: ask what becomes of its prediction. */
  askAgain() {
    if (Object.keys(this.state.edits).length) this.askPrediction();
  }

  ask(message, buffers = []) {
    const id = ++this.serial;
    this.complain("");
    this.pending.set(id, setTimeout(() => {
      this.pending.delete(id);
      this.root.classList.toggle("ax-busy", this.pending.size > 0);
      this.complain("Python does not answer. Moving the query still works; for the rest, run the cell again.");
    }, PATIENCE));
    this.root.classList.add("ax-busy");
    this.host.send({ ...message, id }, buffers);
    return id;
  }

  // -- what the reader does

  queryOf(model) {
    return project(this.state.query, this.models[0].grid, model.grid);
  }

  set(changes, relayout = false) {
    Object.assign(this.state, changes);
    this.later(relayout);
  }

  setQuery(query) {
    const next = query.map((q, i) => clamp(q, 0, this.models[0].grid[i] - 1));
    if (next[0] !== this.state.query[0] || next[1] !== this.state.query[1]) this.set({ query: next });
  }

  pixelUnder(event) {
    const box = this.image.getBoundingClientRect(), [height, width] = this.models[0].grid;
    return [Math.floor(((event.clientY - box.top) / box.height) * height), Math.floor(((event.clientX - box.left) / box.width) * width)];
  }

  moveTo(event, always = false) {
    this.since = event.timeStamp;
    if (!this.state.locked || always || event.pointerType === "touch") this.setQuery(this.pixelUnder(event));
  }

  /** A click locks the query there; on the locked pixel it frees it again. */
  click(event) {
    const pixel = this.pixelUnder(event), [row, column, locked] = this.pressed || [];
    this.setQuery(pixel);
    this.set({ locked: !(locked && row === pixel[0] && column === pixel[1]) });
  }

  key(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (step) this.setQuery(this.state.query.map((q, i) => q + step[i]));
    else if (event.key === "Enter" || event.key === " ") this.set({ locked: !this.state.locked });
    else if (event.key === "Escape") this.set({ locked: false });
    else return;
    event.preventDefault();
  }

  pickHead(panel, event) {
    const { layer, head } = panel.under(event);
    if (head !== undefined) this.set({ layer, head });
  }

  /** What lies under the pointer in the grid, in words. */
  inspect(panel, event) {
    const { layer, head, key } = panel.under(event), { model } = panel;
    if (head === undefined) return this.say("");
    const name = `Layer ${layer + 1}, head ${head + 1}`;
    if (!key) return this.say(`${name}: centre ${shiftText(panel.shape(layer, head).centre)}`);
    const query = this.queryOf(model), at = key[0] * model.width + key[1];
    const value = this.state.scale === "logits" ? panel.values(layer, head)[at].toFixed(2) : panel.maps[layer][head][at].toPrecision(3);
    this.say(`${name}, shift ${shiftText([key[0] - query[0], key[1] - query[1]], 0)}: ${this.state.scale === "logits" ? "logit" : "probability"} ${value}`);
  }

  say(text) {
    this.hint.textContent = text || "Move over the image to choose the query pixel, click to hold it; arrow keys move it by one. Click a head to see it large.";
  }

  complain(text) {
    this.state.notice = text;
    this.notice.textContent = text;
    this.notice.hidden = !text;
  }

  /** Change the chosen head; the map follows at once, the prediction as soon as Python has it. */
  edit(change) {
    const { state } = this, model = this.models[0], key = `${state.layer}.${state.head}`;
    const now = model.encoding === "quadratic" ? model.gaussian(state.layer, state.head) : {};
    const edit = { ...state.edits[key] };
    change(edit, now);
    this.remember(key);
    if (!edit.off) delete edit.off;
    state.edits = { ...state.edits, [key]: edit };
    if (!Object.keys(edit).length) delete state.edits[key];
    model.edits = state.edits;
    this.later();
    this.askPrediction();
  }

  /** Keep the changed heads as they are now for `undo`; what a slider does at a stretch is one step. */
  remember(key) {
    const time = performance.now(), { key: before, time: then } = this.lately || {};
    if (key === null || key !== before || time - then > 800) this.past = [...this.past, this.state.edits].slice(-100);
    this.lately = { key, time };
  }

  undo() {
    this.models[0].edits = this.state.edits = this.past.pop() || {};
    this.lately = null;
    this.later();
    this.askPrediction();
  }

  reset(all) {
    this.remember(null);
    const { state } = this, { [`${state.layer}.${state.head}`]: _, ...others } = state.edits;
    this.models[0].edits = state.edits = all ? {} : others;
    this.later();
    this.askPrediction();
  }

  /** One question at a time: while Python works on one, only the newest waits. */
  askPrediction() {
    const send = () => this.ask({ kind: "heads", edits: Object.entries(this.state.edits).map(([key, edit]) => {
      const [layer, head] = key.split(".").map(Number);
      return { layer, head, ...edit };
    }) });
    if (this.pending.size) this.waiting = send;
    else send();
  }

  /** The state goes along: what is saved after a rest may be older. */
  exportPage() {
    this.ask({ kind: "export", state: { ...this.state } });
  }

  setAverage(average) {
    this.set({ average });
    this.askAverage();
  }

  askAverage() {
    if (this.state.average && this.host.live && !this.host.average.length) this.averaging = this.ask({ kind: "average" });
  }

  setCompare(name) {
    const { state, host } = this;
    if (name !== "epoch" && (host.sides[1] ? host.sides[1].name : "") !== name && host.live) {
      state.compare = null;
      this.ask({ kind: "compare", name: name || null });
      return;
    }
    if (name === "epoch" && host.sides.length > 1 && host.live) this.ask({ kind: "compare", name: null });
    Object.assign(state, { compare: name || null, epochs: name === "epoch" ? [state.epochs[0], 0] : [state.epochs[0], null] });
    this.load();
  }

  setEpoch(index, value) {
    const model = this.models[index], last = model.path.epochs - 1;
    model.epoch = this.state.epochs[index] = value >= last ? null : value; // the last one is the trained model itself
    this.takeImage();
  }

  /** Show every epoch in turn; pressed again, or by whatever else changes the epoch or the models, it stops. */
  play(index) {
    const same = this.playing && this.playing.index === index, { epochs } = this.models[index].path;
    this.stop();
    if (same) return;
    const step = Math.max(1, Math.round(epochs / 60));
    let epoch = 0;
    this.panels[index].play.textContent = "❚❚";
    const timer = setInterval(() => {
      this.setEpoch(index, epoch);
      if (epoch >= epochs - 1) this.stop();
      epoch += step;
    }, Math.max(50, 2500 / epochs));
    this.playing = { index, timer };
    this.setEpoch(index, 0);
  }

  stop() {
    if (!this.playing) return;
    clearInterval(this.playing.timer);
    this.panels[this.playing.index].play.textContent = "▶";
    this.playing = null;
  }

  newImage() {
    const label = this.classes.value === "" ? null : Number(this.classes.value);
    this.ask({ kind: "image", class: label });
  }

  async upload(file) {
    this.file.value = "";
    if (!file) return;
    const limit = this.host.choices.file_limit;
    if (file.size > limit) return this.complain(`${file.name} has ${Math.round(file.size / 2 ** 20)} MB; at most ${limit >> 20} MB are read.`);
    for (const [message, part] of inParts(file.name, await file.arrayBuffer())) this.ask(message, [part]);
  }

  // -- files

  download(blob, name) {
    const link = element("a", { href: URL.createObjectURL(blob), download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }

  /** Lines on a canvas of their own: words, or a name and a value. */
  written(lines) {
    const all = lines.flatMap((line) => (Array.isArray(line) ? [line] : line.match(/.{1,30}(\s|$)/g).map((part) => [part]))), wide = 220;
    const canvas = element("canvas"), pen = canvasOf(canvas, wide, 19 * all.length + 4), { colours } = this;
    all.forEach(([name, value], i) => {
      pen.font = `${value === undefined ? "bold " : ""}12px ${colours.font}`;
      for (const [text, align, colour] of [[name, "left", value === undefined ? colours.text : colours.faint], [value || "", "right", colours.text]]) {
        Object.assign(pen, { textAlign: align, fillStyle: colour });
        pen.fillText(text, align === "left" ? 0 : wide, 19 * i + 14);
      }
    });
    return canvas;
  }

  /** The view as one picture: the image, then every model's grid and chosen head, each with its prediction. */
  picturePage() {
    const ratio = window.devicePixelRatio || 1, pad = 16 * ratio, { state, colours } = this;
    const numbers = (panel) => (panel.numbers.hidden ? [] : [...panel.numbers.querySelectorAll("dt")].map((name) => [name.textContent, name.nextSibling.textContent]));
    const answer = (panel) => this.written(["Prediction", ...[...panel.predictions.children].map((node) => (node.matches(".ax-class") ? [node.firstChild.textContent, node.lastChild.textContent] : node.textContent))]);
    // Columns of rows of canvases, each column with its title.
    const columns = [[this.caption.textContent, [[this.image], [answer(this.panels[0])]]], ...this.panels.map((panel, i) => [panel.title.textContent, [
      [panel.grid],
      [...(panel.zoomBox.hidden ? [] : [panel.zoom]), this.written([panel.headTitle.textContent, ...numbers(panel)]), ...(panel.trackBox.hidden ? [] : [panel.track])],
      i ? [answer(panel)] : [],
    ]])];
    const wide = (row) => row.reduce((sum, part) => sum + part.width + pad, 0), tall = (row) => Math.max(0, ...row.map((part) => part.height + pad));
    const widths = columns.map(([, rows]) => Math.max(...rows.map(wide))), heights = columns.map(([, rows]) => rows.reduce((sum, row) => sum + tall(row), 0));
    const canvas = element("canvas", { width: widths.reduce((a, b) => a + b, pad), height: Math.max(...heights) + 4 * pad });
    const pen = canvas.getContext("2d");
    pen.fillStyle = colours.back;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.fillStyle = colours.text;
    pen.font = `${13 * ratio}px ${colours.font}`;
    let x = pad;
    columns.forEach(([title, rows], i) => {
      let y = 2.5 * pad;
      pen.fillText(title, x, 1.6 * pad);
      for (const row of rows) {
        row.reduce((left, part) => (pen.drawImage(part, left, y), left + part.width + pad), x);
        y += tall(row);
      }
      x += widths[i];
    });
    pen.fillText(`query row ${state.query[0]}, column ${state.query[1]}; layer ${state.layer + 1}, head ${state.head + 1}`, pad, canvas.height - pad);
    return canvas;
  }

  savePng() {
    this.picturePage().toBlob((blob) => this.download(blob, "attention-heads.png"));
  }

  // -- drawing

  theme() {
    if (!this.root.isConnected) return; // no colours yet
    const { dark, ...colours } = themeOf(this.root);
    this.dark = dark;
    this.colours = { ...colours, ramp: ramp(dark), spot: ramp(true) };
    this.later(true);
  }

  /** Draw before the next repaint, once however often it is asked. */
  later(relayout = false) {
    this.relayout ||= relayout;
    this.frame ||= requestAnimationFrame(() => {
      this.frame = null;
      if (this.colours && this.root.isConnected && (this.imageSide || this.panelBox.clientWidth)) this.draw();
    });
  }

  draw() {
    const start = performance.now(), { state } = this;
    if (this.relayout && this.panelBox.clientWidth) { // JupyterLab hides it while themes change: it has no width then
      // In a narrow place the heads come right below the image, which is smaller: both are seen at once.
      const narrow = this.width < 560;
      this.imageSide = narrow ? clamp(Math.round(0.45 * this.width), 96, IMAGE_SIDE) : IMAGE_SIDE;
      this.root.classList.toggle("ax-narrow", narrow);
      const { panels: [{ detail, answer }], tools, root, controls } = this, above = narrow ? tools : root, below = narrow ? detail : tools;
      if (controls.parentElement !== above) above.prepend(controls);
      if (answer.parentElement !== below) below.append(answer); // there is room for it beside the image, or near the sliders
      const width = this.panelBox.clientWidth, needed = Math.max(...this.panels.map((panel) => panel.least()));
      const beside = this.panels.length > 1 && (width - 24) / 2 >= needed;
      this.panelBox.classList.toggle("ax-beside", beside);
      for (const panel of this.panels) panel.layout((beside ? (width - 24) / 2 : width) - 2);
      this.relayout = false;
      this.fill();
    }
    this.drawImage();
    for (const panel of this.panels) if (!panel.waits()) panel.compute(); // the centres' scale is that of all
    for (const panel of this.panels) {
      panel.draw();
      const { model } = panel, replay = model.epoch !== null;
      const title = model.title + (replay ? (model.epoch ? `, after epoch ${model.epoch}` : ", before training") : "");
      if (panel.title.textContent !== title) panel.title.textContent = title;
      if (model.replayed) panel.epoch.set(replay ? model.epoch : model.path.epochs - 1, { max: model.path.epochs - 1 });
    }
    this.lock.textContent = `query: row ${state.query[0]}, column ${state.query[1]}` + (state.locked ? " (held)" : "");
    this.root.classList.toggle("ax-locked", state.locked);
    for (const [select, value] of [[this.layer, state.layer], [this.head, state.head]]) if (select.value !== String(value)) this.fill();
    this.timings.push({ script: performance.now() - start, event: this.since === undefined ? null : performance.now() - this.since });
    if (this.timings.length > 2000) this.timings.splice(0, 1000);
    this.since = undefined;
    clearTimeout(this.rest);
    this.rest = setTimeout(() => this.settle(), 250);
  }

  /** Bring the controls in line with the state. */
  fill() {
    const { state } = this, model = this.models[0];
    const options = (select, n, word) => select.replaceChildren(...Array.from({ length: n }, (_, i) => element("option", { value: i, textContent: `${i + 1}` })));
    const heads = this.heads(), own = Math.max(1, heads[state.layer]);
    if (this.layer.length !== heads.length) options(this.layer, heads.length);
    if (this.head.length !== own) options(this.head, own);
    const values = {
      run: model.name, compare: state.compare || "", view: state.view, part: state.part, scale: state.scale,
      average: state.average ? "average" : "image", shared: state.shared ? "shared" : "own", layer: state.layer, head: state.head,
    };
    for (const [name, value] of Object.entries(values)) this[name].value = value;
    if (!this.hint.textContent) this.say("");
  }

  drawImage() {
    const { picture, state } = this, [height, width] = this.models[0].grid;
    const side = this.imageSide, wide = picture.width >= picture.height ? side : (side * picture.width) / picture.height, tall = (wide * picture.height) / picture.width;
    const pen = canvasOf(this.image, wide, tall);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(picture, 0, 0, wide, tall);
    const [cellX, cellY] = [wide / width, tall / height], [x, y] = [state.query[1] * cellX, state.query[0] * cellY];
    for (const [colour, line] of [["rgba(255,255,255,.9)", state.locked ? 6 : 5], [QUERY, state.locked ? 4 : 2.5]]) {
      pen.strokeStyle = colour;
      pen.lineWidth = line;
      pen.strokeRect(x, y, cellX, cellY);
    }
  }

  /** After a rest: tell screen readers and Python. */
  settle() {
    const { state, panels: [panel] } = this;
    this.spoken.textContent = `Query row ${state.query[0]}, column ${state.query[1]}. ${panel.headTitle.textContent}: ${panel.told || ""}`;
    this.image.setAttribute("aria-label", `${this.caption.textContent}. Query pixel row ${state.query[0]}, column ${state.query[1]}${state.locked ? ", held" : ""}. Arrow keys move it, Enter holds it.`);
    panel.grid.setAttribute("aria-label", `Attention of all heads: ${this.models[0].heads.length} layers. Arrow keys move the query; the lists Layer and Head choose one to see large.`);
    this.host.save({ ...state });
  }
}

// --- the two hosts --------------------------------------------------------------------------------------------------

/** In Jupyter: data are the widget's traits, messages go to Python. */
export function widgetHost(model) {
  const host = {
    live: true,
    send: (message, buffers) => model.send(message, undefined, buffers),
    save: (state) => {
      model.set("state", state);
      model.save_changes();
    },
    listen(told) {
      const custom = (message, buffers) => {
        if (message.kind === "done") told("done", message.id);
        else if (message.kind === "notice") told("notice", message.text);
        else if (message.kind === "file") told("file", { ...message, content: buffers[0] });
      };
      const changes = {};
      // `sides` and `image` arrive together: wait until all of an update is there.
      for (const name of ["sides", "image", "average", "edited"])
        model.on(`change:${name}`, changes[name] = () => {
          host.changed ||= setTimeout(() => {
            const all = host.all;
            host.changed = host.all = null;
            for (const one of all.has("sides") ? ["sides"] : all) told(one);
          });
          (host.all ||= new Set()).add(name);
        });
      model.on("msg:custom", custom);
      host.close = () => {
        model.off("msg:custom", custom);
        for (const [name, act] of Object.entries(changes)) model.off(`change:${name}`, act);
      };
    },
  };
  for (const name of ["sides", "image", "average", "edited", "choices", "state"]) Object.defineProperty(host, name, { get: () => model.get(name) });
  return host;
}

/** In an exported page: images come from the file, and nothing can be asked of a model. */
export function pageHost(data) {
  const images = [data.image, ...data.gallery], known = data.edited || {}; // heads as they were changed in Jupyter, if so
  let told = () => {}, last = 0;
  return {
    ...data, live: false, edited: known, save() {}, listen: (act) => { told = act; },
    send(message) {
      if (message.kind === "image") {
        const fit = images.map((image, i) => i).filter((i) => i !== last && (message.class === null || images[i].label === message.class));
        const next = fit.find((i) => i > last) ?? fit[0];
        if (next !== undefined) [this.image, this.edited] = [images[(last = next)], {}];
        told(next === undefined ? "notice" : "image", "This file holds no other image of that class.");
      }
      if (message.kind === "heads") {
        this.edited = last === 0 && message.edits.length && JSON.stringify(message.edits) === JSON.stringify(known.heads) ? known : {};
        told("edited");
      }
      told("done", message.id);
    },
  };
}

/** Start the exported page. */
export async function openPage(page) {
  const place = page.getElementById("explorer"), text = page.getElementById("data").textContent;
  if (!globalThis.DecompressionStream) {
    place.textContent = "This browser is too old for this page: it needs Chrome 80, Firefox 113, Safari 16.4 or newer.";
    return null;
  }
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Explorer(place, pageHost(unpack(await new Response(stream).arrayBuffer())));
}

export default {
  render({ model, el }) {
    const host = widgetHost(model), root = element("div");
    el.append(root);
    const explorer = new Explorer(root, host);
    return () => {
      host.close();
      explorer.remove();
    };
  },
};
