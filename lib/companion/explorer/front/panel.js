// The model's part of the page: its grid of heads, and the chosen head large.

import { drawHeads, headAt, spots } from "./centres.js";
import {
  QUERY, brightness, colourAt, disc, drawField, drawLevels, frame, inside, percent, pixelGrid, scaleBar, shiftText,
  signed, trace, write,
} from "./draw.js";
import { covarianceOf, describe, ellipse, readLayer } from "./heads.js";
import { LayerCard, kindText } from "./layer.js";
import { clamp, largest } from "./maths.js";
import {
  button, canvasOf, div, element, figure, filled, pictureCanvas, pixelRatio, roving, slider, tell, uniqueId,
} from "./page.js";
import { GLOSSARY } from "./words.js";

export const IMAGE_SIDE = 240; // px, as the chosen head's map
const TILE = 14; // px, the smallest side of a head's map
const OUTPUT = 120; // px, of what the chosen head adds
const SPLIT = 740; // px, the least width of one layer's maps and their kernel side by side
export const WORD = 50; // px, the side of a tile with room for a word: that of nine heads on a phone of 360 px
const FAINT = 0.25; // the power of a probability that is seen on the large maps: a faint head is seen, too
const [VEIL, OPAQUE] = [130, 230]; // of 255: how much of the image a map hides where nothing is seen, and all
const GAP = 20; // px, between the maps and the kernel

export class Panel {
  constructor(explorer) {
    this.explorer = explorer;
    const id = uniqueId();
    this.title = element("h2");
    this.grid = element("canvas", {
      className: "ax-grid", tabIndex: 0, role: "application", "aria-describedby": `${id}-numbers`,
    });
    this.zoom = pictureCanvas("ax-zoom");
    this.track = pictureCanvas("ax-track");
    this.numbers = element("dl", { className: "ax-numbers", id: `${id}-numbers` });
    this.epoch = this.row("epoch", { min: 0, max: 1, step: 1 }, (value) => {
      explorer.film.stop();
      explorer.setEpoch(value);
    });
    this.epoch.row.title = GLOSSARY.epoch;
    this.epochRow = div("ax-epoch", explorer.film.button, this.epoch.row);
    this.predictions = div("ax-predictions");
    this.headTitle = element("h3");
    this.trackBox = figure("centre through training", this.track);
    this.sliders = this.makeSliders();
    this.answer = div("ax-column ax-answer", element("h2", { textContent: "Prediction" }), this.predictions);
    this.zoomBox = figure("attention over the image", this.zoom);
    this.output = pictureCanvas("ax-output");
    this.output.setAttribute("aria-label", "not computed yet");
    canvasOf(this.output, OUTPUT, OUTPUT); // the place of what will be there
    this.does = element("p");
    this.outputScale = scaleBar();
    const adds = figure("what it adds to the layer's output", this.output, this.outputScale.root);
    this.doesBox = div("ax-does", adds, div("ax-column", this.does));
    this.detail = div(
      "ax-detail", this.zoomBox, div("ax-column", this.headTitle, this.numbers, this.sliders.box), this.doesBox,
      this.trackBox, this.answer,
    );
    this.words = div("ax-badges"); // what can be asked of the words on the tiles, at their places
    this.bar = pictureCanvas("ax-scale");
    this.barText = element("span", { className: "ax-note" });
    this.barBox = div("ax-row", this.bar, this.barText);
    this.keys = roving(this.words, "Heads");
    this.card = new LayerCard(this);
    this.root = element(
      "section", { className: "ax-panel" }, this.title, this.epochRow, div("ax-tiles", this.grid, this.words),
      this.barBox, this.card.root, this.detail,
    );
    this.tile = document.createElement("canvas");
    this.grid.addEventListener("click", (event) => explorer.pickHead(event));
    this.grid.addEventListener("pointermove", (event) => explorer.inspect(event));
    this.grid.addEventListener("pointerleave", () => explorer.inspect(null));
  }

