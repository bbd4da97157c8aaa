// The playground for Theorem 1: a kernel, its heads, and the pictures that both make. Shared by the Jupyter widget
// (default export, for anywidget) and the offline page (`openPlayground`). All arithmetic is done here, in maths.js.
//
// What the reader has set is a `state`, and as text (`encode`, `decode`) it is the link, the widget's trait and what
// Python starts with. A `host` holds the pictures and keeps that text.

import { QUERY, disc, frame, trace, write } from "./draw.js";
import {
  axisProbabilities, clamp, convolve, largest, look, missedMass, padsOf, presetKernel, tapShifts,
} from "./maths.js";
import {
  Live, NOT_HELD, button, canvasOf, chooser, copied, div, draggable, element, filled, gradient, inAddress, inkOn,
  keepKeysAndDrops, linkBack, pictureCanvas, pictureField, readPicture, rgb, slider, still, tell, uniqueId, widgetOf,
} from "./page.js";

// --- state ----------------------------------------------------------------------------------------------------------

export const KERNELS = {
  identity: "Identity",
  blur: "Blur",
  "sobel-x": "Sobel x",
  "sobel-y": "Sobel y",
  sharpen: "Sharpen",
  emboss: "Emboss",
};
export const ALPHAS = [0.02, 50]; // from a blur of 5 pixels to one pixel, to the last digit
const SIDES = [3, 4, 5];
const LARGEST_WEIGHT = 1000;

/** How far from the query the plane of shifts reaches: a ring of pixels around the kernel. */
export const reachOf = (size) => Math.floor(size / 2) + 1;

/** One head on every tap. */
export const headsOnTaps = (size) => tapShifts(size).map((centre) => ({ centre: [...centre], on: true }));

/** State -> text; only what differs from the start. */
export function encode(state) {
  const parts = [], { size } = state;
  parts.push(`kernel=${state.preset || state.kernel.map((value) => +value.toPrecision(6)).join(",")}`);
  if (state.preset && size !== 3) parts.push(`size=${size}`);
  parts.push(`image=${state.image}`);
  if (state.alpha !== ALPHAS[1]) parts.push(`alpha=${+state.alpha.toPrecision(4)}`);
  if (!state.padding) parts.push("padding=0");
  const told = ({ centre, on }, tap) => [tap, ...centre.map((c) => +c.toFixed(3)), on ? 1 : 0].join(":");
  const moved = state.heads.map(told), usual = headsOnTaps(size).map(told);
  if (String(moved) !== String(usual)) parts.push(`heads=${moved.filter((one, tap) => one !== usual[tap]).join("_")}`);
  parts.push(`query=${state.query.join(",")}`);
  return parts.join("&");
}

/** Text -> state. What is missing or makes no sense is as at the start. `pictures` have a name and a size. */
export function decode(text, pictures) {
  const given = new URLSearchParams(text), numbers = (name) => (given.get(name) || "").split(",").map(Number);
  const named = Object.hasOwn(KERNELS, given.get("kernel")) ? given.get("kernel") : null;
  const own = named ? [] : numbers("kernel");
  const written = own.length >= 9 && own.every(Number.isFinite) && SIDES.find((n) => n * n === own.length);
  const size = written || SIDES.find((n) => n === Number(given.get("size"))) || 3;
  const preset = written ? null : named || "sobel-x";
  const kernel = written
    ? own.map((value) => clamp(value, -LARGEST_WEIGHT, LARGEST_WEIGHT))
    : presetKernel(preset, size);
  const picture = pictures.find(({ name }) => name === given.get("image")) || pictures[0], reach = reachOf(size);
  const heads = headsOnTaps(size);
  for (const one of (given.get("heads") || "").split("_")) {
    const [tap, row, column, on] = one.split(":").map(Number);
    if (heads[tap] && Number.isFinite(row) && Number.isFinite(column) && (on === 0 || on === 1))
      heads[tap] = { centre: [row, column].map((c) => clamp(c, -reach, reach)), on: on === 1 };
  }
  const alpha = Number(given.get("alpha")), sides = [picture.height, picture.width], query = numbers("query");
  const whole = query.length === 2 && query.every(Number.isInteger);
  return {
    size, preset, kernel, heads,
    image: picture.name,
    padding: given.get("padding") !== "0",
    alpha: alpha > 0 ? clamp(alpha, ...ALPHAS) : ALPHAS[1],
    chosen: 0,
    query: whole ? query.map((q, i) => clamp(q, 0, sides[i] - 1)) : picture.query || sides.map((n) => n >> 1),
  };
}

/** The picture as numbers 0..1. */
export function pictureOf({ name, height, width, data }) {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  return { name, height, width, pixels: Float64Array.from(bytes, (value) => value / 255) };
}

/** Everything that is drawn: Conv2d, what each head adds, their sum, the difference. Heads that did not change are
 * kept. */
export class Sums {
  constructor() {
    this.kept = new Map();
  }

  update(state, picture) {
    const { size, kernel, alpha } = state, pads = state.padding ? padsOf(size) : [0, 0];
    const kept = new Map(), shared = new Map();
    if (this.picture !== picture) this.kept.clear();
    const seen = state.heads.map(({ centre }) => {
      const key = [...centre, alpha, ...pads].join();
      const found = kept.get(key) || this.kept.get(key) || look(picture, { centre, alpha, pads }, shared);
      kept.set(key, found);
      return found;
    });
    const about = [...kernel].join();
    if (this.about !== about || this.picture !== picture) this.convolved = convolve(picture, kernel, size);
    Object.assign(this, { kept, about, picture, seen });
    this.total = new Float64Array(picture.pixels.length);
    state.heads.forEach(({ on }, head) => {
      if (on && kernel[head])
        for (let at = 0; at < this.total.length; at++) this.total[at] += kernel[head] * seen[head][at];
    });
    this.difference = this.total.map((value, at) => value - this.convolved[at]);
    this.apart = largest(this.difference);
    return this;
  }
}

