// The first page: seven steps that are scrolled through, and one picture beside them that follows. Its parts are the
// playground's and the explorer's; the page scripts what they show, and the reader may change it.

import { accuracyOf, meter } from "./accuracy.js";
import { drawHeads } from "./centres.js";
import { QUERY, disc, drawField, imageCanvas, shiftText, trace, write } from "./draw.js";
import { Film } from "./film.js";
import { Model, TOO_OLD, covarianceOf, describe, kernelOf, middleOf, read, readLayer, typed } from "./heads.js";
import { clamp, largest } from "./maths.js";
import { Network } from "./network.js";
import { Live, button, canvasOf, choosesPixel, div, draggable, element, fromText } from "./page.js";
import { keepKeysAndDrops, pictureField, readPicture, slider, still, tell } from "./page.js";
import { ALPHAS, Playground, headsOnTaps } from "./playground.js";

const RANGE = 5.5; // pixels to every side of the query, in the plots of heads
const EDGES = "-2,-1,-1,-1,1,1,1,1,2"; // a kernel without a 0, whose outputs have both signs
const SOFT = 0.15; // the least alpha
const NAMES = { quadratic: "Gaussian", learned: "Learned", learned_content: "Content" };
const SIZES_OF = [3, 7]; // of the kernels that take layers' places
const POINT = 0.01; // of accuracy
const STACKED = "(max-width: 760px) and (orientation: portrait)"; // the words stand below the picture, as in story.css
/** Where a step rests for readers who want no motion: its end, or what it asks the reader to do. */
const RESTS = { soften: 0.3, film: 0 };

const distance = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1]);

/** Where a number is between two others: from 0 to 1. */
const within = (part, from, to) => clamp((part - from) / (to - from), 0, 1);

/** What the playground shows at a part (0..1) of each of its steps. */
const SCENES = {
  slide(part, { height, width }) {
    const at = Math.round(part ** 3 * (height * width - 1)); // slow at first: one can follow the window
    return { query: [Math.floor(at / width), at % width] };
  },
  lift(part, { height, width }) {
    const many = Math.round(9 * within(part, 0.05, 0.85)), heads = headsOnTaps(3);
    heads.forEach((head, i) => { head.on = i < many; });
    return { heads, chosen: Math.max(0, many - 1), query: [Math.round(0.6 * height), Math.round(0.3 * width)] };
  },
  soften(part) {
    const soft = within(part, 0, 0.3) - within(part, 0.35, 0.6);
    return { alpha: ALPHAS[1] * (SOFT / ALPHAS[1]) ** soft, padding: part < 0.7 || part > 0.92, chosen: 0 };
  },
  own: () => ({}),
};

export class Story extends Live {
  constructor(root, data, sections) {
    super(root, { data, sections, name: "", part: 0, guess: null, size: 3, at: 0 });
    const { quadratic, learned_content: content } = data.sides;
    this.play = new Playground(element("div"), { ...data, state: `kernel=${EDGES}`, save() {}, listen() {} });
    if (quadratic) this.model = new Model(quadratic);
    if (content) {
      this.network = new Network(content, data);
      this.layer = content.heads.length - 1; // its heads are compared
      const alike = ([, { grid, heads }]) => String(grid) === String(content.grid) && heads.length > this.layer;
      const sides = Object.entries(data.sides).filter(alike);
      this.kinds = Object.fromEntries(sides.map(([kind, side]) => [kind, new Model(side)]));
      this.kinds.learned_content = this.network.heads;
      this.grid = content.grid;
      this.query = this.grid.map((n) => n >> 1);
      this.images = data.images.map((image) => ({ ...image, values: typed(image) }));
    }
    this.build();
    this.watch();
    addEventListener("scroll", () => this.follow(), { passive: true });
    this.follow();
  }