  /** A slider in a row. */
  row(...about) {
    const made = slider(...about);
    return { ...made, row: div("ax-slider", made.label, made.input, made.output) };
  }

  makeSliders() {
    const { explorer } = this, { sigmas } = explorer.host.choices, [min, max] = sigmas.map(Math.log);
    const part = (axis) => (value) =>
      explorer.edit((edit, { centre }) => { edit.centre = centre.map((c, i) => (i === axis ? value : c)); });
    const spread = (value) => explorer.edit((edit) => { edit.sigma = clamp(Math.exp(value), ...sigmas); });
    const near = { min: -8, max: 8, step: 0.05 };
    const [row, column] = ["row", "column"].map((axis, i) => this.row(`centre ${axis}`, near, part(i), signed));
    const sigma = this.row("width σ", { min, max, step: 0.01 }, spread, (v) => `${Math.exp(v).toFixed(2)} px`);
    const off = element("input", { type: "checkbox" });
    off.onchange = () => explorer.edit((edit) => { edit.off = !off.checked; });
    const reset = button("Reset head", () => explorer.reset(false));
    const gaussian = element("div", {}, row.row, column.row, sigma.row);
    const box = div("ax-sliders", gaussian, div("ax-row", element("label", {}, off, " head on"), reset));
    return { box, gaussian, row, column, sigma, off, reset };
  }

  /** Whether the grid shows every layer's heads around the query, not their maps. */
  get centres() {
    return this.explorer.state.all && (this.explorer.state.view === "centres" || this.model.film);
  }

  /** Sizes of the grid on screen: each tile has the image's proportions, and all fit into the width. */
  layout(width) {
    const { model, centres, explorer } = this, one = !explorer.state.all, ratio = pixelRatio();
    const split = one && width >= SPLIT, room = split ? 0.42 * width : width;
    const side = explorer.narrow ? Math.min(5, model.most) : Math.ceil(Math.sqrt(model.most)); // of one layer's heads
    const plots = Math.min(model.heads.length, Math.max(1, Math.floor(width / 190))), maps = one ? side : model.most;
    const columns = centres ? plots : maps, many = one ? model.most : model.heads.length;
    const rows = centres || one ? Math.ceil(many / columns) : many;
    const [left, top, gap] = centres ? [0, 20, 14] : one ? [0, 2, 6] : [26, 18, 4];
    const notes = !centres && !one && width > 560 && !model.content ? 80 : 0;
    const wide = clamp(Math.floor((room - left - notes) / columns - gap), TILE, centres ? 300 : 128);
    const tall = Math.round(centres ? wide : (wide * model.height) / model.width);
    const down = tall + (centres ? 26 : gap);
    this.box = { left, top, gap, wide, tall, down, columns, ratio, notes, one };
    const [w, h] = [left + columns * (wide + gap) + notes, top + rows * down];
    this.root.classList.toggle("ax-split", split);
    this.card.wide = split ? width - w - GAP : width - 4;
    if (this.grid.width !== w * ratio || this.grid.height !== h * ratio) {
      Object.assign(this.grid, { width: w * ratio, height: h * ratio });
      Object.assign(this.grid.style, { width: `${w}px`, height: `${h}px` });
    }
    this.context = this.grid.getContext("2d");
  }

