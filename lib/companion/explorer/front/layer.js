// One layer: its heads around the query, which can be dragged, and beside them the kernel that they make.

import { drawHeads, headAt } from "./centres.js";
import { RAMP, drawField, frame, percent, scaleBar, shiftText, write } from "./draw.js";
import { KINDS, ellipse, kernelOf, kernelSizes } from "./heads.js";
import { clamp, largest, tapShifts } from "./maths.js";
import { button, canvasOf, div, draggable, element, figure, inkOn, pictureCanvas, pixelRatio, tell } from "./page.js";
import { GLOSSARY } from "./words.js";

const SIDE = 272; // px, of both pictures
const SMALLER = 230; // px, on a phone: both the maps and the heads around the query are on its first screen
const LEAST_SIDE = 200; // px, of each of them where they stand side by side
const SHARP = 0.2; // px, the sigma of a head of a grid: 99.999% of its attention is on one pixel

const SMALL = 130; // px, of what the layer answers: two of them are as wide as a picture above

const CLOSE = 0.75; // of the whole field: only a smaller part of it is worth a picture of its own

const EARLIER =
  "Where the heads looked is recorded for every epoch, their matrices only at the end: there is no kernel here.";
const UNTRAINED = "The kernel takes the layer's place as it is; nothing is trained.";
const CONTENT = "A layer that looks at content is no convolution: where it looks changes with the image.";

/** "8 of 9 taps of a 3 × 3 kernel" */
export const tapsText = ({ size, covered }) => `${covered} of ${size * size} taps of a ${size} × ${size} kernel`;

/** What a head is, in a word or two, and the sentence behind it. */
export function kindText({ kind, same }) {
  if (same >= 0)
    return [
      `same tap as head ${same + 1}`,
      `One pixel at the same shift as head ${same + 1}: together they are one tap.`,
    ];
  return [kind === "outside" ? "outside the picture" : kind, `${KINDS[kind][0].toUpperCase()}${KINDS[kind].slice(1)}.`];
}

/** Which of these places each head goes to, so that all of them go a short way: [head, place] pairs, nearest first. */
export function nearestPlaces(centres, places) {
  const pairs = centres
    .flatMap((c, head) => places.map((p, place) => [Math.hypot(c[0] - p[0], c[1] - p[1]), head, place]))
    .sort((a, b) => a[0] - b[0]);
  const [heads, taken] = [new Set(), new Set()];
  return pairs
    .filter(([, head, place]) => !heads.has(head) && !taken.has(place) && heads.add(head) && taken.add(place))
    .map(([, head, place]) => [head, place]);
}

export class LayerCard {
  constructor(panel) {
    Object.assign(this, { panel, explorer: panel.explorer });
    const { explorer } = this;
    this.title = element("h3");
    this.line = element("span", { className: "ax-line" });
    this.rings = element("span", { title: GLOSSARY.rings });
    this.field = button("", () => explorer.set({ whole: !explorer.state.whole }));
    this.centres = element("canvas", { className: "ax-centres", tabIndex: 0, role: "application" });
    this.kernel = pictureCanvas("ax-kernel");
    const resize = () => this.resize(Number(this.sizes.value));
    this.sizes = element("select", { "aria-label": "Size of the kernel", onchange: resize });
    this.reading = element("p", { className: "ax-reading" });
    this.tap = element("p", { className: "ax-note" });
    const grid = "Every head takes a tap of the kernel, the nearest ones first, and looks at one pixel";
    this.actions = div("ax-row ax-actions", button("Make it a grid", () => this.makeGrid(), grid));
    this.kernelText = element("figcaption", { title: GLOSSARY.kernel });
    this.noKernel = element("p", { className: "ax-note ax-nokernel" });
    const kernel = [this.kernel, this.noKernel, this.kernelText];
    this.kernelBox = element("figure", { className: "ax-small ax-kernelbox" }, ...kernel);
    this.swapBox = this.makeSwap();
    this.root = div(
      "ax-layer",
      div("ax-headline", this.title, this.line),
      element("figure", { className: "ax-small" }, this.centres, element("figcaption", {}, this.rings, this.field)),
      this.kernelBox,
      div("ax-column", this.reading, this.tap, this.actions),
      this.swapBox,
    );
    this.listen();
  }

