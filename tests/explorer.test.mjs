// The explorer's arithmetic, with node's own runner: node --test tests/explorer.test.mjs
import assert from "node:assert/strict";
import { test } from "node:test";
import { drawHeads, headAt, spots } from "../lib/companion/explorer/front/centres.js";
import { LayerCard, kindText, nearestPlaces } from "../lib/companion/explorer/front/layer.js";
import { Model, covarianceOf, ellipse, kernelSizes, project, readLayer, rescaled, sigmaOf, typed, unpack } from "../lib/companion/explorer/front/heads.js";
import { brightness, drawField, percent, ramp, shiftText } from "../lib/companion/explorer/front/draw.js";
import { fromHalf, unshuffled } from "../lib/companion/explorer/front/network.js";
import { fromLink, inLink, pageHost, widgetHost, workerOf } from "../lib/companion/explorer/front/hosts.js";
import { Explorer } from "../lib/companion/explorer/front/explorer.js";
import { clamp, softmax } from "../lib/companion/explorer/front/maths.js";

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

test("what changes no head of a layer is no step of undo", () => {
  const steps = [], view = { state: { layer: 0, edits: {} }, models: [{ heads: [1] }], setEdits() {} };
  const change = (off) => Explorer.prototype.editLayer.call({ ...view, remember: (key) => steps.push(key) }, ([edit]) => { edit.off = off; });
  change(false);
  assert.deepEqual(steps, []);
  change(true);
  assert.deepEqual(steps, [null]);
});

test("heads go to the nearest free places", () => {
  assert.deepEqual(nearestPlaces([[0, 0], [0, 0.1], [5, 5]], [[0, 0], [0, 1]]), [[0, 0], [1, 1]]);
  assert.deepEqual(nearestPlaces([[0, 0]], [[0, 1], [0, 0]]), [[0, 1]]); // one place each
});

