// The explorer's arithmetic, with node's own runner: node --test tests/explorer.test.mjs
import assert from "node:assert/strict";
import { test } from "node:test";
import { drawHeads, headAt, spots } from "../lib/companion/explorer/front/centres.js";
import { kindText, nearestPlaces } from "../lib/companion/explorer/front/layer.js";
import { Model, covarianceOf, ellipse, kernelSizes, readLayer, rescaled, sigmaOf, typed, unpack } from "../lib/companion/explorer/front/heads.js";
import { brightness, drawField, RAMP, percent, shiftText } from "../lib/companion/explorer/front/draw.js";
import { fromHalf, unshuffled } from "../lib/companion/explorer/front/network.js";
import { accuracyOf } from "../lib/companion/explorer/front/accuracy.js";
import { fromLink, hostOf, inLink, pageHost, widgetHost, workerOf } from "../lib/companion/explorer/front/hosts.js";
import { softmax } from "../lib/companion/explorer/front/maths.js";
import { linear, weighted } from "../lib/companion/explorer/front/product.js";
import { draggable, inkOn } from "../lib/companion/explorer/front/page.js";

const float32 = (values, shape) => ({ dtype: "float32", shape, data: new Uint8Array(new Float32Array(values).buffer) });
const near = (a, b, tolerance = 1e-5) => assert.ok(Math.abs(a - b) <= tolerance, `${a} is not ${b}`);
const gaussian = (centre, precision, path = null) => new Model({
  name: "r", title: "r", grid: [5, 7], heads: [1], encoding: "quadratic", path,
  centres: float32(centre, [1, 1, 2]), precisions: float32(precision, [1, 1, 2, 2]), sigmas: float32([sigmaOf(precision)], [1, 1]),
});

test("arrays are read at any offset", () => {
  const bytes = new Uint8Array(9);
  bytes.set(new Uint8Array(new Float32Array([1.5, -2]).buffer), 1);
  assert.deepEqual([...typed({ dtype: "float32", data: new DataView(bytes.buffer, 1, 8) })], [1.5, -2]);
});

test("a packed tree is unpacked", () => {
  const header = new TextEncoder().encode('{"a":{"$bytes":[4,2]},"b":[1,null]}'.padEnd(40));
  const file = new Uint8Array(4 + 40 + 6);
  new DataView(file.buffer).setUint32(0, 40, true);
  file.set(header, 4);
  file.set([7, 8], 48);
  const tree = unpack(file.buffer);
  assert.deepEqual([...tree.a], [7, 8]);
  assert.deepEqual(tree.b, [1, null]);
  for (const end of [30, 46]) assert.throws(() => unpack(file.buffer.slice(0, end)), RangeError); // cut off
});

test("a softmax sums to 1 and survives large logits", () => {
  const out = softmax([1000, 1000, -1000], new Float32Array(3));
  assert.deepEqual([...out], [0.5, 0.5, 0]);
});

test("an edit moves and scales a head, and only at the last epoch", () => {
  const path = { epochs: 2, measured: float32([0, 0, 1, -2], [2, 1, 1, 2]), centres: float32([0, 0, 1, -2], [2, 1, 1, 2]), precisions: float32([1, 0, 0, 1, 4, 0, 0, 4], [2, 1, 1, 2, 2]) };
  const model = gaussian([1, -2], [4, 0, 0, 4], path);
  model.edits = { "0.0": { centre: [0, 1], sigma: 0.25 } };
  assert.deepEqual(model.gaussian(0, 0), { centre: [0, 1], precision: [16, 0, 0, 16], sigma: 0.25 });
  assert.deepEqual(model.gaussian(0, 0, true).centre, [1, -2]);
  model.epoch = 0;
  assert.deepEqual(model.gaussian(0, 0), { centre: [0, 0], precision: [1, 0, 0, 1], sigma: 1 });
  assert.deepEqual(model.track(0, 0), [[0, 0], [1, -2]]);
});

