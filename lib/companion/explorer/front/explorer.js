// The head explorer's front end, shared by the Jupyter widget (default export, for anywidget) and the exported page
// (`openExplorer`). No framework, no build step, no network.
//
// One `Explorer` per element. A host (hosts.js) holds the data, takes messages, and tells what became of them.
// Arithmetic without a browser is in heads.js and maths.js.

import { QUERY, frame, imageCanvas, percent, shiftText } from "./draw.js";
import { Accuracy } from "./accuracy.js";
import { Model, TOO_OLD, read, readLayer, typed } from "./heads.js";
import { carryOn, pageHost, widgetHost, workerOf } from "./hosts.js";
import { clamp } from "./maths.js";
import { Film } from "./film.js";
import { FirstScreen } from "./first.js";
import { kindText } from "./layer.js";
import { Live, button, canvasOf, chooser, copied, div, element, filled, fromText } from "./page.js";
import { keepKeysAndDrops, linkBack, pictureField, pixelRatio, readPicture } from "./page.js";
import { IMAGE_SIDE, Panel, WORD } from "./panel.js";
import { pictureOf } from "./save.js";
import { Tips } from "./tips.js";
import { Tour } from "./tour.js";
import { CONTROLS, GLOSSARY, PAPER } from "./words.js";

const QUIET = ["examine"]; // asked while the reader rests: notices stay
const LARGE = 248; // px, of the image beside one layer
const PATIENCE = 20000; // ms after which a silent worker or Python is mentioned

export class Explorer extends Live {
  constructor(root, host) {
    const serial = Math.floor(Math.random() * 2 ** 40); // of questions: other numbers than another view's of the widget
    super(root, { host, serial, pending: new Map(), waiting: null, past: [], future: [], lit: -1 });
    Object.assign(this, { serialOfImage: 0, seen: null });
    const [height, width] = host.side.grid;
    this.state = {
      query: [height >> 1, width >> 1],
      locked: false,
      layer: null,
      head: 0,
      all: false, // layers at once
      view: "maps",
      size: null, // of the kernel
      whole: false,
      part: "full",
      epoch: null, // null: the trained model
      edits: {},
      ...(host.state || {}),
    };
    this.film = new Film({
      at: () => this.model.epoch ?? this.model.path.epochs - 1,
      last: () => this.model.path.epochs - 1,
      show: (epoch) => this.setEpoch(epoch),
    });
    this.build();
    this.load();
    host.listen((what, value) => this.told(what, value));
    this.askPrediction();
    this.watch();
  }

  remove() {
    for (const timer of this.pending.values()) clearTimeout(timer);
    this.film.stop();
    super.remove();
  }

  // -- elements

