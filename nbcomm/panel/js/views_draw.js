/**
 * Reads a distributed cell's output from the page, and draws parts of it again; the output itself does not change.
 *
 * @import { Common, Item, Output, RichOutput, TextOutput } from "./views_text.js"
 */

import { fold, make, ranksInWords } from "../../frontend/js/page.js";
import { diff, isLabel, isOurs, keys, ofRank } from "./views_text.js";

const CONTEXT = 3; // equal lines shown around a difference

// ── reading the page ─────────────────────────────────────────────────────────────────────────────────────

// These stay in sight in every view: the live panel, a rank that waits for input, and the notebook's own "show more
// outputs". views.css has the same list. An element without a type is neither read nor hidden.
const STAYS = ".nbcomm-panel, .jp-Stdin, .jp-TrimmedOutputs";

/** Cut a text output into lines that keep their colours and links, without a change of the page.
 * @param {Element} pre @returns {(start: number, end: number) => (string | Node)[]} */
function slicer(pre) {
  /** @type {{start: number, text: string, within: Element[]}[] | null} */
  let runs = null;
  return (start, end) => {
    runs ??= runsOf(pre);
    let [low, high] = [0, runs.length];
    while (high - low > 1) {
      const mid = (low + high) >> 1;
      if (runs[mid].start <= start) low = mid;
      else high = mid;
    }
    const parts = [];
    for (let at = low; at < runs.length && runs[at].start < end; at++) {
      const run = runs[at];
      const text = run.text.slice(Math.max(0, start - run.start), end - run.start);
      if (text) parts.push(run.within.length ? wrapped(text, run.within) : text);
    }
    return parts;
  };
}

/** @param {Element} pre */
function runsOf(pre) {
  const runs = [];
  const walker = document.createTreeWalker(pre, NodeFilter.SHOW_TEXT);
  let start = 0;
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const text = /** @type {Text} */ (node).data;
    const within = [];
    for (let el = node.parentElement; el && el !== pre; el = el.parentElement) within.push(el);
    runs.push({ start, text, within });
    start += text.length;
  }
  return runs;
}

/** @param {string} text @param {Element[]} within  innermost first */
function wrapped(text, within) {
  /** @type {Node} */
  let node = document.createTextNode(text);
  for (const el of within) {
    const shell = el.cloneNode(false);
    shell.appendChild(node);
    node = shell;
  }
  return node;
}

/** A figure; its key is read only when needed, because an image is large. @param {string} kind @param {Element} node
 * @returns {RichOutput} */
function rich(kind, node) {
  let key = "";
  return {
    node,
    get key() {
      key ||= `${kind} ${node.innerHTML}`;
      return key;
    },
  };
}

/** @param {Element} area @returns {Output[]} what the cell has shown, in order */
export function outputsOf(area) {
  /** @type {Output[]} */
  const outputs = [];
  for (const child of area.children) {
    const node = child.matches(".jp-OutputArea-child") && child.querySelector(".jp-OutputArea-output[data-mime-type]");
    if (!node || child.matches(STAYS) || child.querySelector(STAYS)) continue;
    const kind = node.getAttribute("data-mime-type") ?? "";
    if (/\.(stdout|stderr)$|^text\/plain$/.test(kind)) {
      const text = node.textContent ?? "";
      const stream = kind.endsWith("stderr") ? "stderr" : "stdout";
      const pre = node.querySelector("pre") ?? node;
      const isError =
        stream === "stderr" && isOurs(pre.querySelector(":scope > .ansi-bold:first-child")?.textContent ?? "");
      if (text) outputs.push({ text, stream, node, slice: slicer(pre), isError });
    } else if (node.childNodes.length) {
      outputs.push(rich(kind, node));
    }
  }
  return outputs;
}

/** @param {Output[]} a @param {Output[]} b */
export function isSame(a, b) {
  const told = (/** @type {Output} */ output) => ("text" in output ? output.stream + output.text : output.key);
  return a.length === b.length && a.every((output, i) => told(output) === told(b[i]));
}

const IMAGE = ".jp-RenderedImage, .jp-RenderedSVG";
const [LEAST, MOST] = [240, 360]; // px of a column: a larger figure is made smaller

