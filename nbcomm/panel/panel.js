/**
 * The live panel, drawn over the table that the notebook's file holds.
 *
 * The widget has no view of its own: `initialize` runs as soon as the model exists, and finds every
 * `.nbcomm-world-<id>` in the page, now and whenever one appears (another cell, a reload, a new table at the
 * end of a cell). A MutationObserver runs before the next paint, so nobody sees the bare table flash.
 *
 * Nothing that is drawn is asked of the kernel: it could not answer while a cell runs. What a button asks of it is
 * heard within 1.5 s or not at all, and the panel says which.
 *
 * @typedef {{rank: number, local: number, node: number, host: string, device: string, pid: number, state: string,
 *   since: number, memory: number, deviceMemory: number, deviceTotal: number, note: string, error: string}} Rank
 * @typedef {{seq: number, name: string, line: string, marks: string}} Rung  marks: one of MARKS for each rank
 * @typedef {{group: string, rungs: Rung[]}} Ladder
 * @typedef {{kind: number, start: number, end: number, name: string}} Span
 * @typedef {{rank: number, totals: number[], spans: Span[]}} Bar  totals: seconds of each of KINDS
 * @typedef {{cell: number, seconds: number, running: boolean, sentence: string, of: number, bars: Bar[]}} Timeline
 * @typedef {{id: string, title: string, backend: string, actions?: string[], controls?: boolean}} Meta
 * @typedef {{version: number, now: number, meta: Meta, headline: string | null, ranks: Rank[],
 *   ladder: Ladder | null, timeline: Timeline | null, ended: boolean}} World
 * @typedef {{action: string, token: string, stage: "sent" | "heard" | "lost" | "done", text: string, ok: boolean}} Press
 */

/** What a state looks like besides its colour; glyphs that DejaVu and every system font have.
 * @type {Record<string, string>} */
export const GLYPHS = {
  starting: "◌",
  idle: "○",
  running: "►",
  waiting: "◐",
  failed: "✕",
  interrupted: "■",
  dead: "⊘",
};
/** How a rank stands to one collective. @type {Record<string, [string, string]>} */
export const MARKS = {
  d: ["●", "done"],
  a: ["◐", "waits in it"],
  m: ["○", "has not come"],
  o: ["◆", "in another one"],
  f: ["✕", "failed"],
  "-": ["", "not a member"],
};
export const KINDS = ["compute", "waiting", "transfer"];
const URGENCY = ["dead", "failed", "interrupted", "waiting", "running", "starting", "idle"];
const [WHO, NOTE] = [24, 80]; // characters in the sentence; beyond, the cards and tiles say it
const CARDS = 8; // more ranks than this are tiles
const SLOW = 5; // seconds after which a wait turns amber; every collective waits a little
const SILENCE = 6; // seconds without a heartbeat (one each 2 s) after which the panel says so
const SAID = 60; // seconds for which the panel says what became of a button
const PATIENCE = 1.5; // seconds after which a click that nobody heard is taken back; the kernel has the same

/** The buttons in their order; a world may have others besides. */
const ORDER = ["interrupt", "heal", "stop", "restart"];
/** @type {Record<string, string>} */
const DOING = { interrupt: "interrupting…", heal: "healing…", stop: "stopping…", restart: "restarting…" };
/** @type {Record<string, string>} */
const TIPS = {
  interrupt: "End the cell on every rank, as the notebook's ■ does",
  heal: "Put new processes in the dead ranks' places",
  stop: "End all ranks; their variables are lost",
  restart: "End all ranks and start new ones; their variables are lost",
};
/** What cannot be undone asks first. @type {Record<string, string>} */
const ASKS = {
  stop: "Stop this world? Its ranks end, and their variables are lost.",
  restart: "Restart this world? Its ranks end, their variables are lost, and new ranks start.",
};
const UNHEARD = "The kernel is busy and cannot hear this; use the notebook's ■ button, then try again.";

