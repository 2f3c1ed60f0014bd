/**
 * The live panel, drawn over the table that the notebook's file holds.
 *
 * The widget has no view of its own: `initialize` runs as soon as the model exists, and finds every
 * `.nbcomm-world-<id>` in the page, now and whenever one appears (another cell, a reload, a new table at the
 * end of a cell). A MutationObserver runs before the next paint, so nobody sees the bare table flash.
 *
 * Nothing is ever asked of the kernel: it could not answer while a cell runs.
 *
 * @typedef {{rank: number, local: number, node: number, host: string, device: string, pid: number,
 *   state: string, since: number, memory: number, deviceMemory: number, deviceTotal: number, note: string}} Rank
 * @typedef {{version: number, now: number, meta: {id: string, title: string, backend: string},
 *   headline: string | null, ranks: Rank[], ended: boolean}} World
 */

/** What a state looks like besides its colour; glyphs that DejaVu and every system font have.
 * @type {Record<string, string>} */
export const GLYPHS = {
  starting: "◌", idle: "○", running: "►", waiting: "◐", failed: "✕", interrupted: "■", dead: "⊘",
};
const URGENCY = ["dead", "failed", "interrupted", "waiting", "running", "starting", "idle"];
const [WHO, NOTE] = [24, 80]; // characters in the sentence; beyond, the cards and tiles say it
const CARDS = 8; // more ranks than this are tiles
const SLOW = 5; // seconds after which a wait turns amber; every collective waits a little
const SILENCE = 6; // seconds without a heartbeat (one each 2 s) after which the panel says so

// ── pure: words and numbers; static.py has the same in Python ────────────────────────────────────────────

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

