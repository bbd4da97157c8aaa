// What the explorer and the playground need of a page.

/** An element: tag, properties (those with a dash, and "role", as attributes), children. */
export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties))
    if (name.includes("-") || name === "role") node.setAttribute(name, value);
    else node[name] = value;
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** A canvas of that size on the page, as sharp as the screen; returns its cleared context. */
export function canvasOf(canvas, wide, tall) {
  const ratio = window.devicePixelRatio || 1;
  Object.assign(canvas, { width: Math.round(wide * ratio), height: Math.round(tall * ratio) });
  Object.assign(canvas.style, { width: `${wide}px`, height: `${tall}px` });
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}

/** Red, green, blue of "#rrggbb". */
export const rgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));

/** Lightness 0..1 of a colour [r, g, b]. */
export const luminance = (c) => (0.299 * c[0] + 0.587 * c[1] + 0.114 * c[2]) / 255;

/** The colours that the theme gives an element, and whether its back is dark. */
export function themeOf(root) {
  const style = getComputedStyle(root), get = (name) => style.getPropertyValue(name).trim();
  // The browser turns any colour of the theme into numbers when a canvas takes it.
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  probe.fillStyle = get("--ax-back");
  probe.fillRect(0, 0, 1, 1);
  const dark = luminance(probe.getImageData(0, 0, 1, 1).data) < 0.5;
  root.classList.toggle("ax-dark", dark);
  const names = ["back", "panel", "text", "faint", "line", "accent"]; // the accent is another on a dark back
  return { dark, font: style.fontFamily, ...Object.fromEntries(names.map((name) => [name, get(`--ax-${name}`)])) };
}

/** Call `act` whenever the theme of JupyterLab or of the system changes; returns a function that ends it. */
export function onTheme(act) {
  const observer = new MutationObserver(act), media = window.matchMedia("(prefers-color-scheme: dark)");
  observer.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light", "data-jp-theme-name", "class"] });
  media.addEventListener("change", act);
  return () => {
    observer.disconnect();
    media.removeEventListener("change", act);
  };
}
