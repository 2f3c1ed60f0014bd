/**
 * What a page has missed: the output of cells that ran while it was loaded.
 *
 * A page that is loaded while a cell runs never gets that cell's output. The notebook in the page shows it: the cell
 * has no number. The page asks the kernel once, which answers when it is free, says at its edge what is missing, and
 * puts it into the cells on a click, where the notebook's file keeps it. It needs no panel.
 *
 * @typedef {{number: number, id: string, began: number, ended: number | null}} RanCell  number: 0 is unknown
 * @typedef {{id: string, executionCount: number | null, trusted: boolean,
 *   outputs: {fromJSON: (outputs: any[]) => void}}} Cell  as JupyterLab and Notebook 7 keep it
 */

import { hearWhenLate, make, themeOf, write } from "../../frontend/js/page.js";
import { control } from "./views_draw.js";

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

/** @param {any} message @returns {RanCell[]} */
const unpacked = ({ cells }) =>
  cells.map((/** @type {any[]} */ [number, id, began, ended]) => ({ number, id, began, ended }));

/**
 * The cells of which a page has missed output. Times are by the kernel's clock.
 *
 * @param {any} message  the kernel's @param {number} loaded  when the page was loaded, or its notebook was closed
 * @param {(id: string) => Cell | null} find  a cell in the page
 */
export function missedOf(message, loaded, find) {
  if (loaded <= message.opened) return []; // it was there from the beginning
  return unpacked(message).filter(({ number, id, began, ended }) => {
    if (ended === null || ended < loaded) return false; // the page has the file of later
    const cell = find(id);
    return cell ? cell.executionCount === null || (number && cell.executionCount !== number) : began <= loaded;
  });
}

/** @param {RanCell[]} missed @param {boolean} there  whether the cells are in the page */
export function missedLine(missed, there) {
  const named = missed.map(({ number }) => (number ? `In [${number}]` : "a cell"));
  const all = [named.slice(0, -1).join(", "), named.at(-1)].filter(Boolean).join(" and ");
  const what = `This page missed output of ${all}: it was loaded while the ${missed.length > 1 ? "cells" : "cell"} ran.`;
  return there ? what : `${what} Type %distributed last in a cell to show it.`;
}

/** @param {Cell} cell @param {RanCell} ran @param {any[]} outputs  replaces what the page has of the cell */
export function putOutputs(cell, ran, outputs) {
  cell.trusted = true; // as when the notebook runs it: scripts of figures work
  cell.outputs.fromJSON(outputs);
  if (ran.number) cell.executionCount = ran.number;
}

const CLOSED = Symbol.for("nbcomm.closed"); // when this page's last notebook was closed

/** Look once whether the page has missed output. @param {any} model */
export function watchMissed(model) {
  const page = /** @type {any} */ (globalThis);
  const loaded = (page[CLOSED] ?? 0) / 1000;
  model.widget_manager?.context?.disposed?.connect(() => {
    page[CLOSED] = performance.now();
  });
  /** @type {Notice | undefined} */
  let notice;
  model.on("msg:custom", (/** @type {any} */ message) => {
    if (message.kind === "output") notice?.take(message);
    else if (!notice && message.cells) {
      const ahead = message.now - performance.now() / 1000;
      const missed = missedOf(message, loaded + ahead, (id) => cellOf(model, id));
      if (!missed.length) return;
      model.send({ kind: "lacks", cells: missed.map(({ began }) => began) });
      notice = new Notice(model, missed);
    }
  });
  model.send({ kind: "missed" });
  hearWhenLate(model).catch(() => {}); // another front end's models are made otherwise
}

/** The line about missed output, and its buttons. */
class Notice {
  /** @param {any} model @param {RanCell[]} missed */
  constructor(model, missed) {
    this.model = model;
    this.missed = missed;
    this.text = make("span", "line");
    this.show = control("button", "tool", "show it");
    this.show.addEventListener("click", () => this.ask());
    const close = control("button", "tool", "dismiss");
    close.addEventListener("click", () => this.root.remove());
    this.root = make("div", "nbcomm-views nbcomm-missed", this.text, this.show, close);
    this.root.setAttribute("role", "status");
    this.show.hidden = !missed.every(({ id }) => cellOf(model, id));
    write(this.text, missedLine(missed, !this.show.hidden));
    document.body.append(this.root);
    this.root.dataset.theme = themeOf(document.querySelector(".jp-CodeCell") ?? document.body);
  }

  ask() {
    for (const { began } of this.missed) this.model.send({ kind: "show", cell: began });
    write(this.show, "shown when the kernel is free");
  }

  /** @param {{cell: number, outputs?: any[], said?: string}} message */
  take({ cell: began, outputs, said }) {
    const ran = this.missed.find((each) => each.began === began);
    const cell = ran && cellOf(this.model, ran.id);
    if (!ran || !cell) return;
    if (outputs) {
      putOutputs(cell, ran, outputs);
      this.missed = this.missed.filter((each) => each !== ran);
    }
    if (said) {
      write(this.text, said);
      this.show.hidden = true;
    }
    if (!this.missed.length) this.root.remove();
  }
}
