// @ts-check
/** The session viewer: what is chosen, and what follows from a choice. The form and the address hold it. */

import { minus, pairsOf } from "./viewer-align.js";
import { limitsOf, short, writeLegend } from "./colours.js";
import { Refused } from "./viewer-data.js";
import { saveCsv, savePng, saveSvg } from "./viewer-export.js";
import { cellAt, describeCell, drawHeat } from "./viewer-heat.js";
import { Pane } from "./viewer-pane.js";
import { showRow } from "./viewer-row.js";

/** most tokens in view */
const WINDOW = 2048;
/** readouts whose values are read beside the numbers that are shown */
const MOST_BESIDE = 8;
/** time that the mouse stays on a token before its attention is read, in milliseconds */
const PAUSE = 60;
/** @template {HTMLElement} T @param {string} id @returns {T} */
const get = (id) => /** @type {T} */ (document.getElementById(id));
const controls = /** @type {HTMLFormElement} */ (get("viewer-controls"));
const panel = get("viewer-row");
/** @param {string} name @returns {HTMLInputElement & HTMLSelectElement} */
const field = (name) => /** @type {any} */ (controls.elements.namedItem(name));
const valueOf = (/** @type {string} */ name) => field(name)?.value ?? "";

const roots = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(".pane")]);
const panes = roots.map((root) => new Pane(root, choose));
const isTwo = panes.length === 2;
/** a pane and a token of it; -1: none */
const chosen = { side: 0, token: -1 };
/** for each pane, the places of the other's tokens @type {number[][]} */
let pairs = [[], []];
let turn = 0;
let rowTurn = 0;
/** of the next painting; 0: none is due */
let frame = 0;

const isDifference = () => isTwo && field("difference").checked;
/** Log probabilities have no layers: the heatmap then shows norms. */
const heatOf = () => (valueOf("of") === "logprob" ? "norm" : valueOf("of"));
/** Key of the numbers that colour the tokens. */
const keyOf = () => (valueOf("of") === "logprob" ? "" : valueOf("hook"));
const isReadout = (/** @type {string} */ hook) => hook.startsWith("readout:");
const isLatents = (/** @type {string} */ hook) => hook.startsWith("sae:");
/** Norms have a logarithmic scale, all other numbers a linear one. A readout has its values. @param {string} of */
function kindOf(of) {
  const hook = valueOf("hook");
  const isValue = of !== "logprob" && isReadout(hook);
  const signed = isDifference() || of === "channel" || of === "projection" || isValue;
  const sparse = of === "channel" && isLatents(hook);
  return { signed, log: of === "norm" && !signed && !field("linear").checked, sparse };
}

/** How many of a pane's first tokens count for no scale. @param {Pane} pane */
const skipOf = (pane) => (pane.start === 0 && pane.total > 2 && !field("first").checked ? 1 : 0);

/** @param {string} of @returns {import("./viewer-data.js").Choice} */
function choiceOf(of) {
  const channel = Math.max(0, Math.floor(Number(valueOf("channel")) || 0));
  return { of, channel, vector: valueOf("vector") };
}

/** The name of numbers. @param {string} of @param {string} hook */
function nameOf(of, hook) {
  const part = isLatents(valueOf("hook")) ? "latent" : "channel";
  const names = new Map([
    ["norm", `norm of ${hook}`],
    ["channel", `${part} ${valueOf("channel")} of ${hook}`],
    ["projection", `${hook} along ${field("vector").selectedOptions?.[0]?.text}`],
    ["logprob", "log probability"],
  ]);
  const name = of !== "logprob" && isReadout(valueOf("hook")) ? valueOf("hook") : names.get(of);
  return isDifference() ? `second minus first, ${name}` : `${name}`;
}

/** @param {string} text @param {boolean} [isTrouble] */
function say(text, isTrouble = false) {
  get("viewer-status").textContent = text;
  get("viewer-status").classList.toggle("bad", isTrouble);
}

/** Do something that reads from the service, and say why if it fails. @param {() => Promise<void>} act */
function attempt(act) {
  act().catch((error) => {
    if (!(error instanceof Refused)) throw error;
    say(error.message, true);
  });
}

/** Whether a field can have a value. @param {string} name @param {string} value */
function takes(name, value) {
  const options = field(name)?.options;
  return options ? [...options].some((one) => one.value === value && !one.disabled) : Boolean(field(name));
}

/** Take the choice from the address. */
function readAddress() {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of query) {
    const one = field(name);
    if (one?.matches("[type=checkbox]")) one.checked = true;
    else if (takes(name, value)) one.value = value;
  }
  const token = Number.parseInt(query.get("token") ?? "", 10);
  if (token >= 0) chosen.token = Math.min(token, panes[0].total - 1);
}