  /** Layer, head and key pixel under a point of the grid; head undefined where there is none. */
  under(event) {
    const { left, top, gap, wide, tall, down, columns } = this.box, { model } = this;
    if (!this.maps || this.model.lacks) return {};
    const [x, y] = [event.offsetX - left, event.offsetY - top];
    const [column, row] = [Math.floor(x / (wide + gap)), Math.floor(y / down)];
    const [inX, inY] = [x - column * (wide + gap), y - row * down];
    if (column < 0 || row < 0 || column >= columns || inX >= wide || inY >= tall) return {};
    if (!this.centres) {
      const [layer, head] = this.box.one ? [this.explorer.state.layer, row * columns + column] : [row, column];
      if (layer >= model.heads.length || head >= model.heads[layer]) return {};
      if (model.film) return { layer, head }; // its map and what it was then are not known
      const badge = inY < 18 && wide >= WORD && { left: event.offsetX - inX, top: event.offsetY - inY };
      const key = [Math.floor((inY / tall) * model.height), Math.floor((inX / wide) * model.width)];
      return { layer, head, badge, key };
    }
    const layer = row * columns + column;
    if (layer >= model.heads.length) return {};
    const places = spots(this.shapes(layer), { x: 0, y: 0, side: wide - 1, range: this.range });
    const head = headAt(places, inX, inY, 16);
    return head === undefined ? { layer } : { layer, head };
  }

  /** What the word on a head's tile means, and where in the window it stands. */
  meaning(layer, head, { left, top }) {
    const box = this.grid.getBoundingClientRect(), [, text] = kindText(this.read(layer).heads[head]);
    return [text, { left: box.left + left, top: box.top + top, bottom: box.top + top + 18 }];
  }

  /** Centre and covariance of a head: a Gaussian's own, otherwise measured on its map at this query. */
  shape(layer, head) {
    const { model, explorer } = this;
    if (model.film) return model.recorded(layer, head);
    if (model.encoding === "quadratic") {
      const { centre, precision } = model.gaussian(layer, head);
      return { centre, covariance: covarianceOf(precision) };
    }
    return describe(this.maps[layer][head], model.height, model.width, explorer.state.query);
  }

  shapes(layer) {
    return Array.from({ length: this.model.heads[layer] }, (_, head) => ({
      ...this.shape(layer, head),
      faint: this.model.isOff(layer, head),
    }));
  }

  /** What a layer is, from the middle of the picture: kept until its heads change. */
  read(layer) {
    const { model, explorer: { state, serialOfImage } } = this, kept = this.reads.get(layer);
    const own = Object.entries(model.edits).filter(([place]) => place.startsWith(`${layer}.`));
    const image = model.content ? [serialOfImage, state.part] : [];
    const key = JSON.stringify([model.epoch ?? own, ...image]);
    if (kept?.key === key) return kept.read;
    const read = readLayer(model, layer, state.part);
    this.reads.set(layer, { key, read });
    return read;
  }

  /** Where the heads of a layer went until the epoch that is shown; nothing at the end of training. */
  trails(layer) {
    const { model } = this, { epoch } = model;
    if (epoch === null) return [];
    return Array.from({ length: model.heads[layer] }, (_, head) => {
      const path = model.track(layer, head).slice(0, Math.floor(epoch) + 1);
      if (epoch % 1) path.push(this.shape(layer, head).centre);
      return path.filter(([r]) => Number.isFinite(r));
    });
  }

  /** Compute all maps at the query; while a head is dragged, its own only. */
  compute() {
    const { model, explorer: { state } } = this, { query } = state;
    if (!this.maps) { // another model
      this.maps = model.heads.map((heads) => Array.from({ length: heads }, () => new Float32Array(model.pixels)));
      this.levels = new Float32Array(model.pixels);
      this.computed = null;
    }
    const now = [model, model.epoch, ...query, state.part, model.scores];
    if (!same(now, this.computed)) [this.computed, this.editOf] = [now, new Map()];
    this.largest = 0;
    model.heads.forEach((heads, layer) => {
      for (let head = 0; head < heads; head++) {
        const map = this.maps[layer][head], place = `${layer}.${head}`, edit = model.edits[place] || null;
        if (this.editOf.get(place) !== edit) model.probabilities(layer, head, query, map, state.part);
        this.editOf.set(place, edit);
        for (const p of map) if (p > this.largest) this.largest = p;
      }
    });
    this.range = this.extent(model.heads.keys(), 0.95, 3);
    const size = Math.floor(Math.sqrt(model.heads[state.layer] || 0)); // of a kernel, which is seen whole
    this.near = this.extent([state.layer], 0.75, (size >> 1) + 1);
  }

