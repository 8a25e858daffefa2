// @ts-check
/** Export of what is seen: tokens, heatmaps and legend as PNG or SVG, and their numbers as CSV. */

import { colourOf, css, inkOn, short } from "./viewer-colours.js";
import { parts } from "./viewer-pane.js";

/** @typedef {import("./viewer-pane.js").Pane} Pane */
/** @typedef {import("./viewer-colours.js").Limits} Limits */
/**
 * @typedef {{x: number, y: number, width: number, height: number, fill: string}} Rect
 * @typedef {{x: number, y: number, text: string, fill: string, size: number}} Text
 * @typedef {{width: number, height: number, rects: Rect[], texts: Text[]}} Scene
 * @typedef {{panes: Pane[], title: string, unit: string, hook: string, limits: Limits, heatLimits: Limits,
 *   heatUnit: string}} View
 */

const MARGIN = 16;
const LEGEND = 220;
/** longest side of a PNG, below the limits of browsers */
const MOST_PIXELS = 16000;

/** @param {Scene} scene @param {Limits} limits @param {string} unit @param {number} y */
function addLegend(scene, limits, unit, y) {
  const step = LEGEND / 64;
  for (let i = 0; i < 64; i += 1) {
    const value = limits.low + ((i + 0.5) / 64) * (limits.high - limits.low);
    const fill = css(/** @type {[number, number, number]} */ (colourOf(value, limits)));
    scene.rects.push({ x: MARGIN + i * step, y, width: step + 0.5, height: 10, fill });
  }
  const text = `${short(limits.low)} … ${short(limits.high)} ${unit}`;
  scene.texts.push({ x: MARGIN + LEGEND + 10, y: y + 9, text, fill: "#222", size: 11 });
}

/** @param {Scene} scene @param {Pane} pane @param {Limits} limits @param {number} top @returns {number} bottom */
function addTokens(scene, pane, limits, top) {
  const around = pane.text.getBoundingClientRect();
  const left = -around.left + MARGIN;
  const up = top - around.top + pane.text.scrollTop;
  const size = parseFloat(getComputedStyle(pane.text).fontSize) || 13;
  let bottom = top;
  pane.spans.forEach((span, i) => {
    const boxes = span.getClientRects();
    const colour = colourOf(pane.values[i], limits);
    for (const box of boxes) {
      const place = { x: box.left + left, y: box.top + up, width: box.width, height: box.height };
      if (colour) scene.rects.push({ ...place, fill: css(colour) });
      bottom = Math.max(bottom, place.y + place.height);
    }
    if (boxes.length) {
      const text = (span.textContent || "").replaceAll("\n", "");
      const y = boxes[0].top + up + boxes[0].height * 0.78;
      scene.texts.push({ x: boxes[0].left + left, y, text, fill: colour ? inkOn(colour) : "#222", size });
    }
  });
  scene.width = Math.max(scene.width, around.width + 2 * MARGIN);
  return bottom + MARGIN;
}

/** @param {Scene} scene @param {Pane} pane @param {Limits} limits @param {number} top @returns {number} bottom */
function addHeat(scene, pane, limits, top) {
  const count = pane.stop - pane.start;
  const wide = (scene.width - 2 * MARGIN - 44) / Math.max(1, count);
  const high = pane.rowHeight;
  pane.hooks.forEach((hook, row) => {
    const y = top + row * high;
    scene.texts.push({ x: MARGIN, y: y + high - 1, text: `L${parts(hook).layer}`, fill: "#222", size: Math.min(high, 11) });
    const values = pane.heat[row];
    let from = 0;
    let fill = "";
    for (let i = 0; values && i <= count; i += 1) {
      const colour = i < count ? colourOf(values[i], limits) : null;
      const next = colour ? css(colour) : "";
      if (next !== fill || i === count) {
        if (fill) scene.rects.push({ x: MARGIN + 44 + from * wide, y, width: (i - from) * wide, height: high, fill });
        from = i;
        fill = next;
      }
    }
  });
  return top + pane.hooks.length * high + MARGIN;
}

