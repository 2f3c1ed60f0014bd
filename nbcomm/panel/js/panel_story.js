/**
 * The ladder, the timeline, and the kernel's messages that change them. Pure functions.
 */
/** @import { Rank, Rung, Ladder, Bar, Span, Timeline, Past, Job, World, Press } from "./panel_words.js" */
import { brief, bytes, CARDS, KINDS, mood, named, oneLine, percent, STALE, WASTE } from "./panel_words.js";

// ── the ladder and the timeline ──────────────────────────────────────────────────────────────────────────

/** @param {Ladder | null} ladder @returns {Rung | undefined} the newest that failed, or that only some ranks reached */
export function troubledRung(ladder) {
  return ladder?.rungs.findLast(({ marks }) => marks.includes("f") || (marks.includes("a") && /[mo]/.test(marks)));
}

/** @param {string} marks @param {string} mark */
const having = (marks, mark) => [...marks].flatMap((its, rank) => (its === mark ? [rank] : []));

/** Which collective a missing rank did not reach; while others wait there it may still arrive.
 * @param {Rung} rung @param {boolean} [several] */
export function absence({ name, seq, marks }, several = false) {
  const verb = marks.includes("a") ? `${several ? "have" : "has"} not reached` : "did not reach";
  return `${verb} ${name} #${seq}`;
}

/** @param {Ladder | null} ladder @returns {string} what is wrong in it, culprits first; "" if nothing is */
export function ladderLine(ladder) {
  const rung = troubledRung(ladder);
  if (!rung) return "";
  /** @type {string[]} */
  const parts = [];
  for (const [mark, one, several] of [
    ["m", "", ""],
    ["o", "is in another collective than", "are in another collective than"],
    ["f", "failed in", "failed in"],
    ["a", "waits in", "wait in"],
  ]) {
    const some = having(rung.marks, mark);
    const what = parts.length ? "it" : `${rung.name} #${rung.seq}`;
    if (some.length && mark === "m") parts.push(`${named(some)} ${absence(rung, some.length > 1)}`);
    else if (some.length && mark === "f" && rung.marks.includes("m"))
      parts.push(`${named(some)} ${some.length > 1 ? "were" : "was"} stopped in it`); // not their fault
    else if (some.length)
      parts.push(`${named(some)} ${some.length > 1 ? several : one} ${what}`.replace(/ than it$/, ""));
  }
  return parts.join("; ");
}

/** @param {World} world @param {number} now @returns {number[]} the ranks that the others wait for, if for long */
export function missing(world, now) {
  const marks = troubledRung(world.ladder)?.marks ?? "";
  const lasts = world.ranks.some(
    (r) => (marks[r.rank] === "a" && mood(r, now) === "slow") || (marks[r.rank] === "f" && r.state === "failed"),
  );
  return lasts ? having(marks, "m") : [];
}

/** The culprits with a sentence for each: the ranks that the others wait for, and dead ranks.
 * @param {World} world @param {number} now @returns {Map<number, string>} */
export function blames(world, now) {
  const rung = troubledRung(world.ladder);
  /** @type {Map<number, string>} */
  const found = new Map(missing(world, now).map((rank) => [rank, rung ? absence(rung) : ""]));
  if (!world.ended) for (const r of world.ranks) if (r.state === "dead") found.set(r.rank, oneLine(r.note) || "died");
  return found;
}

/** @param {World} world @param {number} now @returns {Set<number>} the ranks that wait for others, or failed so */
export function victims(world, now) {
  const marks = troubledRung(world.ladder)?.marks ?? "";
  return new Set(missing(world, now).length ? [...having(marks, "a"), ...having(marks, "f")] : []);
}

/** The errors that several ranks have, each once: they are not on cards, but below the cards or in the sentence.
 * @param {Rank[]} ranks @returns {Map<string, number[]>} */
export function sharedErrors(ranks) {
  /** @type {Map<string, number[]>} */
  const by = new Map();
  for (const { rank, error } of ranks) {
    const text = oneLine(error);
    if (text) by.set(text, [...(by.get(text) ?? []), rank]);
  }
  return new Map([...by].filter(([, some]) => some.length > 1));
}

