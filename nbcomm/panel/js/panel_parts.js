/**
 * The parts of the panel other than the ranks: its buttons, and the ladder.
 */
/** @import { Ladder, World } from "./panel_words.js" */
/** @import { Live } from "./panel.js" */
import { fold, make, write } from "../../frontend/js/page.js";
import { isUnderWay, ladderLine, ladderRows, troubled, usable } from "./panel_story.js";
import { ASKS, DOING, GONE, IDLE, MARKS, ORDER, TIPS } from "./panel_words.js";

// ── drawing ──────────────────────────────────────────────────────────────────────────────────────────────

/** @param {Element} el @param {string} name @param {string} value */
export function mark(el, name, value) {
  if (el.getAttribute(name) !== value) el.setAttribute(name, value);
}

/** Let the keyboard reach an element. Without the attribute the notebook takes typed letters for its shortcuts, and
 * "d d" deletes the cell. It must be on the focusable element itself; stopping the event does not help in Notebook 7.
 * @template {Element} T @param {T} el @param {string} key  identifies it in a new table @returns {T} */
export function reachable(el, key) {
  el.setAttribute("data-lm-suppress-shortcuts", "true");
  el.setAttribute("data-key", key);
  return el;
}

/** @param {string} key @param {string} text */
export function button(key, text) {
  const el = /** @type {HTMLButtonElement} */ (reachable(make("button", "button", text), key));
  el.type = "button";
  return el;
}

/** The buttons of line 1, and the question and the answer under line 2. */
export class Controls {
  /** @param {Live} live */
  constructor(live) {
    this.live = live;
    /** @type {Map<string, HTMLButtonElement>} */
    this.buttons = new Map();
    this.group = make("span", "presses");
    mark(this.group, "role", "group");
    mark(this.group, "aria-label", "controls of this world");
    this.toggle = button("toggle", "⋯");
    this.bar = make("span", "controls", this.group, this.toggle);
    this.question = make("span", "question");
    this.yes = button("yes", "");
    this.no = button("no", "No");
    this.ask = make("div", "ask", this.question, this.yes, this.no);
    mark(this.ask, "role", "group");
    this.said = make("div", "said");
  }

  /** @param {World} world @param {number} silent  seconds without a message */
  draw(world, silent) {
    const { meta, ended } = world;
    const { pressed, asking, controls } = this.live;
    const over = ended || this.live.cut; // nobody would hear a click
    this.lay(meta.actions ?? []);
    this.bar.hidden = !this.buttons.size;
    this.group.hidden = !controls;
    mark(this.toggle, "aria-expanded", `${controls}`);
    mark(this.toggle, "aria-label", controls ? "hide controls" : "show controls");
    mark(this.toggle, "title", controls ? "hide controls" : "show controls");
    const busy = isUnderWay(pressed);
    for (const [action, el] of this.buttons) {
      const its = busy && pressed?.action === action;
      const idle = !usable(world, action, silent, this.live.busy);
      const why = this.live.cut ? GONE : idle ? IDLE[action] : "";
      mark(el, "title", [TIPS[action] ?? action, why].filter(Boolean).join("; "));
      el.disabled = over;
      write(el, its ? (DOING[action] ?? `${action}…`) : action);
      mark(el, "aria-busy", `${its}`);
      // Not `disabled`, which would remove the keyboard focus.
      mark(el, "aria-disabled", `${over || idle || (busy && (its || action !== "interrupt"))}`);
    }
    this.ask.hidden = !asking || over;
    if (asking) {
      write(this.question, ASKS[asking]);
      mark(this.ask, "aria-label", ASKS[asking]);
      write(this.yes, `Yes, ${asking}`);
    }
    write(this.said, pressed && !busy ? pressed.text : "");
    this.said.hidden = !this.said.textContent;
    mark(this.said, "data-ok", `${pressed?.ok}`);
  }

  /** @param {string[]} actions */
  lay(actions) {
    if (actions.join() === [...this.buttons.keys()].toSorted(byOrder).join()) return;
    this.buttons = new Map(actions.toSorted(byOrder).map((action) => [action, button(`press ${action}`, action)]));
    // Destructive buttons are set apart.
    for (const [action, el] of this.buttons) mark(el, "data-asks", `${action in ASKS}`);
    this.group.replaceChildren(...this.buttons.values());
  }
}

/** @param {string} a @param {string} b */
const byOrder = (a, b) => (ORDER.indexOf(a) + 1 || 99) - (ORDER.indexOf(b) + 1 || 99);