test("products of heads are those of the epoch nearest to what is shown, where they were recorded", () => {
  const two = float32([0, 0, 1, -2], [2, 1, 1, 2]), precisions = float32([1, 0, 0, 1, 4, 0, 0, 4], [2, 1, 1, 2, 2]);
  const path = { epochs: 2, measured: two, centres: two, precisions, products: float32([3, 5], [2, 1, 1, 1]) };
  const model = gaussian([1, -2], [4, 0, 0, 4], path), older = gaussian([1, -2], [4, 0, 0, 4], { ...path, products: undefined });
  const at = (one, epoch) => Object.assign(one, { epoch }).productsOf(0);
  model.products = new Float32Array([7]);
  assert.deepEqual([null, 0, 0.4, 0.6, 1].map((epoch) => at(model, epoch)[0]), [7, 3, 3, 5, 5]);
  assert.equal(at(older, 1), undefined);
});

test("of an epoch in a film, centre and covariance are those that were measured", () => {
  const measured = float32([0, 0, 1, -2], [2, 1, 1, 2]), covariances = float32([1, 0.5, 0.5, 2, 3, -1, -1, 4], [2, 1, 1, 2, 2]);
  const model = gaussian([1, -2], [4, 0, 0, 4], { epochs: 2, measured, covariances });
  model.epoch = 1;
  assert.deepEqual(model.recorded(0, 0), { centre: [1, -2], covariance: [3, -1, 4] });
  model.epoch = 0;
  assert.deepEqual(model.recorded(0, 0), { centre: [0, 0], covariance: [1, 0.5, 2] });
});

test("a full covariance keeps its shape when scaled; one without a scale becomes round", () => {
  const precision = [4, 1, 1, 1];
  const wide = rescaled(precision, sigmaOf(precision), 2 * sigmaOf(precision));
  wide.forEach((value, i) => near(value, precision[i] / 4));
  assert.deepEqual(rescaled([0, 0, 0, 0], 0, 2), [0.25, 0, 0, 0.25]);
});

test("ellipses: half axes at 50%, tilted as the covariance", () => {
  const round = ellipse(covarianceOf([4, 0, 0, 4]), 0.5);
  near(round.major, Math.sqrt(2 * Math.log(2)) / 2);
  near(round.minor, round.major);
  near(Math.sin(ellipse([4, 0, 1], 0.5).angle) ** 2, 1); // wide along the rows: upright
  near(Math.sin(ellipse([1, 0, 4], 0.5).angle), 0);
  near(Math.tan(ellipse([2, 1, 2], 0.5).angle), 1);
});

test("a head that is singular along one direction is a strip, not a disc", () => {
  const strip = ellipse(covarianceOf([1, 1, 1, 1]), 0.5), disc = ellipse(covarianceOf([0, 0, 0, 0]), 0.5);
  near(strip.minor, Math.sqrt(2 * Math.log(2)) / Math.sqrt(2), 1e-3);
  assert.ok(strip.major > 100);
  near(Math.tan(strip.angle), -1, 1e-3); // along rows against columns
  near(disc.minor, disc.major);
});

test("kinds of heads, and heads that share a tap", () => {
  const heads = [[[0, 1], [9, 0, 0, 9]], [[0.2, 1.1], [9, 0, 0, 9]], [[0, 0], [0, 0, 0, 0]], [[9, 0], [9, 0, 0, 9]], [[0, 0], [9, 0, 0, 0.05]], [[0, 0], [0.05, 0, 0, 9]], [[0, 0], [0.6, 0, 0, 0.6]], [[0, 0], [4, 4, 4, 4.1]], [[1, 1], [9, 0, 0, 9]]];
  const model = new Model({
    name: "r", title: "r", grid: [11, 11], heads: [9], encoding: "quadratic", path: null,
    centres: float32(heads.flatMap(([c]) => c), [1, 9, 2]), precisions: float32(heads.flatMap(([, p]) => p), [1, 9, 2, 2]), sigmas: float32(Array(9).fill(1), [1, 9]),
  });
  model.edits = { "0.8": { off: true } };
  const read = readLayer(model, 0);
  assert.deepEqual(read.heads.map(({ kind }) => kind), ["tap", "tap", "uniform", "outside", "row", "column", "blur", "line", "off"]);
  assert.deepEqual(read.heads.map(({ same }) => same), [-1, 0, -1, -1, -1, -1, -1, -1, -1]);
  assert.deepEqual([read.size, read.covered], [3, 1]);
  assert.deepEqual(kernelSizes({ height: 4, width: 9 }), [1, 3]);
  assert.deepEqual(kindText(read.heads[1])[0], "same tap as head 1");
});