/** @param {World} world @param {number} now @returns {number} the rank that is chosen until the user chooses one */
export function worst(world, now) {
  const at = (/** @type {string} */ state) => world.ranks.find((r) => r.state === state)?.rank;
  return missing(world, now)[0] ?? at("dead") ?? at("failed") ?? world.ranks[0]?.rank ?? 0;
}

/** @param {World} world @param {number} now  whether there is a fault that the ladder may explain */
export const troubled = (world, now) => world.ranks.some((r) => ["failed", "dead", "slow"].includes(mood(r, now)));

/** One row for each rank, or for all ranks of equal marks if there are many; ranks in none of its groups have no row.
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
  `rank ${rank}: ${KINDS.flatMap((kind, i) => (i && isNothing(totals[i]) ? [] : `${kind} ${brief(totals[i])}`)).join(", ")}`;

/** @param {number} seconds  whether `brief` writes them as 0 */
const isNothing = (seconds) => seconds < 0.0005;

/** Whether a rank waited for others. @param {Bar} bar */
export const hasWaited = ({ totals }) => !isNothing(totals[1]);

/** @param {number} rank @param {Span} span  one stretch of a bar, in words */
export const spanLine = (rank, { kind, start, end, name, bytes: size, line }) =>
  [`rank ${rank}`, `${KINDS[kind]}${name && ` in ${name}`}`, brief(end - start), size ? bytes(size) : "", line]
    .filter(Boolean)
    .join(" · ");

/** @param {Timeline} timeline  how long the cell took, and how the time was spent */
export function took({ running, seconds, waiting, sentence }) {
  const share = waiting >= 0.005 ? `${percent(waiting)} of it waiting for other ranks` : "";
  return [`${running ? "runs for" : "took"} ${brief(seconds)}`, share, sentence].filter(Boolean).join(" · ");
}

/** @param {Timeline | null} timeline  whether it opens without a click: not for a short cell */
export const isWasteful = (timeline) =>
  !!timeline && timeline.waiting > WASTE && timeline.seconds >= (timeline.running ? 5 : 1);

/** @param {Past[]} past @returns {string} the rank that the others waited for in several cells; "" if there is none */
export function pastLine(past) {
  /** @type {Map<number, number>} */
  const times = new Map();
  for (const { late } of past) if (late >= 0) times.set(late, (times.get(late) ?? 0) + 1);
  const [worst_] = [...times].sort(([a, n], [b, m]) => m - n || a - b);
  if (!worst_ || worst_[1] < 2) return "";
  return `the others waited for rank ${worst_[0]} in ${worst_[1]} of the last ${past.length} cells`;
}

const CLOSEST = 1000; // a thousandth of the cell fills the bar

/** @param {[number, number]} view  parts of the whole @param {number} factor @param {number} at  the fixed point
 * @returns {[number, number]} */
export function zoomed([from, until], factor, at) {
  const width = Math.min(1, Math.max(1 / CLOSEST, (until - from) / factor));
  const start = at - ((at - from) / (until - from)) * width;
  return within(start, width);
}

/** @param {[number, number]} view @param {number} start @param {number} end  to be in it @returns {[number, number]} */
export function shifted([from, until], start, end) {
  if (end > from && start < until) return [from, until];
  return within((start + end - (until - from)) / 2, until - from);
}

/** @param {number} start @param {number} width @returns {[number, number]} */
function within(start, width) {
  const from = Math.max(0, Math.min(start, 1 - width));
  return [from, Math.min(1, from + width)];
}

/** @param {[number, number]} view */
export const isWhole = ([from, until]) => from <= 0 && until >= 1;

/** @param {any} packed @returns {Ladder | null} */
function unpackLadder(packed) {
  if (!packed) return null;
  const [group, rungs] = packed;
  return { group, rungs: rungs.map((/** @type {any[]} */ [seq, name, line, marks]) => ({ seq, name, line, marks })) };
}

/** @param {any} packed @returns {Timeline | null} */
function unpackTimeline(packed) {
  if (!packed) return null;
  const [cell, seconds, running, line, of, bars, waiting, calls] = packed;
  const made = bars.map((/** @type {any[]} */ bar) => unpackBar(bar, calls));
  return { cell, seconds, running, sentence: line, of, waiting, bars: made };
}

