// How the explorer draws: colours, brightness, numbers as text, the grid of whole shifts.

import { clamp } from "./maths.js";
import { canvasOf, div, element, gradient } from "./page.js";

export const QUERY = "#D55E00"; // as in the library's figures

// Lightness rises or falls all along (seaborn's mako), so the ramps read without colour vision, and in print.
const MAKO = [
  "#0b0405", "#251729", "#382a54", "#413f80", "#395d9c", "#357ba3", "#3497a9", "#3eb4ad", "#60ceac", "#a9e1bd",
  "#def5e5",
];

/** 256 colours, packed r, g, b, from dark to bright: bright is much, in every picture and every theme. */
export const RAMP = gradient([...MAKO.slice(0, -1), "#f4faf6"], 256);

/** The colours' scale, with words for both of its ends. */
export function scaleBar() {
  const [least, bar, most] = ["", "ax-ramp", ""].map((className) => element("span", { className }));
  bar.style.background = `linear-gradient(90deg, ${[0, 0.2, 0.4, 0.6, 0.8, 1].map(colourAt)})`;
  const tell = (low, high) => {
    least.textContent = low;
    most.textContent = high;
  };
  return { root: div("ax-row ax-scalebar", least, bar, most), tell };
}

/** The ramp's colour of a share, for a canvas. */
export function colourAt(share) {
  const at = 3 * Math.round(255 * share);
  return `rgb(${RAMP[at]},${RAMP[at + 1]},${RAMP[at + 2]})`;
}

/** Brightness 0..255 of every probability: a power of its share of the largest. */
export function brightness(values, largest, out, power = 0.5) {
  for (let k = 0; k < values.length; k++) out[k] = 255 * clamp(values[k] / (largest || 1), 0, 1) ** power;
  return out;
}

/** Levels (0..255) at every pixel of a grid in the ramp's colours, each as opaque (0..255) as `opacity` says of it, on
 * a canvas of the grid's size. */
export function drawLevels(canvas, levels, [height, width], opacity) {
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const pen = canvas.getContext("2d", { willReadFrequently: true }), image = pen.createImageData(width, height);
  for (let at = 0; at < levels.length; at++) {
    const level = Math.round(levels[at]);
    for (let c = 0; c < 3; c++) image.data[4 * at + c] = RAMP[3 * level + c];
    image.data[4 * at + 3] = opacity(level);
  }
  pen.putImageData(image, 0, 0);
}

/** Values at every pixel of a grid, coloured from `low` to `high`, on a canvas whose longer side is `side`. */
export function drawField(canvas, values, [height, width], side, [low, high]) {
  const cell = side / Math.max(height, width), pen = canvasOf(canvas, width * cell, height * cell);
  values.forEach((value, at) => {
    pen.fillStyle = colourAt((value - low) / (high - low || 1));
    pen.fillRect((at % width) * cell, Math.floor(at / width) * cell, cell + 0.5, cell + 0.5);
  });
}

/** An image {shape: [height, width, channels], values: bytes} on a canvas of its own size. */
export function imageCanvas({ shape: [height, width, channels], values }, canvas = document.createElement("canvas")) {
  Object.assign(canvas, { width, height });
  const pen = canvas.getContext("2d"), image = pen.createImageData(width, height);
  for (let at = 0; at < height * width; at++) {
    for (let c = 0; c < 3; c++) image.data[4 * at + c] = values[at * channels + (channels === 1 ? 0 : c)];
    image.data[4 * at + 3] = 255;
  }
  pen.putImageData(image, 0, 0);
  return canvas;
}

export const signed = (value, digits = 2) =>
  (value.toFixed(digits) < 0 ? "−" : "+") + Math.abs(value).toFixed(digits);
export const shiftText = ([r, c], digits) => `(${signed(r, digits)}, ${signed(c, digits)})`;

/** A share in two digits, or in as many as tell it from 0% and from 100%. */
export const percent = (p) => {
  if (!(p >= 0.0001)) return "<0.01%";
  if (p >= 0.995 && p < 0.9999) return `${Math.min(100 * p, 99.9).toFixed(1)}%`;
  return `${(100 * p).toFixed(p < 0.001 ? 2 : p < 0.0995 ? 1 : 0)}%`;
};

/** Lines between whole shifts around a query pixel, which is framed: heads stand on it. */
export function pixelGrid(pen, x, y, scale, range, colours) {
  const large = scale > 20;
  pen.strokeStyle = colours.line;
  pen.lineWidth = large ? 1 : 0.5;
  pen.beginPath();
  for (let n = -Math.ceil(range) + 0.5; n < range; n++) {
    pen.moveTo(x + n * scale, y - range * scale);
    pen.lineTo(x + n * scale, y + range * scale);
    pen.moveTo(x - range * scale, y + n * scale);
    pen.lineTo(x + range * scale, y + n * scale);
  }
  pen.stroke();
  pen.strokeStyle = QUERY;
  pen.lineWidth = large ? 2.5 : 1.5;
  pen.strokeRect(x - scale / 2, y - scale / 2, scale, scale);
}

/** A line through points (x, y). */
export function trace(pen, points) {
  pen.beginPath();
  points.forEach((point) => pen.lineTo(...point));
  pen.stroke();
}

/** Words: the size and weight of their letters, where they align, their colour, a halo (to be read on any ground), and
 * the room that they have. */
export function write(pen, colours, text, x, y, style = {}) {
  const { size = 11, weight = "", align = "left", colour = colours.text, halo, room } = style;
  Object.assign(pen, { font: `${weight} ${size}px ${colours.font}`, textAlign: align, fillStyle: colour });
  if (halo) {
    Object.assign(pen, { strokeStyle: halo, lineWidth: 3, lineJoin: "round" });
    pen.strokeText(text, x, y);
  }
  pen.fillText(text, x, y, room);
}

/** A filled disc, of that colour. */
export function disc(pen, x, y, radius, colour) {
  pen.beginPath();
  pen.arc(x, y, radius, 0, 7);
  pen.fillStyle = colour;
  pen.fill();
}

/** A frame (x, y, width, height), in several colours and widths on each other: so it is seen on any ground. */
export function frame(pen, box, lines) {
  for (const [strokeStyle, lineWidth] of lines) {
    Object.assign(pen, { strokeStyle, lineWidth });
    pen.strokeRect(...box);
  }
}

/** Draw inside a box (x, y, width, height) only. */
export function inside(pen, box, draw) {
  pen.save();
  pen.beginPath();
  pen.rect(...box);
  pen.clip();
  draw();
  pen.restore();
}
