// What stands between the explorer's page and its data: Python's widget, or what an exported file holds.

import { NOT_HELD, inAddress } from "./page.js";

const GONE = "The kernel is new, or gone, and does not know this view. Run this cell again to go on.";

/** In Jupyter: data are the widget's traits, messages go to Python. When the connection changes, the kernel is gone
 * until it answers. */
export function widgetHost(model) {
  let tell = () => {}, gone = false;
  const asked = new Set(); // questions that Python has not answered yet
  const host = {
    live: true,
    predicts: true,
    chunk: 25, // test images that Python looks at in one go
    send(message, buffers) {
      if (!gone) {
        asked.add(message.id);
        return model.send(message, undefined, buffers);
      }
      tell("notice", GONE);
      tell("done", message.id);
    },
    save(state) {
      host.saved = JSON.stringify(state);
      model.set("state", state);
      model.save_changes();
    },
    listen(told) {
      tell = told;
      const lost = () => {
        gone = true;
        told("notice", GONE);
        for (const id of asked) told("done", id); // nobody will answer them
        asked.clear();
        model.send({ kind: "hello" }, undefined, []);
      };
      model.on("comm_live_update", lost);
      const custom = (message, buffers) => {
        if (gone) told("notice", "");
        gone = false;
        asked.delete(message.id);
        if (message.kind === "done") told("done", message.id);
        else if (message.kind === "notice") told("notice", message.text);
        else if (message.kind === "examined" || message.kind === "right") told(message.kind, message);
        else if (message.kind === "file") told("file", { ...message, content: buffers[0] });
      };
      const changes = {};
      // `sides` and `image` arrive together: wait until all of an update is there.
      for (const name of ["sides", "image", "average", "edited"])
        model.on(
          `change:${name}`,
          (changes[name] = () => {
            host.changed ||= setTimeout(() => {
              const all = host.all;
              host.changed = host.all = null;
              for (const one of all.has("sides") ? ["sides"] : all) told(one);
            });
            (host.all ||= new Set()).add(name);
          }),
        );
      model.on(
        "change:state",
        (changes.state = () => JSON.stringify(model.get("state")) !== host.saved && told("state")),
      );
      model.on("msg:custom", custom);
      host.close = () => {
        clearTimeout(host.changed);
        model.off("msg:custom", custom);
        model.off("comm_live_update", lost);
        for (const [name, act] of Object.entries(changes)) model.off(`change:${name}`, act);
      };
    },
  };
  for (const name of ["sides", "image", "average", "edited", "choices", "state"])
    Object.defineProperty(host, name, { get: () => model.get(name) });
  return host;
}

/** Questions to a Web Worker made of `source`, each answered by a promise. Null where there can be none. */
export function workerOf(source) {
  let worker, last = 0, broken = null;
  const waiting = new Map();
  try {
    worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
  } catch {
    return null;
  }
  worker.onmessage = ({ data: { id, answer, error } }) => {
    const { done, failed } = waiting.get(id);
    waiting.delete(id);
    if (error) failed(new Error(error));
    else done(answer);
  };
  worker.onerror = (event) => {
    broken = new Error(event.message || "This browser cannot start a worker.");
    for (const { failed } of waiting.values()) failed(broken);
    waiting.clear();
  };
  return (kind, message) => new Promise((done, failed) => {
    if (broken) return failed(broken);
    waiting.set(++last, { done, failed });
    worker.postMessage({ ...message, kind, id: last });
  });
}

const LINKED = [
  "model", "image", "query", "locked", "layer", "head", "all", "smooth", "view", "whole", "part", "scale", "shared",
  "average", "compare", "epochs", "edits", "size",
];

/** A view as text for a link, and back; a link that was damaged changes nothing. */
export const inLink = (state) =>
  encodeURIComponent(JSON.stringify(Object.fromEntries(LINKED.map((name) => [name, state[name]]))));

export function fromLink(hash) {
  try {
    const state = JSON.parse(decodeURIComponent(hash.slice(1)));
    const whole = (value) => Number.isInteger(value) && value >= 0;
    const two = (fits) => (value) => Array.isArray(value) && value.length === 2 && value.every(fits);
    const like = {
      model: (value) => typeof value === "string",
      image: (value) => value === null || typeof value === "string",
      query: two(whole),
      epochs: two((value) => value === null || whole(value)),
      edits: (value) => Boolean(value) && typeof value === "object",
      size: (value) => value === null || whole(value),
      layer: whole,
      head: whole,
    };
    return Object.fromEntries(
      Object.entries(state).filter(([name, value]) => LINKED.includes(name) && (like[name] || (() => true))(value)),
    );
  } catch {
    return {};
  }
}

/** In a page of a site: links to those of other models take the image, the query and the layer with them. */
export function carryOn(links, place = window) {
  for (const link of links)
    link.addEventListener("click", () => {
      const { image, query, locked, layer } = fromLink(place.location.hash);
      link.search = place.location.search;
      link.hash = inLink({ image, query, locked, layer });
    });
}

