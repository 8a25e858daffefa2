// @ts-check
/** The session viewer: what is chosen, and what happens when the choice changes. */

import { beside, minus } from "./viewer-align.js";
import { field, isSigned, state, unitOf, writeAddress, writeFields } from "./viewer-choice.js";
import { limitsOf, writeLegend } from "./viewer-colours.js";
import { Refused } from "./viewer-data.js";
import { save } from "./viewer-export.js";
import { columnOf, firstHook, hooksOf, nextLayer, nextPoint } from "./viewer-hooks.js";
import { press } from "./viewer-keys.js";
import { Pane, WINDOW, parts, windowOf } from "./viewer-pane.js";
import { showRow } from "./viewer-row.js";

/** @typedef {import("./viewer-colours.js").Limits} Limits */
/** @template {Element} T @param {string} selector @returns {T} */
const get = (selector) => /** @type {T} */ (document.querySelector(selector));

const main = /** @type {HTMLElement} */ (get("#viewer"));
const controls = /** @type {HTMLFormElement} */ (get("#viewer-controls"));
const status = /** @type {HTMLElement} */ (get("#viewer-status"));
const panel = /** @type {HTMLElement} */ (get("#viewer-row"));
const help = /** @type {HTMLDialogElement} */ (get("#viewer-help"));
/** @type {Pane[]} */
let panes = [];
/** @type {{limits: Limits, heatLimits: Limits}} */
let scales = { limits: limitsOf([], false), heatLimits: limitsOf([], false) };
let turn = 0;
let rowTurn = 0;
let moves = 0;

/** @param {string} text */
const say = (text) => (status.textContent = text);

/** What to read; a channel beyond the width of the hook is its last one. */
function choice() {
  const info = panes[0].session.hooks[state.hook];
  if (info) {
    state.channel = Math.min(state.channel, info.shape[1] - 1);
    field("channel").max = String(info.shape[1] - 1);
  }
  return { of: state.of, channel: state.channel, vector: state.vector };
}
const heatChoice = () => (state.of === "logprob" ? { ...choice(), of: "norm" } : choice());
const isDifference = () => state.difference && panes.length === 2;

/** Read and draw tokens, then the heatmap. */
async function show() {
  turn += 1;
  const own = turn;
  const isOld = () => own !== turn;
  choice();
  writeFields();
  writeAddress();
  say("Reading …");
  try {
    const hook = state.of === "logprob" ? "" : state.hook;
    const read = panes.map((pane) => {
      const has = state.of === "logprob" || Boolean(pane.session.hooks[state.hook]);
      const none = Promise.resolve(new Float32Array(pane.stop - pane.start).fill(NaN));
      return has ? pane.source.values([hook], choice(), pane.start, pane.stop)[0] : none;
    });
    const found = await Promise.all(read);
    if (isOld()) return;
    panes.forEach((pane, i) => (pane.values = found[i]));
    if (isDifference()) panes[1].values = minus(panes, found[1], found[0], state.align);
    const shown = isDifference() ? [panes[1].values] : found;
    scales.limits = limitsOf(shown, isSigned(state.of) || isDifference());
    paintTokens();
    performance.mark("viewer-tokens");
    await readHeat(isOld);
    if (!isOld()) say(panes.map((pane) => `${pane.stop - pane.start} tokens`).join(" and ") + " shown.");
  } catch (error) {
    if (!isOld()) fail(error);
  }
}

/** @param {unknown} error */
function fail(error) {
  say(error instanceof Refused ? error.message : "The service does not answer. Reload the page to try again.");
  status.classList.add("trouble");
}

/** Read the layers one after another; each is drawn when it is there. @param {() => boolean} isOld */
async function readHeat(isOld) {
  /** @type {Promise<void>[]} */
  const waits = [];
  /** @type {(Float32Array | null)[][]} */
  const all = panes.map(() => []);
  let isWaiting = false;
  const draw = () => {
    isWaiting = false;
    if (isOld()) return;
    const heats = all.map((heat) => [...heat]);
    if (isDifference()) {
      heats[1] = panes[1].hooks.map((hook, row) => {
        const base = heats[0][panes[0].hooks.indexOf(hook)] ?? null;
        const values = heats[1][row];
        return values ? minus(panes, values, base, state.align) : null;
      });
    }
    panes.forEach((pane, i) => (pane.heat = heats[i]));
    const drawn = (isDifference() ? heats.slice(1) : heats).flat().filter((values) => values !== null);
    scales.heatLimits = limitsOf(drawn, isSigned(heatChoice().of) || isDifference());
    paintHeat();
  };
  panes.forEach((pane, i) => {
    pane.hooks = columnOf(pane, state.hook);
    all[i] = pane.hooks.map(() => null);
    pane.source.values(pane.hooks, heatChoice(), pane.start, pane.stop).forEach((values, row) => {
      waits.push(
        values.then((ready) => {
          all[i][row] = ready;
          if (!isWaiting) {
            isWaiting = true;
            requestAnimationFrame(() => isWaiting && draw());
          }
        }),
      );
    });
  });
  await Promise.all(waits);
  if (isWaiting || !waits.length) draw();
  if (!isOld()) performance.mark("viewer-heat");
}