/** @param {Output | undefined} output @returns {Element | undefined} the element of a figure */
const figureOf = (output) => (output && "key" in output ? output.node : undefined);

/** Whether images of several ranks follow each other, with nothing but a label between them, and nothing but images is
 * shown beside text. @param {Output[]} outputs */
export function isRow(outputs) {
  const isImage = (/** @type {Output | undefined} */ output) => figureOf(output)?.matches(IMAGE);
  if (!outputs.every((output) => "text" in output || isImage(output))) return false;
  return outputs.some(
    (output, i) => "text" in output && isLabel(output.text) && isImage(outputs[i - 1]) && isImage(outputs[i + 1]),
  );
}

/** The width of a column, in px: of the widest image, if that is neither too narrow nor too wide.
 * @param {Output[]} outputs */
export function column(outputs) {
  const images = outputs.flatMap((output) => [...(figureOf(output)?.querySelectorAll("img, svg") ?? [])]);
  const widths = images.map((image) => Number.parseFloat(image.getAttribute("width") ?? "") || naturalOf(image));
  return Math.max(LEAST, Math.min(MOST, Math.max(0, ...widths)));
}

/** @param {Element} image */
const naturalOf = (image) => (image instanceof HTMLImageElement && image.naturalWidth) || MOST;

// ── drawing ──────────────────────────────────────────────────────────────────────────────────────────────

/** An element that takes the keyboard. The attribute must be on the element itself, or the notebook takes typed
 * letters for its shortcuts, and "d d" deletes the cell.
 * @param {string} tag @param {string} name @param {(Node | string)[]} children */
export function control(tag, name, ...children) {
  const el = make(tag, name, ...children);
  el.setAttribute("data-lm-suppress-shortcuts", "true");
  if (el instanceof HTMLButtonElement) el.type = "button";
  return el;
}

/** A copy of a figure; the content of canvases is drawn into the copies. @param {Element} node */
function copyOf(node) {
  const copy = /** @type {Element} */ (node.cloneNode(true));
  const drawn = node.querySelectorAll("canvas");
  copy.querySelectorAll("canvas").forEach((canvas, i) => {
    if (drawn[i].width && drawn[i].height) canvas.getContext("2d")?.drawImage(drawn[i], 0, 0);
  });
  if (!node.querySelector("iframe, .jupyter-widgets")) return [copy];
  return [copy, make("p", "quiet", "This is a picture of it; it is live in the merged view.")];
}

/** @param {Item} item @param {boolean} told  whether it shows its ranks */
function figure(item, told = true) {
  const el = make("figure", "figure", ...copyOf(/** @type {Element} */ (/** @type {RichOutput} */ (item.from).node)));
  const ranks = told && item.ranks.length ? ranksInWords(item.ranks) : "";
  for (const image of el.querySelectorAll("img:not([alt])"))
    image.setAttribute("alt", `figure of ${ranksInWords(item.ranks)}`);
  if (ranks) el.prepend(make("figcaption", "who", item.late ? `${ranks} (late)` : ranks));
  return el;
}

/** Text of one stream that is added to an element; a long run of plain lines is one node. */
class Sheet {
  /** @param {string} stream @param {Element} into */
  constructor(stream, into) {
    this.stream = stream;
    this.root = into;
    this.into = into;
    this.plain = "";
  }

  /** Whether the following text is dimmed; a run of dimmed text is one element. @param {boolean} isDim */
  dim(isDim) {
    if (isDim === (this.into !== this.root)) return;
    this.end();
    this.into = isDim ? this.root.appendChild(make("span", "common")) : this.root;
  }

  /** @param {(string | Node)[]} parts */
  write(...parts) {
    for (const part of parts) {
      if (typeof part === "string") {
        this.plain += part;
      } else {
        this.end().into.append(part);
      }
    }
  }

  end() {
    if (this.plain) this.into.append(this.plain);
    this.plain = "";
    return this;
  }
}

/** Add a figure to its row, in the order of ranks, not of arrival.
 * @param {Element} row @param {HTMLElement} el @param {number | undefined} rank */
