// What explains itself: under the pointer, on a tap, and where the keyboard is.

import { element, uniqueId } from "./page.js";

/** One box in an element that says what the thing below the pointer, the finger or the keyboard means: whatever has a
 * `title` or `data-tip`. */
export class Tips {
  constructor(root) {
    Object.assign(this, { root, at: null, id: uniqueId() });
    this.box = element("div", { className: "ax-tip", id: this.id, role: "tooltip", hidden: true });
    // A move is the reader's. The page may also scroll below a resting pointer, to what the keyboard chose.
    root.addEventListener("pointermove", (event) => event.pointerType === "mouse" && this.hover(this.of(event)));
    root.addEventListener("pointerleave", () => this.hover(null));
    root.addEventListener("focusin", (event) => {
      if (event.target.matches(":focus-visible")) this.show(this.of(event));
    });
    root.addEventListener("focusout", () => this.hide());
    root.addEventListener("pointerdown", (event) => { this.pointer = event.pointerType; });
    root.addEventListener("click", (event) => {
      const node = this.of(event);
      if (this.pointer !== "mouse") this.show(node);
      else this.hide(); // what it does is what the reader wants to see now
    });
    root.addEventListener("keydown", (event) => event.key === "Escape" && this.hide());
  }

  /** What has something to say there. A browser's own box beside this one would say it twice. */
  of({ target }) {
    const node = target.closest?.("[title], [data-tip]");
    if (node?.title) {
      node.dataset.tip = node.title;
      node.setAttribute("aria-description", node.title);
      node.removeAttribute("title");
    }
    return node && this.root.contains(node) ? node : null;
  }

  hover(node) {
    if (node !== this.over && (node || this.at === this.over)) this.show(node);
    this.over = node;
  }

  show(node) {
    if (node === this.at && !this.box.hidden) return;
    this.hide();
    if (!node?.dataset.tip) return;
    this.at = node;
    node.setAttribute("aria-describedby", this.id);
    this.tell(node.dataset.tip, node.getBoundingClientRect());
  }

  /** Say something about a part of the window: below it, or above it where there is no room. */
  tell(text, { left, top, bottom }) {
    const { box, root } = this, own = root.getBoundingClientRect();
    box.textContent = text;
    box.hidden = false;
    const room = own.width - box.offsetWidth - 8, below = bottom + box.offsetHeight + 8 < window.innerHeight;
    box.style.left = `${Math.max(8, Math.min(left - own.left, room))}px`;
    box.style.top = `${(below ? bottom + 6 : top - box.offsetHeight - 6) - own.top}px`;
  }

  /** What is said of a thing may have changed while its box is open. */
  follow() {
    if (this.at && this.box.textContent !== this.at.dataset.tip) this.box.textContent = this.at.dataset.tip;
  }

  hide() {
    this.at?.removeAttribute("aria-describedby");
    this.at = null;
    this.box.hidden = true;
  }
}
