// @ts-check
/** The hooks of a session that the viewer can show, and the way from one to the next. */

import { parts } from "./viewer-pane.js";

/** @typedef {import("./viewer-pane.js").Pane} Pane */

/** Hooks with a row for each token, in the order of layers. @param {Pane} pane */
export function hooksOf(pane) {
  const hooks = Object.entries(pane.session.hooks);
  const usable = hooks.filter(([, info]) => info.summary === null && !info.dtype.startsWith("F8") && info.shape[0] > 0);
  const layered = (/** @type {string} */ a, /** @type {string} */ b) =>
    parts(a).layer - parts(b).layer || a.localeCompare(b);
  return usable.map(([name]) => name).sort(layered);
}

/** Hooks of the same point as a hook, the last layer first. @param {Pane} pane @param {string} hook */
export function columnOf(pane, hook) {
  const { point } = parts(hook);
  return hooksOf(pane).filter((one) => parts(one).point === point).reverse();
}

/** The hook some layers further; undefined if there is none. @param {Pane} pane @param {string} hook @param {number} by upwards */
export function nextLayer(pane, hook, by) {
  const column = columnOf(pane, hook);
  return column[column.indexOf(hook) - by];
}

/** The hook of another point, in the same layer if it has one. @param {Pane} pane @param {string} hook @param {number} by */
export function nextPoint(pane, hook, by) {
  const all = hooksOf(pane);
  const points = [...new Set(all.map((one) => parts(one).point))];
  const { point, layer } = parts(hook);
  const next = points[(points.indexOf(point) + by + points.length) % points.length];
  const same = all.filter((one) => parts(one).point === next);
  return same.find((one) => parts(one).layer === layer) || same[0];
}

/** The hook to begin with: a middle layer of the residual stream, if there is one. @param {string[]} hooks */
export function firstHook(hooks) {
  const rest = hooks.filter((hook) => parts(hook).point === "resid_post");
  const from = rest.length ? rest : hooks;
  return from[Math.floor((from.length - 1) / 2)] || "";
}
