// The model itself in the browser: its prediction for any image and any changed heads, and what a layer and a head do.
// The definitions are Python's (attnconv.models, companion.explorer.subject); weights are in half precision or less.

import { Model, middleOf } from "./heads.js";
import { clamp, softmax } from "./maths.js";

const NOTHING = 1e-9; // probabilities below it are passed over

/** 16-bit floating-point numbers, their high bytes and their low ones, as 32-bit numbers. */
export function fromHalf(high, low) {
  return Float32Array.from(high, (byte, i) => {
    const code = (byte << 8) | low[i], exponent = (code >> 10) & 31, fraction = (code & 1023) / 1024;
    const size = exponent ? 2 ** (exponent - 15) * (1 + fraction) : 2 ** -14 * fraction;
    return code & 32768 ? -size : size;
  });
}

/** A linear map of rows (n x channels) by weights (d x channels), as torch keeps them: (n x d).
 *
 * Four rows and two outputs at a time: nearly all of a prediction's time is spent here.
 */
export function linear(rows, { weight, bias }, channels) {
  const many = rows.length / channels, outputs = weight.length / channels, out = new Float32Array(many * outputs);
  for (let d = 0; d < outputs; d += 2) {
    const first = d * channels, second = d + 1 < outputs ? first + channels : first;
    for (let n = 0; n < many; n += 4) {
      const [x, y, z, u] = [0, 1, 2, 3].map((i) => Math.min(n + i, many - 1) * channels);
      let x0 = 0, x1 = 0, y0 = 0, y1 = 0, z0 = 0, z1 = 0, u0 = 0, u1 = 0;
      for (let c = 0; c < channels; c++) {
        const p = weight[first + c], q = weight[second + c];
        x0 += rows[x + c] * p;
        x1 += rows[x + c] * q;
        y0 += rows[y + c] * p;
        y1 += rows[y + c] * q;
        z0 += rows[z + c] * p;
        z1 += rows[z + c] * q;
        u0 += rows[u + c] * p;
        u1 += rows[u + c] * q;
      }
      const sums = [x0, x1, y0, y1, z0, z1, u0, u1];
      for (let i = 0; i < 4 && n + i < many; i++)
        for (let j = 0; j < 2 && d + j < outputs; j++)
          out[(n + i) * outputs + d + j] = sums[2 * i + j] + (bias ? bias[d + j] : 0);
    }
  }
  return out;
}

/** Rows (n x channels) with mean 0 and variance 1, then scaled and shifted; in place. */
export function layerNorm(rows, { weight, bias }) {
  const channels = weight.length;
  for (let from = 0; from < rows.length; from += channels) {
    let mean = 0, square = 0;
    for (let c = 0; c < channels; c++) mean += rows[from + c] / channels;
    for (let c = 0; c < channels; c++) square += (rows[from + c] - mean) ** 2 / channels;
    const scale = 1 / Math.sqrt(square + 1e-12);
    for (let c = 0; c < channels; c++) rows[from + c] = (rows[from + c] - mean) * scale * weight[c] + bias[c];
  }
  return rows;
}

/** GELU, x Phi(x), in place; the error function after Abramowitz and Stegun, 7.1.26 (to 1.5e-7). */
export function gelu(values) {
  for (let i = 0; i < values.length; i++) {
    const x = values[i], z = Math.abs(x) * Math.SQRT1_2, t = 1 / (1 + 0.3275911 * z);
    const rest =
      t *
      (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429)))) *
      Math.exp(-z * z);
    values[i] = x >= 0 ? x * (1 - rest / 2) : (x * rest) / 2;
  }
  return values;
}

const add = (a, b) => a.map((value, i) => value + b[i]);
const normOf = (values) => Math.sqrt(values.reduce((sum, value) => sum + value * value, 0));

/** The pixels of an image {height, width, channels, values: bytes} as the first linear map takes them: each s x s block
 * is one row, channel by channel. Normalised by the mean and the standard deviation that the model was trained with. */
export function unshuffled({ height, width, channels, values }, s, mean, std) {
  const out = new Float32Array(height * width * channels);
  let to = 0;
  for (let row = 0; row < height / s; row++)
    for (let column = 0; column < width / s; column++)
      for (let c = 0; c < channels; c++)
        for (let block = 0; block < s * s; block++) {
          const from = ((row * s + Math.floor(block / s)) * width + column * s + (block % s)) * channels + c;
          out[to++] = (values[from] / 255 - mean[c]) / std[c];
        }
  return out;
}

/** A model with its weights: answers for the image of `setImage`. */
export class Network {
  constructor(side, { mean, std }) {
    Object.assign(this, { heads: new Model(side), mean, std, sampling: side.downsampling });
    const vector = (name) => side.weights[name] && fromHalf(...side.weights[name]);
    const map = (name) => ({ weight: vector(`${name}.weight`), bias: vector(`${name}.bias`) });
    const blocks = side.heads.map((_, layer) => {
      const own = (name) => map(`blocks.${layer}.${name}`);
      const embedding = (axis) => vector(`blocks.${layer}.attention.${axis}_embedding`);
      const parts = {
        value: own("attention.value"),
        output: own("output"),
        norm1: own("norm1"),
        up: own("mlp.0"),
        down: own("mlp.2"),
        norm2: own("norm2"),
      };
      return this.heads.content
        ? {
            ...parts,
            query: own("attention.query"),
            key: own("attention.key"),
            rows: embedding("row"),
            columns: embedding("column"),
          }
        : parts;
    });
    this.weights = { embed: map("embed"), classifier: map("classifier"), blocks };
    this.hidden = this.weights.embed.bias.length;
    this.kept = [];
  }

