// The playground's arithmetic and its states, with node's own runner: node --test tests/playground.test.mjs
import assert from "node:assert/strict";
import { test } from "node:test";
import { axisProbabilities, convolve, largest, look, missedMass, padsOf, presetKernel, tapShifts } from "../lib/companion/explorer/front/maths.js";
import { ALPHAS, Sums, bound, complete, decode, encode, equation, headsOnTaps, scaleOf, written } from "../lib/companion/explorer/front/playground.js";

const PICTURES = [{ name: "a", height: 6, width: 9, query: [2, 3] }, { name: "b", height: 4, width: 4 }];
const random = (height, width) => ({ height, width, pixels: Float64Array.from({ length: height * width }, (_, i) => Math.abs(Math.sin(12.9898 * i + 4)) % 1) });
const near = (a, b, tolerance = 1e-12) => assert.ok(Math.abs(a - b) <= tolerance, `${a} is not ${b}`);

test("the kernels that everybody knows", () => {
  assert.deepEqual(presetKernel("sobel-x", 3), [-1, 0, 1, -2, 0, 2, -1, 0, 1]);
  assert.deepEqual(presetKernel("sobel-y", 3), [-1, -2, -1, 0, 0, 0, 1, 2, 1]);
  assert.deepEqual(presetKernel("sharpen", 3), [0, -1, 0, -1, 5, -1, 0, -1, 0]);
  assert.deepEqual(presetKernel("emboss", 3), [-2, -1, 0, -1, 1, 1, 0, 1, 2]);
  for (const size of [3, 4, 5]) near(presetKernel("blur", size).reduce((a, b) => a + b), 1);
  assert.throws(() => presetKernel("nothing", 3), /no kernel/);
});

test("an even kernel has its odd tap on the right, as in PyTorch", () => {
  assert.deepEqual(tapShifts(4).slice(0, 4), [[-1, -1], [-1, 0], [-1, 1], [-1, 2]]);
  assert.deepEqual(padsOf(4), [1, 2]);
});

test("probabilities sum to 1, on a picture with zeros around it and without", () => {
  const p = axisProbabilities(0.3, 1.4, 5, 1, 2);
  for (let q = 0; q < 5; q++) near(p.subarray(8 * q, 8 * q + 8).reduce((a, b) => a + b), 1);
  assert.deepEqual([...axisProbabilities(50, 1, 2).map(Math.round)], [0, 1, 0, 1]); // at the border, the nearest pixel
});

test("the missed mass is what a head in the middle of a large picture misses", () => {
  for (const alpha of [0.02, 0.05, 0.7, 3]) near(missedMass(alpha), 1 - axisProbabilities(alpha, 0, 1, 60, 60)[60] ** 2);
  near(missedMass(20) / (4 * Math.exp(-20)), 1, 1e-8);
});

test("rows then columns is the same as the whole sum over pixels", () => {
  const picture = random(5, 7), head = { centre: [0.6, -1.2], alpha: 0.4, pads: [1, 1] };
  const rows = axisProbabilities(0.4, 0.6, 5, 1, 1), columns = axisProbabilities(0.4, -1.2, 7, 1, 1), seen = look(picture, head);
  for (const [q, r] of [[0, 0], [2, 3], [4, 6]]) {
    let total = 0;
    for (let k = 0; k < 5; k++) for (let l = 0; l < 7; l++) total += rows[q * 7 + k + 1] * columns[r * 9 + l + 1] * picture.pixels[k * 7 + l];
    near(seen[q * 7 + r], total);
  }
});

test("sharp heads on their taps are the convolution (Theorem 1), for every kernel and size", () => {
  for (const size of [3, 4, 5])
    for (const name of ["identity", "blur", "sobel-x", "sobel-y", "sharpen", "emboss"]) {
      const state = decode(`kernel=${name}&size=${size}`, PICTURES), sums = new Sums().update(state, random(6, 9));
      assert.ok(sums.apart < 1e-12, `${name} ${size}: ${sums.apart}`);
      assert.ok(largest(sums.convolved) > 0.1 && equation(state).equal && complete(state));
    }
});

test("blurred heads differ by no more than the formula allows", () => {
  const picture = random(9, 9);
  for (const alpha of [0.05, 0.5, 2, 6]) {
    const state = decode(`alpha=${alpha}`, PICTURES), { apart } = new Sums().update(state, picture);
    assert.ok(apart > 0 && apart <= missedMass(alpha) * bound(state, picture));
  }
  const pixel = { height: 31, width: 31, pixels: new Float64Array(961) };
  pixel.pixels[480] = 1;
  near(new Sums().update(decode("kernel=identity&alpha=1", PICTURES), pixel).apart, missedMass(1), 1e-9); // and this much at times
});

test("a head that is taken away leaves its own term out", () => {
  const state = decode("", PICTURES), picture = random(6, 9), sums = new Sums();
  sums.update(state, picture);
  const [weight, seen] = [state.kernel[3], sums.seen[3]];
  state.heads[3].on = false;
  sums.update(state, picture);
  sums.difference.forEach((value, at) => near(value, -weight * seen[at]));
  assert.match(equation(state).words.join(" "), /Without head 4 the sum lacks its term/);
});