  build() {
    const { host } = this;
    const choose = (label, options, act) => {
      const [field, select] = chooser(label, options, act);
      field.dataset.tip = CONTROLS[label] ?? "";
      return [field, select];
    };
    const runs = host.choices.runs.map((run) => [run.name, run.title]);
    const own = runs.length ? runs : [["model", "model"]], parts = ["full", "position", "content"];
    [this.runField, this.run] = choose("Model", own, (name) => this.ask({ kind: "run", name }));
    const views = [["maps", "maps"], ["centres", "centres"]];
    [this.viewField, this.view] = choose("Show", views, (view) => this.set({ view }, true));
    const scores = parts.map((part) => [part, part === "full" ? part : `${part} only`]);
    [this.partField, this.part] = choose("Score", scores, (part) => this.set({ part }));
    [this.layerField, this.layer] = choose("Layer", [], (value) => this.setLayer(Number(value)));
    [this.headField, this.head] = choose("Head", [], (value) => this.set({ head: Number(value) }));
    const classes = [["", "any"], ...host.choices.classes.map((name, c) => [c, name])];
    [this.classField, this.classes] = choose("Class", classes, () => this.newImage());
    this.classField.hidden = host.images.every(({ label }) => label === null);
    this.file = pictureField((file) => this.upload(file));
    this.first = new FirstScreen(this);
    this.accuracy = new Accuracy(this);
    this.tour = new Tour(this);
    this.notice = element("div", { className: "ax-notice", role: "alert", hidden: true });
    this.spoken = element("div", { className: "ax-spoken", role: "status", "aria-live": "polite" });
    this.linkText = element("p", { className: "ax-note", role: "status" });
    this.hint = element("p", { className: "ax-hint" });
    this.image = element("canvas", {
      className: "ax-image", tabIndex: 0, role: "application", "aria-roledescription": "image with a query pixel",
    });
    this.caption = element("p", { className: "ax-caption" });
    this.lost = element("p", { className: "ax-notice", role: "alert" }); // why it is not the image of a link
    this.lock = element("p", { className: "ax-lock" });
    this.picture = document.createElement("canvas");
    this.panel = new Panel(this);
    this.lists = div("ax-row", this.layerField, this.headField);
    this.shown = div("ax-view", this.image, div("ax-words", this.lock, this.caption, this.lost));
    const random = button("Random image", () => this.newImage(), "Another image of this class");
    const upload = button("Your image …", () => this.file.click(), "Any image file; it is cropped and resized");
    const save = button("Save PNG", () => this.savePng(), "This view as a picture");
    const link = host.link && button("Copy link", () => this.copyLink(), "This view as a link to this page");
    const file = "This explorer as one file that works without Python";
    const exported = host.live ? button("Export HTML", () => this.exportPage(), file) : null;
    this.tools = element(
      "aside", { className: "ax-tools" }, div("ax-row", this.classField, random), div("ax-row", upload, this.file),
      this.lists, div("ax-row", save, link, exported), this.linkText, this.notice,
    );
    this.glossary = glossary();
    this.root.classList.add("attnconv-explorer");
    this.root.replaceChildren(
      this.tour.root, this.first.root, div("ax-main", this.shown, this.panel.root, this.tools), this.hint,
      this.glossary, this.spoken, div("ax-foot", this.accuracy.root, this.first.says),
    );
    this.tips = new Tips(this.root);
    this.root.append(this.tips.box);

    const { image } = this;
    image.addEventListener("pointerdown", () => { this.pressed = [...this.state.query, this.state.locked]; });
    image.addEventListener("click", (event) => this.click(event));
    image.addEventListener("keydown", (event) => this.lockBy(event));
    const grid = () => this.model.grid;
    this.choosesQuery(image, grid, ({ type, buttons }) => type === "keydown" || buttons > 0 || !this.state.locked);
    this.choosesQuery(this.panel.grid, grid, ({ type }) => type === "keydown");
    keepKeysAndDrops(this.root, (file) => this.upload(file));
  }

  // -- data

  /** Begin with a model, or with what a link or Python chose. */
  load() {
    this.film.stop();
    const { host, state, panel } = this, model = (this.model = panel.model = new Model(host.side));
    const last = model.path ? model.path.epochs - 1 : 0;
    state.layer = Math.min(state.layer ?? this.bestKernel(), model.heads.length - 1);
    state.head = clamp(state.head, 0, Math.max(0, model.heads[state.layer] - 1));
    state.query = state.query.map((q, i) => clamp(q, 0, model.grid[i] - 1));
    model.epoch = state.epoch = state.epoch !== null && state.epoch < last ? state.epoch : null; // another has fewer
    model.edits = state.edits;
    panel.maps = null;
    panel.reads = new Map();
    panel.epochRow.hidden = !model.path;
    this.partField.hidden = !model.content;
    if (!model.content) state.part = "full";
    this.runField.hidden = !host.live;
    this.takeImage();
    this.later(true);
  }

  /** How many heads the list offers, those of the chosen layer: one where it has none, as a list is never empty. */
  offered() {
    return Math.max(1, this.model.heads[this.state.layer]);
  }

  /** The layer that is best a kernel: as a 3 × 3 convolution it costs least, as far as that was counted; else most of
   * its taps have a head. */
  bestKernel() {
    const { model } = this, costs = model.heads.map((_, layer) => model.lostAlone(layer));
    if (!costs.includes(null)) return costs.indexOf(Math.min(...costs));
    const taps = (layer) => (model.content ? 0 : readLayer(model, layer).covered);
    const covered = model.heads.map((heads, layer) => (heads ? taps(layer) : -1));
    return covered.indexOf(Math.max(...covered));
  }

  takeImage() {
    const { image, before, edited } = this.host;
    imageCanvas({ shape: image.pixels.shape, values: typed(image.pixels) }, this.picture);
    this.serialOfImage++;
    this.caption.textContent = image.title;
    this.lost.textContent = this.host.lost || "";
    this.lost.hidden = !this.host.lost;
    edited?.scores?.forEach((scores, layer) => this.model.setScores(layer, scores));
    this.panel.drawPrediction(before, edited?.heads.length ? edited.probabilities : null, image.label);
    this.later(true);
  }