  build() {
    const { root, model, sections } = this;
    const links = sections.map((section, i) => {
      const title = section.querySelector("h2").textContent;
      return element("a", { href: `#${section.id}`, textContent: i + 1, "aria-label": `${i + 1}. ${title}` });
    });
    this.rail = element("nav", { "aria-label": "Steps" }, ...links);
    this.file = pictureField((file) => this.open(file));
    this.said = element("p", { className: "st-said", role: "status" });
    const choose = button("Your picture …", () => this.file.click());
    root.classList.add("attnconv-story");
    root.replaceChildren(
      div("st-rail", this.rail, div("st-own", choose, this.file)), this.play.root,
      ...(model ? [this.buildLayers()] : []), ...(this.kinds ? [this.buildKinds()] : []), this.said,
    );
    keepKeysAndDrops(root, (file) => this.open(file));
  }

  // -- the layers: the film, the reader's guess, and the swaps

  buildLayers() {
    const { model } = this;
    this.plots = model.heads.map((_, layer) => {
      const canvas = element("canvas", { role: "img" });
      const swap = button("convolution", () => this.swap(layer));
      swap.setAttribute("role", "switch");
      swap.setAttribute("aria-label", `Layer ${layer + 1} as a convolution`);
      const caption = element("figcaption", {}, `Layer ${layer + 1}`, swap);
      return { canvas, swap, box: element("figure", {}, div("st-plot", canvas), caption) };
    });
    this.buildGuess();
    const { path: { epochs } } = model;
    this.film = new Film({ at: () => this.at, last: () => epochs - 1, show: (epoch) => this.toEpoch(epoch) });
    this.epoch = slider("Epoch", { min: 0, max: epochs - 1 }, (epoch) => this.scrub(epoch));
    this.curve = element("canvas", { className: "st-curve", role: "img" });
    const fitting = SIZES_OF.filter((size) => size <= Math.min(model.height, model.width));
    this.sizes = fitting.map((size) => button(`${size} × ${size}`, () => this.resize(size)));
    this.meter = meter();
    return div(
      "st-layers", div("st-plots", ...this.plots.map(({ box }) => box)),
      div("st-film", this.film.button, this.epoch.label, this.epoch.input, this.curve),
      div("st-swap", ...this.sizes, this.meter.root),
    );
  }

  /** The reader's guess is of a head that ends on a tap, and comes from farthest away. */
  buildGuess() {
    const { model } = this, read = model.heads.map((_, layer) => readLayer(model, layer));
    const layer = read.reduce((best, { covered }, one) => (covered > read[best].covered ? one : best), 0);
    const way = read[layer].heads.map(({ kind }, head) => {
      const path = model.track(layer, head);
      return kind === "tap" ? distance(path[0], path.at(-1)) : -1;
    });
    if (!way.length) return;
    const head = way.indexOf(Math.max(...way)), start = model.track(layer, head)[0], dot = button("?");
    dot.className = "st-guess";
    this.guess = { layer, head, start, centre: start, dot };
    const move = (centre) => {
      this.guess.centre = centre.map((c) => clamp(c, -RANGE, RANGE));
      this.later();
    };
    draggable(dot, { grip: () => ({ at: this.guess.centre, cell: this.side / (2 * RANGE) }), move });
    dot.style.borderColor = this.play.colourOf(head);
    this.plots[layer].canvas.after(dot);
  }

  toEpoch(epoch) {
    this.at = epoch;
    this.later();
  }

  /** The reader chose an epoch: a film that plays is over. */
  scrub(epoch) {
    this.film.stop();
    this.toEpoch(epoch);
  }

  swap(layer) {
    const { [layer]: there, ...others } = this.model.edits;
    this.model.edits = there ? others : { ...others, [layer]: { kernel: this.size } };
    this.later();
  }

  resize(size) {
    this.size = size;
    const places = Object.keys(this.model.edits);
    this.model.edits = Object.fromEntries(places.map((layer) => [layer, { kernel: size }]));
    this.later();
  }

