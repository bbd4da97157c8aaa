// What the explorer and the playground need of a page.

/** An element: tag, properties (those with a dash, and "role", as attributes), children. */
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties))
    if (name.includes("-") || name === "role") node.setAttribute(name, value);
    else node[name] = value;
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** A box of that class. */
export const div = (className, ...children) => element("div", { className }, ...children);

/** A canvas that is read as a picture. */
export const pictureCanvas = (className) => element("canvas", { className, role: "img" });

/** Something, mostly a picture, and below it its caption. */
export const figure = (caption, ...children) =>
  element("figure", { className: "ax-small" }, ...children, element("figcaption", {}, caption));

/** A button with that text. */
export const button = (textContent, onclick, title = "") =>
  element("button", { type: "button", textContent, title, onclick });

/** Say a text in a node. What is the same is not said again, and not spoken. */
export function tell(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** So many children in a box, those that are missing made by their number. */
export function filled(box, count, make) {
  while (box.childElementCount > count) box.lastChild.remove();
  while (box.childElementCount < count) box.append(make(box.childElementCount));
  return [...box.children];
}

/** Make some controls one stop of the keyboard, a toolbar: arrow keys go from one to the next. Returns what is to be
 * called when controls came, went, or were disabled. */
export function roving(box, label, role = "toolbar") {
  box.setAttribute("role", role);
  box.setAttribute("aria-label", label);
  let current = null;
  const refresh = (chosen = current) => {
    const controls = [...box.querySelectorAll("button, input, select")].filter((one) => !one.disabled);
    current = controls.includes(chosen) ? chosen : controls[0];
    for (const one of controls) one.tabIndex = one === current ? 0 : -1;
    return controls;
  };
  box.addEventListener("focusin", ({ target }) => refresh(target));
  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const controls = refresh(event.target);
    event.preventDefault();
    controls[(controls.indexOf(current) + step + controls.length) % controls.length].focus();
  });
  return refresh;
}

/** A labelled list to choose from, [[value, text], ...]: the field, and its select. */
export function chooser(label, options, act) {
  const all = options.map(([value, textContent]) => element("option", { value, textContent }));
  const select = element("select", { onchange: () => act(select.value) }, ...all);
  return [element("label", { className: "ax-field" }, element("span", { textContent: label }), select), select];
}

/** A slider with its name and its value in words: {label, input, output, set}. */
export function slider(name, limits, act, format = String) {
  const id = uniqueId(), output = element("output", { htmlFor: id });
  const input = element("input", { type: "range", id, ...limits, oninput: () => act(Number(input.value)) });
  const set = (value, others = {}) => {
    Object.assign(input, others);
    input.value = value;
    output.textContent = format(value);
    input.setAttribute("aria-valuetext", `${name} ${output.textContent}`);
  };
  return { label: element("label", { htmlFor: id, textContent: name }), input, output, set };
}

/** A hidden field for a picture, which goes to `take`; `click` it. */
export function pictureField(take) {
  const field = element("input", { type: "file", accept: "image/*", hidden: true });
  field.onchange = () => {
    const [file] = field.files;
    field.value = ""; // the same one may be opened again
    if (file) take(file);
  };
  return field;
}

const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** The step (rows, columns) of an arrow key, which then does nothing else; null of other keys. */
function arrowStep(event) {
  const step = ARROWS[event.key];
  if (!step || event.ctrlKey || event.metaKey || event.altKey) return null;
  event.preventDefault();
  return step;
}

/** Let a pointer and arrow keys choose a pixel of a canvas that shows a grid. */
export function choosesPixel(canvas, { grid, query, choose }) {
  const point = (event) => {
    if (event.pointerType === "touch" && !event.buttons) return;
    const box = canvas.getBoundingClientRect(), [height, width] = grid();
    const shares = [(event.clientY - box.top) / box.height, (event.clientX - box.left) / box.width];
    choose([Math.floor(shares[0] * height), Math.floor(shares[1] * width)], event);
  };
  for (const name of ["pointerdown", "pointermove"]) canvas.addEventListener(name, point);
  canvas.addEventListener("keydown", (event) => {
    const step = arrowStep(event);
    if (step) choose(query().map((q, i) => q + step[i]), event);
  });
}