/** The most that heads on their taps can differ, per share of attention they miss: weights times the brightest
 * pixel. */
export const bound = ({ kernel }, { pixels }) =>
  kernel.reduce((sum, value) => sum + Math.abs(value), 0) * largest(pixels);

/** Whether every head with a weight looks at its tap. */
export const complete = ({ heads, kernel, size }) => {
  const shifts = tapShifts(size);
  return heads.every(({ on, centre }, tap) => kernel[tap] === 0 || (on && near(centre, shifts[tap])));
};

const near = (a, b) => Math.abs(a[0] - b[0]) < 1e-6 && Math.abs(a[1] - b[1]) < 1e-6;

/** Whether heads that look at one pixel each make the kernel together: also where equal ones have changed places. */
const makes = ({ heads, kernel, size }) => {
  const left = new Map(tapShifts(size).map((shift, tap) => [shift.join(), kernel[tap]]));
  heads.forEach(({ on, centre }, tap) => {
    const at = centre.map((c) => +c.toFixed(6)).join();
    if (on) left.set(at, (left.get(at) || 0) - kernel[tap]);
  });
  return largest([...left.values()]) <= 1e-12 * largest(kernel);
};

// --- words ----------------------------------------------------------------------------------------------------------

/** A number as one writes it: three digits, a true minus sign, powers of ten where it is tiny. */
export function written(value, plus = false) {
  const size = Math.abs(value), sign = value < 0 ? "−" : plus ? "+" : "";
  if (size < 1e-12) return "0";
  if (size < 5e-4) {
    const power = Math.floor(Math.log10(size));
    const raised = [...String(power)].map((digit) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(digit)]);
    return `${sign}${(size / 10 ** power).toFixed(1)}·10${raised.join("")}`;
  }
  return sign + (size >= 100 ? size.toFixed(0) : String(+size.toFixed(size >= 10 ? 1 : 3)));
}

const shiftOf = (shift, digits = 2) =>
  `(${shift
    .map((value) => +value.toFixed(digits))
    .map((c) => (c > 0 ? "+" : c < 0 ? "−" : "") + Math.abs(c))
    .join(", ")})`;
const shareOf = (p) =>
  p >= 0.995 && p < 1
    ? `${Math.min(100 * p, 99.9).toFixed(1)}%`
    : p < 0.0005 && p > 0
      ? `${written(100 * p)}%`
      : `${(100 * p).toFixed(p < 0.1 ? 1 : 0)}%`;
const listed = (words) => (words.length < 2 ? words.join("") : `${words.slice(0, -1).join(", ")} and ${words.at(-1)}`);

const CONVOLUTION =
  "Conv(<i>X</i>)<sub><i>q</i></sub> = Σ<sub>Δ</sub> <i>X</i><sub><i>q</i>+Δ</sub> <i>W</i><sub>Δ</sub>";

/** The equation of a state as HTML, and sentences about what makes it differ from the convolution. */
export function equation(state) {
  const { heads, kernel, size, alpha, padding } = state, shifts = tapShifts(size), sharp = missedMass(alpha) < NONE;
  const numbered = heads.map((head, tap) => ({ ...head, number: tap + 1, shift: shifts[tap], weight: kernel[tap] }));
  const removed = numbered.filter(({ on }) => !on);
  const moved = numbered.filter(({ on, centre, shift }) => on && !near(centre, shift));
  const under = removed.length ? `<i>h</i> ∉ {${removed.map(({ number }) => number).join(", ")}}` : "<i>h</i>";
  const attention = sharp
    ? `Σ<sub>${under}</sub> <i>X</i><sub><i>q</i>+${moved.length ? "<i>c</i><sub>h</sub>" : "Δ<sub>h</sub>"}</sub> ` +
      "<i>W</i><sup><i>h</i></sup>"
    : `Σ<sub>${under}</sub> Σ<sub><i>k</i></sub> <i>P</i><sub><i>h</i></sub>(<i>q</i>, <i>k</i>) ` +
      "<i>X<sub>k</sub></i> <i>W</i><sup><i>h</i></sup>";
  // Heads that look away from q, or blur, need the zeros around the picture: without them its border differs.
  const away = ({ weight, centre, on }) => on && weight && (!sharp || centre.some(Boolean));
  const border = !padding && numbered.some(away), made = makes(state), equal = made && sharp && !border;
  const words = [];
  if (equal && !padding)
    words.push("All that has a weight looks at <i>q</i> itself: no zeros are needed around the picture.");
  if (equal && padding && !moved.length)
    words.push(
      "Each head gives all its attention to <i>k</i> = <i>q</i> + Δ<sub>h</sub>, and <i>W</i><sup><i>h</i></sup> is " +
        "the kernel's number there. So both sums have the same terms. This is Theorem 1.",
    );
  if (!sharp)
    words.push(
      "<i>P</i><sub><i>h</i></sub>(<i>q</i>, <i>k</i>) is the softmax of −<i>α</i>‖<i>k</i> − <i>q</i> − " +
        `<i>c</i><sub>h</sub>‖². At <i>α</i> = ${written(alpha)} a head gives its own pixel ` +
        `${shareOf(1 - missedMass(alpha))} of its attention; ${shareOf(missedMass(alpha))} goes to the pixels ` +
        "around it.",
    );
  words.push(...movedWords(moved, sharp, made), ...removedWords(removed));
  if (border)
    words.push(
      "Without zeros around the picture, a head whose pixel lies outside gives its attention to the nearest pixels " +
        "that exist, as its probabilities must sum to 1. The inside stays as it is; the border differs.",
    );
  return { html: `${CONVOLUTION} <b class="pg-relation">${equal ? "=" : "≠"}</b> ${attention}`, words, equal };
}