  setImage(image) {
    this.kept = [];
    const { embed } = this.weights, pixels = unshuffled(image, this.sampling, this.mean, this.std);
    this.start = linear(pixels, embed, embed.weight.length / this.hidden);
  }

  /** Class probabilities with these changes: {"layer.head": {centre, sigma, off}, "layer": {kernel}}. `replaced` gives
   * a layer's output instead of its attention: {layer, output}. */
  predict(edits, replaced = null) {
    const logits = this.logits(edits, replaced);
    return Array.from(softmax(logits, logits));
  }

  logits(edits, replaced = null) {
    const { blocks, classifier } = this.weights;
    const x = this.inputOf(blocks.length, edits, replaced);
    const mean = new Float32Array(this.hidden);
    for (let i = 0; i < x.length; i++) mean[i % this.hidden] += x[i] / this.heads.pixels;
    return linear(mean, classifier, this.hidden);
  }

  /** What a layer sees. What does not change from question to question is kept. */
  inputOf(layer, edits, replaced = null) {
    let x = this.start, same = true;
    for (let l = 0; l < layer; l++) {
      const key = JSON.stringify(Object.entries(edits).filter(([place]) => parseInt(place, 10) === l).sort());
      const own = replaced && replaced.layer === l;
      same &&= !own && this.kept[l] && this.kept[l].key === key;
      if (!same) {
        const output = this.block(l, x, own ? replaced.output : this.attend(l, x, edits));
        if (!replaced) this.kept.splice(l, Infinity, { key, output });
        x = output;
      } else x = this.kept[l].output;
    }
    return x;
  }

  /** A block after its attention: linear map, residual, LayerNorm; perceptron, residual, LayerNorm. */
  block(layer, x, attention) {
    const { output, norm1, up, down, norm2 } = this.weights.blocks[layer], { hidden } = this;
    const y = layerNorm(add(x, linear(attention, output, hidden)), norm1), inside = gelu(linear(y, up, hidden));
    return layerNorm(add(y, linear(inside, down, up.bias.length)), norm2);
  }

  attend(layer, x, edits) {
    return this.project(layer, this.mixed(layer, x, edits));
  }

  /** Each head's value matrix, and their sum. */
  project(layer, mixed, bias = true) {
    const { value } = this.weights.blocks[layer], { hidden, heads: { heads, pixels } } = this;
    if (!heads[layer]) return Float32Array.from({ length: pixels * hidden }, (_, i) => bias && value.bias[i % hidden]);
    return linear(mixed, bias ? value : { weight: value.weight }, heads[layer] * hidden);
  }

  /** What each head adds up for every pixel, (pixels x heads channels): by attention, or as the convolution that the
   * reader put in its place. */
  mixed(layer, x, edits) {
    this.heads.edits = edits;
    const size = this.heads.kernelAt(layer);
    return size ? this.convolved(layer, x, size) : this.attended(layer, x);
  }

  /** sum_k P_h(q, k) X_k for every pixel q and head h. */
  attended(layer, x) {
    const { heads, hidden } = this, count = heads.heads[layer], out = new Float32Array(heads.pixels * count * hidden);
    if (heads.content) heads.setScores(layer, this.scores(layer, x));
    for (let head = 0; head < count; head++) {
      if (heads.isOff(layer, head)) continue;
      const axes = heads.axes(layer, head);
      if (axes) this.mixAxes(x, axes, out, head * hidden, count * hidden);
      else this.mixPixels(layer, head, x, out, head * hidden, count * hidden);
    }
    return out;
  }

  /** P is a product of rows and columns: two short sums for every pixel. */
  mixAxes(x, [rows, columns], out, offset, stride) {
    const { hidden, heads: { height, width } } = this, across = new Float32Array(x.length), line = width * hidden;
    for (let q = 0; q < height; q++)
      for (let k = 0; k < height; k++) {
        const p = rows[q * height + k];
        if (p > NOTHING) for (let i = 0; i < line; i++) across[q * line + i] += p * x[k * line + i];
      }
    for (let row = 0; row < height; row++)
      for (let q = 0; q < width; q++)
        for (let k = 0; k < width; k++) {
          const p = columns[q * width + k], to = (row * width + q) * stride + offset, from = (row * width + k) * hidden;
          if (p > NOTHING) for (let c = 0; c < hidden; c++) out[to + c] += p * across[from + c];
        }
  }

