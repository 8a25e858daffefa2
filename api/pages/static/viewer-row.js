// @ts-check
/** The row of one token: its size, its top channels, and the tokens with the most similar rows. */

import { short } from "./viewer-colours.js";
import { shown } from "./viewer-pane.js";

/** @typedef {import("./viewer-pane.js").Pane} Pane */
const TOP = 12;
const NEAREST = 8;

/** @param {ArrayLike<number>} row */
export function sizeOf(row) {
  let sum = 0;
  for (let i = 0; i < row.length; i += 1) sum += row[i] * row[i];
  return Math.sqrt(sum);
}

/** Places of the largest numbers, the largest first. @param {ArrayLike<number>} values @param {number} count */
export function largest(values, count) {
  const places = Array.from({ length: values.length }, (_, i) => i).filter((i) => !Number.isNaN(values[i]));
  return places.sort((a, b) => values[b] - values[a] || a - b).slice(0, count);
}

/** @param {string} tag @param {string} [text] @param {string} [name] */
function element(tag, text = "", name = "") {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  return made;
}

/** @param {string} title @param {[string, string, (() => void) | null][]} lines */
function list(title, lines) {
  const part = element("div");
  part.append(element("h3", title));
  const table = element("table", "", "row-list");
  for (const [name, value, act] of lines) {
    const line = element("tr");
    const head = element("th");
    head.setAttribute("scope", "row");
    if (act) {
      const button = element("button", name, "link");
      button.setAttribute("type", "button");
      button.addEventListener("click", act);
      head.append(button);
    } else head.textContent = name;
    line.append(head, element("td", value));
    table.append(line);
  }
  part.append(table);
  return part;
}

/**
 * Show a row in a panel.
 * @param {HTMLElement} panel
 * @param {Pane} pane
 * @param {{token: number, hook: string}} cell
 * @param {{channel: (number: number) => void, token: (number: number) => void}} act for the panel's links
 * @param {() => boolean} isCurrent false when another row was chosen meanwhile
 */
export async function showRow(panel, pane, cell, act, isCurrent) {
  const { token, hook } = cell;
  const title = element("h2", `Token ${token} `);
  title.append(element("bdi", JSON.stringify(pane.textOf(token))));
  const place = element("p", `${hook} · ${pane.placesOf(token).join(" · ")}`, "quiet");
  const info = pane.session.hooks[hook];
  const row = info ? await pane.source.row(hook, info, token) : null;
  if (!isCurrent()) return;
  if (!row) {
    panel.replaceChildren(title, place, element("p", "This hook has no row of this token."));
    return;
  }
  const sizes = Array.from(row, Math.abs);
  const facts = element("p", `norm ${short(sizeOf(row))} · ${row.length} channels · largest ${short(Math.max(...sizes.slice(0, 65536)))}`);
  const channels = largest(sizes, TOP).map(
    (i) => /** @type {[string, string, () => void]} */ ([`channel ${i}`, short(row[i]), () => act.channel(i)]),
  );
  panel.replaceChildren(title, place, facts, list("Top channels", channels));
  const choice = { of: "cosine", channel: token, vector: "" };
  const similar = await pane.source.values([hook], choice, pane.start, pane.stop)[0];
  if (!isCurrent()) return;
  const near = largest(similar, NEAREST + 1).filter((i) => pane.start + i !== token).slice(0, NEAREST);
  const lines = near.map((i) => {
    const other = pane.start + i;
    const name = `${other} ${shown(pane.textOf(other))}`;
    return /** @type {[string, string, () => void]} */ ([name, short(similar[i]), () => act.token(other)]);
  });
  panel.append(list("Nearest rows in view (cosine)", lines));
}
