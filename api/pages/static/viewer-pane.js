// @ts-check
/** One session in the viewer: its tokens as coloured text, and its heatmap of layers and tokens. */

import { colourOf, css, inkOn, short } from "./viewer-colours.js";
import { Source } from "./viewer-data.js";

/** tokens in view at a time */
export const WINDOW = 2048;
const GUTTER = 44;
const LONGEST = 60;

/** @typedef {import("./viewer-colours.js").Limits} Limits */
/** @typedef {import("./viewer-data.js").Session} Session */
/** @typedef {import("./viewer-data.js").Tokens} Tokens */

/** The first token of the window that has a token. @param {number} token */
export function windowOf(token) {
  return Math.max(0, Math.floor(token / WINDOW) * WINDOW);
}

/** Text of a token as it is shown; the whole text is in its description. @param {string} text */
export function shown(text) {
  if (text === "") return "·";
  const letters = Array.from(text.replaceAll("\n", "⏎\n").replaceAll("\t", "⇥\t"));
  return letters.length > LONGEST ? `${letters.slice(0, LONGEST).join("")}…` : letters.join("");
}

/** `resid_post` and 12 for `resid_post.12`. @param {string} hook */
export function parts(hook) {
  const match = /^(.*)\.(\d+)$/.exec(hook);
  return match ? { point: match[1], layer: Number(match[2]) } : { point: hook, layer: 0 };
}

export class Pane {
  /**
   * @param {HTMLElement} root
   * @param {string} id
   * @param {(pane: Pane, token: number, row: number | null) => void} choose called for a click
   */
  constructor(root, id, choose) {
    /** @type {Tokens | undefined} */
    this.tokens = undefined;
    this.source = new Source(id);
    /** @type {Session} */
    this.session = JSON.parse(root.dataset.about || "{}");
    this.start = 0;
    /** @type {Float32Array} */
    this.values = new Float32Array(0);
    /** hooks of the heatmap, the last layer first @type {string[]} */
    this.hooks = [];
    /** @type {(Float32Array | null)[]} */
    this.heat = [];
    /** @type {HTMLElement[]} */
    this.spans = [];
    /** @type {HTMLElement | undefined} */
    this.chosen = undefined;
    this.hook = "";
    this.canvas = /** @type {HTMLCanvasElement} */ (root.querySelector("canvas"));
    this.text = /** @type {HTMLElement} */ (root.querySelector(".tokens"));
    this.text.addEventListener("click", (event) => {
      const span = /** @type {HTMLElement} */ (event.target).closest(".token");
      if (span instanceof HTMLElement) choose(this, Number(span.dataset.token), null);
    });
    this.text.addEventListener("mouseover", (event) => {
      const span = /** @type {HTMLElement} */ (event.target).closest(".token");
      if (span instanceof HTMLElement) span.title = this.describe(Number(span.dataset.token), this.hook, this.values);
    });
    this.canvas.addEventListener("click", (event) => {
      const cell = this.cellAt(event.offsetX, event.offsetY);
      if (cell) choose(this, cell.token, cell.row);
    });
    this.canvas.addEventListener("mousemove", (event) => {
      const cell = this.cellAt(event.offsetX, event.offsetY);
      this.canvas.title = cell ? this.describe(cell.token, this.hooks[cell.row], this.heat[cell.row]) : "";
    });
  }

  /** Read the tokens of the window at a token. @param {number} token */
  async read(token) {
    const start = windowOf(Math.min(token, this.total - 1));
    return this.source.tokens(start, Math.min(this.total, start + WINDOW));
  }

  /** The id of a token; undefined if it is not in view. @param {number} token */
  idOf(token) {
    return this.tokens?.ids[token - this.tokens.start];
  }

  get stop() {
    return Math.min(this.total, this.start + WINDOW);
  }

  get total() {
    return this.session.prompt_tokens + this.session.generated_tokens;
  }

  /** @param {number} token */
  textOf(token) {
    const { texts, ids, start } = /** @type {Tokens} */ (this.tokens);
    return texts ? texts[token - start] : String(ids[token - start]);
  }

  /** Names of the turn and the segments of a token. @param {number} token */
  placesOf(token) {
    const { turns, segments, prompt_tokens: prompt } = /** @type {Tokens} */ (this.tokens);
    const within = [...turns.map((one, i) => ({ ...one, name: `turn ${i + 1} (${one.name})` })), ...segments];
    const names = within.filter((one) => one.start <= token && token < one.stop).map((one) => one.name);
    return [token < prompt ? "prompt" : "generated", ...names];
  }

  /** @param {number} token @param {string} hook @param {Float32Array | null} values */
  describe(token, hook, values) {
    const number = values ? short(values[token - this.start]) : "loading";
    return `token ${token} ${JSON.stringify(this.textOf(token))} · ${hook} · ${number}`;
  }

