// The film of a training: the heads move from epoch to epoch, and between two epochs along straight lines.

import { still } from "./page.js";

const LASTS = 7000; // ms, from before training to its end

export class Film {
  constructor(explorer) {
    Object.assign(this, { explorer, index: null, frame: 0 });
  }

  /** Play a model's training on from the epoch that is shown, at its end from the beginning; pressed again, or by
   * whatever else changes the epoch or the models, it stops. Where no motion is wanted, it goes on by one epoch. */
  play(index) {
    const { explorer } = this, again = this.index === index;
    this.stop();
    if (again) return;
    const model = explorer.models[index], last = model.path.epochs - 1, from = model.epoch ?? 0;
    if (still()) return explorer.setEpoch(index, model.epoch === null ? 0 : from + 1);
    explorer.setEpoch(index, from);
    this.index = index;
    this.tell(explorer.panels[index].play, "❚❚");
    const start = performance.now() - (LASTS * from) / last;
    const next = (now) => {
      const epoch = Math.max(0, (last * (now - start)) / LASTS);
      if (epoch >= last) {
        this.stop();
        return explorer.setEpoch(index, last);
      }
      model.epoch = epoch;
      explorer.later();
      this.frame = requestAnimationFrame(next);
    };
    this.frame = requestAnimationFrame(next);
  }

  /** Stop at the nearest epoch: of what is between two, nothing is known. */
  stop() {
    const { index, explorer } = this;
    if (index === null) return;
    cancelAnimationFrame(this.frame);
    this.index = null;
    this.tell(explorer.panels[index].play, "▶");
    explorer.setEpoch(index, Math.round(explorer.models[index].epoch));
  }

  /** Say on a button what it does next. */
  tell(play, sign = "▶") {
    const title = sign === "▶" ? (still() ? "Next epoch" : "Play the training") : "Stop";
    play.textContent = sign;
    play.dataset.tip = title;
    play.setAttribute("aria-label", title);
  }
}
