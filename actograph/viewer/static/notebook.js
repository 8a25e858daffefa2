// @ts-check
/** A session in a notebook: what the output brings along is all that it shows. */

import { limitsOf, writeLegend } from "./colours.js";
import { TokenText } from "./tokens.js";

/**
 * @typedef {{tokens: import("./tokens.js").Tokens, promptTokens: number, name: string, numbers: string | null,
 *   kind: {signed: boolean, log: boolean, sparse: boolean}, skip: number, beside: Record<string, string>,
 *   attention: {name: string, start: number, stop: number, weights: string} | null}} Output
 */

/** Little-endian float32 in base64. @param {string} text */
function floatsOf(text) {
  const bytes = Uint8Array.from(atob(text), (one) => one.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

/** Show a session in place of its static text. @param {HTMLElement} root */
export function showOutput(root) {
  /** @type {Output} */
  const output = JSON.parse(root.dataset.output || "{}");
  const find = (/** @type {string} */ name) => /** @type {HTMLElement} */ (root.querySelector(name));
  const text = new TokenText(find(".tokens"), output.promptTokens);
  text.write(output.tokens);
  text.beside = new Map(Object.entries(output.beside).map(([name, numbers]) => [name, floatsOf(numbers)]));
  if (output.numbers !== null) {
    const numbers = floatsOf(output.numbers);
    const limits = limitsOf([numbers.subarray(output.skip)], output.kind);
    text.scaled = (shown, name) => writeLegend(find(".scale"), shown, name);
    text.colour({ numbers, limits, name: output.name, skip: output.skip });
  }
  const { attention } = output;
  if (attention === null) return;
  const weights = floatsOf(attention.weights);
  text.tell = (told) => (find(".told").textContent = told);
  text.showAttention(async (token) => {
    const { name, start, stop } = attention;
    if (token < start || token >= stop) return null;
    const row = token - start;
    // a row has the tokens from the first one in view to its own
    const from = row * (start - output.tokens.start) + (row * (row + 1)) / 2;
    const count = token - output.tokens.start + 1;
    return { name, first: output.tokens.start, weights: weights.subarray(from, from + count) };
  });
  text.text.addEventListener("click", (event) => {
    const span = /** @type {HTMLElement} */ (event.target).closest(".token");
    if (span instanceof HTMLElement) text.mark(Number(span.dataset.token));
  });
}