// ── pure: words and numbers; words.py has the same in Python ─────────────────────────────────────────────

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
  const who = named(some.map((r) => r.rank));
  const since = duration(now - Math.min(...some.map((r) => r.since)));
  // A rank that failed without a note says its error; otherwise that stays from an earlier cell.
  const notes = new Set(some.map((r) => oneLine(r.note || (r.state === "failed" ? r.error : ""))));
  const [all] = notes.size === 1 ? notes : [""];
  const note = all && ` (${all.length <= NOTE ? all : `${all.slice(0, NOTE - 1)}…`})`;
  if (state === "dead") return `${who} died${note}`;
  if (state === "failed" || state === "interrupted") return `${who} ${state}${note}`;
  if (state === "waiting") return `${who} waiting for ${since}${note}`;
  return `${state} for ${since} on ${who}${note}`;
}

/** @param {string | undefined} text */
const oneLine = (text) => (text ?? "").split(/\s+/).filter(Boolean).join(" ");

/** @param {number[]} ranks  `[0, 1, 2]` → `"ranks 0-2"`; so many that no sentence could hold them are counted */
export function named(ranks) {
  const folded = fold(ranks);
  return folded.length <= WHO ? `rank${ranks.length > 1 ? "s" : ""} ${folded}` : many(ranks.length, "rank");
}

/** @param {number} seconds  `0.0123` → `"12 ms"`: a stretch of a cell's time, not a clock */
export function brief(seconds) {
  if (seconds < 0.0005) return "0 s";
  if (seconds < 0.9995) return `${Math.round(seconds * 1000)} ms`;
  return seconds < 9.95 ? `${seconds.toFixed(1)} s` : duration(seconds + 0.5);
}

/** What a screen reader says when it changes: the headline without its running clock, and without the short waits that
 * every collective has. @param {World} world @param {number} now */
export function spoken(world, now) {
  const calm = world.ranks.map((r) => (mood(r, now) === "waiting" ? { ...r, state: "running", note: "" } : r));
  return (world.headline || sentence(calm, now))
    .replace(/(?: for)? \(?(?:\d+(?:\.\d+)? (?:h|min|ms|s)\b ?)+\)?/g, " ")
    .replace(/\s+/g, " ")
    .trim();
}

/** @param {World} world */
export function sizeLine({ ranks, meta }) {
  const size = `${many(ranks.length, "rank")} on ${many(new Set(ranks.map((r) => r.node)).size, "node")}`;
  return meta.backend ? `${size} · ${meta.backend}` : size;
}