  /** The switch that puts the kernel in the layer's place, and what the layer answers without it and with it. */
  makeSwap() {
    const { explorer } = this, name = "this layer as a convolution";
    const turn = () => explorer.setKernel(this.swap.checked ? this.size : null);
    this.swap = element("input", { type: "checkbox", "aria-label": name, onchange: turn });
    this.swapName = element("span");
    this.swapSize = element("span", {}, " a ", this.sizes, " convolution");
    this.counted = element("p", { className: "ax-counted ax-note" });
    this.off = element("p");
    this.responses = ["with attention", "as a convolution"].map((words) => {
      const canvas = pictureCanvas("ax-response");
      return { words, canvas, box: element("div", {}, canvas, words) };
    });
    const boxes = this.responses.map(({ box }) => box), label = element("label", {}, this.swap, this.swapName);
    label.title = GLOSSARY["as a convolution"];
    this.scale = scaleBar();
    this.responseBox = figure("how strong its output is", ...boxes, this.scale.root);
    this.responseBox.classList.add("ax-responses");
    return div(
      "ax-swap",
      element("div", {}, label, this.swapSize),
      this.responseBox,
      element("div", {}, this.counted, this.off),
    );
  }

  /** Another size of the kernel; also of all convolutions that are in layers' places. */
  resize(size) {
    const { explorer } = this;
    this.size = size;
    if (explorer.resizeKernels(size)) return;
    explorer.later();
    explorer.look();
  }

  listen() {
    const { centres, kernel } = this;
    this.drag = draggable(centres, {
      grip: (event) => this.take(event), move: (to, event, held) => this.move(to, event, held),
    });
    centres.addEventListener("pointermove", (event) => {
      if (!this.drag.held) this.point(event);
      this.explorer.now(event.timeStamp);
    });
    centres.addEventListener("pointerleave", () => this.explorer.light(-1));
    // A finger on a head drags it; anywhere else it scrolls the page.
    centres.addEventListener("touchstart", (event) => {
      const box = centres.getBoundingClientRect(), [{ clientX, clientY }] = event.touches;
      if (this.grip(clientX - box.left, clientY - box.top, true)) event.preventDefault();
    }, { passive: false });
    for (const name of ["pointermove", "click"]) // a finger only clicks
      kernel.addEventListener(name, (event) => this.tellTap(event));
    kernel.addEventListener("pointerleave", () => { this.hovered = null; this.explorer.later(); });
  }

  /** The size of the kernel. */
  get size() {
    return this.explorer.state.size;
  }

  set size(size) {
    this.explorer.state.size = size;
  }

  get layer() {
    return this.explorer.state.layer;
  }

  get shapes() {
    return this.panel.shapes(this.layer);
  }

  // -- dragging

  canDrag() {
    const { model } = this.panel;
    return model.encoding === "quadratic" && model.epoch === null;
  }

  /** Where things are in the plot: pixels a cell, and a shift's place (x, y) on it. */
  cell() {
    return this.plot.side / (2 * this.plot.range);
  }

  at([row, column]) {
    return [row, column].map((shift) => this.plot.side / 2 + shift * this.cell()).reverse();
  }

  /** Shift of the small square on a head's ring. */
  handle({ centre, covariance }) {
    const { major, angle } = ellipse(covariance, 0.5);
    return [centre[0] + major * Math.sin(angle), centre[1] + major * Math.cos(angle)];
  }

  /** What is under a pointer: {head, ring}; the chosen head's ring first, where it is off every dot. */
  grip(x, y, touch) {
    const head = headAt(this.places || [], x, y, touch ? 24 : 14), chosen = this.explorer.state.head;
    const away = ([px, py]) => Math.hypot(px - x, py - y), dot = this.places?.[head];
    const ring = this.canDrag() && this.shapes[chosen] ? away(this.at(this.handle(this.shapes[chosen]))) : Infinity;
    if (ring < (touch ? 20 : 9) && ring < (dot ? away([dot.x, dot.y]) : Infinity)) return { head: chosen, ring: true };
    return head === undefined ? null : { head };
  }

