// Shows values under the pointer and lets the timeline be zoomed; the page is complete without.
"use strict";

const UNITS = 100000;
const tip = document.body.appendChild(document.createElement("div"));
tip.className = "tip";
tip.hidden = true;

function showTip(event, text) {
  tip.hidden = !text;
  if (!text) return;
  tip.textContent = text;
  const left = event.clientX + 16, room = innerWidth - tip.offsetWidth - 8;
  tip.style.left = (left > room ? event.clientX - tip.offsetWidth - 16 : left) + "px";
  tip.style.top = Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8) + "px";
}

function nearestIndex(xs, x) {
  let best = 0;
  xs.forEach((value, index) => {
    if (Math.abs(value - x) < Math.abs(xs[best] - x)) best = index;
  });
  return best;
}

function prepareChart(chart) {
  const picture = chart.querySelector("svg"), data = JSON.parse(chart.querySelector("script").textContent);
  const [low, high, left, right] = data.x;
  const cursor = chart.appendChild(document.createElement("div"));
  cursor.className = "cursor";
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect(), card = chart.getBoundingClientRect();
    const x = low + ((event.clientX - box.left) / box.width - left) / (right - left) * (high - low);
    const all = data.curves.flatMap((curve) => curve.x);
    if (!all.length) return;
    const at = all[nearestIndex(all, x)];
    const lines = data.curves.filter((curve) => curve.x.length).map((curve) => {
      const index = nearestIndex(curve.x, at), value = curve.y[index];
      const where = curve.x[index] === at ? "" : ` (${data.over} ${curve.x[index]})`;
      const band = curve.low ? `, ${curve.low[index]} to ${curve.high[index]}` : "";
      return `${curve.name}: ${value === null ? "NaN" : value}${band}${where}`;
    });
    showTip(event, [`${data.over} ${at}`, ...lines].join("\n"));
    cursor.hidden = false;
    cursor.style.left = box.left - card.left + (left + (at - low) / (high - low) * (right - left)) * box.width + "px";
    cursor.style.top = box.top - card.top + "px";
    cursor.style.height = box.height * 0.89 + "px";
  });
  picture.addEventListener("pointerleave", (event) => { showTip(event, ""); cursor.hidden = true; });
}

function seconds(value) {
  if (value < 1) return (1000 * value).toPrecision(3) + " ms";
  return value < 100 ? value.toPrecision(3) + " s" : Math.round(value).toLocaleString("en") + " s";
}

// Returns what a lane shows at a position, read from the outlines of its bars: each kind covers that
// before it.
function activityAt(lane, position) {
  const parts = [];
  let below = 0;
  for (const path of [...lane.querySelectorAll("path")].reverse()) {
    const [, start, base] = path.getAttribute("d").match(/M(\d+) ([\d.]+)/);
    let from = Number(start);
    for (const [, top, to] of path.getAttribute("d").matchAll(/V([\d.]+)H(\d+)/g)) {
      if (from <= position && position < Number(to)) {
        const height = base - top;
        if (height > below + 0.05) parts.push([path.getAttribute("class"), height - below, Number(to) - from]);
        below = Math.max(below, height);
        break;
      }
      from = Number(to);
    }
  }
  return parts.map(([kind, height, length]) => [kind, height / below, length]);
}

// Makes a timeline zoomable.
function prepareTimeline(timeline) {
  const zoomable = timeline.querySelector(".zoomable"), picture = zoomable.querySelector("svg");
  const ticks = zoomable.querySelector(".ticks"), lanes = [...picture.querySelectorAll(".lane")];
  const whole = Number(timeline.dataset.seconds), height = picture.viewBox.baseVal.height;
  let from = 0, to = UNITS, begin = null;
  const selection = zoomable.appendChild(document.createElement("div"));
  selection.className = "selection";
  selection.hidden = true;

  const share = (event) => {
    const box = picture.getBoundingClientRect();
    return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
  };

  function zoom(start, stop) {
    [from, to] = [start, Math.max(stop, start + 20)];
    picture.setAttribute("viewBox", `${from} 0 ${to - from} ${height}`);
    const low = from / UNITS * whole, high = to / UNITS * whole, rough = (high - low) / 8;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((size) => size * power).find((size) => size >= rough * 0.999);
    ticks.replaceChildren();
    for (let index = Math.ceil(low / step - 1e-9); index * step <= high; index++) {
      const label = ticks.appendChild(document.createElement("span"));
      label.textContent = Number((index * step).toPrecision(12)) + " s";
      label.style.left = (index * step - low) / (high - low) * 100 + "%";
    }
  }

  picture.addEventListener("pointerdown", (event) => { begin = share(event); picture.setPointerCapture(event.pointerId); });
  picture.addEventListener("pointerup", (event) => {
    const [start, stop] = [begin, share(event)].sort((one, other) => one - other);
    begin = null;
    selection.hidden = true;
    if (stop - start > 0.005) zoom(from + start * (to - from), from + stop * (to - from));
  });
  picture.addEventListener("dblclick", () => zoom(0, UNITS));
  picture.addEventListener("pointermove", (event) => {
    const box = picture.getBoundingClientRect(), at = share(event), position = from + at * (to - from);
    if (begin !== null) {
      selection.hidden = false;
      selection.style.left = Math.min(begin, at) * 100 + "%";
      selection.style.width = Math.abs(begin - at) * 100 + "%";
    }
    const lane = lanes[Math.floor((event.clientY - box.top) / box.height * lanes.length)];
    if (!lane) return;
    const activities = activityAt(lane, position);
    const isSingle = activities.length === 1;
    const texts = activities.map(([kind, share, length]) => {
      const amount = isSingle ? `for ${seconds(length / UNITS * whole)}` : `${Math.round(100 * share)}%`;
      return `${kind} ${amount}`;
    });
    const doing = texts.length ? `: ${texts.join(", ")}` : "";
    const time = seconds(position / UNITS * whole);
    showTip(event, `${lane.dataset.name}${doing}\nat ${time}`);
  });
  picture.addEventListener("pointerleave", (event) => showTip(event, ""));
}

document.querySelectorAll(".chart").forEach(prepareChart);
document.querySelectorAll(".timeline").forEach(prepareTimeline);