/** @param {number} seconds */
export function duration(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

/** @param {number} size  bytes; 0 = unknown */
export function amount(size) {
  if (size <= 0) return "–";
  const mib = size / 2 ** 20;
  if (mib < 999.5) return `${Math.max(1, Math.floor(mib + 0.5))} MiB`;
  const tenths = Math.floor((mib / 1024) * 10 + 0.5);
  return tenths < 1000 ? `${Math.floor(tenths / 10)}.${tenths % 10} GiB` : `${Math.floor(mib / 1024 + 0.5)} GiB`;
}

/** @param {number} n @param {string} word */
const many = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

/** @param {Rank[]} ranks @param {number} now  @returns {string} what the ranks do, culprits first */
export function sentence(ranks, now) {
  const parts = URGENCY.slice(0, -1).flatMap((state) => {
    const some = ranks.filter((r) => r.state === state);
    return some.length ? [phrase(state, some, now)] : [];
  });
  return parts.join(" · ") || `${many(ranks.length, "rank")} idle`;
}

/** @param {string} state @param {Rank[]} some @param {number} now */
function phrase(state, some, now) {
  const folded = fold(some.map((r) => r.rank));
  const who = folded.length <= WHO ? `rank${some.length > 1 ? "s" : ""} ${folded}` : many(some.length, "rank");
  const since = duration(now - Math.min(...some.map((r) => r.since)));
  const notes = new Set(some.map((r) => r.note.split(/\s+/).filter(Boolean).join(" ")));
  const [all] = notes.size === 1 ? notes : [""];
  const note = all && ` (${all.length <= NOTE ? all : `${all.slice(0, NOTE - 1)}…`})`;
  if (state === "dead") return `${who} died${note}`;
  if (state === "failed" || state === "interrupted") return `${who} ${state}${note}`;
  if (state === "waiting") return `${who} waiting for ${since}${note}`;
  return `${state} for ${since} on ${who}${note}`;
}

/** @param {World} world */
export function sizeLine({ ranks, meta }) {
  const size = `${many(ranks.length, "rank")} on ${many(new Set(ranks.map((r) => r.node)).size, "node")}`;
  return meta.backend ? `${size} · ${meta.backend}` : size;
}

/** @param {Rank[]} ranks @returns {[string, number][]} how many are in each state that has any */
export function counts(ranks) {
  return URGENCY.map((state) => /** @type {[string, number]} */ ([state, ranks.filter((r) => r.state === state).length]))
    .filter(([, n]) => n);
}

/** @param {Rank[]} ranks @returns {[number, Rank[]][]} */
export function byNode(ranks) {
  /** @type {Map<number, Rank[]>} */
  const nodes = new Map();
  for (const rank of ranks) nodes.set(rank.node, [...(nodes.get(rank.node) ?? []), rank]);
  return [...nodes].sort(([a], [b]) => a - b);
}

/** @param {Rank} r @param {number} size  where a rank sits and what it holds, in one line */
export function place(r, size) {
  const node = r.host ? `node ${r.node} (${r.host})` : `node ${r.node}`;
  return [`rank ${r.rank} of ${size}`, `local rank ${r.local}`, node, r.device, `pid ${r.pid || "–"}`, amount(r.memory), gpu(r)]
    .filter(Boolean).join(" · ");
}

/** @param {Rank} r */
export const gpu = (r) => (r.deviceTotal ? `GPU ${amount(r.deviceMemory)} of ${amount(r.deviceTotal)}` : "");

/** @param {Rank} r @param {number} now  the class that colours it: a wait is amber only when it lasts */
export function mood(r, now) {
  return r.state === "waiting" && now - r.since >= SLOW ? "slow" : r.state;
}

/** @param {string} colour  as getComputedStyle writes it @returns {boolean | null}  null: transparent, ask further out */
export function isDark(colour) {
  const [r, g, b, a = 1] = (colour.match(/[\d.]+/g) ?? []).map(Number);
  if (b === undefined || a === 0) return null;
  return 0.2126 * r + 0.7152 * g + 0.0722 * b < 128;
}

/**
 * The world after a message. A delta's rows are whole, so one that was lost is made good by the next keyframe.
 *
 * @param {World | null} world @param {any} message @returns {World | null}
 */
export function apply(world, message) {
  if (message.kind === "delta") {
    if (!world || world.ended || message.version <= world.version) return world;
    const ranks = world.ranks.map((rank, i) => (message.rows[i] ? moved(rank, message.rows[i]) : rank));
    return { ...world, version: message.version, now: message.now, headline: message.headline, ranks };
  }
  if (message.kind !== "snapshot" && message.kind !== "end") return world;
  if (world && (world.ended || message.version < world.version)) return world;
  const ranks = message.ranks.map((/** @type {any[]} */ [rank, local, node, host, device, pid], /** @type {number} */ i) =>
    moved({ rank, local, node, host, device, pid }, message.rows[i]));
  const { version, now, meta, headline } = message;
  return { version, now, meta, headline, ranks, ended: message.kind === "end" };
}

/** @param {any} rank @param {any[]} row @returns {Rank} */
function moved(rank, [state, since, memory, deviceMemory, deviceTotal, note]) {
  return { ...rank, state, since, memory, deviceMemory, deviceTotal, note };
}

// ── drawing ──────────────────────────────────────────────────────────────────────────────────────────────

/** @param {string} tag @param {string} name @param {Node[]} children */
function make(tag, name, ...children) {
  const el = document.createElement(tag);
  el.className = name;
  el.append(...children);
  return el;
}

/** Writes only what differs: at ten messages a second most of the page stays untouched.
 * @param {Element} el @param {string} text */
function write(el, text) {
  if (el.textContent !== text) el.textContent = text;
}

/** @param {Element} el @param {string} name @param {string} value */
function mark(el, name, value) {
  if (el.getAttribute(name) !== value) el.setAttribute(name, value);
}

/** One place in the page where the panel is drawn; the table that was there is only hidden. */
class View {
  /** @param {Element} host @param {Live} live */
  constructor(host, live) {
    this.host = host;
    this.live = live;
    this.table = [...host.children];
    /** @type {Map<number, Element>} */
    this.items = new Map();
    this.layout = "";
    this.counts = "";
    this.title = make("b", "title");
    this.size = make("span", "size");
    this.chips = make("span", "chips");
    this.headline = make("div", "headline");
    this.list = make("div", "ranks");
    this.detail = make("div", "detail");
    this.root = make("section", "nbcomm-live",
      make("div", "head", this.title, this.size, this.chips), this.headline, this.list, this.detail);
    this.root.setAttribute("aria-label", "nbcomm panel");
    this.list.setAttribute("role", "listbox");
    this.list.setAttribute("aria-label", "ranks");
    this.list.addEventListener("keydown", (event) => this.key(/** @type {KeyboardEvent} */ (event)));
    this.list.addEventListener("focusin", (event) => {
      this.live.focused = this.host;
      this.choose(event);
    });
    // It comes too when the element is removed, with the host still in place: look when that is done.
    this.list.addEventListener("focusout", () => queueMicrotask(() => {
      if (host.isConnected && !host.contains(document.activeElement)) this.live.focused = null;
    }));
    this.list.addEventListener("pointerover", (event) => this.choose(event));
    for (const child of this.table) /** @type {HTMLElement} */ (child).hidden = true;
    host.append(this.root);
  }

  /** @param {World} world @param {number} now  by the kernel's clock @param {number} silent  seconds */
  draw(world, now, silent) {
    this.lay(world);
    const dead = silent > SILENCE && !world.ended;
    mark(this.root, "data-theme", theme(this.host));
    mark(this.root, "data-news", dead ? "none" : world.ended ? "ended" : "live");
    write(this.title, world.meta.title);
    write(this.size, sizeLine(world));
    this.drawCounts(world);
    write(this.headline, dead ? `no news for ${duration(silent)}; the kernel may be gone. This is what it last said.`
      : world.headline || sentence(world.ranks, now));
    for (const rank of world.ranks) this.drawRank(rank, world.ranks.length, now);
    const chosen = world.ranks.find((r) => r.rank === this.live.chosen);
    if (world.ranks.length > CARDS) {
      write(this.detail, chosen ? `${place(chosen, world.ranks.length)} · ${status(chosen, now)}` : "");
    }
  }

  /** Builds the elements; again only when ranks come or go or move. @param {World} world */
  lay({ ranks }) {
    const layout = ranks.map((r) => `${r.rank}@${r.node}${r.host}`).join();
    if (layout === this.layout) return;
    this.layout = layout;
    this.items.clear();
    const small = ranks.length > CARDS;
    this.root.classList.toggle("many", small);
    this.list.dataset.columns = `${ranks.length > 2 ? 4 : ranks.length}`;
    const nodes = small ? byNode(ranks) : [];
    this.list.replaceChildren(...(small
      ? nodes.map(([node, some]) => {
        const name = make("span", "name", document.createTextNode(`node ${node}`));
        name.title = some[0].host;
        const group = make("div", "node", name, make("div", "tiles", ...some.map((r) => this.item(r, tile()))));
        group.setAttribute("role", "group");
        group.setAttribute("aria-label", `node ${node}`);
        return group;
      })
      : ranks.map((r) => this.item(r, card()))));
    if (!this.items.has(this.live.chosen)) this.live.chosen = ranks[0]?.rank ?? 0;
    this.rove();
  }

  /** @param {Rank} rank @param {HTMLElement} el */
  item(rank, el) {
    el.dataset.rank = `${rank.rank}`;
    el.setAttribute("role", "option");
    // Or the notebook takes typed letters for its shortcuts, and "d d" deletes the cell. It must be on the
    // focusable element itself; stopping the event's way up does not help in Notebook 7.
    el.setAttribute("data-lm-suppress-shortcuts", "true");
    this.items.set(rank.rank, el);
    return el;
  }

  /** @param {Rank} r @param {number} size @param {number} now */
  drawRank(r, size, now) {
    const el = this.items.get(r.rank);
    if (!el) return;
    mark(el, "data-mood", mood(r, now));
    mark(el, "aria-label", `${place(r, size)} · ${status(r, now)}`);
    const glyph = GLYPHS[r.state] ?? "?";
    const set = (/** @type {string} */ name, /** @type {string} */ text) => {
      const part = el.querySelector(`.${name}`);
      if (part) write(part, text);
    };
    set("glyph", glyph);
    if (size > CARDS) {
      set("number", `${r.rank}`);
      mark(el, "title", `rank ${r.rank}: ${r.state}`);
      return;
    }
    set("number", `rank ${r.rank}`);
    set("of", `of ${size}`);
    set("word", r.state);
    set("since", r.since ? `for ${duration(now - r.since)}` : "");
    set("where", `local rank ${r.local} · node ${r.node}`);
    set("process", `${r.device} · pid ${r.pid || "–"} · ${amount(r.memory)}`);
    set("gpu", gpu(r));
    set("note", r.note);
    mark(el, "title", r.since ? `${r.state} since ${new Date(r.since * 1000).toLocaleTimeString()} · ${r.host}` : r.host);
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
    this.chips.replaceChildren(...all.map(([state, n]) => {
      const chip = make("span", "chip", make("span", "glyph", document.createTextNode(GLYPHS[state] ?? "?")),
        document.createTextNode(`${n} ${state}`));
      chip.dataset.mood = state;
      return chip;
    }));
  }

  /** One stop for Tab; arrows move within. */
  rove() {
    for (const [rank, el] of this.items) {
      mark(el, "tabindex", rank === this.live.chosen ? "0" : "-1");
      mark(el, "aria-selected", `${rank === this.live.chosen}`);
    }
  }

  /** @param {Event} event */
  choose(event) {
    const el = /** @type {HTMLElement} */ (event.target).closest("[data-rank]");
    // Under a moving mouse the keyboard's place stays, as long as the keyboard is in the panel.
    if (!el || (event.type === "pointerover" && this.live.focused)) return;
    this.live.chosen = Number(/** @type {HTMLElement} */ (el).dataset.rank);
    this.rove();
    this.live.draw();
  }

  /** @param {KeyboardEvent} event */
  key(event) {
    const all = /** @type {HTMLElement[]} */ ([...this.items.values()]);
    const at = all.indexOf(/** @type {HTMLElement} */ (document.activeElement));
    const row = all.filter((el) => el.offsetTop === all[Math.max(0, at)].offsetTop).length;
    /** @type {Record<string, number>} */
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, ArrowDown: at + row, ArrowUp: at - row, Home: 0, End: all.length - 1 };
    if (event.key === "Escape") {
      // Back to the cell, where the notebook's shortcuts work again; a click beside the card would not do it.
      all[at]?.blur();
      /** @type {HTMLElement | null | undefined} */ (this.host.closest("[tabindex]"))?.focus();
    }
    const next = all[to[event.key]];
    if (!(event.key in to)) return;
    event.preventDefault();
    event.stopPropagation();
    next?.focus();
  }

  /** The table again, as if the panel had never been there. */
  remove() {
    this.root.remove();
    for (const child of this.table) /** @type {HTMLElement} */ (child).hidden = false;
  }
}

