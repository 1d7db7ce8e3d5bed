
// --- the timeline's data --------------------------------------------------------------------------

// Columns come as variable-length numbers, 7 bits a byte, lowest first; over 2^31, so no shifts.
function* numbers(base64) {
  const bytes = Uint8Array.from(atob(base64), (char) => char.charCodeAt(0));
  for (let at = 0; at < bytes.length; at++) {
    let value = bytes[at] & 127;
    for (let scale = 128; bytes[at] & 128; scale *= 128) value += (bytes[++at] & 127) * scale;
    yield value;
  }
}

function decodeRow(row) {
  const count = row.count, source = numbers(row.data);
  const take = () => source.next().value;
  const starts = new Float64Array(count), ends = new Float64Array(count);
  const whats = new Uint32Array(count), delays = new Float64Array(count);
  for (let at = 0, end = 0; at < count; at++) {
    starts[at] = end + take();
    end = ends[at] = starts[at] + take();
    whats[at] = take();
    const code = take(); // 0: not recorded; else zigzag + 1
    delays[at] = code === 0 ? NaN : code % 2 ? (code - 1) / 2 : -code / 2;
  }
  return { name: row.name, count, starts, ends, whats, delays };
}

function firstFrom(sorted, value) { // the first place whose number is above `value`
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] > value) high = middle; else low = middle + 1;
  }
  return low;
}

function timeText(ns) {
  const size = Math.abs(ns);
  const [scale, unit] = size >= 1e9 ? [1e9, "s"] : size >= 1e6 ? [1e6, "ms"] : size >= 1e3 ? [1e3, "us"] : [1, "ns"];
  return `${(ns / scale).toLocaleString("en", { maximumFractionDigits: scale === 1 ? 0 : 3 })} ${unit}`;
}

// --- the timeline ---------------------------------------------------------------------------------

const ROW = 18, GAP = 3, AXIS = 22, SHORTEST_NS = 50;

class Timeline {
  constructor(section, data, tip) {
    this.section = section;
    this.data = data;
    this.tip = tip;
    this.whole = data.whole * 1.02 || 1;
    this.view = { start: -data.whole * 0.01, time: this.whole };
    this.ranks = [...section.querySelectorAll("details.rank")].map((details, place) => ({
      details, canvas: details.querySelector("canvas"), rank: data.ranks[place].rank, launched: data.ranks[place].launched,
      packed: data.ranks[place].rows, rows: null, row: 0, chosen: null,
    }));
    for (const rank of this.ranks) this.listen(rank);
    for (const rank of this.ranks) this.reserve(rank); // nothing moves under the pointer when a rank is drawn later
    for (const button of section.querySelectorAll("[data-do]")) {
      button.addEventListener("click", () => this.command(button.dataset.do));
    }
    document.addEventListener("click", (event) => {
      const button = event.target.closest("[data-go]");
      if (button?.dataset.lines === section.dataset.timeline) this.go(...button.dataset.go.split(" ").map(Number));
    });
    const again = () => { this.colours = null; this.redraw(); };
    for (const query of ["(prefers-color-scheme: dark)", "print"]) matchMedia(query).addEventListener("change", again);
    addEventListener("beforeprint", () => this.ranks.filter((rank) => rank.details.open).forEach((rank) => this.draw(rank)));
    addEventListener("resize", () => this.redraw());
    addEventListener("scroll", () => this.redraw(), { passive: true });
    this.redraw();
  }

  update(data) { // the same ranks with other spans; what is looked at stays, unless it was the whole
    const whole = this.view.time >= this.whole;
    this.data = data;
    this.colours = null;
    this.whole = data.whole * 1.02 || 1;
    this.ranks.forEach((rank, place) => {
      const { launched, rows: packed } = data.ranks[place];
      Object.assign(rank, { launched, packed, rows: null, row: Math.max(0, Math.min(rank.row, packed.length - 1)), chosen: null });
    });
    this.hide();
    if (whole) this.command("whole"); else this.look(this.view.start, Math.min(this.view.time, this.whole));
  }

  reserve(rank) {
    const height = AXIS + rank.packed.length * (ROW + GAP) + GAP;
    rank.canvas.style.height = `${height}px`;
    return height;
  }