function paintTokens() {
  status.classList.remove("trouble");
  const hook = state.of === "logprob" ? "log probability" : state.hook;
  panes.forEach((pane, i) => {
    const limits = isDifference() && i === 0 ? limitsOf([pane.values], isSigned(state.of)) : scales.limits;
    pane.colourTokens(limits, hook);
  });
  writeLegend(get("#token-legend"), scales.limits, `${unitOf(state.of, isDifference())} · ${hook}`);
  select();
}

function paintHeat() {
  panes.forEach((pane, i) => {
    const limits = isDifference() && i === 0 ? limitsOf(pane.heat.flatMap((v) => v ?? []), isSigned(heatChoice().of)) : scales.heatLimits;
    pane.drawHeat(limits, tokenIn(pane), state.hook);
    pane.canvas.setAttribute("aria-label", `Heatmap: ${unitOf(heatChoice().of, isDifference())} of ${pane.hooks.length} layers by ${pane.stop - pane.start} tokens`);
  });
  writeLegend(get("#heat-legend"), scales.heatLimits, `${unitOf(heatChoice().of, isDifference())} · ${parts(state.hook).point}, all layers`);
}

/** The chosen token in a session. @param {Pane} pane */
function tokenIn(pane) {
  return state.token === null ? null : beside(panes[0], pane, state.token, state.align);
}

/** Mark the chosen token and say what it is. */
function select() {
  for (const pane of panes) {
    pane.mark(tokenIn(pane));
  }
  paintHeat();
}

/** @param {number} token in the first session @param {string} [hook] */
async function choose(token, hook) {
  const [first] = panes;
  state.token = Math.min(Math.max(0, token), first.total - 1);
  const isElsewhere = state.token < first.start || state.token >= first.stop;
  if (isElsewhere && !(await move(state.token))) return;
  if (hook && hook !== state.hook) {
    state.hook = hook;
    void show();
  } else if (isElsewhere) void show();
  else {
    select();
    writeAddress();
    say(first.describe(state.token, state.hook, first.values));
  }
  void openRow(panes[0]);
}

/** @param {Pane} pane */
async function openRow(pane) {
  const token = tokenIn(pane);
  if (token === null) return;
  rowTurn += 1;
  const own = rowTurn;
  const act = {
    channel: (/** @type {number} */ number) => change({ of: "channel", channel: number }),
    token: (/** @type {number} */ other) => chooseIn(pane, other, null),
  };
  panel.hidden = false;
  try {
    await showRow(panel, pane, { token, hook: state.hook }, act, () => own === rowTurn);
  } catch (error) {
    if (own === rowTurn) fail(error);
  }
}

/** @param {Pane} pane @param {number} token @param {number | null} row */
function chooseIn(pane, token, row) {
  const inFirst = beside(pane, panes[0], token, state.align);
  if (inFirst === null) {
    say(`Token ${token} of the second session has no counterpart in the first.`);
    return;
  }
  void choose(inFirst, row === null ? undefined : pane.hooks[row]).then(() => {
    if (pane !== panes[0]) void openRow(pane);
  });
}

/** Show the window of a token. @param {number} token @returns {Promise<boolean>} false if it failed or came too late */
async function move(token) {
  moves += 1;
  const own = moves;
  try {
    const read = await Promise.all(panes.map((pane) => pane.read(token)));
    if (own !== moves) return false;
    panes.forEach((pane, i) => pane.writeTokens(read[i]));
  } catch (error) {
    fail(error);
    return false;
  }
  markDifferences();
  const [first] = panes;
  /** @type {HTMLElement} */ (get("#viewer-window")).hidden = first.total <= WINDOW;
  /** @type {HTMLElement} */ (get("#viewer-range")).textContent = `tokens ${first.start}–${first.stop - 1} of ${first.total}`;
  return true;
}

/** Underline tokens of the second session that differ from those beside them, as far as both are in view. */
function markDifferences() {
  const [first, second] = panes;
  second?.markDifferences((token) => {
    const other = beside(second, first, token, state.align);
    const id = other === null ? null : first.idOf(other);
    return id !== undefined && id !== second.idOf(token);
  });
}

/** @param {Partial<typeof state>} changes */
function change(changes) {
  Object.assign(state, changes);
  if ("align" in changes) markDifferences();
  void show();
}

/** @param {number} by layers, upwards */
function moveLayer(by) {
  const next = nextLayer(panes[0], state.hook, by);
  if (next) {
    change({ hook: next });
    if (state.token !== null) void openRow(panes[0]);
  }
}

