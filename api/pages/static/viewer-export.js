// @ts-check
/** Files of what is seen: heatmaps as PNG, tokens as SVG, numbers as CSV. */

/** @typedef {import("./viewer-pane.js").Pane} Pane */

/** @param {Blob} data @param {Pane} pane @param {string} ending */
function save(data, pane, ending) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(data);
  link.download = `${pane.about.id}.${ending}`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

/** @param {Pane} pane */
export function savePng(pane) {
  pane.canvas.toBlob((data) => data && save(data, pane, "png"));
}

/** The tokens as they are laid out on the page. @param {Pane} pane */
export function saveSvg(pane) {
  const around = pane.text.getBoundingClientRect();
  const size = Number.parseFloat(getComputedStyle(pane.text).fontSize);
  const svg = document.implementation.createDocument("http://www.w3.org/2000/svg", "svg");
  const add = (/** @type {string} */ tag, /** @type {Record<string, string | number>} */ values) => {
    const made = svg.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(values)) made.setAttribute(name, String(value));
    svg.documentElement.append(made);
    return made;
  };
  svg.documentElement.setAttribute("width", String(around.width));
  svg.documentElement.setAttribute("height", String(pane.text.scrollHeight));
  pane.spans.forEach((span, place) => {
    const { css, ink } = pane.colourAt(place) ?? { css: "#fff", ink: "#000" };
    const boxes = [...span.getClientRects()].map((box) => (
      { x: box.x - around.x, y: box.y - around.y + pane.text.scrollTop, width: box.width, height: box.height }
    ));
    for (const box of boxes) add("rect", { ...box, fill: css });
    if (!boxes.length) return;
    const { x, y, height } = boxes[0];
    const font = { "font-family": "monospace", "font-size": size, "xml:space": "preserve" };
    // XML has no control characters
    const text = (span.textContent ?? "").replace(/[^\P{Cc}]/gu, "");
    add("text", { x, y: y + height * 0.75, fill: ink, ...font }).textContent = text;
  });
  const data = new XMLSerializer().serializeToString(svg);
  save(new Blob([data], { type: "image/svg+xml" }), pane, "svg");
}

/** A line for each token, with its number and those of the layers. @param {Pane} pane */
export function saveCsv(pane) {
  const { heat } = pane;
  const lines = [["token", "id", "text", "segment", pane.shown.name, ...heat.hooks].map(cell)];
  pane.tokens.ids.forEach((id, place) => {
    const token = pane.start + place;
    const numbers = [pane.shown.numbers, ...heat.rows].map((row) => row?.[place] ?? NaN);
    lines.push([token, id, pane.textOf(token), pane.segmentOf(token), ...numbers].map(cell));
  });
  const data = lines.map((line) => `${line.join(",")}\r\n`).join("");
  save(new Blob([data], { type: "text/csv" }), pane, "csv");
}

/** A cell that no spreadsheet runs as a formula. @param {string | number} value */
function cell(value) {
  if (typeof value === "number") return Number.isNaN(value) ? "" : String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return `"${text.replaceAll('"', '""')}"`;
}