test("without zeros around it, only the border differs", () => {
  const { difference, apart } = new Sums().update(decode("padding=0", PICTURES), random(6, 9));
  assert.ok(apart > 0.1);
  difference.forEach((value, at) => {
    const [row, column] = [Math.floor(at / 9), at % 9];
    if (row > 0 && row < 5 && column > 0 && column < 8) near(value, 0);
  });
});

test("what was computed is kept, and computed anew where it must be", () => {
  const sums = new Sums(), state = decode("", PICTURES), picture = random(6, 9), first = sums.update(state, picture).seen.slice();
  state.heads[0].centre = [-0.5, -1];
  sums.update(state, picture);
  assert.ok(sums.seen[0] !== first[0] && sums.seen[1] === first[1]);
  assert.ok(sums.update(state, random(4, 9)).seen[1] !== first[1]);
});

test("a state and its text", () => {
  for (const text of ["kernel=sobel-x&image=a&query=2,3", "kernel=blur&size=5&image=b&alpha=0.7&padding=0&query=0,3", "kernel=1,2,3,4,5,6,7,8,-9.5&image=a&heads=0:-1:-1.25:0&query=5,8"])
    assert.equal(encode(decode(text, PICTURES)), text);
  const start = decode("", PICTURES);
  assert.deepEqual([start.preset, start.alpha, start.padding, start.query], ["sobel-x", ALPHAS[1], true, [2, 3]]);
});

test("a text that makes no sense is the start, without an error", () => {
  for (const text of ["kernel=1,2,x", "kernel=1,2,3", "kernel=constructor", "size=99", "image=none", "alpha=-3", "alpha=NaN", "heads=99:0:0:1_-1:0:0:1_0.5:0:0:1_a:b:c:d", "query=1", "query=x,y", "%%%&&==", "heads=0:Infinity:0:1"])
    assert.equal(encode(decode(text, PICTURES)), encode(decode("", PICTURES)), text);
  assert.deepEqual(decode("query=-5,99", PICTURES).query, [0, 8]);
  assert.equal(decode(`heads=${"0:0:0:1_".repeat(500)}`, PICTURES).heads.length, 9);
  assert.deepEqual(decode("heads=0:-9:9:1", PICTURES).heads[0].centre, [-2, 2]);
});

test("numbers as one writes them", () => {
  const told = { 0: "0", "-2": "−2", 0.0625: "0.063", "1e-17": "0", 0.000032: "3.2·10⁻⁵", 12.34: "12.3", 123.4: "123", 50: "50" };
  for (const [value, text] of Object.entries(told)) assert.equal(written(Number(value)), text);
});

test("what sums to a picture is grey, edges are signed", () => {
  const { convolved } = new Sums().update(decode("", PICTURES), random(6, 9));
  for (const [name, grey] of [["identity", true], ["blur", true], ["sharpen", true], ["emboss", true], ["sobel-x", false], ["sobel-y", false]])
    assert.equal(scaleOf(presetKernel(name, 3), convolved).grey, grey, name);
});

test("the equation says what is different", () => {
  const words = (text) => equation(decode(text, PICTURES)).words.join(" ");
  assert.match(words(""), /Theorem 1/);
  assert.match(words("alpha=0.7"), /softmax.*22%/);
  assert.match(words("alpha=7.2"), /own pixel 99\.7% of its attention; 0\.3% goes/);
  assert.match(words("padding=0"), /border/);
  const moved = headsOnTaps(3).map(({ centre }, tap) => [tap, ...(tap === 1 ? [0.5, 0] : centre), 1].join(":")).join("_");
  assert.match(words(`heads=${moved}`), /Head 2 looks at .*its weight is 0/);
  assert.equal(equation(decode(`heads=${moved}`, PICTURES)).equal, true); // it says nothing
  const off = (n) => headsOnTaps(3).map(({ centre }, tap) => [tap, centre[0] + (tap < n ? 0.5 : 0), centre[1], 1].join(":")).join("_");
  assert.match(words(`heads=${off(4)}`), /So does another\./);
  assert.match(words(`heads=${off(5)}`), /So do 2 others\./);
  const at = (places) => headsOnTaps(3).map(({ centre }, tap) => [tap, ...(places[tap] || centre), 1].join(":")).join("_");
  assert.match(words(`heads=${at({ 1: [-1, 1] })}`), /with the same kernel/); // its weight is 0
  assert.doesNotMatch(words(`heads=${at({ 1: [-1, 1] })}`), /Each head gives all/);
  assert.match(words(`heads=${at({ 3: [0, 1] })}`), /with another kernel/);
  const exchanged = decode(`kernel=blur&heads=${at({ 0: [-1, 1], 2: [-1, -1] })}`, PICTURES);
  assert.ok(new Sums().update(exchanged, random(6, 9)).apart < 1e-12 && equation(exchanged).equal);
  assert.equal(equation(decode("padding=0", PICTURES)).equal, false);
  for (const [alpha, equal] of [[16, false], [25, false], [40, true]]) assert.equal(equation(decode(`alpha=${alpha}`, PICTURES)).equal, equal);
  const alone = decode("kernel=identity&padding=0", PICTURES);
  assert.ok(new Sums().update(alone, random(6, 9)).apart < 1e-12);
  assert.equal(equation(alone).equal, true);
  assert.doesNotMatch(words("kernel=identity&padding=0"), /border/);
  assert.match(words("kernel=identity&padding=0&alpha=0.5"), /border/);
});