/** Key -> act. @type {Record<string, (event: KeyboardEvent) => void>} */
const KEYS = {
  ArrowLeft: (event) => choose((state.token ?? 0) - (event.shiftKey ? 10 : 1)),
  ArrowRight: (event) => choose((state.token ?? -1) + (event.shiftKey ? 10 : 1)),
  Home: () => choose(0),
  End: () => choose(panes[0].total - 1),
  ArrowUp: () => moveLayer(1),
  ArrowDown: () => moveLayer(-1),
  "]": () => change({ hook: nextPoint(panes[0], state.hook, 1) }),
  "[": () => change({ hook: nextPoint(panes[0], state.hook, -1) }),
  n: () => change({ of: "norm" }),
  c: () => change({ of: "channel" }),
  p: () => state.vector && change({ of: "projection" }),
  l: () => panes[0].tokens?.has_logprobs && change({ of: "logprob" }),
  d: () => panes.length === 2 && change({ difference: !state.difference }),
  a: () => panes.length === 2 && change({ align: state.align === "turn" ? "token" : "turn" }),
  ",": () => step(-1),
  ".": () => step(1),
  e: () => /** @type {HTMLElement} */ (get("[data-export]")).focus(),
  Enter: () => panel.focus(),
  "?": () => help.showModal(),
};

/** @param {number} by */
function step(by) {
  const start = panes[0].start + by * WINDOW;
  if (start < 0 || start >= panes[0].total) return;
  void move(start).then((isThere) => (isThere ? show() : undefined));
}

function listen() {
  controls.addEventListener("submit", (event) => event.preventDefault());
  controls.addEventListener("change", (event) => {
    const one = /** @type {HTMLInputElement} */ (event.target);
    if (one.name === "channel") change({ channel: Math.max(0, Math.floor(Number(one.value) || 0)), of: "channel" });
    else if (one.name === "difference") change({ difference: one.checked });
    else if (one.name === "vector") change({ vector: one.value, of: one.value ? "projection" : "norm" });
    else change({ [one.name]: one.value });
  });
  document.addEventListener("keydown", (event) => panes.length && press(event, KEYS));
  document.querySelectorAll("[data-export]").forEach((button) => {
    button.addEventListener("click", () => void exported(/** @type {HTMLElement} */ (button).dataset.export || "csv"));
  });
  document.querySelectorAll("[data-step]").forEach((button) => {
    button.addEventListener("click", () => step(Number(/** @type {HTMLElement} */ (button).dataset.step)));
  });
  /** @type {HTMLElement} */ (get("#viewer-keys")).addEventListener("click", () => help.showModal());
  new ResizeObserver(() => panes.length && paintHeat()).observe(main);
}

/** @param {string} form */
async function exported(form) {
  const model = panes[0].session.model;
  const hook = state.of === "logprob" ? "log probability" : state.hook;
  const view = { panes, title: `${model} · ${unitOf(state.of, isDifference())} · ${hook}`, unit: unitOf(state.of, isDifference()), hook, ...scales, heatUnit: unitOf(heatChoice().of, isDifference()) };
  try {
    await save(view, form);
    say(`Saved as ${form.toUpperCase()}.`);
  } catch (error) {
    fail(error);
  }
}

/** Choose the hook of the address, else one of the middle layers. */
function pickHook() {
  const hooks = hooksOf(panes[0]);
  for (const hook of hooks) field("hook").add(new Option(hook, hook));
  if (hooks.includes(state.hook)) return;
  state.hook = firstHook(hooks);
}

/** Offer the kinds of numbers that the sessions have. */
function offer() {
  const has = panes.every((pane) => pane.tokens?.has_logprobs);
  /** @type {HTMLOptionElement} */ (controls.querySelector("option[value=logprob]")).disabled = !has;
  const known = Array.from(field("of").options, (one) => (one.disabled ? "" : one.value));
  if (!known.includes(state.of) || (state.of === "projection" && !state.vector)) state.of = "norm";
  const reason = panes[0].tokens?.no_texts;
  if (reason) /** @type {HTMLElement} */ (get("#viewer-notice")).textContent = `Tokens are shown as ids: ${reason}.`;
}

async function begin() {
  const roots = /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(".pane"));
  const opened = Array.from(roots, (root) => new Pane(root, root.dataset.session || "", chooseIn));
  panes = opened;
  pickHook();
  if (!state.hook) {
    say("This session has no rows of tokens to show.");
    return;
  }
  if (state.token !== null) state.token = Math.min(state.token, panes[0].total - 1);
  for (const pane of panes) {
    // the numbers are read while the texts are made
    const first = windowOf(Math.min(state.token ?? 0, pane.total - 1));
    const isReady = state.of === "norm" && pane.session.hooks[state.hook];
    const stop = Math.min(pane.total, first + WINDOW);
    if (isReady) void pane.source.values([state.hook], choice(), first, stop)[0].catch(() => undefined);
  }
  if (!(await move(state.token ?? 0))) return;
  offer();
  listen();
  await show();
  if (state.token !== null) void openRow(panes[0]);
}

void begin();