  drawLayers() {
    const { model, colours, guess, name } = this, last = model.path.epochs - 1, film = name === "film";
    model.epoch = film && this.at < last ? this.at : null;
    this.side = this.plots[0].box.clientWidth;
    this.plots.forEach(({ canvas, swap }, layer) => {
      const pen = canvasOf(canvas, this.side, this.side), size = film ? null : model.kernelAt(layer);
      const shapes = Array.from({ length: model.heads[layer] }, (_, head) => {
        const { centre, precision } = model.gaussian(layer, head);
        return { centre, covariance: covarianceOf(precision), faint: Boolean(size) };
      });
      const chosen = film && guess?.layer === layer ? guess.head : -1, first = -((size ?? 0) >> 1);
      const plot = { x: 0, y: 0, side: this.side, range: RANGE }, colourOf = (one) => this.play.colourOf(one);
      const ground = () => this.drawSeen(pen, layer, size);
      drawHeads(pen, plot, shapes, { colours, colourOf, chosen, kernel: size ?? 0, first: [first, first], ground });
      swap.setAttribute("aria-checked", String(Boolean(size)));
      const looks = shapes.map(({ centre }) => `(${centre.map((c) => c.toFixed(1))})`).join(" ");
      canvas.setAttribute("aria-label", `Layer ${layer + 1}: its heads look at shifts ${looks}`);
    });
    if (film) this.drawFilm(last);
    else this.drawSwap();
  }

  /** The picture around its middle, as clear as a layer looks at it: by all attention of its heads, or, as a
   * convolution, by the norm of each tap. */
  drawSeen(pen, layer, size) {
    const { model, side, play: { picture } } = this, cell = side / (2 * RANGE), middle = middleOf(model);
    const mapOf = (_, head) => model.probabilities(layer, head, middle, new Float32Array(model.pixels));
    const maps = Array.from({ length: model.heads[layer] }, mapOf), reach = (size ?? 2 * RANGE) >> 1;
    const norms = size && kernelOf(model, layer, maps, size).norms, most = norms && Math.max(...norms);
    if (this.grey?.picture !== picture) {
      const { height, width, pixels } = picture, values = pixels.map((value) => 255 * value);
      this.grey = { picture, canvas: imageCanvas({ shape: [height, width, 1], values }) };
    }
    for (let row = -reach; row <= reach; row++)
      for (let column = -reach; column <= reach; column++) {
        const [r, c] = [middle[0] + row, middle[1] + column], at = r * model.width + c;
        const seen = Math.sqrt(maps.reduce((sum, map) => sum + map[at], 0));
        pen.globalAlpha = size ? norms[(row + reach) * size + column + reach] / most : Math.min(1, seen);
        const [wide, tall] = [picture.width / model.width, picture.height / model.height];
        const to = [column, row].map((shift) => side / 2 + (shift - 0.5) * cell);
        pen.drawImage(this.grey.canvas, c * wide, r * tall, wide, tall, ...to, cell + 0.5, cell + 0.5);
      }
    pen.globalAlpha = 1;
  }

  drawFilm(last) {
    const { model, guess, colours } = this, { path } = model, epoch = Math.round(this.at);
    this.epoch.set(epoch);
    const { accuracy } = path, percents = (value) => `${(100 * value).toFixed(1)}%`;
    const wide = Math.max(120, 0.5 * this.curve.parentElement.clientWidth), tall = 64;
    const pen = canvasOf(this.curve, wide, tall);
    const [least, most] = [Math.min(...accuracy), Math.max(...accuracy)], now = accuracy[epoch - 1];
    const lost = (n) => (most - accuracy[n - 1]) / (most - least || 1);
    const at = (n) => [8 + (n / last) * (wide - 16), 24 + (tall - 32) * lost(n)];
    Object.assign(pen, { strokeStyle: colours.accent, lineWidth: 2 });
    trace(pen, accuracy.map((_, i) => at(i + 1)));
    if (now !== undefined) {
      disc(pen, ...at(epoch), 5, QUERY);
      const [x, y] = at(epoch);
      write(pen, colours, percents(now), clamp(x, 20, wide - 20), y - 10, { size: 12, align: "center" });
    }
    this.curve.setAttribute("aria-label", `Accuracy by epoch, at last ${percents(accuracy.at(-1))}`);
    const when = epoch ? `After epoch ${epoch}: ${percents(now)} right.` : "Before training.";
    this.tell(guess ? `${when} ${this.guessed(epoch, last)}` : when);
  }

