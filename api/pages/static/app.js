// @ts-check
/**
 * Live pages, boxes of tables, and uploads. One stream tells the digest of the state. If the page shows another
 * one, htmx reads `#live` again from the page's own address.
 */
"use strict";

/** Path of the service, which a proxy may have behind a prefix; it ends with a slash. */
const ROOT = new URL("..", /** @type {HTMLScriptElement} */ (document.currentScript).src).pathname;
/** Time before the next attempt if the browser gave up the stream, in milliseconds. */
const RETRY = 3000;
/** Time between two looks whether the page is out of date, in milliseconds. */
const PACE = 1000;
/** After a refresh, the page waits so many times as long as it took: a slow page is refreshed less often. */
const REST = 4;

/** @type {EventSource | null} */
let stream = null;
let newest = "";
let begun = 0;
/** Time before which no refresh begins. */
let earliest = 0;
/** @type {string | null} */
let focused = null;

/** The part of the page that is refreshed. */
function livePart() {
  return document.getElementById("live");
}

/** Follow the state. A hidden page frees its connection, since a browser has six for all pages of a site. */
function follow() {
  const address = document.body.dataset.live;
  if (!address || document.hidden || stream) return;
  const opened = new EventSource(address);
  stream = opened;
  opened.addEventListener("state", (event) => {
    newest = event.data;
    showConnection(true);
  });
  opened.addEventListener("error", () => {
    showConnection(false);
    if (opened.readyState === EventSource.CLOSED && stream === opened) {
      stream = null;
      newest = "unknown"; // a refresh leads to the sign-in page if the key is no longer valid
      setTimeout(follow, RETRY);
    }
  });
}

/** Close the stream. */
function unfollow() {
  stream?.close();
  stream = null;
}

/**
 * Show or hide the notice that the connection was lost.
 * @param {boolean} isOpen
 */
function showConnection(isOpen) {
  const notice = document.getElementById("connection");
  if (notice) notice.hidden = isOpen;
}

/**
 * True if a refresh would take something out of the reader's hands.
 * @param {HTMLElement} live
 */
function isInUse(live) {
  const chosen = document.getSelection();
  const isSelecting = Boolean(chosen && !chosen.isCollapsed && live.contains(chosen.anchorNode));
  return isSelecting || Boolean(live.querySelector(".confirm[open], input:checked"));
}

/** Refresh the page if it is out of date. */
function refresh() {
  const live = livePart();
  if (!live || document.hidden || !newest || live.dataset.state === newest || isInUse(live)) return;
  if (performance.now() < earliest) return;
  begun = performance.now();
  earliest = Infinity; // until it ends
  // @ts-ignore: the global of htmx
  window.htmx.trigger(live, "changed");
}

/** Rest after a refresh. */
function rest() {
  const now = performance.now();
  earliest = now + REST * (now - begun);
}

/** Remember the focused link before a refresh. */
function keepFocus() {
  const active = document.activeElement;
  focused = active && livePart()?.contains(active) ? active.getAttribute("href") : null;
}

/** Focus the same link after a refresh. */
function restoreFocus() {
  if (!focused) return;
  const link = livePart()?.querySelector(`a[href="${CSS.escape(focused)}"]`);
  if (link instanceof HTMLElement) link.focus({ preventScroll: true });
}

/**
 * Let the box in the head of a table check or clear all boxes of its form.
 * @param {Event} event
 */
function checkAll(event) {
  const head = event.target;
  if (!(head instanceof HTMLInputElement) || !head.matches("[data-check-all]")) return;
  for (const box of head.form?.querySelectorAll("tbody input[type=checkbox]") ?? []) {
    /** @type {HTMLInputElement} */ (box).checked = head.checked;
  }
}

/**
 * Upload the chosen file, and write its id into the field that the input names.
 * @param {Event} event
 */
async function upload(event) {
  const input = event.target;
  if (!(input instanceof HTMLInputElement) || !input.dataset.uploadTo || !input.files?.length) return;
  const field = /** @type {HTMLInputElement} */ (input.form?.elements.namedItem(input.dataset.uploadTo));
  const status = /** @type {HTMLElement} */ (document.getElementById("upload-status"));
  const body = new FormData();
  body.set("file", input.files[0]);
  status.textContent = "Uploading …";
  const headers = { Accept: "application/json" };
  const answer = await fetch(`${ROOT}v1/files`, { method: "POST", body, headers }).catch(() => null);
  const found = await answer?.json().catch(() => null);
  if (answer?.ok && found) {
    status.textContent = `${found.filename} is stored as ${found.id}.`;
    field.value = found.id;
    field.dispatchEvent(new Event("input", { bubbles: true })); // estimates the job again
  } else status.textContent = found?.detail ?? "The service does not answer.";
}

document.addEventListener("change", checkAll);
document.addEventListener("change", upload);
document.addEventListener("htmx:afterRequest", rest);
document.addEventListener("htmx:beforeSwap", keepFocus);
document.addEventListener("htmx:afterSettle", restoreFocus);
document.addEventListener("visibilitychange", () => (document.hidden ? unfollow() : follow()));
addEventListener("pagehide", unfollow);
addEventListener("pageshow", follow);
setInterval(refresh, PACE);
// on a narrow screen the page's own link may be beyond the edge
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
follow();
