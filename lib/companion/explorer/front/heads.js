// What the explorer knows of a model's heads, without a browser: arrays as Python packs them, attention maps at any
// query, numbers about a map, what kind of head it is, and the convolution that a layer holds.

import { clamp, softmax } from "./maths.js";

// --- arrays ---------------------------------------------------------------------------------------------------------

const TYPES = { uint8: Uint8Array, uint16: Uint16Array, float32: Float32Array };

/** {dtype, shape, data: ArrayBuffer or view} -> typed array; copied, so that any offset is aligned. */
export function typed({ dtype, data }) {
  const bytes = ArrayBuffer.isView(data)
    ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength)
    : new Uint8Array(data);
  return new TYPES[dtype](bytes.slice().buffer);
}

/** The tree that `companion.explorer.pack` wrote (already gunzipped): length, JSON, bytes. */
export function unpack(buffer) {
  const length = new DataView(buffer).getUint32(0, true);
  const start = 4 + length;
  return JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 4, length)), (_, value) =>
    value && value.$bytes ? new Uint8Array(buffer, start + value.$bytes[0], value.$bytes[1]) : value);
}

export const TOO_OLD = "This browser is too old for this page: it needs Chrome 98, Firefox 113, Safari 16.4 or newer.";

/** The same from its gzip file. */
export const read = async (bytes) =>
  unpack(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer());

// --- attention maps -------------------------------------------------------------------------------------------------

/** Standard deviation det(Sigma)^(1/4) of a Gaussian head, from Sigma^{-1} as [rr, rc, cr, cc]. */
export const sigmaOf = (p) => Math.max(p[0] * p[3] - p[1] * p[2], 0) ** -0.25;

/** Sigma^{-1} scaled from one sigma to another: the shape stays. `old` is Python's: a nearly singular head has one that
 * Sigma^{-1} in 32 bits does not tell any more. It is 0 where a head has no scale; the head becomes round then. */
export function rescaled(precision, old, sigma) {
  if (!old) return [sigma ** -2, 0, 0, sigma ** -2];
  return precision.map((value) => value * (old / sigma) ** 2);
}

/** Centre and Sigma^{-1} of a Gaussian head in arrays of them. */
const gaussianOf = ({ centres, precisions }, at) => ({
  centre: [centres[2 * at], centres[2 * at + 1]],
  precision: Array.from(precisions.subarray(4 * at, 4 * at + 4)),
});

/** A head between two epochs: its centre and its covariance go along straight lines, and of a Gaussian head 1 / sigma,
 * the parameter itself. */
function mixed(from, to, part) {
  const along = (name) => from[name].map((value, i) => value + part * (to[name][i] - value)), centre = along("centre");
  if (!from.precision) return { centre, covariance: along("covariance") };
  const precision = along("precision"), now = sigmaOf(precision);
  const [before, after] = [from, to].map((one) => 1 / sigmaOf(one.precision));
  const sigma = 1 / (before + part * (after - before));
  return { centre, precision: Number.isFinite(now + sigma) ? rescaled(precision, now, sigma) : precision };
}

/** One model: gives the logits and the map of any head at any query. `edits` maps "layer.head" to {centre, sigma, off},
 * and "layer" to {kernel}, where a convolution of that size is in the layer's place. */
export class Model {
  constructor(side) {
    const { name, title, heads, encoding, grid, counted } = side;
    Object.assign(this, { name, title, heads, encoding, grid, counted });
    [this.height, this.width] = side.grid;
    this.pixels = this.height * this.width;
    this.most = Math.max(...side.heads); // arrays are padded to this many heads a layer
    for (const name of ["centres", "precisions", "sigmas", "rows", "columns", "products"])
      if (side[name]) this[name] = typed(side[name]);
    if (side.path) {
      this.path = { epochs: side.path.epochs, accuracy: side.path.accuracy };
      for (const name of ["measured", "covariances", "centres", "precisions", "products"])
        if (side.path[name]) this.path[name] = typed(side.path[name]);
    }
    this.content = side.encoding === "content";
    this.replayed = Boolean(this.path && this.path.centres); // P of every epoch can be computed
    this.epoch = null; // null: the trained model
    this.edits = {};
    this.scores = null;
    this.work = new Float32Array(this.pixels);
  }