function movedWords(moved, sharp, made) {
  const words = moved.slice(0, 3).map(({ number, centre, shift, weight }) => {
    const places = `<i>q</i> + ${shiftOf(centre)} and not at its tap <i>q</i> + ${shiftOf(shift)}`;
    return `Head ${number} looks at ${places}${weight ? "" : ", but its weight is 0: it says nothing"}.`;
  });
  if (moved.length > 3) words.push(moved.length === 4 ? "So does another." : `So do ${moved.length - 3} others.`);
  if (!moved.length || !sharp) return words;
  const kernel = made ? "the same" : "another";
  const whole = `All heads look at whole shifts: their sum is a convolution still, with ${kernel} kernel.`;
  const all = moved.every(({ centre }) => centre.every(Number.isInteger));
  return [...words, all ? whole : "Between two pixels, a head divides its attention."];
}

function removedWords(removed) {
  if (!removed.length) return [];
  const silent = removed.every(({ weight }) => weight === 0), several = removed.length > 1 ? "s" : "";
  const lacks = `the sum lacks ${several ? "their terms" : "its term"}`;
  const missing = silent ? "nothing is missing: the weight is 0" : lacks;
  return [`Without head${several} ${listed(removed.map(({ number }) => number))} ${missing}.`];
}

// --- colours --------------------------------------------------------------------------------------------------------

const SIGNED = {
  false: ["#2166ac", "#67a9cf", "#f7f7f7", "#ef8a62", "#b2182b"],
  true: ["#9ad0ff", "#3a7fc0", "#14171c", "#c8603a", "#ffc09a"],
};

/** 257 colours, packed r, g, b: from below zero over the page's own white or black to above. */
export const signedRamp = (dark) => gradient(SIGNED[Boolean(dark)], 257);

/** How a kernel's outputs are drawn: weights that sum to something make a picture, in grey; others are signed. */
export function scaleOf(kernel, convolved) {
  const sum = kernel.reduce((a, b) => a + b, 0), size = kernel.reduce((a, b) => a + Math.abs(b), 0);
  return sum >= 0.1 * size && sum > 0 ? { grey: true, range: sum } : { grey: false, range: largest(convolved) || 1 };
}

function paint(canvas, values, { height, width }, { grey, range }, ramp) {
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const pen = canvas.getContext("2d"), image = pen.createImageData(width, height), to = image.data;
  for (let at = 0; at < values.length; at++) {
    if (grey) to[4 * at] = to[4 * at + 1] = to[4 * at + 2] = (255 * values[at]) / range; // clamped by the array
    else {
      const from = 3 * Math.round(128 + 128 * clamp(values[at] / range, -1, 1));
      for (let c = 0; c < 3; c++) to[4 * at + c] = ramp[from + c];
    }
    to[4 * at + 3] = 255;
  }
  pen.putImageData(image, 0, 0);
}

// --- the page -------------------------------------------------------------------------------------------------------

const OWN_SIDE = 64; // pixels of an uploaded picture
const NONE = 1e-12; // missed attention, or a difference as a share of the most there can be, that counts as none
const FLIGHT = 900; // ms that heads take to their taps

export class Playground extends Live {
  constructor(root, host) {
    super(root, { host, id: uniqueId(), sums: new Sums() });
    this.pictures = Object.fromEntries(host.pictures.map((picture) => [picture.name, pictureOf(picture)]));
    this.state = decode(host.state, host.pictures);
    this.build();
    this.renew();
    this.tellOwn(host.state);
    host.listen(() => host.state !== this.saved && this.take(host.state));
    this.watch();
  }

  remove() {
    this.flight = null;
    super.remove();
  }

  get picture() {
    return this.pictures[this.state.image];
  }

  // -- elements

