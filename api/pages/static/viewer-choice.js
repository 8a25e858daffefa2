// @ts-check
/** What is chosen in the viewer: the form's fields, and the address of the page, which has all of it. */

const controls = /** @type {HTMLFormElement} */ (document.querySelector("#viewer-controls"));
const UNITS = { norm: "norm", channel: "value of channel", projection: "length along the vector", logprob: "log probability (nats)" };

const query = new URLSearchParams(location.search);
export const state = {
  hook: query.get("hook") || "",
  of: query.get("of") || "norm",
  channel: Math.max(0, Math.floor(Number(query.get("channel")) || 0)),
  vector: query.get("vector") || "",
  token: /^\d{1,12}$/.test(query.get("token") || "") ? Number(query.get("token")) : null,
  align: query.get("align") || "turn",
  difference: query.get("difference") === "1",
};

/** @param {string} name @returns {HTMLInputElement & HTMLSelectElement} */
export const field = (name) => /** @type {any} */ (controls.elements.namedItem(name));

/** True if numbers of this kind have a sign. @param {string} of */
export const isSigned = (of) => of === "channel" || of === "projection";

/** The unit of a kind of number. @param {string} of @param {boolean} isDifference */
export function unitOf(of, isDifference) {
  const name = /** @type {Record<string, string>} */ (UNITS)[of] + (of === "channel" ? ` ${state.channel}` : "");
  return isDifference ? `${name}, second minus first (first: itself)` : name;
}

export function writeFields() {
  for (const name of ["hook", "of", "channel", "vector", "align"]) {
    const one = field(name);
    if (one) one.value = String(/** @type {Record<string, unknown>} */ (state)[name]);
  }
  if (field("difference")) field("difference").checked = state.difference;
  /** @type {HTMLElement} */ (document.querySelector("#viewer")).dataset.of = state.of;
}

export function writeAddress() {
  const next = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(state)) {
    const isUsed = name === "channel" ? state.of === "channel" : name === "vector" ? state.of === "projection" : true;
    if (value === null || value === "" || value === false || !isUsed) next.delete(name);
    else next.set(name, value === true ? "1" : String(value));
  }
  history.replaceState(null, "", `?${next}`);
}