/** A section that opens and closes in every place where the panel is drawn. */
export class Section {
  /** @param {"ladder" | "timeline"} name @param {string} title @param {Live} live */
  constructor(name, title, live) {
    this.name = name;
    this.live = live;
    this.line = make("span", "line");
    this.inside = make("div", "inside");
    this.root = /** @type {HTMLDetailsElement} */ (
      make(
        "details",
        name,
        // A screen reader reads what stands on one line without a space as one word.
        reachable(make("summary", "summary", make("b", "heading", `${title}:`), " ", this.line), `open ${name}`),
        this.inside,
      )
    );
    this.drawn = "";
  }

  /** Whether to draw its content now. @param {boolean} there @param {string} line @param {() => unknown} key */
  due(there, line, key) {
    this.root.hidden = !there;
    if (!there) return false;
    write(this.line, line);
    if (this.root.open !== this.live.open[this.name]) this.root.open = this.live.open[this.name];
    if (!this.root.open) return false;
    const text = JSON.stringify(key());
    if (text === this.drawn) return false;
    this.drawn = text;
    return true;
  }
}

/** The progress of each rank: a column for each collective, a row for each rank. */
export class LadderSection extends Section {
  /** @param {Live} live */
  constructor(live) {
    super("ladder", "Collectives", live);
    this.scroller = reachable(make("div", "scroller"), "ladder");
    this.scroller.tabIndex = 0;
    mark(this.scroller, "role", "region");
    mark(this.scroller, "aria-label", "sequence ladder");
    this.legend = make("div", "legend");
    this.atEnd = true;
    this.scroller.addEventListener("scroll", () => {
      this.atEnd = this.scroller.scrollLeft + this.scroller.clientWidth >= this.scroller.scrollWidth - 2;
    });
    this.inside.append(this.scroller, this.legend);
  }

  /** @param {World} world @param {number} now @param {string} said  the panel's sentence, which is not repeated */
  draw(world, now, said) {
    const { ladder } = world;
    const last = ladder?.rungs.at(-1);
    const bad = troubled(world, now);
    const of = ladder && ladder.group !== "world" ? ` of ${ladder.group}` : "";
    const wrong = bad ? ladderLine(ladder) : "";
    const end = `${of ? `${of.trim()}: ` : ""}the last is ${last?.name} #${last?.seq}`;
    const line = wrong && wrong !== said ? wrong : end;
    const due = this.due(!!last, line, () => [ladder, bad]);
    if (ladder && due) this.fill(ladder, of, bad);
    // Keep the newest in sight, also in a page that becomes narrower, unless the user has scrolled back.
    if (ladder && this.root.open && this.atEnd) this.scroller.scrollLeft = this.scroller.scrollWidth;
  }

  /** @param {Ladder} ladder @param {string} of @param {boolean} bad */
  fill(ladder, of, bad) {
    this.scroller.replaceChildren(this.table(ladder, of));
    mark(this.scroller, "data-trouble", `${bad}`);
    const used = Object.entries(MARKS).filter(
      ([mark_, [glyph]]) => glyph && ladder.rungs.some(({ marks }) => marks.includes(mark_)),
    );
    this.legend.replaceChildren(
      ...used.map(([mark_, [glyph, word]]) => make("span", "entry", this.glyph(mark_, glyph), ` ${word}`)),
    );
  }

  /** @param {Ladder} ladder @param {string} of */
  table(ladder, of) {
    const heads = ladder.rungs.map(({ seq, name, line }) => {
      const th = make("th", "rung", make("span", "seq", `#${seq}`), " ", make("span", "op", name));
      mark(th, "scope", "col");
      th.title = line || `${name} #${seq}`;
      return th;
    });
    const rows = ladderRows(ladder).map(({ ranks, marks }) => {
      const th = make("th", "who", `${ranks.length > 1 ? "ranks" : "rank"} ${fold(ranks)}`);
      mark(th, "scope", "row");
      return make(
        "tr",
        "",
        th,
        ...marks.map((its) => {
          const [glyph, word] = MARKS[its] ?? ["?", "unknown"];
          const td = make("td", "", this.glyph(its, glyph), make("span", "nbcomm-spoken", word));
          td.title = word;
          return td;
        }),
      );
    });
    const corner = make("th", "who", "rank");
    mark(corner, "scope", "col");
    return make(
      "table",
      "",
      make("caption", "nbcomm-spoken", `How far each rank is in the collectives${of}`),
      make("thead", "", make("tr", "", corner, ...heads)),
      make("tbody", "", ...rows),
    );
  }

  /** @param {string} its @param {string} text */
  glyph(its, text) {
    const el = make("span", "sign", text);
    el.dataset.mark = its;
    mark(el, "aria-hidden", "true");
    return el;
  }
}