const CLICK = 4; // px: a pointer that moves less has clicked
const SNAP = 0.12; // cells within which what is dragged falls onto a whole place

/** Let a pointer and arrow keys move what is on a node. `grip` says what an event takes hold of: {at: (row, column),
 * cell: pixels a cell}, with `free` where nothing falls onto whole places; or nothing. `move` hears where it goes.
 * Returns what is `held`, and whether it was `dragged` when it was pressed last. */
export function draggable(node, { grip, move }) {
  const state = { held: null, dragged: false };
  node.addEventListener("pointerdown", (event) => {
    const held = event.button ? null : grip(event);
    if (!held) return;
    node.setPointerCapture(event.pointerId);
    Object.assign(state, { held: { ...held, x: event.clientX, y: event.clientY }, dragged: false });
  });
  node.addEventListener("pointermove", (event) => {
    if (!event.buttons) state.held = null; // its end was not seen here, as below a menu
    const { held } = state;
    if (!held) return;
    const away = [event.clientY - held.y, event.clientX - held.x];
    state.dragged ||= Math.hypot(...away) >= CLICK;
    const snapped = (c) => (!held.free && Math.abs(c - Math.round(c)) < SNAP ? Math.round(c) : c);
    if (state.dragged) move(held.at.map((c, i) => snapped(c + away[i] / held.cell)), event, held);
  });
  for (const name of ["pointerup", "pointercancel"]) node.addEventListener(name, () => { state.held = null; });
  node.addEventListener("keydown", (event) => {
    const held = event.key in ARROWS && grip(event), step = held && arrowStep(event);
    const by = event.shiftKey ? 0.05 : 0.25;
    if (step) move(held.at.map((c, i) => Math.round((c + step[i] * by) * 100) / 100), event, held);
  });
  return state;
}

/** Lists, sliders and dots use keys themselves, and JupyterLab would change cells, or delete one: keys stay in `root`.
 * Files that are dropped on it go to `take`. */
export function keepKeysAndDrops(root, take) {
  root.addEventListener("keydown", (event) => event.ctrlKey || event.metaKey || event.stopPropagation());
  root.addEventListener("dragover", (event) => take && event.preventDefault());
  root.addEventListener("drop", (event) => {
    if (!take || !event.dataTransfer.files.length) return;
    event.preventDefault();
    take(event.dataTransfer.files[0]);
  });
}

/** A name for an element. Counting would not do: anywidget loads this code anew for each widget of a page. */
export const uniqueId = () => `attnconv-${Math.random().toString(36).slice(2)}`;

/** Whether the reader has asked for no motion. */
export const still = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;

/** In a page of its own, the address holds the view as text, after its #: what a host needs for that. */
export const inAddress = (place) => ({
  link: (text) => `${place.location.href.split("#")[0]}#${text}`,
  keep(text) {
    try {
      place.history.replaceState(null, "", `#${text}`);
    } catch { /* a file inside another page has no history of its own */ }
  },
  /** Hear of links that are followed here. By then the address may hold the view again, kept after each rest. */
  listen(act) {
    place.addEventListener("hashchange", ({ newURL }) => act(new URL(newURL).hash));
  },
});

/** Put a link on the clipboard; the address has it already. Says what was done. */
export async function copied(link) {
  const done = await navigator.clipboard?.writeText(link).then(() => true, () => false);
  return done ? "Copied." : "The address bar has the link.";
}

/** What a link's reader is told where it was made with a picture that its author opened. */
export const NOT_HELD =
  "This link was made with a picture of its author's own, which a link cannot hold. Here is another one.";

/** Bytes of the text that Python's `as_text` made: base 85, with a comma for "<". */
export function fromText(text) {
  const letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~";
  const digits = new Uint8Array(128), words = Math.ceil(text.length / 5);
  const bytes = new DataView(new ArrayBuffer(4 * words));
  [...letters].forEach((letter, digit) => (digits[letter.charCodeAt(0)] = digit));
  for (let word = 0; word < words; word++) {
    let value = 0;
    for (let at = 5 * word; at < 5 * word + 5; at++)
      value = 85 * value + (at < text.length ? digits[text.charCodeAt(at)] : 84);
    bytes.setUint32(4 * word, value);
  }
  return new Uint8Array(bytes.buffer, 0, text.length - words);
}