  build() {
    const { host, id } = this;
    const note = (textContent = "") => element("p", { className: "ax-note", textContent });
    const card = (name, title, ...children) => {
      const label = { className: `pg-card pg-card-${name}`, "aria-labelledby": `${id}-${name}` };
      const box = element("section", label, element("h2", { id: `${id}-${name}`, textContent: title }), ...children);
      if (["kernel", "heads", "images", "sharp"].includes(name)) box.style.gridArea = name; // its place at the top
      return box;
    };
    const kernels = [...Object.entries(KERNELS), ["", "your own"]], sizes = SIDES.map((n) => [n, `${n} × ${n}`]);
    const pictures = [...host.pictures.map(({ name, title }) => [name, title]), ["own", "your own …"]];
    const preset = (name) =>
      this.set(name ? { preset: name, kernel: presetKernel(name, this.state.size) } : { preset: null });
    let field, size, image;
    [field, this.preset] = chooser("Kernel", kernels, preset);
    [size, this.size] = chooser("Size", sizes, (n) => this.setSize(Number(n)));
    [image, this.image] = chooser("Picture", pictures, (name) => this.setImage(name, name === "own"));
    this.cells = div("pg-cells");
    this.file = pictureField((file) => this.upload(file));
    this.credit = note();
    this.notice = element("p", { className: "ax-notice", role: "alert", hidden: true });
    const typing = note("Type your own numbers into the cells.");
    const kernelCard = card("kernel", "The kernel", div("ax-row", field, size), this.cells, typing);

    this.plane = pictureCanvas("pg-plane");
    this.dots = div("pg-dots");
    this.about = element("p", { className: "pg-about", "aria-live": "polite" });
    this.toggle = button("", () => this.toggleHead(this.state.chosen));
    const dragging = "Drag a dot to move its head; click it to take it away or bring it back. Arrow keys move it, too.";
    const home = button("Heads, take your taps", () => this.home(), "Every head back on its own cell of the kernel");
    const scatter = button("Scatter", () => this.scatter(), "Heads anywhere");
    const headsCard = card(
      "heads", "The heads, around pixel q", div("pg-stage", this.plane, this.dots), note(dragging),
      div("pg-told", this.about, this.toggle), div("ax-row", home, scatter),
    );

    const [min, high] = ALPHAS.map(Math.log), max = high + 0.01; // the last of whole steps lies beyond, and is cut
    const sharpen = (value) => this.set({ alpha: clamp(Math.exp(value), ...ALPHAS) });
    this.alpha = slider("sharpness α", { min, max, step: 0.01 }, sharpen, () => written(this.state.alpha));
    this.curve = pictureCanvas("pg-curve");
    this.curveText = note();
    this.padding = element("input", { type: "checkbox", onchange: () => this.set({ padding: this.padding.checked }) });
    const ends = div("pg-ends", ...["a blur", "one pixel"].map((textContent) => element("span", { textContent })));
    const zeros = element("label", { className: "pg-check" }, this.padding, " zeros around the picture, for the heads");
    const sharpCard = card(
      "sharp", "How sharp they look", div("pg-alpha", this.alpha.label, this.alpha.output), this.alpha.input, ends,
      this.curve, this.curveText, zeros,
    );

    this.shown = {};
    const figure = (name, title, about) => {
      const label = { "aria-label": `${about}. Arrow keys move the pixel q.`, "aria-describedby": `${id}-sum` };
      const canvas = element("canvas", { tabIndex: 0, role: "application", ...label });
      const mark = element("span", { className: "pg-mark" }), scale = element("span", { className: "ax-note" });
      const window = name === "picture" ? element("span", { className: "pg-mark pg-window" }) : null;
      const caption = element("figcaption", { textContent: title });
      this.shown[name] = { canvas, mark, window, caption, scale };
      this.choosesQuery(canvas, () => [this.picture.height, this.picture.width]);
      return element("figure", {}, caption, div("pg-frame", canvas, mark, window), scale);
    };
    this.apart = element("output", { className: "pg-apart", id: `${id}-apart` });
    const figures = [
      figure("picture", "Picture X", "Picture"), figure("convolved", "Conv2d", "Output of Conv2d"),
      figure("total", "Sum of the heads", "Sum of the heads"), figure("difference", "Their difference", "Difference"),
    ];
    figures[3].lastChild.replaceWith(this.apart);
    const choice = div("ax-row", image, this.file, this.credit);
    const images = card("images", "The pictures", choice, this.notice, div("pg-figures", ...figures));

    this.strip = div("pg-strip");
    this.rows = element("tbody");
    this.sumLine = element("p", { className: "ax-note", id: `${id}-sum`, "aria-live": "polite" });
    const head = element("thead", {
      innerHTML:
        "<tr><td></td><th colspan=3>Conv2d: <i>X</i><sub>q+Δ</sub> · <i>W</i><sub>Δ</sub></th>" +
        "<th colspan=3>Heads: " +
        "Σ<sub>k</sub> <i>P</i><sub>h</sub> <i>X</i><sub>k</sub> · <i>W</i><sup>h</sup></th></tr>",
    });
    this.equation = element("p", { className: "pg-equation" });
    this.words = element("p", { className: "pg-words", "aria-live": "polite" });
    const stripCard = card("strip", "What each head adds", this.strip), region = { role: "region", tabIndex: 0 };
    const table = element("div", { className: "pg-scroll", ...region, "aria-label": "Products" });
    table.append(element("table", {}, head, this.rows));
    const tableCard = card("table", "Pixel q, product by product", this.sumLine, table);

    this.linkText = element("span", { className: "ax-note", role: "status" });
    const again = button("Start again", () => this.startAgain());
    const link = host.link ? button("Copy link", () => this.copyLink(), "This very state, as an address") : null;
    this.root.classList.add("attnconv-playground");
    const lead =
      "<b>Drag a coloured dot</b> and watch the pictures. With every head on its cell of the kernel, the sum of the " +
      "heads <i>is</i> the convolution.";
    this.root.replaceChildren(
      element("h1", { textContent: "A convolution is attention with one head per tap" }),
      element("p", { className: "pg-lead", innerHTML: lead }),
      div("pg-top", kernelCard, headsCard, images, sharpCard),
      div("pg-says", this.equation, this.words),
      div("pg-low", stripCard, tableCard),
      div("ax-row pg-foot", again, link, this.linkText),
    );
    keepKeysAndDrops(this.root, (file) => this.upload(file));
  }

  /** Make what there is one of for every tap or head: cells, dots, tiles, rows. */
  renew() {
    const { state } = this, { size, heads } = state, shifts = tapShifts(size);
    this.cells.style.setProperty("--size", size);
    if (this.cells.childElementCount !== size * size) {
      const names = shifts.map((shift) => `Weight of the tap at shift ${shiftOf(shift)}`);
      this.cells.replaceChildren(...names.map((name, tap) => {
        const input = element("input", { type: "number", step: "any", "aria-label": name, onblur: () => this.fill() });
        input.oninput = () => this.typed(tap, input);
        return input;
      }));
    }
    filled(this.dots, heads.length, (head) => this.makeDot(head));
    filled(this.strip, heads.length, (head) => this.makeTile(head));
    this.later();
  }

