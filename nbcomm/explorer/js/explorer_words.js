/**
 * The explorer's words and counts, made from the kernel's answers. Pure functions.
 *
 * @typedef {{text: string, sources: number[]}} Cell
 * @typedef {{steps: number, messages: number, busiest: string, received: string, total: string}} Cost
 * @typedef {[src: number, dst: number, chunks: number[], adds: boolean]} Transfer
 * @typedef {{name: string, messages: Transfer[], changes: [number, number, Cell | null][], cost: Cost | null}} Stage
 * @typedef {{title: string, formula: string[], labels: string[], start: (Cell | null)[][], stages: Stage[],
 *   cost: Cost | null}} Simulation
 * @typedef {{error: string, text: string, remedy: string, waits: number[], missing: number[], refused: number[]}} Broken
 * @typedef {{name: string, n: number, op: string, src: number, dst: number, mode: string, exclusive: boolean,
 *   algorithm: string, view: string, how: string, rank: number, own: number | null}} Choices
 * @typedef {{name: string[], op: string[], src: boolean, dst: boolean, mode: string[], exclusive: boolean,
 *   algorithm: string[], how: string[][], own: string[], ranks: number[]}} Options
 * @typedef {{id: string, asked: string | null, choices: Choices, options: Options, sentence: string, title: string,
 *   law: string, notes: string[], ranks: number[], before: (Cell | null)[][], after: (Cell | null)[][], run: Simulation,
 *   spelling: {library: string, line: string, there: boolean}[], broken: Broken | null}} Answer
 */
import { fold, many } from "../../frontend/js/page.js";

export const PATIENCE = 1500; // ms without an answer after which the explorer says that the kernel is busy
export const TURN = 1400; // ms for each step while it plays
export const KEPT = 200; // answers that are kept
/** Okabe and Ito's colours, which differ for any colour vision; from rank 8 on they repeat, nearer to the text's. */
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c8c8c"];
export const GONE = "The kernel of this explorer has ended; run the cell again.";
// The browser gets no notice of a restart here: its messages are lost.
export const BUSY =
  "The kernel is busy with a cell, and answers when that cell has ended. If no cell is running, the kernel was restarted: run this cell again.";

// ── pure: states, words, marks ───────────────────────────────────────────────────────────────────────────

/**
 * What every rank has after a step; a stage contains only the changes.
 *
 * @param {Simulation} run @param {number} step  0 is the start @returns {(Cell | null)[][]}
 */
export function stateAt(run, step) {
  const state = run.start.map((row) => [...row]);
  for (const stage of run.stages.slice(0, step))
    for (const [place, slot, cell] of stage.changes) state[place][slot] = cell;
  return state;
}

/** @param {string[]} labels @param {number[]} chunks @param {number} longest  `chunks 0-3`, `data`, `of ranks 1,2` */
export function chunkWords(labels, chunks, longest = 60) {
  const parts = chunks.map((chunk) => /^(.*\D)(\d+)$/.exec(labels[chunk] ?? ""));
  const [first] = parts;
  if (!first || parts.some((part) => part?.[1] !== first[1])) return chunks.map((chunk) => labels[chunk]).join(", ");
  const word = first[1].trim();
  const numbers = fold(parts.map((part) => Number(part?.[2])));
  return `${word}${chunks.length > 1 ? "s" : ""} ${numbers.length > longest ? `${numbers.slice(0, longest)}…` : numbers}`;
}

/** @param {number[]} ranks  whose data is in a cell, in its width: `0-3`, or their number if that is shorter */
export function whose(ranks) {
  const folded = fold(ranks) || "–";
  return folded.length > 6 ? `of ${ranks.length}` : folded;
}

/** @param {Simulation} run @param {number} step  the step's name, as shown above the picture */
export function stepName(run, step) {
  const stage = run.stages[step - 1];
  return stage
    ? `${step} of ${run.stages.length} · ${stage.name}`
    : `0 of ${run.stages.length} · the data of each rank`;
}