/** A file as an image of that size, {shape, values: bytes}: the middle cropped to its proportions, then resized; one
 * channel is brightness. Transparent places are white. */
export async function readPicture(file, [height, width, channels]) {
  const bitmap = await createImageBitmap(file);
  const canvas = document.createElement("canvas");
  const pen = canvas.getContext("2d", { willReadFrequently: true });
  const scale = Math.min(bitmap.width / width, bitmap.height / height), [wide, tall] = [width * scale, height * scale];
  Object.assign(canvas, { width, height });
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, width, height);
  pen.imageSmoothingQuality = "high";
  pen.drawImage(bitmap, (bitmap.width - wide) / 2, (bitmap.height - tall) / 2, wide, tall, 0, 0, width, height);
  bitmap.close();
  const { data } = pen.getImageData(0, 0, width, height), values = new Uint8Array(height * width * channels);
  for (let at = 0; at < height * width; at++) {
    const colour = data.subarray(4 * at, 4 * at + 3);
    if (channels === 1) values[at] = Math.round(0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]);
    else values.set(colour, at * channels);
  }
  return { dtype: "uint8", shape: [height, width, channels], data: values };
}

const BESIDE = { playground: "Playground", explorer: "Explorer" };

/** Links to the site's index, and to the other page that it named, on a page that was opened from there: the index
 * links to `page.html?site=other`. */
export function linkBack(page, place = window.location) {
  const [, name] = /^\?site(?:=(\w*))?$/.exec(place.search) || [null, null];
  if (name === null) return;
  const here = page.querySelector("#playground") ? "playground" : "explorer", link = (href, textContent) =>
    element("a", { href, textContent });
  const other = Object.hasOwn(BESIDE, name ?? "") ? link(`${name}.html?site=${here}`, BESIDE[name]) : null;
  page.querySelector("main").prepend(element("nav", {}, link("index.html", "← First page"), other));
}

const finer = { times: 1 };

/** Pixels of a canvas for each of the page: as many as the screen has, or a multiple of that inside `sharper`. */
export const pixelRatio = () => (window.devicePixelRatio || 1) * finer.times;

/** Do `act`, which draws canvases, with that many times the screen's resolution. */
export function sharper(times, act) {
  finer.times = times;
  try {
    return act();
  } finally {
    finer.times = 1;
  }
}

/** A canvas of that size on the page, as sharp as `pixelRatio` says; returns its cleared context. */
export function canvasOf(canvas, wide, tall) {
  const ratio = pixelRatio();
  Object.assign(canvas, { width: Math.round(wide * ratio), height: Math.round(tall * ratio) });
  Object.assign(canvas.style, { width: `${wide}px`, height: `${tall}px` });
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}

/** Red, green, blue of "#rrggbb". */
export const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** So many colours from the first to the last of some "#rrggbb", packed r, g, b. */
export function gradient(colours, many) {
  const stops = colours.map(rgb), out = new Uint8ClampedArray(3 * many);
  for (let i = 0; i < many; i++) {
    const place = (i / (many - 1)) * (stops.length - 1), low = Math.min(Math.floor(place), stops.length - 2);
    for (let c = 0; c < 3; c++) out[3 * i + c] = stops[low][c] + (place - low) * (stops[low + 1][c] - stops[low][c]);
  }
  return out;
}

/** Lightness 0..1 of a colour [r, g, b]. */
const luminance = (c) => (0.299 * c[0] + 0.587 * c[1] + 0.114 * c[2]) / 255;