test("a layer is a convolution where one fits, of the trained model only", () => {
  const model = gaussian([1, -2], [4, 0, 0, 4]);
  for (const [kernel, there] of [[3, 3], [5, 5], [7, null], [4, null], [-1, null], ["x", null], [undefined, null]]) {
    model.edits = { 0: { kernel }, "0.0": { off: true } };
    assert.equal(model.kernelAt(0), there);
  }
  model.edits = { 0: { kernel: 3 } };
  assert.equal(model.kernelAt(1), null);
  model.epoch = 0;
  assert.equal(model.kernelAt(0), null);
  assert.equal(Object.assign(gaussian([0, 0], [1, 0, 0, 1]), { content: true, edits: model.edits }).kernelAt(0), null);
  assert.deepEqual(kernelSizes({ height: 16, width: 16 }), [1, 3, 5, 7, 9]);
});

test("an even kernel lies where most of its taps are covered; the usual place is the last of equal ones", () => {
  const place = (shifts) => {
    const model = new Model({
      name: "r", title: "r", grid: [6, 6], heads: [4], encoding: "quadratic", centres: float32(shifts.flat(), [1, 4, 2]),
      precisions: float32(shifts.flatMap(() => [25, 0, 0, 25]), [1, 4, 2, 2]), sigmas: float32([0.2, 0.2, 0.2, 0.2], [1, 4]),
    });
    const { size, covered, first } = readLayer(model, 0);
    return [size, covered, ...first.map((tap) => tap + 0)];
  };
  assert.deepEqual(place([[-1, -1], [-1, 0], [0, -1], [0, 0]]), [2, 4, -1, -1]);
  assert.deepEqual(place([[0, 0], [0, 1], [1, 0], [1, 1]]), [2, 4, 0, 0]);
  assert.deepEqual(place([[0, 0], [2, 2], [2, 2], [2, 2]]), [2, 1, 0, 0]);
});

test("heads go to the nearest free places", () => {
  assert.deepEqual(nearestPlaces([[0, 0], [0, 0.1], [5, 5]], [[0, 0], [0, 1]]), [[0, 0], [1, 1]]);
  assert.deepEqual(nearestPlaces([[0, 0]], [[0, 1], [0, 0]]), [[0, 1]]); // one place each
});

test("what is dragged follows, falls onto whole places, and with keys goes by a quarter, with Shift by a twentieth", () => {
  const acts = {}, went = [];
  const node = { addEventListener: (name, act) => { acts[name] = act; }, setPointerCapture() {} };
  let free = false;
  const drag = draggable(node, { grip: () => ({ at: [0.6, -1], cell: 20, free }), move: (to) => went.push(to.map((c) => Number(c.toFixed(6)) + 0)) });
  const pulled = (x, y) => {
    acts.pointerdown({ button: 0, clientX: 100, clientY: 100 });
    acts.pointermove({ buttons: 1, clientX: 100 + x, clientY: 100 + y });
    acts.pointerup({});
    return went.pop();
  };
  assert.deepEqual([pulled(2, 2), drag.dragged], [undefined, false]); // a click
  assert.deepEqual([pulled(10, -4), drag.dragged], [[0.4, -0.5], true]);
  assert.deepEqual(pulled(19, 10), [1, 0]);
  free = true;
  assert.deepEqual(pulled(19, 10), [1.1, -0.05]);
  const pressed = (key, shiftKey) => (acts.keydown({ key, shiftKey, preventDefault() {} }), went.pop());
  assert.deepEqual([pressed("ArrowDown"), pressed("ArrowLeft", true), pressed("a")], [[0.85, -1], [0.6, -1.05], undefined]);
  acts.keydown({ key: "ArrowUp", ctrlKey: true }); // the browser's
  assert.equal(went.length, 0);
});

test("dots that coincide stand apart, and far ones are at the edge", () => {
  const plot = { x: 10, y: 0, side: 200, range: 5 }, [a, b, c] = spots([{ centre: [1, 1] }, { centre: [1, 1] }, { centre: [-40, 0] }], plot);
  assert.ok(Math.hypot(a.x - b.x, a.y - b.y) >= 14);
  assert.deepEqual([a.far, b.far], [null, null]);
  near(c.far, -Math.PI / 2);
  assert.ok(c.y > 0 && c.y < 20 && c.x === 110);
  assert.equal(headAt([a, b, c], b.x + 1, b.y, 10), 1);
  assert.equal(headAt([a, b, c], 30, 180, 10), undefined);
});

