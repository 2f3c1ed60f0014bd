/**
 * From a distributed cell's merged output to each rank's output, and to the differences of two ranks. Pure functions.
 *
 * @typedef {{ranks: number[], late: boolean, bare: boolean, width: number, lines: [number, number][]}} Piece
 *   one piece of some ranks' output: the places of its lines in the text, without prefix and indentation. No ranks:
 *   it had no prefix. `bare`: it had only a prefix. `width`: the indentation of its further lines.
 * @typedef {{text: string, pieces: Piece[]}} Parsed
 * @typedef {{text: string, stream: string, node?: Element, slice?: (start: number, end: number) => (string | Node)[],
 *   isError?: boolean}} TextOutput  an error's text has labels with a traceback below each, and a last line of its own
 * @typedef {{key: string, node?: Element}} RichOutput  equal keys are equal outputs
 * @typedef {TextOutput | RichOutput} Output
 * @typedef {{ranks: number[], late: boolean, from: Output, lines: [number, number][]}} Item
 *   a piece in its output; figures and other displays have no lines
 * @typedef {{same: Set<number>, ends: Map<number, [number, number]>}} Common  the lines of a value that all values
 *   have, and how many letters at both ends of other lines; lines and figures are counted together
 * @typedef {{sign: " " | "-" | "+", at: number}} Change  `at` counts in the second list for "+", else in the first
 */
import { fold } from "../../frontend/js/page.js";

const PREFIX = /^\[(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)\]( \(late\))?(?= |$)/;
const START = /^\[([\d,-]+)\](?: |$)/gm;
const WORD = /[\w.\u0080-\uffff]/; // includes every letter of two code units
const WITHIN = 4000; // the most lines of all values together that are compared by their letters
const TABLE = 1_000_000; // cells of the diff's table; larger stretches count as wholly different

// ── from text to ranks ─────────────────────────────────────────────────────────────────────────────

/** @type {Map<string, number[]>} */
const unfolded = new Map(); // a cache, because a cell's lines begin with the same few sets of ranks

/** @param {string} text @returns {number[]}  `"0-2,5"` → `[0, 1, 2, 5]`; empty if it is not in nbcomm's form */
export function unfold(text) {
  let ranks = unfolded.get(text);
  if (!ranks) {
    ranks = text.split(",").flatMap((run) => {
      const [first, last = first] = run.split("-").map(Number);
      return Array.from({ length: Math.min(Math.max(0, last - first + 1), 10_000) }, (_, i) => first + i);
    });
    if (fold([...new Set(ranks)].sort((a, b) => a - b)) !== text) ranks = [];
    unfolded.set(text, ranks);
  }
  return ranks;
}

/**
 * The pieces of a text. If a text only grew, only the new part is read, because else each new line would cost another
 * reading of up to 20,000 lines.
 *
 * @param {string} text @param {Parsed} [before]  what this returned for an earlier text of the same output
 * @returns {Parsed}
 */
export function parse(text, before) {
  const grown = before?.text.endsWith("\n") && text.startsWith(before.text);
  const pieces = before && grown ? before.pieces : [];
  for (let start = before && grown ? before.text.length : 0, end = 0; start < text.length; start = end + 1) {
    end = text.indexOf("\n", start);
    if (end < 0) end = text.length;
    readLine(text, start, end, pieces);
  }
  return { text, pieces };
}

/** The pieces of an error's text: the lines below a label are its ranks' traceback, and the last line has no ranks.
 * @param {string} text @returns {Parsed} */
export function parseError(text) {
  /** @type {Piece[]} */
  const pieces = [];
  const last = text.trimEnd().lastIndexOf("\n") + 1;
  for (const piece of parse(text).pieces) {
    const before = pieces.at(-1);
    const at = piece.ranks.length || !before?.bare ? 0 : piece.lines.findIndex(([start]) => start >= last);
    const own = at < 0 ? piece.lines.length : at;
    if (before && own) before.lines.push(...piece.lines.slice(0, own));
    if (own < piece.lines.length) pieces.push({ ...piece, lines: piece.lines.slice(own) });
  }
  for (const piece of pieces) if (piece.bare && piece.lines.length > 1) piece.lines.shift(); // the label's own line
  return { text, pieces };
}