/** @param {Rank[]} ranks @returns {[string, number][]} how many are in each state that has any */
export function counts(ranks) {
  return URGENCY.map(
    (state) => /** @type {[string, number]} */ ([state, ranks.filter((r) => r.state === state).length]),
  ).filter(([, n]) => n);
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
  return [
    `rank ${r.rank} of ${size}`,
    `local rank ${r.local}`,
    node,
    r.device,
    `pid ${r.pid || "–"}`,
    amount(r.memory),
    gpu(r),
  ]
    .filter(Boolean)
    .join(" · ");
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

// ── pure: the ladder and the timeline ────────────────────────────────────────────────────────────────────

/** @param {Ladder | null} ladder @returns {Rung | undefined} the newest in which a rank failed, or only some ranks are */
export function troubledRung(ladder) {
  return ladder?.rungs.findLast(({ marks }) => marks.includes("f") || (marks.includes("a") && /[mo]/.test(marks)));
}

/** @param {string} marks @param {string} mark */
const having = (marks, mark) => [...marks].flatMap((its, rank) => (its === mark ? [rank] : []));

/** @param {Ladder | null} ladder @returns {string} what is wrong in it, culprits first; "" where nothing is */
export function ladderLine(ladder) {
  const rung = troubledRung(ladder);
  if (!rung) return "";
  /** @type {string[]} */
  const parts = [];
  for (const [mark, one, several] of [
    ["m", "has not come to", "have not come to"],
    ["o", "is in another collective than", "are in another collective than"],
    ["f", "failed in", "failed in"],
    ["a", "waits in", "wait in"],
  ]) {
    const some = having(rung.marks, mark);
    const what = parts.length ? "it" : `${rung.name} #${rung.seq}`;
    if (some.length) parts.push(`${named(some)} ${some.length > 1 ? several : one} ${what}`.replace(/ than it$/, ""));
  }
  return parts.join("; ");
}

/** @param {World} world @param {number} now @returns {number[]} the ranks that the others wait for, once that lasts */
export function missing(world, now) {
  const marks = troubledRung(world.ladder)?.marks ?? "";
  const lasts = world.ranks.some(
    (r) => (marks[r.rank] === "a" && mood(r, now) === "slow") || (marks[r.rank] === "f" && r.state === "failed"),
  );
  return lasts ? having(marks, "m") : [];
}

/** @param {World} world @param {number} now @returns {number} the rank that is worth a look, until somebody chooses one */
export function worst(world, now) {
  const at = (/** @type {string} */ state) => world.ranks.find((r) => r.state === state)?.rank;
  return missing(world, now)[0] ?? at("dead") ?? at("failed") ?? world.ranks[0]?.rank ?? 0;
}

/** @param {World} world @param {number} now  whether there is something that the ladder may explain */
export const troubled = (world, now) => world.ranks.some((r) => ["failed", "dead", "slow"].includes(mood(r, now)));

/** One row for each rank, or for those that stand alike where there are many; who is in none of it has none.
 * @param {Ladder} ladder @returns {{ranks: number[], marks: string[]}[]} */
export function ladderRows({ rungs }) {
  const size = rungs[0]?.marks.length ?? 0;
  /** @type {Map<string | number, {ranks: number[], marks: string[]}>} */
  const rows = new Map();
  for (let rank = 0; rank < size; rank += 1) {
    const marks = rungs.map((rung) => rung.marks[rank] ?? "-");
    if (marks.every((mark) => mark === "-")) continue;
    const key = size > CARDS ? marks.join("") : rank;
    const row = rows.get(key) ?? { ranks: [], marks };
    row.ranks.push(rank);
    rows.set(key, row);
  }
  return [...rows.values()];
}

/** @param {Bar} bar  what a bar shows, in words */
export const barLine = ({ rank, totals }) =>
  `rank ${rank}: ${KINDS.map((kind, i) => `${kind} ${brief(totals[i])}`).join(", ")}`;

/** @param {any} packed @returns {Ladder | null} */
function unpackLadder(packed) {
  if (!packed) return null;
  const [group, rungs] = packed;
  return { group, rungs: rungs.map((/** @type {any[]} */ [seq, name, line, marks]) => ({ seq, name, line, marks })) };
}

/** @param {any} packed @returns {Timeline | null} */
function unpackTimeline(packed) {
  if (!packed) return null;
  const [cell, seconds, running, line, of, bars] = packed;
  return { cell, seconds, running, sentence: line, of, bars: bars.map(unpackBar) };
}

/** A bar's stretches have no gaps: each begins where the one before it ended. @param {any[]} packed @returns {Bar} */
function unpackBar([rank, totals, first, flat]) {
  const spans = [];
  for (let i = 0, start = first; i < flat.length; start = flat[i + 1], i += 3) {
    spans.push({ kind: flat[i], start, end: flat[i + 1], name: flat[i + 2] });
  }
  return { rank, totals, spans };
}

// ── pure: messages ───────────────────────────────────────────────────────────────────────────────────────

/**
 * The world after a message. A delta's rows are whole, so one that was lost is made good by the next keyframe.
 *
 * @param {World | null} world @param {any} message @returns {World | null}
 */
export function apply(world, message) {
  if (message.kind === "delta") {
    if (!world || world.ended || message.version <= world.version) return world;
    const ranks = world.ranks.map((rank, i) => (message.rows[i] ? moved(rank, message.rows[i]) : rank));
    const { version, now, headline } = message;
    const next = { ...world, version, now, headline, ranks };
    if ("ladder" in message) next.ladder = unpackLadder(message.ladder);
    if ("timeline" in message) next.timeline = unpackTimeline(message.timeline);
    return next;
  }
  if (message.kind !== "snapshot" && message.kind !== "end") return world;
  if (world && (world.ended || message.version < world.version)) return world;
  const ranks = message.ranks.map(
    (/** @type {any[]} */ [rank, local, node, host, device, pid], /** @type {number} */ i) =>
      moved({ rank, local, node, host, device, pid }, message.rows[i]),
  );
  const { version, now, meta, headline } = message;
  const [ladder, timeline] = [unpackLadder(message.ladder), unpackTimeline(message.timeline)];
  return { version, now, meta, headline, ranks, ladder, timeline, ended: message.kind === "end" };
}

/** @param {any} rank @param {any[]} row @returns {Rank} */
function moved(rank, [state, since, memory, deviceMemory, deviceTotal, note, error = ""]) {
  return { ...rank, state, since, memory, deviceMemory, deviceTotal, note, error };
}

/**
 * A press after an answer of the kernel, or after a time without one. Another press's answer changes nothing; one that
 * comes after the panel has given up does: the kernel acts, and the panel must not say otherwise.
 *
 * @param {Press | null} press @param {any} message @returns {Press | null}
 */
export function answered(press, message) {
  if (!press || press.token !== message.token || press.stage === "done") return press;
  if (message.kind === "heard") return { ...press, stage: "heard", text: "" };
  if (message.kind === "done") return { ...press, stage: "done", text: message.text, ok: message.ok };
  if (message.kind === "unheard" && press.stage === "sent")
    return { ...press, stage: "lost", text: UNHEARD, ok: false };
  return press;
}

/** @param {Press | null} press  whether it is under way */
export const isUnderWay = (press) => press?.stage === "sent" || press?.stage === "heard";

// ── drawing ──────────────────────────────────────────────────────────────────────────────────────────────

/** @param {string} tag @param {string} name @param {(Node | string)[]} children */
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

/** An element that the keyboard can reach. Without the attribute the notebook takes typed letters for its shortcuts, and
 * "d d" deletes the cell. It must be on the focusable element itself; stopping the event does not help in Notebook 7.
 * @template {Element} T @param {T} el @param {string} key  finds it again in a new table @returns {T} */
function reachable(el, key) {
  el.setAttribute("data-lm-suppress-shortcuts", "true");
  el.setAttribute("data-key", key);
  return el;
}

/** @param {string} key @param {string} text */
function button(key, text) {
  const el = /** @type {HTMLButtonElement} */ (reachable(make("button", "button", text), key));
  el.type = "button";
  return el;
}

/** The buttons of line 1, and the question and the answer under line 2. */
class Controls {
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

  /** @param {World} world */
  draw({ meta, ended }) {
    const { pressed, asking, controls } = this.live;
    this.lay(meta.actions ?? []);
    this.bar.hidden = !this.buttons.size;
    this.group.hidden = !controls;
    mark(this.toggle, "aria-expanded", `${controls}`);
    mark(this.toggle, "aria-label", controls ? "hide controls" : "show controls");
    mark(this.toggle, "title", controls ? "hide controls" : "show controls");
    const busy = isUnderWay(pressed);
    for (const [action, el] of this.buttons) {
      const its = busy && pressed?.action === action;
      el.disabled = ended;
      write(el, its ? (DOING[action] ?? `${action}…`) : action);
      mark(el, "aria-busy", `${its}`);
      // Not `disabled`, which would take the keyboard's place away.
      mark(el, "aria-disabled", `${ended || (busy && (its || action !== "interrupt"))}`);
    }
    this.ask.hidden = !asking || ended;
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
    for (const [action, el] of this.buttons) el.title = TIPS[action] ?? action;
    this.group.replaceChildren(...this.buttons.values());
  }
}

/** @param {string} a @param {string} b */
const byOrder = (a, b) => (ORDER.indexOf(a) + 1 || 99) - (ORDER.indexOf(b) + 1 || 99);

/** A part that opens and closes, alike in every place where the panel is drawn. */
class Section {
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
        reachable(make("summary", "summary", make("b", "heading", title), this.line), `open ${name}`),
        this.inside,
      )
    );
    this.drawn = "";
  }

  /** Whether its inside is to be drawn now. @param {boolean} there @param {string} line @param {() => unknown} key */
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