  makeDot(head) {
    const dot = element("button", { type: "button", className: "pg-dot" }, element("span", { textContent: head + 1 }));
    const drag = draggable(dot, {
      grip: () => ({ at: this.state.heads[head].centre, cell: this.cell }),
      move: (centre, event) => {
        this.moveHead(head, centre);
        if (event.type === "pointermove") this.now(event.timeStamp);
      },
    });
    for (const name of ["pointerdown", "focus"]) dot.addEventListener(name, () => this.set({ chosen: head }));
    dot.addEventListener("click", (event) => (drag.dragged && event.detail ? null : this.toggleHead(head)));
    dot.addEventListener("keydown", (event) => {
      if (!["Delete", "Backspace"].includes(event.key) || event.ctrlKey || event.metaKey || event.altKey) return;
      this.changeHead(head, { on: false });
      event.preventDefault();
    });
    dot.style.setProperty("--colour", this.colourOf(head));
    dot.style.setProperty("--ink", inkOn(rgb(this.colourOf(head))));
    return dot;
  }

  makeTile(head) {
    const tile = button("", () => this.toggleHead(head));
    tile.className = "pg-tile";
    tile.onfocus = () => this.set({ chosen: head });
    tile.append(element("canvas"), element("span"));
    tile.style.setProperty("--colour", this.colourOf(head));
    return tile;
  }

  colourOf(head) {
    return this.host.colours[head % this.host.colours.length];
  }

  // -- what the reader does

  set(changes) {
    Object.assign(this.state, changes);
    this.later();
  }

  /** Take over a state from text: a link, Python, or the start. */
  take(text) {
    this.flight = null;
    this.state = decode(text, this.host.pictures);
    this.saved = text;
    this.taken = encode(this.state); // not the reader's doing, so not saved: another view may show what this one cannot
    this.renew();
    this.tellOwn(text);
  }

  /** Back to the start. It is the reader's doing: it is saved. */
  startAgain() {
    this.take(this.host.start || "");
    this.taken = null;
  }

  /** A text names a reader's own picture, but cannot hold it. */
  tellOwn(text) {
    const own = new URLSearchParams(text).get("image") === "own";
    this.complain(own ? NOT_HELD : "");
  }

  /** Another size of kernel: a preset's, or the reader's own taps as far as they are in both. */
  setSize(size) {
    const { preset, kernel } = this.state;
    const own = new Map(tapShifts(this.state.size).map((shift, tap) => [`${shift}`, kernel[tap]]));
    this.flight = null;
    Object.assign(this.state, {
      size,
      kernel: preset ? presetKernel(preset, size) : tapShifts(size).map((shift) => own.get(`${shift}`) ?? 0),
      heads: headsOnTaps(size),
      chosen: 0,
    });
    this.renew();
  }

  typed(tap, input) {
    const value = Number(input.value);
    if (input.value === "" || !Number.isFinite(value)) return;
    this.set({
      preset: null,
      kernel: this.state.kernel.map((old, at) => (at === tap ? clamp(value, -LARGEST_WEIGHT, LARGEST_WEIGHT) : old)),
    });
  }

  setImage(name, ask = false) {
    this.complain("");
    if (ask) this.file.click(); // also for another one: until it is there, the former stays
    if (name === "own" && !this.pictures.own) return this.fill();
    const { height, width, query } = {
      ...this.pictures[name],
      ...this.host.pictures.find((picture) => picture.name === name),
    };
    this.set({ image: name, query: query || [height >> 1, width >> 1] });
  }

  /** The reader's own picture: its middle square, in grey. It stays in the browser. */
  async upload(file) {
    try {
      const { data } = await readPicture(file, [OWN_SIDE, OWN_SIDE, 1]);
      this.pictures.own = {
        name: "own",
        height: OWN_SIDE,
        width: OWN_SIDE,
        pixels: Float64Array.from(data, (value) => value / 255),
      };
    } catch {
      return this.complain(`${file.name} is not a picture that this browser reads. PNG, JPEG and WebP are.`);
    }
    this.setImage("own");
  }

  setQuery(query) {
    const sides = [this.picture.height, this.picture.width];
    this.set({ query: query.map((q, i) => clamp(q, 0, sides[i] - 1)) });
  }

  /** Change heads; an unfinished flight ends. */
  setHeads(heads, chosen = this.state.chosen) {
    this.flight = null;
    const renewed = heads.length !== this.state.heads.length;
    Object.assign(this.state, { heads, chosen: Math.min(chosen, heads.length - 1) });
    if (renewed) this.renew();
    this.later();
  }

  changeHead(head, changes) {
    this.setHeads(this.state.heads.map((old, at) => (at === head ? { ...old, ...changes } : old)), head);
  }

  toggleHead(head) {
    this.changeHead(head, { on: !this.state.heads[head].on });
  }

  moveHead(head, centre) {
    const reach = reachOf(this.state.size);
    this.changeHead(head, { centre: centre.map((c) => clamp(c, -reach, reach) + 0) });
  }

  /** Every head to its tap, all on. */
  home() {
    this.fly(headsOnTaps(this.state.size));
  }

  scatter() {
    const { heads, size } = this.state, reach = reachOf(size);
    this.fly(
      heads.map((head) => ({
        ...head,
        centre: head.centre.map(() => Math.round((2 * Math.random() - 1) * reach * 20) / 20),
      })),
    );
  }

  /** Move heads to new centres, to be followed by the eye; at once for readers who want no motion. */
  fly(targets) {
    const from = this.state.heads.map(({ centre }) => centre), start = performance.now();
    if (still() || targets.every(({ centre }, at) => near(centre, from[at]))) return this.setHeads(targets);
    const flight = (this.flight = {});
    const step = (now) => {
      if (this.flight !== flight) return;
      const part = clamp((now - start) / FLIGHT, 0, 1);
      const eased = part * part * (3 - 2 * part);
      this.state.heads = targets.map((head, at) => ({
        ...head,
        centre: head.centre.map((to, i) => (part === 1 ? to : from[at][i] + eased * (to - from[at][i]))),
      }));
      if (part === 1) this.flight = null;
      else requestAnimationFrame(step);
      this.later();
    };
    requestAnimationFrame(step);
  }

