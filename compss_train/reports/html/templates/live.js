// Replaces the parts of the page that have changed, which the server pushes.
"use strict";

const events = new EventSource(location.pathname.replace(/\/?$/, "/events?version=" + document.body.dataset.version));
let changed = {}, pressed = false;

// Replaces the contents of a part; its tables stay scrolled and its timeline zoomed.
function replace(part, html) {
  const tables = [...part.querySelectorAll(".scrolled")].map((each) => each.scrollTop);
  const zoomed = part.querySelector(".timeline")?.dataset.zoom;
  part.innerHTML = html;
  part.querySelectorAll(".scrolled").forEach((each, index) => { each.scrollTop = tables[index] ?? 0; });
  prepare(part, zoomed);
}

function applyChanges() {
  if (pressed) return;
  showTip(null, "");
  for (const [name, html] of Object.entries(changed)) replace(document.getElementById(name), html);
  changed = {};
}

addEventListener("pointerdown", () => { pressed = true; });
for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => { pressed = false; applyChanges(); });
events.onopen = () => document.body.classList.remove("offline");
events.onerror = () => document.body.classList.add("offline");
events.onmessage = (event) => { Object.assign(changed, JSON.parse(event.data)); applyChanges(); };