function place(row, el, rank) {
  if (rank !== undefined) el.dataset.rank = `${rank}`;
  const after = [...row.children].find(
    (other) => Number(/** @type {HTMLElement} */ (other).dataset.rank) > Number(rank),
  );
  row.insertBefore(el, after ?? null);
}

/**
 * @param {Item[]} items @param {{prefixes?: boolean, side?: boolean, common?: Common}} options  each line after its
 *   ranks, as in the merged output; adjacent figures side by side; the parts that are dimmed
 */
export function drawn(items, { prefixes = false, side = false, common } = {}) {
  let count = 0;
  /** @type {Element[]} */
  const parts = [];
  let sheet = /** @type {Sheet | undefined} */ (undefined);
  for (const item of items) {
    if ("text" in item.from) {
      if (sheet?.stream !== item.from.stream) {
        sheet?.end();
        const pre = document.createElement("pre");
        const el = make("div", "sheet jp-RenderedText", pre);
        el.setAttribute("data-mime-type", `application/vnd.jupyter.${item.from.stream}`);
        parts.push(el);
        sheet = new Sheet(item.from.stream, pre);
      }
      writeItem(sheet, item, prefixes && item.ranks.length ? `[${fold(item.ranks)}] ` : "", common, count);
      count += item.lines.length;
    } else {
      count++;
      sheet?.end();
      sheet = undefined;
      const last = parts.at(-1);
      const row = last?.matches(".figures") ? last : make("div", side ? "figures side" : "figures");
      if (row !== last) parts.push(row);
      place(row, figure(item, prefixes), side ? item.ranks[0] : undefined);
    }
  }
  sheet?.end();
  return parts;
}

/** One line of a text, with its colours. @param {Item} item @param {[number, number]} line */
function cut({ from }, [start, end]) {
  return "text" in from ? (from.slice?.(start, end) ?? []) : [];
}

/** @param {Sheet} sheet @param {Item} item @param {string} prefix @param {Common} [common] @param {number} [first]  the
 * number of its first line there */
function writeItem(sheet, item, prefix, common, first = 0) {
  item.lines.forEach(([start, end], i) => {
    sheet.write(i ? " ".repeat(prefix.length) : prefix);
    const isSame = !!common?.same.has(first + i);
    const [head, tail] = common?.ends.get(first + i) ?? [0, 0];
    if (common) sheet.dim(isSame || head > 0);
    if (item.late && !i) sheet.write(make("span", "late", "(late) "));
    if (head) {
      sheet.write(...cut(item, [start, start + head]));
      sheet.dim(false);
    }
    sheet.write(...cut(item, [start + head, end - tail]));
    if (tail) {
      sheet.dim(true);
      sheet.write(...cut(item, [end - tail, end]));
    }
    sheet.write("\n");
  });
}

/** @param {Item[]} items  @returns {{key: string, item: Item, line: [number, number] | undefined}[]} */
const entriesOf = (items) => items.flatMap((item) => keys(item).map((key, i) => ({ key, item, line: item.lines[i] })));

/** @typedef {ReturnType<typeof entriesOf>} Entries */

/** @param {Item[]} items @param {number} a @param {number} b @param {boolean} side */
export function drawnDiff(items, a, b, side) {
  if (a === b) return [make("p", "quiet", `This is rank ${a} twice: choose another rank.`)];
  const [old, young] = [entriesOf(ofRank(items, a)), entriesOf(ofRank(items, b))];
  const keysOf = (/** @type {Entries} */ entries) => entries.map((entry) => entry.key);
  const all = diff(keysOf(old), keysOf(young));
  if (all.every(({ sign }) => sign === " ")) {
    return [make("p", "quiet", `Ranks ${a} and ${b} have shown the same.`)];
  }
  const root = document.createElement("pre"); // where the notebook colours text
  for (let i = 0, end = 0; i < all.length; i = end) {
    const isEqual = all[i].sign === " ";
    while (end < all.length && (all[end].sign === " ") === isEqual) end++;
    const some = all.slice(i, end);
    const gone = some.filter(({ sign }) => sign !== "+").map(({ at }) => old[at]);
    const come = some.filter(({ sign }) => sign === "+").map(({ at }) => young[at]);
    root.append(...(isEqual ? equal(gone, i > 0, end < all.length, [a, b]) : changed(gone, come, a, b, side)));
  }
  return [make("div", "changes jp-RenderedText", root)];
}

