/**
 * The panel's words and numbers; words.py has the same in Python, and tests/panel/cases.json checks that both agree.
 *
 * @typedef {{rank: number, local: number, node: number, host: string, device: string, pid: number, state: string,
 *   since: number, memory: number, pss: boolean, deviceMemory: number, deviceTotal: number, note: string, error: string,
 *   onGpu: string}} Rank
 * @typedef {{seq: number, name: string, line: string, marks: string}} Rung  marks: one of MARKS for each rank
 * @typedef {{group: string, rungs: Rung[]}} Ladder
 * @typedef {{kind: number, start: number, end: number, name: string, bytes: number, line: string}} Span
 * @typedef {{rank: number, totals: number[], spans: Span[]}} Bar  totals: seconds of each of KINDS
 * @typedef {{cell: number, seconds: number, running: boolean, sentence: string, of: number, bars: Bar[],
 *   waiting: number}} Timeline
 * @typedef {{cell: number, seconds: number, waiting: number, late: number}} Past  late: a rank, or -1
 * @typedef {{name: string, ends: number | null}} Job  of a scheduler; ends: null is unknown
 * @typedef {{id: string, title: string, backend: string, actions?: string[], controls?: boolean,
 *   grace?: number}} Meta  grace: seconds that the world outlives its kernel
 * @typedef {{version: number, now: number, meta: Meta, headline: string | null,
 *   useful: string[] | null, ranks: Rank[], ladder: Ladder | null, timeline: Timeline | null, past: Past[], job: Job | null,
 *   ended: boolean}} World
 * @typedef {{action: string, token: string, stage: "sent" | "heard" | "lost" | "done", text: string, ok: boolean}} Press
 */
import { fold, many } from "../../frontend/js/page.js";

/** The glyph of each state, beside its colour; DejaVu and every system font have these glyphs.
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
/** A rank's state in one collective. @type {Record<string, [string, string]>} */
export const MARKS = {
  d: ["●", "done"],
  a: ["◐", "waits in it"],
  m: ["○", "not reached"],
  o: ["◆", "in another collective"],
  f: ["✕", "failed"],
  "-": ["", "not a member"],
};
export const KINDS = ["compute", "waiting", "transfer"];
const URGENCY = ["dead", "failed", "interrupted", "waiting", "running", "starting", "idle"];
const [WHO, NOTE] = [24, 80]; // characters in the sentence; the cards and tiles show the rest
export const CARDS = 8; // more ranks than this are tiles
export const WASTE = 0.2; // the part of a cell's time above which waiting opens the timeline
const LITTLE = 600; // seconds of a job's time below which they stand out; the kernel warns then, too
const SLOW = 5; // seconds after which a wait turns amber; every collective has a short wait
export const SILENCE = 6; // seconds without a heartbeat (one each 2 s) after which the panel says so
export const SAID = 60; // seconds for which the panel shows the result of a click
export const STALE = 3; // seconds after which the known state of the world may be out of date
export const PATIENCE = 1.5; // seconds after which a click without an answer is cancelled; the same in the kernel

/** The buttons in their order; a world may have others after them. */
export const ORDER = ["interrupt", "heal", "stop", "restart"];
/** @type {Record<string, string>} */
export const DOING = { interrupt: "interrupting…", heal: "healing…", stop: "stopping…", restart: "restarting…" };
/** @type {Record<string, string>} */
export const TIPS = {
  interrupt: "Interrupt the cell on every rank, as the notebook's ■ does",
  heal: "Replace the processes of dead ranks",
  stop: "End all ranks; their variables are lost",
  restart: "End all ranks and start new ones; their variables are lost",
};
/** Why a button would change nothing. @type {Record<string, string>} */
export const IDLE = { interrupt: "no cell is running", heal: "every process is alive" };
export const GONE = "the panel's kernel has ended";
/** The questions before actions that cannot be undone. @type {Record<string, string>} */
export const ASKS = {
  stop: "Stop this world? Its ranks end, and their variables are lost.",
  restart: "Restart this world? Its ranks end, their variables are lost, and new ranks start.",
};
export const NOBODY = "Nobody heard this click: there is no news from the panel's kernel.";
export const UNHEARD = "The kernel is busy and cannot respond; use the notebook's ■ button, then try again.";

// ── pure: words and numbers; words.py has the same in Python ─────────────────────────────────────────────