  /** Scores of one layer for an image: {content, rows, columns}, each (heads, pixels, keys). */
  setScores(layer, scores) {
    this.scores = this.scores ? [...this.scores] : []; // a new list: what was drawn of the old one is seen to be old
    this.scores[layer] = scores;
  }

  /** Whether the scores that are to be shown are not there. */
  get lacks() {
    return this.content && !this.scores;
  }

  /** What was counted with convolutions of one size in these layers: {now, whole: shares of right answers, images}. */
  counts(size, layers) {
    const found = this.counted[size]?.[layers.reduce((sum, layer) => sum + 2 ** layer, 0)];
    return found ? { now: found[0] / found[2], whole: found[1] / found[2], images: found[2] } : null;
  }

  /** The same with the changes as they are now; null where it was not counted. */
  countsNow() {
    const places = Object.keys(this.edits), sizes = new Set(places.map((place) => this.edits[place].kernel));
    const [size] = places.length ? sizes : Object.keys(this.counted);
    return sizes.size > 1 ? null : this.counts(size, places.map(Number));
  }

  /** What a layer costs as a 3 × 3 convolution, the others as they were trained: a share; null where it was not
   * counted. */
  lostAlone(layer) {
    const found = this.counts(3, [layer]);
    return found && found.whole - found.now;
  }

  /** Centre (row, column) and Sigma^{-1} of a Gaussian head as it is now: at the chosen epoch, or as the reader set
   * it. */
  gaussian(layer, head, pristine = false) {
    const index = layer * this.most + head;
    const replay = this.epoch !== null && this.replayed;
    let { centre, precision } = replay
      ? this.between((epoch) => gaussianOf(this.path, epoch * this.heads.length * this.most + index))
      : gaussianOf(this, index);
    const edit = pristine || replay ? null : this.edits[`${layer}.${head}`];
    if (edit && edit.centre) centre = edit.centre;
    if (edit && edit.sigma) precision = rescaled(precision, this.sigmas[index], edit.sigma);
    return {
      centre,
      precision,
      sigma: edit && edit.sigma ? edit.sigma : replay ? sigmaOf(precision) : this.sigmas[index] || Infinity,
    };
  }

  /** Whether the reader switched a head off. */
  isOff(layer, head) {
    const edit = this.edits[`${layer}.${head}`];
    return Boolean(edit && edit.off && this.epoch === null);
  }

  /** The size of the convolution that the reader put in a layer's place, or null. */
  kernelAt(layer) {
    const size = this.edits[layer]?.kernel;
    return !this.content && this.epoch === null && fitting(this, size) ? size : null;
  }

  /** What a head that knows places only scores a shift (rows, columns) with, as a function. */
  scoreOf(layer, head) {
    if (this.encoding === "quadratic") {
      const { centre, precision: [a, b, c, d] } = this.gaussian(layer, head);
      return (row, column) => {
        const r = row - centre[0], s = column - centre[1];
        return -0.5 * (a * r * r + (b + c) * r * s + d * s * s);
      };
    }
    const at = layer * this.most + head, { rows, columns, height, width } = this;
    const [row, column] = [height, width].map((length) => at * (2 * length - 1) + length - 1); // of shift 0
    return (r, s) => rows[row + r] + columns[column + s];
  }

  /** Logits of one head at query (i, j) over all key pixels; `part` matters with content only. */
  logits(layer, head, [i, j], out, part = "full") {
    const { height, width, content } = this, score = content ? null : this.scoreOf(layer, head);
    const query = (head * height + i) * width + j, known = content ? this.scores[layer] : {};
    for (let k = 0, at = 0; k < height; k++)
      for (let l = 0; l < width; l++, at++) {
        if (score) out[at] = score(k - i, l - j);
        else {
          out[at] = part === "position" ? 0 : known.content[query * this.pixels + at];
          if (part !== "content") out[at] += known.rows[query * height + k] + known.columns[query * width + l];
        }
      }
    return out;
  }

