/**
 * The explorer, drawn over the table in the notebook's file; it works as panel.js does.
 *
 * Nothing is computed here: each choice goes to the kernel, and its answer contains all that is drawn. Answers are
 * kept, so an earlier choice is shown at once, even while the kernel runs a cell.
 */
/** @import { Choices, Answer } from "./explorer_words.js" */
import { withoutView } from "../../frontend/js/page.js";
import { View } from "./explorer_view.js";
import { BUSY, GONE, KEPT, PATIENCE, stepWords, TURN } from "./explorer_words.js";

// ── state and messages ───────────────────────────────────────────────────────────────────────────────────

/** The choices, the answers, and every place in the page where they are drawn. */
export class Live {
  /** @param {any} model */
  constructor(model) {
    this.model = model;
    this.answer = /** @type {Answer} */ (model.get("snapshot"));
    this.step = 0;
    this.playing = 0;
    this.waiting = ""; // why there is no answer yet
    this.busy = 0;
    this.asked = "";
    /** @type {Choices | undefined} the last request, until it is answered */
    this.wanted = undefined;
    this.kept = new Map([[JSON.stringify(this.answer.choices), this.answer]]);
    this.selector = `.nbcomm-explorer-${this.answer.id}`;
    /** @type {WeakMap<Element, View>} */
    this.known = new WeakMap();
    /** @type {Set<View>} */
    this.views = new Set();
    model.on("msg:custom", (/** @type {any} */ message) => this.hear(message));
    this.observer = new MutationObserver((records) => {
      for (const { addedNodes } of records)
        for (const node of addedNodes) if (node instanceof Element) this.hydrate(node);
    });
    this.observer.observe(document.body, { childList: true, subtree: true });
    this.hydrate(document.body);
  }

  /** Ask for an answer, and show a kept one meanwhile. @param {Partial<Choices>} some */
  choose(some) {
    this.pause();
    const choices = { ...(this.wanted ?? this.answer.choices), ...some };
    this.wanted = choices;
    this.asked = JSON.stringify(choices);
    clearTimeout(this.busy);
    const known = this.kept.get(this.asked);
    if (known) this.take(known);
    else this.busy = setTimeout(() => this.tell(BUSY), PATIENCE);
    try {
      this.model.send({ kind: "choose", asked: this.asked, choices });
    } catch {
      // the link was closed by a restart, or by many newer explorers
      clearTimeout(this.busy);
      if (!known) this.tell(GONE);
    }
  }

  /** Say why there is no answer. @param {string} why */
  tell(why) {
    this.waiting = why;
    this.draw();
    this.say(why);
  }

  /** @param {any} message */
  hear(message) {
    if (message?.kind !== "run") return;
    const answer = /** @type {Answer} */ (message);
    // The plans of a real cell may change with the next cell.
    if (answer.asked && answer.choices.own === null && !answer.sentence) this.kept.set(answer.asked, answer);
    if (this.kept.size > KEPT) this.kept.delete(/** @type {string} */ (this.kept.keys().next().value));
    if (answer.asked !== this.asked) return; // the choice has changed since
    clearTimeout(this.busy);
    this.take(answer);
  }

  /** @param {Answer} answer */
  take(answer) {
    const same = JSON.stringify(answer.run) === JSON.stringify(this.answer.run);
    const told =
      JSON.stringify([answer.choices, answer.sentence]) !== JSON.stringify([this.answer.choices, this.answer.sentence]);
    this.answer = answer;
    this.wanted = undefined;
    this.waiting = "";
    if (!same) this.step = 0;
    this.draw();
    const { broken, choices } = answer;
    const end = broken?.remedy ? ` What to do: ${broken.remedy}` : "";
    const verdict =
      choices.view === "break" && broken ? [broken.error, broken.text].filter(Boolean).join(": ") + end : "";
    if (told) this.say(answer.sentence || verdict || `${answer.title}: ${answer.law}.`);
  }

  /** @param {number} step */
  go(step) {
    this.step = Math.max(0, Math.min(step, this.answer.run.stages.length));
    if (this.step === this.answer.run.stages.length) this.pause();
    this.draw();
    this.say(stepWords(this.answer.run, this.step));
  }

  toggle() {
    if (this.playing) {
      this.pause();
      this.draw();
      return;
    }
    if (this.step === this.answer.run.stages.length) this.step = -1;
    this.playing = setInterval(() => this.go(this.step + 1), TURN);
    this.go(this.step + 1);
  }

  pause() {
    clearInterval(this.playing);
    this.playing = 0;
  }

  /** @param {Element} root */
  hydrate(root) {
    const hosts = root.matches(this.selector) ? [root] : root.querySelectorAll(this.selector);
    for (const host of hosts) {
      const view = this.known.get(host) ?? new View(/** @type {HTMLElement} */ (host), this);
      this.known.set(host, view);
      this.views.add(view);
      view.draw();
    }
  }

  draw() {
    for (const view of this.views) {
      if (view.host.isConnected) view.draw();
      else this.views.delete(view); // scrolled out of a windowed notebook
    }
  }

  /** @param {string} text */
  say(text) {
    for (const view of this.views) view.say(text);
  }

  close() {
    this.pause();
    clearTimeout(this.busy);
    this.observer.disconnect();
    for (const view of this.views) view.remove();
  }
}

export default withoutView((model) => new Live(model));
