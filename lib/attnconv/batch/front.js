// The first screen's film: the heads of a layer move from before training to after it, once; then they can be dragged.
(() => {
  const svg = document.querySelector(".film svg")
  const { centres, colours } = JSON.parse(svg.dataset.film) // centres: epochs x heads x [rows, columns]
  const last = centres.length - 1
  const make = (name, attributes) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name)
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value)
    return svg.appendChild(element)
  }
  const taps = []
  for (const row of [-1, 0, 1]) {
    for (const column of [-1, 0, 1]) {
      const place = { x: column - 0.5, y: row - 0.5, width: 1, height: 1, class: "tap" }
      taps.push({ row, column, square: make("rect", place) })
    }
  }
  make("rect", { x: -0.5, y: -0.5, width: 1, height: 1, class: "query" })
  const now = centres[0].map((centre) => [...centre])
  const dots = now.map((_, head) => {
    const dot = make("circle", { r: 0.15, fill: colours[head], tabindex: 0 })
    make("title", {}).textContent = `Head ${head + 1}`
    dot.appendChild(svg.lastChild)
    return dot
  })

  function draw() {
    now.forEach(([row, column], head) => {
      dots[head].setAttribute("cx", column)
      dots[head].setAttribute("cy", row)
    })
    for (const { row, column, square } of taps) {
      const covered = now.some((centre) => Math.abs(centre[0] - row) < 0.5 && Math.abs(centre[1] - column) < 0.5)
      square.classList.toggle("covered", covered)
    }
  }

  function at(time) {
    const epoch = Math.min(Math.floor(time), last - 1)
    const share = Math.min(time - epoch, 1)
    now.forEach((centre, head) => {
      for (const axis of [0, 1]) {
        const [from, to] = [centres[epoch][head][axis], centres[epoch + 1][head][axis]]
        centre[axis] = from + share * (to - from)
      }
    })
    draw()
  }

  let running = true
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches || last < 1
  const began = performance.now()
  const step = (time) => {
    if (!running) return
    const share = Math.min(Math.max(time - began - 600, 0) / 3500, 1)
    at(last * share ** 2 * (3 - 2 * share)) // slow at both ends
    if (share < 1) requestAnimationFrame(step)
  }
  if (still) {
    centres[last].forEach((centre, head) => (now[head] = [...centre]))
    draw()
  } else {
    draw()
    requestAnimationFrame(step)
  }

  const limit = (value) => Math.max(-2.3, Math.min(2.3, value))
  const move = (head, row, column) => {
    running = false
    now[head] = [limit(row), limit(column)]
    draw()
  }
  dots.forEach((dot, head) => {
    dot.addEventListener("pointerdown", (event) => dot.setPointerCapture(event.pointerId))
    dot.addEventListener("pointermove", (event) => {
      if (!dot.hasPointerCapture(event.pointerId)) return
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse())
      move(head, point.y, point.x)
    })
    dot.addEventListener("keydown", (event) => {
      const way = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key]
      if (!way) return
      event.preventDefault()
      move(head, now[head][0] + way[0] / 4, now[head][1] + way[1] / 4)
    })
  })
})()
