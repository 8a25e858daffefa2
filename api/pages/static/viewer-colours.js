// @ts-check
/** Colour scales that stay readable with every kind of colour blindness, and their limits. */

/** @typedef {{low: number, high: number, signed: boolean}} Limits */
/** @typedef {[number, number, number]} Rgb */

/** Dark blue to yellow (cividis). @type {Rgb[]} */
const SEQUENTIAL = [[0, 34, 78], [53, 69, 108], [102, 105, 112], [148, 142, 119], [200, 184, 102], [254, 232, 56]];
/** Blue for negative, orange for positive numbers. @type {Rgb[]} */
const SIGNED = [[5, 77, 150], [92, 158, 212], [247, 247, 247], [245, 163, 74], [166, 76, 2]];
const STEPS = 256;

/** @param {Rgb[]} stops @returns {Rgb[]} */
function ramp(stops) {
  return Array.from({ length: STEPS }, (_, step) => {
    const at = (step / (STEPS - 1)) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    const part = at - low;
    return /** @type {Rgb} */ (stops[low].map((value, i) => Math.round(value + (stops[low + 1][i] - value) * part)));
  });
}

const RAMPS = { sequential: ramp(SEQUENTIAL), signed: ramp(SIGNED) };

/**
 * Limits of a scale: the 1st and 99th percentile, so that one large token does not hide the others.
 * A signed scale has zero in its middle.
 * @param {ArrayLike<number>[]} arrays
 * @param {boolean} signed
 * @returns {Limits}
 */
export function limitsOf(arrays, signed) {
  const total = arrays.reduce((sum, values) => sum + values.length, 0);
  const found = new Float32Array(total);
  let count = 0;
  for (const values of arrays) {
    for (let i = 0; i < values.length; i += 1) {
      const value = values[i];
      if (Number.isFinite(value)) {
        found[count] = signed ? Math.abs(value) : value;
        count += 1;
      }
    }
  }
  if (!count) return { low: signed ? -1 : 0, high: 1, signed };
  const sorted = found.subarray(0, count).sort();
  const high = sorted[Math.min(count - 1, Math.floor(count * 0.99))];
  if (signed) return { low: -(high || 1), high: high || 1, signed };
  const low = sorted[Math.floor(count * 0.01)];
  return { low, high: high > low ? high : low + 1, signed };
}

/** @param {number} value @param {Limits} limits @returns {Rgb | null} null for a missing value */
export function colourOf(value, limits) {
  if (Number.isNaN(value)) return null;
  const part = (value - limits.low) / (limits.high - limits.low);
  const step = Math.round(Math.min(1, Math.max(0, part)) * (STEPS - 1));
  return (limits.signed ? RAMPS.signed : RAMPS.sequential)[step];
}

/** @param {Rgb} rgb */
export function css(rgb) {
  return `rgb(${rgb[0]},${rgb[1]},${rgb[2]})`;
}

/** Black or white, whichever contrasts more with a background. @param {Rgb} rgb */
export function inkOn(rgb) {
  const [r, g, b] = rgb.map((value) => {
    const part = value / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? "#000" : "#fff";
}

/** A number with four digits. @param {number} value */
export function short(value) {
  if (Number.isNaN(value)) return "no row";
  if (!Number.isFinite(value)) return String(value);
  const size = Math.abs(value);
  return size !== 0 && (size >= 1e5 || size < 1e-3) ? value.toExponential(2) : String(Number(value.toPrecision(4)));
}

/** Draw the scale of colours and its ends into a legend. @param {HTMLElement} legend @param {Limits} limits @param {string} unit */
export function writeLegend(legend, limits, unit) {
  const bar = /** @type {HTMLCanvasElement} */ (legend.querySelector("canvas"));
  const pen = /** @type {CanvasRenderingContext2D} */ (bar.getContext("2d"));
  for (let x = 0; x < bar.width; x += 1) {
    const value = limits.low + (x / (bar.width - 1)) * (limits.high - limits.low);
    pen.fillStyle = css(/** @type {[number, number, number]} */ (colourOf(value, limits)));
    pen.fillRect(x, 0, 1, bar.height);
  }
  const texts = [`≤ ${short(limits.low)}`, `≥ ${short(limits.high)}`, unit];
  legend.querySelectorAll("span").forEach((span, i) => (span.textContent = texts[i]));
}
