/**
 * Other views of a distributed cell's output: by rank, by value, or the differences between two ranks.
 *
 * The widget has no view, and its views ask nothing of the kernel. They read the merged output in the page, whose prefixes tell
 * which rank printed each line, and draw the chosen view beside it. The output itself is hidden while another view is
 * shown, and never changed, so the saved output stays the same.
 *
 * A page needs only one of these, from any world; it still works after that world has stopped.
 *
 * @import { Item, Output, Parsed } from "./views_text.js"
 */

import { make, ranksInWords, themeOf, write } from "../../frontend/js/page.js";
import { block, choose, column, control, drawn, drawnDiff, isRow, isSame, outputsOf, rove } from "./views_draw.js";
import { Tools } from "./views_find.js";
import { watchMissed } from "./views_missed.js";
import {
  byValue,
  common,
  isMixed,
  isOfRanks,
  itemsOf,
  ofNobody,
  ofRank,
  pairOf,
  parse,
  parseError,
  speakers,
} from "./views_text.js";

const VIEWS = ["merged", "by rank", "by value", "diff"];
const GAP = 12; // px between two figures
const MARGIN = 80; // px of a cell's output at most that no figure gets: the prompt's column, and the text's indent
const SLOWEST = 10; // drawing takes at most this fraction (1/10) of the browser's time

// ── one cell ─────────────────────────────────────────────────────────────────────────────────────────────

let count = 0;

/** The views of one cell's output: the chosen view, the controls, and what is drawn. */
class CellViews {
  /** @param {HTMLElement} area @param {() => void} wake  requests another look */
  constructor(area, wake) {
    this.area = area;
    this.id = `nbcomm-views-${count++}`;
    this.view = "merged";
    /** What the user has chosen; before that it is side by side where that helps. @type {boolean | undefined} */
    this.side = undefined;
    this.rank = 0;
    this.pair = [0, 1];
    this.paired = false; // whether the user has chosen the pair
    this.next = 0;
    this.offered = false;
    /** @type {Output[]} */
    this.outputs = [];
    this.state = "";
    /** @type {WeakMap<Element, Parsed>} */
    this.parsed = new WeakMap();
    this.radios = VIEWS.map((view) => {
      const radio = control("button", "radio", view);
      radio.setAttribute("role", "radio");
      radio.dataset.view = view;
      radio.addEventListener("click", () => this.choose(view));
      return radio;
    });
    const group = make("div", "radios", ...this.radios);
    group.setAttribute("role", "radiogroup");
    group.setAttribute("aria-label", "View of the ranks' output");
    group.addEventListener("keydown", (event) => rove(event, this.radios));
    this.toggle = control("button", "toggle", "side by side");
    this.toggle.addEventListener("click", () => {
      this.side = !this.isSide(outputsOf(this.area));
      this.refresh();
    });
    /** @type {Element[]} */
    this.shown = [];
    this.tools = new Tools(
      this.id,
      () => this.shown,
      () => this.refresh(),
    );
    const { copier, opener, row, said } = this.tools;
    // For the pointer only: Tab and a screen reader reach the controls themselves.
    this.handle = make("button", "handle");
    this.handle.tabIndex = -1;
    this.handle.setAttribute("aria-hidden", "true");
    this.handle.addEventListener("click", () => this.bar.classList.add("open"));
    const tray = make("div", "tray", this.toggle, copier, opener, group, row, said);
    this.bar = make("div", "nbcomm-views nbcomm-views-bar", this.handle, tray);
    this.width = 0;
    this.observer = new ResizeObserver(([{ contentRect }]) => {
      if (contentRect.width === this.width) return;
      this.width = contentRect.width;
      if (this.offered) wake();
    });
    this.observer.observe(area);
    this.head = make("div", "head");
    this.body = make("div", "body");
    this.rest = make("div", "rest");
    // The prompt's empty column aligns the view with the output, also if the notebook narrows it.
    const prompt = make("div", "jp-OutputPrompt jp-OutputArea-prompt");
    this.host = make(
      "div",
      "nbcomm-views nbcomm-views-host",
      prompt,
      make("div", "view", this.head, this.body, this.rest),
    );
    for (const el of [this.bar, this.host]) el.addEventListener("keydown", (event) => this.leave(event));
  }

