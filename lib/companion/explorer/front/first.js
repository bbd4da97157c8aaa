// The first screen: one layer large, the others a row of buttons away, all of them behind another one.

import { percent } from "./draw.js";
import { button, div, element, filled, roving, tell } from "./page.js";

const LOST = "Points of accuracy that this layer costs alone as a 3 × 3 convolution, counted on test images";

/** "−0.4": points of accuracy. */
const pointsText = (share) => `${share > 0 ? "−" : "+"}${(100 * Math.abs(share)).toFixed(1)}`;

export class FirstScreen {
  constructor(explorer) {
    this.explorer = explorer;
    this.tabs = element("div", { className: "ax-tabs" });
    this.keys = roving(this.tabs, "Layer", "group");
    this.all = button("", () => explorer.set({ all: !explorer.state.all }, true));
    this.tour = button("Take the tour", () => explorer.tour.go(1), "A few steps, three minutes");
    const { runField, viewField, partField } = explorer, row = div("ax-row", viewField, partField, this.all, this.tour);
    this.root = div("ax-top", runField, this.tabs, row);
    this.says = element("p", { className: "ax-says" });
  }

  /** Bring the buttons in line with what is shown. */
  draw() {
    const { explorer: { state }, all } = this;
    all.textContent = state.all ? "Show one layer" : "Show all layers";
    all.dataset.tip = state.all ? "One layer, large" : "All heads of all layers at once";
    this.drawTabs();
    this.drawSays();
  }

  /** For each layer a button, with what it costs as a 3 × 3 convolution, and the switch that makes it one. */
  drawTabs() {
    const { explorer, tabs } = this, { state, model } = explorer;
    const size = state.size ?? 3, name = `${size} × ${size} convolution`;
    const all = filled(tabs, model.heads.length, (layer) => this.makeTab(layer));
    all.forEach(({ children: [tab, swap] }, layer) => {
      const kernel = model.kernelAt(layer), words = this.costOf(model, layer);
      tab.setAttribute("aria-pressed", String(layer === state.layer));
      tab.classList.toggle("ax-swapped", kernel !== null);
      const [number, unit] = tab.lastChild.children;
      if (number.textContent !== words[0]) [number.textContent, unit.textContent] = words;
      tab.dataset.tip = model.lostAlone(layer) === null ? "" : LOST;
      swap.hidden = model.content || !model.heads[layer];
      swap.disabled = model.epoch !== null;
      swap.setAttribute("aria-checked", String(kernel !== null));
      swap.setAttribute("aria-label", `Layer ${layer + 1} as a ${name}`);
      swap.dataset.tip = `Put a ${name} in this layer's place, or take it away`;
    });
    this.keys();
  }

  makeTab(layer) {
    const { explorer } = this, name = element("b", {}, element("span", { textContent: "Layer " }), `${layer + 1}`);
    const tab = button("", () => explorer.setLayer(layer)), swap = button("swap", () => this.swap(layer));
    tab.append(name, element("small", {}, element("data"), element("span")));
    swap.setAttribute("role", "switch");
    return div("ax-tab", tab, swap);
  }

  /** What stands on a tab: what the layer costs as a convolution, or else how many taps of a kernel have a head. */
  costOf(model, layer) {
    const lost = model.lostAlone(layer);
    if (lost !== null) return [pointsText(lost), " points"];
    if (model.content || model.film || !model.heads[layer]) return ["\u00a0", ""];
    const { size, covered } = this.explorer.panel.read(layer);
    return [`${covered} of ${size * size}`, " taps"];
  }

  swap(layer) {
    const { explorer } = this, { model, state } = explorer;
    explorer.setKernel(model.kernelAt(layer) ? null : (state.size ?? 3), layer);
  }

  /** The prediction in one line, which stays in sight on a phone. */
  drawSays() {
    const { explorer, says } = this, { host: { image, choices }, model } = explorer;
    const before = explorer.host.before || [], now = model.epoch === null ? explorer.saysNow() : [];
    says.hidden = !explorer.narrow || !now.length;
    if (says.hidden) return;
    const best = now.indexOf(Math.max(...now)), was = before.indexOf(Math.max(...before));
    const [is, then] = [[now, best], [before, was]].map(([p, c]) => `${choices.classes[c]} ${percent(p[c])}`);
    const right = image.label === null ? "" : best === image.label ? " ✓" : " ✗";
    const text = `Prediction: ${is}${right}${is === then ? "" : ` (before: ${then})`}`;
    tell(says, text);
  }
}
