// @ts-check
/** Reads a session from the service: tokens as JSON, numbers as binary float32. */

/**
 * @typedef {{norm: number, width: number, channels: [number, number][], lens: [string, number][],
 *   nearest: [number, string, number][]}} Row
 * @typedef {{id: string, prompt_tokens: number, generated_tokens: number,
 *   points: Record<string, string[]>}} About
 * @typedef {import("./tokens.js").Tokens & {turns: number[]}} Tokens
 * @typedef {{of: string, channel: number, vector: string}} Choice
 */

/** Path of the service, which a proxy may have behind a prefix; it ends with a slash. */
const ROOT = new URL("..", import.meta.url).pathname;
/** hooks of one request */
const AT_ONCE = 8;
/** arrays that stay in memory */
const KEPT = 600;

/** An answer that is no success, in the service's words. */
export class Refused extends Error {}

/** @param {string} address */
async function ask(address) {
  const answer = await fetch(address, { headers: { Accept: "application/json" } }).catch(() => null);
  if (!answer) throw new Refused("The service does not answer.");
  if (answer.ok) return answer;
  const problem = await answer.json().catch(() => ({}));
  throw new Refused(problem.detail || `The service answered ${answer.status}.`);
}

/** One session. Every array is read once. */
export class Source {
  /** @param {About} about */
  constructor(about) {
    this.about = about;
    this.page = `${ROOT}sessions/${about.id}`;
    /** @type {Map<string, Promise<Float32Array>>} */
    this.kept = new Map();
  }

  /** The tokens [start, stop). @param {number} start @param {number} stop @returns {Promise<Tokens>} */
  async tokens(start, stop) {
    return (await ask(`${this.page}/tokens?start=${start}&stop=${stop}`)).json();
  }

  /** What the panel shows of a row; null without a row. @param {string} hook @param {number} token */
  async row(hook, token) {
    const answer = await ask(`${this.page}/row?hook=${encodeURIComponent(hook)}&token=${token}`);
    return /** @type {Row | null} */ (await answer.json());
  }

  /**
   * One number for each of the tokens [start, stop), for each hook. NaN: the hook has no row of the token.
   * @param {string[]} hooks the first ones are read first
   * @param {Choice} choice
   * @param {number} start
   * @param {number} stop
   * @returns {Promise<Float32Array>[]} one for each hook
   */
  values(hooks, choice, start, stop) {
    const { of, channel, vector } = choice;
    const about = new URLSearchParams({ of, start: String(start), stop: String(stop) });
    if (of === "channel") about.set("channel", String(channel));
    if (of === "projection") about.set("vector", vector);
    const keyOf = (/** @type {string} */ hook) => `${about}&hook=${encodeURIComponent(hook)}`;
    if (this.kept.size > KEPT) this.kept.clear();
    const missing = hooks.filter((hook) => !this.kept.has(keyOf(hook)));
    for (let first = 0; first < missing.length; first += AT_ONCE) {
      const some = missing.slice(first, first + AT_ONCE);
      const named = some.map((hook) => `&hook=${encodeURIComponent(hook)}`).join("");
      const data = ask(`${this.page}/values?${about}${named}`).then((answer) => answer.arrayBuffer());
      some.forEach((hook, place) => {
        const length = stop - start;
        const values = data.then((all) => new Float32Array(all, 4 * place * length, length));
        values.catch(() => this.kept.delete(keyOf(hook)));
        this.kept.set(keyOf(hook), values);
      });
    }
    return hooks.map((hook) => /** @type {Promise<Float32Array>} */ (this.kept.get(keyOf(hook))));
  }
}
