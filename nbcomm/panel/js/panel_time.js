/**
 * How the ranks spent the time of the last cell, and of earlier ones.
 */
/** @import { Bar, Past, Timeline, World } from "./panel_words.js" */
/** @import { Live } from "./panel.js" */
import { make, many, write } from "../../frontend/js/page.js";
import { button, mark, reachable, Section } from "./panel_parts.js";
import { barLine, hasWaited, isWhole, pastLine, shifted, spanLine, took, zoomed } from "./panel_story.js";
import { brief, KINDS, percent, WASTE } from "./panel_words.js";

const STEP = 2; // zoom factor of one press of a button or a key
const NOTCH = 1.25; // zoom factor of one turn of the wheel

/** A bar for each rank, which can be zoomed, and a table of the last cells. */
export class TimelineSection extends Section {
  /** @param {Live} live */
  constructor(live) {
    super("timeline", "Time", live);
    /** The visible stretch of the cell, as parts of the whole. @type {[number, number]} */
    this.view = [0, 1];
    /** The tab stop within the bars: a rank and one of its stretches. @type {[number, number]} */
    this.at = [0, 0];
    /** @type {Timeline | null} */
    this.timeline = null;
    this.whole = 1;
    /** @type {[Timeline | null, Past[]]} */
    this.seen = [null, []];
    this.told = "";
    this.versions = 0;
    this.note = make("div", "limited");
    this.bars = make("div", "bars");
    this.tip = make("div", "tip");
    mark(this.tip, "aria-hidden", "true"); // each stretch has the text as its label
    this.list = make("div", "list");
    mark(this.list, "role", "list");
    this.bars.append(this.list, this.tip);
    this.axis = make("div", "axis", make("span", "from"), make("span", "until"));
    this.out = button("zoom out", "−");
    this.in = button("zoom in", "+");
    this.all = button("zoom all", "whole cell");
    mark(this.out, "aria-label", "zoom out of the bars");
    mark(this.in, "aria-label", "zoom into the bars");
    this.past = make("div", "past");
    this.inside.append(
      this.note,
      this.bars,
      this.axis,
      make(
        "div",
        "legend",
        ...KINDS.map((kind) =>
          make("span", "entry", Object.assign(make("span", "swatch"), { ariaHidden: "true" }), ` ${kind}`),
        ),
        make("span", "zoom", this.out, this.in, this.all),
      ),
      this.past,
    );
    for (const [i, el] of [...this.inside.querySelectorAll(".swatch")].entries()) mark(el, "data-kind", KINDS[i]);
    this.listen();
  }

  listen() {
    this.out.addEventListener("click", () => this.zoom(1 / STEP));
    this.in.addEventListener("click", () => this.zoom(STEP));
    this.all.addEventListener("click", () => this.look([0, 1]));
    this.bars.addEventListener("pointerover", (event) => this.tell(/** @type {Element} */ (event.target)));
    this.bars.addEventListener("pointerleave", () => this.tell(document.activeElement));
    this.bars.addEventListener("focusin", (event) => this.tell(/** @type {Element} */ (event.target)));
    this.bars.addEventListener("focusout", () => this.tell(null));
    this.bars.addEventListener("keydown", (event) => this.key(/** @type {KeyboardEvent} */ (event)));
    this.bars.addEventListener("wheel", (event) => this.wheel(/** @type {WheelEvent} */ (event)), { passive: false });
  }

  /** @param {World} world */
  draw({ timeline, past }) {
    const about = timeline && `${timeline.cell ? `In [${timeline.cell}]` : "the call"} ${took(timeline)}`;
    const due = this.due(!!timeline?.bars.length, about ?? "", () => this.version(timeline, past));
    if (!due || !timeline) return;
    if (timeline.cell !== this.timeline?.cell || timeline.seconds < this.timeline.seconds) {
      this.view = [0, 1];
      this.at = [timeline.bars[0].rank, 0];
    }
    this.timeline = timeline;
    const { bars, of, seconds } = timeline;
    this.note.hidden = bars.length === of;
    const which = bars.some(hasWaited)
      ? "those that waited least and those that waited longest"
      : "the quickest and the slowest";
    write(this.note, `${bars.length} of ${of} ranks: ${which}`);
    this.whole = Math.max(seconds, ...bars.map((bar) => bar.spans.at(-1)?.end ?? 0)) || 1;
    this.fill();
    this.past.hidden = past.length < 2;
    if (past.length > 1) this.past.replaceChildren(make("div", "line", pastLine(past)), this.table(past));
    const scroller = this.past.querySelector(".scroller");
    if (scroller) scroller.scrollLeft = scroller.scrollWidth;
  }

