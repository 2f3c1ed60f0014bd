/**
 * Shared by all that nbcomm draws in a page: ranks in words, elements, and whether the page is dark.
 */

/** @param {number[]} ranks  `[0, 1, 2, 5]` → `"0-2,5"` */
export function fold(ranks) {
  /** @type {number[][]} */
  const runs = [];
  for (const rank of [...new Set(ranks)].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && rank === last[1] + 1) last[1] = rank;
    else runs.push([rank, rank]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(",");
}

/** @param {number[]} ranks  `"rank 3"`, `"ranks 0-2"` */
export const ranksInWords = (ranks) => `rank${new Set(ranks).size > 1 ? "s" : ""} ${fold(ranks)}`;

/** @param {number} n @param {string} word */
export const many = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

/** @param {string} tag @param {string} name @param {(Node | string)[]} children */
export function make(tag, name, ...children) {
  const el = document.createElement(tag);
  if (name) el.className = name;
  el.append(...children);
  return el;
}

/** Write a text only if it differs: at ten messages a second most of the page stays untouched.
 * @param {Element} el @param {string} text */
export function write(el, text) {
  if (el.textContent !== text) el.textContent = text;
}

/** @param {string} colour  as in getComputedStyle @returns {boolean | null}  null: transparent, look at the parent */
export function isDark(colour) {
  const [r, g, b, a = 1] = (colour.match(/[\d.]+/g) ?? []).map(Number);
  if (b === undefined || a === 0) return null;
  return 0.2126 * r + 0.7152 * g + 0.0722 * b < 128;
}

/** @param {Element} host @returns {string} the colour behind it, for any name of the notebook's theme */
export function behind(host) {
  for (let el = /** @type {Element | null} */ (host); el; el = el.parentElement) {
    const colour = getComputedStyle(el).backgroundColor;
    if (isDark(colour) !== null) return colour;
  }
  return "rgb(255, 255, 255)";
}

/** @param {Element} host */
export const themeOf = (host) => (isDark(behind(host)) ? "dark" : "light");

export const REFUSED = "The browser did not let nbcomm copy. The text is selected now: copy it with Ctrl+C or ⌘C.";

/** Select all between two elements, so that the keyboard can copy it. @param {Element} first @param {Element} last */
export function selectAll(first, last) {
  const range = document.createRange();
  range.setStartBefore(first);
  range.setEndAfter(last);
  getSelection()?.removeAllRanges();
  getSelection()?.addRange(range);
}

/** Copy a text to the clipboard; over plain http, and in some frames, the browser has only the old interface.
 * @param {string} text @returns {Promise<boolean>} whether it was copied */
export async function toClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copyBySelection(text);
  }
}

/** @param {string} text */
function copyBySelection(text) {
  const active = /** @type {HTMLElement | null} */ (document.activeElement);
  const box = /** @type {HTMLTextAreaElement} */ (make("textarea", ""));
  box.style.cssText = "position: fixed; top: 0; left: 0; width: 1px; height: 1px; opacity: 0";
  box.value = text;
  document.body.append(box);
  box.select();
  try {
    return document.execCommand("copy");
  } catch {
    return false;
  } finally {
    box.remove();
    active?.focus({ preventScroll: true });
  }
}

/**
 * The export of a widget without a view. A page loads its module once for each widget, so it has one life.
 *
 * @template {{selector: string, close: () => void, hydrate: (el: HTMLElement) => any}} Life
 * @param {(model: any) => Life} begin
 */
export function withoutView(begin) {
  /** @type {Life | undefined} */
  let life;
  return {
    /** @param {{model: any}} context */
    initialize({ model }) {
      life = begin(model);
      hearWhenLate(model).catch(() => {}); // another front end's models are made otherwise
      return () => life?.close();
    },
    /** For a front end that shows widgets, but not the elements beside them. @param {{el: HTMLElement}} context */
    render({ el }) {
      if (life) el.classList.add(life.selector.slice(1)); // it is added to the page later, and found then
      return life?.hydrate(el);
    },
  };
}

/** A message that says nothing. */
const NOTHING = { content: { data: { method: "" } } };

/**
 * Hear the kernel also where the module came late: on a page that is busy for 2 s, as one that loads a long notebook,
 * anywidget (0.11) gives a model up, and no message ever reaches it. Then take messages from the link, past anywidget,
 * and ask for what was missed.
 *
 * @param {any} model  what anywidget lends to a module, which is not the model itself
 */
export async function hearWhenLate(model) {
  const itself = await model.widget_manager.get_model(model.get("key"));
  try {
    await itself._handle_comm_msg(NOTHING);
  } catch {
    const ofIpywidgets = Object.getPrototypeOf(Object.getPrototypeOf(itself));
    itself.comm.on_msg(ofIpywidgets._handle_comm_msg.bind(itself));
    model.send({ kind: "missed" });
  }
}
