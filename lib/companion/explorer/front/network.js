// The model itself in the browser: its prediction for any image and any changed heads, and what a layer and a head do.
// The definitions are Python's (attnconv.models, companion.explorer.subject); weights are in half precision or less.

import { Model, middleOf } from "./heads.js";
import { clamp, softmax } from "./maths.js";
import { linear, weighted } from "./product.js";

const NOTHING = 1e-9; // probabilities below it are passed over

/** 16-bit floating-point numbers, their high bytes and their low ones, as 32-bit numbers. */
export function fromHalf(high, low) {
  return Float32Array.from(high, (byte, i) => {
    const code = (byte << 8) | low[i], exponent = (code >> 10) & 31, fraction = (code & 1023) / 1024;
    const size = exponent ? 2 ** (exponent - 15) * (1 + fraction) : 2 ** -14 * fraction;
    return code & 32768 ? -size : size;
  });
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

function add(a, b) {
  const sums = a.slice(); // a loop: `map` takes ten times as long
  for (let i = 0; i < sums.length; i++) sums[i] += b[i];
  return sums;
}

/** So many numbers of every row of so many, from one on. */
function part(rows, stride, first, many) {
  const out = new Float32Array((rows.length / stride) * many);
  for (let row = 0; row * stride < rows.length; row++)
    out.set(rows.subarray(row * stride + first, row * stride + first + many), row * many);
  return out;
}

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
      return {
        value: own("attention.value"),
        output: own("output"),
        norm1: own("norm1"),
        up: own("mlp.0"),
        down: own("mlp.2"),
        norm2: own("norm2"),
        query: own("attention.query"), // this and what follows is there with content only
        key: own("attention.key"),
        rows: embedding("row"),
        columns: embedding("column"),
      };
    });
    this.weights = { embed: map("embed"), classifier: map("classifier"), blocks };
    this.hidden = this.weights.embed.bias.length;
    this.kept = [];
    this.scored = [];
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
    const { heads } = this;
    if (heads.content) heads.setScores(layer, this.scores(layer, x));
    return this.ofHeads(layer, (head) => {
      const axes = heads.axes(layer, head);
      return axes ? this.mixAxes(x, axes) : this.mixPixels(layer, head, x);
    });
  }

  /** What `mix` makes of each head that is on, (pixels x hidden), side by side: (pixels x heads hidden). */
  ofHeads(layer, mix) {
    const { hidden, heads } = this, stride = heads.heads[layer] * hidden, out = new Float32Array(heads.pixels * stride);
    for (let head = 0; head < heads.heads[layer]; head++) {
      if (heads.isOff(layer, head)) continue;
      const mixed = mix(head);
      for (let q = 0; q < heads.pixels; q++)
        out.set(mixed.subarray(q * hidden, (q + 1) * hidden), q * stride + head * hidden);
    }
    return out;
  }

  /** P is a product of rows and columns: two short sums for every pixel. */
  mixAxes(x, [rows, columns]) {
    const { hidden, heads: { height, width } } = this;
    const across = weighted(x, width * hidden, (add) => {
      for (let q = 0; q < height; q++)
        for (let k = 0; k < height; k++)
          if (rows[q * height + k] > NOTHING) add(q, k, rows[q * height + k]);
    });
    return weighted(across, hidden, (add) => {
      for (let q = 0; q < width; q++)
        for (let k = 0; k < width; k++)
          if (columns[q * width + k] > NOTHING)
            for (let row = 0; row < height; row++) add(row * width + q, row * width + k, columns[q * width + k]);
    });
  }

  mixPixels(layer, head, x) {
    const { hidden, heads } = this, map = new Float32Array(heads.pixels);
    return weighted(x, hidden, (add) => {
      for (let q = 0; q < heads.pixels; q++) {
        heads.probabilities(layer, head, [Math.floor(q / heads.width), q % heads.width], map);
        for (let k = 0; k < heads.pixels; k++) if (map[k] > NOTHING) add(q, k, map[k]);
      }
    });
  }

  /** Scores of a layer that looks at content: q . k, and q . r for the rows and for the columns, over sqrt(K). Those of
   * the input that was asked about last are kept. */
  scores(layer, x) {
    const kept = this.scored[layer];
    if (kept?.x === x) return kept.scores;
    const { query, key, rows: byRow, columns: byColumn } = this.weights.blocks[layer];
    const { height, width, pixels } = this.heads, count = this.heads.heads[layer];
    const stride = query.bias.length;
    const keySize = stride / count;
    const half = keySize / 2;
    const zero = byRow.length / half >> 1;
    const [qs, ks] = [query, key].map((map) => linear(x, map, this.hidden));
    for (let i = 0; i < qs.length; i++) qs[i] /= Math.sqrt(keySize);
    const [content, rows, columns] = [pixels, height, width].map((keys) => new Float32Array(count * pixels * keys));
    const dot = (from, b, to) => {
      let sum = 0;
      for (let i = 0; i < half; i++) sum += qs[from + i] * b[to + i];
      return sum;
    };
    for (let head = 0; head < count; head++) {
      const [own, weight] = [qs, ks].map((all) => part(all, stride, head * keySize, keySize));
      content.set(linear(own, { weight }, keySize), head * pixels * pixels);
      for (let q = 0; q < pixels; q++) {
        const at = head * pixels + q;
        const from = q * stride + head * keySize;
        const [i, j] = [Math.floor(q / width), q % width];
        for (let k = 0; k < height; k++) rows[at * height + k] = dot(from, byRow, (zero + k - i) * half);
        for (let k = 0; k < width; k++) columns[at * width + k] = dot(from + half, byColumn, (zero + k - j) * half);
      }
    }
    const scores = { content, rows, columns };
    this.scored[layer] = { x, scores };
    return scores;
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
    const { hidden, heads } = this, { height, width, pixels } = heads, reach = size >> 1;
    const middle = middleOf(heads), map = new Float32Array(pixels);
    return this.ofHeads(layer, (head) => {
      heads.probabilities(layer, head, middle, map);
      return weighted(x, hidden, (add) => {
        for (let r = -reach; r <= reach; r++)
          for (let c = -reach; c <= reach; c++) {
            const p = map[(middle[0] + r) * width + middle[1] + c];
            if (p < NOTHING) continue;
            for (let q = 0; q < pixels; q++) {
              const row = clamp(Math.floor(q / width) + r, 0, height - 1);
              const column = clamp((q % width) + c, 0, width - 1);
              add(q, row * width + column, p);
            }
          }
      });
    });
  }
}
