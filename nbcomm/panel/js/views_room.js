/**
 * The place of the bar of a cell's views: over the output's top right corner, which is empty in most outputs. So
 * nothing moves under the reader when the bar appears or disappears. An output that reaches into that corner (a long
 * line, the panel) gets room above it, at its first line, before it is known whether the bar will appear.
 */

import { make } from "../../frontend/js/page.js";

const LINES = 3; // lines of an output that are measured: the bar is not higher than these
const LETTERS = 1000; // letters of these lines that are measured: as many fill any screen
const NEAR = 2; // px that letters leave free at the top and the bottom of their lines

/** The room of one cell's bar. */
export class Room {
  /** @param {HTMLElement} area @param {HTMLElement} bar @param {() => void} wake  requests another look */
  constructor(area, bar, wake) {
    this.area = area;
    this.bar = bar;
    this.height = 0;
    this.width = 0;
    this.asked = "";
    /** An element that a drawn view flows around, because the view may be drawn again in another layout. */
    this.corner = make("div", "corner");
    this.observer = new ResizeObserver(([{ contentRect }]) => {
      if (contentRect.width === this.width) return;
      this.width = contentRect.width;
      if (this.bar.isConnected) wake();
    });
    this.observer.observe(area);
  }

  /**
   * Reserve room if it is needed. Reserved room stays as long as there is output.
   *
   * @param {boolean} any  whether there is output @param {boolean} offered  whether the bar is visible
   * @param {boolean} drawn  whether a view other than the output is shown @param {boolean} running  the cell runs
   * @param {boolean} tall  whether the bar is higher than a line
   */
  make(any, offered, drawn, running, tall) {
    if (!any) this.set(0);
    else if (offered || running) this.set(Math.max(this.height, this.needed(tall)));
    if (drawn) this.corner.style.setProperty("width", `${this.bar.offsetWidth + 8}px`);
  }

  /** @param {number} height */
  set(height) {
    this.height = height;
    const wrapper = this.area.parentElement;
    wrapper?.classList.toggle("nbcomm-views-room", height > 0);
    wrapper?.style.setProperty("--nbcomm-views-room", `${height}px`);
  }

  isScrolled() {
    return !!this.area.closest(".jp-mod-outputsScrolled");
  }

  /** How much room is needed, in px; the elements of a hidden output have no height. @param {boolean} tall */
  needed(tall) {
    const bar = this.bar.getBoundingClientRect();
    const top = this.area.getBoundingClientRect().top - this.height;
    const left = bar.left - 8;
    const bottom = bar.bottom - NEAR;
    if (!bar.height) return 0;
    const full = Math.ceil(bar.bottom - top);
    if (tall || this.isScrolled()) return full;
    const reaches = (/** @type {DOMRect} */ box) => box.width && box.right > left && box.top - this.height < bottom;
    for (const child of this.area.children) {
      const box = child.getBoundingClientRect();
      if (!child.matches(".jp-OutputArea-child") || !box.height) continue;
      if (box.top - this.height >= bottom) break;
      const pre = child.querySelector(".jp-RenderedText.jp-OutputArea-output pre");
      if (pre ? [...firstLines(pre).getClientRects()].some(reaches) : reaches(box)) return full;
    }
    return 0;
  }
}

/** @param {Element} pre */
function firstLines(pre) {
  const range = document.createRange();
  range.setStart(pre, 0);
  let [lines, letters] = [0, 0];
  const walker = document.createTreeWalker(pre, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const text = /** @type {Text} */ (node).data;
    for (let at = 0; at < text.length; at++) {
      if (text[at] === "\n") lines++;
      if (lines < LINES && ++letters < LETTERS) continue;
      range.setEnd(node, at);
      return range;
    }
    range.setEnd(node, text.length);
  }
  return range;
}