/** How far each rank is: a column for each collective, a row for each rank. */
class LadderSection extends Section {
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

  /** @param {World} world @param {number} now */
  draw(world, now) {
    const { ladder } = world;
    const last = ladder?.rungs.at(-1);
    const bad = troubled(world, now);
    const of = ladder && ladder.group !== "world" ? ` of ${ladder.group}` : "";
    const line = (bad && ladderLine(ladder)) || `${of ? `${of.trim()}: ` : ""}the last is ${last?.name} #${last?.seq}`;
    const due = this.due(!!last, line, () => [ladder, bad]);
    if (ladder && due) this.fill(ladder, of, bad);
    // The newest stay in sight, in a page that becomes narrow too; unless somebody has looked further back.
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

/** Where a cell's time went: a bar for each rank. */
class TimelineSection extends Section {
  /** @param {Live} live */
  constructor(live) {
    super("timeline", "Time", live);
    this.note = make("div", "limited");
    this.bars = make("div", "bars");
    mark(this.bars, "role", "list");
    this.axis = make("div", "axis", make("span", "", "0"), make("span", "until"));
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
      ),
    );
    for (const [i, el] of [...this.inside.querySelectorAll(".swatch")].entries()) mark(el, "data-kind", KINDS[i]);
  }

  /** @param {World} world */
  draw({ timeline }) {
    const about =
      timeline && `In [${timeline.cell}] ${timeline.running ? "runs for" : "took"} ${brief(timeline.seconds)}`;
    const line = [about, timeline?.sentence].filter(Boolean).join(" · ");
    if (!this.due(!!timeline?.bars.length, line, () => timeline) || !timeline) return;
    const { bars, of, seconds } = timeline;
    this.note.hidden = bars.length === of;
    write(this.note, `${bars.length} of ${of} ranks: those that waited least and those that waited longest`);
    const whole = Math.max(seconds, ...bars.map((bar) => bar.spans.at(-1)?.end ?? 0)) || 1;
    this.bars.replaceChildren(...bars.map((bar) => this.bar(bar, whole)));
    write(/** @type {Element} */ (this.axis.lastElementChild), brief(whole));
  }

