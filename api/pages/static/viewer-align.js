// @ts-check
/** Tokens of two sessions side by side. */

/** @typedef {import("./viewer-pane.js").Pane} Pane */

/** Where turns and the generated tokens begin. @param {Pane} pane */
function startsOf(pane) {
  const tokens = /** @type {import("./viewer-data.js").Tokens} */ (pane.tokens);
  const starts = [0, tokens.prompt_tokens, ...tokens.turns.map((one) => one.start)];
  return [...new Set(starts)].sort((a, b) => a - b);
}

/**
 * The token of another session that stands beside a token; null if there is none.
 * @param {Pane} from
 * @param {Pane} to
 * @param {number} token
 * @param {string} align `turn` counts anew at each turn, `token` from the first token
 */
export function beside(from, to, token, align) {
  if (from === to) return token;
  let found = token;
  if (align === "turn") {
    const own = startsOf(from);
    const other = startsOf(to);
    let at = own.length - 1;
    while (at > 0 && own[at] > token) at -= 1;
    if (at >= other.length) return null;
    found = other[at] + token - own[at];
    if (found >= (other[at + 1] ?? to.total)) return null;
  }
  return found < to.total ? found : null;
}

/**
 * The second session's numbers minus those beside them.
 * @param {Pane[]} panes
 * @param {Float32Array} values
 * @param {Float32Array | null} base
 * @param {string} align
 */
export function minus([first, second], values, base, align) {
  return values.map((value, i) => {
    const token = base ? beside(second, first, second.start + i, align) : null;
    if (token === null || token < first.start || token >= first.stop || !base) return NaN;
    return value - base[token - first.start];
  });
}
