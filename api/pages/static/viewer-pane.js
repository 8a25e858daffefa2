// @ts-check
/** One session in the viewer: its tokens as text, and the numbers of the tokens in view. */

import { TokenText, tokenAt } from "./tokens.js";
import { Source } from "./viewer-data.js";

/** @typedef {import("./colours.js").Limits} Limits */
/** @typedef {import("./viewer-data.js").About} About */
/** @typedef {import("./viewer-data.js").Tokens} Tokens */
/**
 * Numbers and limits of each layer of a heatmap, and its cells once they are drawn.
 * @typedef {{hooks: string[], rows: (Float32Array | null)[], limits: Limits[], skip: number,
 *   cells?: HTMLCanvasElement}} Heat
 */

export class Pane extends TokenText {
  /**
   * @param {HTMLElement} root
   * @param {(pane: Pane, token: number, hook?: string) => void} choose called for a click
   */
  constructor(root, choose) {
    /** @type {About} */
    const about = JSON.parse(root.dataset.about || "{}");
    super(/** @type {HTMLElement} */ (root.querySelector(".tokens")), about.prompt_tokens);
    this.about = about;
    this.source = new Source(about);
    this.canvas = /** @type {HTMLCanvasElement} */ (root.querySelector("canvas"));
    /** first tokens of turns and of their answers @type {number[]} */
    this.turns = [];
    /** hook -> its numbers of the tokens in view, once they are read @type {Map<string, Float32Array>} */
    this.values = new Map();
    /** @type {Heat} */
    this.heat = { hooks: [], rows: [], limits: [], skip: 0 };
    this.text.addEventListener("click", (event) => {
      const token = tokenAt(event);
      if (token !== null) choose(this, token);
    });
  }

  get total() {
    return this.about.prompt_tokens + this.about.generated_tokens;
  }

  /** The hooks of a hook's point, the last layer first. @param {string} hook */
  column(hook) {
    return (Object.values(this.about.points).find((names) => names.includes(hook)) ?? []).toReversed();
  }

  /** @param {Tokens} tokens */
  show(tokens) {
    this.turns = tokens.turns;
    this.values = new Map();
    this.write(tokens);
  }
}