  /** How good the guess was, once the training is over; and put its dot where it is. */
  guessed(epoch, last) {
    const { layer, head, centre, start, dot } = this.guess, cell = this.side / (2 * RANGE);
    dot.style.translate = `${centre[1] * cell}px ${centre[0] * cell}px`;
    dot.setAttribute("aria-label", `Your guess, shift ${shiftText(centre)}; arrow keys move it`);
    const end = this.model.track(layer, head).at(-1), off = distance(centre, end);
    if (epoch && epoch < last) return "";
    if (!epoch) return `Drag the “?” of head ${head + 1}, layer ${layer + 1}.`;
    return `Your guess is ${off.toFixed(1)} pixels off${centre === start ? ": you left it where it began" : ""}.`;
  }

  drawSwap() {
    const { model, size } = this, found = accuracyOf(model), layers = Object.keys(model.edits).length;
    this.sizes.forEach((one, i) => one.setAttribute("aria-pressed", String(SIZES_OF[i] === size)));
    this.meter.set(found.now, found.whole);
    const ones = (choice) => Number(choice).toString(2).replaceAll("0", "").length;
    const counted = Object.entries(model.counted[size] ?? {}), all = counted.length === 2 ** model.heads.length;
    const cheap = counted.filter(([, [now, whole, images]]) => whole - now < POINT * images);
    const solved = all && layers && found.now !== null && found.whole - found.now < POINT &&
      cheap.every(([choice]) => ones(choice) <= layers);
    const sum = solved ? " No larger set costs less than one point." : "";
    this.tell(`${found.text}.${sum}`);
  }

  // -- three kinds of heads

  buildKinds() {
    const picture = element("canvas", { tabIndex: 0, role: "application", className: "st-image" });
    picture.setAttribute("aria-label", "Image. Arrow keys move the query pixel.");
    const choose = (query) => this.ask(query);
    choosesPixel(picture, { grid: () => this.grid, query: () => this.query, choose });
    this.rows = Object.entries(this.kinds).map(([kind, { heads }]) => {
      const tiles = Array.from({ length: heads[this.layer] }, () => element("canvas", { "aria-hidden": "true" }));
      const moved = element("span", { role: "status" }), name = element("b", { textContent: NAMES[kind] });
      return { kind, tiles, moved, box: div("st-row", name, moved, ...tiles) };
    });
    this.picture = picture;
    const next = button("Another image", () => this.see((this.image + 1) % this.images.length));
    this.see(0);
    return div("st-kinds", div("st-query", picture, next), ...this.rows.map(({ box }) => box));
  }

  ask(query) {
    this.query = query.map((q, i) => clamp(q, 0, this.grid[i] - 1));
    this.before = null;
    this.later();
  }

  /** Show an image to the heads; what they look at before it is kept, to say how far they moved. */
  see(image) {
    this.before = this.looks ?? null;
    this.image = image;
    const { shape: [height, width, channels], values } = this.images[image];
    this.network.setImage({ height, width, channels, values });
    this.network.allScores({}).forEach((scores, layer) => this.network.heads.setScores(layer, scores));
    this.later();
  }

