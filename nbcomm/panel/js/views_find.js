/**
 * Copies what a cell's view shows, and searches it. Matches are marked with the browser's highlights, so the output in
 * the page does not change.
 *
 * @typedef {{node: Text, start: number, end: number}} Part
 * @typedef {{text: string, parts: Part[]}} Line  one visible line, and its nodes in the page
 */

import { make, REFUSED, selectAll, toClipboard, write } from "../../frontend/js/page.js";
import { control } from "./views_draw.js";

const MARKED = 20_000; // how many lines around the current one are marked
const COPIED = 2000; // ms for which the button shows that it has copied
const TEXT = "pre, .change"; // elements in which a newline character ends a line
const BLOCKS = `${TEXT}, figcaption, summary, tr, li, p, h1, h2, h3, h4, h5, h6, div`;

// ── visible lines ────────────────────────────────────────────────────────────────────────────────────────

/** The lines that elements show; rows of a table are lines, too. Folded lines are included if requested.
 * @param {Element[]} roots @param {{folded?: boolean}} options @returns {Line[]} */
export function linesOf(roots, { folded = true } = {}) {
  /** @type {Line[]} */
  const lines = [];
  for (const root of roots) {
    /** @type {Line | undefined} */
    let line;
    let block = /** @type {Element | null} */ (null);
    let cell = /** @type {Element | null} */ (null);
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let at = walker.nextNode(); at; at = walker.nextNode()) {
      const node = /** @type {Text} */ (at);
      const parent = /** @type {Element} */ (node.parentElement);
      if (parent.closest("script, style, [hidden]")) continue;
      if (!folded && parent.closest("details:not([open]) > :not(summary)")) continue;
      const own = parent.closest(BLOCKS);
      if (own !== block) line = undefined;
      block = own;
      if (own?.matches(TEXT)) {
        line = readText(node, line, lines);
      } else if (node.data.trim()) {
        const inside = parent.closest("td, th");
        if (line && inside !== cell) line.text += "\t";
        line ??= added(lines);
        cell = inside;
        line.text += node.data.trim().replace(/\s+/g, " ");
        line.parts.push({ node, start: 0, end: node.length });
      }
    }
  }
  return lines;
}

/** @param {Line[]} lines */
function added(lines) {
  const line = /** @type {Line} */ ({ text: "", parts: [] });
  lines.push(line);
  return line;
}

/** @param {Text} node @param {Line | undefined} line  which the text continues @param {Line[]} lines  gets new lines
 * @returns {Line | undefined}  the line that has not ended */
function readText(node, line, lines) {
  const text = node.data;
  let last = line;
  for (let start = 0; start < text.length; ) {
    const found = text.indexOf("\n", start);
    const end = found < 0 ? text.length : found;
    last ??= added(lines);
    if (end > start) {
      last.text += text.slice(start, end);
      last.parts.push({ node, start, end });
    }
    if (found >= 0) last = undefined;
    start = end + 1;
  }
  return last;
}

/** @param {Line} line */
function rangeOf({ parts }) {
  const [first, last] = [parts[0], parts[parts.length - 1]];
  const range = document.createRange();
  range.setStart(first.node, first.start);
  range.setEnd(last.node, last.end);
  return range;
}

/** Scroll a range into view, in all scrolling elements around it. @param {Range} range @param {Element} within */
function bring(range, within) {
  for (let el = within.parentElement; el; el = el.parentElement) {
    if (el.scrollHeight <= el.clientHeight || !/auto|scroll/.test(getComputedStyle(el).overflowY)) continue;
    const [box, frame] = [range.getBoundingClientRect(), el.getBoundingClientRect()];
    if (box.top < frame.top || box.bottom > frame.bottom) {
      el.scrollTop += box.top - frame.top - el.clientHeight / 2;
    }
  }
}

// ── marking ──────────────────────────────────────────────────────────────────────────────────────────────

/** The page's highlight of this name; none if the browser has no highlights. @param {string} name */
function highlight(name) {
  if (!globalThis.CSS?.highlights) return undefined;
  const known = CSS.highlights.get(name);
  if (known) return known;
  const made = new Highlight();
  CSS.highlights.set(name, made);
  if (name === CURRENT) made.priority = 1;
  return made;
}

const FOUND = "nbcomm-found";
const CURRENT = "nbcomm-current";

// ── the controls ─────────────────────────────────────────────────────────────────────────────────────────