/** @param {any} packed @returns {Past[]} */
const unpackPast = (packed) =>
  (packed ?? []).map((/** @type {number[]} */ [cell, seconds, waiting, late]) => ({ cell, seconds, waiting, late }));

/** @param {any} packed @returns {Job | null} */
const unpackJob = (packed) => (packed ? { name: packed[0], ends: packed[1] } : null);

/** A bar's stretches have no gaps: each begins where the previous one ended.
 * @param {any[]} packed @param {[string, number, string][]} calls @returns {Bar} */
function unpackBar([rank, totals, first, flat], calls) {
  const spans = [];
  for (let i = 0, start = first; i < flat.length; start = flat[i + 1], i += 3) {
    const [name, size, line] = calls[flat[i + 2]] ?? ["", 0, ""];
    spans.push({ kind: flat[i], start, end: flat[i + 1], name, bytes: size, line });
  }
  return { rank, totals, spans };
}

// ── messages ─────────────────────────────────────────────────────────────────────────────────────────────

/**
 * The world after a message. A delta's rows are whole, so the next keyframe repairs a lost one.
 *
 * @param {World | null} world @param {any} message @returns {World | null}
 */
export function apply(world, message) {
  if (message.kind === "delta") {
    if (!world || world.ended || message.version <= world.version) return world;
    const ranks = world.ranks.map((rank, i) => (message.rows[i] ? moved(rank, message.rows[i]) : rank));
    const { version, now, headline } = message;
    const next = { ...world, version, now, headline, ranks };
    if ("useful" in message) next.useful = message.useful;
    if ("ladder" in message) next.ladder = unpackLadder(message.ladder);
    if ("past" in message) next.past = unpackPast(message.past);
    if ("job" in message) next.job = unpackJob(message.job);
    if ("timeline" in message) next.timeline = unpackTimeline(message.timeline);
    return next;
  }
  if (message.kind !== "snapshot" && message.kind !== "end") return world;
  if (world && (world.ended || message.version < world.version)) return world;
  const ranks = message.ranks.map(
    (/** @type {any[]} */ [rank, local, node, host, device, pid, pss = false], /** @type {number} */ i) =>
      moved({ rank, local, node, host, device, pid, pss }, message.rows[i]),
  );
  const { version, now, meta, headline, useful = null } = message;
  const [ladder, timeline] = [unpackLadder(message.ladder), unpackTimeline(message.timeline)];
  const [past, job] = [unpackPast(message.past), unpackJob(message.job)];
  const ended = message.kind === "end";
  return { version, now, meta, headline, useful, ranks, ladder, timeline, past, job, ended };
}

/** @param {any} rank @param {any[]} row @returns {Rank} */
function moved(rank, [state, since, bytes, deviceMemory, deviceTotal, note, error = "", onGpu = ""]) {
  return { ...rank, state, since, memory: bytes, deviceMemory, deviceTotal, note, error, onGpu };
}

/**
 * A click after an answer of the kernel, or after a time without one. The answer to another click changes nothing; an
 * answer after the panel has given up does, because the kernel acts, and the panel must show that.
 *
 * @param {Press | null} press @param {any} message @returns {Press | null}
 */
export function answered(press, message) {
  if (!press || press.token !== message.token || press.stage === "done") return press;
  if (message.kind === "heard") return { ...press, stage: "heard", text: "" };
  if (message.kind === "done") return { ...press, stage: "done", text: message.text, ok: message.ok };
  if (message.kind === "unheard" && press.stage === "sent")
    return { ...press, stage: "lost", text: message.text, ok: false };
  return press;
}

/** Whether a button would change something. If that is not known, or no longer fresh, or the kernel itself is busy, the
 * button is enabled: one that does nothing is better than a disabled one that could have helped.
 *
 * @param {World} world @param {string} action @param {number} silent  seconds without messages @param {boolean} busy */
export function usable({ ended, useful, ranks }, action, silent, busy) {
  if (ended || !useful || useful.includes(action) || silent > STALE) return !ended;
  if (action === "interrupt") return busy || ranks.some((r) => r.state === "running" || r.state === "waiting");
  return action === "heal" ? ranks.some((r) => r.state === "dead") : true;
}

/** @param {Press | null} press  whether it is in progress */
export const isUnderWay = (press) => press?.stage === "sent" || press?.stage === "heard";
