// @ts-check
/**
 * Live pages. One stream tells that the state has changed; each element with `data-refresh` is then read
 * again from the page's own address and replaced.
 */
"use strict";

/** Longest wait between two attempts to connect, in milliseconds. */
const LONGEST_WAIT = 15000;
/** Shortest time between two refreshes, in milliseconds. */
const PACE = 1000;

/** @type {string} */
let shown = "";
let wait = 1000;
let isRefreshing = false;
let isDue = false;

/**
 * Show or hide the notice that the connection was lost.
 * @param {boolean} isLost
 */
function showConnection(isLost) {
  const notice = document.getElementById("connection");
  if (notice) notice.hidden = !isLost;
}

/** True if a refresh would take something out of the reader's hands. */
function isBusy() {
  const live = document.querySelector("[data-refresh]");
  const chosen = document.getSelection();
  const isSelecting = Boolean(chosen && !chosen.isCollapsed && live && live.contains(chosen.anchorNode));
  return document.hidden || isSelecting || Boolean(live && live.querySelector("details[open], input:checked"));
}

/** Read the page again and replace its live parts. */
async function refresh() {
  if (isRefreshing || isBusy()) {
    isDue = true;
    return;
  }
  isRefreshing = true;
  isDue = false;
  try {
    const answer = await fetch(location.href, { headers: { Accept: "text/html" }, redirect: "manual" });
    if (answer.type === "opaqueredirect") {
      location.reload();
      return;
    }
    if (answer.ok) replace(new DOMParser().parseFromString(await answer.text(), "text/html"));
    else isDue = true;
  } catch {
    isDue = true;
  } finally {
    isRefreshing = false;
  }
}

/**
 * Replace the live parts of this page by those of another.
 * @param {Document} other
 */
function replace(other) {
  const focused = document.activeElement;
  const address = focused instanceof HTMLAnchorElement ? focused.getAttribute("href") : null;
  for (const part of document.querySelectorAll("[data-refresh]")) {
    const next = part.id ? other.getElementById(part.id) : null;
    if (!next) continue;
    for (const kept of part.querySelectorAll("[data-keep][id]")) {
      const place = next.querySelector(`#${CSS.escape(kept.id)}`);
      if (place) place.replaceWith(kept);
    }
    part.replaceWith(next);
    // @ts-ignore: the global of htmx
    if (window.htmx) window.htmx.process(next);
  }
  if (address) {
    const again = document.querySelector(`[data-refresh] a[href="${CSS.escape(address)}"]`);
    if (again instanceof HTMLElement) again.focus({ preventScroll: true });
  }
}

/**
 * Follow the stream at an address, and connect again whenever it ends.
 * @param {string} address
 */
function follow(address) {
  const source = new EventSource(address);
  source.addEventListener("state", (event) => {
    const state = /** @type {MessageEvent<string>} */ (event).data;
    showConnection(false);
    wait = 1000;
    // the page is as new as the first message
    if (shown && state !== shown) isDue = true;
    shown = state;
  });
  source.addEventListener("error", () => {
    showConnection(true);
    if (source.readyState !== EventSource.CLOSED) return;
    setTimeout(() => follow(address), wait);
    wait = Math.min(wait * 2, LONGEST_WAIT);
  });
  addEventListener("pagehide", () => source.close(), { once: true });
}

/**
 * Let a box in the head of a table check or clear all boxes of its name in the same form.
 * @param {Event} event
 */
function checkAll(event) {
  const head = event.target;
  if (!(head instanceof HTMLInputElement) || !head.dataset.checkAll || !head.form) return;
  for (const box of head.form.querySelectorAll(`input[type=checkbox][name="${head.dataset.checkAll}"]`)) {
    /** @type {HTMLInputElement} */ (box).checked = head.checked;
  }
}

/** Begin, once the page is there. */
function start() {
  document.addEventListener("change", checkAll);
  const address = document.body.dataset.live;
  if (address) {
    follow(address);
    setInterval(() => {
      if (isDue) void refresh();
    }, PACE);
  }
  addEventListener("pageshow", (event) => {
    if (event.persisted) location.reload();
  });
}

start();