  /** P of one head as a product: the softmax over the rows (height x height) and over the columns (width x width) for
   * every query's row and column. Null where it does not factor. */
  axes(layer, head) {
    if (this.content) return null;
    const { precision = [0, 0, 0, 0] } = this.encoding === "quadratic" ? this.gaussian(layer, head) : {};
    if (precision[1] || precision[2]) return null;
    const score = this.scoreOf(layer, head);
    return [this.height, this.width].map((length, axis) => {
      const out = new Float32Array(length * length), along = (shift) => (axis ? score(0, shift) : score(shift, 0));
      for (let q = 0; q < length; q++) {
        const scores = Float64Array.from({ length }, (_, k) => along(k - q)); // but for a constant
        softmax(scores, out.subarray(q * length, (q + 1) * length));
      }
      return out;
    });
  }

  /** P of one head at a query: sums to 1. */
  probabilities(layer, head, query, out, part) {
    return softmax(this.logits(layer, head, query, this.work, part), out);
  }

  /** Whether of the epoch that is shown only the heads' centres are known. */
  get film() {
    return this.epoch !== null && !this.replayed;
  }

  /** Centre and covariance of a head as they were measured at the epoch that is shown. */
  recorded(layer, head) {
    const { measured, covariances } = this.path;
    return this.between((epoch) => {
      const at = (epoch * this.heads.length + layer) * this.most + head;
      return {
        centre: [measured[2 * at], measured[2 * at + 1]],
        covariance: [0, 1, 3].map((i) => covariances[4 * at + i]),
      };
    });
  }

  /** What `of` tells of the epoch that is shown; in a film it lies between that of two epochs. */
  between(of) {
    const first = Math.floor(this.epoch), part = this.epoch - first, here = of(first);
    return part ? mixed(here, of(first + 1), part) : here;
  }

  /** The products <W^h, W^g> of a layer's heads, (most, most), at the epoch that is shown or the one nearest to it;
   * nothing where they or the maps are not known. */
  productsOf(layer) {
    const { epoch, most, heads, path, film } = this, trained = epoch === null, from = trained ? this : path;
    const at = (trained ? 0 : Math.round(epoch) * heads.length) + layer;
    return film ? undefined : from.products?.subarray(at * most ** 2, (at + 1) * most ** 2);
  }

  /** Where the recorded path of a head went: [[row, column], ...] by epoch. */
  track(layer, head) {
    if (!this.path) return [];
    const from = this.path.centres || this.path.measured;
    return Array.from({ length: this.path.epochs }, (_, epoch) => {
      const at = 2 * ((epoch * this.heads.length + layer) * this.most + head);
      return [from[at], from[at + 1]];
    });
  }
}

/** Numbers about a map, as `attnconv.heads.describe` defines them. */
export function describe(map, height, width, [i, j]) {
  let row = 0, column = 0, reach = 0, entropy = 0, best = 0;
  for (let k = 0, at = 0; k < height; k++)
    for (let l = 0; l < width; l++, at++) {
      const p = map[at];
      row += p * (k - i);
      column += p * (l - j);
      reach += p * Math.hypot(k - i, l - j);
      if (p > 0) entropy -= p * Math.log(p);
      if (p > map[best]) best = at;
    }
  const covariance = [0, 0, 0];
  for (let k = 0, at = 0; k < height; k++)
    for (let l = 0; l < width; l++, at++) {
      const [r, s] = [k - i - row, l - j - column];
      covariance[0] += map[at] * r * r;
      covariance[1] += map[at] * r * s;
      covariance[2] += map[at] * s * s;
    }
  return {
    centre: [row, column], covariance, reach, entropy,
    spread: Math.sqrt((covariance[0] + covariance[2]) / 2), // root mean square along an axis, pixels
    peak: [Math.floor(best / width) - i, (best % width) - j], mass: map[best],
  };
}

