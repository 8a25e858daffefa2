// @ts-check
/** Tokens as text, coloured by one number each, or by the attention of the token under the mouse. */

import { colourOf, short } from "./colours.js";

/** @typedef {import("./colours.js").Limits} Limits */
/** @typedef {{name: string, start: number, stop: number}} Segment */
/** Tokens from number `start` on. @typedef {{start: number, ids: number[], texts: string[], segments: Segment[]}} Tokens */
/**
 * Numbers of the tokens. The first `skip` tokens have no colour.
 * @typedef {{numbers: Float32Array | null, limits: Limits, name: string, skip: number}} Shown
 */
/**
 * The attention of a token: shares of the tokens from number `first` on, and the name of the head.
 * @typedef {{name: string, first: number, weights: Float32Array}} Attention
 */

const LONGEST = 60;
/** tokens that a description of attention names */
const LOOKED_AT = 4;

/** A token's text with signs for what cannot be seen. @param {string} text */
export function visible(text) {
  const letters = Array.from(text.slice(0, 4 * LONGEST).replaceAll("\n", "⏎\n").replaceAll("\t", "⇥\t"));
  const shown = letters.length > LONGEST ? `${letters.slice(0, LONGEST).join("")}…` : letters.join("");
  return shown || "·";
}

export class TokenText {
  /**
   * @param {HTMLElement} text the element of the tokens
   * @param {number} promptTokens
   */
  constructor(text, promptTokens) {
    this.text = text;
    this.promptTokens = promptTokens;
    /** @type {Tokens} */
    this.tokens = { start: 0, ids: [], texts: [], segments: [] };
    /** the numbers that the tokens are coloured by @type {Shown} */
    this.shown = { numbers: null, limits: { low: 0, high: 1, signed: false, log: false }, name: "", skip: 0 };
    /** further numbers of the tokens in view, which descriptions have @type {Map<string, Float32Array>} */
    this.beside = new Map();
    /** Read the attention of a token; null: tokens show none. @type {((token: number) => Promise<Attention | null>) | null} */
    this.attention = null;
    /** Called with what a token looks at. @type {(text: string) => void} */
    this.tell = () => undefined;
    /** Called with another scale of the colours. @type {(limits: Limits, name: string) => void} */
    this.scaled = () => undefined;
    /** the token whose attention colours the others; -1: none */
    this.looking = -1;
    /** @type {HTMLElement[]} */
    this.spans = [];
    /** @type {HTMLElement | undefined} */
    this.chosen = undefined;
    this.text.addEventListener("mouseover", (event) => {
      const token = tokenAt(event);
      if (token === null) return;
      this.spans[token - this.start].title = this.describe(token);
      this.look(token);
    });
    this.text.addEventListener("mouseleave", () => this.look(this.chosenToken));
  }

  get start() {
    return this.tokens.start;
  }

  get stop() {
    return this.start + this.tokens.ids.length;
  }

  /** The token that is marked; -1 for none. */
  get chosenToken() {
    return this.chosen ? Number(this.chosen.dataset.token) : -1;
  }

  /** @param {number} token */
  textOf(token) {
    const { texts, ids, start } = this.tokens;
    return texts.length ? texts[token - start] : String(ids[token - start]);
  }

  /** @param {number} token */
  segmentOf(token) {
    const found = this.tokens.segments.find((one) => one.start <= token && token < one.stop);
    return found ? found.name : token < this.promptTokens ? "prompt" : "generated";
  }

  /** @param {number} token */
  describe(token) {
    const { numbers, name } = this.shown;
    const place = token - this.start;
    const quoted = JSON.stringify(this.textOf(token).slice(0, LONGEST));
    const facts = [quoted, `token ${token}`, `id ${this.tokens.ids[place]}`, this.segmentOf(token)];
    if (name) facts.push(`${name} ${numbers ? short(numbers[place]) : "loading"}`);
    for (const [other, values] of this.beside) {
      if (other !== name) facts.push(`${other} ${short(values[place])}`);
    }
    return facts.join(" · ");
  }

  /** Show tokens, with a mark where a segment begins. @param {Tokens} tokens */
  write(tokens) {
    this.tokens = tokens;
    this.beside = new Map();
    this.shown = { ...this.shown, numbers: null };
    this.looking = -1;
    this.chosen = undefined;
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
    if (this.looking < 0) this.paintNumbers();
  }

  /** Colour the tokens by their numbers. */
  paintNumbers() {
    this.paint((place) => this.colourAt(place));
    if (this.shown.name) this.scaled(this.shown.limits, this.shown.name);
  }

  /** The colour of the token at a place in view. @param {number} place */
  colourAt(place) {
    const { numbers, limits, skip } = this.shown;
    return numbers && place >= skip ? colourOf(numbers[place], limits) : null;
  }

  /** @param {(place: number) => import("./colours.js").Colour | null} of */
  paint(of) {
    this.spans.forEach((span, place) => {
      const colour = of(place);
      span.style.backgroundColor = colour ? colour.css : "";
      span.style.color = colour ? colour.ink : "";
    });
  }

  /** Mark a token as the chosen one. @param {number} token -1 for none */
  mark(token) {
    const span = this.spans[token - this.start];
    if (span === this.chosen) return;
    this.chosen?.classList.remove("chosen");
    span?.classList.add("chosen");
    span?.scrollIntoView({ block: "nearest" });
    this.chosen = span;
    this.look(token);
  }

  /** Show the attention that `read` finds, or none any more. @param {TokenText["attention"]} read */
  showAttention(read) {
    this.attention = read;
    this.look(-1);
    this.look(this.chosenToken);
  }

  /**
   * Colour the tokens by the attention of one, if attention is read and the token has some; else by the numbers.
   * @param {number} token -1 for none
   */
  async look(token) {
    const wanted = this.attention && token >= this.start && token < this.stop ? token : -1;
    if (wanted === this.looking) return;
    this.looking = wanted;
    const found = wanted < 0 ? null : await this.attention?.(wanted);
    if (this.looking !== wanted) return; // another token was entered meanwhile
    if (!found) {
      this.looking = -1;
      this.paintNumbers();
      return;
    }
    const { first, weights } = found;
    // most heads look at the first token most of the time
    const high = weights.reduce((most, one, at) => (first + at > 0 ? Math.max(most, one) : most), 0) || 1;
    const limits = { low: 0, high, signed: false, log: false };
    this.paint((place) => {
      const at = this.start + place - first;
      return at >= 0 && at < weights.length ? colourOf(weights[at], limits) : null;
    });
    this.scaled(limits, `attention of ${found.name}, token ${token}`);
    this.tell(this.describeAttention(token, found));
  }

  /** @param {number} token @param {Attention} attention */
  describeAttention(token, { name, first, weights }) {
    const order = [...weights.keys()].sort((a, b) => weights[b] - weights[a]).slice(0, LOOKED_AT);
    const seen = order.filter((at) => weights[at] > 0).map((at) => {
      const other = first + at;
      const text = other >= this.start && other < this.stop ? ` ${JSON.stringify(this.textOf(other).slice(0, LONGEST))}` : "";
      return `${short(weights[at])} at ${other}${text}`;
    });
    const rest = this.start > 0 && first >= this.start ? ` (tokens before ${this.start} are not in view)` : "";
    return `${name} · token ${token} looks: ${seen.join(", ") || "at no token"}${rest}`;
  }
}

/** The token of an event. @param {Event} event */
export function tokenAt(event) {
  const span = /** @type {HTMLElement} */ (event.target).closest(".token");
  return span instanceof HTMLElement ? Number(span.dataset.token) : null;
}
