// Words that explain themselves: under the pointer, on a tap, and where the keyboard is.

import { element, uniqueId } from "./page.js";
import { WORDS } from "./words.js";

const KNOWN = new RegExp(`\\b(${Object.keys(WORDS).join("|")})\\b`, "g");

/** A text with its known words, each of them once, as what can be asked. */
function explained(text) {
  const found = new Set();
  return text.split(KNOWN).map((part) => {
    if (!(part in WORDS) || found.has(WORDS[part])) return part;
    found.add(WORDS[part]);
    const word = element("span", { className: "ax-word", tabIndex: 0, textContent: part });
    word.dataset.tip = WORDS[part];
    return word;
  });
}

/** Write a text into an element unless it stands there, its known words with their meaning. */
export function tell(node, text) {
  if (node.textContent === text) return;
  const at = [...node.children].indexOf(node.getRootNode().activeElement);
  node.replaceChildren(...explained(text));
  if (at >= 0) node.children[at]?.focus({ preventScroll: true }); // the keyboard stays at its word
}

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
      if (event.target.matches(":focus-visible, .ax-word")) this.show(this.of(event));
    });
    root.addEventListener("focusout", () => this.hide());
    root.addEventListener("pointerdown", (event) => { this.pointer = event.pointerType; });
    root.addEventListener("click", (event) => {
      const node = this.of(event), word = event.target.closest?.(".ax-word");
      if (word?.closest("label, summary")) event.preventDefault(); // it was asked, not chosen
      if (word || this.pointer !== "mouse") this.show(node);
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
