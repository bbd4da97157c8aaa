// The first screen's film: where the heads of a layer look, from before training to after it, once. Then heads can be
// dragged. Each pixel has the colours of the heads that look at it, as much as they do; the view comes nearer.
(() => {
  const film = document.querySelector(".film"), svg = film.querySelector("svg"), told = film.querySelector("output")
  const { heads, colours } = JSON.parse(svg.dataset.film) // heads: epochs x heads x [row, column, precision]
  const last = heads.length - 1, FAR = 5
  const rgb = colours.map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)))
  const make = (name, attributes, parent = svg) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name)
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value)
    return parent.appendChild(element)
  }
  const farthest = (epoch) => Math.max(...heads[epoch].flatMap(([row, column]) => [Math.abs(row), Math.abs(column)]))
  // From the middle to the rim, before and after: all heads are seen, if that is not too far; others have an arrow.
  const views = [Math.min(farthest(0) + 0.6, FAR), Math.min(Math.max(farthest(last) + 0.4, 2.1), 2.6)]
  const pixels = []
  for (let row = -FAR; row <= FAR; row++)
    for (let column = -FAR; column <= FAR; column++)
      pixels.push({
        row, column, square: make("rect", { x: column - 0.5, y: row - 0.5, width: 1, height: 1, class: "pixel" }),
      })
  make("rect", { x: -1.5, y: -1.5, width: 3, height: 3, class: "kernel" })
  make("rect", { x: -0.5, y: -0.5, width: 1, height: 1, class: "query" })
  const now = heads[0].map((head) => [...head])
  const dots = now.map((_, head) => {
    const name = `Head ${head + 1}; arrow keys move it`
    const about = { class: "dot", fill: colours[head], tabindex: 0, role: "img", "aria-label": name }
    const dot = make("g", about)
    make("circle", { r: 1 }, dot)
    make("path", { d: "M1.3 -.7L2.2 0L1.3 .7Z" }, dot)
    return dot
  })
  let view = views[0]

  /** How much of a head's attention is on each shift -FAR .. FAR of one axis: P is a product of rows and columns. */
  const along = (centre, precision) => {
    const weights = []
    const least = (Math.round(centre) - centre) ** 2
    for (let at = -16; at <= 16; at++) weights.push(Math.exp(-0.5 * precision * ((at - centre) ** 2 - least)))
    const sum = weights.reduce((a, b) => a + b)
    return weights.slice(16 - FAR, 17 + FAR).map((weight) => weight / sum)
  }

  function draw() {
    svg.setAttribute("viewBox", `${-view} ${-view} ${2 * view} ${2 * view}`)
    const axes = now.map(([row, column, precision]) => [along(row, precision), along(column, precision)])
    for (const { row, column, square } of pixels) {
      const mix = [0, 0, 0]
      let most = 0, sum = 0
      axes.forEach(([rows, columns], head) => {
        const p = rows[row + FAR] * columns[column + FAR]
        most = Math.max(most, p)
        sum += p
        rgb[head].forEach((value, i) => (mix[i] += p * value))
      })
      square.style.fill = `rgb(${mix.map((value) => Math.round(value / (sum || 1)))})`
      square.style.fillOpacity = (0.75 * Math.min(1, sum)).toFixed(3)
      square.classList.toggle("tap", most > 0.5 && Math.max(Math.abs(row), Math.abs(column)) < 2)
    }
    now.forEach(([row, column], head) => {
      const rim = view * 0.93, out = Math.max(Math.abs(row), Math.abs(column)) / rim, size = view * 0.042
      const [y, x] = [row, column].map((value) => value / Math.max(out, 1))
      const turn = (Math.atan2(row, column) * 180) / Math.PI
      dots[head].classList.toggle("far", out > 1)
      dots[head].setAttribute("transform", `translate(${x} ${y}) rotate(${turn}) scale(${size})`)
    })
  }

  function at(time) {
    const epoch = Math.min(Math.floor(time), Math.max(last - 1, 0)), share = Math.min(time - epoch, 1)
    const next = heads[Math.min(epoch + 1, last)]
    const from = heads[epoch]
    now.forEach((head, one) => head.forEach((_, i) => (head[i] = from[one][i] + share * (next[one][i] - from[one][i]))))
    view = views[0] + (views[1] - views[0]) * (last ? time / last : 1)
    const shown = Math.round(time)
    told.textContent = shown === 0 ? "before training" : shown === last ? `after ${last} epochs` : `epoch ${shown}`
    draw()
  }

  let running = 0
  function play() {
    const mine = ++running, began = performance.now()
    const step = (time) => {
      if (mine !== running) return
      const share = Math.min(Math.max(time - began - 900, 0) / 4600, 1)
      at(last * share ** 2 * (3 - 2 * share)) // slow at both ends
      if (share < 1) requestAnimationFrame(step)
    }
    at(0)
    requestAnimationFrame(step)
  }
  film.querySelector("button").onclick = play
  if (matchMedia("(prefers-reduced-motion: reduce)").matches || last < 1) at(last)
  else play()

  const move = (head, row, column) => {
    running++ // the film ends
    now[head].splice(0, 2, ...[row, column].map((value) => Math.max(-FAR, Math.min(FAR, value))))
    draw()
  }
  dots.forEach((dot, head) => {
    dot.addEventListener("touchstart", (event) => event.preventDefault(), { passive: false }) // elsewhere it scrolls
    dot.addEventListener("pointerdown", (event) => dot.setPointerCapture(event.pointerId))
    dot.addEventListener("pointermove", (event) => {
      if (!dot.hasPointerCapture(event.pointerId)) return
      const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(svg.getScreenCTM().inverse())
      const inside = (value) => Math.max(-view * 0.93, Math.min(view * 0.93, value))
      move(head, inside(point.y), inside(point.x))
    })
    dot.addEventListener("keydown", (event) => {
      const way = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key]
      if (!way || event.altKey || event.ctrlKey || event.metaKey) return
      event.preventDefault()
      move(head, now[head][0] + way[0] / 4, now[head][1] + way[1] / 4)
    })
  })
})()
