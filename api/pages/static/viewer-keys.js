// @ts-check
/** Keys of the viewer. */

/**
 * Act on a key, unless the reader types, or a button has the key.
 * @param {KeyboardEvent} event
 * @param {Record<string, (event: KeyboardEvent) => void>} keys key -> act
 */
export function press(event, keys) {
  const at = /** @type {HTMLElement} */ (event.target);
  const isTyping = at.closest("input, select, textarea, dialog, nav");
  const isActing = at.closest("button, a, summary") && (event.key === "Enter" || event.key === " ");
  if (isTyping || isActing || event.ctrlKey || event.metaKey || event.altKey) return;
  const act = keys[event.key];
  if (act) {
    event.preventDefault();
    act(event);
  }
}
