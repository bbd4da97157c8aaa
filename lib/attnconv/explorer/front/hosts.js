// What stands between the explorer's page and its data: Python's widget, or what an exported file holds.

/** In Jupyter: data are the widget's traits, messages go to Python. */
export function widgetHost(model) {
  const host = {
    live: true,
    send: (message, buffers) => model.send(message, undefined, buffers),
    save: (state) => {
      model.set("state", state);
      model.save_changes();
    },
    listen(told) {
      const custom = (message, buffers) => {
        if (message.kind === "done") told("done", message.id);
        else if (message.kind === "notice") told("notice", message.text);
        else if (message.kind === "examined") told("examined", message);
        else if (message.kind === "file") told("file", { ...message, content: buffers[0] });
      };
      const changes = {};
      // `sides` and `image` arrive together: wait until all of an update is there.
      for (const name of ["sides", "image", "average", "edited"])
        model.on(`change:${name}`, changes[name] = () => {
          host.changed ||= setTimeout(() => {
            const all = host.all;
            host.changed = host.all = null;
            for (const one of all.has("sides") ? ["sides"] : all) told(one);
          });
          (host.all ||= new Set()).add(name);
        });
      model.on("msg:custom", custom);
      host.close = () => {
        model.off("msg:custom", custom);
        for (const [name, act] of Object.entries(changes)) model.off(`change:${name}`, act);
      };
    },
  };
  for (const name of ["sides", "image", "average", "edited", "choices", "state"]) Object.defineProperty(host, name, { get: () => model.get(name) });
  return host;
}

/** In an exported page: images come from the file, and nothing can be asked of a model. */
export function pageHost(data) {
  const images = [data.image, ...data.gallery], known = data.edited || {}; // heads as they were changed in Jupyter, if so
  let told = () => {}, last = 0;
  return {
    ...data, live: false, edited: known, save() {}, listen: (act) => { told = act; },
    send(message) {
      if (message.kind === "image") {
        const fit = images.map((image, i) => i).filter((i) => i !== last && (message.class === null || images[i].label === message.class));
        const next = fit.find((i) => i > last) ?? fit[0];
        if (next !== undefined) [this.image, this.edited] = [images[(last = next)], {}];
        told(next === undefined ? "notice" : "image", "This file holds no other image of that class.");
      }
      if (message.kind === "heads") {
        this.edited = last === 0 && message.edits.length && JSON.stringify(message.edits) === JSON.stringify(known.heads) ? known : {};
        told("edited");
      }
      told("done", message.id);
    },
  };
}