/** Half axes and angle of the ellipse that holds a share of a Gaussian with this covariance [rr, rc, cc]. */
export function ellipse([a, b, c], share) {
  const mean = (a + c) / 2, apart = Math.hypot((a - c) / 2, b);
  const scale = Math.sqrt(-2 * Math.log(1 - share));
  return {
    major: scale * Math.sqrt(mean + apart), minor: scale * Math.sqrt(Math.max(mean - apart, 0)),
    angle: Math.atan2(mean + apart - c, b || 1e-12), // of the major axis, from the columns' axis towards rows
  };
}

/** Covariance [rr, rc, cc] from Sigma^{-1} [rr, rc, cr, cc]. No variance is above 10,000 square pixels: so a head that
 * is singular along one direction shows as a strip along it, and one that is singular along both as a wide disc. */
export function covarianceOf([a, b, c, d]) {
  const mean = (a + d) / 2, apart = Math.hypot((a - d) / 2, (b + c) / 2), turn = Math.atan2(b + c, a - d) / 2;
  const [cos, sin] = [Math.cos(turn), Math.sin(turn)];
  const [narrow, wide] = [mean + apart, mean - apart].map((value) => 1 / Math.max(value, 1e-4));
  return [narrow * cos * cos + wide * sin * sin, (narrow - wide) * cos * sin, narrow * sin * sin + wide * cos * cos];
}

// --- what kind of head it is, and the kernel of a layer -------------------------------------------------------------

/** The whole number next to it, halves to the even one, as numpy has it. */
const whole = (value) => (Math.abs(value % 1) === 0.5 ? 2 * Math.round(value / 2) : Math.round(value));
const LEAST = 0.5; // of a head's attention on one pixel: then it is a tap (`TAP_MASS` of attnconv.heads)
const UNIFORM = 0.95; // of the largest possible entropy
const LONG = 3; // times as long as wide
const SIZES = [1, 3, 5, 7, 9]; // of the kernels that can be read

export const KINDS = {
  tap: "one tap of a kernel: more than half of its attention is on one pixel, always at the same shift from the query",
  blur: "a blur: its attention is spread over several pixels",
  row: "a row: along a row its attention is spread over three times as much as across it",
  column: "a column: along a column its attention is spread over three times as much as across it",
  line: "a slanted line: along it its attention is spread over three times as much as across it",
  uniform: "uniform: it averages over nearly the whole picture (its entropy is above 95% of the largest one)",
  outside:
    "its centre lies outside the picture, seen from the picture's middle: it takes what is left at the border, and " +
    "is no tap",
  off: "switched off: it adds nothing",
};

/** The query in the middle, at which `attnconv.heads.geometry` measures heads too. */
export const middleOf = ({ height, width }) => [height >> 1, width >> 1];

/** One head from the middle of the picture: its kind (of KINDS), and the whole shift that it looks at. */
function kindOf(model, layer, head, map) {
  const query = middleOf(model), told = describe(map, model.height, model.width, query);
  const centre = model.encoding === "quadratic" ? model.gaussian(layer, head).centre : told.centre;
  const at = told.centre.map((c, i) => clamp(whole(c), -query[i], (i ? model.width : model.height) - 1 - query[i]));
  const mass = map[(query[0] + at[0]) * model.width + query[1] + at[1]], shift = centre.map((c) => whole(c) || 0);
  const [rr, rc, cc] = told.covariance, { major, minor } = ellipse(told.covariance, 0.5);
  const slanted = 2 * Math.abs(rc) > Math.abs(rr - cc); // by more than 22.5 degrees
  const seen = shift.every((c, i) => query[i] + c >= 0 && query[i] + c < (i ? model.width : model.height));
  let kind = "blur";
  if (model.isOff(layer, head)) kind = "off";
  else if (!seen) kind = "outside";
  else if (mass > LEAST) kind = "tap";
  else if (told.entropy > UNIFORM * Math.log(model.pixels)) kind = "uniform";
  else if (major > LONG * minor) kind = slanted ? "line" : cc > rr ? "row" : "column";
  return { kind, mass: kind === "off" ? 0 : mass, shift, told };
}

