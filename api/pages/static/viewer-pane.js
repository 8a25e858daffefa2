// @ts-check
/** One session in the viewer: its tokens as text, and the numbers of the tokens in view. */

import { colourOf, short } from "./viewer-colours.js";
import { Source } from "./viewer-data.js";

/** @typedef {import("./viewer-colours.js").Limits} Limits */
/** @typedef {import("./viewer-data.js").About} About */
/** @typedef {import("./viewer-data.js").Tokens} Tokens */
/**
 * Numbers of the tokens. The first `skip` tokens have no colour.
 * @typedef {{numbers: Float32Array | null, limits: Limits, name: string, skip: number}} Shown
 */
/**
 * Numbers and limits of each layer of a heatmap, and its cells once they are drawn.
 * @typedef {{hooks: string[], rows: (Float32Array | null)[], limits: Limits[], skip: number,
 *   cells?: HTMLCanvasElement}} Heat
 */

const LONGEST = 60;

/** A token's text with signs for what cannot be seen. @param {string} text */
export function visible(text) {
  const letters = Array.from(text.slice(0, 4 * LONGEST).replaceAll("\n", "⏎\n").replaceAll("\t", "⇥\t"));
  const shown = letters.length > LONGEST ? `${letters.slice(0, LONGEST).join("")}…` : letters.join("");
  return shown || "·";
}

export class Pane {
  /**
   * @param {HTMLElement} root
   * @param {(pane: Pane, token: number, hook?: string) => void} choose called for a click
   */
  constructor(root, choose) {
    /** @type {About} */
    this.about = JSON.parse(root.dataset.about || "{}");
    this.source = new Source(this.about);
    this.text = /** @type {HTMLElement} */ (root.querySelector(".tokens"));
    this.canvas = /** @type {HTMLCanvasElement} */ (root.querySelector("canvas"));
    /** @type {Tokens} */
    this.tokens = { start: 0, ids: [], texts: [], segments: [], turns: [] };
    /** hook -> its numbers of the tokens in view, once they are read @type {Map<string, Float32Array>} */
    this.values = new Map();
    /** the numbers that the tokens are coloured by @type {Shown} */
    this.shown = { numbers: null, limits: { low: 0, high: 1, signed: false, log: false }, name: "", skip: 0 };
    /** @type {Heat} */
    this.heat = { hooks: [], rows: [], limits: [], skip: 0 };
    /** @type {HTMLElement[]} */
    this.spans = [];
    /** @type {HTMLElement | undefined} */
    this.chosen = undefined;
    this.text.addEventListener("click", (event) => {
      const token = tokenAt(event);
      if (token !== null) choose(this, token);
    });
    this.text.addEventListener("mouseover", (event) => {
      const token = tokenAt(event);
      if (token !== null) this.spans[token - this.start].title = this.describe(token);
    });
  }

  get total() {
    return this.about.prompt_tokens + this.about.generated_tokens;
  }

  get start() {
    return this.tokens.start;
  }

  get stop() {
    return this.start + this.tokens.ids.length;
  }

  /** The hooks of a hook's point, the last layer first. @param {string} hook */
  column(hook) {
    return (Object.values(this.about.points).find((names) => names.includes(hook)) ?? []).toReversed();
  }

  /** @param {number} token */
  textOf(token) {
    const { texts, ids, start } = this.tokens;
    return texts.length ? texts[token - start] : String(ids[token - start]);
  }

  /** @param {number} token */
  segmentOf(token) {
    const found = this.tokens.segments.find((one) => one.start <= token && token < one.stop);
    return found ? found.name : token < this.about.prompt_tokens ? "prompt" : "generated";
  }

  /** @param {number} token */
  describe(token) {
    const { numbers, name } = this.shown;
    const value = numbers ? short(numbers[token - this.start]) : "loading";
    const id = this.tokens.ids[token - this.start];
    const text = JSON.stringify(this.textOf(token).slice(0, LONGEST));
    return `${text} · token ${token} · id ${id} · ${this.segmentOf(token)} · ${name} ${value}`;
  }

  /** Show tokens, with a mark where a segment begins. @param {Tokens} tokens */
  write(tokens) {
    this.tokens = tokens;
    this.values = new Map();
    this.shown = { ...this.shown, numbers: null };
    const names = new Map(tokens.segments.map((one) => [one.start, one.name]));
    const all = document.createDocumentFragment();
    this.spans = tokens.ids.map((_, place) => {
      const token = tokens.start + place;
      const name = names.get(token);
      if (name !== undefined) {
        const mark = document.createElement("span");
        mark.className = "mark";
        mark.textContent = name.replaceAll("_", " ");
        all.append(mark);
      }
      const span = document.createElement("span");
      span.className = tokens.texts.length ? "token" : "token number";
      span.dataset.token = String(token);
      span.textContent = visible(this.textOf(token));
      all.append(span);
      return span;
    });
    this.text.replaceChildren(all);
  }

  /** Colour the tokens. @param {Shown} shown */
  colour(shown) {
    this.shown = shown;
    this.spans.forEach((span, place) => {
      const colour = this.colourAt(place);
      span.style.backgroundColor = colour ? colour.css : "";
      span.style.color = colour ? colour.ink : "";
    });
  }

  /** The colour of the token at a place in view. @param {number} place */
  colourAt(place) {
    const { numbers, limits, skip } = this.shown;
    return numbers && place >= skip ? colourOf(numbers[place], limits) : null;
  }

  /** Mark a token as the chosen one. @param {number} token -1 for none */
  mark(token) {
    const span = this.spans[token - this.start];
    if (span === this.chosen) return;
    this.chosen?.classList.remove("chosen");
    span?.classList.add("chosen");
    span?.scrollIntoView({ block: "nearest" });
    this.chosen = span;
  }
}

/** @param {Event} event */
function tokenAt(event) {
  const span = /** @type {HTMLElement} */ (event.target).closest(".token");
  return span instanceof HTMLElement ? Number(span.dataset.token) : null;
}
