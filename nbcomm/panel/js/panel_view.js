/**
 * One place in the page where the panel is drawn.
 */
/** @import { Rank, World } from "./panel_words.js" */
/** @import { Live } from "./panel.js" */
import { behind, isDark, make, many, ranksInWords, write } from "../../frontend/js/page.js";
import { isLost, lostLine } from "./panel_link.js";
import { Controls, LadderSection, mark, reachable } from "./panel_parts.js";
import { blames, sharedErrors, victims } from "./panel_story.js";
import { TimelineSection } from "./panel_time.js";
import {
  byNode,
  CARDS,
  counts,
  duration,
  endsSoon,
  figures,
  GLYPHS,
  gpu,
  jobLine,
  mood,
  nodeOf,
  oneLine,
  place,
  sentence,
  sizeLine,
} from "./panel_words.js";

const ERRORS = 3; // the most shared errors that are shown

/** One place in the page where the panel is drawn; the table is only hidden. */
export class View {
  /** @param {Element} host @param {Live} live */
  constructor(host, live) {
    this.host = host;
    this.live = live;
    this.table = [...host.children];
    /** @type {Map<number, HTMLElement>} */
    this.items = new Map();
    /** The rank that is the tab stop here. @type {number | null} */
    this.stop = null;
    this.layout = "";
    this.counts = this.shared = "";
    this.title = make("b", "title");
    this.size = make("span", "");
    this.job = make("span", "job");
    this.chips = make("span", "chips");
    this.headline = make("div", "headline");
    this.controls = new Controls(live);
    this.list = make("div", "ranks");
    this.detail = make("div", "detail");
    this.errors = make("div", "errors");
    this.ladder = new LadderSection(live);
    this.timeline = new TimelineSection(live);
    this.root = make(
      "section",
      "nbcomm-live",
      make("div", "head", this.title, make("span", "size", this.size, this.job), this.chips, this.controls.bar),
      this.headline,
      this.controls.ask,
      this.controls.said,
      this.list,
      this.detail,
      this.errors,
      this.ladder.root,
      this.timeline.root,
    );
    this.root.setAttribute("aria-label", "nbcomm panel");
    this.list.setAttribute("role", "listbox");
    this.list.setAttribute("aria-label", "ranks");
    this.listen();
    for (const child of this.table) /** @type {HTMLElement} */ (child).hidden = true;
    host.append(this.root);
  }

  listen() {
    this.list.addEventListener("keydown", (event) => this.key(/** @type {KeyboardEvent} */ (event)));
    this.list.addEventListener("pointerover", (event) => this.choose(event));
    this.root.addEventListener("keydown", (event) => this.escape(/** @type {KeyboardEvent} */ (event)));
    this.root.addEventListener("click", (event) => this.click(event));
    this.root.addEventListener("focusin", (event) => {
      const key = /** @type {HTMLElement} */ (event.target).dataset.key;
      if (key) this.live.focused = { host: this.host, key };
      this.choose(event);
    });
    // The event is also sent when the element is removed while the host is in place: look after the removal.
    this.root.addEventListener("focusout", () =>
      queueMicrotask(() => {
        if (this.host.isConnected && !this.host.contains(document.activeElement)) this.live.focused = null;
      }),
    );
  }

  /** @param {World} world @param {number} now  by the kernel's clock @param {number} silent  seconds */
  draw(world, now, silent) {
    this.lay(world);
    this.rove();
    const dead = isLost(world, silent, this.live.cut);
    const colour = behind(this.host);
    mark(this.root, "data-theme", isDark(colour) ? "dark" : "light");
    if (this.root.style.getPropertyValue("--behind") !== colour) this.root.style.setProperty("--behind", colour);
    mark(this.root, "data-news", dead ? "none" : world.ended ? "ended" : "live");
    write(this.title, world.meta.title);
    write(this.size, world.job ? `${sizeLine(world)} · ` : sizeLine(world));
    this.job.hidden = !world.job;
    if (world.job) {
      write(this.job, jobLine(world.job, now));
      mark(this.job, "data-soon", `${endsSoon(world.job, now)}`);
    }
    this.drawCounts(world);
    const said = world.headline || sentence(world.ranks, now);
    write(this.headline, dead ? lostLine(world, silent, this.live.cut) : said);
    this.controls.draw(world, silent);
    this.drawRanks(world, now, said);
    this.ladder.draw(world, now, said);
    this.timeline.draw(world);
  }