/** @param {string} text @param {number} start @param {number} end @param {Piece[]} pieces  gets the line */
function readLine(text, start, end, pieces) {
  const last = pieces.at(-1);
  const found = text[start] === "[" ? PREFIX.exec(text.slice(start, Math.min(end, start + 2000))) : null;
  const ranks = found ? unfold(found[1]) : [];
  if (found && ranks.length) {
    const width = found[0].length + 1;
    const from = Math.min(start + width, end);
    pieces.push({ ranks, late: !!found[2], bare: start + width > end, width, lines: [[from, end]] });
  } else if (last?.ranks.length && end - start >= last.width && isBlank(text, start, last.width)) {
    last.lines.push([start + last.width, end]);
  } else if (last && !last.ranks.length) {
    last.lines.push([start, end]);
  } else {
    pieces.push({ ranks: [], late: false, bare: false, width: 0, lines: [[start, end]] });
  }
}

/** @param {string} text @param {number} start @param {number} width */
function isBlank(text, start, width) {
  for (let i = start; i < start + width; i++) if (text[i] !== " ") return false;
  return true;
}

/** Whether ranks differ, by a quick check that stops at the first two different prefixes.
 * @param {Iterable<string>} texts */
export function isMixed(texts) {
  let first = "";
  for (const text of texts) {
    for (const [, ranks] of text.matchAll(START)) {
      if (first && ranks !== first && unfold(ranks).length) return true;
      if (!first && unfold(ranks).length) first = ranks;
    }
  }
  return false;
}

/** @param {string | undefined} text  of a cell's first text output */
export const isOurs = (text) => {
  const found = PREFIX.exec(text?.slice(0, 2000).split("\n", 1)[0] ?? "");
  return !!found && unfold(found[1]).length > 0;
};

/** Whether a text is a figure's label, and nothing else. @param {string} text */
export const isLabel = (text) => isOurs(text) && PREFIX.exec(text.trim())?.[0] === text.trim();

/** Whether ranks have made a cell's output. What a first cell tells of its world comes before: which other worlds could
 * be attached, that its own is ready, a notice. @param {{textContent: string | null}[]} texts  the cell's text outputs */
export const isOfRanks = (texts) => texts.slice(0, 4).some(({ textContent }) => isOurs(textContent ?? ""));

/**
 * The items of all outputs with their ranks. A figure belongs to the ranks of the bare prefix before it, which is then
 * not a line of its own.
 *
 * @param {Output[]} outputs @param {(output: TextOutput) => Parsed} [read] @returns {Item[]}
 */
export function itemsOf(outputs, read = ({ text, isError }) => (isError ? parseError(text) : parse(text))) {
  /** @type {Item[]} */
  const items = [];
  let label = false;
  for (const from of outputs) {
    if ("text" in from) {
      const { pieces } = read(from);
      for (const { ranks, late, lines } of pieces) items.push({ ranks, late, from, lines });
      label = pieces.at(-1)?.bare ?? false;
    } else {
      const { ranks, late } = (label && items.pop()) || { ranks: [], late: false };
      items.push({ ranks, late, from, lines: [] });
      label = false;
    }
  }
  return items;
}

/** @param {Item[]} items @returns {number[]} all ranks with output */
export const speakers = (items) => [...new Set(items.flatMap((item) => item.ranks))].sort((a, b) => a - b);

/** @param {Item[]} items @param {number} rank */
export const ofRank = (items, rank) => items.filter((item) => item.ranks.includes(rank));

/** @param {Item[]} items  @returns {Item[]} the items without ranks */
export const ofNobody = (items) => items.filter((item) => !item.ranks.length);

/** The keys that are equal if two ranks' outputs are equal. @param {Item} item @returns {string[]} one for each line */
export function keys({ from, late, lines }) {
  if (!("text" in from)) return [`figure ${from.key}`];
  return lines.map(([start, end]) => `${from.stream}${late ? " late" : ""} ${from.text.slice(start, end)}`);
}

/**
 * The ranks whose whole output is equal, with that output. Each rank has a state that stands for all its output so far.
 * Equal states with equal further output stay equal, so no rank's text needs to be joined.
 *
 * @param {Item[]} items @returns {{ranks: number[], items: Item[]}[]}  by their first ranks
 */
export function byValue(items) {
  /** @type {Map<string, number>} */
  const states = new Map();
  /** @type {Map<number, number>} */
  const at = new Map(speakers(items).map((rank) => [rank, 0]));
  for (const item of items) {
    for (const key of keys(item)) {
      /** @type {Map<number, number>} */
      const next = new Map();
      for (const rank of item.ranks) {
        const state = /** @type {number} */ (at.get(rank));
        if (!next.has(state)) {
          const step = `${state} ${key}`;
          if (!states.has(step)) states.set(step, states.size + 1);
          next.set(state, /** @type {number} */ (states.get(step)));
        }
        at.set(rank, /** @type {number} */ (next.get(state)));
      }
    }
  }
  /** @type {Map<number, number[]>} */
  const groups = new Map();
  for (const [rank, state] of at) groups.set(state, [...(groups.get(state) ?? []), rank]);
  return [...groups.values()].map((ranks) => ({ ranks, items: ofRank(items, ranks[0]) }));
}