test("brightness: the root of a share of the largest probability", () => {
  assert.deepEqual([...brightness([0, 0.25], 1, [])].map(Math.round), [0, 128]);
  assert.deepEqual([...brightness([0.0625, 0.25], 0.25, [], 0.25)].map(Math.round), [180, 255]);
});

/** A pen that writes down what it is asked for: [method, arguments, what was set by then]. */
const recorder = () => {
  const calls = [], set = {};
  const pen = new Proxy({}, {
    get: (_, name) => (...given) => calls.push([name, given, { ...set }]),
    set: (_, name, value) => ((set[name] = value), true),
  });
  return { pen, of: (name) => calls.filter((call) => call[0] === name) };
};

test("a field has each value at its row and column, dark where it is small", () => {
  globalThis.window ||= {};
  const { pen, of } = recorder();
  drawField({ style: {}, getContext: () => pen }, [0, 1, 2, 3, 4, 5], [2, 3], 30, [0, 5]);
  const drawn = of("fillRect").map(([, [x, y], { fillStyle }]) => [x, y, fillStyle]);
  assert.deepEqual(drawn.map(([x, y]) => [x, y]), [[0, 0], [10, 0], [20, 0], [0, 10], [10, 10], [20, 10]]);
  assert.equal(drawn[0][2], `rgb(${[...RAMP.slice(0, 3)]})`);
  assert.equal(drawn[5][2], `rgb(${[...RAMP.slice(-3)]})`);
});

test("shifts are written rows first", () => assert.equal(shiftText([1, -2], 0), "(+1, −2)"));

test("all but a little is not 100%", () => {
  const written = [1, 0.99995, 0.99985, 0.996, 0.994, 0.1, 0.05, 0.004, 0.0002, 0.00001].map(percent);
  assert.deepEqual(written, ["100%", "100%", "99.9%", "99.6%", "99%", "10%", "5.0%", "0.4%", "0.02%", "<0.01%"]);
});

test("heads have their number, a solid ring of 50% inside a dotted one of 90%, and paths, each at its shift", () => {
  const { pen, of } = recorder();
  const colours = { panel: "#ffffff", line: "#888888", text: "#000000", back: "#ffffff" };
  const shape = { centre: [1, -2], covariance: [0.25, 0, 0.25], faint: false };
  const plot = { x: 0, y: 0, side: 100, range: 5 };
  drawHeads(pen, plot, [shape], { colours, colourOf: () => "#336699", trails: [[[0, 0], [2, -1]]] });
  const rings = of("ellipse").map(([, [x, y, wide]]) => [x, y, wide]);
  assert.deepEqual(rings.map(([x, y]) => [x, y]), [[30, 60], [30, 60]]);
  assert.deepEqual(of("setLineDash").slice(0, 2).map(([, [dashes]]) => dashes.length > 0), [false, true]);
  assert.ok(rings[0][2] < rings[1][2]);
  assert.deepEqual(of("lineTo").slice(-2).map(([, place]) => place), [[50, 50], [40, 70]]);
  assert.deepEqual(of("fillText").map(([, [text]]) => text), [1]);
});

test("lightness rises all along the ramp, and what is written on it can be read", () => {
  const part = (value) => (value / 255 <= 0.04045 ? value / 3294.6 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = (i) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, c) => sum + weight * part(RAMP[3 * i + c]), 0);
  for (let i = 8; i < 256; i += 8) assert.ok(light(i) > light(i - 8), `${i}`);
  for (let i = 0; i < 256; i++) {
    const ink = inkOn([...RAMP.slice(3 * i, 3 * i + 3)]) === "#fff" ? 1 : 0;
    const contrast = (Math.max(ink, light(i)) + 0.05) / (Math.min(ink, light(i)) + 0.05);
    assert.ok(contrast >= 4.5, `${i}: ${contrast}`);
  }
});

/** A model of two layers, of which these answers were counted. */
const counting = (counted, edits, rest = {}) =>
  Object.assign(gaussian([0, 0], [1, 0, 0, 1]), { counted, edits, heads: [1, 1], ...rest });

