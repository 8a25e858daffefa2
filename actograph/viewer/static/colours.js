// @ts-check
/** Colour scales that are readable with every kind of colour blindness. */

/** @typedef {{low: number, high: number, signed: boolean, log: boolean}} Limits */
/** A colour, the ink that is readable on it, and its value as a pixel. */
/** @typedef {{css: string, ink: string, pixel: number}} Colour */

/** Cividis: dark blue to yellow. */
const ONE_SIDED = [
  [0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56],
];
/** Blue for negative numbers, orange for positive ones. */
const SIGNED = [[5, 77, 150], [92, 158, 212], [247, 247, 247], [245, 163, 74], [166, 76, 2]];
const STEPS = 256;

/** @param {number[][]} stops @returns {Colour[]} */
function ramp(stops) {
  return Array.from({ length: STEPS }, (_, step) => {
    const at = (step / (STEPS - 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const mixed = stops[low].map((from, i) => Math.round(from + (stops[low + 1][i] - from) * (at - low)));
    const [r, g, b] = mixed.map((value) => (value / 255) ** 2.2);
    const isLight = 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179;
    const pixel = new Uint32Array(Uint8Array.of(...mixed, 255).buffer)[0];
    return { css: `rgb(${mixed.join(", ")})`, ink: isLight ? "#000" : "#fff", pixel };
  });
}

const oneSided = ramp(ONE_SIDED);
const signed = ramp(SIGNED);

/**
 * The limits of a scale: the 1st and the 99th percentile, so that one huge token does not hide the others.
 * A signed scale has zero in its middle. A logarithmic scale is one of positive numbers. Of sparse numbers,
 * zeros do not count. `scale.py` has the same arithmetic, for pages without scripts.
 * @param {(Float32Array | null)[]} arrays
 * @param {{signed: boolean, log: boolean, sparse?: boolean}} kind
 * @returns {Limits}
 */
export function limitsOf(arrays, { signed: isSigned, log, sparse = false }) {
  const found = new Float32Array(arrays.reduce((sum, values) => sum + (values?.length ?? 0), 0));
  let count = 0;
  for (const values of arrays) {
    for (const value of values ?? []) {
      const isCounted = Number.isFinite(value) && !(log && value <= 0) && !(sparse && value === 0);
      if (isCounted) found[count++] = isSigned ? Math.abs(value) : value;
    }
  }
  const sorted = found.subarray(0, count).sort();
  const high = count ? sorted[Math.round((count - 1) * 0.99)] : 1;
  if (isSigned) return { low: -(high || 1), high: high || 1, signed: true, log };
  const low = count ? sorted[Math.round((count - 1) * 0.01)] : log ? 0.1 : 0;
  return { low, high: high > low ? high : low + 1, signed: false, log };
}

/** @param {number} value @param {Limits} limits @returns {Colour | null} null for a missing value */
export function colourOf(value, limits) {
  if (Number.isNaN(value)) return null;
  const at = limits.log ? Math.log : (/** @type {number} */ number) => number;
  const share = (at(value) - at(limits.low)) / (at(limits.high) - at(limits.low));
  return (limits.signed ? signed : oneSided)[Math.round(Math.min(1, Math.max(0, share)) * (STEPS - 1))];
}

/** A number with four digits. @param {number} value */
export function short(value) {
  if (Number.isNaN(value)) return "no row";
  const size = Math.abs(value);
  const isOdd = size !== 0 && (size >= 1e5 || size < 1e-3);
  return isOdd ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

/**
 * Show a scale.
 * @param {HTMLElement} legend
 * @param {Limits} limits
 * @param {string} name
 * @param {boolean} [isOfEach] whether each layer has limits of its own
 */
export function writeLegend(legend, limits, name, isOfEach = false) {
  const [low, bar, high, label] = /** @type {HTMLElement[]} */ ([...legend.children]);
  low.textContent = isOfEach ? (limits.signed ? "most negative" : "smallest") : `≤ ${short(limits.low)}`;
  high.textContent = isOfEach ? (limits.signed ? "most positive" : "largest") : `≥ ${short(limits.high)}`;
  label.textContent = name;
  const stops = (limits.signed ? signed : oneSided).filter((_, step) => step % 17 === 0);
  bar.style.background = `linear-gradient(to right, ${stops.map((one) => one.css).join(", ")})`;
}
