// @ts-check
/**
 * The heatmap of a session: a line for each layer, the last one on top, and a column for each token, with the
 * tokens' texts below.
 */

import { colourOf, short } from "./colours.js";
import { visible } from "./tokens.js";

/** @typedef {import("./viewer-pane.js").Pane} Pane */
/** @typedef {import("./viewer-pane.js").Heat} Heat */

/** width of the names of layers */
const NAMES = 40;
/** height of the texts of tokens, their letters, and the width of a line of them */
const TEXTS = 88;
const LETTERS = 12;
const LINE = 12;

/** @param {number} layers */
const heightOf = (layers) => Math.max(8, Math.min(20, Math.floor(320 / Math.max(1, layers))));

/**
 * Draw the cells, the names of the layers and the chosen cell.
 * @param {Pane} pane
 * @param {string} hook
 * @param {number} token -1 for none
 */
export function drawHeat(pane, hook, token) {
  const { canvas, heat } = pane;
  const high = heightOf(heat.hooks.length);
  const width = Math.max(200, /** @type {HTMLElement} */ (canvas.parentElement).clientWidth);
  const cells = heat.hooks.length * high;
  const height = cells + (heat.hooks.length && TEXTS);
  const density = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * density);
  canvas.height = Math.round(height * density);
  canvas.style.height = `${height}px`;
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const style = getComputedStyle(canvas);
  pen.scale(density, density);
  pen.fillStyle = style.backgroundColor;
  pen.fillRect(0, 0, width, height);
  const count = pane.tokens.ids.length;
  if (!count || !heat.hooks.length) return;
  pen.imageSmoothingEnabled = false;
  heat.cells ??= cellsOf(heat, count);
  pen.drawImage(heat.cells, NAMES, 0, width - NAMES, cells);
  pen.fillStyle = style.color;
  pen.font = `11px ${style.fontFamily}`;
  pen.textBaseline = "middle";
  const every = Math.ceil(13 / high);
  heat.hooks.forEach((name, row) => {
    const isNamed = (heat.hooks.length - 1 - row) % every === 0;
    if (isNamed) pen.fillText(name.split(".").at(-1) ?? "", 4, (row + 0.5) * high, NAMES - 8);
  });
  const wide = (width - NAMES) / count;
  const isChosen = token >= pane.start && token < pane.stop;
  const place = isChosen ? token - pane.start : -1;
  const middle = (/** @type {number} */ at) => NAMES + (at + 0.5) * wide;
  for (let at = 0; at < count; at += Math.ceil(LINE / wide)) {
    const isCovered = isChosen && Math.abs(at - place) * wide < LINE;
    if (!isCovered) writeText(pen, pane.textOf(pane.start + at), middle(at), cells);
  }
  if (!isChosen) return;
  pen.font = `bold ${pen.font}`;
  writeText(pen, pane.textOf(token), middle(place), cells);
  const left = NAMES + (token - pane.start) * wide;
  const row = heat.hooks.indexOf(hook);
  // a dark line within a light one is seen on every colour
  for (const [colour, thick] of /** @type {[string, number][]} */ ([["#fff", 4], ["#000", 1.5]])) {
    pen.strokeStyle = colour;
    pen.lineWidth = thick;
    pen.strokeRect(left - 1, 0, wide + 2, cells);
    if (row >= 0) pen.strokeRect(left - 3, row * high, wide + 6, high);
  }
}

/**
 * Write a token's text from the cells downwards.
 * @param {CanvasRenderingContext2D} pen
 * @param {string} text
 * @param {number} x
 * @param {number} y
 */
function writeText(pen, text, x, y) {
  const letters = Array.from(visible(text).replaceAll("\n", "").trim());
  const cut = letters.length > LETTERS ? `${letters.slice(0, LETTERS - 1).join("")}…` : letters.join("");
  pen.save();
  pen.translate(x, y + 4);
  pen.rotate(Math.PI / 2);
  pen.fillText(cut, 0, 0, TEXTS - 4);
  pen.restore();
}

/** One pixel for each cell. @param {Heat} heat @param {number} count */
function cellsOf(heat, count) {
  const cells = document.createElement("canvas");
  cells.width = count;
  cells.height = heat.hooks.length;
  const image = new ImageData(count, heat.hooks.length);
  const pixels = new Uint32Array(image.data.buffer);
  heat.rows.forEach((numbers, row) => {
    numbers?.forEach((value, place) => {
      const colour = place < heat.skip ? null : colourOf(value, heat.limits[row]);
      pixels[row * count + place] = colour?.pixel ?? 0;
    });
  });
  /** @type {CanvasRenderingContext2D} */ (cells.getContext("2d")).putImageData(image, 0, 0);
  return cells;
}

/**
 * The cell under the mouse, or the token whose text is; null beside them.
 * @param {Pane} pane
 * @param {MouseEvent} event
 * @returns {{hook: string | undefined, token: number} | null}
 */
export function cellAt(pane, event) {
  const { hooks } = pane.heat;
  const row = Math.floor(event.offsetY / heightOf(hooks.length));
  const count = pane.tokens.ids.length;
  const place = Math.floor(((event.offsetX - NAMES) / (pane.canvas.clientWidth - NAMES)) * count);
  const isCell = row >= 0 && hooks.length > 0 && place >= 0 && place < count;
  return isCell ? { hook: hooks[row], token: pane.start + place } : null;
}

/** Tell the number of the cell under the mouse. @param {Pane} pane @param {MouseEvent} event */
export function describeCell(pane, event) {
  const cell = cellAt(pane, event);
  const row = pane.heat.hooks.indexOf(cell?.hook ?? "");
  const number = cell && pane.heat.rows[row]?.[cell.token - pane.start];
  const value = number === null || number === undefined ? "" : ` · ${cell?.hook} ${short(number)}`;
  pane.canvas.title = cell ? `${visible(pane.textOf(cell.token))} · token ${cell.token}${value}` : "";
}