  /** What an event takes hold of: keys, of the chosen head. */
  take(event) {
    const { explorer, places } = this, touch = event.pointerType === "touch", key = event.type === "keydown";
    const grip = key ? { head: explorer.state.head } : this.grip(event.offsetX, event.offsetY, touch);
    const shape = grip && this.shapes[grip.head];
    if (!shape) return null;
    if (!key) explorer.set({ head: grip.head });
    if (!this.canDrag()) return null;
    explorer.lately = key ? explorer.lately : null; // a drag is one step of undo
    const under = [event.offsetY, event.offsetX].map((c) => (c - this.plot.side / 2) / this.cell());
    const far = !key && places[grip.head].far !== null;
    const at = grip.ring ? this.handle(shape) : far ? under : shape.centre;
    return { ...grip, at, cell: this.cell(), free: grip.ring };
  }

  move(to, _, { head, ring }) {
    const { explorer, plot: { range } } = this, { centre, covariance } = this.shapes[head];
    if (!ring) return explorer.edit((edit) => { edit.centre = to.map((c) => clamp(c, -0.5 - range, 0.5 + range)); });
    const now = this.panel.model.gaussian(this.layer, head).sigma, { major } = ellipse(covariance, 0.5);
    const sigma = (now * Math.hypot(to[0] - centre[0], to[1] - centre[1])) / major;
    explorer.edit((edit) => { edit.sigma = clamp(sigma, ...explorer.host.choices.sigmas); });
  }

  /** What lies under the pointer lights up. */
  point({ offsetX, offsetY }) {
    const grip = this.grip(offsetX, offsetY, false);
    this.centres.style.cursor = !grip ? "" : grip.ring ? "nwse-resize" : this.canDrag() ? "grab" : "pointer";
    this.explorer.light(grip ? grip.head : -1);
  }

  makeGrid() {
    const { explorer, panel, layer } = this, taps = tapShifts(Math.floor(Math.sqrt(panel.model.heads[layer])));
    const pairs = nearestPlaces(this.shapes.map(({ centre }) => centre), taps);
    const grid = pairs.map(([head, tap]) => [`${layer}.${head}`, { centre: taps[tap], sigma: SHARP }]);
    explorer.remember(null);
    explorer.setEdits({ ...explorer.state.edits, ...Object.fromEntries(grid) });
  }

  // -- drawing

  draw() {
    const { panel, explorer, layer } = this, { model } = panel, { state, colours } = explorer;
    this.root.hidden = !model.heads[layer];
    if (this.root.hidden) return;
    this.tellSwap();
    const rings = model.encoding === "quadratic" ? "hold 50% and 90%" : "are their spread";
    tell(this.rings, `where the heads look, around the query; rings ${rings} `);
    // Where the heads of positional models look from the middle does not depend on the query: hovering changes nothing.
    this.field.hidden = panel.near > CLOSE * panel.range;
    this.range = state.whole || this.field.hidden ? panel.range : panel.near;
    this.field.textContent = state.whole ? "Zoom to the query" : "Show the whole field";
    this.field.dataset.tip = state.whole
      ? "The shifts around the query, large"
      : "Also the heads that look far away, where they are";
    const { lit, seen, serialOfImage, host: { edited } } = explorer, tap = this.hovered ? this.hovered.join() : "";
    const drawn = [
      pixelRatio(), model, layer, state.head, this.size, this.wide, this.range, tap, lit, colours, seen,
      serialOfImage, edited, model.edits, model.epoch,
    ];
    if (model.encoding === "quadratic" && this.drawn && drawn.every((value, i) => value === this.drawn[i])) return;
    this.drawn = drawn;
    const read = panel.read(layer);
    const kernel = model.productsOf(layer) !== undefined;
    const wide = this.wide || SIDE, pair = Math.floor((wide - 17) / 2);
    const side = pair >= LEAST_SIDE ? Math.min(SIDE, pair) : Math.min(explorer.narrow ? SMALLER : SIDE, wide);
    const swapped = model.kernelAt(layer);
    this.title.textContent = `Layer ${layer + 1}${swapped ? `, now a ${swapped} × ${swapped} convolution` : ""}`;
    tell(this.line, read.size && !model.film && !model.content ? tapsText(read) : "");
    const pen = canvasOf(this.centres, side, side);
    this.plot = { x: 0, y: 0, side, range: this.range };
    this.places = drawHeads(pen, this.plot, this.shapes, {
      colours,
      colourOf: (head) => explorer.colourOf(head),
      chosen: state.head,
      lit: explorer.lit,
      trails: panel.trails(layer),
      draggable: this.canDrag(),
      kernel: this.range < panel.range ? read.size : 0,
      first: read.first,
    });
    const kinds = read.heads.map((one, head) => `head ${head + 1} ${kindText(one)[0]}`);
    this.centres.setAttribute(
      "aria-label",
      `Layer ${layer + 1}${model.film ? "" : `: ${kinds.join(", ")}`}.` +
        (this.canDrag() ? " Arrow keys move the chosen head, with Shift by whole shifts." : ""),
    );
    const past = model.epoch !== null && model.products !== undefined; // the kernel's place stays, without the kernel
    this.noKernel.hidden = kernel || model.epoch === null; // then the switch says it
    this.noKernel.textContent = EARLIER;
    this.kernel.hidden = this.kernelText.hidden = this.reading.hidden = this.tap.hidden = !kernel && !past;
    this.kernelBox.hidden = this.kernel.hidden && this.noKernel.hidden;
    this.hasKernel = kernel;
    this.actions.hidden = !this.canDrag() && !past;
    if (kernel) this.drawKernel(read);
  }