/** In an exported page: images come from the file, and with the weights in it, `ask` is a worker that predicts.
 *
 * A link names the image by its title. It cannot hold a picture that the reader opened: null stands for that one.
 * Where there is a page for each model of a site, it names the model too, and every page leads to the right one.
 * `lost` says why the image of a link is not the one that is shown. `helpers` are more such workers: right answers are
 * counted by all at once.
 */
export function pageHost(data, ask = null, place = window, helpers = []) {
  const workers = [ask, ...helpers];
  const images = [data.image, ...data.gallery];
  const labelled = images.filter(({ label }) => label !== null);
  const known = data.edited || {}; // heads as they were changed in Jupyter, if so
  const address = inAddress(place);
  let told = () => {}, serial = 0;
  // A copy goes to the worker: with a view, all of the buffer that it looks at would, which is the whole page's.
  const pixels = ({ shape: [height, width, channels], data }) => ({ height, width, channels, values: data.slice() });
  const shown = () => ({ ...pixels(host.image.pixels), serial });
  const key = (layer, head) => (head === undefined ? `${layer}` : `${layer}.${head}`);
  const edits = (list) => Object.fromEntries(list.map(({ layer, head, ...edit }) => [key(layer, head), edit]));
  const show = (image) => {
    Object.assign(host, { image, edited: {}, lost: "" });
    serial++;
  };
  const inThisLink = (state) =>
    inLink({ ...state, model: data.model, image: host.image.own ? null : host.image.title });
  /** Take over the state that a link holds, and the image that it names. */
  const follow = (hash, before = {}) => {
    const { image: title, model, ...state } = fromLink(hash), { pages = {} } = data;
    if (model !== data.model && Object.hasOwn(pages, model))
      place.location.replace(pages[model] + place.location.search + hash);
    host.state = { ...before, ...state };
    const named = images.find((image) => image.title === title);
    if (named && named !== host.image) show(named);
    host.lost = "";
    if (title === null) host.lost = NOT_HELD;
    else if (model && model !== data.model) host.lost = `This page does not hold the model of this link, “${model}”.`;
    else if (title !== undefined && !named) host.lost = `This page does not hold the image of this link, “${title}”.`;
  };
  const actions = {
    image(message) {
      const others = images.filter(
        (image) => image !== host.image && (message.class === null || image.label === message.class),
      );
      if (!others.length) return told("notice", "This file holds no other image of that class.");
      show(others[Math.floor(Math.random() * others.length)]);
      told("image");
    },
    async heads(message) {
      if (ask) { // until it has answered, its last answer stays
        const at = serial;
        const answer = await ask("heads", { image: shown(), edits: edits(message.edits) });
        if (at !== serial) return; // another image is shown by now
        host.edited = { heads: message.edits, ...answer };
      } else {
        const own = host.image === data.image && JSON.stringify(message.edits) === JSON.stringify(known.heads);
        host.edited = own && message.edits.length ? known : {};
      }
      told("edited");
    },
    async examine(message) {
      if (ask)
        told("examined", {
          ...message,
          ...(await ask("examine", { ...message, image: shown(), edits: edits(message.edits) })),
        });
    },
    async right(message) {
      const some = labelled.slice(message.from, message.to);
      const best = ({ sides: [{ probabilities }] }) => probabilities.indexOf(Math.max(...probabilities));
      if (!message.edits.length)
        return told("right", { ...message, right: some.map((image) => best(image) === image.label) });
      const mine = (worker) => some.filter((_, i) => i % workers.length === worker);
      const parts = workers.map((one, worker) =>
        one("right", {
          edits: edits(message.edits),
          images: mine(worker).map(({ pixels: all, label }) => ({ pixels: pixels(all), label })),
        }),
      );
      const answers = await Promise.all(parts), { length } = workers;
      told("right", { ...message, right: some.map((_, i) => answers[i % length][Math.floor(i / length)]) });
    },
    async open({ name }, [values]) {
      const picture = { ...data.image.pixels, data: new Uint8Array(values) };
      const { probabilities } = await ask("heads", { image: { ...pixels(picture), serial: ++serial }, edits: {} });
      show({ pixels: picture, title: name, label: null, own: true, sides: [{ probabilities }] });
      told("image");
    },
  };
  const host = {
    ...data,
    choices: { ...data.choices, labelled: images.length > 1 ? labelled.length : 0 }, // nothing is counted on one image
    live: false,
    predicts: Boolean(ask),
    chunk: workers.length,
    edited: known,
    link: (state) => address.link(inThisLink(state)),
    save: (state) => address.keep(inThisLink(state)),
    listen(act) {
      told = act;
      address.listen((hash) => {
        follow(hash);
        told("state");
      });
    },
    async send(message, buffers) {
      try {
        await actions[message.kind]?.(message, buffers);
      } catch (error) {
        told("notice", String(error));
      }
      told("done", message.id);
    },
  };
  follow(place.location.hash, data.state);
  // What came along is of the changes it came with; a link may have others, or none.
  if (JSON.stringify(host.state.edits) !== JSON.stringify(data.state?.edits)) host.edited = {};
  return host;
}