/** The buttons "copy" and "find" of one cell, and the row for the search. */
export class Tools {
  /** @param {string} id @param {() => Element[]} shown  the visible elements @param {() => void} resized */
  constructor(id, shown, resized) {
    this.shown = shown;
    this.resized = resized;
    /** @type {Line[]} */
    this.lines = [];
    /** @type {Line[]} */
    this.found = [];
    this.at = 0;
    /** @type {AbstractRange[]} */
    this.ranges = [];
    this.timer = 0;
    this.copier = control("button", "tool copier", "copy");
    this.copier.title = "Copy what is shown, as plain text";
    this.copier.addEventListener("click", () => this.copy());
    this.opener = control("button", "tool", "find");
    this.opener.title = "Find lines in what is shown";
    this.opener.setAttribute("aria-controls", `${id}-find`);
    this.opener.addEventListener("click", () => this.open(!this.isOpen));
    this.field = /** @type {HTMLInputElement} */ (control("input", "field"));
    this.field.type = "search";
    this.field.placeholder = "find in this view";
    this.field.setAttribute("aria-label", "Find lines in this view");
    this.field.addEventListener("input", () => this.search());
    this.field.addEventListener("keydown", (event) => this.press(event));
    this.count = make("span", "count");
    this.count.setAttribute("role", "status");
    const [before, after] = [control("button", "tool", "↑"), control("button", "tool", "↓")];
    before.setAttribute("aria-label", "previous line");
    after.setAttribute("aria-label", "next line");
    before.addEventListener("click", () => this.step(-1));
    after.addEventListener("click", () => this.step(1));
    this.row = make("div", "find", this.field, this.count, before, after);
    this.row.id = `${id}-find`;
    this.row.setAttribute("role", "search");
    this.row.addEventListener("keydown", (event) => this.leave(event));
    this.said = make("div", "said");
    this.said.setAttribute("role", "status");
    this.open(false, false);
  }

  /** Whether there is more than one row of controls. */
  get isTall() {
    return this.isOpen || this.said.classList.contains("refused");
  }

  get isOpen() {
    return this.row.hidden !== true;
  }

  // ── copying

  async copy() {
    const text = linesOf(this.shown(), { folded: false }).map((line) => `${line.text}\n`);
    const done = await toClipboard(text.join(""));
    const roots = this.shown();
    if (!done && roots.length) selectAll(roots[0], roots[roots.length - 1]);
    write(this.said, done ? "copied" : REFUSED);
    write(this.copier, done ? "copied" : "copy");
    const was = this.said.classList.contains("refused");
    this.said.classList.toggle("refused", !done);
    if (was === done) this.resized();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      write(this.copier, "copy");
      if (done) write(this.said, "");
    }, COPIED);
  }

  // ── searching

  /** @param {boolean} open @param {boolean} [told] */
  open(open, told = true) {
    this.row.hidden = !open;
    this.opener.setAttribute("aria-expanded", `${open}`);
    if (!told) return;
    this.said.classList.remove("refused");
    this.resized(); // this searches for the text, too
    (open ? this.field : this.opener).focus({ preventScroll: true });
    if (open) this.field.select();
  }

  /** @param {KeyboardEvent} event */
  press(event) {
    if (event.key !== "Enter" || event.isComposing) return;
    event.preventDefault();
    event.stopPropagation();
    this.step(event.shiftKey ? -1 : 1);
  }

  /** Escape ends the search; a second one returns to the cell. @param {KeyboardEvent} event */
  leave(event) {
    if (event.key !== "Escape") return;
    event.preventDefault();
    event.stopPropagation();
    this.open(false);
  }

  /** The visible output has changed. */
  refresh() {
    this.lines = this.isOpen ? linesOf(this.shown()) : [];
    this.look();
    this.mark();
  }

  /** The text to search for has changed. */
  search() {
    this.at = 0;
    this.look();
    this.step(0);
  }

  look() {
    const text = this.isOpen ? this.field.value.toLowerCase() : "";
    this.found = text ? this.lines.filter((line) => line.text.toLowerCase().includes(text)) : [];
    this.at = Math.min(this.at, Math.max(0, this.found.length - 1));
    write(this.count, !text ? "" : this.found.length ? `${this.at + 1} of ${this.found.length}` : "no line");
  }

  /** @param {number} by */
  step(by) {
    const all = this.found.length;
    if (all) {
      this.at = (this.at + by + all) % all;
      write(this.count, `${this.at + 1} of ${all}`);
      const line = this.found[this.at];
      const within = /** @type {Element} */ (line.parts[0].node.parentElement);
      const details = within.closest("details");
      if (details) details.open = true;
      bring(rangeOf(line), within);
    }
    this.mark();
  }

  mark() {
    const [found, current] = [highlight(FOUND), highlight(CURRENT)];
    for (const range of this.ranges) [found, current].forEach((marks) => void marks?.delete(range));
    const first = Math.max(0, this.at - MARKED / 2);
    this.ranges = this.found.slice(first, first + MARKED).map((line, i) => {
      const range = new StaticRange(rangeOf(line));
      (first + i === this.at ? current : found)?.add(range);
      return range;
    });
  }
}