  /** Escape returns to the cell, where the notebook's shortcuts work again. @param {KeyboardEvent} event */
  leave(event) {
    if (event.key !== "Escape") return;
    this.bar.classList.remove("open");
    /** @type {HTMLElement} */ (event.target).blur();
    /** @type {HTMLElement | null} */ (this.area.closest("[tabindex]"))?.focus();
  }

  /** @param {string} view */
  choose(view) {
    this.view = view;
    this.refresh();
  }

  /** Read the page and draw what has changed; do not repeat a costly drawing too soon. */
  refresh() {
    const started = performance.now();
    const outputs = this.isDistributed() ? outputsOf(this.area) : [];
    const offered = this.isOffered(outputs);
    const rich = outputs.some((output) => "key" in output);
    const side = this.isSide(outputs);
    const shown = offered && (this.view !== "merged" || (side && rich));
    this.mark(rich, side);
    this.place(offered);
    this.area.toggleAttribute("data-nbcomm-ranks", outputs.length > 0);
    if (shown) this.area.dataset.nbcommView = this.view;
    else delete this.area.dataset.nbcommView;
    this.host.hidden = !shown;
    if (shown) this.draw(outputs);
    else this.forget();
    const nodes = outputs.flatMap(({ node }) => node ?? []);
    this.shown = shown ? [this.body, this.rest] : offered ? nodes : [];
    this.tools.refresh();
    if (shown) void this.host.offsetHeight; // the layout is part of the cost, and necessary anyway
    this.next = performance.now() + SLOWEST * (performance.now() - started);
  }

  /** Whether to draw side by side. Figures in the merged view are, if they are images, for what lives is not copied
   * without need, and if two fit. @param {Output[]} outputs */
  isSide(outputs) {
    if (this.side !== undefined) return this.side;
    if (this.view !== "merged") return this.view !== "by rank";
    return isRow(outputs) && 2 * column(outputs) + GAP <= this.width - MARGIN;
  }

  /** Whether the cell is distributed, by its first line; else, as in a notebook of distributed cells, by the output. */
  isDistributed() {
    const first = this.area.closest(".jp-CodeCell")?.querySelector(".cm-content > .cm-line")?.textContent ?? "";
    if (first.startsWith("%")) return first.startsWith("%%distributed");
    const texts = this.area.querySelectorAll(".jp-OutputArea-child pre");
    return isOfRanks([...texts]);
  }

  /** Whether there is a choice of views. While the cell runs, ranks that agree may differ later.
   * @param {Output[]} outputs */
  isOffered(outputs) {
    const texts = outputs.flatMap((output) => ("text" in output ? [output.text] : []));
    const stays = this.offered && this.isRunning();
    return texts.length > 0 && (stays || isMixed(texts));
  }

  isRunning() {
    return !!this.area.closest(".jp-CodeCell")?.querySelector(".jp-InputPrompt")?.textContent?.includes("*");
  }

  /** @param {boolean} rich  whether there are figures @param {boolean} side */
  mark(rich, side) {
    const theme = themeOf(this.area);
    for (const el of [this.bar, this.host]) if (el.dataset.theme !== theme) el.dataset.theme = theme;
    choose(this.radios, (radio) => radio.dataset.view === this.view, "aria-checked");
    this.toggle.setAttribute("aria-pressed", `${side}`);
    this.toggle.hidden = !rich && !this.view.startsWith("by");
    write(this.handle, this.view === "merged" ? "views" : this.view);
    this.bar.classList.toggle("tall", this.tools.isTall);
  }

  /** Add both as last children: the notebook counts its own children from the first. @param {boolean} offered */
  place(offered) {
    const wrapper = this.area.parentElement;
    this.offered = offered;
    this.bar.hidden = !offered;
    if (!this.bar.hidden && wrapper && this.bar.parentElement !== wrapper) this.hang(wrapper);
    if (offered && this.host.parentElement !== this.area) this.area.append(this.host);
  }