/** A long equal stretch is folded, except the lines next to a difference.
 * @param {Entries} some @param {boolean} after @param {boolean} before @param {number[]} ranks @returns {Element[]} */
function equal(some, after, before, ranks) {
  const [head, tail] = [after ? CONTEXT : 0, before ? CONTEXT : 0];
  const show = (/** @type {Entries} */ entries) => changes(" ", entries, ranks);
  if (some.length <= head + tail + CONTEXT) return show(some);
  const middle = some.slice(head, some.length - tail);
  const summary = control("summary", "quiet", `${middle.length} equal lines`);
  const details = make("details", "equal", summary, ...show(middle));
  return [...show(some.slice(0, head)), details, ...show(some.slice(some.length - tail))];
}

/** The differences: the lines up to the first figure of either rank, the two figures, the lines up to the second, …
 * @param {Entries} gone @param {Entries} come @param {number} a @param {number} b @param {boolean} side */
function changed(gone, come, a, b, side) {
  const [old, young] = [upToFigures(gone), upToFigures(come)];
  /** @type {Element[]} */
  const parts = [];
  for (let i = 0; i < Math.max(old.length, young.length); i++) {
    const [{ lines: less = [], figure: was } = {}, { lines: more = [], figure: is } = {}] = [old[i], young[i]];
    parts.push(...changes("-", less), ...changes("+", more));
    const row = make("div", side ? "figures side" : "figures");
    if (was) row.append(...changes("-", [was], [a]));
    if (is) row.append(...changes("+", [is], [b]));
    if (row.firstChild) parts.push(row);
  }
  return parts;
}

/** @param {Entries} entries @returns {{lines: Entries, figure?: Entries[number]}[]} */
function upToFigures(entries) {
  /** @type {{lines: Entries, figure?: Entries[number]}[]} */
  const parts = [{ lines: [] }];
  for (const entry of entries) {
    const last = parts[parts.length - 1];
    if (entry.line) last.lines.push(entry);
    else parts.splice(-1, 1, { ...last, figure: entry }, { lines: [] });
  }
  return parts;
}

/** Entries after their sign: one element for all lines of a stream, because 20,000 elements would be slow.
 * @param {string} sign @param {Entries} entries @param {number[]} [ranks]  whose figures they are */
function changes(sign, entries, ranks) {
  /** @type {Element[]} */
  const parts = [];
  let sheet = /** @type {Sheet | undefined} */ (undefined);
  for (const { item, line } of entries) {
    const stream = "text" in item.from ? item.from.stream : "figure";
    if (!line || sheet?.stream !== stream) {
      sheet?.end();
      const el = make(sign === "-" ? "del" : sign === "+" ? "ins" : "div", `change ${stream}`);
      sheet = new Sheet(stream, el);
      parts.push(el);
    }
    sheet.write(`${sign} `, ...(line ? [...cut(item, line), "\n"] : [figure({ ...item, ranks: ranks ?? item.ranks })]));
  }
  sheet?.end();
  return parts;
}

/** @param {string} heading @param {Element[]} body */
export function block(heading, body) {
  return make("section", "block", make("div", "who", heading), ...body);
}

/** Arrow keys, Home and End move to another control, and choose it.
 * @param {KeyboardEvent} event @param {HTMLElement[]} all */
export function rove(event, all) {
  const at = all.indexOf(/** @type {HTMLElement} */ (event.target));
  const last = all.length - 1;
  /** @type {Record<string, number>} */
  const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: last };
  if (at < 0 || !(event.key in to)) return;
  event.preventDefault();
  event.stopPropagation();
  const next = all[(to[event.key] + all.length) % all.length];
  next.focus();
  next.click();
}

/** @param {HTMLElement[]} all @param {(el: HTMLElement) => boolean} isChosen @param {string} attribute */
export function choose(all, isChosen, attribute) {
  for (const el of all) {
    el.setAttribute(attribute, `${isChosen(el)}`);
    el.tabIndex = isChosen(el) ? 0 : -1;
  }
}
