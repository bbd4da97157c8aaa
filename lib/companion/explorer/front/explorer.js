// The head explorer's front end, shared by the Jupyter widget (default export, for anywidget) and the exported page
// (`openExplorer`). No framework, no build step, no network.
//
// One `Explorer` per element. A host (hosts.js) holds the data, takes messages, and tells what became of them.
// Arithmetic without a browser is in heads.js and maths.js.

import { QUERY, imageCanvas, percent, shiftText } from "./draw.js";
import { Accuracy } from "./accuracy.js";
import { Model, TOO_OLD, read, readLayer, typed } from "./heads.js";
import { carryOn, pageHost, widgetHost, workerOf } from "./hosts.js";
import { clamp } from "./maths.js";
import { Film } from "./film.js";
import { FirstScreen } from "./first.js";
import { kindText } from "./layer.js";
import {
  ARROWS,
  Live,
  button,
  canvasOf,
  cellUnder,
  chooser,
  div,
  element,
  fromText,
  keepKeysAndDrops,
  linkBack,
  pixelRatio,
  readPicture,
} from "./page.js";
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
    super(root, {
      host,
      pending: new Map(),
      serial: Math.floor(Math.random() * 2 ** 40), // of questions: another view of the same widget has other numbers
      waiting: null,
      past: [],
      future: [],
      lit: -1,
      serialOfImage: 0,
      seen: null,
    });
    const [height, width] = host.side.grid;
    this.state = {
      query: [height >> 1, width >> 1],
      locked: false,
      layer: null,
      head: 0,
      all: false, // layers at once
      smooth: true,
      view: "maps",
      size: null, // of the kernel
      whole: false,
      part: "full",
      scale: "probabilities",
      shared: true,
      compare: null,
      epochs: [null, null],
      edits: {},
      ...(host.state || {}),
    };
    this.film = new Film(this);
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
    const { host } = this, choose = (label, options, act) => chooser(label, "ax-field", options, act);
    const runs = host.choices.runs.map((run) => [run.name, run.title]);
    [this.runField, this.run] = choose("Model", runs.length ? runs : [["model", "model"]], (name) =>
      this.ask({ kind: "run", name }),
    );
    [this.compareField, this.compare] = choose(
      "Compare with",
      [["", "nothing"], ["epoch", "another epoch"]],
      (name) => this.setCompare(name),
    );
    [this.viewField, this.view] = choose(
      "Show",
      [["maps", "attention maps"], ["centres", "centres"]],
      (view) => this.set({ view }, true),
    );
    [this.partField, this.part] = choose(
      "Score",
      [["full", "full"], ["position", "position only"], ["content", "content only"]],
      (part) => this.set({ part }),
    );
    [this.scaleField, this.scale] = choose(
      "Values",
      [["probabilities", "probabilities"], ["logits", "logits"]],
      (scale) => this.set({ scale }, true),
    );
    [this.sharedField, this.shared] = choose(
      "Brightness",
      [["shared", "one scale for all"], ["own", "each head its own"]],
      (value) => this.set({ shared: value === "shared" }),
    );
    [this.smoothField, this.smooth] = choose(
      "Image",
      [["smooth", "smooth"], ["pixels", "pixels"]],
      (value) => this.set({ smooth: value === "smooth" }),
    );
    [this.layerField, this.layer] = choose("Layer", [], (value) => this.setLayer(Number(value)));
    [this.headField, this.head] = choose("Head", [], (value) => this.set({ head: Number(value) }));
    [this.classField, this.classes] = choose(
      "Class",
      [["", "any"], ...host.choices.classes.map((name, c) => [c, name])],
      () => this.newImage(),
    );
    this.classField.hidden = host.images.every(({ label }) => label === null);
    this.file = element("input", {
      type: "file",
      accept: "image/*",
      hidden: true,
      onchange: () => this.upload(this.file.files[0]),
    });
    this.first = new FirstScreen(this);
    this.accuracy = new Accuracy(this);
    this.tour = new Tour(this);
    this.glossary = element(
      "details",
      { className: "ax-glossary" },
      element("summary", { textContent: "What the words mean" }),
      element(
        "dl",
        {},
        ...Object.entries(GLOSSARY).flatMap(([word, text]) => [
          element("dt", { textContent: word }),
          element("dd", { textContent: text }),
        ]),
      ),
      element(
        "p",
        {},
        "The paper: ",
        element("a", {
          href: PAPER,
          target: "_blank",
          rel: "noopener",
          textContent: "On the Relationship between Self-Attention and Convolutional Layers",
        }),
        " (Cordonnier, Loukas and Jaggi, ICLR 2020).",
      ),
    );
    this.notice = element("div", { className: "ax-notice", role: "alert", hidden: true });
    this.spoken = element("div", { className: "ax-spoken", role: "status", "aria-live": "polite" });
    this.linkText = element("p", { className: "ax-note", role: "status" });
    this.hint = element("p", { className: "ax-hint" });
    this.image = element("canvas", {
      className: "ax-image",
      tabIndex: 0,
      role: "application",
      "aria-roledescription": "image with a query pixel",
    });
    this.caption = element("p", { className: "ax-caption" });
    this.lost = element("p", { className: "ax-notice", role: "alert" }); // why it is not the image of a link
    this.lock = element("p", { className: "ax-lock" });
    this.picture = document.createElement("canvas");
    this.panels = [];
    this.panelBox = div("ax-panels");
    const fields = { Model: this.runField, "Compare with": this.compareField, Show: this.viewField };
    Object.assign(fields, { Values: this.scaleField, Score: this.partField });
    Object.assign(fields, { Brightness: this.sharedField, Image: this.smoothField });
    for (const [name, field] of Object.entries(fields)) field.dataset.tip = CONTROLS[name];
    const { Model, ...options } = fields;
    this.first.root.prepend(Model);
    this.first.controls.append(...Object.values(options));
    this.lists = div("ax-row", this.layerField, this.headField);
    this.shown = div("ax-view", this.image, div("ax-words", this.lock, this.caption, this.lost));
    this.tools = element(
      "aside",
      { className: "ax-tools" },
      div(
        "ax-row",
        this.classField,
        button("Random image", () => this.newImage(), "Another image of this class"),
      ),
      div(
        "ax-row",
        button("Your image …", () => this.file.click(), "Any image file; it is cropped and resized"),
        this.file,
      ),
      this.lists,
      div(
        "ax-row",
        button("Save PNG", () => this.savePng(), "This view as a picture"),
        host.link ? button("Copy link", () => this.copyLink(), "This view as a link to this page") : null,
        host.live
          ? button("Export HTML", () => this.exportPage(), "This explorer as one file that works without Python")
          : null,
      ),
      this.linkText,
      this.notice,
    );
    this.root.classList.add("attnconv-explorer");
    this.root.replaceChildren(
      this.tour.root,
      this.first.root,
      this.first.controls,
      div("ax-main", this.shown, this.panelBox, this.tools),
      this.hint,
      this.glossary,
      this.spoken,
      div("ax-foot", this.accuracy.root, this.first.says),
    );
    this.tips = new Tips(this.root);
    this.root.append(this.tips.box);

    const { image } = this;
    image.addEventListener("pointermove", (event) => this.state.locked && !event.buttons || this.moveTo(event));
    image.addEventListener("pointerdown", (event) => {
      this.pressed = [...this.state.query, this.state.locked];
      if (event.pointerType === "touch") this.moveTo(event, true);
    });
    image.addEventListener("click", (event) => this.click(event));
    image.addEventListener("keydown", (event) => this.key(event));
    keepKeysAndDrops(this.root, (file) => this.upload(file));
  }

  // -- data

  /** The model, or two epochs of it side by side. */
  load() {
    this.film.stop();
    const { host, state } = this, { side } = host;
    const epoch = state.compare === "epoch" && Boolean(side.path?.centres); // a link may ask for it in vain
    const sides = epoch ? [side, side] : [side];
    this.models = sides.map((one) => new Model(one));
    const [model] = this.models;
    state.layer = Math.min(state.layer ?? this.bestKernel(), model.heads.length - 1);
    state.head = clamp(state.head, 0, Math.max(0, model.heads[state.layer] - 1));
    state.query = state.query.map((q, i) => clamp(q, 0, model.grid[i] - 1));
    state.epochs = [...state.epochs]; // they change below, but not in what was saved
    if (!epoch) state.compare = null;
    while (this.panels.length > sides.length) this.panels.pop().root.remove();
    while (this.panels.length < sides.length) {
      this.panels.push(new Panel(this, this.panels.length));
      this.panelBox.append(this.panels.at(-1).root);
    }
    this.panels.forEach((panel, i) => {
      const own = (panel.model = this.models[i]);
      const { [i]: shown = null } = state.epochs; // another run may have fewer
      own.epoch = state.epochs[i] = own.path && shown !== null && shown < own.path.epochs - 1 ? shown : null;
      panel.maps = panel.data = null;
      panel.epochRow.hidden = !own.path;
    });
    model.edits = state.edits;
    this.partField.hidden = !model.content;
    if (!model.content) state.part = "full";
    this.runField.hidden = !host.live;
    this.compareField.hidden = !model.replayed;
    this.takeImage();
    this.later(true);
  }

  /** How many heads the list offers, those of the chosen layer: one where it has none, as a list is never empty. */
  offered() {
    return Math.max(1, this.models[0].heads[this.state.layer]);
  }

  /** The layer that is best a kernel: as a 3 × 3 convolution it costs least, as far as that was counted; else most of
   * its taps have a head. */
  bestKernel() {
    const [model] = this.models, costs = model.heads.map((_, layer) => model.lostAlone(layer));
    if (!costs.includes(null)) return costs.indexOf(Math.min(...costs));
    const covered = model.heads.map((heads, layer) =>
      !heads ? -1 : model.content ? 0 : readLayer(model, layer).covered,
    );
    return covered.indexOf(Math.max(...covered));
  }

  takeImage() {
    const { image, before, edited } = this.host;
    imageCanvas({ shape: image.pixels.shape, values: typed(image.pixels) }, this.picture);
    this.serialOfImage++;
    this.caption.textContent = image.title;
    this.lost.textContent = this.host.lost || "";
    this.lost.hidden = !this.host.lost;
    const answer = edited?.heads.length ? edited.probabilities : null;
    this.models.forEach((model, i) => {
      edited?.scores?.forEach((scores, layer) => model.setScores(layer, scores));
      this.panels[i].drawPrediction(before, i ? null : answer, image.label);
    });
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
    this.set({ layer, head: Math.min(this.state.head, Math.max(0, this.models[0].heads[layer] - 1)) });
  }

  setQuery(query) {
    const next = query.map((q, i) => clamp(q, 0, this.models[0].grid[i] - 1));
    if (next[0] !== this.state.query[0] || next[1] !== this.state.query[1]) this.set({ query: next });
  }

  pixelUnder(event) {
    return cellUnder(event, this.image, ...this.models[0].grid);
  }

  moveTo(event, always = false) {
    if (!this.state.locked || always || event.pointerType === "touch") this.setQuery(this.pixelUnder(event));
    this.now(event.timeStamp);
  }

  /** A click locks the query there; on the locked pixel it frees it again. */
  click(event) {
    const pixel = this.pixelUnder(event), [row, column, locked] = this.pressed || [];
    this.setQuery(pixel);
    this.set({ locked: !(locked && row === pixel[0] && column === pixel[1]) });
  }

  key(event) {
    const step = ARROWS[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (step) this.setQuery(this.state.query.map((q, i) => q + step[i]));
    else if (event.key === "Enter" || event.key === " ") this.set({ locked: !this.state.locked });
    else if (event.key === "Escape") this.set({ locked: false });
    else return;
    event.preventDefault();
  }

  pickHead(panel, event) {
    const { layer, head, badge } = panel.under(event);
    if (badge) this.tips.tell(...panel.meaning(layer, head, badge));
    if (head !== undefined) this.set({ layer, head });
    else if (layer !== undefined) this.setLayer(layer);
  }

  /** What lies under the pointer in the grid, in words. */
  inspect(panel, event) {
    const { layer, head, key, badge } = event ? panel.under(event) : {}, { model } = panel;
    this.tips.hide();
    if (badge) this.tips.tell(...panel.meaning(layer, head, badge));
    this.light(head === undefined || layer !== this.state.layer ? -1 : head);
    if (head === undefined) return this.say("");
    const kind = model.film ? "" : ` (${kindText(panel.read(layer).heads[head])[0]})`;
    const name = `Layer ${layer + 1}, head ${head + 1}${kind}`;
    if (!key) return this.say(`${name}: centre ${shiftText(panel.shape(layer, head).centre)}`);
    const query = this.state.query, at = key[0] * model.width + key[1];
    const value =
      this.state.scale === "logits"
        ? panel.values(layer, head)[at].toFixed(2)
        : panel.maps[layer][head][at].toPrecision(3);
    this.say(
      `${name}, shift ${shiftText([key[0] - query[0], key[1] - query[1]], 0)}: ` +
        `${this.state.scale === "logits" ? "logit" : "probability"} ${value}`,
    );
  }

  say(text) {
    this.hint.textContent =
      text ||
      "Move over the image to choose the query pixel, click to hold it; arrow keys move it by one. Click a head to " +
        "see it large.";
  }

  complain(text) {
    this.notice.textContent = text;
    this.notice.hidden = !text;
  }

  /** Change the chosen head; the map follows at once, the prediction as soon as the worker has it. */
  edit(change) {
    const { state } = this, model = this.models[0], key = `${state.layer}.${state.head}`;
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

  /** Change all heads of the chosen layer in one step: `change` gets a list of what is changed of each. */
  editLayer(change) {
    const { state } = this, { layer } = state, model = this.models[0];
    const own = Array.from({ length: model.heads[layer] }, (_, head) => ({ ...state.edits[`${layer}.${head}`] }));
    const before = JSON.stringify(own);
    change(own);
    for (const edit of own) if (!edit.off) delete edit.off;
    if (JSON.stringify(own) === before) return; // nothing to undo
    this.remember(null);
    const edits = Object.fromEntries(Object.entries(state.edits).filter(([place]) => !place.startsWith(`${layer}.`)));
    own.forEach((edit, head) => {
      if (Object.keys(edit).length) edits[`${layer}.${head}`] = edit;
    });
    this.setEdits(edits);
  }

  /** Keep the changed heads as they are now for `undo`; what a slider does at a stretch is one step. */
  remember(key) {
    const time = performance.now(), { key: before, time: then } = this.lately || {};
    const held = this.panels[0].card.drag; // a drag is one step, however long it rests
    if (key === null || key !== before || (!held && time - then > 800))
      this.past = [...this.past, this.state.edits].slice(-100);
    this.lately = { key, time };
    this.future = [];
  }

  setEdits(edits) {
    this.rested = false;
    this.models[0].edits = this.state.edits = edits;
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

  /** What the host found out about a panel's layer and head as they are now, or null. */
  seenOf(panel) {
    return panel.index === 0 && this.seen && this.seen.key === this.lookKey() ? this.seen : null;
  }

  lookKey() {
    const { state, panels: [panel] } = this;
    const { layer, head, edits, epochs } = state;
    return JSON.stringify([this.serialOfImage, this.models[0].name, layer, head, panel.card.size, edits, epochs[0]]);
  }

  /** Ask what the chosen layer and head do to this image; only after a rest, as it takes a while. */
  look() {
    const { state, models: [model], panels: [panel] } = this, key = this.lookKey();
    if (this.pending.size || this.lookedFor === key || model.epoch !== null || !(state.head < model.heads[state.layer]))
      return;
    this.lookedFor = key;
    const { layer, head } = state;
    this.ask({ kind: "examine", layer, head, size: panel.card.size, edits: this.editList(), key });
  }

  /** What the model says now, the chosen changes included. */
  saysNow() {
    return this.host.edited?.probabilities || this.host.before || [];
  }

  /** " <Words> truck 13% → 12%.": what the model says now, and with these probabilities instead. */
  says(words, probabilities) {
    const { classes } = this.host.choices;
    const now = this.saysNow();
    const best = (p) => p.indexOf(Math.max(...p));
    const [a, b] = [best(now), best(probabilities)];
    const change =
      a === b && percent(now[a]) === percent(probabilities[a])
        ? `${classes[a]} ${percent(now[a])}, as before`
        : a === b
        ? `${classes[a]} ${percent(now[a])} → ${percent(probabilities[a])}`
        : `${classes[b]} (${percent(probabilities[b])}) instead of ${classes[a]} (${percent(now[a])})`;
    return ` ${words} ${change}.`;
  }

  editList(edits = this.state.edits) {
    return Object.entries(edits).map(([key, edit]) => {
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
    const copied = await navigator.clipboard?.writeText(host.link(state)).then(() => true, () => false);
    this.linkText.textContent =
      (copied ? "Copied." : "The address bar has the link.") +
      (own ? ` It does not hold ${title}, your own picture: who follows it sees another one, and is told so.` : "");
    this.linkText.scrollIntoView({ block: "nearest" });
  }

  setCompare(name) {
    const { state } = this;
    Object.assign(state, {
      compare: name || null,
      epochs: name === "epoch" ? [state.epochs[0], 0] : [state.epochs[0], null],
    });
    this.load();
  }

  setEpoch(index, value) {
    const model = this.models[index], last = model.path.epochs - 1;
    model.epoch = value >= last ? null : value; // the last one is the trained model itself
    this.state.epochs = this.state.epochs.map((epoch, i) => (i === index ? model.epoch : epoch));
    this.takeImage();
  }

  newImage() {
    const label = this.classes.value === "" ? null : Number(this.classes.value);
    this.ask({ kind: "image", class: label });
  }

  /** The reader's own image, which is read and made small here: only its pixels go to the host. */
  async upload(file) {
    this.file.value = "";
    if (!file) return;
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
    const { state } = this;
    if (this.relayout || this.panels[0].box.ratio !== pixelRatio()) { // zoomed since, or on another screen
      // In a narrow place the heads come right below the image, which is smaller: both are seen at once.
      const narrow = (this.narrow = this.width < 560), one = !this.state.all;
      this.imageSide = narrow
        ? clamp(Math.round((one ? 0.33 : 0.45) * this.width), 96, IMAGE_SIDE)
        : one && this.width > 900 ? LARGE : IMAGE_SIDE;
      this.root.style.setProperty("--ax-image", `${this.imageSide}px`);
      this.root.classList.toggle("ax-narrow", narrow);
      this.root.classList.toggle("ax-one", one);
      const { panels: [{ detail, answer }], tools, shown } = this;
      // There is room for the prediction below the image, or near the sliders.
      const place = narrow ? detail : one ? shown : tools;
      if (answer.parentElement !== place) place.append(answer);
      if (one && !narrow) this.panels[0].barBox.after(this.hint);
      else this.glossary.before(this.hint);
      const width = this.panelBox.clientWidth, needed = Math.max(...this.panels.map((panel) => panel.least()));
      const beside = this.panels.length > 1 && (width - 24) / 2 >= needed;
      this.panelBox.classList.toggle("ax-beside", beside);
      for (const panel of this.panels) panel.layout((beside ? (width - 24) / 2 : width) - 2);
      this.lists.hidden = one && this.panels[0].box.wide >= WORD; // buttons choose the layer, words on the maps a head
      this.relayout = false;
      this.fill();
    }
    this.drawImage();
    const drawn = this.panels.filter((panel) => !panel.model.lacks);
    for (const panel of drawn) panel.compute();
    const extents = drawn.map((panel) => panel.extents());
    const [range, near] = [0, 1].map((i) => Math.max(...extents.map((of) => of[i])));
    for (const panel of drawn) Object.assign(panel, { range, near }); // the centres' scale is that of all
    for (const panel of this.panels) {
      panel.draw();
      const { model } = panel, replay = model.epoch !== null;
      const last = model.path && model.path.epochs - 1, epoch = replay ? Math.round(model.epoch) : last;
      const when = replay ? (epoch ? `, after epoch ${epoch}` : ", before training") : "";
      panel.title.textContent = model.title + when;
      if (model.path) panel.epoch.set(epoch, { max: last });
    }
    this.first.draw();
    this.accuracy.draw();
    this.tips.follow();
    this.lock.textContent = `query: row ${state.query[0]}, column ${state.query[1]}${state.locked ? " (held)" : ""}`;
    this.root.classList.toggle("ax-locked", state.locked);
    const lists = [[this.layer, state.layer], [this.head, state.head]];
    if (this.head.length !== this.offered() || lists.some(([select, value]) => select.value !== String(value)))
      this.fill();
  }

  /** Bring the controls in line with the state. */
  fill() {
    const { state } = this, model = this.models[0];
    const options = (select, n) =>
      select.replaceChildren(
        ...Array.from({ length: n }, (_, i) => element("option", { value: i, textContent: `${i + 1}` })),
      );
    const own = this.offered();
    if (this.layer.length !== model.heads.length) options(this.layer, model.heads.length);
    if (this.head.length !== own) options(this.head, own);
    const values = {
      run: model.name,
      compare: state.compare || "",
      view: state.view,
      part: state.part,
      scale: state.scale,
      shared: state.shared ? "shared" : "own",
      smooth: state.smooth ? "smooth" : "pixels",
      layer: state.layer,
      head: state.head,
    };
    for (const [name, value] of Object.entries(values)) this[name].value = value;
    this.sharedField.hidden = state.scale === "logits"; // logits have no common scale
    this.viewField.hidden = !state.all; // beside one layer's maps its centres are drawn anyway
    if (!this.hint.textContent) this.say("");
  }

  /** The image on a canvas, smooth or pixel by pixel. */
  paintImage(pen, x, y, wide, tall) {
    const { state: { smooth }, serialOfImage, picture } = this, size = `${wide} ${tall}`;
    const now = `${serialOfImage} ${smooth} ${pixelRatio()}`;
    if (this.scaled?.now !== now) this.scaled = { now };
    if (!this.scaled[size]) { // made large once: nine maps are drawn over it at every step of the pointer
      const large = canvasOf((this.scaled[size] = element("canvas")), wide, tall);
      Object.assign(large, { imageSmoothingEnabled: smooth, imageSmoothingQuality: "high" });
      large.drawImage(picture, 0, 0, wide, tall);
    }
    pen.imageSmoothingEnabled = true;
    pen.drawImage(this.scaled[size], x, y, wide, tall);
    pen.imageSmoothingEnabled = false;
  }

  drawImage() {
    const { picture, state } = this, [height, width] = this.models[0].grid;
    const side = this.imageSide;
    const wide = picture.width >= picture.height ? side : (side * picture.width) / picture.height;
    const tall = (wide * picture.height) / picture.width;
    const pen = canvasOf(this.image, wide, tall);
    this.paintImage(pen, 0, 0, wide, tall);
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
    this.spoken.textContent =
      `Query row ${state.query[0]}, column ${state.query[1]}. ${panel.headTitle.textContent}: ` + (panel.told || "");
    this.image.setAttribute(
      "aria-label",
      `${this.caption.textContent}. Query pixel row ${state.query[0]}, column ` +
        `${state.query[1]}${state.locked ? ", held" : ""}. Arrow keys move it, Enter holds it.`,
    );
    const choose = this.lists.hidden ? "buttons on them" : "lists Layer and Head";
    for (const { grid, model } of this.panels)
      grid.setAttribute(
        "aria-label",
        `Attention of the heads of ${state.all ? `all ${model.heads.length} layers` : `layer ${state.layer + 1}`}, ` +
          `${model.title}. Arrow keys move the query; the ${choose} choose a head to see large.`,
      );
    this.host.save({ ...state });
    this.rested = true;
    this.look();
  }
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