/** @param {Simulation} run @param {number} step  the step's name and its messages, for users who do not see the picture */
export function stepWords(run, step) {
  const messages = run.stages[step - 1]?.messages ?? [];
  const told = messages
    .slice(0, 4)
    .map(
      ([src, dst, chunks, adds]) =>
        `rank ${src} to rank ${dst}: ${chunkWords(run.labels, chunks)}${adds ? ", combined" : ""}`,
    );
  if (messages.length > told.length) told.push(`and ${many(messages.length - told.length, "more message")}`);
  return [`Step ${stepName(run, step)}.`, ...(told.length ? [`${told.join("; ")}.`] : [])].join(" ");
}

/** @param {number} rank @returns {string} */
export function colour(rank) {
  const plain = COLOURS[rank % COLOURS.length];
  return rank < COLOURS.length ? plain : `color-mix(in srgb, ${plain} 55%, var(--shade))`;
}

/** @param {number[]} ranks  one colour, or stripes for the ranks in a reduced cell */
export function stripes(ranks) {
  if (!ranks.length) return "none";
  const width = 100 / ranks.length;
  const stops = ranks.map((rank, i) => `${colour(rank)} ${(i * width).toFixed(2)}% ${((i + 1) * width).toFixed(2)}%`);
  return `linear-gradient(90deg, ${stops.join(", ")})`;
}

/**
 * Whether a prediction is right: numbers compare as numbers (shown ones have four digits), texts without spaces.
 *
 * @param {string} given @param {string} wanted  "" for nothing
 */
export function right(given, wanted) {
  const parts = (/** @type {string} */ text) =>
    text
      .replace(/−/g, "-")
      .split(/[\s,[\]()]+/)
      .filter(Boolean);
  const [mine, theirs] = [parts(given), parts(wanted)];
  return mine.length === theirs.length && mine.every((part, i) => part === theirs[i] || close(part, theirs[i]));
}

/** @param {string} one @param {string} other */
export function close(one, other) {
  const [a, b] = [Number(one.replace(/^(-?)inf$/, "$1Infinity")), Number(other.replace(/^(-?)inf$/, "$1Infinity"))];
  return a === b || (Number.isFinite(a) && Math.abs(a - b) < 5e-4 * Math.abs(b) && !Number.isInteger(b));
}

/** @param {(Cell | null)[][]} before  what to type in "Predict it"; the example is data that a rank brings */
export function task(before) {
  const brought = before.flat().find(Boolean)?.text;
  return `Type what each rank has after the call${brought ? `, written like ${brought}` : ""}, and press Enter. Leave a field empty if the rank has nothing there.`;
}

/** @param {boolean[]} marks */
export function score(marks) {
  const good = marks.filter(Boolean).length;
  return good === marks.length
    ? `All ${many(marks.length, "cell")} right.`
    : `${good} of ${many(marks.length, "cell")} right.`;
}

/** @param {Broken} broken @param {number} rank @returns {[string, string]}  a glyph, and the rank's state in words */
export function fate(broken, rank) {
  if (broken.missing.includes(rank)) return ["○", "is absent"];
  if (broken.waits.includes(rank)) return ["◐", "waits forever"];
  if (broken.refused.includes(rank)) return ["✕", "is refused"];
  return ["✓", "continues"];
}

/** @param {Simulation} run @param {number} step @returns {[string, string, string][]}  counter, its value, and its meaning */
export function counters(run, step) {
  if (!run.cost) return [];
  const none = { steps: 0, messages: 0, busiest: "0", received: "0", total: "0" };
  const now = run.stages[step - 1]?.cost ?? none;
  const all = run.cost;
  const [steps, data] = run.formula;
  return [
    ["steps", `${now.steps} of ${all.steps}`, steps],
    ["messages", `${now.messages} of ${all.messages}`, ""],
    [
      "sent by the busiest rank",
      `${now.busiest} of ${all.busiest} n`,
      data && data !== all.busiest ? `${data.replace(/^W−1$/, "(W−1)")} · n` : "",
    ],
    ["received by the busiest rank", `${now.received} of ${all.received} n`, ""],
    ["sent in all", `${now.total} of ${all.total} n`, ""],
  ];
}