  mixPixels(layer, head, x, out, offset, stride) {
    const { hidden, heads } = this, map = new Float32Array(heads.pixels);
    for (let q = 0; q < heads.pixels; q++) {
      heads.probabilities(layer, head, [Math.floor(q / heads.width), q % heads.width], map);
      for (let k = 0; k < heads.pixels; k++) {
        const p = map[k], to = q * stride + offset, from = k * hidden;
        if (p > NOTHING) for (let c = 0; c < hidden; c++) out[to + c] += p * x[from + c];
      }
    }
  }

  /** Scores of a layer that looks at content: q . k, and q . r for the rows and for the columns, over sqrt(K). */
  scores(layer, x) {
    const { query, key, rows: byRow, columns: byColumn } = this.weights.blocks[layer];
    const { height, width, pixels } = this.heads;
    const stride = query.bias.length;
    const count = this.heads.heads[layer];
    const keySize = stride / count;
    const half = keySize / 2;
    const scale = 1 / Math.sqrt(keySize);
    const zero = byRow.length / half >> 1;
    const [qs, ks] = [query, key].map((map) => linear(x, map, this.hidden));
    const [content, rows, columns] = [pixels, height, width].map((keys) => new Float32Array(count * pixels * keys));
    const dot = (a, from, b, to, size) => {
      let sum = 0;
      for (let i = 0; i < size; i++) sum += a[from + i] * b[to + i];
      return sum * scale;
    };
    for (let head = 0; head < count; head++)
      for (let q = 0; q < pixels; q++) {
        const at = head * pixels + q;
        const from = q * stride + head * keySize;
        const [i, j] = [Math.floor(q / width), q % width];
        for (let k = 0; k < pixels; k++)
          content[at * pixels + k] = dot(qs, from, ks, k * stride + head * keySize, keySize);
        for (let k = 0; k < height; k++) rows[at * height + k] = dot(qs, from, byRow, (zero + k - i) * half, half);
        for (let k = 0; k < width; k++)
          columns[at * width + k] = dot(qs, from + half, byColumn, (zero + k - j) * half, half);
      }
    return { content, rows, columns };
  }

  /** Scores of all layers, where they depend on the image; else null. */
  allScores(edits) {
    return this.heads.content
      ? this.weights.blocks.map((_, layer) => this.scores(layer, this.inputOf(layer, edits)))
      : null;
  }

  /** What a layer and one of its heads do to the image: `Subject.examine` says what the numbers are. */
  examine(layer, head, size, edits) {
    const { hidden, heads } = this, stride = heads.heads[layer] * hidden, x = this.inputOf(layer, edits);
    const norm = (all, q) => normOf(all.subarray(q * hidden, (q + 1) * hidden));
    const norms = (all) => Array.from({ length: heads.pixels }, (_, q) => norm(all, q));
    heads.edits = edits;
    const kernel = heads.kernelAt(layer), side = kernel || size; // a convolution that is there already has its own size
    const mixed = [this.attended(layer, x), heads.content ? null : this.convolved(layer, x, side)];
    const [attention, convolution] = mixed.map((one) => one && this.project(layer, one, false));
    const whole = kernel ? convolution : attention, ofHead = (i) => Math.floor((i % stride) / hidden) === head;
    const own = this.project(layer, mixed[kernel ? 1 : 0].map((value, i) => (ofHead(i) ? value : 0)), false);
    const share = own.reduce((sum, value, i) => sum + value * whole[i], 0) / (normOf(whole) ** 2 || 1);
    const without = this.predict({ ...edits, [`${layer}.${head}`]: { ...edits[`${layer}.${head}`], off: true } });
    const seen = { kernel: null, head: { output: norms(own), share, probabilities: without } };
    if (convolution) {
      const apart = convolution.map((value, i) => value - attention[i]), { bias } = this.weights.blocks[layer].value;
      seen.kernel = {
        error: normOf(apart) / (normOf(attention) || 1),
        outputs: [attention, convolution].map(norms),
        probabilities: this.predict(edits, { layer, output: convolution.map((value, i) => value + bias[i % hidden]) }),
      };
    }
    return seen;
  }

  /** The same as `attended` for the layer's size x size convolution; beyond the border it sees the nearest pixel. */
  convolved(layer, x, size) {
    const { heads, hidden } = this;
    const { height, width, pixels } = heads;
    const count = heads.heads[layer];
    const stride = count * hidden;
    const reach = size >> 1;
    const out = new Float32Array(pixels * stride), middle = middleOf(heads), map = new Float32Array(pixels);
    for (let head = 0; head < count; head++) {
      if (heads.isOff(layer, head)) continue;
      heads.probabilities(layer, head, middle, map);
      for (let r = -reach; r <= reach; r++)
        for (let c = -reach; c <= reach; c++) {
          const p = map[(middle[0] + r) * width + middle[1] + c];
          if (p < NOTHING) continue;
          for (let q = 0; q < pixels; q++) {
            const row = clamp(Math.floor(q / width) + r, 0, height - 1), column = clamp((q % width) + c, 0, width - 1);
            const to = q * stride + head * hidden, from = (row * width + column) * hidden;
            for (let i = 0; i < hidden; i++) out[to + i] += p * x[from + i];
          }
        }
    }
    return out;
  }
}
