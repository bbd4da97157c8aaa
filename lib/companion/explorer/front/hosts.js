// What stands between the explorer's page and its data: images and predictions come from the data themselves;
// in Jupyter Python is asked for another model, and for the page as a file.

import { NOT_HELD, inAddress } from "./page.js";
import { answerer } from "./worker.js";

const GONE =
  "The kernel is new, or gone, and does not know this view. All but another model and the export works on; " +
  "for these, run this cell again.";

/** Questions to a Web Worker made of `source`, each answered by a promise. Where there can be none, the page answers
 * itself, and waits for it. */
export function workerOf(source) {
  let worker = null, last = 0, answer = null;
  const waiting = new Map();
  const settle = (id, act) => {
    const { done, failed } = waiting.get(id);
    waiting.delete(id);
    try {
      done(act());
    } catch (error) {
      failed(error);
    }
  };
  const here = () => {
    answer ||= answerer();
    for (const [id, { question }] of [...waiting]) settle(id, () => answer(question));
  };
  try {
    worker = new Worker(URL.createObjectURL(new Blob([source], { type: "text/javascript" })));
    worker.onmessage = ({ data }) =>
      settle(data.id, () => {
        if (data.error) throw new Error(data.error);
        return data.answer;
      });
    worker.onerror = () => {
      worker = null;
      here();
    };
  } catch { /* some places forbid workers that come from a text */ }
  const ask = (kind, message) => new Promise((done, failed) => {
    const question = { ...message, kind, id: ++last };
    waiting.set(last, { done, failed, question });
    if (worker) worker.postMessage(question);
    else setTimeout(here);
  });
  return Object.assign(ask, { end: () => worker?.terminate() });
}

const LINKED = [
  "model", "image", "query", "locked", "layer", "head", "all", "view", "whole", "part", "epoch", "edits", "size",
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
      epoch: (value) => value === null || whole(value),
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

/** Images and predictions, from the data: `ask` is a worker that has the model.
 *
 * `told(what, value)` hears what came of a message. `lost` says why the image of a link is not the one that is shown.
 */
export function hostOf(data, ask) {
  let told = () => {}, serial = 0;
  const drawn = new Set(); // images that were shown already: a random one is another one
  // A copy goes to the worker: with a view, all of the buffer that it looks at would, which is the whole page's.
  const pixels = ({ shape: [height, width, channels], data }) => ({ height, width, channels, values: data.slice() });
  const key = (layer, head) => (head === undefined ? `${layer}` : `${layer}.${head}`);
  const edits = (list) => Object.fromEntries(list.map(({ layer, head, ...edit }) => [key(layer, head), edit]));
  const question = (message) => {
    const image = { ...pixels(host.image.pixels), serial };
    return { ...message, image, edits: edits(message.edits) };
  };
  const actions = {
    image(message) {
      const others = data.images.filter((image) => message.class === null || image.label === message.class);
      let fresh = others.filter((image) => !drawn.has(image));
      if (!fresh.length) {
        for (const image of others) drawn.delete(image);
        fresh = others.filter((image) => image !== host.image);
      }
      if (!fresh.length) return told("notice", "There is no other image of that class here.");
      host.show(fresh[Math.floor(Math.random() * fresh.length)]);
      told("image");
    },
    open({ name }, [values]) {
      const picture = { ...data.images[0].pixels, data: new Uint8Array(values) };
      host.show({ pixels: picture, title: name, label: null, own: true });
      told("image");
    },
    /** Until it has answered, its last answer stays. */
    async heads(message) {
      const at = serial, { before, ...answer } = await ask("heads", question(message));
      if (at !== serial) return; // another image is shown by now
      Object.assign(host, { before, edited: { heads: message.edits, ...answer } });
      told("edited");
    },
    async examine(message) {
      told("examined", { ...message, ...(await ask("examine", question(message))) });
    },
  };
  const host = {
    ...data,
    actions,
    live: false,
    lost: "",
    show(image) {
      Object.assign(host, { image, before: null, edited: null, lost: "" });
      drawn.add(image);
      serial++;
    },
    listen(act) {
      told = act;
    },
    async send(message, buffers) {
      try {
        await actions[message.kind]?.(message, buffers);
      } catch (error) {
        told("notice", String(error));
      }
      told("done", message.id);
    },
    close: () => ask?.end?.(),
  };
  host.show(data.images[0]);
  return host;
}

/** In an exported page: the address holds the view. A link names the image by its title. It cannot hold a picture that
 * the reader opened: null stands for that one. Where there is a page for each model of a site, it names the model too,
 * and every page leads to the right one. */
export function pageHost(data, ask, place = window) {
  const host = hostOf(data, ask), { listen } = host, address = inAddress(place);
  const inThisLink = (state) =>
    inLink({ ...state, model: data.model, image: host.image.own ? null : host.image.title });
  /** Take over the state that a link holds, and the image that it names. */
  const follow = (hash, before = {}) => {
    const { image: title, model, ...state } = fromLink(hash), { pages = {} } = data;
    if (model !== data.model && Object.hasOwn(pages, model))
      place.location.replace(encodeURIComponent(pages[model]) + place.location.search + hash);
    host.state = { ...before, ...state };
    const named = data.images.find((image) => image.title === title);
    if (named && named !== host.image) host.show(named);
    host.lost = "";
    if (title === null) host.lost = NOT_HELD;
    else if (model && model !== data.model)
      host.lost = `This page does not hold the model of this link, “${model}”.`;
    else if (title !== undefined && !named)
      host.lost = `This page does not hold the image of this link, “${title}”.`;
  };
  Object.assign(host, {
    link: (state) => address.link(inThisLink(state)),
    save: (state) => address.keep(inThisLink(state)),
    listen(told) {
      listen(told);
      address.listen((hash) => {
        follow(hash);
        told("state");
      });
    },
  });
  follow(place.location.hash, data.state);
  return host;
}

/** In Jupyter: the view is a trait of the widget, and Python answers about other models. When the connection changes,
 * the kernel is gone until it answers. */
export function widgetHost(data, ask, model) {
  const host = hostOf(data, ask), { listen, close } = host, asked = new Set();
  let gone = false, told = () => {};
  const lost = () => {
    gone = true;
    told("notice", GONE);
    for (const id of asked) told("done", id); // nobody will answer them
    asked.clear();
    model.send({ kind: "hello" }, undefined, []);
  };
  const custom = (message, buffers) => {
    if (gone) told("notice", "");
    gone = false;
    asked.delete(message.id);
    if (message.kind === "done") told("done", message.id);
    else if (message.kind === "notice") told("notice", message.text);
    else if (message.kind === "file") told("file", { ...message, content: buffers[0] });
  };
  const changed = () => {
    if (JSON.stringify(model.get("state")) === host.saved) return;
    host.state = model.get("state");
    told("state");
  };
  const { send } = host;
  return Object.assign(host, {
    live: true,
    state: model.get("state"),
    save(state) {
      host.saved = JSON.stringify(state);
      model.set("state", state);
      model.save_changes();
    },
    send(message, buffers) {
      if (message.kind in host.actions) return send(message, buffers);
      if (gone) {
        told("notice", GONE);
        return told("done", message.id);
      }
      asked.add(message.id);
      return model.send(message, undefined, buffers);
    },
    listen(act) {
      listen((told = act));
      model.on("comm_live_update", lost);
      model.on("change:state", changed);
      model.on("msg:custom", custom);
    },
    close() {
      close();
      model.off("comm_live_update", lost);
      model.off("change:state", changed);
      model.off("msg:custom", custom);
    },
  });
}