  /** @param {World} world @param {number} now @param {string} said  the panel's sentence */
  drawRanks(world, now, said) {
    const [blamed, waited, shared] = [blames(world, now), victims(world, now), sharedErrors(world.ranks)];
    const size = world.ranks.length;
    const several = new Set(world.ranks.map((r) => r.node)).size > 1;
    for (const its of world.ranks) {
      const blame = blamed.get(its.rank) ?? "";
      const victim = !blame && waited.has(its.rank);
      const error = shared.has(oneLine(its.error)) ? "" : its.error;
      const rank = { ...its, error, note: victim ? "" : its.note }; // the culprits' cards show what it waits for
      const el = this.items.get(rank.rank);
      if (el) mark(el, "data-victim", `${victim}`);
      if (el && size > CARDS) this.drawTile(el, rank, now, blame);
      else if (el) this.drawCard(el, rank, now, blame, several);
      if (el) mark(el, "aria-label", [place(rank), blame, status(rank, now, blame)].filter(Boolean).join(" · "));
      if (rank.rank === this.live.chosen && size > CARDS)
        write(this.detail, [place(rank), blame, status(rank, now, blame)].filter(Boolean).join(" · "));
    }
    this.drawErrors([...shared].filter(([error]) => !said.includes(error)));
  }

  /** Show errors that several ranks have once, below the ranks. @param {[string, number[]][]} shared */
  drawErrors(shared) {
    const text = JSON.stringify(shared);
    this.errors.hidden = !shared.length;
    if (text === this.shared) return;
    this.shared = text;
    const lines = shared.map(([error, ranks]) =>
      make("div", "shared", make("span", "who", ranksInWords(ranks)), " ", make("span", "error", error)),
    );
    const more = lines.length - ERRORS;
    if (more > 0) lines.splice(ERRORS, more, make("div", "shared", `and ${many(more, "other error")}`));
    this.errors.replaceChildren(...lines);
  }

  /** Build the elements; again only when ranks are added, removed or moved. @param {World} world */
  lay({ ranks }) {
    const layout = ranks.map((r) => `${r.rank}@${r.node}${r.host}`).join();
    if (layout === this.layout) return;
    this.layout = layout;
    this.items.clear();
    const small = ranks.length > CARDS;
    this.root.classList.toggle("many", small);
    this.list.dataset.columns = `${ranks.length > 2 ? 4 : ranks.length}`;
    const nodes = small ? byNode(ranks) : [];
    this.list.replaceChildren(
      ...(small
        ? nodes.map(([node, some]) => {
            const called = nodes.length > 1 ? nodeOf(some[0]) : `node ${node}`;
            const name = make("span", "name", called);
            name.title = called; // where it is cut
            const group = make("div", "node", name, make("div", "tiles", ...some.map((r) => this.item(r, tile()))));
            group.setAttribute("role", "group");
            group.setAttribute("aria-label", called);
            return group;
          })
        : ranks.map((r) => this.item(r, card()))),
    );
    this.stop = null;
  }

  /** @param {Rank} rank @param {HTMLElement} el */
  item(rank, el) {
    el.dataset.rank = `${rank.rank}`;
    el.setAttribute("role", "option");
    this.items.set(rank.rank, reachable(el, `rank ${rank.rank}`));
    return el;
  }

  /** @param {HTMLElement} el @param {Rank} r @param {number} now @param {string} blame */
  drawTile(el, r, now, blame) {
    this.drawState(el, r, now, blame);
    fill(el, "number", `${r.rank}`);
    mark(el, "title", [`rank ${r.rank}: ${r.state}`, blame].filter(Boolean).join(" · "));
  }

  /** @param {HTMLElement} el @param {Rank} r @param {number} now @param {string} blame */
  drawState(el, r, now, blame) {
    mark(el, "data-mood", mood(r, now));
    mark(el, "data-blamed", `${!!blame}`);
    fill(el, "glyph", GLYPHS[r.state] ?? "?");
  }

  /** @param {HTMLElement} el @param {Rank} r @param {number} now @param {string} blame  why the others wait for it
   * @param {boolean} several  there are several nodes */
  drawCard(el, r, now, blame, several) {
    this.drawState(el, r, now, blame);
    fill(el, "number", `rank ${r.rank}`);
    fill(el, "blame", blame);
    fill(el, "word", r.state);
    fill(el, "since", r.since ? `for ${duration(now - r.since)}` : "");
    fill(el, "process", [r.device, figures(r)].filter(Boolean).join(" · "));
    fill(el, "where", `pid ${r.pid || "–"}${several ? ` · local rank ${r.local} · node ${r.node}` : ""}`);
    fill(el, "gpu", gpu(r));
    fill(el, "note", r.state === "dead" && blame ? "" : r.note);
    fill(el, "error", oneLine(r.error));
    mark(/** @type {Element} */ (el.querySelector(".error")), "title", r.error);
    mark(
      el,
      "title",
      [
        r.since ? `${r.state} since ${new Date(r.since * 1000).toLocaleTimeString()}` : "",
        r.host,
        r.pss ? "PSS: shared memory counts in proportion" : "",
      ]
        .filter(Boolean)
        .join(" · "),
    );
    const part = r.deviceTotal ? r.deviceMemory / r.deviceTotal : -1;
    const bar = /** @type {HTMLElement} */ (el.querySelector(".bar"));
    bar.hidden = part < 0;
    if (part >= 0) bar.style.setProperty("--part", `${Math.round(Math.min(1, part) * 100)}%`);
  }