/**
 * The two ranks to compare: these if they differ, else the first two that do; if none differ, the first two.
 *
 * @param {{ranks: number[]}[]} groups  as `byValue` returns them @param {number[]} pair @returns {number[]}
 */
export function pairOf(groups, pair) {
  const [of, to] = pair.map((rank) => groups.findIndex(({ ranks }) => ranks.includes(rank)));
  if (of >= 0 && to >= 0 && of !== to) return pair;
  const first = groups.slice(0, 2).flatMap(({ ranks }) => (groups.length > 1 ? ranks.slice(0, 1) : ranks));
  return [first[0] ?? 0, first[1] ?? first[0] ?? 0];
}

// ── the difference of two lists ────────────────────────────────────────────────────────────────────

/**
 * The changes that turn one list into the other. Equal entries at both ends stay; then entries that occur once in both
 * lists are anchors (as in patience diff), and the stretches between them are compared in full.
 *
 * @param {string[]} a @param {string[]} b @returns {Change[]}
 */
export function diff(a, b) {
  /** @type {Change[]} */
  const out = [];
  compare(a, b, 0, a.length, 0, b.length, out);
  return out;
}

/** @param {string[]} a @param {string[]} b @param {number} i @param {number} iEnd @param {number} j
 * @param {number} jEnd @param {Change[]} out */
function compare(a, b, i, iEnd, j, jEnd, out) {
  while (i < iEnd && j < jEnd && a[i] === b[j]) {
    out.push({ sign: " ", at: i++ });
    j++;
  }
  let tail = 0;
  while (i < iEnd - tail && j < jEnd - tail && a[iEnd - tail - 1] === b[jEnd - tail - 1]) tail++;
  [iEnd, jEnd] = [iEnd - tail, jEnd - tail];
  const anchors = i < iEnd && j < jEnd ? anchored(a, b, i, iEnd, j, jEnd) : [];
  if (anchors.length) {
    for (const [x, y] of [...anchors, /** @type {[number, number]} */ ([iEnd, jEnd])]) {
      compare(a, b, i, x, j, y, out);
      [i, j] = [x, y];
    }
  } else if ((iEnd - i) * (jEnd - j) <= TABLE) {
    inFull(a, b, i, iEnd, j, jEnd, out);
  } else {
    replace(i, iEnd, j, jEnd, out);
  }
  for (let at = iEnd; at < iEnd + tail; at++) out.push({ sign: " ", at });
}

/** @param {number} i @param {number} iEnd @param {number} j @param {number} jEnd @param {Change[]} out */
function replace(i, iEnd, j, jEnd, out) {
  for (; i < iEnd; i++) out.push({ sign: "-", at: i });
  for (; j < jEnd; j++) out.push({ sign: "+", at: j });
}

/** The longest ordered sequence of pairs of equal entries that occur once in each list.
 * @param {string[]} a @param {string[]} b @param {number} i @param {number} iEnd @param {number} j
 * @param {number} jEnd @returns {[number, number][]} */
function anchored(a, b, i, iEnd, j, jEnd) {
  const [inA, inB] = [onlyOnce(a, i, iEnd), onlyOnce(b, j, jEnd)];
  /** @type {{x: number, y: number, before: any}[]} */
  const piles = [];
  for (const [key, x] of inA) {
    const y = inB.get(key) ?? -1;
    if (x < 0 || y < 0) continue;
    let [low, high] = [0, piles.length];
    while (low < high) {
      const mid = (low + high) >> 1;
      if (piles[mid].y < y) low = mid + 1;
      else high = mid;
    }
    piles[low] = { x, y, before: piles[low - 1] };
  }
  /** @type {[number, number][]} */
  const chain = [];
  for (let top = piles.at(-1); top; top = top.before) chain.push([top.x, top.y]);
  return chain.reverse();
}

/** @param {string[]} list @param {number} start @param {number} end @returns {Map<string, number>} -1: more often */
function onlyOnce(list, start, end) {
  /** @type {Map<string, number>} */
  const found = new Map();
  for (let at = start; at < end; at++) found.set(list[at], found.has(list[at]) ? -1 : at);
  return found;
}

