// What the explorer says: the tour, and the words behind its numbers.

export const PAPER = "https://arxiv.org/abs/1911.03584";

/** The title, and what it is about. */
export const INTRODUCTION = [
  "Where does each head look?",
  [
    "From each pixel of an image, each head of an attention layer looks at other pixels.",
    "Nine heads that look at nine neighbours are a 3 × 3 convolution. Which layers of this trained network are one?",
  ],
];

/** Five steps through such a model: [selector of what is lit, title, story, what is shown]. */
export const tourOf = ({ content, encoding }) => [
  [
    ".ax-view",
    "One pixel asks.",
    "The framed pixel of the image is the query. Move it. Each map beside it shows where one head of this layer " +
      "looks from there: bright where it looks.",
    { kernel: true, head: 0 },
  ],
  [
    ".ax-grid",
    "A head looks at one shift.",
    "A sharp head looks at a single pixel, always at the same shift from the query, wherever the query is. Such a " +
      "head is one tap of a convolution kernel. The word in its corner says what it is.",
    {},
  ],
  [
    ".ax-layer",
    ...(content
      ? [
          "Content makes no kernel.",
          "Here are all heads of one layer around the query. A head that looks at content looks elsewhere in another " +
            "image: such a layer is no convolution.",
        ]
      : [
          "Nine taps are a kernel.",
          "Here are all heads of one layer around the query, and beside them the kernel that they make together. If " +
            "every tap of the frame has a head, this layer is a convolution." +
            " Turn on its switch above: that kernel takes the layer's place, and the bar below says how many answers " +
            "are right then.",
        ]),
    { kernel: true, whole: false },
  ],
  encoding === "quadratic"
    ? [
        ".ax-centres",
        "Take a head off its tap.",
        "Drag a dot, or the small square on its ring. The kernel follows at once, and the prediction too. " +
          "Undo brings the head back.",
        {},
      ]
    : [
        ".ax-detail",
        "Take a head away.",
        "Untick “head on”: the chosen head adds nothing then, and the prediction follows. " +
          "Undo brings the head back.",
        {},
      ],
  [
    ".ax-detail",
    "What is it good for?",
    "The chosen head, large: what it adds to its layer's output, and what the model says without it." +
      (content
        ? " Try another image: does it look elsewhere?"
        : " Try the deeper layers: which of them are still a small kernel?"),
    {},
  ],
];

/** What can be chosen, by its name on the page. */
export const CONTROLS = {
  Model: "Which of the trained networks is shown.",
  Show: "Each head's attention at the query, as a map; or the heads of each layer around the query, as dots.",
  Score: "All of a head's score; or only what it gives to positions, or to what stands in the pixels.",
};

export const GLOSSARY = {
  head:
    "A part of an attention layer. For every pixel it spreads a probability of 1 over all pixels, sums them up with " +
    "it, and hands the sum on through a matrix of its own.",
  query:
    "The pixel for which attention is shown. Each head spreads a probability of 1 over all pixels, as seen from it.",
  shift: "Where a pixel lies as seen from the query: (rows down, columns to the right).",
  tap:
    "One cell of a convolution kernel: one shift and its weights. A head with more than half of its attention on " +
    "one shift is one tap.",
  "measured centre": "The mean shift of the head's attention at this query: sum of P(k) (k − q).",
  "measured width":
    "How far its attention is scattered around that centre: root mean square along an axis, in pixels of the grid.",
  "best shift": "The whole shift with the most attention, and how much it has.",
  reach: "The mean distance of what the head looks at from the query.",
  entropy: "How undecided it is: 0 for one pixel, the logarithm of the number of pixels for all alike.",
  "learned centre": "The parameter Δ of a Gaussian head. It differs from the measured centre where the picture ends.",
  "learned σ":
    "The parameter of a Gaussian head: its standard deviation on an endless plane. The pixels are whole, so a head " +
    "with σ = 0.2 has no measured width at all.",
  rings:
    "A solid ring holds half of a Gaussian head's attention, a dotted one 90%. Of other heads the rings show the " +
    "measured width, as if they were Gaussian.",
  kernel:
    "W(Δ), the sum over heads of P(Δ) times the head's matrix W. Its cells show the norm of W(Δ), " +
    "from the middle of the picture.",
  "as a convolution":
    "The kernel takes the place of the layer's attention as it was read; nothing is trained. Beyond the picture's " +
    "border it sees the nearest pixel.",
  share:
    "The part of the layer's output that points its way: the scalar product with it, over its square. All heads' " +
    "shares add up to 100%.",
  "✓": "The image's own class.",
  blur: "A head whose attention is spread over several pixels.",
  uniform: "A head that averages over nearly the whole picture.",
  norm: "The length of a vector or a matrix, the root of the sum of its squares: how strong a tap or an output is.",
  SA: "Self-attention: a network of attention layers, without a convolution.",
  quadratic:
    "A head's score falls with the square of the distance from its centre: it looks at a round or oval spot, a " +
    "Gaussian.",
  "learned (encoding)": "A head's score of a shift is learned freely, row by row and column by column.",
  content: "What stands in the pixels. A head that looks at content looks elsewhere in another image.",
  seed: "The number from which all that is random in a training is drawn. Another seed is another training.",
  epoch: "Once through all training images.",
  logits: "The scores before they become probabilities: attention is their softmax.",
  nats: "The unit of entropy, with natural logarithms: 0 for one pixel, log(256) = 5.5 for 256 pixels alike.",
  "white noise": "An image in which every value is drawn at random, alone.",
};