  /** The host says that something changed, or that Python answered. */
  told(what, value) {
    if (what === "done") {
      const { slow } = this;
      if (slow && slow.id === value && this.notice.textContent === slow.text) this.complain(""); // it came after all
      clearTimeout(this.pending.get(value));
      this.pending.delete(value);
      this.root.classList.toggle("ax-busy", this.pending.size > 0);
      if (!this.pending.size && this.waiting) {
        const next = this.waiting;
        this.waiting = null; // first: the exported page answers at once
        next();
      }
      if (this.rested && !this.pending.size) this.look();
    } else if (what === "notice") {
      this.complain(value);
      this.later(true); // the lists say again what is shown
    } else if (what === "examined") {
      if (value.key === this.lookedFor) this.seen = value; // not of what was asked before
      this.later();
    } else if (what === "file") {
      if (value.id === this.exporting) this.download(new Blob([value.content], { type: value.type }), value.name);
    } else if (what === "state") this.takeState();
    else {
      this.takeImage();
      if (what === "image") this.askPrediction();
    }
  }

  /** Python set the view, or another link was followed. */
  takeState() {
    const { state, host } = this, { edits } = state;
    this.film.stop(); // before: it writes its epoch down
    Object.assign(state, structuredClone(host.state));
    const changed = JSON.stringify(state.edits) !== JSON.stringify(edits);
    if (changed) Object.assign(this, { past: [...this.past, edits].slice(-100), future: [], lately: null });
    this.load();
    this.askPrediction();
  }

  ask(message, buffers = []) {
    const id = ++this.serial;
    if (!QUIET.includes(message.kind)) this.complain("");
    this.pending.set(
      id,
      setTimeout(() => {
        this.pending.delete(id);
        this.root.classList.toggle("ax-busy", this.pending.size > 0);
        const text = message.kind in this.host.actions
          ? "This takes long: the model computes in your browser."
          : "Python does not answer. For another model, or a file, run the cell again.";
        this.slow = { id, text };
        this.complain(text);
      }, PATIENCE),
    );
    this.root.classList.add("ax-busy");
    this.host.send({ ...message, id }, buffers);
    return id;
  }

  // -- what the reader does

  set(changes, relayout = false) {
    this.rested = false;
    Object.assign(this.state, changes);
    this.later(relayout);
  }

  /** Another layer; the head keeps its number where there is one. */
  setLayer(layer) {
    this.set({ layer, head: Math.min(this.state.head, Math.max(0, this.model.heads[layer] - 1)) });
  }

  setQuery(query) {
    const next = query.map((q, i) => clamp(q, 0, this.model.grid[i] - 1));
    if (String(next) !== String(this.state.query)) this.set({ query: next });
  }

  /** A click locks the query there; on the locked pixel it frees it again. */
  click() {
    const [row, column, locked] = this.pressed || [], { query } = this.state;
    this.set({ locked: !(locked && row === query[0] && column === query[1]) });
  }