  async copyLink() {
    this.saved = encode(this.state);
    this.host.save(this.saved); // the address has it, too
    const lacks = this.state.image === "own" ? " Your own picture is not in it." : "";
    this.linkText.textContent = (await copied(this.host.link(this.saved))) + lacks;
  }

  // -- drawing

  theme() {
    this.ramp = signedRamp(this.colours.dark);
    this.root.classList.toggle("pg-narrow", this.width < 640);
    this.root.classList.toggle("pg-middle", this.width >= 640 && this.width < 1000);
  }

  draw() {
    const { state, picture } = this;
    this.sums.update(state, picture);
    this.scale = scaleOf(state.kernel, this.sums.convolved);
    this.fill();
    this.drawImages();
    this.drawPlane();
    this.drawStrip();
    this.drawTable();
    this.drawCurve();
    this.drawWords();
  }

  /** Bring the controls in line with the state. */
  fill() {
    const { state } = this, most = largest(state.kernel) || 1;
    const values = [
      [this.preset, state.preset || ""],
      [this.size, String(state.size)],
      [this.image, state.image],
    ];
    for (const [control, value] of values) if (control.value !== value) control.value = value;
    this.padding.checked = state.padding;
    this.alpha.set(Math.log(state.alpha));
    [...this.cells.children].forEach((input, tap) => {
      const value = state.kernel[tap], focused = input === input.getRootNode().activeElement;
      if (!(focused && (input.value === "" || Number(input.value) === value))) input.value = +value.toPrecision(3);
      input.style.setProperty("--share", `${Math.round((60 * Math.abs(value)) / most)}%`);
      input.className = value < 0 ? "pg-minus" : "pg-plus";
    });
    const about = this.host.pictures.find(({ name }) => name === state.image);
    this.credit.textContent = about ? about.credit : "Your own picture. It stays in your browser.";
  }

  drawImages() {
    const { shown, sums, scale, ramp, state, picture } = this, { height, width } = picture;
    paint(shown.picture.canvas, picture.pixels, picture, { grey: true, range: 1 }, ramp);
    for (const name of ["convolved", "total"]) paint(shown[name].canvas, sums[name], picture, scale, ramp);
    paint(shown.difference.canvas, sums.difference, picture, { grey: false, range: scale.range }, ramp);
    const bar = scale.grey
      ? `grey: 0 to ${written(scale.range)}`
      : `blue −${written(scale.range)}, red +${written(scale.range)}`;
    shown.convolved.scale.textContent = shown.total.scale.textContent = bar;
    shown.picture.scale.textContent = `${height} × ${width} pixels`;
    const on = state.heads.filter((head) => head.on).length;
    shown.total.caption.textContent = on === 1 ? "One head" : `Sum of ${on} heads`;
    const same = sums.apart <= NONE * bound(state, picture);
    this.apart.textContent = same ? "largest: 0" : `largest: ${written(sums.apart)}`;
    this.apart.title = same ? `${sums.apart.toExponential(1)}, as little as rounding` : String(sums.apart);
    this.root.classList.toggle("pg-same", same);
    const [row, column] = state.query, [before, after] = padsOf(state.size);
    const place = (mark, top, left, tall, wide) =>
      Object.assign(mark.style, {
        top: `${(100 * top) / height}%`,
        left: `${(100 * left) / width}%`,
        height: `${(100 * tall) / height}%`,
        width: `${(100 * wide) / width}%`,
      });
    for (const { mark, window, canvas } of Object.values(shown)) {
      canvas.style.aspectRatio = `${width} / ${height}`;
      place(mark, row, column, 1, 1);
      if (window) place(window, row - before, column - before, before + after + 1, before + after + 1);
    }
  }

