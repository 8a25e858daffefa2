// @ts-check
/** The heatmap of a session: a line for each layer, the last one on top, and a column for each token. */

import { colourOf } from "./viewer-colours.js";

/** @typedef {import("./viewer-pane.js").Pane} Pane */
/** @typedef {import("./viewer-pane.js").Heat} Heat */

/** width of the names of layers */
const NAMES = 40;

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
  const height = heat.hooks.length * high;
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
  pen.drawImage(heat.cells, NAMES, 0, width - NAMES, height);
  pen.fillStyle = style.color;
  pen.font = `11px ${style.fontFamily}`;
  pen.textBaseline = "middle";
  const every = Math.ceil(13 / high);
  heat.hooks.forEach((name, row) => {
    const isNamed = (heat.hooks.length - 1 - row) % every === 0;
    if (isNamed) pen.fillText(name.split(".").at(-1) ?? "", 4, (row + 0.5) * high, NAMES - 8);
  });
  if (token < pane.start || token >= pane.stop) return;
  const wide = (width - NAMES) / count;
  const left = NAMES + (token - pane.start) * wide;
  const row = heat.hooks.indexOf(hook);
  // a dark line within a light one is seen on every colour
  for (const [colour, thick] of /** @type {[string, number][]} */ ([["#fff", 4], ["#000", 1.5]])) {
    pen.strokeStyle = colour;
    pen.lineWidth = thick;
    pen.strokeRect(left - 1, 0, wide + 2, height);
    if (row >= 0) pen.strokeRect(left - 3, row * high, wide + 6, high);
  }
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
      pixels[row * count + place] = colourOf(value, heat.limits)?.pixel ?? 0;
    });
  });
  /** @type {CanvasRenderingContext2D} */ (cells.getContext("2d")).putImageData(image, 0, 0);
  return cells;
}

/** The cell under the mouse; null beside the cells. @param {Pane} pane @param {MouseEvent} event */
export function cellAt(pane, event) {
  const { hooks } = pane.heat;
  const row = Math.floor(event.offsetY / heightOf(hooks.length));
  const count = pane.tokens.ids.length;
  const place = Math.floor(((event.offsetX - NAMES) / (pane.canvas.clientWidth - NAMES)) * count);
  const isCell = row >= 0 && row < hooks.length && place >= 0 && place < count;
  return isCell ? { hook: hooks[row], token: pane.start + place } : null;
}