  rows(rank) { return (rank.rows ??= rank.packed.map(decodeRow)); } // decoded when first drawn or asked for

  // What is drawn where

  labels(canvas) { return canvas.clientWidth < 600 ? 92 : 170; }
  scale(canvas) { return (canvas.clientWidth - this.labels(canvas)) / this.view.time; } // pixels per ns
  x(canvas, ns) { return this.labels(canvas) + (ns - this.view.start) * this.scale(canvas); }
  ns(canvas, x) { return this.view.start + (x - this.labels(canvas)) / this.scale(canvas); }

  redraw() {
    if (this.asked) return;
    this.asked = requestAnimationFrame(() => {
      this.asked = 0;
      for (const rank of this.ranks) if (rank.details.open && onScreen(rank.details)) this.draw(rank);
      this.section.dataset.start = this.view.start;
      this.section.dataset.time = this.view.time;
    });
  }

  colour(what) {
    if (!this.colours) {
      const style = getComputedStyle(document.documentElement);
      this.colours = new Map([...this.data.kinds, "ink", "soft", "line", "paper", "accent", "raised"].map(
        (name) => [name, style.getPropertyValue(`--${name}`).trim()]));
      this.fills = this.data.whats.map(([, kind]) => this.colours.get(this.data.kinds[kind]));
      this.inks = this.fills.map(inkOn);
    }
    return this.colours.get(what);
  }