/** @param {number} seconds */
export function duration(seconds) {
  const s = Math.max(0, Math.floor(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

/** @param {number} seconds  that are left: rounded minutes, and seconds only at the end */
export function remaining(seconds) {
  const whole = Math.ceil(seconds); // so that 0 s is never left
  if (whole < 90) return `${whole} s`;
  const minutes = Math.floor(whole / 60 + 0.5);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** @param {number} size  bytes; 0 = unknown */
export function amount(size) {
  if (size <= 0) return "–";
  const mib = size / 2 ** 20;
  if (mib < 999.5) return `${Math.max(1, Math.floor(mib + 0.5))} MiB`;
  const tenths = Math.floor((mib / 1024) * 10 + 0.5);
  return tenths < 1000 ? `${Math.floor(tenths / 10)}.${tenths % 10} GiB` : `${Math.floor(mib / 1024 + 0.5)} GiB`;
}

/** @param {Rank[]} ranks @param {number} now  @returns {string} what the ranks do, culprits first */
export function sentence(ranks, now) {
  const culprits = ranks.filter((r) => r.state === "dead" || r.state === "failed").length;
  const parts = URGENCY.slice(0, -1).flatMap((state) => {
    const stopped = culprits && state === "interrupted" ? ranks.filter(isStopped).length : 0;
    const some = ranks.filter((r) => r.state === state && !(stopped && isStopped(r)));
    const phrases = inOnePhrase(state, some).map((alike) => phrase(state, alike, now));
    return stopped ? [othersStopped(stopped, culprits), ...phrases] : phrases;
  });
  return parts.join(" · ") || (ranks.length > 1 ? "all ranks idle" : "the rank is idle");
}

/** @param {Rank} r  whether it has not failed by itself */
const isStopped = (r) => r.state === "interrupted" && r.note.startsWith("was stopped because ");

/** @param {number} others @param {number} culprits  because of whose failure they were stopped */
const othersStopped = (others, culprits) =>
  `${others === 1 ? "1 other was" : `${others} others were`} stopped because of ${culprits === 1 ? "it" : "them"}`;

/** @param {string} state @param {Rank[]} some @returns {Rank[][]} of the dead only those that ended alike: each has its
 * own cause */
function inOnePhrase(state, some) {
  /** @type {Map<string, Rank[]>} */
  const alike = new Map();
  for (const rank of some) {
    const note = state === "dead" ? oneLine(rank.note) : "";
    alike.set(note, [...(alike.get(note) ?? []), rank]);
  }
  return [...alike.values()];
}

/** @param {string} note  how a rank ended, as it is about several: `was killed` → `were killed` */
const plural = (note) => note.replace(/^was(?= )/, "were").replace(/^has(?= )/, "have");

/** @param {string} state @param {Rank[]} some @param {number} now */
function phrase(state, some, now) {
  const who = named(some.map((r) => r.rank));
  const since = duration(now - Math.min(...some.map((r) => r.since)));
  // A failed rank without a note shows its error; in other states the error may be from an earlier cell.
  const notes = new Set(some.map((r) => oneLine(r.note || (r.state === "failed" ? r.error : ""))));
  const [one] = notes.size === 1 ? notes : [""];
  const short = one.length <= NOTE ? one : `${one.slice(0, NOTE - 1)}…`;
  if (state === "dead") return `${who} ${(some.length > 1 ? plural(short) : short) || "died"}`;
  const note = short && ` (${short})`;
  if (state === "failed" || state === "interrupted") return `${who} ${state}${note}`;
  if (state === "waiting") return `${who} waiting for ${since}${note}`;
  return `${state} for ${since} on ${who}${note}`;
}

/** @param {string | undefined} text */
export const oneLine = (text) => (text ?? "").split(/\s+/).filter(Boolean).join(" ");

/** @param {number[]} ranks  `[0, 1, 2]` → `"ranks 0-2"`; only their number if the text would be too long */
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

/** @param {number} part  `0.583` → `"58 %"` */
export const percent = (part) => `${Math.floor(part * 100 + 0.5)} %`;

/** @param {number} size  data of a collective */
export function bytes(size) {
  if (size < 1024) return many(size, "byte");
  return size < 2 ** 20 ? `${Math.round(size / 1024)} KiB` : amount(size);
}

/** The text that a screen reader reads when it changes: the headline without its running clock, and without the short
 * waits that every collective has. @param {World} world @param {number} now */
export function spoken(world, now) {
  const calm = world.ranks.map((r) => (mood(r, now) === "waiting" ? { ...r, state: "running", note: "" } : r));
  return (world.headline || sentence(calm, now))
    .replace(/(?: for)? \(?(?:\d+(?:\.\d+)? (?:h|min|ms|s)\b ?)+\)?/g, " ")
    .replace(/\s+/g, " ")
    .trim();
}

/** @param {World} world  what it runs on; its title gives the number of ranks */
export function sizeLine({ ranks, meta }) {
  const size = many(new Set(ranks.map((r) => r.node)).size, "node");
  return meta.backend ? `${size} · ${meta.backend}` : size;
}

/** @param {Job} job @param {number} now  its name, and how much of its time is left */
export function jobLine({ name, ends }, now) {
  if (ends === null) return name;
  return `${name}, ${ends > now ? `${remaining(ends - now)} left` : "time is over"}`;
}

/** @param {Job} job @param {number} now  whether little of its time is left, or none */
export const endsSoon = ({ ends }, now) => ends !== null && ends - now < LITTLE;

/** @param {Rank[]} ranks @returns {[string, number][]} the number of ranks in each state, without zeros */
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

/** @param {Rank} r  the node that it is on, by number and name */
export const nodeOf = (r) => (r.host ? `node ${r.node} (${r.host})` : `node ${r.node}`);

/** @param {Rank} r  a rank's place and memory, in one line */
export function place(r) {
  return [`rank ${r.rank}`, `local rank ${r.local}`, nodeOf(r), r.device, `pid ${r.pid || "–"}`, figures(r), gpu(r)]
    .filter(Boolean)
    .join(" · ");
}

/** @param {Rank} r  with its kind: of pages that several processes share, PSS counts its part, and RSS the whole */
export const memory = (r) => (r.memory > 0 ? `${amount(r.memory)} ${r.pss ? "PSS" : "RSS"}` : amount(0));

/** @param {Rank} r  its memory, if it lives */
export const figures = (r) => (r.state === "dead" ? "" : memory(r));

/** @param {Rank} r */
export const gpu = (r) =>
  r.deviceTotal
    ? [`GPU ${amount(r.deviceMemory)} of ${amount(r.deviceTotal)}`, r.onGpu].filter(Boolean).join(" · ")
    : "";

/** @param {Rank} r @param {number} now  the class that colours it: only a long wait is amber */
export function mood(r, now) {
  return r.state === "waiting" && now - r.since >= SLOW ? "slow" : r.state;
}