const card = () => make("div", "card",
  make("div", "top", make("b", "number"), make("span", "of")),
  make("div", "state", make("span", "glyph"), make("span", "word"), make("span", "since")),
  make("div", "where"), make("div", "process"), make("div", "gpu"), make("div", "bar"), make("div", "note"));
const tile = () => make("div", "tile", make("span", "number"), make("span", "glyph"));

/** @param {Rank} r @param {number} now */
function status(r, now) {
  return [r.since ? `${r.state} for ${duration(now - r.since)}` : r.state, r.note].filter(Boolean).join(" · ");
}

/** By what is really behind the panel: a theme's name tells nothing. @param {Element} host */
function theme(host) {
  for (let el = /** @type {Element | null} */ (host); el; el = el.parentElement) {
    const dark = isDark(getComputedStyle(el).backgroundColor);
    if (dark !== null) return dark ? "dark" : "light";
  }
  return "light";
}

// ── life ─────────────────────────────────────────────────────────────────────────────────────────────────

/** What is known of one world in this page, and every place where it is drawn. */
class Live {
  /** @param {any} model */
  constructor(model) {
    this.world = apply(null, model.get("snapshot"));
    this.heard = performance.now();
    this.chosen = 0;
    /** @type {Element | null} */
    this.focused = null;
    this.selector = `.nbcomm-world-${this.world?.meta.id}`;
    /** @type {WeakMap<Element, View>} */
    this.known = new WeakMap();
    /** @type {Set<View>} */
    this.views = new Set();
    this.spoken = make("div", "nbcomm-spoken");
    this.spoken.setAttribute("aria-live", "polite");
    document.body.append(this.spoken);
    model.on("msg:custom", (/** @type {any} */ message) => this.hear(message));
    this.observer = new MutationObserver((records) => {
      for (const { addedNodes } of records) for (const node of addedNodes) if (node instanceof Element) this.hydrate(node);
    });
    this.observer.observe(document.body, { childList: true, subtree: true });
    this.clock = setInterval(() => this.draw(), 1000);
    this.hydrate(document.body);
  }

