// @ts-check
/** Reads a session from the service: numbers as binary float32, never as JSON. */

/**
 * @typedef {{shape: number[], dtype: string, first_row: number, position_offset: number | null,
 *   summary: string | null}} TensorInfo
 * @typedef {{id: string, model: string, prompt_tokens: number, generated_tokens: number, sample_index: number,
 *   condition: string | null, correct: boolean | null, hooks: Record<string, TensorInfo>}} Session
 * @typedef {{name: string, start: number, stop: number}} NamedRange
 * @typedef {{start: number, total: number, prompt_tokens: number, ids: number[], texts: string[] | null,
 *   no_texts: string | null, turns: NamedRange[], segments: NamedRange[], has_logprobs: boolean}} Tokens
 * @typedef {{of: string, channel: number, vector: string}} Choice
 */

const BASE = "/v1/activations/sessions/";
/** arrays that stay in memory */
const KEPT = 600;
/** hooks of one request */
const AT_ONCE = 4;

/** An answer that is no success, with the service's own words. */
export class Refused extends Error {}

/** @param {string} address */
async function ask(address) {
  const answer = await fetch(address, { credentials: "same-origin", headers: { Accept: "application/json, */*" } });
  if (!answer.ok) {
    const problem = await answer.json().catch(() => ({}));
    throw new Refused(problem.detail || `The service answered ${answer.status}.`);
  }
  return answer;
}

/** One session; every array is read once and kept while there is room. */
export class Source {
  /** @param {string} id */
  constructor(id) {
    this.id = id;
    this.address = BASE + encodeURIComponent(id);
    /** @type {Map<string, Promise<Float32Array>>} */
    this.kept = new Map();
  }

  /** Tokens [start, stop) as text. @param {number} start @param {number} stop @returns {Promise<Tokens>} */
  async tokens(start, stop) {
    return (await ask(`${this.address}/tokens?tokens=${start}:${stop}`)).json();
  }

  /**
   * One number for each of the tokens [start, stop), for each hook; a log probability has no hook.
   * @param {string[]} hooks
   * @param {Choice} choice
   * @param {number} start
   * @param {number} stop
   * @returns {Promise<Float32Array>[]} one for each hook
   */
  values(hooks, choice, start, stop) {
    const about = new URLSearchParams({ of: choice.of, tokens: `${start}:${stop}` });
    if (choice.of === "channel") about.set("channel", String(choice.channel));
    if (choice.of === "projection") about.set("vector_id", choice.vector);
    if (choice.of === "cosine") about.set("token", String(choice.channel));
    const key = (/** @type {string} */ hook) => `${hook} ${about}`;
    const missing = hooks.filter((hook) => !this.kept.has(key(hook)));
    for (let i = 0; i < missing.length; i += AT_ONCE) {
      const some = missing.slice(i, i + AT_ONCE);
      const query = new URLSearchParams(about);
      if (choice.of !== "logprob") some.forEach((hook) => query.append("hook", hook));
      const all = ask(`${this.address}/values?${query}`).then((answer) => answer.arrayBuffer());
      some.forEach((hook, place) => {
        const one = all.then((data) => new Float32Array(data, 4 * place * (stop - start), stop - start));
        one.catch(() => this.kept.delete(key(hook)));
        this.kept.set(key(hook), one);
      });
    }
    const found = hooks.map((hook) => /** @type {Promise<Float32Array>} */ (this.kept.get(key(hook))));
    for (const oldest of this.kept.keys()) {
      if (this.kept.size <= KEPT) break;
      this.kept.delete(oldest);
    }
    return found;
  }

  /**
   * The row of one token; null if the hook has none.
   * @param {string} hook
   * @param {TensorInfo} info
   * @param {number} token
   * @returns {Promise<ArrayLike<number> | null>}
   */
  async row(hook, info, token) {
    let place = token - info.first_row;
    if (info.position_offset !== null) {
      const range = `${info.position_offset}:${info.position_offset + info.shape[0]}`;
      const positions = await this.array("row_positions", range);
      place = Array.from(positions).indexOf(token);
    }
    if (info.summary !== null || place < 0 || place >= info.shape[0]) return null;
    return this.array(hook, `${place}:${place + 1}`);
  }

  /** @param {string} name @param {string} rows @returns {Promise<ArrayLike<number>>} */
  async array(name, rows) {
    const address = `${this.address}/tensors/${encodeURIComponent(name)}?rows=${rows}&format=npy`;
    return numbersOf(await (await ask(address)).arrayBuffer());
  }
}

/**
 * The numbers of an .npy file (format 1.0) in one row.
 * @param {ArrayBuffer} data
 * @returns {ArrayLike<number>}
 */
export function numbersOf(data) {
  const start = 10 + new DataView(data).getUint16(8, true);
  const header = new TextDecoder().decode(new Uint8Array(data, 10, start - 10));
  const type = (header.match(/'descr': '(.{2,3})'/) || [])[1];
  const body = data.slice(start);
  if (type === "<f4") return new Float32Array(body);
  if (type === "<f8") return new Float64Array(body);
  if (type === "<i8") return Array.from(new BigInt64Array(body), Number);
  if (type === "<i4") return new Int32Array(body);
  if (type === "<f2") return Array.from(new Uint16Array(body), half);
  throw new Refused(`Numbers of the type ${type} cannot be shown.`);
}

/** A float16 as a number. @param {number} bits */
function half(bits) {
  const sign = bits & 0x8000 ? -1 : 1;
  const exponent = (bits >> 10) & 31;
  const part = bits & 1023;
  if (exponent === 0) return sign * part * 2 ** -24;
  if (exponent === 31) return part ? NaN : sign * Infinity;
  return sign * (1 + part / 1024) * 2 ** (exponent - 15);
}
