/**
 * What a page has missed: a kernel that has ended, or the output of a cell during which the page was loaded.
 *
 * A page that is loaded while a cell runs never gets that cell's output. The notebook in the page shows it: the cell
 * has no number. The panel then says so, and puts the output into the cell, where the notebook's file keeps it.
 */
/** @import { LastCell, World } from "./panel_words.js" */
/** @import { Live } from "./panel.js" */
import { make, write } from "../../frontend/js/page.js";
import { button } from "./panel_parts.js";
import { duration, SILENCE } from "./panel_words.js";

/**
 * @typedef {{id: string, executionCount: number | null, trusted: boolean,
 *   outputs: {fromJSON: (outputs: any[]) => void}}} Cell  as JupyterLab and Notebook 7 keep it
 */

/** @param {any} model @param {string} id @returns {Cell | null} the cell in the page's notebook, if it is known */
export function cellOf(model, id) {
  const cells = id && model.widget_manager?.context?.model?.cells;
  if (!cells) return null;
  for (let at = 0; at < cells.length; at++) {
    const cell = cells.get(at);
    if (cell.id === id && typeof cell.outputs?.fromJSON === "function") return cell;
  }
  return null;
}

/**
 * Whether a page has missed output of the last cell. Times are by the kernel's clock.
 *
 * @param {World} world @param {number} loaded  when the page was loaded, or its
 * notebook was closed @param {number} linked  when it heard first
 * @param {Cell | null} cell  the last one, in the page
 */
export function hasMissed({ last, meta, ended }, loaded, linked, cell) {
  if (!last || last.ended === null || ended) return false;
  if (!(Number(meta.opened) < loaded && loaded <= last.ended)) return false; // it was there, or has the file of later
  if (!cell) return last.began <= loaded;
  const has = cell.executionCount !== null && (!last.number || cell.executionCount === last.number);
  return last.began <= linked && !has;
}

/** @param {LastCell} last */
const titled = ({ number }) => (number ? `In [${number}]` : "the last cell");

/** @param {LastCell} last @param {boolean} there  whether the cell is in the page @param {boolean} several  whether it
 * missed cells before it, too */
export const missedLine = (last, there, several) =>
  `This page missed output of ${titled(last)}: it was loaded while ${several ? "cells" : "the cell"} ran.` +
  (several ? " The output that it missed of earlier cells is not kept." : "") +
  (there ? "" : " Type %distributed last in a cell to show it.");

/** @param {Cell} cell @param {LastCell} last @param {any[]} outputs  replaces what the page has of the cell */
export function putOutputs(cell, last, outputs) {
  cell.trusted = true; // as when the notebook runs it: scripts of figures work
  cell.outputs.fromJSON(outputs);
  if (last.number) cell.executionCount = last.number;
}

/**
 * The sentence of a panel without news from its kernel.
 *
 * @param {World} world @param {number} silent  seconds without a message @param {boolean} cut  the kernel is known to
 * have ended
 */
export function lostLine({ meta }, silent, cut) {
  const left = (meta.grace ?? 0) - silent;
  const gone = cut
    ? "The kernel of this panel has ended."
    : `No news for ${duration(silent)}; the kernel may have ended.`;
  const back = left > 0 ? `for about ${duration(left)} more: in the next kernel, run %load_ext nbcomm and` : "";
  const live = back && `Its ranks and their variables live on ${back} %distributed attach.`;
  const over = meta.grace ? "Its ranks have ended by now, unless a notebook has attached to them." : "";
  return [gone, live || over, "This is the last known state."].filter(Boolean).join(" ");
}

/** Whether a panel has lost its kernel. @param {World} world @param {number} silent @param {boolean} cut */
export const isLost = ({ ended }, silent, cut) => !ended && (cut || silent > SILENCE);

/** The line about missed output, and its button. */
export class Missed {
  /** @param {Live} live */
  constructor(live) {
    this.live = live;
    this.text = make("span", "question");
    this.show = button("press show", "show it");
    this.root = make("div", "ask missed", this.text, this.show);
    this.draw(null);
  }

  /** @param {LastCell | null} missed */
  draw(missed) {
    const there = !!missed && !!cellOf(this.live.model, missed.id);
    this.root.hidden = !missed;
    this.show.hidden = this.show.disabled = !there;
    const loaded = this.live.ahead + this.live.away;
    if (missed) write(this.text, missedLine(missed, there, missed.began > loaded));
  }
}