  /** The controls come with the mouse. A finger also counts as a pointer that hovers, but at the place of the handle it
   * would meet what comes there. @param {HTMLElement} wrapper */
  hang(wrapper) {
    wrapper.append(this.bar);
    wrapper.addEventListener("pointerenter", ({ pointerType }) => {
      if (pointerType === "mouse") this.bar.classList.add("near");
    });
    wrapper.addEventListener("pointerleave", () => this.bar.classList.remove("near"));
    this.bar.classList.toggle("near", wrapper.matches(":hover") && matchMedia("(hover: hover)").matches);
  }

  forget() {
    if (!this.state) return;
    this.state = "";
    this.outputs = [];
    for (const el of [this.head, this.body, this.rest]) el.replaceChildren();
  }

  /** @param {Output[]} outputs */
  draw(outputs) {
    const side = this.isSide(outputs);
    const state = [this.view, side, this.rank, this.paired, ...this.pair].join();
    if (state === this.state && isSame(outputs, this.outputs)) return; // a new drawing would lose a selection in it
    const other = this.state.split(",")[0] !== this.view;
    [this.state, this.outputs] = [state, outputs];
    const items = itemsOf(outputs, (output) => this.parse(output));
    const ranks = speakers(items);
    // Not for another view: a rank without output so far would lose its turn to faster ranks.
    if (this.view === "by rank" && !ranks.includes(this.rank)) this.rank = ranks[0] ?? 0;
    if (other) this.head.replaceChildren();
    this.body.removeAttribute("role");
    this.body.removeAttribute("aria-labelledby");
    this.body.className = side && this.view.startsWith("by") ? "body columns" : "body";
    this.body.style.setProperty("--column", `${column(outputs)}px`);
    this.body.replaceChildren(...this.content(items, ranks, side));
    const rest = this.view === "merged" ? [] : drawn(ofNobody(items));
    this.rest.replaceChildren(...rest);
    this.rest.hidden = !rest.length;
  }

  /** @param {import("./views_text.js").TextOutput} output */
  parse({ text, node, isError }) {
    if (isError) return parseError(text);
    const parsed = parse(text, node && this.parsed.get(node));
    if (node) this.parsed.set(node, parsed);
    return parsed;
  }

  /** @param {Item[]} items @param {number[]} ranks @param {boolean} side @returns {Element[]} */
  content(items, ranks, side) {
    if (!ranks.length && this.view !== "merged") {
      this.head.replaceChildren();
      return []; // a running cell has cleared its ranks' output
    }
    if (this.view === "by value") {
      const values = byValue(items);
      const same = values.length > 1 ? common(values.map((one) => one.items)) : [];
      return values.map((one, i) => block(ranksInWords(one.ranks), drawn(one.items, { common: same[i] })));
    }
    if (this.view === "diff") {
      this.paired &&= this.pair.every((rank) => ranks.includes(rank));
      if (!this.paired) this.pair = pairOf(byValue(items), this.pair);
      this.drawPair(ranks);
      return drawnDiff(items, this.pair[0], this.pair[1], side);
    }
    if (this.view === "merged") return drawn(items, { prefixes: true, side });
    if (side) {
      this.head.replaceChildren();
      return ranks.map((rank) => block(ranksInWords([rank]), drawn(ofRank(items, rank))));
    }
    this.drawTabs(ranks);
    return drawn(ofRank(items, this.rank));
  }

  /** @param {number[]} ranks */
  drawTabs(ranks) {
    const key = `${ranks}`;
    if (this.head.dataset.ranks !== key || !this.head.firstChild) {
      const tabs = ranks.map((rank) => {
        const tab = control("button", "tab", ranks.length > 8 ? `${rank}` : `rank ${rank}`);
        tab.setAttribute("role", "tab");
        tab.setAttribute("aria-label", `rank ${rank}`);
        tab.setAttribute("aria-controls", `${this.id}-body`);
        tab.id = `${this.id}-${rank}`;
        tab.dataset.rank = `${rank}`;
        tab.addEventListener("click", () => {
          this.rank = rank;
          this.refresh();
        });
        return tab;
      });
      const list = make("div", "tabs", ...tabs);
      list.setAttribute("role", "tablist");
      list.setAttribute("aria-label", "ranks");
      list.addEventListener("keydown", (event) => rove(event, tabs));
      this.replaceHead(key, list);
    }
    const tabs = /** @type {HTMLElement[]} */ ([...this.head.querySelectorAll("[role=tab]")]);
    choose(tabs, (tab) => Number(tab.dataset.rank) === this.rank, "aria-selected");
    this.body.id = `${this.id}-body`;
    this.body.setAttribute("role", "tabpanel");
    this.body.setAttribute("aria-labelledby", `${this.id}-${this.rank}`);
  }