  lockBy(event) {
    const locked = { Enter: !this.state.locked, " ": !this.state.locked, Escape: false }[event.key];
    if (locked === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    this.set({ locked });
    event.preventDefault();
  }

  pickHead(event) {
    const { layer, head, badge } = this.panel.under(event);
    if (badge) this.tips.tell(...this.panel.meaning(layer, head, badge));
    if (head !== undefined) this.set({ layer, head });
    else if (layer !== undefined) this.setLayer(layer);
  }

  /** What lies under the pointer in the grid, in words. */
  inspect(event) {
    const { panel, model, state: { layer: chosen, query } } = this;
    const { layer, head, key, badge } = event ? panel.under(event) : {};
    this.tips.hide();
    if (badge) this.tips.tell(...panel.meaning(layer, head, badge));
    this.light(head === undefined || layer !== chosen ? -1 : head);
    if (head === undefined) return this.say("");
    const kind = model.film ? "" : ` (${kindText(panel.read(layer).heads[head])[0]})`;
    const name = `Layer ${layer + 1}, head ${head + 1}${kind}`;
    if (!key) return this.say(`${name}: centre ${shiftText(panel.shape(layer, head).centre)}`);
    const value = panel.maps[layer][head][key[0] * model.width + key[1]].toPrecision(3);
    this.say(`${name}, shift ${shiftText(key.map((k, i) => k - query[i]), 0)}: probability ${value}`);
  }

  say(text) {
    this.hint.textContent =
      text ||
      "Move over the image to choose the query pixel, click to hold it; arrow keys move it by one. Click a head to " +
        "see it large.";
  }

  /** Change the chosen head; the map follows at once, the prediction as soon as the worker has it. */
  edit(change) {
    const { state } = this, model = this.model, key = `${state.layer}.${state.head}`;
    if (!(state.head < model.heads[state.layer])) return; // a layer without heads
    const now = model.encoding === "quadratic" ? model.gaussian(state.layer, state.head) : {};
    const edit = { ...state.edits[key] };
    change(edit, now);
    this.remember(key);
    if (!edit.off) delete edit.off;
    const edits = { ...state.edits, [key]: edit };
    if (!Object.keys(edit).length) delete edits[key];
    this.setEdits(edits);
  }

  /** Put the convolution of that size in a layer's place; null: its attention again. */
  setKernel(size, layer = this.state.layer) {
    this.remember(null);
    const { [layer]: _, ...others } = this.state.edits;
    this.setEdits(size ? { ...others, [layer]: { kernel: size } } : others);
  }

  /** Give all convolutions in layers' places that size; whether there is one. */
  resizeKernels(size) {
    const edits = Object.entries(this.state.edits);
    if (!edits.some(([, { kernel }]) => kernel)) return false;
    this.remember(null);
    this.setEdits(Object.fromEntries(edits.map(([place, edit]) => [place, edit.kernel ? { kernel: size } : edit])));
    return true;
  }

  /** Keep the changed heads as they are now for `undo`; what a slider does at a stretch is one step. */
  remember(key) {
    const time = performance.now(), { key: before, time: then } = this.lately || {};
    const { held } = this.panel.card.drag; // a drag is one step, however long it rests
    if (key === null || key !== before || (!held && time - then > 800))
      this.past = [...this.past, this.state.edits].slice(-100);
    this.lately = { key, time };
    this.future = [];
  }

  setEdits(edits) {
    this.rested = false;
    this.model.edits = this.state.edits = edits;
    this.later();
    this.askPrediction();
  }

  undo() {
    if (!this.past.length) return;
    this.future.push(this.state.edits);
    this.lately = null;
    this.setEdits(this.past.pop());
  }

  redo() {
    if (!this.future.length) return;
    this.past.push(this.state.edits);
    this.lately = null;
    this.setEdits(this.future.pop());
  }

  /** One colour per head, in maps, centres and kernel. */
  colourOf(head) {
    const { colours } = this.host.choices;
    return colours[head % colours.length];
  }

  /** Light a head up wherever it is drawn. */
  light(head) {
    if (head === this.lit) return;
    this.lit = head;
    this.later();
  }

  reset(all) {
    this.remember(null);
    const { state } = this, { [`${state.layer}.${state.head}`]: _, ...others } = state.edits;
    this.setEdits(all ? {} : others);
  }

  /** One question at a time: while one is worked on, only the newest waits. */
  askPrediction() {
    const send = () => this.ask({ kind: "heads", edits: this.editList() });
    if (this.pending.size) this.waiting = send;
    else send();
  }

  /** What the host found out about the chosen layer and head as they are now, or null. */
  seenNow() {
    return this.seen?.key === this.lookKey() ? this.seen : null;
  }

  lookKey() {
    const { serialOfImage, model: { name }, state: { layer, head, edits, size, epoch } } = this;
    return JSON.stringify([serialOfImage, name, layer, head, size, edits, epoch]);
  }

  /** Ask what the chosen layer and head do to this image; only after a rest, as it takes a while. */
  look() {
    const { model, state: { layer, head, size } } = this, key = this.lookKey();
    if (this.pending.size || this.lookedFor === key || model.epoch !== null || !(head < model.heads[layer])) return;
    this.lookedFor = key;
    this.ask({ kind: "examine", layer, head, size, edits: this.editList(), key });
  }

  /** What the model says now, the chosen changes included. */
  saysNow() {
    return this.host.edited?.probabilities || this.host.before || [];
  }

  /** " <Words> truck 13% → 12%.": what the model says now, and with these probabilities instead. */
  says(words, probabilities) {
    const { classes } = this.host.choices, now = this.saysNow();
    const [a, b] = [now, probabilities].map((p) => p.indexOf(Math.max(...p)));
    const [is, then] = [now[a], probabilities[b]].map(percent);
    if (a !== b) return ` ${words} ${classes[b]} (${then}) instead of ${classes[a]} (${is}).`;
    return ` ${words} ${classes[a]} ${is === then ? `${is}, as before` : `${is} → ${then}`}.`;
  }

  editList() {
    return Object.entries(this.state.edits).map(([key, edit]) => {
      const [layer, head] = key.split(".").map(Number);
      return { layer, head, ...edit };
    });
  }

  /** The state goes along: what is saved after a rest may be older. */
  exportPage() {
    const { pixels, title, label } = this.host.image, { data } = pixels;
    const question = { kind: "export", state: { ...this.state }, image: { title, label } };
    this.exporting = this.ask(question, [data.slice().buffer]);
  }

  async copyLink() {
    const { host, state } = this, { title, own } = host.image;
    host.save({ ...state }); // the address has it, too
    const lacks = ` It does not hold ${title}, your own picture: who follows it sees another one, and is told so.`;
    this.linkText.textContent = (await copied(host.link(state))) + (own ? lacks : "");
    this.linkText.scrollIntoView({ block: "nearest" });
  }

  setEpoch(epoch) {
    const { model, film } = this;
    model.epoch = !film.rolls && epoch >= film.last() ? null : epoch; // the last one is the trained model itself
    if (film.rolls) return this.later();
    this.state.epoch = model.epoch;
    this.takeImage();
  }

  newImage() {
    const label = this.classes.value === "" ? null : Number(this.classes.value);
    this.ask({ kind: "image", class: label });
  }

  /** The reader's own image, which is read and made small here: only its pixels go to the host. */
  async upload(file) {
    const picture = await readPicture(file, this.host.image.pixels.shape).catch(() => null);
    if (picture) this.ask({ kind: "open", name: file.name }, [picture.data.buffer]);
    else this.complain(`${file.name} is not an image that this browser can read.`);
  }

  // -- files

  download(blob, name) {
    const link = element("a", { href: URL.createObjectURL(blob), download: name });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(link.href), 60000);
  }

