// @ts-check
/** Reads a session from the service: tokens as JSON, numbers as binary float32. */

/**
 * @typedef {{norm: number, width: number, channels: [number, number][], lens: [string, number][],
 *   nearest: [number, string, number][]}} Row
 * @typedef {{latent: number, activation: number, token: number, tokens: number}} Latent
 * @typedef {{id: string, job_id: string, prompt_tokens: number, generated_tokens: number,
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

  /** The attention of a token, from the first token to its own. @param {string} layer @param {string} head @param {number} token */
  attention(layer, head, token) {
    const path = `${ROOT}v1/activations/sessions/${this.about.id}/attention/${layer}`;
    const address = `${path}?head=${head}&rows=${token}:${token + 1}&format=json`;
    if (this.kept.size > KEPT) this.kept.clear();
    const known = this.kept.get(address);
    if (known) return known;
    const read = ask(address).then(async (answer) => Float32Array.from((await answer.json()).data[0]));
    read.catch(() => this.kept.delete(address));
    this.kept.set(address, read);
    return read;
  }

  /** The strongest latents of an SAE in the session. @param {string} hook @returns {Promise<Latent[]>} */
  async latents(hook) {
    return (await ask(`${this.page}/latents?hook=${encodeURIComponent(hook)}`)).json();
  }

  /** The page of the sessions in which a latent is most active. @param {string} hook @param {string} latent */
  latentPage(hook, latent) {
    return `${ROOT}jobs/${this.about.job_id}/latents?sae=${encodeURIComponent(hook)}&latent=${latent}`;
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
