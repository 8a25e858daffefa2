// @ts-check
/** The row of one token: its norm, its largest channels, the nearest rows, and its logit lens. */

import { short } from "./colours.js";
import { visible } from "./tokens.js";

/** @typedef {import("./viewer-pane.js").Pane} Pane */
/** @typedef {[name: string, value: number, act?: () => void]} Line */

/** @param {string} tag @param {string} text */
function element(tag, text) {
  const made = document.createElement(tag);
  made.textContent = text;
  return made;
}

/** @param {string} title @param {Line[]} lines */
function table(title, lines) {
  const made = document.createElement("table");
  made.append(element("caption", title));
  for (const [name, value, act] of lines) {
    const line = made.insertRow();
    const label = element(act ? "button" : "bdi", name);
    if (act) label.addEventListener("click", act);
    line.insertCell().append(label);
    line.insertCell().textContent = short(value);
  }
  return made;
}

/**
 * Show a row in a panel.
 * @param {HTMLElement} panel
 * @param {Pane} pane
 * @param {string} hook
 * @param {number} token
 * @param {{channel: (channel: number) => void, token: (token: number) => void}} act for the panel's buttons
 * @param {() => boolean} isOld true if another row was chosen meanwhile
 */
export async function showRow(panel, pane, hook, token, act, isOld) {
  const row = await pane.source.row(hook, token);
  if (isOld()) return;
  const title = element("h2", `Token ${token} `);
  title.append(element("bdi", visible(pane.textOf(token))));
  const facts = row ? `norm ${short(row.norm)}, ${row.width} channels` : "no row of this token";
  panel.replaceChildren(title, element("p", `${hook}: ${facts}`));
  if (!row) return;
  /** @type {Line[]} */
  const channels = row.channels.map(([place, value]) => [
    `channel ${place}`, value, () => act.channel(place),
  ]);
  /** @type {Line[]} */
  const near = row.nearest.map(([place, text, cosine]) => [
    `${place} ${visible(text)}`, cosine, () => act.token(place),
  ]);
  panel.append(table("Largest channels", channels), table("Nearest rows, cosine", near));
  const lens = row.lens.map(([text, value]) => /** @type {Line} */ ([visible(text), value]));
  if (lens.length) panel.append(table("Logit lens, log probability", lens));
}