  drawKernel(read) {
    const { panel: { model }, explorer, layer } = this, { colours } = explorer, own = model.kernelAt(layer);
    const sizes = [...new Set([...kernelSizes(model), ...(own ? [own] : [])])];
    this.size = own || this.size;
    if (!sizes.includes(this.size)) this.size = sizes.includes(read.size) ? read.size : sizes.at(-1) < 3 ? 1 : 3;
    tell(this.kernelText, `the ${this.size} × ${this.size} kernel they make: norm of each tap`);
    if (this.sizes.lastChild?.value !== String(sizes.at(-1)))
      this.sizes.replaceChildren(
        ...sizes.map((size) => element("option", { value: size, textContent: `${size} × ${size}` })),
      );
    if (this.sizes.value !== String(this.size)) this.sizes.value = this.size;
    const window = Math.max(Math.min(this.size + 2, sizes.at(-1)), this.size), key = `${this.size}`;
    if (this.known !== read || this.knownSize !== key) {
      [this.known, this.knownSize] = [read, key];
      this.inside = kernelOf(model, layer, read.maps, this.size);
      this.around = kernelOf(model, layer, read.maps, window);
    }
    const { norms, parts } = this.around;
    const top = Math.max(...norms) || 1;
    const side = this.plot.side;
    const cell = side / window;
    const pen = canvasOf(this.kernel, side, side);
    norms.forEach((norm, tap) => {
      const [x, y] = [(tap % window) * cell, Math.floor(tap / window) * cell];
      const level = 3 * Math.round(255 * (norm / top));
      const colour = [0, 1, 2].map((c) => RAMP[level + c]);
      pen.fillStyle = `rgb(${colour})`;
      pen.fillRect(x, y, cell + 0.5, cell + 0.5);
      if (norm > 0.005 * top) {
        const style = { size: cell > 45 ? 12 : 10, align: "center", colour: inkOn(colour) };
        if (cell > 26) write(pen, colours, (norm / top).toFixed(2), x + cell / 2, y + cell / 2 + 2, style);
        const total = parts.reduce((sum, part) => sum + part[tap], 0);
        let from = x + 4;
        parts.forEach((part, head) => {
          const share = ((cell - 8) * part[tap]) / total;
          pen.fillStyle = explorer.colourOf(head);
          pen.fillRect(from, y + cell - 9, share, 5);
          from += share;
        });
      }
    });
    const inner = ((window - this.size) / 2) * cell;
    const box = [inner + 1, inner + 1, this.size * cell - 2, this.size * cell - 2];
    frame(pen, box, [["rgba(255,255,255,.9)", 4], ["#222", 2]]);
    this.window = window;
    this.tell(read);
  }

