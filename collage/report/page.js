"use strict";
// Draws the graphs from the data element; every text of the model goes through textContent.
const SVG = "http://www.w3.org/2000/svg";
const data = JSON.parse(document.getElementById("data").textContent);

function make(tag, attributes, ...children) {
  const found = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) found.setAttribute(name, value);
  found.append(...children);
  return found;
}

function draw(tag, attributes, text) {
  const found = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) found.setAttribute(name, value);
  if (text !== undefined) found.textContent = text;
  return found;
}

const badge = (mark) => make("span", { class: `badge k${mark[0]}`, "aria-hidden": "true" }, mark[1]);
const clip = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

class Graph {
  constructor(root, facts) {
    this.root = root;
    this.facts = facts;
    this.canvas = root.querySelector(".canvas");
    this.panel = root.querySelector(".details");
    this.scale = 1;
    for (const button of root.querySelectorAll("[data-view]"))
      button.addEventListener("click", () => this.show(button.dataset.view));
    for (const button of root.querySelectorAll("[data-zoom]"))
      button.addEventListener("click", () => this.zoomTo(button.dataset.zoom === "fit" ? this.fit() : this.scale * Number(button.dataset.zoom)));
    for (const place of root.querySelectorAll("[data-region]")) {
      place.addEventListener("click", () => this.select(Number(place.dataset.region), true));
      place.addEventListener("keydown", (event) => {
        if (event.key !== "Enter" && event.key !== " ") return;
        event.preventDefault();
        this.select(Number(place.dataset.region), true);
      });
    }
    this.canvas.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoomTo(this.scale * Math.exp(-event.deltaY / 300), event);
    }, { passive: false });
    this.drag();
    this.show(facts.regions.boxes.length > 2 ? "regions" : "nodes");
  }

  show(view) {
    this.view = view;
    const layout = this.facts[view];
    this.svg = draw("svg", { viewBox: `0 0 ${layout.width} ${layout.height}`, role: "group", "aria-label": `Graph of ${view}` });
    for (const edge of layout.edges) this.svg.append(draw("path", { class: "edge", d: this.path(layout, edge) }));
    this.boxes = layout.boxes.map((box, index) => this.box(box, index));
    this.svg.append(...this.boxes);
    this.boxes[0]?.setAttribute("tabindex", "0");
    this.canvas.replaceChildren(this.svg);
    for (const button of this.root.querySelectorAll("[data-view]"))
      button.setAttribute("aria-pressed", String(button.dataset.view === view));
    this.zoomTo(Math.max(this.fit(), 0.8));
    this.canvas.scrollTop = 0;
    if (this.selected !== undefined) this.select(this.selected, false);
  }

  path(layout, [source, target, bends]) {
    const half = layout.box[1] / 2;
    const [from, to] = [layout.boxes[source], layout.boxes[target]];
    const stops = [[from.x, from.y + half], ...bends, [to.x, to.y - half]];
    let text = `M${stops[0][0]} ${stops[0][1]}`;
    for (let i = 1; i < stops.length; i++) {
      const [[x0, y0], [x1, y1]] = [stops[i - 1], stops[i]];
      const middle = (y0 + y1) / 2;
      text += `C${x0} ${middle} ${x1} ${middle} ${x1} ${y1}`;
    }
    return text;
  }

  box(box, index) {
    const [width, height] = this.facts[this.view].box;
    const [left, top] = [box.x - width / 2, box.y - height / 2];
    const group = draw("g", { class: `box k${box.mark[0]}`, role: "button", tabindex: "-1", "aria-label": `${box.title}, ${box.backend}, ${box.sub}` });
    group.append(
      draw("title", {}, `${box.title}\n${box.backend}\n${box.hint || box.sub}`),
      draw("rect", { class: "body", x: left, y: top, width, height, rx: 6 }),
      draw("rect", { class: "tab", x: left, y: top, width: 22, height, rx: 5 }),
      draw("text", { class: "letter", x: left + 11, y: top + height / 2 + 4 }, box.mark[1]),
      draw("text", { x: left + 29, y: top + 16 }, clip(box.title, 22)),
      draw("text", { class: "small", x: left + 29, y: top + 32 }, clip(box.sub, 28)),
    );
    group.addEventListener("click", () => { if (!this.moved) this.select(box.region, false, box); });
    group.addEventListener("focus", () => this.rove(index));
    group.addEventListener("keydown", (event) => this.key(event, index, box));
    return group;
  }

  key(event, index, box) {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (step) {
      this.boxes[Math.min(this.boxes.length - 1, Math.max(0, index + step))].focus();
    } else if (event.key === "Enter" || event.key === " ") {
      this.select(box.region, false, box);
    } else return;
    event.preventDefault();
  }

  rove(index) {
    for (const box of this.boxes) box.setAttribute("tabindex", "-1");
    this.boxes[index].setAttribute("tabindex", "0");
  }

  fit() {
    const { width, height } = this.facts[this.view];
    return Math.min(1, (this.canvas.clientWidth - 4) / width, (this.canvas.clientHeight - 4) / height);
  }

  zoomTo(scale, at) {
    const old = this.scale;
    const { width, height } = this.facts[this.view];
    this.scale = Math.min(3, Math.max(0.02, scale));
    this.svg.setAttribute("width", width * this.scale);
    this.svg.setAttribute("height", height * this.scale);
    const edge = this.canvas.getBoundingClientRect();
    const x = at ? at.clientX - edge.left : edge.width / 2;
    const y = at ? at.clientY - edge.top : 0;
    this.canvas.scrollLeft = (this.canvas.scrollLeft + x) * this.scale / old - x;
    this.canvas.scrollTop = (this.canvas.scrollTop + y) * this.scale / old - y;
  }

  drag() {
    let start = null;
    this.canvas.addEventListener("pointerdown", (event) => {
      start = event.button === 0 ? [event.clientX, event.clientY, this.canvas.scrollLeft, this.canvas.scrollTop] : null;
      this.moved = false;
    });
    addEventListener("pointermove", (event) => {
      if (!start) return;
      const [dx, dy] = [event.clientX - start[0], event.clientY - start[1]];
      if (Math.abs(dx) + Math.abs(dy) < 5 && !this.moved) return;
      this.moved = true;
      this.canvas.classList.add("dragging");
      this.canvas.scrollLeft = start[2] - dx;
      this.canvas.scrollTop = start[3] - dy;
    });
    addEventListener("pointerup", () => { start = null; this.canvas.classList.remove("dragging"); });
  }

  select(region, reveal, box) {
    if (region < 0) return;
    this.selected = region;
    for (const place of this.root.querySelectorAll("[data-region]"))
      place.classList.toggle("selected", Number(place.dataset.region) === region);
    const boxes = this.facts[this.view].boxes;
    this.boxes.forEach((element, index) => element.classList.toggle("selected", boxes[index].region === region));
    this.explain(this.facts.details[region], this.view === "nodes" ? box : undefined);
    if (!reveal) return;
    const first = boxes.find((found) => found.region === region);
    this.canvas.scrollTo({ left: first.x * this.scale - this.canvas.clientWidth / 2, top: first.y * this.scale - this.canvas.clientHeight / 2 });
  }

  explain(region, node) {
    const rows = region.facts.map(([name, value]) => make("tr", {}, make("th", {}, name), make("td", { class: "long" }, value)));
    const parts = [make("h4", {}, badge(region.mark), `${region.backend}: ${region.title}`)];
    if (node) parts.push(make("p", { class: "soft long" }, `Node ${node.hint}`));
    parts.push(make("table", {}, make("tbody", {}, ...rows)), make("h3", {}, "What else could run here"));
    this.panel.replaceChildren(...parts);
    this.alternatives(region.alternatives, 25);
    this.panel.scrollTop = 0;
  }

  alternatives(all, most) {
    if (!all.length) return this.panel.append(make("p", { class: "soft" }, "No other candidate overlaps this region."));
    const head = ["backend", "nodes", "cost", "slower by"].map((name, i) => make("th", i > 1 ? { class: "n" } : {}, name));
    const body = make("tbody", {});
    for (const other of all.slice(0, most)) {
      const name = make("td", {}, badge(other.mark), other.backend);
      const cost = make("td", { class: "n" }, other.cost);
      if (other.interval) cost.append(make("br"), make("span", { class: "soft" }, other.interval));
      body.append(make("tr", other.chosen ? { class: "chosen" } : {}, name, make("td", {}, other.nodes), cost, make("td", { class: "n" }, other.regret)));
      if (other.reason) body.append(make("tr", {}, make("td", { colspan: "4", class: "soft long" }, other.reason)));
    }
    const table = make("table", {}, make("thead", {}, make("tr", {}, ...head)), body);
    this.panel.append(table);
    if (all.length <= most) return;
    const more = make("button", { type: "button" }, `Show ${all.length - most} more`);
    more.addEventListener("click", () => { table.remove(); more.remove(); this.alternatives(all, all.length); });
    this.panel.append(more);
  }
}

document.querySelectorAll("[data-function]").forEach((root) => new Graph(root, data[Number(root.dataset.function)]));