/**
 * Offer the vectors of the hook that is shown. The one that colours the tokens stays while its point is shown:
 * other layers can be projected on it too.
 */
function offerVectors() {
  const select = field("vector");
  const hook = valueOf("hook");
  const layers = panes[0].column(hook);
  const isUsed = valueOf("of") === "projection";
  const projection = /** @type {HTMLOptionElement} */ (field("of").querySelector("[value=projection]"));
  for (const one of select.options ?? []) {
    const own = one.dataset.hook;
    const isChosen = isUsed && one.selected && layers.includes(own);
    one.disabled = own !== undefined && own !== hook && !isChosen;
    one.hidden = one.disabled;
  }
  const offered = [...(select.options ?? [])].filter((one) => !one.disabled);
  projection.disabled = !offered.length;
  if (offered.some((one) => one.selected)) return;
  select.value = offered[0]?.value ?? "";
  if (isUsed && !offered.length) field("of").value = "norm";
}

function writeAddress() {
  const query = new URLSearchParams(/** @type {any} */ (new FormData(controls)));
  if (isTwo) query.set("with", panes[1].about.id);
  if (chosen.token >= 0 && chosen.side === 0) query.set("token", String(chosen.token));
  history.replaceState(null, "", `?${query}`);
}

/** Read the numbers of the choice, those of the tokens first, and show them. */
async function load() {
  const own = ++turn;
  offerVectors();
  attempt(offerLatents);
  const hook = valueOf("hook");
  if (isTwo) pairs = panes.map((pane, side) => pairsOf(pane, panes[1 - side], valueOf("align")));
  writeAddress();
  say("Reading …");
  const waits = panes.flatMap((pane) => {
    const layers = pane.column(hook);
    const hooks = [...layers.filter((name) => name === hook), ...layers.filter((name) => name !== hook)];
    const read = pane.source.values(hooks, choiceOf(heatOf()), pane.start, pane.stop);
    if (keyOf() === "") {
      hooks.push("");
      read.push(...pane.source.values([""], choiceOf("logprob"), pane.start, pane.stop));
    }
    const none = new Float32Array(pane.spans.length).fill(NaN);
    pane.values = new Map(layers.includes(hook) ? [] : [[hook, none]]);
    return read.map(async (numbers, place) => {
      const found = await numbers;
      if (own !== turn) return;
      pane.values.set(hooks[place], found);
      if (hooks[place] === keyOf()) paintSoon();
    });
  });
  await Promise.all(waits);
  if (own !== turn) return;
  paint();
  const isEmpty = panes.every((pane) => pane.shown.numbers?.every(Number.isNaN));
  if (isEmpty) say("No number: the hook has no row of these tokens, or no such channel or direction.");
  else say(`${panes.map((pane) => pane.spans.length).join(" and ")} tokens`);
  performance.mark("viewer-loaded");
}

function paintSoon() {
  frame ||= requestAnimationFrame(paint);
}

/** The numbers of a pane to show; null while they are read. @param {number} side @param {string} key */
function numbersOf(side, key) {
  const own = panes[side].values.get(key) ?? null;
  if (!isDifference() || !own) return own;
  const others = panes[1 - side].values.get(key);
  return others ? minus(own, others, pairs[side], side ? 1 : -1) : null;
}

/** Colour tokens and heatmaps by what was read so far. */
function paint() {
  cancelAnimationFrame(frame);
  frame = 0;
  const hook = valueOf("hook");
  const name = nameOf(valueOf("of"), hook);
  const shown = panes.map((_, side) => numbersOf(side, keyOf()));
  const skips = panes.map(skipOf);
  const scaled = (/** @type {Float32Array | null} */ numbers, /** @type {number} */ side) =>
    numbers?.subarray(skips[side]) ?? null;
  const limits = limitsOf(shown.map(scaled), kindOf(valueOf("of")));
  panes.forEach((pane, side) => pane.colour({ numbers: shown[side], limits, name, skip: skips[side] }));
  if (panes.every((pane) => pane.looking < 0)) writeLegend(get("token-scale"), limits, name);
  if (shown.some(Boolean)) performance.mark("viewer-tokens");
  const columns = panes.map((pane) => pane.column(hook));
  const rows = columns.map((layers, side) => layers.map((layer) => numbersOf(side, layer)));
  const kind = kindOf(heatOf());
  const isOfEach = !field("shared").checked;
  const all = limitsOf(rows.flatMap((some, side) => some.map((one) => scaled(one, side))), kind);
  const ofLayer = (/** @type {string} */ layer) =>
    limitsOf(rows.map((some, side) => scaled(some[columns[side].indexOf(layer)] ?? null, side)), kind);
  panes.forEach((pane, side) => {
    const before = pane.heat;
    const hooks = columns[side];
    const heatLimits = hooks.map((layer) => (isOfEach ? ofLayer(layer) : all));
    pane.heat = { hooks, rows: rows[side], limits: heatLimits, skip: skips[side] };
    // another layer of the same point changes no cell
    const isSame = before.skip === skips[side] && JSON.stringify(before.limits) === JSON.stringify(heatLimits);
    if (isSame && rows[side].every((row, i) => row === before.rows[i])) pane.heat.cells = before.cells;
  });
  writeLegend(get("heat-scale"), all, nameOf(heatOf(), "each layer"), isOfEach);
  select();
}

