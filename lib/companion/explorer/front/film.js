// The film of a training: the heads move from epoch to epoch, and between two epochs along straight lines.

import { button, still } from "./page.js";

const LASTS = 7000; // ms, from before training to its end

/** A button that plays a film. `at` and `last` say which epoch is shown, and which is the last; `show` shows one, which
 * while it rolls may lie between two. */
export class Film {
  constructor({ at, last, show }) {
    Object.assign(this, { at, last, show, rolls: false, frame: 0, button: button("", () => this.play()) });
    this.tell();
  }

  /** Play on from the epoch that is shown, at its end from the beginning; pressed again, it stops. Where no motion is
   * wanted, it goes on by one epoch. */
  play() {
    if (this.rolls) return this.stop();
    const last = this.last(), from = this.at() >= last ? 0 : this.at();
    if (still()) return this.show(this.at() >= last ? 0 : from + 1);
    const start = performance.now() - (LASTS * from) / last;
    const next = (now) => {
      const epoch = Math.max(0, (last * (now - start)) / LASTS);
      this.show(Math.min(epoch, last));
      if (epoch >= last) return this.stop();
      this.frame = requestAnimationFrame(next);
    };
    this.rolls = true;
    this.tell();
    next(performance.now());
  }

  /** Stop at the nearest epoch: of what is between two, nothing is known. */
  stop() {
    if (!this.rolls) return;
    cancelAnimationFrame(this.frame);
    this.rolls = false;
    this.tell();
    this.show(Math.round(this.at()));
  }

  /** Say on the button what it does next. */
  tell() {
    const title = this.rolls ? "Stop" : still() ? "Next epoch" : "Play the training";
    Object.assign(this.button, { textContent: this.rolls ? "❚❚" : "▶", title });
    this.button.setAttribute("aria-label", title);
  }
}
