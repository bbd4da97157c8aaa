// What the explorer says: the tour, and the words behind its numbers.

export const PAPER = "https://arxiv.org/abs/1911.03584";

/** Five steps: [selector of what is lit, title, story, what is shown]. */
export const TOUR = [
  [
    ".ax-view",
    "One pixel asks.",
    "The framed pixel of the image is the query. Move it. Every small map shows where one attention head looks from " +
      "there: a row for each layer, a column for each head.",
    { view: "maps", kernel: true, head: 0 },
  ],
  [
    ".ax-grid",
    "A head looks at one shift.",
    "A sharp head looks at a single pixel, always at the same shift from the query, wherever the query is. Such a " +
      "head is one tap of a convolution kernel. The word in its corner says what it is.",
    { view: "maps" },
  ],
  [
    ".ax-layer",
    "Nine taps are a kernel.",
    "Here are all heads of one layer around the query, and beside them the kernel that they make together. If every " +
      "tap of the frame has a head, this layer is a convolution. Tick the box below: that kernel takes the layer's " +
      "place, and the right answers are counted.",
    { kernel: true, whole: false },
  ],
  [
    ".ax-centres",
    "Take a head off its tap.",
    "Drag a dot, or the small square on its ring. The kernel follows at once, and the prediction too. Undo brings " +
      "the head back.",
    {},
  ],
  [
    ".ax-detail",
    "What is it good for?",
    "The chosen head, large: what it adds to its layer's output, and what the model says without it. Try the deeper " +
      "layers: which of them are still a small kernel?",
    {},
  ],
];

export const GLOSSARY = {
  query:
    "The pixel for which attention is shown. Each head spreads a probability of 1 over all pixels, as seen from it.",
  shift: "Where a pixel lies as seen from the query: (rows down, columns to the right).",
  tap:
    "One cell of a convolution kernel: one shift and its weights. A head with more than half of its attention on " +
    "one shift is one tap.",
  "measured centre": "The mean shift of the head's attention at this query: sum of P(k) (k − q).",
  "measured spread":
    "How far its attention is scattered around that centre: root mean square along an axis, in pixels of the grid.",
  "best shift": "The whole shift with the most attention, and how much it has.",
  reach: "The mean distance of what the head looks at from the query.",
  entropy: "How undecided it is: 0 for one pixel, the logarithm of the number of pixels for all alike.",
  "learned centre": "The parameter Δ of a Gaussian head. It differs from the measured centre where the picture ends.",
  "learned σ":
    "The parameter of a Gaussian head: its standard deviation on an endless plane. The pixels are whole, so a head " +
    "with σ = 0.2 has no measured spread at all.",
  rings:
    "A solid ring holds half of a Gaussian head's attention, a dotted one 90%. Of other heads the rings show the " +
    "measured spread, as if they were Gaussian.",
  kernel:
    "W(Δ), the sum over heads of P(Δ) times the head's matrix W. Its cells show the norm of W(Δ), from the middle of " +
    "the picture.",
  "as a convolution":
    "The kernel takes the place of the layer's attention as it was read; nothing is trained. Beyond the picture's " +
    "border it sees the nearest pixel.",
  share:
    "The part of the layer's output that points its way: the scalar product with it, over its square. All heads' " +
    "shares add up to 100%.",
  "✓": "The image's own class.",
};