  drawGrid() {
    const { model, box, context, explorer } = this, { state, colours } = explorer;
    const { left, top, gap, wide, tall, down, columns, ratio } = box, { height, width } = model;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, this.grid.width, this.grid.height);
    const pale = { colour: colours.faint };
    if (model.lacks) return write(context, colours, "…", left, top + 12, pale);
    this.drawBar();
    if (this.centres) return this.drawCentres();

    const { one } = box, opacity = (level) => (one ? VEIL + (OPAQUE - VEIL) * (level / 255) : 255); // over the image
    context.imageSmoothingEnabled = false;
    const [i, j] = state.query, [cellX, cellY] = [wide / width, tall / height];
    for (let head = 0; head < model.most && !one; head++)
      write(context, colours, head + 1, left + head * (wide + gap) + wide / 2, top - 6, { ...pale, align: "center" });
    model.heads.forEach((heads, layer) => {
      if (one && layer !== state.layer) return;
      let y = top + layer * down;
      const colour = layer === state.layer ? colours.accent : colours.faint;
      if (!one) write(context, colours, `L${layer + 1}`, 0, y + tall / 2 + 4, { colour });
      if (this.box.notes) this.drawNote(left + model.most * (wide + gap) + 4, y + tall / 2, layer);
      for (let head = 0; head < heads; head++) {
        const column = one ? head % columns : head;
        const x = left + column * (wide + gap);
        const off = model.isOff(layer, head);
        if (one) y = top + Math.floor(head / columns) * down;
        context.globalAlpha = off ? 0.25 : 1;
        if (one) explorer.paintImage(context, x, y, wide, tall);
        if (model.film) this.drawRing(x, y, layer, head);
        else {
          brightness(this.maps[layer][head], this.largest, this.levels, one ? FAINT : 0.5);
          drawLevels(this.tile, this.levels, model.grid, opacity);
          context.drawImage(this.tile, x, y, wide, tall);
        }
        context.globalAlpha = 1;
        this.drawReach(x, y, layer);
        context.lineWidth = 1.5;
        context.strokeStyle = QUERY;
        context.strokeRect(x + j * cellX - 0.25, y + i * cellY - 0.25, cellX + 0.5, cellY + 0.5);
        if (off) this.cross(x, y, wide, tall);
        const selected = layer === state.layer && head === state.head;
        context.lineWidth = selected ? 2.5 : 1;
        context.strokeStyle = selected ? colours.accent : colours.line;
        context.strokeRect(x - 0.5, y - 0.5, wide + 1, tall + 1);
        this.drawBadge(x, y, layer, head);
        if (model.epoch === null && model.edits[`${layer}.${head}`]) {
          disc(context, x + wide - 2, y + 2, 4, colours.accent);
        }
      }
    });
  }

  /** Where a convolution is in a layer's place: all that it keeps of its heads' attention lies in this frame. */
  drawReach(x, y, layer) {
    const { context, model, explorer, box: { wide, tall } } = this, size = model.kernelAt(layer);
    if (!size) return;
    const [i, j] = explorer.state.query, [cellX, cellY] = [wide / model.width, tall / model.height];
    const reach = (size - 1) / 2, kept = [x + (j - reach) * cellX, y + (i - reach) * cellY, size * cellX, size * cellY];
    inside(context, [x, y, wide, tall], () => frame(context, kept, [["#000", 3], ["#fff", 1.5]]));
  }

  /** Of a head whose maps were not recorded: the ring of half its attention over the image, as it was measured. */
  drawRing(x, y, layer, head) {
    const { context, model, explorer, box: { wide, tall } } = this, { height, width } = model;
    const [i, j] = explorer.state.query, { centre, covariance } = this.shape(layer, head);
    const { major, minor, angle } = ellipse(covariance, 0.5), cell = wide / width;
    const [across, down] = [x + (j + 0.5 + centre[1]) * cell, y + ((i + 0.5 + centre[0]) * tall) / height];
    inside(context, [x, y, wide, tall], () => {
      context.fillStyle = `rgba(0, 0, 0, ${VEIL / 255})`;
      context.fillRect(x, y, wide, tall);
      Object.assign(context, { strokeStyle: "#fff", lineWidth: 2 });
      context.beginPath();
      if (Number.isFinite(across)) context.ellipse(across, down, major * cell, minor * cell, angle, 0, 7);
      context.stroke();
    });
  }

  /** Of how many taps of a kernel a layer has heads, or that a convolution is in its place: at the end of its row. */
  drawNote(x, y, layer) {
    const { context, explorer: { colours } } = this, { size, covered } = this.read(layer);
    const kernel = this.model.kernelAt(layer), two = this.box.down >= 28; // small tiles leave room for one line
    if (!kernel && (!size || this.model.content)) return;
    const [first, second] = kernel
      ? [`now a ${kernel} × ${kernel}`, "convolution"]
      : [`${covered} of ${size * size} taps`, `${size} × ${size} kernel`];
    const colour = kernel || covered >= 0.75 * size * size ? colours.text : colours.faint;
    const style = { colour, weight: kernel ? "bold" : "" };
    write(context, colours, first, x, two ? y - 3 : y + 4, style);
    if (two) write(context, colours, second, x, y + 11, style);
  }

  /** The colours' scale: how much attention is how bright. */
  drawBar() {
    const wide = 120, pen = canvasOf(this.bar, wide, 10);
    this.barBox.hidden = this.centres;
    this.barBox.style.visibility = this.model.film ? "hidden" : "";
    for (let x = 0; x < wide; x++) {
      pen.fillStyle = colourAt(x / (wide - 1));
      pen.fillRect(x, 0, 1, 10);
    }
    const middle = `${this.box.one ? "a sixteenth" : "a quarter"} of that is in the middle`;
    const text = `attention from 0 to ${percent(this.largest)}; ${middle}`;
    this.barText.textContent = text;
    this.bar.setAttribute("aria-label", `Scale: ${text}`);
  }

  /** What a head is, in a word, and its colour in the plots of centres. */
  drawBadge(x, y, layer, head) {
    const { context, box: { wide, tall }, explorer } = this, { colours } = explorer;
    const lit = layer === explorer.state.layer && head === explorer.lit;
    context.fillStyle = explorer.colourOf(head);
    context.fillRect(x, y + tall - (lit ? 6 : 3), wide, lit ? 6 : 3);
    if (wide < WORD) return;
    const { kind, same } = this.read(layer).heads[head], word = same >= 0 ? `= head ${same + 1}` : kind;
    const named = this.model.film ? `${head + 1}` : `${head + 1}  ${word}`, text = this.box.one ? named : word;
    write(context, colours, text, x + 3, y + 11, { size: 10, halo: colours.back });
  }

  cross(x, y, wide, tall) {
    const { context } = this;
    context.strokeStyle = this.explorer.colours.text;
    trace(context, [[x + 3, y + 3], [x + wide - 3, y + tall - 3]]);
    trace(context, [[x + wide - 3, y + 3], [x + 3, y + tall - 3]]);
  }

  /** Every layer's heads around the query. */
  drawCentres() {
    const { model, box: { top, gap, wide, down, columns }, context, explorer } = this, { state, colours } = explorer;
    model.heads.forEach((heads, layer) => {
      const [x, y] = [(layer % columns) * (wide + gap) + 1, top + Math.floor(layer / columns) * down];
      const chosen = layer === state.layer;
      const style = chosen ? { colour: colours.accent, weight: "bold" } : {};
      write(context, colours, `Layer ${layer + 1}`, x, y - 6, style);
      const plot = { x, y, side: wide - 1, range: this.range };
      const colourOf = (head) => explorer.colourOf(head);
      drawHeads(context, plot, this.shapes(layer), {
        colours,
        colourOf,
        chosen: chosen ? state.head : -1,
        lit: chosen ? explorer.lit : -1,
        trails: this.trails(layer),
      });
    });
  }

  /** Half the side of a plot of centres, in pixels of the grid: it holds that share of these layers' centres, a ring of
   * shifts around them, and at least `least` shifts to every side. It stays put in an edit. */
  extent(layers, share, least) {
    const { model } = this, far = [];
    for (const layer of layers)
      for (let head = 0; head < model.heads[layer]; head++) {
        const { centre } = model.encoding === "quadratic" ? model.gaussian(layer, head, true)
          : model.film ? model.recorded(layer, head) : this.read(layer).heads[head].told;
        if (Number.isFinite(centre[0])) far.push(Math.max(Math.abs(centre[0]), Math.abs(centre[1])));
      }
    far.sort((a, b) => a - b);
    const usual = far[Math.floor(share * (far.length - 1))] || 0;
    return clamp(Math.round(usual) + 1, least, Math.max(model.height, model.width)) + 0.5;
  }

  /** The chosen head: its map over the image, numbers, path, sliders. */
  drawDetail() {
    const { model, explorer } = this, { layer, head, query } = explorer.state, map = this.maps[layer][head];
    this.zoomBox.hidden = this.numbers.hidden = !map || model.film;
    this.sliders.box.hidden = !map;
    const note = !map ? ": this model has no such head" : model.isOff(layer, head) ? " (off)" : "";
    this.headTitle.textContent = `Layer ${layer + 1}, head ${head + 1}${note}`;
    if (!map) {
      this.trackBox.hidden = this.doesBox.hidden = true; // what was said is of another head
      this.told = "";
      return;
    }
    const told = describe(map, model.height, model.width, query), rows = this.numbersOf(layer, head, told);
    const text = rows.map(([name, value]) => `${name} ${value}`).join(", ");
    if (this.told !== text) {
      this.told = text;
      this.numbers.replaceChildren(...rows.flatMap(([name, value]) => {
        const meaning = GLOSSARY[name], onclick = () => explorer.say(`${name}: ${meaning}`);
        return [element("dt", { textContent: name, title: meaning, onclick }), element("dd", { textContent: value })];
      }));
    }
    const place = `query row ${query[0]}, column ${query[1]}`;
    this.zoom.setAttribute("aria-label", `${this.headTitle.textContent}, ${place}: ${text}`);
    this.drawZoom(map, query, told);
    this.drawTrack(layer, head);
    this.drawDoes();
    this.setSliders(layer, head);
  }

  /** What there is to say of a head, by name. */
  numbersOf(layer, head, told) {
    const { model } = this;
    if (model.film) return [["measured centre", shiftText(this.shape(layer, head).centre)]]; // all that is known
    const rows = [
      ["measured centre", shiftText(told.centre)], ["measured width", `${told.spread.toFixed(2)} px`],
      ["best shift", `${shiftText(told.peak, 0)}: ${percent(told.mass)}`],
      ["reach", `${told.reach.toFixed(2)} px`], ["entropy", `${told.entropy.toFixed(2)} nats`],
    ];
    if (model.encoding !== "quadratic") return rows;
    const { centre, sigma } = model.gaussian(layer, head);
    return [...rows, ["learned centre", shiftText(centre)], ["learned σ", `${Math.min(sigma, 999).toFixed(2)} px`]];
  }

  drawZoom(map, query, told) {
    const { model, explorer } = this, { colours } = explorer;
    const wide = model.width >= model.height ? IMAGE_SIDE : (IMAGE_SIDE * model.width) / model.height;
    const tall = (wide * model.height) / model.width, [cellX, cellY] = [wide / model.width, tall / model.height];
    const pen = canvasOf(this.zoom, wide, tall);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(explorer.picture, 0, 0, wide, tall);
    drawLevels(this.tile, brightness(map, this.largest, this.levels), model.grid, (level) => 127 + 0.4 * level);
    pen.drawImage(this.tile, 0, 0, wide, tall);
    const middle = ([r, c]) => [(c + 0.5) * cellX, (r + 0.5) * cellY];
    const [qx, qy] = middle(query), [cx, cy] = middle([query[0] + told.centre[0], query[1] + told.centre[1]]);
    pen.strokeStyle = QUERY;
    pen.lineWidth = 2.5;
    pen.strokeRect(qx - cellX / 2, qy - cellY / 2, cellX, cellY);
    for (const [colour, line] of [["rgba(255,255,255,.85)", 4.5], [colours.accent, 2]]) { // a pale edge: on any colour
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

  /** What the chosen head does to this image, as far as the host has told. */
  drawDoes() {
    const { model, explorer } = this, seen = explorer.seenNow();
    this.doesBox.hidden = false;
    this.doesBox.classList.toggle("ax-stale", !seen); // its place stays until the answer is there: nothing jumps
    if (!seen || model.epoch !== null) return;
    const { output, share, probabilities } = seen.head, most = largest(output);
    drawField(this.output, output, [model.height, model.width], OUTPUT, [0, most]);
    this.outputScale.tell("0", most.toPrecision(2));
    const part = `${share < 0 ? "−" : ""}${percent(Math.abs(share))}`;
    const without = explorer.says("Without it the model says", probabilities);
    const text = `Its share of the layer's output: ${part}.${without}`;
    tell(this.does, text);
    const adds = `What head ${explorer.state.head + 1} adds, the norm at every pixel. ${text}`;
    this.output.setAttribute("aria-label", adds);
  }

  drawTrack(layer, head) {
    const { model, explorer: { colours } } = this;
    const points = model.track(layer, head).filter(([r]) => Number.isFinite(r));
    this.trackBox.hidden = points.length < 2;
    if (this.trackBox.hidden) return;
    const side = 168, pen = canvasOf(this.track, side, side);
    const range = clamp(Math.ceil(Math.max(...points.flat().map(Math.abs))) + 1, 3, 40) + 0.5;
    const scale = side / (2 * range);
    const at = ([r, c]) => [side / 2 + c * scale, side / 2 + r * scale];
    pen.fillStyle = colours.panel;
    pen.fillRect(0, 0, side, side);
    pixelGrid(pen, side / 2, side / 2, scale, range, colours);
    pen.strokeStyle = colours.accent;
    pen.lineWidth = 1.8;
    pen.lineJoin = "round";
    trace(pen, points.map(at));
    const dot = (point, fill, radius = 4) => {
      disc(pen, ...at(point), radius, fill);
      pen.stroke();
    };
    dot(points[0], colours.panel);
    dot(points.at(-1), colours.accent);
    pen.strokeStyle = colours.text;
    if (model.epoch !== null) dot(this.shape(layer, head).centre, colours.text, 5);
    const [from, to] = [points[0], points.at(-1)].map((point) => shiftText(point));
    this.track.setAttribute("aria-label", `Centre before training ${from}, after ${points.length - 1} epochs ${to}`);
  }

  setSliders(layer, head) {
    const { model, sliders, explorer } = this;
    sliders.gaussian.hidden = model.encoding !== "quadratic";
    sliders.off.checked = !model.isOff(layer, head);
    sliders.reset.disabled = !model.edits[`${layer}.${head}`];
    if (sliders.gaussian.hidden || model.epoch !== null) return;
    const { centre, sigma } = model.gaussian(layer, head), own = model.gaussian(layer, head, true).centre;
    const reach = (c) => Math.max(8, Math.ceil(Math.abs(c)) + 4);
    sliders.row.set(centre[0], { min: -reach(own[0]), max: reach(own[0]) });
    sliders.column.set(centre[1], { min: -reach(own[1]), max: reach(own[1]) });
    sliders.sigma.set(Math.log(Math.min(sigma, explorer.host.choices.sigmas[1])));
  }

  /** Class probabilities: a bar each; with changed heads, before (outline) and after (filled). */
  drawPrediction(before, after, label) {
    const { predictions, answer, model: { epoch } } = this;
    predictions.style.minHeight = epoch === null ? "" : `${predictions.offsetHeight}px`;
    const textContent = "Of earlier epochs only the heads are recorded, not the weights: no prediction.";
    if (epoch !== null) return predictions.replaceChildren(element("p", { className: "ax-note", textContent }));
    answer.classList.toggle("ax-stale", !before); // of another image, until the worker has answered
    if (!before) return;
    const { classes } = this.explorer.host.choices, now = after || before;
    const most = (c) => Math.max(before[c], now[c]); // of many classes, the likeliest before the changes or after them
    const order = classes.map((_, c) => c).sort((a, b) => most(b) - most(a)).slice(0, 10);
    order.sort((a, b) => before[b] - before[a]);
    predictions.replaceChildren(...order.map((c) => {
      const own = c === label, bar = element("span", { className: "ax-bar" }, element("i"), after && element("b"));
      bar.firstChild.style.width = `${100 * now[c]}%`;
      if (after) bar.lastChild.style.width = `${100 * before[c]}%`;
      const [was, is] = [percent(before[c]), percent(now[c])];
      const change = was === is ? is : `${was.replace("%", "")} → ${is}`;
      const title = own ? "the image's class" : "", name = `${own ? "✓ " : ""}${classes[c]}`;
      return div( // without a box: no title can stand beside it
        own ? "ax-class ax-true" : "ax-class", element("span", { textContent: name, title }), bar,
        element("span", { textContent: change }),
      );
    }));
  }

  draw() {
    const { model } = this, { lacks, path, epoch } = model;
    const when = epoch === null ? "" : epoch < 0.5 ? ", before training" : `, after epoch ${Math.round(epoch)}`;
    this.title.textContent = model.title + when;
    if (path) this.epoch.set(Math.round(epoch ?? path.epochs - 1), { max: path.epochs - 1 });
    for (const part of [this.words, this.barBox, this.card.root, this.detail]) // they are of what was drawn before
      part.style.visibility = lacks ? "hidden" : "";
    this.drawGrid();
    if (lacks) return;
    this.root.classList.toggle("ax-past", epoch !== null); // what only the trained model has keeps its place
    this.card.draw();
    this.drawWords();
    this.drawDetail();
  }

  /** On one layer's tiles: what each head is, as something to ask and, for the keyboard, to choose. */
  drawWords() {
    const { words, box: { one, wide, down, columns, gap, top }, model, explorer } = this, { layer } = explorer.state;
    words.hidden = !one || wide < WORD || !model.heads[layer];
    if (words.hidden) return;
    const { heads } = this.read(layer), make = (head) => button("", () => explorer.set({ head }));
    filled(words, heads.length, make).forEach((word, head) => {
      const [name, meaning] = model.film ? ["", ""] : kindText(heads[head]); // what it was then is not known
      const [left, high] = [(head % columns) * (wide + gap), top + Math.floor(head / columns) * down];
      word.setAttribute("aria-pressed", String(head === explorer.state.head));
      word.setAttribute("aria-label", `Head ${head + 1}${name && `: ${name}`}`);
      word.dataset.tip = meaning;
      Object.assign(word.style, { left: `${left}px`, top: `${high}px`, width: `${wide}px` });
    });
    this.keys();
  }
}

/** Whether two lists hold the same things. */
const same = (a, b) => Boolean(b) && a.length === b.length && a.every((value, i) => value === b[i]);