  draw(rank) {
    const { canvas } = rank, ink = this.colour("ink");
    const rows = this.rows(rank), width = canvas.clientWidth, height = this.reserve(rank);
    const dots = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * dots) || canvas.height !== Math.round(height * dots)) {
      canvas.width = Math.round(width * dots);
      canvas.height = Math.round(height * dots);
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(dots, 0, 0, dots, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.font = "11px system-ui, sans-serif";
    pen.textBaseline = "middle";
    this.drawAxis(pen, canvas, width, height);
    const left = this.labels(canvas);
    rows.forEach((row, place) => {
      const y = AXIS + place * (ROW + GAP);
      pen.fillStyle = place === rank.row && document.activeElement === canvas ? this.colour("accent") : ink;
      const name = left < 100 ? row.name.replace(/ \(.*/, "") : row.name;
      pen.fillText(fitted(pen, name, left - 14), 8, y + ROW / 2);
      pen.save();
      pen.beginPath();
      pen.rect(left, y, width - left, ROW);
      pen.clip();
      this.drawRow(pen, canvas, row, y, left, width);
      pen.restore();
    });
    this.drawChosen(pen, rank, left);
  }

  drawAxis(pen, canvas, width, height) {
    const left = this.labels(canvas), step = niceStep(this.view.time / Math.max((width - left) / 110, 1));
    pen.lineWidth = 1;
    pen.strokeStyle = this.colour("line");
    pen.fillStyle = this.colour("soft");
    for (let tick = Math.ceil(this.view.start / step) * step; tick < this.view.start + this.view.time; tick += step) {
      const x = Math.round(this.x(canvas, tick)) + 0.5;
      pen.beginPath();
      pen.moveTo(x, 4);
      pen.lineTo(x, height);
      pen.stroke();
      pen.fillText(fitted(pen, timeText(Math.round(tick) || 0), width - x - 6), x + 4, 10);
    }
  }

  // Spans narrower than a pixel are added up, pixel by pixel: the kind with most time there gives the colour, and
  // the covered part of the pixel the strength.
  drawRow(pen, canvas, row, y, left, width) {
    const { starts, ends, whats, count } = row, scale = this.scale(canvas);
    const until = this.view.start + this.view.time;
    let pixel = -1, covered = 0, most = 0, fill = "";
    const flush = () => {
      if (covered) {
        pen.globalAlpha = Math.min(1, 0.5 + 0.5 * covered);
        pen.fillStyle = fill;
        pen.fillRect(pixel, y, 1, ROW);
        pen.globalAlpha = 1;
      }
      covered = most = 0;
    };
    for (let at = firstFrom(ends, this.view.start); at < count && starts[at] < until; at++) {
      const x = left + (starts[at] - this.view.start) * scale, wide = (ends[at] - starts[at]) * scale;
      if (wide >= 1.5) {
        flush();
        this.drawSpan(pen, row, at, x, wide, y, left, width);
        continue;
      }
      if (Math.floor(x) !== pixel) {
        flush();
        pixel = Math.floor(x);
      }
      covered += Math.max(wide, 0.01);
      if (wide >= most) {
        most = wide;
        fill = this.fills[whats[at]];
      }
    }
    flush();
  }

  drawSpan(pen, row, at, x, wide, y, left, width) {
    const from = Math.max(x, left - 1), to = Math.min(x + wide, width + 1);
    pen.fillStyle = this.fills[row.whats[at]];
    pen.fillRect(from, y, Math.max(to - from - (wide > 4 ? 1 : 0), 1), ROW);
    if (to - from > 34) {
      pen.fillStyle = this.inks[row.whats[at]];
      pen.fillText(fitted(pen, this.data.labels[this.data.whats[row.whats[at]][0]], to - from - 8), from + 4, y + ROW / 2 + 0.5);
    }
  }

  drawChosen(pen, rank, left) {
    if (!rank.chosen) return;
    const row = this.rows(rank)[rank.chosen.row], at = rank.chosen.at;
    const from = Math.max(this.x(rank.canvas, row.starts[at]), left), to = this.x(rank.canvas, row.ends[at]);
    if (to < left) return;
    pen.strokeStyle = this.colour("ink");
    pen.lineWidth = 2;
    pen.strokeRect(from - 1, AXIS + rank.chosen.row * (ROW + GAP) - 1, Math.max(to - from, 1) + 2, ROW + 2);
  }

  // What the reader does

  listen(rank) {
    const { canvas, details } = rank;
    let drag = null;
    details.addEventListener("toggle", () => this.redraw());
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, start: this.view.start };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      if (drag) {
        this.look(drag.start - (event.clientX - drag.x) / this.scale(canvas), this.view.time);
        if (Math.abs(event.clientX - drag.x) > 3) this.hide();
      } else this.point(rank, event);
    });
    canvas.addEventListener("pointerup", (event) => {
      const still = drag && Math.abs(event.clientX - drag.x) <= 3;
      drag = null;
      if (still) this.point(rank, event);
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("pointerleave", () => { if (!drag) this.hide(); });
    for (const change of ["focus", "blur"]) canvas.addEventListener(change, () => this.redraw());
    canvas.addEventListener("wheel", (event) => {
      if (document.activeElement !== canvas && !event.ctrlKey) return; // until it is clicked, the page scrolls
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        this.look(this.view.start + event.deltaX / this.scale(canvas), this.view.time);
      } else this.zoom(Math.exp(Math.max(-1, Math.min(1, event.deltaY / 300))), this.ns(canvas, event.offsetX));
      this.point(rank, event);
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      if (event.altKey || event.metaKey || event.ctrlKey) return;
      if (this.key(rank, event.key, event.shiftKey)) event.preventDefault();
    });
  }

  key(rank, key, shift) {
    switch (key) {
      case "+": case "=": this.command("in"); return true;
      case "-": case "_": this.command("out"); return true;
      case "0": case "Home": this.command("whole"); return true;
      case "ArrowLeft": shift ? this.step(rank, -1) : this.look(this.view.start - this.view.time / 8, this.view.time); return true;
      case "ArrowRight": shift ? this.step(rank, 1) : this.look(this.view.start + this.view.time / 8, this.view.time); return true;
      case "ArrowUp": this.pick(rank, rank.row - 1); return true;
      case "ArrowDown": this.pick(rank, rank.row + 1); return true;
      case "Escape": this.hide(); return true;
      default: return false;
    }
  }

  command(what) {
    if (what === "whole") this.look(-this.data.whole * 0.01, this.whole);
    else this.zoom(what === "in" ? 1 / 1.6 : 1.6, this.view.start + this.view.time / 2);
  }

  zoom(factor, around) {
    const time = Math.min(Math.max(this.view.time * factor, SHORTEST_NS), this.whole);
    this.look(around - (around - this.view.start) * time / this.view.time, time);
  }

  look(start, time) {
    const low = -this.data.whole * 0.01;
    this.view = { time, start: Math.max(low, Math.min(start, low + this.whole - time)) };
    this.redraw();
  }

  go(number, start, time) {
    const rank = this.ranks.find((item) => item.rank === number);
    if (!rank) return;
    rank.details.open = true;
    rank.details.scrollIntoView({ block: "center" });
    const wide = Math.min(Math.max(time * 3, 2000), this.whole);
    this.look(start + time / 2 - wide / 2, wide);
    rank.canvas.focus({ preventScroll: true });
  }

  pick(rank, row) {
    rank.row = Math.max(0, Math.min(row, this.rows(rank).length - 1));
    rank.chosen = null;
    this.redraw();
  }

  step(rank, by) { // to the next or previous span of the row, brought into view
    const row = this.rows(rank)[rank.row], middle = this.view.start + this.view.time / 2;
    if (!row.count) return;
    const near = rank.chosen ? rank.chosen.at + by : firstFrom(row.ends, middle) - (by < 0 ? 1 : 0);
    const at = Math.max(0, Math.min(near, row.count - 1));
    rank.chosen = { row: rank.row, at };
    if (row.starts[at] < this.view.start || row.ends[at] > this.view.start + this.view.time) {
      this.look((row.starts[at] + row.ends[at]) / 2 - this.view.time / 2, this.view.time);
    }
    const box = rank.canvas.getBoundingClientRect();
    this.show(rank, row, at, box.left + this.x(rank.canvas, row.starts[at]), box.top + AXIS + (rank.row + 1) * (ROW + GAP));
    this.redraw();
  }

  point(rank, event) {
    const box = rank.canvas.getBoundingClientRect();
    const place = Math.floor((event.clientY - box.top - AXIS) / (ROW + GAP)), row = this.rows(rank)[place];
    const x = event.clientX - box.left;
    const at = row && x >= this.labels(rank.canvas) ? this.at(row, this.ns(rank.canvas, x), 3 / this.scale(rank.canvas)) : -1;
    rank.chosen = at < 0 ? null : { row: place, at };
    if (at < 0) this.hide(); else this.show(rank, row, at, event.clientX, event.clientY);
    this.redraw();
  }

  at(row, ns, near) { // the span there, or the nearest one that a finger would mean
    const next = firstFrom(row.ends, ns);
    if (next < row.count && row.starts[next] <= ns) return next;
    const after = next < row.count ? row.starts[next] - ns : Infinity;
    const before = next > 0 ? ns - row.ends[next - 1] : Infinity;
    return Math.min(after, before) > near ? -1 : before <= after ? next - 1 : next;
  }

  show(rank, row, at, x, y) {
    const [name, kind, detail] = this.data.whats[row.whats[at]];
    const facts = [
      ["kind", this.data.shown[kind]],
      ["time", `${timeText(row.ends[at] - row.starts[at])}, from ${timeText(row.starts[at])} to ${timeText(row.ends[at])}`],
      ...this.data.details[detail],
    ];
    if (!isNaN(row.delays[at])) facts.push([rank.launched, row.delays[at] >= 0 ? `${timeText(row.delays[at])} before its start` : `${timeText(-row.delays[at])} after its start`]);
    const list = document.createElement("dl");
    for (const [term, text] of facts) list.append(element("dt", term), element("dd", text));
    this.tip.replaceChildren(element("strong", this.data.names[name]), list);
    this.tip.hidden = false;
    const box = this.tip.getBoundingClientRect();
    const below = y + 16 + box.height < innerHeight;
    this.tip.style.left = `${Math.max(8, Math.min(x + 12, document.documentElement.clientWidth - box.width - 8))}px`;
    this.tip.style.top = `${below ? y + 16 : Math.max(8, y - box.height - 12)}px`;
  }

  hide() { this.tip.hidden = true; }
}

function onScreen(target) {
  const box = target.getBoundingClientRect();
  return box.bottom > -200 && box.top < innerHeight + 200;
}

function fitted(pen, text, width) {
  if (pen.measureText(text).width <= width) return text;
  let length = Math.floor(text.length * width / pen.measureText(text).width);
  while (length > 0 && pen.measureText(`${text.slice(0, length)}…`).width > width) length--;
  return length > 0 ? `${text.slice(0, length)}…` : "";
}

function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least);
}

for (const section of document.querySelectorAll("[data-timeline]")) {
  const data = JSON.parse(document.getElementById(section.dataset.timeline).textContent);
  new Timeline(section, data, document.getElementById("tip"));
}