/** Everything that is seen, as rectangles and texts. @param {View} view @returns {Scene} */
export function sceneOf(view) {
  /** @type {Scene} */
  const scene = { width: 640, height: 0, rects: [], texts: [] };
  scene.texts.push({ x: MARGIN, y: MARGIN + 8, text: view.title, fill: "#222", size: 13 });
  addLegend(scene, view.limits, `${view.unit}, ${view.hook}`, MARGIN + 20);
  let y = MARGIN + 46;
  for (const pane of view.panes) {
    scene.texts.push({ x: MARGIN, y: y + 8, text: pane.source.id, fill: "#222", size: 11 });
    y = addTokens(scene, pane, view.limits, y + 18);
  }
  addLegend(scene, view.heatLimits, view.heatUnit, y);
  y += 24;
  for (const pane of view.panes) y = addHeat(scene, pane, view.heatLimits, y);
  scene.height = y;
  return scene;
}

/** Text as XML can hold it. @param {string} text */
export function escaped(text) {
  // eslint-disable-next-line no-control-regex
  const allowed = text.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]/g, "\ufffd").toWellFormed?.() ?? text;
  return allowed.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll('"', "&quot;");
}

/** @param {Scene} scene */
export function svgOf(scene) {
  const round = (/** @type {number} */ value) => Number(value.toFixed(2));
  const size = `width="${Math.ceil(scene.width)}" height="${Math.ceil(scene.height)}"`;
  const lines = [`<svg xmlns="http://www.w3.org/2000/svg" ${size} font-family="monospace">`];
  lines.push('<rect width="100%" height="100%" fill="#fff"/>');
  for (const r of scene.rects) {
    lines.push(`<rect x="${round(r.x)}" y="${round(r.y)}" width="${round(r.width)}" height="${round(r.height)}" fill="${r.fill}"/>`);
  }
  for (const t of scene.texts) {
    lines.push(`<text x="${round(t.x)}" y="${round(t.y)}" font-size="${t.size}" fill="${t.fill}" xml:space="preserve">${escaped(t.text)}</text>`);
  }
  return [...lines, "</svg>", ""].join("\n");
}

/** @param {Scene} scene @returns {Promise<Blob>} */
function pngOf(scene) {
  const canvas = document.createElement("canvas");
  const scale = Math.min(2, MOST_PIXELS / Math.max(scene.width, scene.height));
  canvas.width = Math.ceil(scene.width * scale);
  canvas.height = Math.ceil(scene.height * scale);
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.scale(scale, scale);
  pen.fillStyle = "#fff";
  pen.fillRect(0, 0, scene.width, scene.height);
  for (const r of scene.rects) {
    pen.fillStyle = r.fill;
    pen.fillRect(r.x, r.y, r.width, r.height);
  }
  for (const t of scene.texts) {
    pen.fillStyle = t.fill;
    pen.font = `${t.size}px monospace`;
    pen.fillText(t.text, t.x, t.y);
  }
  return new Promise((done, fail) => {
    canvas.toBlob((blob) => (blob ? done(blob) : fail(new Error("the picture is too large"))), "image/png");
  });
}

/** A cell that no spreadsheet runs as a formula. @param {string | number} value */
export function cell(value) {
  if (typeof value === "number") return Number.isNaN(value) ? "" : String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return `"${text.replaceAll('"', '""')}"`;
}

/** One line for each token in view. @param {View} view */
export function csvOf(view) {
  const hooks = view.panes[0] ? view.panes[0].hooks : [];
  const lines = [["session", "token", "id", "text", `${view.unit} ${view.hook}`, ...hooks.map((h) => `${view.heatUnit} ${h}`)].map(cell)];
  for (const pane of view.panes) {
    const tokens = /** @type {import("./viewer-data.js").Tokens} */ (pane.tokens);
    for (let token = pane.start; token < pane.stop; token += 1) {
      const i = token - pane.start;
      const heat = hooks.map((hook) => pane.heat[pane.hooks.indexOf(hook)]?.[i] ?? NaN);
      lines.push([pane.source.id, token, tokens.ids[i], pane.textOf(token), pane.values[i], ...heat].map(cell));
    }
  }
  return `${lines.map((line) => line.join(",")).join("\r\n")}\r\n`;
}

/** Save the view as a file. @param {View} view @param {string} form `png`, `svg` or `csv` */
export async function save(view, form) {
  let data;
  if (form === "csv") data = new Blob([csvOf(view)], { type: "text/csv" });
  else if (form === "svg") data = new Blob([svgOf(sceneOf(view))], { type: "image/svg+xml" });
  else data = await pngOf(sceneOf(view));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(data);
  link.download = `${view.panes.map((pane) => pane.source.id.slice(0, 12)).join("-")}.${form}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}