  /** The reading in sentences. */
  tell(read) {
    const { size, outside, error } = this.inside, { model } = this.panel;
    const on = outside.filter((_, head) => !model.isOff(this.layer, head));
    const held = 1 - on.reduce((a, b) => a + b, 0) / Math.max(1, on.length);
    const text =
      `A ${size} × ${size} kernel holds ${percent(held)} of the heads' attention; ` +
      `${percent(Math.max(1 - held, 0))} lies outside. As a convolution the layer would be ${percent(error)} off on ` +
      "white noise.";
    tell(this.reading, text);
    if (this.hovered?.some((at) => Math.abs(at) > this.window >> 1)) this.hovered = null; // of a larger kernel
    const [row, column] = this.hovered || [0, 0];
    const at = (row + (this.window >> 1)) * this.window + column + (this.window >> 1);
    const total = this.around.parts.reduce((sum, part) => sum + part[at], 0);
    const made = this.around.parts
      .map((part, head) => [part[at] / (total || 1), head])
      .filter(([share]) => share > 0.005)
      .sort((a, b) => b[0] - a[0])
      .slice(0, 4);
    const words = this.hovered
      ? `Tap ${shiftText([row, column], 0)}: norm ${this.around.norms[at].toFixed(2)}, made by ` +
        `${made.map(([share, head]) => `head ${head + 1} (${percent(share)})`).join(", ") || "no head"}.`
      : "Numbers: each tap's norm, as a share of the largest. Coloured bars: the heads that make it.";
    tell(this.tap, words);
    this.kernel.setAttribute("aria-label", `${read.size ? tapsText(read) : ""}. ${text} Middle: the query.`);
  }

  /** The switch, and what is known by now of the convolution in the layer's place. */
  tellSwap() {
    const { panel: { model }, explorer } = this;
    if (model.epoch !== null) return;
    const size = model.kernelAt(this.layer), seen = explorer.seenNow()?.kernel;
    this.swap.checked = size !== null;
    this.swap.disabled = model.content;
    this.swapName.textContent = ` this layer as${model.content ? " a convolution" : ""}`;
    this.swapSize.hidden = model.content;
    this.responseBox.hidden = model.content;
    tell(this.counted, model.content ? CONTENT : UNTRAINED);
    const off = seen ? this.offText(seen, size) : "";
    tell(this.off, off);
    this.responseBox.classList.toggle("ax-stale", !seen); // the former pictures stay until the new ones are there
    const outputs = seen ? seen.outputs : [[], []], all = outputs.flat();
    const range = [all.reduce((low, value) => Math.min(low, value), Infinity), largest(all)]; // norms have no sign
    if (seen) this.scale.tell(...range.map((value) => value.toPrecision(2)));
    this.responses.forEach(({ words, canvas }, i) => {
      if (seen || !canvas.style.width) drawField(canvas, outputs[i], model.grid, SMALL, range);
      canvas.setAttribute("aria-label", `The layer's output ${words}, its norm at every pixel. ${off}`);
    });
  }

  /** How far the convolution is off on this image, and what it changes unless it is in place already. */
  offText({ error, probabilities }, size) {
    const says = size ? "" : this.explorer.says("The model then says", probabilities);
    return `On this image its output is ${percent(error)} off.${says}`;
  }

  /** The rows of canvases that a saved picture shows. */
  pictures() {
    const known = this.hasKernel && !this.responseBox.hidden && this.explorer.seenNow()?.kernel;
    return [
      [this.centres, ...(this.hasKernel ? [this.kernel] : [])],
      known ? this.responses.map(({ canvas }) => canvas) : [],
    ];
  }

  tellTap(event) {
    const cell = this.plot.side / this.window, reach = this.window >> 1;
    this.hovered = [event.offsetY, event.offsetX].map((at) => clamp(Math.floor(at / cell), 0, this.window - 1) - reach);
    this.explorer.later();
  }
}
