// What answers about the model, so that hovering never waits: a Web Worker, or the page itself where it can start none.

import { Network } from "./network.js";

/** A function from questions {kind, ...} to answers; it holds the model, and of the image what need not be computed
 * again. */
export function answerer() {
  let network = null, shown = null, before = null;
  const answers = {
    start({ side, mean, std }) {
      network = new Network(side, { mean, std });
    },
    /** The prediction with these changes, and the one before them: in the same arithmetic. */
    heads: ({ edits }) => ({ before, probabilities: network.predict(edits), scores: network.allScores(edits) }),
    examine: ({ edits, layer, head, size }) => network.examine(layer, head, size, edits),
  };
  return (question) => {
    if (question.image && question.image.serial !== shown) {
      network.setImage(question.image);
      before = network.predict({});
      shown = question.image.serial;
    }
    return answers[question.kind](question);
  };
}

if (globalThis.WorkerGlobalScope) {
  const answer = answerer();
  self.onmessage = ({ data }) => {
    try {
      self.postMessage({ id: data.id, answer: answer(data) });
    } catch (error) {
      self.postMessage({ id: data.id, error: String(error) });
    }
  };
}