  /** Show tokens that were read, with marks where turns and segments begin. @param {Tokens} tokens */
  writeTokens(tokens) {
    this.tokens = tokens;
    this.start = tokens.start;
    const { turns, segments, prompt_tokens: prompt, texts } = tokens;
    /** @type {Map<number, string[]>} */
    const marks = new Map();
    const mark = (/** @type {number} */ at, /** @type {string} */ name) => marks.set(at, [...(marks.get(at) || []), name]);
    turns.forEach((turn, i) => mark(turn.start, `turn ${i + 1}`));
    segments.forEach((segment) => mark(segment.start, segment.name));
    mark(prompt, "generated");
    const all = document.createDocumentFragment();
    this.spans = [];
    for (let token = this.start; token < this.stop; token += 1) {
      for (const name of marks.get(token) || []) {
        const label = document.createElement("span");
        label.className = "mark";
        label.textContent = name;
        all.append(label);
      }
      const span = document.createElement("span");
      span.className = texts ? "token" : "token id";
      span.dataset.token = String(token);
      span.textContent = texts ? shown(this.textOf(token)) : this.textOf(token);
      this.spans.push(span);
      all.append(span);
      if (!texts) all.append(" ");
    }
    this.text.replaceChildren(all);
  }

  /** @param {Limits} limits @param {string} hook */
  colourTokens(limits, hook) {
    this.spans.forEach((span, i) => {
      const colour = colourOf(this.values[i], limits);
      span.style.backgroundColor = colour ? css(colour) : "";
      span.style.color = colour ? inkOn(colour) : "";
    });
    this.hook = hook;
  }

  /** Mark tokens whose ids differ from another session's. @param {(token: number) => boolean} differs */
  markDifferences(differs) {
    this.spans.forEach((span, i) => span.classList.toggle("differs", differs(this.start + i)));
  }

  /** Mark a token as the chosen one. @param {number | null} token */
  mark(token) {
    const span = token === null ? undefined : this.spans[token - this.start];
    if (span === this.chosen) return;
    this.chosen?.classList.remove("chosen");
    span?.classList.add("chosen");
    span?.scrollIntoView({ block: "nearest" });
    this.chosen = span;
  }

  /** @param {Limits} limits @param {number | null} token @param {string} hook */
  drawHeat(limits, token, hook) {
    const { canvas, hooks, heat } = this;
    const count = this.stop - this.start;
    const width = Math.max(200, /** @type {HTMLElement} */ (canvas.parentElement).clientWidth);
    const height = Math.max(1, hooks.length) * this.rowHeight;
    const dense = window.devicePixelRatio || 1;
    canvas.width = width * dense;
    canvas.height = height * dense;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    const style = getComputedStyle(canvas);
    pen.scale(dense, dense);
    if (count && hooks.length) {
      const image = new ImageData(count, hooks.length);
      heat.forEach((values, row) => {
        for (let i = 0; values && i < count; i += 1) {
          const colour = colourOf(values[i], limits);
          if (colour) image.data.set([...colour, 255], 4 * (row * count + i));
        }
      });
      const small = document.createElement("canvas");
      small.width = count;
      small.height = hooks.length;
      /** @type {CanvasRenderingContext2D} */ (small.getContext("2d")).putImageData(image, 0, 0);
      pen.imageSmoothingEnabled = false;
      pen.drawImage(small, GUTTER, 0, width - GUTTER, height);
    }
    pen.fillStyle = style.color;
    pen.font = `11px ${style.fontFamily}`;
    pen.textBaseline = "middle";
    const each = Math.ceil(14 / this.rowHeight);
    hooks.forEach((name, row) => {
      if ((hooks.length - 1 - row) % each === 0) {
        pen.fillText(`L${parts(name).layer}`, 2, (row + 0.5) * this.rowHeight, GUTTER - 6);
      }
    });
    const row = hooks.indexOf(hook);
    if (token !== null && token >= this.start && token < this.stop) {
      const wide = (width - GUTTER) / count;
      const left = GUTTER + (token - this.start) * wide;
      // a dark line within a light one is seen on every colour
      for (const [colour, thick] of /** @type {[string, number][]} */ ([["#fff", 4], ["#000", 1.5]])) {
        pen.strokeStyle = colour;
        pen.lineWidth = thick;
        pen.strokeRect(left - 1, 0, wide + 2, height);
        if (row >= 0) pen.strokeRect(left - 3, row * this.rowHeight, wide + 6, this.rowHeight);
      }
    }
  }

  get rowHeight() {
    return Math.max(6, Math.min(22, Math.floor(300 / Math.max(1, this.hooks.length))));
  }

  /** @param {number} x @param {number} y */
  cellAt(x, y) {
    const row = Math.floor(y / this.rowHeight);
    const count = this.stop - this.start;
    const place = Math.floor(((x - GUTTER) / (this.canvas.clientWidth - GUTTER)) * count);
    const isInside = row >= 0 && row < this.hooks.length && place >= 0 && place < count;
    return isInside ? { row, token: this.start + place } : null;
  }
}