test("right answers are those that were counted with exactly these convolutions", () => {
  const counted = { 3: { 0: [8, 8, 10], 1: [7, 8, 10], 2: [40, 80, 100], 3: [2, 8, 10] }, 5: { 1: [6, 8, 10] } };
  const told = (edits) => accuracyOf(counting(counted, edits));
  assert.deepEqual(told({}), { now: 0.8, whole: 0.8, text: "80.0% of 10 test images" });
  assert.equal(told({ 0: { kernel: 3 } }).text, "70.0% of 10 test images, 10.0 points fewer than with attention (80.0%)");
  assert.equal(told({ 0: { kernel: 5 } }).now, 0.6);
  assert.deepEqual([told({ 1: { kernel: 3 } }).now, told({ 0: { kernel: 3 }, 1: { kernel: 3 } }).now], [0.4, 0.2]);
  for (const edits of [{ "0.0": { off: true } }, { 0: { kernel: 3 }, 1: { kernel: 5 } }, { 1: { kernel: 5 } }, { 0: { kernel: 3 }, "1.0": { off: true } }])
    assert.deepEqual([told(edits).now, told(edits).text], [null, "not counted for these changes"]);
  const lost = [0, 1].map((layer) => counting(counted, {}).lostAlone(layer));
  near(lost[0], 0.1);
  near(lost[1], 0.4);
  assert.equal(counting({}, {}).lostAlone(0), null);
});

test("at an epoch the right answers are that epoch's", () => {
  const told = (epoch) => accuracyOf(counting({}, {}, { epoch, path: { accuracy: [0.25, 0.5] } }));
  assert.deepEqual([told(0).now, told(1).now, told(1.4).now, told(null).now], [null, 0.25, 0.25, 0.5]);
  assert.match(told(1).text, /25.0% after epoch 1/);
});

const nowhere = { location: { hash: "", href: "file:///page.html" }, addEventListener() {} };

test("a link holds the view; a damaged one changes nothing", () => {
  const state = { query: [1, 2], layer: 3, head: 4, view: "centres", edits: { "3.4": { centre: [0.5, -1], off: true } }, notice: "x" };
  const { notice, ...kept } = state, back = fromLink(`#${inLink(state)}`);
  assert.deepEqual(back, kept);
  assert.ok(notice && !inLink(state).includes("notice"));
  for (const hash of ["", "#", "#%", "#%7B", "#7", "#null"]) assert.deepEqual(fromLink(hash), {});
  assert.deepEqual(fromLink(`#${encodeURIComponent('{"query":7,"layer":"2","edits":null,"other":1,"image":5,"head":1}')}`), { head: 1 });
  const odd = [{ layer: -1 }, { head: 0.5 }, { query: [] }, { query: [1, "2"] }, { query: [0, -1] }, { epoch: -1 }, { epoch: "2" }];
  for (const one of odd) assert.deepEqual(fromLink(`#${encodeURIComponent(JSON.stringify(one))}`), {});
  for (const epoch of [null, 2]) assert.deepEqual(fromLink(`#${inLink({ epoch })}`), { epoch });
  const place = { ...nowhere, location: { ...nowhere.location, hash: `#${inLink(state)}` } };
  const host = pageHost({ images: [{ label: null }] }, null, place);
  assert.equal(host.state.layer, 3);
  assert.equal(fromLink(new URL(host.link(state)).hash).head, 4);
});

test("a random image is one of the class, not shown before as long as there is one, and in no order", async () => {
  const images = Array.from({ length: 41 }, (_, i) => ({ label: i % 2, title: `image ${i}` }));
  const host = hostOf({ images }, null), heard = [], shown = [0];
  host.listen((what) => heard.push(what));
  const press = async (label, id) => {
    const before = host.image;
    await host.send({ kind: "image", class: label, id });
    assert.notEqual(host.image, before);
    return parseInt(host.image.title.slice(6), 10);
  };
  for (let id = 0; id < 30; id++) shown.push(await press(null, id));
  assert.equal(new Set(shown).size, 31); // none twice
  const steps = new Set(shown.slice(1).map((number, i) => number - shown[i]));
  assert.ok(steps.size > 5, `${shown}`);
  for (let id = 0; id < 40; id++) assert.equal((await press(1, id)) % 2, 1);
  assert.deepEqual(heard.slice(0, 4), ["image", "done", "image", "done"]);
  await host.send({ kind: "image", class: 5, id: 31 });
  assert.deepEqual(heard.slice(-2), ["notice", "done"]);
});

