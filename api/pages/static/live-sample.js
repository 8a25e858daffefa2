// @ts-check
/** A running sample: its text and the values of its readouts, as they come. */

import { short } from "./colours.js";

/** @typedef {{token: number, values: Record<string, number>}} TokenReadouts */

const root = /** @type {HTMLElement} */ (document.getElementById("live-sample"));
const text = /** @type {HTMLElement} */ (root.querySelector("pre"));
const table = /** @type {HTMLTableSectionElement} */ (root.querySelector("tbody"));
const SVG = "http://www.w3.org/2000/svg";

/** values of each readout so far @type {Map<string, number[]>} */
const values = new Map();
/** the line of each readout in the table @type {Map<string, HTMLTableRowElement>} */
const lines = new Map();

/** The line of a readout, which begins with its first value. @param {string} name */
function lineOf(name) {
  const known = lines.get(name);
  if (known) return known;
  const made = table.insertRow();
  made.insertCell().textContent = name;
  for (let cell = 0; cell < 3; cell += 1) made.insertCell().className = "right";
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("class", "spark");
  picture.setAttribute("preserveAspectRatio", "none");
  picture.append(document.createElementNS(SVG, "polyline"));
  made.insertCell().append(picture);
  lines.set(name, made);
  /** @type {HTMLElement} */ (root.querySelector(".scroll")).hidden = false;
  return made;
}

/** Show the values of a readout. @param {string} name @param {number} token the newest */
function show(name, token) {
  const known = values.get(name) ?? [];
  const line = lineOf(name);
  const low = Math.min(...known);
  const high = Math.max(...known);
  [String(token), short(known[known.length - 1]), short(high)].forEach((value, place) => {
    line.cells[place + 1].textContent = value;
  });
  const picture = /** @type {SVGElement} */ (line.querySelector("svg"));
  picture.setAttribute("viewBox", `0 0 ${Math.max(1, known.length - 1)} 1`);
  const points = known.map((value, place) => `${place},${1 - (value - low) / (high - low || 1)}`);
  picture.firstElementChild?.setAttribute("points", points.join(" "));
}

const stream = new EventSource(root.dataset.stream ?? "");
stream.addEventListener("begin", () => {
  text.textContent = "";
  values.clear();
});
stream.addEventListener("text", (event) => text.append(JSON.parse(event.data)));
stream.addEventListener("readouts", (event) => {
  /** @type {TokenReadouts[]} */
  const told = JSON.parse(event.data);
  const newest = new Map();
  for (const one of told) {
    for (const [name, value] of Object.entries(one.values)) {
      values.set(name, [...(values.get(name) ?? []), value]);
      newest.set(name, one.token);
    }
  }
  for (const [name, token] of newest) show(name, token);
});
stream.addEventListener("end", () => {
  stream.close();
  location.reload();
});
addEventListener("pagehide", () => stream.close());