  /** Count changes. Each keyframe repeats the same data, and nothing changes between two of them.
   * @param {Timeline | null} timeline @param {Past[]} past */
  version(timeline, past) {
    if (this.seen[0] === timeline && this.seen[1] === past) return this.versions;
    this.seen = [timeline, past];
    const text = JSON.stringify(this.seen);
    if (text !== this.told) this.versions += 1;
    this.told = text;
    return this.versions;
  }

  /** Draw the visible parts of the bars. */
  fill() {
    const held = this.list.contains(document.activeElement);
    this.list.replaceChildren(...(this.timeline?.bars ?? []).map((bar) => this.bar(bar)));
    const stop = this.stretch(...this.at) ?? /** @type {HTMLElement | null} */ (this.list.querySelector(".span"));
    if (stop) stop.tabIndex = 0;
    if (held) stop?.focus();
    else this.tell(null);
    const [from, until] = this.view;
    write(/** @type {Element} */ (this.axis.firstElementChild), from ? brief(from * this.whole) : "0");
    write(/** @type {Element} */ (this.axis.lastElementChild), brief(until * this.whole));
    for (const el of [this.out, this.all]) mark(el, "aria-disabled", `${isWhole(this.view)}`);
  }

  /** @param {Bar} bar */
  bar(bar) {
    const [from, until] = this.view.map((part) => part * this.whole);
    const stretches = bar.spans.map((span, i) => {
      if (span.end < from || span.start > until) return null;
      const el = reachable(make("span", "span"), `stretch ${bar.rank} ${i}`);
      const [start, end] = [Math.max(span.start, from), Math.min(span.end, until)];
      mark(el, "data-kind", KINDS[span.kind]);
      mark(el, "role", "img");
      mark(el, "aria-label", spanLine(bar.rank, span));
      el.tabIndex = -1;
      el.style.left = `${((start - from) / (until - from)) * 100}%`;
      el.style.width = `${((end - start) / (until - from)) * 100}%`;
      return el;
    });
    const track = make("div", "track", ...stretches.filter((el) => el !== null));
    mark(track, "role", "group");
    mark(track, "aria-label", barLine(bar));
    const [who, waited] = [
      make("span", "who", `rank ${bar.rank}`),
      make("span", "waited", hasWaited(bar) ? `waited ${brief(bar.totals[1])}` : ""),
    ];
    for (const el of [who, waited]) mark(el, "aria-hidden", "true"); // the bar's label has both
    const row = make("div", "row", who, track, waited);
    mark(row, "role", "listitem");
    return row;
  }

  /** @param {number} rank @param {number} i @returns {HTMLElement | null} */
  stretch(rank, i) {
    return this.list.querySelector(`[data-key="stretch ${rank} ${i}"]`);
  }

  /** Describe the stretch under the mouse or with the keyboard focus below the bars. @param {Element | null} target */
  tell(target) {
    const el = /** @type {HTMLElement | null} */ (target?.closest(".nbcomm-live .span") ?? null);
    this.tip.hidden = !el || !this.list.contains(el);
    if (this.tip.hidden || !el) return;
    write(this.tip, el.getAttribute("aria-label") ?? "");
    const [place, own] = [this.bars.getBoundingClientRect(), el.getBoundingClientRect()];
    const left = (own.left + own.right - this.tip.offsetWidth) / 2 - place.left;
    this.tip.style.left = `${Math.max(0, Math.min(left, place.width - this.tip.offsetWidth))}px`;
    this.tip.style.top = `${own.bottom - place.top + 3}px`;
  }

  // Zoom.

  /** @param {[number, number]} view */
  look(view) {
    this.view = view;
    this.fill();
  }