  drawKinds() {
    const { kinds, query, picture } = this, [height, width] = this.grid, looks = {};
    const longer = Math.max(height, width);
    const framed = (pen, side, line) => {
      const cell = side / longer;
      Object.assign(pen, { strokeStyle: QUERY, lineWidth: line });
      pen.strokeRect(query[1] * cell, query[0] * cell, cell, cell);
    };
    const side = Math.min(220, 0.2 * innerHeight), sides = [width, height].map((n) => (n / longer) * side);
    const pen = canvasOf(picture, ...sides);
    pen.drawImage(imageCanvas(this.images[this.image]), 0, 0, ...sides);
    framed(pen, side, 3);
    for (const { kind, box, moved, tiles } of this.rows) {
      const model = kinds[kind], tile = Math.floor(box.clientWidth / tiles.length) - 3;
      const mapOf = (head) => model.probabilities(this.layer, head, query, new Float32Array(model.pixels));
      const maps = tiles.map((_, head) => mapOf(head));
      const seen = (p) => Math.cbrt(p), most = seen(Math.max(...maps.map(largest))); // faint heads are seen, too
      tiles.forEach((canvas, head) => {
        drawField(canvas, maps[head].map(seen), this.grid, tile, [0, most]);
        framed(canvas.getContext("2d"), tile, 1.5);
      });
      looks[kind] = maps.map((map) => describe(map, height, width, query).centre);
      const ways = this.before?.[kind].map((a, head) => distance(a, looks[kind][head]));
      moved.textContent = ways ? `moved ${(ways.reduce((a, b) => a + b) / ways.length).toFixed(1)} pixels` : "";
    }
    this.looks = looks;
    this.tell(`Heads of layer ${this.layer + 1} of each. Move the framed pixel, or change the image.`);
  }

  // -- the reader's own picture

  async open(file) {
    await this.play.upload(file);
    const own = this.images && (await readPicture(file, this.images[0].shape).catch(() => null));
    if (own) {
      this.images = [...this.images.filter(({ mine }) => !mine), { ...own, values: own.data, mine: true }];
      this.see(this.images.length - 1);
    }
    this.tell(this.play.notice.textContent || `${file.name} takes the place of our picture now.`);
  }

  // -- scrolling

  tell(text) {
    tell(this.said, text);
  }

  /** Which step the reader is at, and how far: where a line through the window crosses it. */
  follow() {
    const line = innerHeight * (matchMedia(STACKED).matches ? 0.8 : 0.5);
    const at = Math.max(0, this.sections.findLastIndex((section) => section.getBoundingClientRect().top <= line));
    const { top, height } = this.sections[at].getBoundingClientRect(), { id } = this.sections[at];
    const part = still() ? (RESTS[id] ?? 1) : within((line - top) / height, 0.2, 0.85);
    if (id === this.name && part === this.part) return;
    const came = id !== this.name;
    Object.assign(this, { name: id, part });
    this.root.dataset.step = id;
    [...this.rail.children].forEach((link, i) => link.toggleAttribute("aria-current", i === at));
    if (came) this.tell("");
    this.script(came);
    this.later();
  }

  /** Set what the step shows by itself. */
  script(came) {
    const { play, name, part } = this, scene = SCENES[name];
    if (name === "film" && (came || !still())) this.scrub((this.model.path.epochs - 1) * within(part, 0.25, 0.9));
    if (!scene) return;
    const usual = { alpha: ALPHAS[1], padding: true, heads: headsOnTaps(3) };
    const { heads, chosen = play.state.chosen, ...state } = { ...usual, ...scene(part, play.picture) };
    play.set(state);
    play.setHeads(heads, chosen);
    const { height, width } = play.picture, [row, column] = play.state.query;
    const [y, below, x] = [row / height, (row + 1) / height, (column + 1) / width].map((share) => `${100 * share}%`);
    const seen = `polygon(0 0, 100% 0, 100% ${y}, ${x} ${y}, ${x} ${below}, 0 ${below})`;
    play.shown.convolved.canvas.style.clipPath = name === "slide" && !still() ? seen : "";
  }

  draw() {
    const { name } = this;
    if (name === "film" || name === "swap") this.drawLayers();
    if (name === "kinds") this.drawKinds();
    if (name in SCENES && !this.play.flight) this.play.later();
  }

  settle() {}
}

/** Start the page. In a browser that is too old for it there are the words alone. */
export async function openStory(page) {
  if (!globalThis.DecompressionStream) return page.querySelector(".st-head").append(TOO_OLD);
  const root = page.getElementById("story"), data = await read(fromText(page.getElementById("data").textContent));
  page.body.classList.add("st-live"); // the steps become longer: what the address names is elsewhere
  page.getElementById(window.location.hash.slice(1))?.scrollIntoView();
  return new Story(root, data, [...page.querySelectorAll(".st-step")]);
}
