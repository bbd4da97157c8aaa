// Heads of a layer around the query pixel, as the paper's figure 4 draws them: a dot at the centre, rings that hold 50%
// and 90%. Heads that coincide stand around their place; heads too far away to be seen have an arrow at the edge.

import { disc, pixelGrid, trace, write } from "./draw.js";
import { ellipse } from "./heads.js";
import { clamp } from "./maths.js";
import { inkOn, rgb } from "./page.js";

const DOT = 8; // px, radius

/** Where the dots of heads are drawn in a plot {x, y, side, range}: [{x, y, far}]. `far` is the angle of an arrow, or
 * null. */
export function spots(shapes, { x, y, side, range }) {
  const scale = side / (2 * range), edge = side / 2 - DOT - 4, groups = new Map();
  const found = shapes.map(({ centre: [row, column] }, head) => {
    const [across, down] = [column * scale, row * scale];
    const far = Math.max(Math.abs(across), Math.abs(down)) > side / 2 - 3;
    const shrink = far ? edge / Math.max(Math.abs(across), Math.abs(down)) : 1;
    const at = {
      x: x + side / 2 + across * shrink,
      y: y + side / 2 + down * shrink,
      far: far ? Math.atan2(down, across) : null,
    };
    const key = `${Math.round(at.x / 5)} ${Math.round(at.y / 5)}`;
    groups.set(key, [...(groups.get(key) || []), head]);
    return at;
  });
  for (const group of groups.values())
    if (group.length > 1)
      group.forEach((head, i) => {
        const turn = (2 * Math.PI * i) / group.length - Math.PI / 2, away = DOT * Math.max(1, group.length / 4);
        found[head].x = clamp(found[head].x + away * Math.cos(turn), x + DOT, x + side - DOT);
        found[head].y = clamp(found[head].y + away * Math.sin(turn), y + DOT, y + side - DOT);
      });
  return found;
}

/** The head whose dot is nearest to a point, at most `reach` away; undefined if there is none. */
export function headAt(places, x, y, reach) {
  let best, nearest = reach;
  places.forEach((place, head) => {
    const away = Math.hypot(place.x - x, place.y - y);
    if (away <= nearest) [best, nearest] = [head, away];
  });
  return best;
}

/** Draw the heads {centre, covariance, faint} of a layer into a plot; `chosen` is drawn last, `trails` below them, and
 * lowest the outline of a `kernel` of so many taps a side, from its `first` one, on what `ground` draws. */
export function drawHeads(
  pen,
  plot,
  shapes,
  { colours, colourOf, chosen = -1, lit = -1, trails = [], draggable = false, kernel = 0, first = [0, 0], ground },
) {
  const { x, y, side, range } = plot, scale = side / (2 * range), middle = [x + side / 2, y + side / 2];
  const at = ([r, c]) => [middle[0] + c * scale, middle[1] + r * scale];
  pen.save();
  pen.beginPath();
  pen.rect(x, y, side, side);
  pen.fillStyle = colours.panel;
  pen.fill();
  pen.strokeStyle = colours.line;
  pen.lineWidth = 1;
  pen.stroke();
  pen.clip();
  ground?.();
  pixelGrid(pen, ...middle, scale, range, colours);
  pen.strokeStyle = colours.text;
  pen.lineWidth = 2;
  if (kernel) pen.strokeRect(...at(first.map((tap) => tap - 0.5)), kernel * scale, kernel * scale);
  trails.forEach((points, head) => {
    pen.strokeStyle = colourOf(head);
    pen.globalAlpha = 0.55;
    pen.lineWidth = 1.6;
    pen.lineJoin = "round";
    trace(pen, points.map(at));
  });
  const places = spots(shapes, plot);
  const order = shapes.map((_, head) => head).sort((a, b) => (a === chosen) - (b === chosen));
  for (const head of order) {
    const { centre, covariance, faint } = shapes[head];
    const colour = colourOf(head);
    const strong = head === chosen || head === lit;
    pen.globalAlpha = faint ? 0.25 : 1;
    pen.strokeStyle = pen.fillStyle = colour;
    if (covariance && places[head].far === null)
      for (const [share, dashes] of [[0.5, []], [0.9, [2, 3]]]) {
        const { major, minor, angle } = ellipse(covariance, share);
        pen.setLineDash(dashes);
        pen.lineWidth = strong ? 2.5 : 1.2;
        pen.beginPath();
        pen.ellipse(...at(centre), Math.min(major * scale, 2000), Math.min(minor * scale, 2000), angle, 0, 2 * Math.PI);
        pen.stroke();
        if (draggable && head === chosen && share === 0.5)
          handle(pen, at(centre), Math.min(major * scale, 2000), angle, colours);
      }
    pen.setLineDash([]);
    dot(pen, places[head], head, {
      colour,
      colours,
      strong,
      flat: covariance && covariance[0] + covariance[2] > range * range,
    });
  }
  pen.restore();
  pen.globalAlpha = 1;
  return places;
}

/** A small square on the ring that holds 50%: it can be dragged. */
function handle(pen, [x, y], major, angle, colours) {
  pen.fillStyle = colours.back;
  pen.fillRect(x + major * Math.cos(angle) - 3.5, y + major * Math.sin(angle) - 3.5, 7, 7);
  pen.lineWidth = 1.5;
  pen.strokeRect(x + major * Math.cos(angle) - 3.5, y + major * Math.sin(angle) - 3.5, 7, 7);
}

/** A head's dot with its number, hollow if the head has no place of its own; an arrow shows where it would be, if it is
 * too far away. */
function dot(pen, { x, y, far }, head, { colour, colours, strong, flat }) {
  pen.fillStyle = colour;
  if (far !== null) {
    pen.beginPath();
    for (const [turn, reach] of [[0, DOT + 6], [0.7, DOT + 1], [-0.7, DOT + 1]])
      pen.lineTo(x + reach * Math.cos(far + turn), y + reach * Math.sin(far + turn));
    pen.fill();
  }
  disc(pen, x, y, strong ? DOT + 1 : DOT - 1, flat ? colours.panel : colour);
  pen.strokeStyle = flat ? colour : strong ? colours.text : colours.panel;
  pen.lineWidth = strong || flat ? 2 : 1;
  pen.stroke();
  const ink = flat ? colours.text : inkOn(rgb(colour));
  write(pen, colours, head + 1, x, y + 3.5, { size: 10, weight: "bold", align: "center", colour: ink });
}