/** Mark the chosen token, and the one beside it. */
function select() {
  const place = pairs[chosen.side][chosen.token - panes[chosen.side].start] ?? -1;
  panes.forEach((pane, side) => {
    const token = side === chosen.side ? chosen.token : place < 0 ? -1 : pane.start + place;
    pane.mark(token);
    drawHeat(pane, valueOf("hook"), token);
  });
}

/** Show the tokens from a place on. @param {number} start */
async function move(start) {
  const own = ++turn;
  const read = await Promise.all(panes.map((pane) => {
    const stop = Math.max(start, Math.min(start + WINDOW, pane.total));
    // `load` finds them, read while the tokens are made
    const hooks = pane.column(valueOf("hook")).length ? [keyOf()] : [];
    pane.source.values(hooks, choiceOf(valueOf("of")), start, stop);
    return pane.source.tokens(start, stop);
  }));
  if (own !== turn) return;
  panes.forEach((pane, side) => {
    pane.show(read[side]);
    readBeside(pane);
  });
  const most = Math.max(...panes.map((pane) => pane.total));
  get("viewer-window").hidden = most <= WINDOW;
  get("viewer-range").textContent = `tokens ${panes[0].start} to ${panes[0].stop - 1} of ${most}`;
  await load();
}

/** Read the values of readouts, which the mouse on a token shows. @param {Pane} pane */
async function readBeside(pane) {
  const names = Object.values(pane.about.points).flat().filter(isReadout).slice(0, MOST_BESIDE);
  const { tokens } = pane;
  const read = pane.source.values(names, choiceOf("norm"), pane.start, pane.stop);
  const values = await Promise.all(read).catch(() => []); // `load` says why
  if (pane.tokens === tokens) pane.beside = new Map(values.map((one, place) => [names[place], one]));
}

/** Let the mouse, or the chosen token, show where a token looks, if a layer is chosen. */
function showAttention() {
  const layer = valueOf("attention");
  const most = Number(field("attention")?.selectedOptions[0]?.dataset.heads ?? 1) - 1;
  if (field("head")) {
    field("head").max = String(most);
    field("head").value = String(Math.max(0, Math.min(most, Math.floor(Number(valueOf("head")) || 0))));
  }
  const head = valueOf("head");
  for (const pane of panes) {
    pane.showAttention(layer === "" ? null : async (token) => {
      await new Promise((done) => setTimeout(done, PAUSE));
      if (pane.looking !== token) return null; // the mouse only passed by
      try {
        const weights = await pane.source.attention(layer, head, token);
        return { name: `head ${head} of layer ${layer}`, first: 0, weights };
      } catch (error) {
        if (!(error instanceof Refused)) throw error;
        say(error.message, true);
        return null;
      }
    });
  }
}

/** Offer the session's strongest latents of the SAE that is shown. */
async function offerLatents() {
  const hook = valueOf("hook");
  const list = get("viewer-latents");
  controls.classList.toggle("latents", isLatents(hook));
  list.hidden = !isLatents(hook);
  if (list.hidden || list.dataset.hook === hook) return;
  list.dataset.hook = hook;
  list.replaceChildren("Reading the strongest latents …");
  const found = await panes[0].source.latents(hook);
  if (list.dataset.hook !== hook) return;
  const buttons = found.map(({ latent, activation, token, tokens }) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = `${latent}: ${short(activation)}`;
    made.title = `most active at token ${token}, active at ${tokens}`;
    made.addEventListener("click", () => change("channel", String(latent)));
    return made;
  });
  const link = document.createElement("a");
  link.textContent = "in other sessions";
  link.addEventListener("focus", () => linkLatent(link, hook));
  link.addEventListener("mouseover", () => linkLatent(link, hook));
  linkLatent(link, hook);
  list.replaceChildren("Strongest latents ", ...buttons, " The chosen one ", link);
}

/** @param {HTMLAnchorElement} link @param {string} hook */
function linkLatent(link, hook) {
  link.href = panes[0].source.latentPage(hook, valueOf("channel"));
}