  picturePage() {
    return pictureOf(this);
  }

  savePng() {
    this.picturePage().toBlob((blob) => {
      if (blob) this.download(blob, "attention-heads.png");
      else this.complain("This view is too large for a picture in this browser.");
    });
  }

  // -- drawing

  draw() {
    const { state, panel, model } = this;
    if (this.relayout || panel.box.ratio !== pixelRatio()) this.layout(); // zoomed since, or on another screen
    this.drawImage();
    if (!model.lacks) panel.compute();
    panel.draw();
    this.first.draw();
    this.accuracy.draw();
    this.tips.follow();
    this.lock.textContent = `query: row ${state.query[0]}, column ${state.query[1]}${state.locked ? " (held)" : ""}`;
    this.root.classList.toggle("ax-locked", state.locked);
    const lists = [[this.layer, state.layer], [this.head, state.head]];
    if (this.head.length !== this.offered() || lists.some(([select, value]) => select.value !== String(value)))
      this.fill();
  }

  layout() {
    // In a narrow place the heads come right below the image, which is smaller: both are seen at once.
    const { root, panel, tools, shown, width } = this, narrow = (this.narrow = width < 560), one = !this.state.all;
    const large = one && width > 900 ? LARGE : IMAGE_SIDE, small = Math.round((one ? 0.33 : 0.45) * width);
    this.imageSide = narrow ? clamp(small, 96, IMAGE_SIDE) : large;
    root.style.setProperty("--ax-image", `${this.imageSide}px`);
    root.classList.toggle("ax-narrow", narrow);
    root.classList.toggle("ax-one", one);
    // There is room for the prediction below the image, or near the sliders.
    const place = narrow ? panel.detail : one ? shown : tools;
    if (panel.answer.parentElement !== place) place.append(panel.answer);
    if (one && !narrow) panel.barBox.after(this.hint);
    else this.glossary.before(this.hint);
    panel.layout(panel.root.clientWidth - 2);
    this.lists.hidden = one && panel.box.wide >= WORD; // buttons choose the layer, words on the maps a head
    this.relayout = false;
    this.fill();
  }

  /** Bring the controls in line with the state. */
  fill() {
    const { state, model } = this, { view, part, layer, head } = state;
    const option = (i) => new Option(i + 1, i);
    filled(this.layer, model.heads.length, option);
    filled(this.head, this.offered(), option);
    for (const [name, value] of Object.entries({ run: model.name, view, part, layer, head })) this[name].value = value;
    this.viewField.hidden = !state.all; // beside one layer's maps its centres are drawn anyway
    if (!this.hint.textContent) this.say("");
  }

