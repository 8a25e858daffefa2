// @ts-check
/** Tokens of two sessions side by side, and the difference of their numbers. */

/** @typedef {import("./viewer-pane.js").Pane} Pane */

/**
 * For each token of a session in view, the place in view of the other session's token beside it; -1: none.
 * @param {Pane} from
 * @param {Pane} to
 * @param {string} align `turn` counts from the beginning of each turn, `token` from the first token
 */
export function pairsOf(from, to, align) {
  const own = align === "turn" ? from.turns : [0];
  const other = align === "turn" ? to.turns : [0];
  let turn = 0;
  return from.tokens.ids.map((_, place) => {
    const token = from.start + place;
    while (turn + 1 < own.length && own[turn + 1] <= token) turn += 1;
    if (turn >= other.length) return -1;
    const found = other[turn] + token - own[turn];
    const end = Math.min(other[turn + 1] ?? Infinity, to.stop);
    return found >= to.start && found < end ? found - to.start : -1;
  });
}

/**
 * Numbers minus those beside them; NaN where there is none.
 * @param {Float32Array} numbers
 * @param {Float32Array} others
 * @param {number[]} pairs
 * @param {number} sign -1 to subtract the other way round
 */
export function minus(numbers, others, pairs, sign) {
  return numbers.map((value, place) => (pairs[place] < 0 ? NaN : sign * (value - others[pairs[place]])));
}