/** Taps of a K x K kernel that have a head, as `kernel_cells` of attnconv.heads counts them: their number, and
 * the shift of the `first` of all taps.
 *
 * A head covers the whole shift nearest to its centre if more than half of its attention is there. Of an even kernel
 * any of the four middle taps may be the query's: that for which most are covered.
 */
export function coveredTaps(heads, size) {
  const firsts = [...new Set([-(size >> 1), 1 - ((size + 1) >> 1)])], covers = heads.filter(({ mass }) => mass > LEAST);
  const places = firsts.flatMap((row) =>
    firsts.map((column) => {
      const inside = covers
        .map(({ shift: [r, c] }) => [r - row, c - column])
        .filter((at) => at.every((i) => i >= 0 && i < size));
      return { first: [row, column], covered: new Set(inside.map(String)).size };
    }),
  );
  return places.reduce((best, one) => (one.covered >= best.covered ? one : best)); // of equal ones the usual, the last
}

/** A layer from the middle of the picture: {heads: their kinds, maps, size and covered: "covered of size^2 taps"}. */
export function readLayer(model, layer, part) {
  const maps = Array.from({ length: model.heads[layer] }, (_, head) =>
    model.probabilities(layer, head, middleOf(model), new Float32Array(model.pixels), part),
  );
  const heads = maps.map((map, head) => kindOf(model, layer, head, map));
  heads.forEach((one, head) => {
    one.same =
      one.kind === "tap"
        ? heads.findIndex((other, i) => i < head && other.kind === "tap" && String(other.shift) === String(one.shift))
        : -1;
  });
  const size = Math.floor(Math.sqrt(heads.length));
  return { heads, maps, size, ...(size ? coveredTaps(heads, size) : { first: [0, 0], covered: 0 }) };
}

/** Whether a kernel of that size lies around the middle of a grid. */
const fitting = ({ height, width }, size) => size > 0 && size % 2 === 1 && size <= Math.min(height, width);

/** Sizes of the kernels that can be read at the middle of a grid. */
export const kernelSizes = (grid) => SIZES.filter((size) => fitting(grid, size));

/** The kernel in a layer's maps (from the middle), as `attention_to_conv` of attnconv.equivalence reads it.
 *
 * W_Delta = sum_h P_h(Delta) W^h, and norms follow from the products <W^h, W^g> alone: |W_Delta|^2 = p G p. Of a K x K
 * kernel: `norms` of its taps, each head's `parts` P_h(Delta) |W^h|, each head's mass `outside`, and the `error`, the
 * difference between layer and convolution on white noise, as a share of the layer's output.
 */
export function kernelOf(model, layer, maps, size) {
  const count = maps.length, [middleRow, middleColumn] = middleOf(model), reach = size >> 1;
  const on = maps.map((_, head) => !model.isOff(layer, head));
  const products = model.productsOf(layer);
  const gram = maps.map((_, h) => maps.map((_, g) => (on[h] && on[g] ? products[h * model.most + g] : 0)));
  const norms = [], parts = maps.map(() => []), outside = maps.map(() => 0);
  let lost = 0, all = 0;
  for (let r = 0, at = 0; r < model.height; r++)
    for (let c = 0; c < model.width; c++, at++) {
      let square = 0;
      for (let h = 0; h < count; h++) {
        const p = maps[h][at], row = gram[h];
        if (p > 0) for (let g = 0; g < count; g++) square += p * maps[g][at] * row[g];
      }
      all += square;
      if (Math.max(Math.abs(r - middleRow), Math.abs(c - middleColumn)) <= reach) {
        norms.push(Math.sqrt(Math.max(square, 0)));
        maps.forEach((map, h) => parts[h].push(map[at] * Math.sqrt(gram[h][h])));
      } else {
        lost += square;
        maps.forEach((map, h) => { outside[h] += map[at]; });
      }
    }
  return { size, norms, parts, outside, error: all > 0 ? Math.sqrt(Math.max(lost, 0) / all) : 0 };
}