  /** The pixels around q, the kernel's cells, and over them the heads. */
  drawPlane() {
    const { state, picture, colours } = this;
    const { size, alpha, heads, chosen } = state;
    const reach = reachOf(size);
    const cells = 2 * reach + 1;
    const side = (this.side = Math.min(this.plane.parentElement.clientWidth, 340) || this.side || 200);
    const cell = (this.cell = side / cells);
    const middle = side / 2;
    const pen = canvasOf(this.plane, side, side), [row, column] = state.query;
    const at = (shift) => middle + shift * cell, [before, after] = state.padding ? padsOf(size) : [0, 0];
    for (let r = -reach; r <= reach; r++)
      for (let c = -reach; c <= reach; c++) {
        const [y, x] = [row + r, column + c], inside = y >= 0 && x >= 0 && y < picture.height && x < picture.width;
        const zero = !inside && Math.min(y, x) >= -before && y < picture.height + after && x < picture.width + after;
        const level = inside ? Math.round(255 * picture.pixels[y * picture.width + x]) : 0;
        pen.fillStyle = inside || zero ? `rgb(${level},${level},${level})` : colours.panel;
        pen.fillRect(at(c) - cell / 2, at(r) - cell / 2, cell + 0.5, cell + 0.5);
        const style = { align: "center", colour: zero ? "#aaa" : colours.faint };
        if (!inside) write(pen, colours, zero ? "0" : "none", at(c), at(r) + 4, style);
      }
    // Where the chosen head's attention goes, in its colour.
    const head = heads[chosen];
    if (head && head.on) {
      const [rows, columns] = [picture.height, picture.width].map((length, axis) => {
        const all = axisProbabilities(alpha, head.centre[axis] + state.query[axis], 1, before, length - 1 + after);
        return (shift) => all[state.query[axis] + shift + before] || 0;
      });
      pen.fillStyle = this.colourOf(chosen);
      for (let r = -reach; r <= reach; r++)
        for (let c = -reach; c <= reach; c++) {
          const p = rows(r) * columns(c);
          if (p < 1e-4) continue;
          pen.globalAlpha = 0.75 * Math.sqrt(p);
          pen.fillRect(at(c) - cell / 2, at(r) - cell / 2, cell, cell);
        }
      pen.globalAlpha = 1;
    }
    // The kernel's cells with their numbers, and q.
    const style = { size: cell > 50 ? 12 : 10, weight: 600, align: "right", colour: "#fff", halo: "rgba(0,0,0,.75)" };
    tapShifts(size).forEach(([r, c], tap) => {
      const box = [at(c) - cell / 2, at(r) - cell / 2, cell, cell];
      frame(pen, box, [["rgba(255,255,255,.9)", 3], ["#222", 1.2]]);
      const value = state.kernel[tap], short = String(+value.toPrecision(2)).replace("-", "−");
      const text = Math.abs(value) < 1 ? short : written(value); // 0.0039, not 0.004; 255, not 260
      write(pen, colours, text, at(c) + cell / 2 - 4, at(r) + cell / 2 - 4, style);
    });
    frame(pen, [middle - cell / 2, middle - cell / 2, cell, cell], [[QUERY, 3]]);
    // Half of a head's attention lies inside its ring.
    const ring = Math.sqrt(Math.log(2) / alpha) * cell;
    heads.forEach(({ centre, on }, index) => {
      if (!on || ring < 6) return;
      pen.beginPath();
      pen.arc(at(centre[1]), at(centre[0]), ring, 0, 7);
      pen.lineWidth = index === chosen ? 3 : 1.5;
      pen.strokeStyle = this.colourOf(index);
      pen.stroke();
    });
    this.plane.setAttribute(
      "aria-label",
      `The ${cells} by ${cells} pixels around q, row ${row}, column ${column}, with the ${size} by ${size} cells of ` +
        "the kernel",
    );

    // Dots; those in one place stand around it.
    const places = new Map();
    heads.forEach(({ centre }, index) => {
      const key = centre.map((c) => c.toFixed(1)).join();
      places.set(key, [...(places.get(key) || []), index]);
    });
    const hit = clamp(cell, 30, 44), look = clamp(0.5 * cell, 18, 28);
    Object.assign(this.dots.style, { width: `${side}px`, height: `${side}px` });
    this.dots.style.setProperty("--hit", `${hit}px`);
    this.dots.style.setProperty("--look", `${look}px`);
    const { kernel } = state, shifts = tapShifts(size);
    [...this.dots.children].forEach((dot, index) => {
      const { centre, on } = heads[index], group = places.get(centre.map((c) => c.toFixed(1)).join());
      const turn = (2 * Math.PI * group.indexOf(index)) / group.length - Math.PI / 2;
      const away = group.length > 1 ? 0.42 * look : 0;
      const [y, x] = centre.map((c, i) => at(c) - hit / 2 + away * (i ? Math.cos(turn) : Math.sin(turn)));
      dot.style.transform = `translate(${x}px, ${y}px)`;
      dot.classList.toggle("pg-off", !on);
      dot.classList.toggle("pg-chosen", index === chosen);
      dot.setAttribute("aria-pressed", String(on));
      const looks = `weight ${written(kernel[index])}, looks at shift ${shiftOf(centre)}`;
      const tap = `its tap is ${shiftOf(shifts[index])}${on ? "" : ", taken away"}`;
      dot.setAttribute("aria-label", `Head ${index + 1}, ${looks}, ${tap}`);
    });
    const { centre, on } = heads[chosen], name = `Head ${chosen + 1}`, tap = shifts[chosen];
    const away = near(centre, tap) ? "" : `, its tap is ${shiftOf(tap)}`;
    const about = `: weight ${written(kernel[chosen])}, looks at ${shiftOf(centre)}${away}`;
    if (this.about.textContent !== name + about) // it is spoken when it changes
      this.about.replaceChildren(element("b", { textContent: name }), about);
    this.toggle.textContent = on ? "Take away" : "Bring back";
  }

  drawStrip() {
    const { state, sums, ramp, picture } = this, range = Math.max(1e-9, largest(state.kernel));
    [...this.strip.children].forEach((tile, head) => {
      const [canvas, label] = tile.children, weight = state.kernel[head], { on } = state.heads[head];
      const added = sums.seen[head].map((value) => (on ? weight * value : 0));
      paint(canvas, added, picture, { grey: false, range }, ramp);
      const text = `${head + 1}: ${on ? `× ${written(weight)}` : "away"}`;
      tell(label, text);
      tile.classList.toggle("pg-off", !on);
      tile.classList.toggle("pg-chosen", head === state.chosen);
      tile.setAttribute("aria-pressed", String(on));
      tile.setAttribute("aria-label", `${text}. What head ${head + 1} adds: its weight times what it sees`);
    });
  }