  /** @param {any} message */
  hear(message) {
    const before = this.world && counts(this.world.ranks).join();
    this.world = apply(this.world, message);
    this.heard = performance.now();
    this.draw();
    if (!this.world) return;
    // Only a change of states is worth a screen reader's voice, and without its running clock.
    if (counts(this.world.ranks).join() !== before) {
      write(this.spoken, counts(this.world.ranks).map(([state, n]) => `${n} ${state}`).join(", "));
    }
  }

  /** @param {Element} root */
  hydrate(root) {
    for (const host of root.matches(this.selector) ? [root] : root.querySelectorAll(this.selector)) this.attach(host);
  }

  /** @param {Element} host */
  attach(host) {
    const view = this.known.get(host) ?? new View(host, this);
    this.known.set(host, view);
    this.views.add(view);
    this.draw();
    // A new table has taken the old one's place under the keyboard.
    const lost = this.focused && !this.focused.isConnected && document.activeElement === document.body;
    if (lost) /** @type {HTMLElement} */ (view.items.get(this.chosen))?.focus();
  }

  draw() {
    if (!this.world) return;
    const silent = (performance.now() - this.heard) / 1000;
    // Without news nobody knows that it still runs: its clock stands.
    const now = this.world.now + (this.world.ended ? 0 : Math.min(silent, SILENCE));
    for (const view of this.views) {
      if (view.host.isConnected) view.draw(this.world, now, silent);
      else this.views.delete(view); // scrolled out of a windowed notebook, or replaced by a new table
    }
  }

  close() {
    clearInterval(this.clock);
    this.observer.disconnect();
    this.spoken.remove();
    // A world that was stopped keeps its last picture; any other end leaves the table.
    if (!this.world?.ended) for (const view of this.views) view.remove();
  }
}

/** This module is loaded once for each widget, so it holds one world. @type {Live | undefined} */
let live;

/** @param {{model: any}} context */
function initialize({ model }) {
  live = new Live(model);
  return () => live?.close();
}

/** For a frontend that shows widgets, but not their neighbours in the page. @param {{el: HTMLElement}} context */
function render({ el }) {
  if (live) el.classList.add(live.selector.slice(1)); // it is put into the page later, and found then
  return live?.hydrate(el);
}

export default { initialize, render };