test("with Shift, an arrow key moves a head to the next whole shift", () => {
  const moved = (centre, key) => {
    const edit = {}, card = { canDrag: () => true, explorer: { edit: (change) => change(edit, { centre }) } };
    LayerCard.prototype.key.call(card, { key, shiftKey: true, preventDefault() {} });
    return edit.centre.map((c) => c + 0);
  };
  assert.deepEqual(moved([0.6, 0], "ArrowDown"), [1, 0]);
  assert.deepEqual(moved([0.4, 0], "ArrowUp"), [0, 0]);
  assert.deepEqual(moved([0, -1], "ArrowLeft"), [0, -2]);
  assert.deepEqual(moved([0, 0.9999], "ArrowRight"), [0, 2]);
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

test("queries go to the same place on another grid", () => {
  assert.deepEqual(project([0, 6], [7, 7], [16, 16]), [1, 14]);
  assert.deepEqual(project([15, 8], [16, 16], [7, 7]), [6, 3]);
  assert.equal(clamp(9, 0, 3), 3);
});

test("brightness: probabilities by their root, logits by the top of their range", () => {
  assert.deepEqual([...brightness([0, 0.25, 1], false, 0, [])].map(Math.round), [0, 128, 255]);
  assert.deepEqual([...brightness([0, 0.25], false, 1, [])].map(Math.round), [0, 128]);
  assert.deepEqual([...brightness([-100, -6, 0], true, 0, [])].map(Math.round), [0, 128, 255]);
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

test("a field has each value at its row and column, dark where it is small on a dark ramp", () => {
  globalThis.window ||= {};
  const { pen, of } = recorder(), colours = { ramp: ramp(true) };
  drawField({ style: {}, getContext: () => pen }, [0, 1, 2, 3, 4, 5], [2, 3], 30, [0, 5], colours);
  const drawn = of("fillRect").map(([, [x, y], { fillStyle }]) => [x, y, fillStyle]);
  assert.deepEqual(drawn.map(([x, y]) => [x, y]), [[0, 0], [10, 0], [20, 0], [0, 10], [10, 10], [20, 10]]);
  assert.equal(drawn[0][2], `rgb(${[...colours.ramp.slice(0, 3)]})`);
  assert.equal(drawn[5][2], `rgb(${[...colours.ramp.slice(-3)]})`);
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

test("lightness falls all along the light ramp and rises along the dark one", () => {
  for (const [dark, sign] of [[false, -1], [true, 1]]) {
    const table = ramp(dark), light = (i) => 0.2126 * table[3 * i] + 0.7152 * table[3 * i + 1] + 0.0722 * table[3 * i + 2];
    for (let i = 8; i < 256; i += 8) assert.ok(sign * (light(i) - light(i - 8)) > 0, `${i}`);
  }
});

const nowhere = { location: { hash: "", href: "file:///page.html" }, addEventListener() {} };

test("a link holds the view; a damaged one changes nothing", () => {
  const state = { query: [1, 2], layer: 3, head: 4, view: "centres", edits: { "3.4": { centre: [0.5, -1], off: true } }, notice: "x" };
  const { notice, ...kept } = state, back = fromLink(`#${inLink(state)}`);
  assert.deepEqual(back, kept);
  assert.ok(notice && !inLink(state).includes("notice"));
  for (const hash of ["", "#", "#%", "#%7B", "#7", "#null"]) assert.deepEqual(fromLink(hash), {});
  assert.deepEqual(fromLink(`#${encodeURIComponent('{"query":7,"layer":"2","edits":null,"other":1,"image":5,"head":1}')}`), { head: 1 });
  const odd = [{ layer: -1 }, { head: 0.5 }, { query: [] }, { query: [1, "2"] }, { query: [0, -1] }, { epochs: [-1, null] }];
  for (const one of odd) assert.deepEqual(fromLink(`#${encodeURIComponent(JSON.stringify(one))}`), {});
  assert.deepEqual(fromLink(`#${inLink({ epochs: [null, 2] })}`), { epochs: [null, 2] });
  const place = { ...nowhere, location: { ...nowhere.location, hash: `#${inLink(state)}` } };
  const host = pageHost({ image: { label: null }, gallery: [] }, null, place);
  assert.equal(host.state.layer, 3);
  assert.equal(fromLink(new URL(host.link(state)).hash).head, 4);
});

test("a random image is one of the class, never the same again, and in no order", async () => {
  const gallery = Array.from({ length: 40 }, (_, i) => ({ label: i % 2, title: `image ${i + 1}` }));
  const host = pageHost({ image: { label: 1, title: "image 0" }, gallery }, null, nowhere), heard = [], shown = [];
  host.listen((what) => heard.push(what));
  for (let press = 0; press < 30; press++) {
    const before = host.image;
    await host.send({ kind: "image", class: press < 20 ? null : 1, id: press });
    assert.notEqual(host.image, before);
    if (press >= 20) assert.equal(host.image.label, 1);
    shown.push(parseInt(host.image.title.slice(6), 10));
  }
  const steps = new Set(shown.slice(1, 20).map((number, i) => number - shown[i]));
  assert.ok(steps.size > 5, `${shown}`);
  assert.deepEqual(heard.slice(0, 4), ["image", "done", "image", "done"]);
  await host.send({ kind: "image", class: 5, id: 31 });
  assert.deepEqual(heard.slice(-2), ["notice", "done"]);
});

test("a link names the image; one that it cannot hold is not shown without a word", async () => {
  const place = { location: { hash: "", href: "file:///page.html" }, addEventListener: (_, act) => { place.followed = act; } };
  const images = ["a", "b", "c"].map((title) => ({ title, label: null, pixels: { shape: [1, 1, 1] } }));
  const page = () => pageHost({ image: images[0], gallery: images.slice(1) }, async () => ({ probabilities: [1] }), place);
  const first = page(), hashOf = (host) => new URL(host.link({ compare: "epoch", epochs: [null, 2], average: true })).hash;
  place.location.hash = hashOf(Object.assign(first, { image: images[2] }));
  const second = page();
  assert.equal(second.image, images[2]);
  assert.deepEqual([second.state.compare, second.state.epochs, second.state.average], ["epoch", [null, 2], true]);
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

test("the exported page knows the changed heads it came with, and no others", () => {
  const heads = [{ layer: 0, head: 1, off: true }], edited = { heads, probabilities: [1] };
  const host = pageHost({ image: { label: 0 }, gallery: [{ label: 1 }], edited }, null, nowhere), change = (edits) => host.send({ kind: "heads", edits });
  assert.equal(host.edited, edited);
  change([{ layer: 0, head: 1, centre: [0, 0] }]);
  assert.deepEqual(host.edited, {});
  change([]);
  assert.deepEqual(host.edited, {});
  change(structuredClone(heads));
  assert.equal(host.edited, edited);
  host.send({ kind: "image", class: null });
  assert.deepEqual(host.edited, {});
  change(heads); // of another image
  assert.deepEqual(host.edited, {});
});

test("a link with other changes does not show the prediction that a page came with", () => {
  const edits = { "0.1": { off: true } }, edited = { heads: [{ layer: 0, head: 1, off: true }], probabilities: [1] };
  const page = (...given) => {
    const place = { ...nowhere, location: { ...nowhere.location, hash: given.length ? `#${inLink({ edits: given[0] })}` : "" } };
    return pageHost({ image: { label: 0 }, gallery: [], edited, state: { edits, layer: 0 } }, null, place);
  };
  assert.deepEqual([page().edited, page(edits).edited], [edited, edited]);
  assert.deepEqual([page({}).edited, page({ "0.0": { off: true } }).edited], [{}, {}]);
});

test("the widget's host passes messages on, and tells of an update once", async () => {
  const listeners = {}, sent = [], heard = [];
  const model = {
    get: (name) => name, set() {}, save_changes() {}, send: (...all) => sent.push(all),
    on: (name, act) => { listeners[name] = act; }, off: (name) => { delete listeners[name]; },
  };
  const host = widgetHost(model);
  host.listen((...all) => heard.push(all));
  assert.equal(host.sides, "sides");
  host.send({ kind: "export" }, []);
  assert.equal(sent[0][0].kind, "export");
  listeners["change:image"]();
  listeners["change:sides"]();
  listeners["msg:custom"]({ kind: "done", id: 4 }, []);
  await new Promise((done) => setTimeout(done, 20));
  assert.deepEqual(heard, [["done", 4], ["sides"]]);
  listeners["change:average"]();
  listeners["change:edited"](); // both at once: neither is lost
  await new Promise((done) => setTimeout(done, 20));
  assert.deepEqual(heard.slice(2), [["average"], ["edited"]]);
  host.close();
  assert.deepEqual(listeners, {});
});

test("a link with another model leads to that model's page", () => {
  const went = [], place = { location: { hash: "", search: "?site", href: "file:///explorer.html", replace: (to) => went.push(to) }, addEventListener: () => {} };
  const pages = { quadratic: "explorer.html", learned: "explorer-learned.html" }, image = { title: "a", label: null };
  const page = () => pageHost({ image, gallery: [], model: "quadratic", pages }, null, place);
  place.location.hash = new URL(page().link({ layer: 2 })).hash;
  assert.deepEqual([fromLink(place.location.hash).model, page().lost, went], ["quadratic", "", []]);
  place.location.hash = `#${inLink({ model: "learned", layer: 2 })}`;
  page();
  assert.deepEqual(went, [`explorer-learned.html?site${place.location.hash}`]);
  place.location.hash = `#${inLink({ model: "constructor" })}`;
  assert.match(page().lost, /does not hold the model of this link, “constructor”/);
  assert.equal(went.length, 1);
});

test("a kernel that has gone is named at once, and asked for nothing until it answers", async () => {
  const calls = {}, sent = [], told = [];
  const model = { on: (name, act) => { calls[name] = act; }, off: (name) => delete calls[name], send: (message) => sent.push(message.kind), get: () => ({}) };
  const host = widgetHost(model);
  host.listen((...what) => told.push(what));
  host.send({ kind: "image", id: 1 });
  calls.comm_live_update();
  host.send({ kind: "image", id: 2 });
  assert.deepEqual(sent, ["image", "hello"]);
  assert.deepEqual(told.map(([what]) => what), ["notice", "done", "notice", "done"]);
  assert.match(told[0][1], /Run this cell again/);
  calls["msg:custom"]({ kind: "done", id: undefined }, []);
  host.send({ kind: "image", id: 3 });
  assert.deepEqual([sent.at(-1), told.at(-2)], ["image", ["notice", ""]]);
  host.close();
  assert.deepEqual(calls, {});
});

test("a question takes its image along, not all that the page was read from", async () => {
  const data = new Uint8Array(new ArrayBuffer(1000), 500, 3), asked = [];
  const image = { label: null, title: "a", pixels: { shape: [1, 1, 3], data } };
  const ask = async (_, message) => { asked.push(message.image.values); return {}; };
  await pageHost({ image, gallery: [] }, ask, nowhere).send({ kind: "heads", edits: [] });
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

test("right answers that several workers count come back in the order of the images", async () => {
  const pixels = { shape: [1, 1, 1], data: new Uint8Array(1) }, asked = [];
  const gallery = [1, 2, 3, 4].map((label) => ({ label, title: `image ${label}`, pixels }));
  const worker = (number) => async (kind, { images }) => {
    asked.push([number, images.map(({ label }) => label)]);
    return images.map(({ label }) => `${kind} ${label}`);
  };
  const place = { location: { hash: "", search: "", pathname: "" }, history: { replaceState() {} }, addEventListener() {} };
  const host = pageHost({ image: { label: 0, title: "image 0", pixels }, gallery, choices: {} }, worker(0), place, [worker(1)]);
  const heard = [];
  host.listen((kind, message) => heard.push([kind, message?.right]));
  assert.equal(host.chunk, 2);
  await host.send({ kind: "right", edits: [{ layer: 0, head: 1, off: true }], from: 0, to: 5 });
  assert.deepEqual(heard[0], ["right", [0, 1, 2, 3, 4].map((label) => `right ${label}`)]);
  assert.deepEqual(asked, [[0, [0, 2, 4]], [1, [1, 3]]]);
});

test("while the page computes, its last prediction of changed heads stays", async () => {
  let answer;
  const image = { label: 0, title: "a", pixels: { shape: [1, 1, 1], data: new Uint8Array(1) } };
  const host = pageHost({ image, gallery: [] }, () => new Promise((done) => { answer = done; }), nowhere);
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

test("a worker that cannot start says so to every question", async () => {
  let made;
  globalThis.Worker = class { constructor() { made = this; } postMessage() {} };
  const ask = workerOf(""), first = ask("start", {});
  made.onerror({ message: "" });
  for (const answer of [first, ask("heads", {})]) await assert.rejects(answer, /cannot start a worker/);
  delete globalThis.Worker;
});

test("right answers are counted on several images, not on one", () => {
  const labelled = (gallery) => pageHost({ image: { label: 0 }, gallery }, null, nowhere).choices.labelled;
  assert.deepEqual([labelled([]), labelled([{ label: 1 }, { label: null }])], [0, 2]);
});