/** Black or white, whichever can be read on a colour [r, g, b]: a contrast of 4.5 : 1 or more (WCAG's luminance). */
export function inkOn(colour) {
  const [r, g, b] = colour.map((part) => {
    const value = part / 255;
    return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

/** The colours that the theme gives an element, and whether its back is dark. */
function themeOf(root) {
  const style = getComputedStyle(root), get = (name) => style.getPropertyValue(name).trim();
  // The browser turns any colour of the theme into numbers when a canvas takes it.
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  probe.fillStyle = get("--ax-back");
  probe.fillRect(0, 0, 1, 1);
  const dark = luminance(probe.getImageData(0, 0, 1, 1).data) < 0.5;
  root.classList.toggle("ax-dark", dark);
  const names = ["back", "panel", "text", "faint", "line", "accent"]; // the accent is another on a dark back
  return { dark, font: style.fontFamily, ...Object.fromEntries(names.map((name) => [name, get(`--ax-${name}`)])) };
}

/** What the explorer and the playground have in common: an element that draws itself whenever what it shows, its width
 * or the theme has changed. A subclass has `draw()`, `theme()` for what it makes of new `colours`, and `settle()` for
 * what waits for a rest. */
export class Live {
  constructor(root, properties) {
    Object.assign(this, { root, timings: [], ...properties });
    root.attnconv = this; // for tests, benchmarks and the curious
  }

  theme() {}

  /** Say what went wrong; or, with no text, that nothing did. */
  complain(text) {
    this.notice.textContent = text;
    this.notice.hidden = !text;
  }

  /** Let events on a canvas of a `grid()` choose the query, as far as `may` says. */
  choosesQuery(canvas, grid, may = () => true) {
    const choose = (query, event) => {
      if (!may(event)) return;
      this.setQuery(query);
      if (event.type !== "keydown") this.now(event.timeStamp);
    };
    choosesPixel(canvas, { grid, query: () => this.state.query, choose });
  }

  /** Start to draw, once all that `draw` needs is there. */
  watch() {
    this.resized = new ResizeObserver(([{ contentRect: { width } }]) => {
      if (width === this.width) return;
      this.width = width; // also the first time, when the element has come into the page
      this.recolour();
    });
    this.resized.observe(this.root);
    this.endTheme = onTheme(() => this.recolour());
  }

  recolour() {
    // No colours yet; or hidden, as while JupyterLab changes its theme.
    if (!this.root.isConnected || !this.width) return;
    this.colours = themeOf(this.root);
    this.theme();
    this.later(true);
  }

  /** Draw before the next repaint, once however often it is asked. */
  later(relayout = false) {
    this.relayout ||= relayout;
    this.stale = true;
    this.frame ||= requestAnimationFrame(() => {
      this.frame = this.painted = null;
      this.paint();
    });
  }

  /** Draw in a pointer's event `since`, without waiting for the frame; what else comes before that frame does wait. */
  now(since) {
    if (this.stale) this.since = since;
    if (!this.painted) this.paint();
    this.painted = this.frame;
  }

  paint() {
    if (!this.stale || !this.colours || !this.root.isConnected) return;
    if (!this.root.clientWidth) { // hidden; if for a moment only, as while JupyterLab changes its theme, nobody says so
      if (this.width) this.later();
      return;
    }
    const start = performance.now();
    this.stale = false;
    this.draw();
    const end = performance.now();
    this.timings.push({ script: end - start, event: this.since === undefined ? null : end - this.since });
    if (this.timings.length > 2000) this.timings.splice(0, 1000);
    this.since = undefined;
    clearTimeout(this.rest);
    this.rest = setTimeout(() => this.settle(), 250);
  }

  remove() {
    this.resized.disconnect();
    this.endTheme();
    cancelAnimationFrame(this.frame);
    clearTimeout(this.rest);
    this.root.replaceChildren();
  }
}

/** A kind of view as anywidget takes it. */
export const widgetOf = (View, hostOf) => ({
  render({ model, el }) {
    const host = hostOf(model), root = element("div");
    el.append(root);
    const view = new View(root, host);
    return () => {
      host.close();
      view.remove();
    };
  },
});

/** Call `act` whenever the theme of JupyterLab or of the system changes; returns a function that ends it. */
function onTheme(act) {
  const observer = new MutationObserver(act), media = window.matchMedia("(prefers-color-scheme: dark)");
  observer.observe(document.body, {
    attributes: true,
    attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"],
  });
  media.addEventListener("change", act);
  return () => {
    observer.disconnect();
    media.removeEventListener("change", act);
  };
}