/** The longest common subsequence, by a table.
 * @param {string[]} a @param {string[]} b @param {number} i @param {number} iEnd @param {number} j
 * @param {number} jEnd @param {Change[]} out */
function inFull(a, b, i, iEnd, j, jEnd, out) {
  const [height, width] = [iEnd - i, jEnd - j + 1];
  const best = new Uint32Array((height + 1) * width);
  for (let x = height - 1; x >= 0; x--) {
    for (let y = width - 2; y >= 0; y--) {
      const at = x * width + y;
      best[at] = a[i + x] === b[j + y] ? best[at + width + 1] + 1 : Math.max(best[at + width], best[at + 1]);
    }
  }
  let [x, y] = [0, 0];
  while (x < height || y < width - 1) {
    if (x < height && y < width - 1 && a[i + x] === b[j + y]) {
      out.push({ sign: " ", at: i + x++ });
      y++;
    } else if (y >= width - 1 || (x < height && best[(x + 1) * width + y] >= best[x * width + y + 1])) {
      out.push({ sign: "-", at: i + x++ });
    } else {
      out.push({ sign: "+", at: j + y++ });
    }
  }
}

// ── what several lists have in common ──────────────────────────────────────────────────────────────

/**
 * What all values have in common, so that differences can be emphasised. Equal lines in another order are a
 * difference, too. If all have the same number of lines between two common ones, these are compared with each other.
 *
 * @param {Item[][]} values @returns {Common[]}  for each value
 */
export function common(values) {
  const lists = values.map((items) => items.flatMap((item) => keys(item)));
  const places = together(lists);
  const found = places.map((same) => ({ same: new Set(same), ends: new Map() }));
  /** @type {number[][]} */
  const rows = []; // lines at the same place, one of each list
  for (let n = 0; n <= places[0].length; n++) {
    const starts = places.map((same) => (n ? same[n - 1] + 1 : 0));
    const sizes = places.map((same, i) => (same[n] ?? lists[i].length) - starts[i]);
    if (sizes.some((size) => size !== sizes[0])) continue;
    for (let k = 0; k < sizes[0]; k++) rows.push(starts.map((start) => start + k));
    if (rows.length * lists.length > WITHIN) return found;
  }
  const texts = values.map((items) => items.flatMap(textsOf));
  for (const row of rows) {
    const said = row.map((at, i) => texts[i][at]);
    const kinds = row.map((at, i) => lists[i][at].slice(0, -said[i].length || undefined));
    const ends = kinds.every((kind) => kind === kinds[0]) ? endsOf(said) : [0, 0];
    if (ends[0] + ends[1]) row.forEach((at, i) => void found[i].ends.set(at, ends));
  }
  return found;
}

/** The text of each line; a figure has no lines. @param {Item} item */
const textsOf = ({ from, lines }) => ("text" in from ? lines.map(([start, end]) => from.text.slice(start, end)) : [""]);

/** The places in each list of the entries that all have, in order. @param {string[][]} lists @returns {number[][]} */
function together(lists) {
  const [first, ...others] = lists;
  let kept = first.map((_, i) => i);
  const places = others.map((list) => {
    /** @type {Map<number, number>} */
    const at = new Map();
    let place = 0;
    const changes = diff(
      kept.map((i) => first[i]),
      list,
    );
    for (const change of changes) {
      if (change.sign === " ") at.set(kept[change.at], place);
      if (change.sign !== "-") place++;
    }
    kept = [...at.keys()];
    return at;
  });
  return [kept, ...places.map((at) => kept.map((i) => /** @type {number} */ (at.get(i))))];
}

/** How many letters all texts have in common at their beginning and end; words and numbers are not cut.
 * @param {string[]} texts @returns {[number, number]} */
function endsOf(texts) {
  const [first, ...others] = texts;
  const least = Math.min(...texts.map((text) => text.length));
  const isWord = (/** @type {string} */ text, /** @type {number} */ at) => WORD.test(text[at] ?? "");
  let start = 0;
  while (start < least && others.every((text) => text[start] === first[start])) start++;
  while (start && isWord(first, start - 1) && texts.some((text) => isWord(text, start))) start--;
  let end = 0;
  while (end < least - start && others.every((text) => text.at(-end - 1) === first.at(-end - 1))) end++;
  while (end && isWord(first, first.length - end) && texts.some((text) => isWord(text, text.length - end - 1))) end--;
  return [start, end];
}