  /** @param {Bar} bar @param {number} whole */
  bar(bar, whole) {
    const track = make(
      "div",
      "track",
      ...bar.spans.map(({ kind, start, end, name }) => {
        const el = make("span", "span");
        mark(el, "data-kind", KINDS[kind]);
        el.title = [KINDS[kind], name, brief(end - start)].filter(Boolean).join(" · ");
        el.style.left = `${(start / whole) * 100}%`;
        el.style.width = `${((end - start) / whole) * 100}%`;
        return el;
      }),
    );
    mark(track, "role", "img");
    mark(track, "aria-label", barLine(bar));
    const [who, waited] = [
      make("span", "who", `rank ${bar.rank}`),
      make("span", "waited", `waited ${brief(bar.totals[1])}`),
    ];
    for (const el of [who, waited]) mark(el, "aria-hidden", "true"); // the bar says both
    const row = make("div", "row", who, track, waited);
    mark(row, "role", "listitem");
    return row;
  }
}

/** One place in the page where the panel is drawn; the table that was there is only hidden. */
class View {
  /** @param {Element} host @param {Live} live */
  constructor(host, live) {
    this.host = host;
    this.live = live;
    this.table = [...host.children];
    /** @type {Map<number, HTMLElement>} */
    this.items = new Map();
    /** The rank that is the stop for Tab here. @type {number | null} */
    this.stop = null;
    this.layout = "";
    this.counts = "";
    this.title = make("b", "title");
    this.size = make("span", "size");
    this.chips = make("span", "chips");
    this.headline = make("div", "headline");
    this.controls = new Controls(live);
    this.list = make("div", "ranks");
    this.detail = make("div", "detail");
    this.ladder = new LadderSection(live);
    this.timeline = new TimelineSection(live);
    this.root = make(
      "section",
      "nbcomm-live",
      make("div", "head", this.title, this.size, this.chips, this.controls.bar),
      this.headline,
      this.controls.ask,
      this.controls.said,
      this.list,
      this.detail,
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
    // It comes too when the element is removed, with the host still in place: look when that is done.
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
    const dead = silent > SILENCE && !world.ended;
    const colour = behind(this.host);
    mark(this.root, "data-theme", isDark(colour) ? "dark" : "light");
    if (this.root.style.getPropertyValue("--behind") !== colour) this.root.style.setProperty("--behind", colour);
    mark(this.root, "data-news", dead ? "none" : world.ended ? "ended" : "live");
    write(this.title, world.meta.title);
    write(this.size, sizeLine(world));
    this.drawCounts(world);
    write(
      this.headline,
      dead
        ? `no news for ${duration(silent)}; the kernel may be gone. This is what it last said.`
        : world.headline || sentence(world.ranks, now),
    );
    this.controls.draw(world);
    this.drawRanks(world, now);
    this.ladder.draw(world, now);
    this.timeline.draw(world);
  }

  /** @param {World} world @param {number} now */
  drawRanks(world, now) {
    const culprits = new Set(missing(world, now));
    const rung = troubledRung(world.ladder);
    const blame = (/** @type {Rank} */ { rank }) =>
      culprits.has(rank) ? `has not come to ${rung?.name} #${rung?.seq}` : "";
    mark(this.root, "data-culprit", `${!!culprits.size}`);
    const size = world.ranks.length;
    for (const rank of world.ranks) this.drawRank(rank, size, now, blame(rank));
    const chosen = world.ranks.find((r) => r.rank === this.live.chosen);
    if (chosen && size > CARDS) {
      write(this.detail, [place(chosen, size), blame(chosen), status(chosen, now)].filter(Boolean).join(" · "));
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
    this.list.replaceChildren(
      ...(small
        ? nodes.map(([node, some]) => {
            const name = make("span", "name", `node ${node}`);
            name.title = some[0].host;
            const group = make("div", "node", name, make("div", "tiles", ...some.map((r) => this.item(r, tile()))));
            group.setAttribute("role", "group");
            group.setAttribute("aria-label", `node ${node}`);
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

  /** @param {Rank} r @param {number} size @param {number} now @param {string} blame  why the others wait for it */
  drawRank(r, size, now, blame) {
    const el = this.items.get(r.rank);
    if (!el) return;
    mark(el, "data-mood", mood(r, now));
    mark(el, "data-blamed", `${!!blame}`);
    mark(el, "aria-label", [place(r, size), blame, status(r, now)].filter(Boolean).join(" · "));
    const set = (/** @type {string} */ name, /** @type {string} */ text) => {
      const part = el.querySelector(`.${name}`);
      if (part) write(part, text);
    };
    set("glyph", GLYPHS[r.state] ?? "?");
    if (size > CARDS) {
      set("number", `${r.rank}`);
      mark(el, "title", [`rank ${r.rank}: ${r.state}`, blame].filter(Boolean).join(" · "));
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
    set("blame", blame);
    set("error", oneLine(r.error));
    mark(/** @type {Element} */ (el.querySelector(".error")), "title", r.error);
    mark(
      el,
      "title",
      r.since ? `${r.state} since ${new Date(r.since * 1000).toLocaleTimeString()} · ${r.host}` : r.host,
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
    this.chips.replaceChildren(
      ...all.map(([state, n]) => {
        const chip = make("span", "chip", make("span", "glyph", GLYPHS[state] ?? "?"), `${n} ${state}`);
        chip.dataset.mood = state;
        return chip;
      }),
    );
  }

  /** One stop for Tab; arrows move within. */
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
    // Under a moving mouse the keyboard's place stays, as long as the keyboard is in the panel.
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
      this.live.open[/** @type {"ladder" | "timeline"} */ (which)] = !section.open;
    } else if (what === "toggle") {
      this.live.controls = !this.live.controls;
    } else if (what === "press" && el.getAttribute("aria-disabled") !== "true") {
      this.live.press(which);
    } else if (what === "yes" || what === "no") {
      this.decide(what === "yes");
      return;
    } else {
      return;
    }
    this.live.draw();
    if (this.live.asking) this.controls.no.focus(); // whoever types on does no harm
  }

  /** @param {boolean} yes */
  decide(yes) {
    const { asking } = this.live;
    if (!asking) return;
    this.live.decide(yes);
    this.controls.buttons.get(asking)?.focus();
  }

  /** @param {KeyboardEvent} event  Escape: no; else back to the cell, where the notebook's shortcuts work again */
  escape(event) {
    if (event.key !== "Escape") return;
    if (this.live.asking) {
      event.preventDefault();
      event.stopPropagation();
      this.decide(false);
      return;
    }
    // A click beside the panel would not do it.
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

  /** A new table has taken the old one's place under the keyboard. @param {string} key */
  focus(key) {
    /** @type {HTMLElement | null} */ (this.root.querySelector(`[data-key="${key}"]`))?.focus();
  }

  /** The table again, as if the panel had never been there. */
  remove() {
    this.root.remove();
    for (const child of this.table) /** @type {HTMLElement} */ (child).hidden = false;
  }
}

const card = () =>
  make(
    "div",
    "card",
    make("div", "top", make("b", "number"), make("span", "of")),
    make("div", "state", make("span", "glyph"), make("span", "word"), make("span", "since")),
    make("div", "where"),
    make("div", "process"),
    make("div", "gpu"),
    make("div", "bar"),
    make("div", "blame"),
    make("div", "note"),
    make("div", "error"),
  );
const tile = () => make("div", "tile", make("span", "number"), make("span", "glyph"));

/** @param {Rank} r @param {number} now */
function status(r, now) {
  return [r.since ? `${r.state} for ${duration(now - r.since)}` : r.state, r.note, oneLine(r.error)]
    .filter(Boolean)
    .join(" · ");
}

/** The colour that is really behind the panel: a theme's name tells nothing. @param {Element} host */
function behind(host) {
  for (let el = /** @type {Element | null} */ (host); el; el = el.parentElement) {
    const colour = getComputedStyle(el).backgroundColor;
    if (isDark(colour) !== null) return colour;
  }
  return "rgb(255, 255, 255)";
}

// ── life ─────────────────────────────────────────────────────────────────────────────────────────────────

/** What is known of one world in this page, and every place where it is drawn. */
class Live {
  /** @param {any} model */
  constructor(model) {
    this.model = model;
    this.world = apply(null, model.get("snapshot"));
    this.heard = performance.now();
    // The kernel's clock as seen from here: the fastest message so far knows it best.
    this.ahead = (this.world?.now ?? 0) - this.heard / 1000;
    this.chosen = 0;
    this.byHand = false;
    this.controls = this.world?.meta.controls ?? true;
    this.open = { ladder: false, timeline: false };
    this.troubled = false;
    /** @type {string | null} */
    this.asking = null;
    /** @type {Press | null} */
    this.pressed = null;
    this.answeredAt = 0;
    /** @type {{host: Element, key: string} | null} */
    this.focused = null;
    this.selector = `.nbcomm-world-${this.world?.meta.id}`;
    /** @type {WeakMap<Element, View>} */
    this.known = new WeakMap();
    /** @type {Set<View>} */
    this.views = new Set();
    this.announced = "";
    this.region = make("div", "nbcomm-spoken");
    this.region.setAttribute("aria-live", "polite");
    document.body.append(this.region);
    model.on("msg:custom", (/** @type {any} */ message) => this.hear(message));
    this.observer = new MutationObserver((records) => {
      for (const { addedNodes } of records)
        for (const node of addedNodes) if (node instanceof Element) this.hydrate(node);
    });
    this.observer.observe(document.body, { childList: true, subtree: true });
    this.clock = setInterval(() => this.tick(), 1000);
    this.hydrate(document.body);
  }

  /** @param {any} message */
  hear(message) {
    if ("token" in message) {
      this.answer(message);
      return;
    }
    this.world = apply(this.world, message);
    this.heard = performance.now();
    this.ahead = Math.max(this.ahead, message.now - this.heard / 1000);
    if (this.world?.ended) [this.pressed, this.asking] = [null, null]; // a world that is stopped answers no more
    this.draw();
  }

  /** The kernel's time, as well as it is known here. */
  now() {
    return this.ahead + performance.now() / 1000;
  }

  tick() {
    if (!isUnderWay(this.pressed) && performance.now() - this.answeredAt > SAID * 1000) this.pressed = null;
    this.draw();
    if (!this.world) return;
    const text = spoken(this.world, this.now());
    if (text !== this.announced && this.announced) write(this.region, text);
    this.announced = text;
  }

  // What the buttons do.

  /** @param {string} action */
  press(action) {
    if (!this.world || this.world.ended) return;
    if (action in ASKS) this.asking = action;
    else this.send(action);
  }

  /** @param {boolean} yes */
  decide(yes) {
    const action = this.asking;
    this.asking = null;
    if (yes && action) this.send(action);
    this.draw();
  }

  /** @param {string} action */
  send(action) {
    const token = Math.random().toString(36).slice(2);
    this.pressed = { action, token, stage: "sent", text: "", ok: true };
    if (action === "interrupt" && this.kernel && this.kernel.status !== "idle") {
      this.interrupt(token);
      return;
    }
    try {
      this.model.send({ kind: "press", action, token, at: this.now() });
    } catch {
      // The link is gone; the time without an answer says so.
    }
    setTimeout(() => {
      const unheard = this.pressed?.token === token && this.pressed.stage === "sent";
      if (unheard && action === "interrupt" && this.kernel) this.interrupt(token);
      else this.answer({ kind: "unheard", token });
    }, PATIENCE * 1000);
  }

  /** The kernel's handle in JupyterLab and Notebook 7; elsewhere there may be none. @returns {any} */
  get kernel() {
    const kernel = this.model.widget_manager?.kernel;
    return typeof kernel?.interrupt === "function" ? kernel : null;
  }

  /** As the notebook's ■ does: the server sends the kernel a signal, however busy that is. @param {string} token */
  async interrupt(token) {
    this.answer({ kind: "heard", token });
    try {
      await this.kernel.interrupt();
      this.answer({ kind: "done", token, text: "The interrupt is sent, as by the notebook's ■ button.", ok: true });
    } catch (error) {
      const why = error instanceof Error ? error.message : error;
      this.answer({
        kind: "done",
        token,
        text: `The interrupt could not be sent (${why}); use the notebook's ■ button.`,
        ok: false,
      });
    }
  }

  /** @param {any} message */
  answer(message) {
    const before = this.pressed;
    this.pressed = answered(before, message);
    if (this.pressed === before) return;
    this.answeredAt = performance.now();
    this.draw();
    if (this.pressed?.text) write(this.region, this.pressed.text);
  }

  // Where it is drawn.

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
    const { focused } = this;
    if (focused && !focused.host.isConnected && document.activeElement === document.body) view.focus(focused.key);
  }

  draw() {
    if (!this.world) return;
    const silent = (performance.now() - this.heard) / 1000;
    // Without news nobody knows that it still runs: its clock stands.
    const now = this.world.now + (this.world.ended ? 0 : Math.min(silent, SILENCE));
    const bad = troubled(this.world, now);
    if (bad && !this.troubled) this.open.ladder = true; // and it stays open: whoever reads it shall not lose it
    this.troubled = bad;
    if (!this.byHand || !this.world.ranks.some((r) => r.rank === this.chosen)) this.chosen = worst(this.world, now);
    for (const view of this.views) {
      if (view.host.isConnected) view.draw(this.world, now, silent);
      else this.views.delete(view); // scrolled out of a windowed notebook, or replaced by a new table
    }
  }

  close() {
    clearInterval(this.clock);
    this.observer.disconnect();
    this.region.remove();
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
