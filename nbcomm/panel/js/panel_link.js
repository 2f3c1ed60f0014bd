/**
 * A panel whose kernel has ended.
 */
/** @import { World } from "./panel_words.js" */
import { duration, SILENCE } from "./panel_words.js";

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
