// The explorer's title, and the tour through it.

import { button, div, element } from "./page.js";
import { INTRODUCTION, tourOf } from "./words.js";

/** Five steps through the page: a line of text above it, and what it speaks of in a frame. */
export class Tour {
  constructor(explorer) {
    Object.assign(this, {
      explorer,
      step: 0,
      title: element("h1"),
      text: element("p"),
      next: button("Next", () => this.go(this.step + 1)),
      back: button("Back", () => this.go(this.step - 1)),
      close: button("Close", () => this.go(0)),
    });
    const words = element("div", { "aria-live": "polite" }, this.title, this.text);
    this.root = div("ax-tour", words, div("ax-row", this.back, this.next, this.close));
    this.tell();
  }

  get steps() {
    return tourOf(this.explorer.model ?? {}); // it is built before there is a model
  }

  go(step) {
    const { explorer } = this, pressed = this.root.getRootNode().activeElement;
    this.step = step > this.steps.length ? 0 : step;
    if (this.step) {
      const { kernel, ...changes } = this.steps[this.step - 1][3];
      explorer.film.stop();
      if (explorer.model.epoch !== null) explorer.setEpoch(Infinity); // it speaks of the trained model
      explorer.set({ all: false, ...changes }, true);
      explorer.setLayer(kernel ? explorer.bestKernel() : explorer.state.layer);
    }
    this.tell();
    // A button that goes hands the keyboard on.
    if (pressed?.hidden) (this.step ? this.next : explorer.first.tour).focus({ preventScroll: true });
    const lit = this.step && explorer.root.querySelector(this.steps[this.step - 1][0]);
    if (!lit) return;
    lit.style.scrollMargin = `${this.root.offsetHeight + 12}px 0 12px`; // below these words, which stay at the top
    lit.scrollIntoView({ block: "nearest" });
  }

  tell() {
    const { step, steps, explorer } = this, { root } = explorer;
    const [selector, title, story] = step
      ? steps[step - 1]
      : ["", ...INTRODUCTION];
    const name = step ? `${step}. ${title}` : title;
    const words = [story].flat().map((text) => element("span", { textContent: ` ${text}` }));
    this.title.textContent = name;
    this.text.replaceChildren(...words);
    this.next.textContent = step === steps.length ? "Done" : "Next";
    this.next.hidden = !step;
    explorer.first.tour.hidden = step > 0;
    this.back.hidden = step < 2;
    this.close.hidden = !step;
    this.root.classList.toggle("ax-going", step > 0);
    for (const node of root.querySelectorAll(".ax-lit")) node.classList.remove("ax-lit");
    if (step) root.querySelector(selector)?.classList.add("ax-lit");
  }
}
