// The exported page's Web Worker: it holds the model and answers about it, so that hovering never waits.

import { Network } from "./network.js";

let network = null, shown = null, others = null;

const ANSWERS = {
  start({ side, mean, std }) {
    network = new Network(side, { mean, std });
    others = Object.assign(Object.create(network), { kept: [] }); // the same weights, another image
  },
  heads: ({ edits }) => ({ probabilities: network.predict(edits), scores: network.allScores(edits) }),
  examine: ({ edits, layer, head, size }) => network.examine(layer, head, size, edits),
  right: ({ edits, images }) => images.map(({ pixels, label }) => {
    others.setImage(pixels);
    const answer = others.predict(edits);
    return answer.indexOf(Math.max(...answer)) === label;
  }),
};

self.onmessage = ({ data }) => {
  try {
    if (data.image && data.image.serial !== shown) {
      network.setImage(data.image);
      shown = data.image.serial;
    }
    self.postMessage({ id: data.id, answer: ANSWERS[data.kind](data) });
  } catch (error) {
    self.postMessage({ id: data.id, error: String(error) });
  }
};
