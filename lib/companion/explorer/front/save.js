// The explorer's view as one picture.

import { write } from "./draw.js";
import { canvasOf, element, pixelRatio, sharper } from "./page.js";

const FINER = 2; // times the screen's resolution

/** Lines on a canvas of their own: words, or a name and a value, with a bar behind them if it is a share. */
function written({ colours }, lines) {
  const all = lines.flatMap((line) =>
    Array.isArray(line) ? [line] : (line.match(/.{1,30}(\s|$)/g) || []).map((part) => [part]),
  );
  const wide = 220;
  const canvas = element("canvas"), pen = canvasOf(canvas, wide, 19 * all.length + 4);
  all.forEach(([name, value, share = 0], i) => {
    pen.fillStyle = colours.accent;
    pen.globalAlpha = 0.35;
    pen.fillRect(0, 19 * i + 2, share * wide, 16);
    pen.globalAlpha = 1;
    const style = value === undefined ? { size: 12, weight: "bold" } : { size: 12, colour: colours.faint };
    write(pen, colours, name, 0, 19 * i + 14, style);
    write(pen, colours, value ?? "", wide, 19 * i + 14, { size: 12, align: "right" });
  });
  return canvas;
}

/** The view as one picture, with twice the screen's resolution: all canvases are drawn anew for it. */
export function pictureOf(explorer) {
  const draw = () => {
    explorer.relayout = true;
    explorer.draw();
  };
  const picture = sharper(FINER, () => {
    draw();
    return composed(explorer);
  });
  draw();
  return picture;
}

/** The canvases of the view on one: the image, then every model's grid and chosen head, each with its prediction. */
function composed(explorer) {
  const ratio = pixelRatio(), pad = 16 * ratio, { state, colours } = explorer;
  const { panel } = explorer, { card } = panel;
  const numbers = [...panel.numbers.querySelectorAll("dt")].map((dt) => [dt.textContent, dt.nextSibling.textContent]);
  const answer = [...panel.predictions.children].map((node) => {
    if (!node.matches(".ax-class")) return node.textContent;
    const share = parseFloat(node.querySelector("i").style.width) / 100;
    return [node.firstChild.textContent, node.lastChild.textContent, share];
  });
  // Columns of rows of canvases, each column with its title.
  const detail = [panel.headTitle.textContent, ...(panel.numbers.hidden ? [] : numbers)];
  const [zoom, track] = [[panel.zoomBox, panel.zoom], [panel.trackBox, panel.track]].map(([box, canvas]) =>
    box.hidden ? [] : [canvas]);
  const chosen = [...zoom, written(explorer, detail), ...track];
  const columns = [
    [explorer.caption.textContent, [[explorer.image], [written(explorer, ["Prediction", ...answer])]]],
    [panel.title.textContent, [[panel.grid], ...(card.root.hidden ? [] : card.pictures()), chosen]],
  ];
  const wide = (row) => row.reduce((sum, part) => sum + part.width + pad, 0);
  const tall = (row) => Math.max(0, ...row.map((part) => part.height + pad));
  const widths = columns.map(([, rows]) => Math.max(...rows.map(wide)));
  const heights = columns.map(([, rows]) => rows.reduce((sum, row) => sum + tall(row), 0));
  const canvas = element("canvas", {
    width: widths.reduce((a, b) => a + b, pad),
    height: Math.max(...heights) + 4 * pad,
  });
  const pen = canvas.getContext("2d");
  pen.fillStyle = colours.back;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  const size = 13 * ratio;
  let x = pad;
  columns.forEach(([title, rows], i) => {
    let y = 2.5 * pad;
    write(pen, colours, title, x, 1.6 * pad, { size, room: widths[i] - pad }); // a file's name may be long
    for (const row of rows) {
      row.reduce((left, part) => (pen.drawImage(part, left, y), left + part.width + pad), x);
      y += tall(row);
    }
    x += widths[i];
  });
  const { edits } = state, swapped = Object.keys(edits).filter((place) => edits[place].kernel);
  const changed = Object.keys(edits).length - swapped.length;
  const notes = swapped.map((layer) => {
    const { kernel } = edits[layer];
    return `; layer ${Number(layer) + 1} as a ${kernel} × ${kernel} convolution`;
  });
  if (changed) notes.push(`; ${changed} heads changed`);
  const query = `query row ${state.query[0]}, column ${state.query[1]}`;
  const head = `layer ${state.layer + 1}, head ${state.head + 1}`;
  write(pen, colours, `${query}; ${head}${notes.join("")}`, pad, canvas.height - pad, { size });
  return canvas;
}