  /** The image on a canvas. */
  paintImage(pen, x, y, wide, tall) {
    const { serialOfImage, picture } = this, size = `${wide} ${tall}`, now = `${serialOfImage} ${pixelRatio()}`;
    if (this.scaled?.now !== now) this.scaled = { now };
    if (!this.scaled[size]) { // made large once: nine maps are drawn over it at every step of the pointer
      const large = canvasOf((this.scaled[size] = element("canvas")), wide, tall);
      large.imageSmoothingQuality = "high";
      large.drawImage(picture, 0, 0, wide, tall);
    }
    pen.imageSmoothingEnabled = true;
    pen.drawImage(this.scaled[size], x, y, wide, tall);
    pen.imageSmoothingEnabled = false;
  }

  drawImage() {
    const { picture, state, imageSide: side } = this, [height, width] = this.model.grid;
    const wide = picture.width >= picture.height ? side : (side * picture.width) / picture.height;
    const tall = (wide * picture.height) / picture.width;
    const pen = canvasOf(this.image, wide, tall);
    this.paintImage(pen, 0, 0, wide, tall);
    const [cellX, cellY] = [wide / width, tall / height], [x, y] = [state.query[1] * cellX, state.query[0] * cellY];
    const [pale, line] = state.locked ? [6, 4] : [5, 2.5];
    frame(pen, [x, y, cellX, cellY], [["rgba(255,255,255,.9)", pale], [QUERY, line]]);
  }

  /** After a rest: tell screen readers and Python. */
  settle() {
    const { state, panel, model } = this, place = `row ${state.query[0]}, column ${state.query[1]}`;
    this.spoken.textContent = `Query ${place}. ${panel.headTitle.textContent}: ${panel.told || ""}`;
    const held = `${state.locked ? ", held" : ""}. Arrow keys move it, Enter holds it.`;
    this.image.setAttribute("aria-label", `${this.caption.textContent}. Query pixel ${place}${held}`);
    const choose = this.lists.hidden ? "buttons on them" : "lists Layer and Head";
    const heads = state.all ? `all ${model.heads.length} layers` : `layer ${state.layer + 1}`;
    const keys = `Arrow keys move the query; the ${choose} choose a head to see large.`;
    panel.grid.setAttribute("aria-label", `Attention of the heads of ${heads}, ${model.title}. ${keys}`);
    this.host.save({ ...state });
    this.rested = true;
    this.look();
  }
}

/** What the words mean, and the paper. */
function glossary() {
  const words = Object.entries(GLOSSARY).flatMap(([word, text]) => [
    element("dt", { textContent: word }), element("dd", { textContent: text }),
  ]);
  const title = "On the Relationship between Self-Attention and Convolutional Layers";
  const paper = element("a", { href: PAPER, target: "_blank", rel: "noopener", textContent: title });
  return element(
    "details", { className: "ax-glossary" }, element("summary", { textContent: "What the words mean" }),
    element("dl", {}, ...words),
    element("p", {}, "The paper: ", paper, " (Cordonnier, Loukas and Jaggi, ICLR 2020)."),
  );
}

/** The worker of some data, with their model in it. */
function started({ worker, side, choices: { mean, std } }) {
  const ask = workerOf(worker);
  ask("start", { side, mean, std }).catch(() => {}); // the first question hears of it
  return ask;
}

/** Start the exported page. */
export async function openExplorer(page) {
  linkBack(page);
  const place = page.getElementById("explorer");
  if (!globalThis.DecompressionStream) {
    place.textContent = TOO_OLD;
    return null;
  }
  const data = await read(fromText(page.getElementById("data").textContent));
  carryOn(page.querySelectorAll("#models a"));
  return new Explorer(place, pageHost(data, started(data)));
}

/** As anywidget takes it: with every other model come other data. */
export default {
  render({ model, el }) {
    const root = element("div");
    let view = null, ended = false;
    const close = () => {
      view?.host.close();
      view?.remove();
    };
    const take = async () => {
      const data = await read(model.get("data"));
      if (ended) return;
      close();
      view = new Explorer(root, widgetHost(data, started(data), model));
    };
    el.append(root);
    model.on("change:data", take);
    take();
    return () => {
      ended = true;
      model.off("change:data", take);
      close();
    };
  },
};