/** Choose a token, and a layer. @param {Pane} pane @param {number} token @param {string} [hook] */
function choose(pane, token, hook = valueOf("hook")) {
  const isOther = hook !== valueOf("hook");
  chosen.side = panes.indexOf(pane);
  chosen.token = Math.max(0, Math.min(token, pane.total - 1));
  field("hook").value = hook;
  attempt(async () => {
    if (chosen.token < pane.start || chosen.token >= pane.stop) await move(windowOf(chosen.token));
    else if (isOther) await load();
    else select();
    writeAddress();
    say(pane.describe(chosen.token));
    await openRow();
  });
}

/** @param {number} token */
const windowOf = (token) => Math.floor(Math.max(0, token) / WINDOW) * WINDOW;

/** Show the row of the chosen token. */
async function openRow() {
  const pane = panes[chosen.side];
  if (chosen.token < pane.start || chosen.token >= pane.stop) return;
  const own = ++rowTurn;
  const act = {
    channel: (/** @type {number} */ channel) => change("channel", String(channel)),
    token: (/** @type {number} */ token) => choose(pane, token),
  };
  panel.hidden = false;
  await showRow(panel, pane, valueOf("hook"), chosen.token, act, () => own !== rowTurn);
}

/** Show what follows from a change of a field. @param {string} name */
function follow(name) {
  if (name === "channel") field("of").value = "channel";
  if (name === "vector") field("of").value = "projection";
  if (name === "attention" || name === "head") {
    showAttention();
    writeAddress();
    return;
  }
  attempt(async () => {
    await load();
    if (name === "hook") await openRow();
  });
}

/** Change a field, if it can have the value. @param {string} name @param {string} value */
function change(name, value) {
  if (!takes(name, value)) return;
  field(name).value = value;
  follow(name);
}

/** @param {number} by layers, or hooks of the list */
function go(by) {
  change("hook", field("hook").options[field("hook").selectedIndex + by]?.value ?? "");
}

/** @param {number} by windows */
function turnPage(by) {
  const start = panes[0].start + by * WINDOW;
  if (start >= 0 && panes.some((pane) => start < pane.total)) attempt(() => move(start));
}

/** Show the next head's attention, of the first layer that has some unless one is chosen. @param {number} by */
function nextHead(by) {
  if (!field("attention")) return;
  if (valueOf("attention") === "") change("attention", field("attention").options[1].value);
  else change("head", String(Math.max(0, Number(valueOf("head")) + by)));
}

/** @param {number} by tokens */
const step = (by) => choose(panes[chosen.side], chosen.token + by);
/** What a key does. @type {Record<string, (event: KeyboardEvent) => void>} */
const KEYS = {
  ArrowLeft: (event) => step(event.shiftKey ? -10 : -1),
  ArrowRight: (event) => step(event.shiftKey ? 10 : 1),
  ArrowUp: () => go(1),
  ArrowDown: () => go(-1),
  Home: () => step(-Infinity),
  End: () => step(Infinity),
  n: () => change("of", "norm"),
  c: () => change("of", "channel"),
  p: () => change("of", "projection"),
  l: () => change("of", "logprob"),
  a: () => change("align", valueOf("align") === "turn" ? "token" : "turn"),
  d: () => field("difference")?.click(),
  h: () => nextHead(1),
  H: () => nextHead(-1),
  ",": () => turnPage(-1),
  ".": () => turnPage(1),
  Enter: () => panel.focus(),
};

/** @type {Record<string, (pane: Pane) => void>} */
const SAVES = { png: savePng, svg: saveSvg, csv: saveCsv };

for (const pane of panes) {
  pane.text.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !KEYS[event.key]) return;
    event.preventDefault();
    KEYS[event.key](event);
  });
  pane.canvas.addEventListener("click", (event) => {
    const cell = cellAt(pane, event);
    if (cell) choose(pane, cell.token, cell.hook);
    pane.text.focus({ preventScroll: true });
  });
  pane.canvas.addEventListener("mousemove", (event) => describeCell(pane, event));
}
panel.addEventListener("keydown", (event) => event.key === "Escape" && panes[chosen.side].text.focus());
controls.addEventListener("submit", (event) => event.preventDefault());
controls.addEventListener("change", (event) => follow(/** @type {HTMLInputElement} */ (event.target).name));
document.addEventListener("click", (event) => {
  const { save, page } = /** @type {HTMLElement} */ (event.target).dataset;
  if (page) turnPage(Number(page));
  if (save) SAVES[save](panes[chosen.side]);
});
new ResizeObserver(() => panes.every((pane) => pane.spans.length) && paintSoon()).observe(get("viewer"));

for (const pane of panes) {
  pane.tell = say;
  pane.scaled = (limits, name) => writeLegend(get("token-scale"), limits, name);
}
readAddress();
attempt(async () => {
  await move(windowOf(chosen.token));
  showAttention();
  await openRow();
});
