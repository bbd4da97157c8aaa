// The first screen: one layer large, the others a row of buttons away, all of them behind another one.

import { percent } from "./draw.js";
import { button, div, element } from "./page.js";
import { WORDS } from "./words.js";

export class FirstScreen {
  constructor(explorer) {
    this.explorer = explorer;
    this.tabs = element("div", { className: "ax-tabs", role: "group", "aria-label": "Layer" });
    this.all = button("", () => explorer.set({ all: !explorer.state.all }, true));
    this.more = button("Options", () => this.open(this.controls.hidden), "Compare, brightness, how it is drawn");
    this.tour = button("Take the tour", () => explorer.tour.go(1), "A few steps, three minutes");
    this.controls = element("div", { className: "ax-controls", role: "toolbar", "aria-label": "What is shown" });
    this.opened = false;
    this.root = div("ax-top", this.tabs, div("ax-row", this.all, this.more, this.tour));
    this.says = element("p", { className: "ax-says" });
  }

  open(opened) {
    this.opened = opened;
    this.explorer.later(true);
  }

  /** Bring the buttons in line with what is shown. */
  draw() {
    const { explorer, all, more, controls } = this, { state } = explorer;
    all.textContent = state.all ? "Show one layer" : "Show all layers";
    all.dataset.tip = state.all ? "One layer, large" : "All heads of all layers at once";
    more.hidden = state.all;
    controls.hidden = !state.all && !this.opened;
    more.setAttribute("aria-expanded", String(!controls.hidden));
    this.drawTabs();
    this.drawSays();
  }

  /** A button for each layer, with what it is: how many taps of a kernel it has, or that it is a convolution now. */
  drawTabs() {
    const { explorer, tabs } = this, { state } = explorer, layers = explorer.heads().length;
    if (tabs.childElementCount !== layers)
      tabs.replaceChildren(
        ...Array.from({ length: layers }, (_, layer) => {
          const name = element("b", {}, element("span", { textContent: "Layer " }), `${layer + 1}`);
          const tab = button("", () => explorer.setLayer(layer));
          tab.append(name, element("small"));
          return tab;
        }));
    const [panel] = explorer.panels, { model } = panel, read = !model.content && !model.film;
    [...tabs.children].forEach((tab, layer) => {
      const kernel = model.kernelAt(layer), { size, covered } = read && model.heads[layer] ? panel.read(layer) : {};
      tab.setAttribute("aria-pressed", String(layer === state.layer));
      tab.setAttribute("aria-label", `Layer ${layer + 1}${kernel ? `, now a ${kernel} × ${kernel} convolution` : ""}`);
      tab.classList.toggle("ax-swapped", kernel !== null);
      const text = kernel ? `${kernel} × ${kernel} convolution` : size ? `${covered} of ${size * size} taps` : "\u00a0";
      if (tab.lastChild.textContent !== text) tab.lastChild.textContent = text;
      if (tab.dataset.tip === undefined && size) tab.dataset.tip = WORDS.taps;
    });
  }

  /** The prediction in one line, which stays in sight on a phone. */
  drawSays() {
    const { explorer, says } = this, { host: { image, choices }, models: [model] } = explorer;
    const before = image.sides[0]?.probabilities || [], now = model.epoch === null ? explorer.saysNow() || [] : [];
    says.hidden = !explorer.narrow || !now.length;
    if (says.hidden) return;
    const best = now.indexOf(Math.max(...now)), was = before.indexOf(Math.max(...before));
    const [is, then] = [[now, best], [before, was]].map(([p, c]) => `${choices.classes[c]} ${percent(p[c])}`);
    const right = image.label === null ? "" : best === image.label ? " ✓" : " ✗";
    const of = now === before && explorer.untold(model) ? " of the unchanged model" : "";
    const text = `Prediction${of}: ${is}${right}${is === then ? "" : ` (before: ${then})`}`;
    if (says.textContent !== text) says.textContent = text;
  }
}
