// How often the model is right with what the reader has put in its layers' place: a bar that stays in sight, and moves
// at once, as all was counted before the page was made. Beside it, undo and redo.

import { button, div, element, roving, tell } from "./page.js";

// Twelve digits: 100 * 0.8845 is a little less than 88.45, and would be rounded down.
const hundredths = (value) => Number((100 * value).toPrecision(12)).toFixed(1);
const share = (value) => `${hundredths(value)}%`;
const points = (value) => hundredths(Math.abs(value));

/** What is known of a model as it is shown: {now, whole: shares of right answers or null, text, and a shorter one}. */
export function accuracyOf(model) {
  const { path } = model, { length: many } = Object.keys(model.edits);
  const trained = path?.accuracy.at(-1) ?? null;
  if (model.epoch !== null) {
    const epoch = Math.round(model.epoch), now = path.accuracy[epoch - 1] ?? null;
    const when = epoch ? `after epoch ${epoch}` : "before training: not measured";
    return { now, whole: trained, text: `${now === null ? "" : `${share(now)} `}${when}` };
  }
  const found = model.countsNow();
  if (!found) {
    const text = many ? "not counted for these changes" : trained === null ? "not counted" : share(trained);
    return { now: many ? null : trained, whole: trained, text };
  }
  const { now, whole, images } = found, of = `${share(now)} of ${images.toLocaleString("en")} test images`;
  const change = now === whole ? "as many as" : `${points(now - whole)} points ${now < whole ? "fewer" : "more"} than`;
  if (!many) return { now, whole, text: of };
  const short = `${share(now)} (${now < whole ? "−" : "+"}${points(now - whole)} points)`;
  return { now, whole, text: `${of}, ${change} with attention (${share(whole)})`, short };
}

/** A bar for a share, with a mark where another one was: {root, set}. */
export function meter() {
  const root = element("span", { className: "ax-meter", "aria-hidden": "true" }, element("i"), element("b"));
  const set = (now, whole) => {
    root.firstChild.style.width = `${100 * (now ?? 0)}%`;
    root.lastChild.style.left = `${100 * (whole ?? 0)}%`;
    root.lastChild.hidden = whole === null;
    root.classList.toggle("ax-unknown", now === null);
  };
  return { root, set };
}

export class Accuracy {
  constructor(explorer) {
    this.explorer = explorer;
    this.bar = meter();
    this.text = element("span", { role: "status" });
    this.undo = button("Undo", () => explorer.undo());
    this.redo = button("Redo", () => explorer.redo());
    this.reset = button("Reset all", () => explorer.reset(true));
    this.buttons = div("ax-row ax-undo", this.undo, this.redo, this.reset);
    this.keys = roving(this.buttons, "Changes");
    const words = element("span", {}, element("b", { textContent: "Right answers: " }), this.text);
    this.root = div("ax-accuracy", this.bar.root, words, this.buttons);
  }

  draw() {
    const { explorer, bar, text, undo, redo, reset } = this, { model } = explorer;
    const { now, whole, text: long, short = long } = accuracyOf(model), words = explorer.narrow ? short : long;
    bar.set(now, whole);
    tell(text, words);
    const buttons = [undo, redo, reset], pressed = buttons.find((one) => one === one.getRootNode().activeElement);
    undo.disabled = !explorer.past.length;
    redo.disabled = !explorer.future.length;
    reset.disabled = !Object.keys(model.edits).length;
    this.keys();
    if (pressed?.disabled) buttons.find((one) => !one.disabled)?.focus({ preventScroll: true }); // the keyboard goes on
  }
}