  /** The output at q, written out: as the sum over taps, and beside it as the sum over heads. */
  drawTable() {
    const { state, sums, picture } = this, { size, kernel, heads, query: [row, column] } = state;
    const at = row * picture.width + column, sides = [picture.height, picture.width];
    const inside = (shift) => shift.every((c, i) => clamp(state.query[i] + c, 0, sides[i] - 1) === state.query[i] + c);
    const pixel = ([r, c]) => (inside([r, c]) ? picture.pixels[at + r * picture.width + c] : 0);
    const sameAs = (same) => (same ? "" : "pg-other");
    const lines = tapShifts(size).map((shift, head) => {
      const { on, centre } = heads[head], weight = kernel[head], sees = sums.seen[head][at], value = pixel(shift);
      const same = on && Math.abs(sees - value) * Math.abs(weight) < 5e-4;
      return [
        ["pg-number", head + 1], ["pg-shift", shiftOf(shift)], ["", `${value.toFixed(3)} · ${written(weight)}`],
        ["", product(value * weight)],
        ["pg-shift", shiftOf(centre, 1)], ["", on ? `${sees.toFixed(3)} · ${written(weight)}` : "away"],
        [sameAs(same), on ? product(sees * weight) : "–"],
      ];
    });
    const [whole, total] = [product(sums.convolved[at]), product(sums.total[at])], sum = ["pg-shift", "sum"];
    const added = [sameAs(Math.abs(sums.difference[at]) < 5e-4), total];
    lines.push([["", ""], sum, ["", ""], ["", whole], sum, ["", ""], added]);
    const rows = filled(this.rows, lines.length, () => element("tr", {}, ...lines[0].map(() => element("td"))));
    lines.forEach((cells, head) => cells.forEach(([className, text], i) => {
      const cell = rows[head].children[i];
      tell(cell, String(text));
      if (cell.className !== className) cell.className = className;
      if (className === "pg-number") cell.style.setProperty("--colour", this.colourOf(head));
    }));
    this.sumLine.textContent = `q = row ${row}, column ${column}. Conv2d: ${whole}; heads: ${total}.`;
  }

  /** The formula over alpha, and on it where we are; and the largest difference in this picture. */
  drawCurve() {
    const { state, colours, sums } = this, tall = 150;
    const wide = clamp(this.curve.parentElement.clientWidth - 26, 200, 360);
    const pen = canvasOf(this.curve, wide, tall);
    const [left, right, top, bottom] = [34, wide - 8, 10, tall - 30], [low, high] = ALPHAS.map(Math.log);
    const x = (alpha) => left + ((Math.log(alpha) - low) / (high - low)) * (right - left);
    const y = (p) => bottom - p * (bottom - top);
    const label = (text, across, down, align = "center") =>
      write(pen, colours, text, across, down, { align, colour: colours.faint });
    pen.strokeStyle = colours.line;
    for (const p of [0, 0.5, 1]) {
      label(`${100 * p}%`, left - 5, y(p) + 4, "right");
      trace(pen, [[left, y(p)], [right, y(p)]]);
    }
    for (const alpha of [0.1, 1, 10]) label(alpha, x(alpha), bottom + 14);
    label("sharpness α", (left + right) / 2, bottom + 27);
    Object.assign(pen, { strokeStyle: colours.accent, lineWidth: 2 });
    const alphas = Array.from({ length: 101 }, (_, i) => Math.exp(low + (i / 100) * (high - low)));
    trace(pen, alphas.map((alpha) => [x(alpha), y(missedMass(alpha))]));
    const missed = missedMass(state.alpha), most = bound(state, this.picture), fair = complete(state) && state.padding;
    pen.strokeStyle = colours.back;
    const dot = (share, radius, colour) => {
      disc(pen, x(state.alpha), y(share), radius, colour);
      pen.stroke();
    };
    dot(missed, 6, QUERY);
    if (fair && most) dot(sums.apart / most, 4, colours.text);
    const line = `Line: the attention that misses its tap, 1 − 1/S(α)², now ${shareOf(missed)}.`;
    const small =
      " Small dot: the largest difference in the picture, as a share of the most that a kernel like this allows. It " +
      "stays below the line.";
    this.curveText.textContent = line + (fair && most ? small : "");
    const falls = `Missed attention over sharpness, falling from 99% to 0. ${this.curveText.textContent}`;
    this.curve.setAttribute("aria-label", falls);
  }

  drawWords() {
    const { state } = this;
    const { html, words, equal } = equation(state);
    if (this.equation.innerHTML !== html && this.wrote !== html) this.equation.innerHTML = this.wrote = html;
    const text = words.join(" ");
    if (this.said !== text) this.words.innerHTML = this.said = text;
    this.root.classList.toggle("pg-equal", equal);
  }

  /** After a rest: keep the state. */
  settle() {
    const text = encode(this.state);
    if (text === this.taken) return;
    this.taken = null;
    this.host.save((this.saved = text));
  }
}

const product = (value) => (Math.abs(value) < 5e-4 ? "0.000" : (value < 0 ? "−" : "") + Math.abs(value).toFixed(3));

// --- the two hosts --------------------------------------------------------------------------------------------------

/** In Jupyter: the state is a trait, which Python may read and set. */
export function widgetHost(model) {
  const host = {
    pictures: model.get("pictures"), colours: model.get("colours"), start: model.get("start"),
    get state() { return model.get("state"); },
    save(text) {
      model.set("state", text);
      model.save_changes();
    },
    listen(told) {
      model.on("change:state", told);
      host.close = () => model.off("change:state", told);
    },
  };
  return host;
}

/** In the offline page: the state is the address, after its #. */
export function pageHost(data, place = window) {
  const address = inAddress(place);
  const host = {
    ...data, state: place.location.hash.slice(1) || data.state,
    save(text) {
      host.state = text;
      address.keep(text);
    },
    listen(told) {
      address.listen((hash) => {
        host.state = hash.slice(1);
        told();
      });
    },
    link: address.link,
  };
  return host;
}

/** Start the offline page. */
export function openPlayground(page) {
  linkBack(page);
  return new Playground(
    page.getElementById("playground"),
    pageHost(JSON.parse(page.getElementById("data").textContent)),
  );
}

export default widgetOf(Playground, widgetHost);