  /** @param {number[]} ranks */
  drawPair(ranks) {
    const key = `${ranks}`;
    if (this.head.dataset.ranks !== key || !this.head.firstChild) {
      const selects = ["from", "to"].map((word, i) => {
        const select = /** @type {HTMLSelectElement} */ (control("select", "rank"));
        select.setAttribute("aria-label", `${word} rank`);
        for (const rank of ranks) select.add(new Option(`rank ${rank}`, `${rank}`));
        select.addEventListener("change", () => {
          this.pair[i] = Number(select.value);
          this.paired = true;
          this.refresh();
        });
        return select;
      });
      this.replaceHead(key, make("div", "pair", selects[0], make("span", "quiet", "→"), selects[1]));
    }
    this.head.querySelectorAll("select").forEach((select, i) => {
      select.value = `${this.pair[i]}`;
    });
  }

  /** Keep the keyboard focus when a rank is added. @param {string} key @param {Element} content */
  replaceHead(key, content) {
    const active = /** @type {HTMLElement | null} */ (document.activeElement);
    const had = active && this.head.contains(active) ? active.dataset.rank : undefined;
    this.head.dataset.ranks = key;
    this.head.replaceChildren(content);
    if (had) /** @type {HTMLElement | null} */ (this.head.querySelector(`[data-rank="${had}"]`))?.focus();
  }
}

// ── the page ─────────────────────────────────────────────────────────────────────────────────────────────

/** All cells of the page, and those to read before the next paint. */
class Page {
  constructor() {
    /** @type {WeakMap<Element, CellViews>} */
    this.cells = new WeakMap();
    /** @type {Set<HTMLElement>} */
    this.stale = new Set();
    this.waiting = false;
    const observer = new MutationObserver((records) => this.note(records));
    observer.observe(document.body, { childList: true, subtree: true, characterData: true });
    const theme = new MutationObserver(() => this.find(document.body));
    document.addEventListener("pointerdown", ({ target }) => {
      for (const bar of document.querySelectorAll(".nbcomm-views-bar.open"))
        if (!bar.parentElement?.contains(/** @type {Node} */ (target))) bar.classList.remove("open");
    });
    theme.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-name", "data-jp-theme-light"] });
    this.find(document.body);
  }

  /** @param {MutationRecord[]} records */
  note(records) {
    for (const { target, addedNodes } of records) {
      const el = target instanceof Element ? target : target.parentElement;
      if (!el || el.closest(".nbcomm-views")) continue;
      const cell = el.closest(".jp-CodeCell");
      if (cell) this.find(cell);
      else for (const node of addedNodes) if (node instanceof Element) this.find(node);
    }
  }

  /** @param {Element} root */
  find(root) {
    for (const area of root.querySelectorAll(".jp-Cell-outputArea")) this.stale.add(/** @type {HTMLElement} */ (area));
    this.wake();
  }

  /** @param {HTMLElement} area */
  ask(area) {
    this.stale.add(area);
    this.wake();
  }

  wake() {
    if (this.waiting || !this.stale.size) return;
    this.waiting = true;
    requestAnimationFrame(() => this.look());
  }

  look() {
    this.waiting = false;
    const now = performance.now();
    for (const area of [...this.stale]) {
      const known = this.cells.get(area) ?? new CellViews(area, () => this.ask(area));
      if (now < known.next && area.isConnected) continue;
      this.stale.delete(area);
      this.cells.set(area, known);
      if (area.isConnected) known.refresh();
    }
    this.wake(); // for cells whose last drawing was costly and recent
  }
}

const KEY = Symbol.for("nbcomm.views");

/** The first world in the page opens the views; they need nothing of it, and outlive it. Each says what its page missed.
 * @param {{model: any}} context */
function initialize({ model }) {
  const page = /** @type {any} */ (globalThis);
  page[KEY] ??= new Page();
  watchMissed(model);
}

export default { initialize };
