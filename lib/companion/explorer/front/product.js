// Products of matrices, four numbers at a time where the browser can (WebAssembly's SIMD). Nearly all of a prediction's
// time is spent here.

// product.wat, compiled.
const COMPILED =
  "AGFzbQEAAAABEgJgB39/f39/f38AYAR/f31/AAMDAgABBQMBAAEHFwMGbWVtb3J5AgAEdGlsZQAAA2FkZAABCswCAocCAgt7AX8DQCAEIBJq" +
  "/QAEACEPIAUgEmr9AAQAIRAgACASav0ABAAhESAHIBEgD/3mAf3kASEHIAggESAQ/eYB/eQBIQggASASav0ABAAhESAJIBEgD/3mAf3kASEJ" +
  "IAogESAQ/eYB/eQBIQogAiASav0ABAAhESALIBEgD/3mAf3kASELIAwgESAQ/eYB/eQBIQwgAyASav0ABAAhESANIBEgD/3mAf3kASENIA4g" +
  "ESAQ/eYB/eQBIQ4gEkEQaiISIAZJDQALQQAgB/0LBABBACAI/QsEEEEAIAn9CwQgQQAgCv0LBDBBACAL/QsEQEEAIAz9CwRQQQAgDf0LBGBB" +
  "ACAO/QsEcAtBAQF7IAL9EyEEIAAgA2ohAwNAIAAgAP0ABAAgBCAB/QAEAP3mAf3kAf0LBAAgAUEQaiEBIABBEGoiACADSQ0ACws=";
const SUMS = 128; // bytes that a tile writes: eight sums in four parts each

/** The compiled module's exports; null where there can be none. */
function compiled() {
  try {
    const bytes = Uint8Array.from(atob(COMPILED), (letter) => letter.charCodeAt(0));
    return new WebAssembly.Instance(new WebAssembly.Module(bytes)).exports;
  } catch {
    return null; // an old browser, or a page that forbids it
  }
}

const fast = compiled();

/** Numbers in WebAssembly's memory, after the first `SUMS` bytes: each of some arrays. Returns their addresses. */
function placed(...arrays) {
  const { memory } = fast, places = [SUMS];
  for (const { length } of arrays) places.push(places.at(-1) + 4 * length);
  const lacks = places.at(-1) - memory.buffer.byteLength;
  if (lacks > 0) memory.grow(Math.ceil(lacks / 65536));
  arrays.forEach((array, i) => new Float32Array(memory.buffer, places[i]).set(array));
  return places;
}

/** A linear map of rows (n x channels) by weights (d x channels), as torch keeps them: (n x d). */
export function linear(rows, { weight, bias }, channels) {
  const many = rows.length / channels, outputs = weight.length / channels, out = new Float32Array(many * outputs);
  (fast && channels % 4 === 0 ? multiplyFast : multiply)(rows, weight, channels, out);
  if (bias) for (let i = 0; i < out.length; i++) out[i] += bias[i % outputs];
  return out;
}

function multiply(rows, weight, channels, out) {
  let at = 0;
  for (let x = 0; x < rows.length; x += channels)
    for (let w = 0; w < weight.length; w += channels, at++)
      for (let i = 0; i < channels; i++) out[at] += rows[x + i] * weight[w + i];
}

/** The same, four rows and two outputs at a time. What is left at the end is computed twice. */
function multiplyFast(rows, weight, channels, out) {
  const [x, w] = placed(rows, weight), bytes = 4 * channels, parts = new Float32Array(fast.memory.buffer, 0, SUMS / 4);
  const lastRow = rows.length / channels - 1, lastOutput = weight.length / channels - 1;
  for (let d = 0; d <= lastOutput; d += 2)
    for (let n = 0; n <= lastRow; n += 4) {
      const row = (i) => Math.min(n + i, lastRow), next = Math.min(d + 1, lastOutput);
      const [a, b, c, e] = [x + row(0) * bytes, x + row(1) * bytes, x + row(2) * bytes, x + row(3) * bytes];
      fast.tile(a, b, c, e, w + d * bytes, w + next * bytes, bytes);
      for (let i = 0; i < 8; i++) {
        const sum = parts[4 * i] + parts[4 * i + 1] + parts[4 * i + 2] + parts[4 * i + 3];
        out[row(i >> 1) * (lastOutput + 1) + (i % 2 ? next : d)] = sum;
      }
    }
}

/** Weighted sums of rows of so many channels: `terms(add)` calls add(to, from, p), which adds p times row `from` of `x`
 * to row `to` of the sums. They are as many as the rows of x. */
export function weighted(x, channels, terms) {
  const sums = new Float32Array(x.length);
  if (!fast || channels % 4) {
    terms((to, from, p) => {
      for (let i = 0; i < channels; i++) sums[to * channels + i] += p * x[from * channels + i];
    });
    return sums;
  }
  const [source, target] = placed(x, sums), bytes = 4 * channels;
  terms((to, from, p) => fast.add(target + to * bytes, source + from * bytes, p, bytes));
  return new Float32Array(fast.memory.buffer, target, x.length).slice();
}