  /** @param {number} factor @param {number} [at]  the fixed point, as a part of the whole cell */
  zoom(factor, at = (this.view[0] + this.view[1]) / 2) {
    this.look(zoomed(this.view, factor, at));
  }

  /** Zoom by the wheel if the bars have the focus or Ctrl is held; else the page scrolls. @param {WheelEvent} event */
  wheel(event) {
    if (!event.ctrlKey && !event.metaKey && !this.list.contains(document.activeElement)) return;
    const track = this.list.querySelector(".track")?.getBoundingClientRect();
    if (!track || (event.deltaY > 0 && isWhole(this.view))) return;
    event.preventDefault();
    const part = Math.max(0, Math.min(1, (event.clientX - track.left) / track.width));
    this.zoom(event.deltaY < 0 ? NOTCH : 1 / NOTCH, this.view[0] + part * (this.view[1] - this.view[0]));
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const { dataset } = /** @type {HTMLElement} */ (event.target);
    const [, rank, i] = (dataset.key ?? "").split(" ").map(Number);
    const bars = this.timeline?.bars ?? [];
    const row = bars.findIndex((bar) => bar.rank === rank);
    const span = bars[row]?.spans[i];
    if (!span) return;
    const middle =
      (Math.max(span.start, this.view[0] * this.whole) + Math.min(span.end, this.view[1] * this.whole)) / 2;
    const there = (/** @type {Bar} */ bar) => bar.spans.findIndex(({ end }) => end > middle);
    const [above, below] = [bars[row - 1], bars[row + 1]];
    /** @type {Record<string, () => unknown>} */
    const does = {
      ArrowRight: () => this.go(bars[row], i + 1),
      ArrowLeft: () => this.go(bars[row], i - 1),
      ArrowUp: () => above && this.go(above, there(above)),
      ArrowDown: () => below && this.go(below, there(below)),
      Home: () => this.go(bars[row], 0),
      End: () => this.go(bars[row], bars[row].spans.length - 1),
      "+": () => this.zoom(STEP, middle / this.whole),
      "=": () => this.zoom(STEP, middle / this.whole),
      "-": () => this.zoom(1 / STEP, middle / this.whole),
      0: () => this.look([0, 1]),
    };
    if (!isWhole(this.view)) does.Escape = does[0];
    if (!(event.key in does) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    this.at = [rank, i];
    does[event.key]();
  }

  /** @param {Bar} bar @param {number} i */
  go(bar, i) {
    const span = bar.spans[Math.max(0, Math.min(i, bar.spans.length - 1))];
    this.at = [bar.rank, bar.spans.indexOf(span)];
    this.look(shifted(this.view, span.start / this.whole, span.end / this.whole));
  }

  // The earlier cells.

  /** @param {Past[]} past */
  table(past) {
    const row = (/** @type {string} */ name, /** @type {(each: Past) => HTMLElement} */ cell) => {
      const th = make("th", "who", name);
      mark(th, "scope", "row");
      return make("tr", "", th, ...past.map(cell));
    };
    const corner = make("th", "who", "cell");
    const heads = past.map(({ cell }) => make("th", "rung", cell ? `In [${cell}]` : "call"));
    for (const th of [corner, ...heads]) mark(th, "scope", "col");
    const scroller = reachable(
      make(
        "div",
        "scroller",
        make(
          "table",
          "",
          make("caption", "nbcomm-spoken", `The last ${many(past.length, "cell")}`),
          make("thead", "", make("tr", "", corner, ...heads)),
          make(
            "tbody",
            "",
            row("took", ({ seconds }) => make("td", "", brief(seconds))),
            row("waiting", ({ waiting }) => {
              const td = make("td", "share", percent(waiting));
              mark(td, "data-waste", `${waiting > WASTE}`);
              return td;
            }),
            row("came last", ({ late }) => make("td", "", late < 0 ? "–" : `rank ${late}`)),
          ),
        ),
      ),
      "past",
    );
    scroller.tabIndex = 0;
    mark(scroller, "role", "region");
    mark(scroller, "aria-label", "the last cells");
    return scroller;
  }
}