test("a link names the image; one that it cannot hold is not shown without a word", async () => {
  const place = { location: { hash: "", href: "file:///page.html" }, addEventListener: (_, act) => { place.followed = act; } };
  const images = ["a", "b", "c"].map((title) => ({ title, label: null, pixels: { shape: [1, 1, 1] } }));
  const page = () => pageHost({ images }, async () => ({ probabilities: [1] }), place);
  const first = page(), hashOf = (host) => new URL(host.link({ view: "centres", epoch: 2, all: true })).hash;
  place.location.hash = hashOf(Object.assign(first, { image: images[2] }));
  const second = page();
  assert.equal(second.image, images[2]);
  assert.deepEqual([second.state.view, second.state.epoch, second.state.all], ["centres", 2, true]);
  assert.deepEqual([second.lost, second.state.image], ["", undefined]);

  // The reader's own picture.
  await second.send({ kind: "open", name: "cat.png", id: 1 }, [new Uint8Array([7]).buffer]);
  assert.deepEqual([second.image.title, second.image.own, ...second.image.pixels.data], ["cat.png", true, 7]);
  place.location.hash = hashOf(second);
  assert.equal(fromLink(place.location.hash).image, null);
  assert.equal(page().image, images[0]);
  assert.match(page().lost, /picture of its author's own/);

  // An image of another page; and a link that is followed here.
  place.location.hash = `#${inLink({ image: "d" })}`;
  assert.match(page().lost, /does not hold .*“d”/);
  const heard = [];
  second.listen((what) => heard.push(what));
  const newURL = `file:///page.html#${inLink({ image: "b" })}`;
  place.location.hash = `#${inLink({ image: "c" })}`; // the view was saved before the page heard of the link
  place.followed({ newURL });
  assert.deepEqual([second.image, second.lost, ...heard], [images[1], "", "state"]);
  assert.deepEqual(second.state, {}); // what the link does not say stays as the reader has it
});

test("the widget's host asks Python for what the data do not have, and hears of its state", async () => {
  const listeners = {}, sent = [], heard = [], traits = { state: { layer: 1 } };
  const model = {
    get: (name) => traits[name], set: (name, value) => { traits[name] = value; }, save_changes() {},
    send: (...all) => sent.push(all),
    on: (name, act) => { listeners[name] = act; }, off: (name) => { delete listeners[name]; },
  };
  const images = [{ label: null, title: "a" }, { label: null, title: "b" }];
  const host = widgetHost({ images }, null, model);
  host.listen((...all) => heard.push(all));
  assert.equal(host.state.layer, 1);
  await host.send({ kind: "image", class: null, id: 3 }, []);
  assert.equal(host.image.title, "b");
  host.send({ kind: "export", id: 4 }, []);
  assert.deepEqual(sent.map(([{ kind }]) => kind), ["export"]);
  listeners["msg:custom"]({ kind: "done", id: 4 }, []);
  host.save({ layer: 2 });
  listeners["change:state"](); // its own
  traits.state = { layer: 3 };
  listeners["change:state"]();
  assert.deepEqual(heard, [["image"], ["done", 3], ["done", 4], ["state"]]);
  assert.equal(host.state.layer, 3);

  // A kernel that has gone is named at once, and asked for nothing until it answers.
  sent.length = heard.length = 0;
  host.send({ kind: "export", id: 5 }, []);
  listeners.comm_live_update();
  host.send({ kind: "run", id: 6 }, []);
  assert.deepEqual(sent.map(([{ kind }]) => kind), ["export", "hello"]);
  assert.deepEqual(heard.map(([what]) => what), ["notice", "done", "notice", "done"]);
  assert.match(heard[0][1], /run this cell again/);
  await host.send({ kind: "image", class: null, id: 7 }, []); // that needs no kernel
  assert.equal(heard.at(-2)[0], "image");
  listeners["msg:custom"]({ kind: "done", id: undefined }, []);
  host.send({ kind: "run", id: 8 }, []);
  assert.equal(sent.at(-1)[0].kind, "run");
  host.close();
  assert.deepEqual(listeners, {});
});

test("a link with another model leads to that model's page", () => {
  const went = [], place = { location: { hash: "", search: "?site", href: "file:///explorer.html", replace: (to) => went.push(to) }, addEventListener: () => {} };
  const pages = { quadratic: "explorer.html", learned: "explorer-learned.html" }, image = { title: "a", label: null };
  const page = () => pageHost({ images: [image], model: "quadratic", pages }, null, place);
  place.location.hash = new URL(page().link({ layer: 2 })).hash;
  assert.deepEqual([fromLink(place.location.hash).model, page().lost, went], ["quadratic", "", []]);
  place.location.hash = `#${inLink({ model: "learned", layer: 2 })}`;
  page();
  assert.deepEqual(went, [`explorer-learned.html?site${place.location.hash}`]);
  place.location.hash = `#${inLink({ model: "constructor" })}`;
  assert.match(page().lost, /does not hold the model of this link, “constructor”/);
  assert.equal(went.length, 1);
});

test("a question takes its image along, not all that the page was read from", async () => {
  const data = new Uint8Array(new ArrayBuffer(1000), 500, 3), asked = [];
  const image = { label: null, title: "a", pixels: { shape: [1, 1, 3], data } };
  const ask = async (_, message) => { asked.push(message.image.values); return {}; };
  await hostOf({ images: [image] }, ask).send({ kind: "heads", edits: [] });
  assert.deepEqual([asked[0].length, asked[0].buffer.byteLength], [3, 3]);
});

test("half precision: normal, subnormal and negative numbers", () => {
  const codes = [0x3c00, 0xc000, 0x3555, 0x0001, 0x8000, 0x7bff];
  assert.deepEqual([...fromHalf(Uint8Array.from(codes, (code) => code >> 8), Uint8Array.from(codes, (code) => code & 255))], [1, -2, 1365 / 4096, 2 ** -24, -0, 65504]);
});

test("images are cut into blocks, channel by channel", () => {
  const image = { height: 2, width: 4, channels: 2, values: Uint8Array.from({ length: 16 }, (_, i) => i) };
  const got = unshuffled(image, 2, [0, 0], [1 / 255, 1 / 255]);
  assert.deepEqual([...got].map(Math.round), [0, 2, 8, 10, 1, 3, 9, 11, 4, 6, 12, 14, 5, 7, 13, 15]);
});

test("while the page computes, its last prediction of changed heads stays", async () => {
  let answer;
  const image = { label: 0, title: "a", pixels: { shape: [1, 1, 1], data: new Uint8Array(1) } };
  const host = hostOf({ images: [image] }, () => new Promise((done) => { answer = done; }), nowhere);
  const change = (head) => host.send({ kind: "heads", edits: [{ layer: 0, head, off: true }] });
  const first = change(0);
  answer({ probabilities: [0.2] });
  await first;
  const second = change(1);
  assert.deepEqual(host.edited.probabilities, [0.2]);
  answer({ probabilities: [0.3] });
  await second;
  assert.deepEqual([host.edited.probabilities, host.edited.heads[0].head], [[0.3], 1]);
});

test("where no worker can start, the page answers itself", async () => {
  let made;
  globalThis.Worker = class { constructor() { made = this; } postMessage() {} };
  const ask = workerOf(""), first = ask("heads", { edits: {} });
  made.onerror({ message: "" });
  for (const answer of [first, ask("nothing", {})]) await assert.rejects(answer, TypeError); // it has no model
  delete globalThis.Worker;
  await assert.rejects(workerOf("")("heads", { edits: {} }), TypeError);
});

test("a linear map, and weighted sums of rows: four numbers at a time where they fit, or else one by one", () => {
  const values = (many, turn) => Float32Array.from({ length: many }, (_, i) => Math.sin(turn * i + 1));
  for (const [many, outputs, channels] of [[8, 6, 8], [5, 3, 12], [1, 1, 4], [4, 2, 7], [300, 96, 100]]) {
    const x = values(many * channels, 0.37), weight = values(outputs * channels, 0.71), bias = values(outputs, 2);
    const found = linear(x, { weight, bias }, channels);
    assert.equal(found.length, many * outputs);
    for (let at = 0; at < found.length; at++) {
      const row = Math.floor(at / outputs) * channels, to = (at % outputs) * channels;
      let sum = bias[at % outputs];
      for (let c = 0; c < channels; c++) sum += x[row + c] * weight[to + c];
      near(found[at], sum, 1e-4);
    }
    const sums = weighted(x, channels, (add) => { add(many - 1, 0, 0.5); add(many - 1, many - 1, -2); });
    for (let c = 0; c < channels; c++) {
      const last = (many - 1) * channels + c;
      near(sums[last], 0.5 * x[c] - 2 * x[last], 1e-5);
      if (many > 1) assert.equal(sums[c], 0);
    }
  }
});
