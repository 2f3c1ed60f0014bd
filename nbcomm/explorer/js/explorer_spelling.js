/**
 * One call as each library spells it, to be copied; closed until the user opens it.
 */
/** @import { Answer } from "./explorer_words.js" */
import { make, REFUSED, selectAll, toClipboard, write } from "../../frontend/js/page.js";
import { button, key, show } from "./explorer_parts.js";

export class Spelling {
  /** @param {(text: string) => void} say */
  constructor(say) {
    this.say = say;
    this.lines = make("div", "lines");
    this.refused = make("p", "refused");
    this.drawn = "";
    const summary = key(make("summary", "", "The same call in nbcomm, torch, Lightning Fabric and Ignite"));
    this.root = make("details", "spelling", summary, this.lines, this.refused);
  }

  /** @param {Answer} answer */
  draw({ spelling }) {
    const text = JSON.stringify(spelling);
    show(this.root, spelling.length > 0);
    if (this.drawn === text) return;
    this.drawn = text;
    write(this.refused, "");
    this.lines.replaceChildren(
      ...spelling.map(({ library, line, there }) => {
        const code = make(there ? "code" : "span", there ? "" : "none", line);
        const copy = button("Copy", `copy the line of ${library}`, () => this.copy(library, code, copy));
        return make("div", "", make("span", "library", library), code, ...(there ? [copy] : []));
      }),
    );
  }

  /** @param {string} library @param {HTMLElement} code @param {HTMLButtonElement} pressed */
  async copy(library, code, pressed) {
    const done = await toClipboard(code.textContent ?? "");
    if (!done) selectAll(code, code);
    write(this.refused, done ? "" : REFUSED);
    write(pressed, done ? "Copied" : "Copy");
    this.say(done ? `The line of ${library} is copied.` : REFUSED);
    setTimeout(() => write(pressed, "Copy"), 2000);
  }
}