  /** @param {World} world */
  drawCounts({ ranks }) {
    const all = counts(ranks);
    const text = JSON.stringify(all);
    if (text === this.counts) return;
    this.counts = text;
    // If all are in the same state, the sentence says so; a few ranks have cards, which are counted at a glance.
    this.chips.hidden = all.length < 2 || ranks.length <= CARDS;
    this.chips.replaceChildren(
      ...all.map(([state, n]) => {
        const chip = make("span", "chip", make("span", "glyph", GLYPHS[state] ?? "?"), `${n} ${state}`);
        chip.dataset.mood = state;
        return chip;
      }),
    );
  }

  /** One tab stop; arrow keys move within. */
  rove() {
    if (this.stop === this.live.chosen) return;
    this.stop = this.live.chosen;
    for (const [rank, el] of this.items) {
      mark(el, "tabindex", rank === this.live.chosen ? "0" : "-1");
      mark(el, "aria-selected", `${rank === this.live.chosen}`);
    }
  }

  /** @param {Event} event */
  choose(event) {
    const el = /** @type {HTMLElement | null} */ (/** @type {HTMLElement} */ (event.target).closest("[data-rank]"));
    // The mouse does not move the keyboard focus while it is in the panel.
    if (!el || (event.type === "pointerover" && this.live.focused)) return;
    this.live.chosen = Number(el.dataset.rank);
    this.live.byHand = true;
    this.live.draw();
  }

  /** @param {Event} event */
  click(event) {
    const el = /** @type {HTMLElement | null} */ (/** @type {HTMLElement} */ (event.target).closest("[data-key]"));
    if (!el) return;
    const [what, which] = (el.dataset.key ?? "").split(" ");
    if (what === "open") {
      event.preventDefault(); // `draw` opens it, here and in the other places
      const section = /** @type {HTMLDetailsElement} */ (el.parentElement);
      const name = /** @type {"ladder" | "timeline"} */ (which);
      this.live.open[name] = !section.open;
      this.live.shut[name] = section.open;
      if (name === "ladder") this.live.unasked = false;
    } else if (what === "toggle") {
      this.live.controls = !this.live.controls;
    } else if (what === "press") {
      this.live.draw(); // the last drawing may be out of date
      if (el.getAttribute("aria-disabled") !== "true") this.live.press(which);
    } else if (what === "yes" || what === "no") {
      this.decide(what === "yes");
      return;
    } else {
      return;
    }
    this.live.draw();
    if (this.live.asking) this.controls.no.focus(); // so that further typing does no harm
  }

  /** @param {boolean} yes */
  decide(yes) {
    const { asking } = this.live;
    if (!asking) return;
    this.live.decide(yes);
    this.controls.buttons.get(asking)?.focus();
  }

  /** @param {KeyboardEvent} event  Escape answers no, or returns to the cell and the notebook's shortcuts */
  escape(event) {
    if (event.key !== "Escape") return;
    if (this.live.asking) {
      event.preventDefault();
      event.stopPropagation();
      this.decide(false);
      return;
    }
    // A click beside the panel would not do this.
    /** @type {HTMLElement} */ (event.target).blur();
    /** @type {HTMLElement | null | undefined} */ (this.host.closest("[tabindex]"))?.focus();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const all = [...this.items.values()];
    const at = all.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const row = all.filter((el) => el.offsetTop === all[Math.max(0, at)].offsetTop).length;
    /** @type {Record<string, number>} */
    const to = {
      ArrowRight: at + 1,
      ArrowLeft: at - 1,
      ArrowDown: at + row,
      ArrowUp: at - row,
      Home: 0,
      End: all.length - 1,
    };
    if (!(event.key in to)) return;
    event.preventDefault();
    event.stopPropagation();
    all[to[event.key]]?.focus();
  }

  /** Restore the keyboard focus after a new table has replaced the old one. @param {string} key */
  focus(key) {
    /** @type {HTMLElement | null} */ (this.root.querySelector(`[data-key="${key}"]`))?.focus();
  }

  /** Restore the table, as before the panel. */
  remove() {
    this.root.remove();
    for (const child of this.table) /** @type {HTMLElement} */ (child).hidden = false;
  }
}

const card = () =>
  make(
    "div",
    "card",
    make("div", "top", make("b", "number"), make("span", "blame")),
    make("div", "state", make("span", "glyph"), make("span", "word"), make("span", "since")),
    make("div", "process"),
    make("div", "gpu"),
    make("div", "where"),
    make("div", "bar"),
    make("div", "note"),
    make("div", "error"),
  );
const tile = () => make("div", "tile", make("span", "number"), make("span", "glyph"));

/** @param {Element} el @param {string} name @param {string} text */
function fill(el, name, text) {
  const part = el.querySelector(`.${name}`);
  if (part) write(part, text);
}

/** @param {Rank} r @param {number} now @param {string} blame  which includes the note of a dead rank */
function status(r, now, blame) {
  const note = r.state === "dead" && blame ? "" : r.note;
  return [r.since ? `${r.state} for ${duration(now - r.since)}` : r.state, note, oneLine(r.error)]
    .filter(Boolean)
    .join(" · ");
}
