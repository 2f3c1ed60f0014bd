/**
 * The explorer's elements: buttons, choices, cells.
 */
/** @import { Cell } from "./explorer_words.js" */
import { make, ranksInWords } from "../../frontend/js/page.js";
import { stripes, whose } from "./explorer_words.js";

// ── elements ─────────────────────────────────────────────────────────────────────────────────────────────

/**
 * Let an element take the keyboard. Else the notebook takes typed letters for its shortcuts ("d d" deletes the cell).
 * The attribute that prevents it must be on the focusable element itself.
 *
 * @template {HTMLElement} T @param {T} el @returns {T}
 */
export function key(el) {
  el.setAttribute("data-lm-suppress-shortcuts", "true");
  return el;
}

/** @param {string} text @param {string} name @param {() => void} press @returns {HTMLButtonElement} */
export function button(text, name, press) {
  const el = /** @type {HTMLButtonElement} */ (key(make("button", "", text)));
  el.type = "button";
  if (name) el.setAttribute("aria-label", name);
  el.addEventListener("click", press);
  return el;
}

/** @param {HTMLElement} el @param {boolean} shown */
export const show = (el, shown) => {
  el.hidden = !shown;
};

/** A select element with its label. */
export class Choice {
  /** @param {string} label @param {(value: string) => void} chosen */
  constructor(label, chosen) {
    this.select = /** @type {HTMLSelectElement} */ (key(make("select", "")));
    const name = /** @type {HTMLLabelElement} */ (make("label", "", label));
    name.htmlFor = this.select.id = `nbcomm-choice-${Math.random().toString(36).slice(2)}`;
    this.root = make("div", "choice", name, this.select);
    this.select.addEventListener("change", () => chosen(this.select.value));
  }

  /** @param {[string, string][]} options  values and texts @param {string} value */
  put(options, value) {
    const old = [...this.select.options].map((option) => option.value + option.text).join("\n");
    if (options.map(([v, text]) => v + text).join("\n") !== old) {
      this.select.replaceChildren(...options.map(([v, text]) => new Option(text, v)));
    }
    this.select.value = value;
    show(this.root, options.length > 0);
  }
}

/** @param {number} from @param {number} to @returns {[string, string][]} */
export const numbers = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => [`${from + i}`, `${from + i}`]);
/** @param {string[]} texts @returns {[string, string][]} */
export const plain = (texts) => texts.map((text) => [text, text]);

/** One value: its contributors' colours around a plate with the text, and their ranks below it, because colour must not
 * be the only sign. @param {Cell | null} cell @param {string} label @param {boolean} fresh */
export function chip(cell, label, fresh) {
  if (!cell) {
    const empty = make("span", "cell empty", make("span", "plate", "·"));
    empty.title = `${label}: empty`;
    return empty;
  }
  const el = make("span", "cell", make("span", "plate", cell.text), make("span", "who", whose(cell.sources)));
  el.style.setProperty("--stripes", stripes(cell.sources));
  el.classList.toggle("fresh", fresh);
  el.title = `${label}: ${cell.text}${cell.sources.length ? `, from ${ranksInWords(cell.sources)}` : ""}`;
  return el;
}
