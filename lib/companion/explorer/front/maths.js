// Arithmetic without a browser, tested with `node --test` and against Python. The explorer uses the first part, the
// playground all of it.

/** Bring a number into a range. */
export const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/** Softmax of logits into `out`. */
export function softmax(logits, out) {
  let top = -Infinity, total = 0;
  for (const value of logits) if (value > top) top = value;
  for (let k = 0; k < logits.length; k++) total += out[k] = Math.exp(logits[k] - top);
  for (let k = 0; k < out.length; k++) out[k] /= total;
  return out;
}

// --- kernels --------------------------------------------------------------------------------------------------------

/** Shift of the first row and column of a K x K kernel. An even kernel has its odd tap on the right. */
export const firstTap = (size) => -((size - 1) >> 1);

/** Shift of every tap of a K x K kernel, row by row: [[row, column], ...]. */
export const tapShifts = (size) =>
  Array.from({ length: size * size }, (_, tap) => [
    firstTap(size) + Math.floor(tap / size),
    firstTap(size) + (tap % size),
  ]);

/** A row of Pascal's triangle: the smooth weights of n neighbours. */
const binomial = (n) => (n === 1 ? [1] : [...binomial(n - 1), 0].map((value, i, row) => value + (row.at(i - 1) || 0)));

/** Weights of a named K x K kernel, row by row. */
export function presetKernel(name, size) {
  const smooth = binomial(size), total = smooth.reduce((a, b) => a + b) ** 2;
  const slope = [...binomial(size - 2), 0, 0].map((value, i, row) => (row[i - 2] || 0) - value); // (-1, 0, 1), smoothed
  return tapShifts(size).map(([row, column], tap) => {
    const [r, c] = [Math.floor(tap / size), tap % size], away = Math.abs(row) + Math.abs(column);
    switch (name) {
      case "identity": return away === 0 ? 1 : 0;
      case "blur": return (smooth[r] * smooth[c]) / total;
      case "sobel-x": return smooth[r] * slope[c];
      case "sobel-y": return slope[r] * smooth[c];
      case "sharpen": return away === 0 ? 5 : away === 1 ? -1 : 0;
      case "emboss": return (row + column) / (size > 3 ? 4 : 1) + (away === 0 ? 1 : 0);
      default: throw new Error(`There is no kernel "${name}".`);
    }
  });
}

/** Conv2d with zeros around the image, and as many outputs as pixels: Conv(X)_q = sum over taps of
 * X_{q + Delta} W_Delta. */
export function convolve({ pixels, height, width }, kernel, size) {
  const out = new Float64Array(height * width);
  tapShifts(size).forEach(([dr, dc], tap) => {
    const weight = kernel[tap];
    if (!weight) return;
    for (let r = Math.max(0, -dr); r < Math.min(height, height - dr); r++)
      for (let c = Math.max(0, -dc); c < Math.min(width, width - dc); c++)
        out[r * width + c] += weight * pixels[(r + dr) * width + c + dc];
  });
  return out;
}

// --- heads ----------------------------------------------------------------------------------------------------------

/** Lemma 2 along one axis: the softmax over keys k of -alpha (k - q - centre)^2.
 *
 * Queries are 0 .. length - 1; keys are -before .. length - 1 + after, the pixels and the zeros around them. Returns
 * rows of (before + length + after) probabilities, one row for each query.
 */
export function axisProbabilities(alpha, centre, length, before = 0, after = 0) {
  const keys = before + length + after, out = new Float64Array(length * keys), logits = new Float64Array(keys);
  for (let q = 0; q < length; q++) {
    for (let k = 0; k < keys; k++) logits[k] = -alpha * (k - before - q - centre) ** 2;
    softmax(logits, out.subarray(q * keys, (q + 1) * keys));
  }
  return out;
}

/** Each query's average of a line's pixels; zeros around them take probability and add nothing. Nearly all are 0 when
 * alpha is large, and are passed over: a table of {first key, number of keys, their probabilities} for every query. */
function nonzero(probabilities, length, before, after) {
  const keys = before + length + after;
  return Array.from({ length }, (_, q) => {
    const row = probabilities.subarray(q * keys + before, q * keys + before + length);
    let first = 0, last = length;
    while (first < last && row[first] < 1e-18) first++;
    while (last > first && row[last - 1] < 1e-18) last--;
    return { first, row: row.subarray(first, last) };
  });
}

/** What a head sees from every pixel, sum_k P(q, k) X_k. P is a product of rows and columns: two short sums, not one
 * long.
 *
 * Heads of one picture, alpha and pads that stand in a line have an axis in common: what was made for one is kept in
 * `shared` for the next.
 */
export function look({ pixels, height, width }, { centre, alpha, pads: [before, after] }, shared = new Map()) {
  const once = (key, make) => shared.get(key) || shared.set(key, make()).get(key);
  const [rows, columns] = [height, width].map((length, axis) => once(`${length} ${centre[axis]}`, () =>
    nonzero(axisProbabilities(alpha, centre[axis], length, before, after), length, before, after)));
  const across = once(centre[1], () => {
    const sums = new Float64Array(height * width);
    for (let r = 0; r < height; r++)
      for (let c = 0; c < width; c++) {
        const { first, row } = columns[c];
        let total = 0;
        for (let k = 0, from = r * width + first; k < row.length; k++) total += row[k] * pixels[from + k];
        sums[r * width + c] = total;
      }
    return sums;
  });
  const out = new Float64Array(height * width);
  for (let r = 0; r < height; r++) {
    const { first, row } = rows[r];
    for (let k = 0; k < row.length; k++) {
      const from = (first + k) * width, p = row[k];
      for (let c = 0; c < width; c++) out[r * width + c] += p * across[from + c];
    }
  }
  return out;
}

/** Zeros before and after an image, as a K x K kernel pads it: the paper's remedy for borders. */
export const padsOf = (size) => [(size - 1) >> 1, size >> 1];

/** Attention that misses its tap, 1 - 1/S(alpha)^2 with S = sum over whole n of exp(-alpha n^2): far from borders. */
export function missedMass(alpha) {
  let beside = 0;
  for (let n = Math.ceil(Math.sqrt(40 / alpha)) + 1; n > 0; n--) beside += 2 * Math.exp(-alpha * n * n);
  return -Math.expm1(-2 * Math.log1p(beside));
}

/** Largest value without its sign. */
export const largest = (values) => values.reduce((top, value) => Math.max(top, Math.abs(value)), 0);
