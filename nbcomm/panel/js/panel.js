/**
 * The live panel, drawn over the table in the notebook's file.
 *
 * The widget has no view: `initialize` runs as soon as the model exists, and finds every `.nbcomm-world-<id>` in the
 * page, now and whenever one appears (another cell, a reload, a new table at the end of a cell). A MutationObserver
 * runs before the next paint, so the bare table does not flash.
 *
 * The page never asks the kernel for data, because the kernel could not answer while a cell runs. The kernel receives a
 * click within 1.5 s or drops it, and the panel says which.
 */
/** @import { Press } from "./panel_words.js" */
import { make, withoutView, write } from "../../frontend/js/page.js";
import { isLost, lostLine } from "./panel_link.js";
import { answered, apply, isUnderWay, isWasteful, troubled, worst } from "./panel_story.js";
import { View } from "./panel_view.js";
import { ASKS, NOBODY, PATIENCE, SAID, SILENCE, spoken, UNHEARD } from "./panel_words.js";

const TAKEN = "nbcomm-world-taken"; // the event that tells a panel of a former kernel that its world has another one

// ── state and messages ───────────────────────────────────────────────────────────────────────────────────

/** The state of one world in this page, and every place where it is drawn. */
export class Live {
  /** @param {any} model */
  constructor(model) {
    this.model = model;
    this.world = apply(null, model.get("snapshot"));
    this.heard = performance.now();
    // The kernel's clock relative to the page's: the fastest message so far gives the best estimate.
    this.ahead = (this.world?.now ?? 0) - this.heard / 1000;
    /** Whether the kernel that this panel belongs to is known to have ended. */
    this.cut = false;
    this.chosen = 0;
    this.byHand = false;
    this.controls = this.world?.meta.controls ?? true;
    this.open = { ladder: false, timeline: false };
    /** A section that the user has closed does not open by itself again. */
    this.shut = { ladder: false, timeline: false };
    this.troubled = false;
    /** Whether the ladder was opened by a fault, and the user has not touched it since. */
    this.unasked = false;
    /** @type {string | null} */
    this.asking = null;
    /** @type {Press | null} */
    this.pressed = null;
    this.pressedAt = 0;
    this.answeredAt = 0;
    /** @type {{host: Element, key: string} | null} */
    this.focused = null;
    this.selector = `.nbcomm-world-${this.world?.meta.id}`;
    /** @type {WeakMap<Element, View>} */
    this.known = new WeakMap();
    /** @type {Set<View>} */
    this.views = new Set();
    this.announced = "";
    this.region = make("div", "nbcomm-spoken");
    this.region.setAttribute("aria-live", "polite");
    document.body.append(this.region);
    model.on("msg:custom", (/** @type {any} */ message) => this.hear(message));
    this.yielding = (/** @type {any} */ { detail }) => {
      if (detail.id !== this.world?.meta.id || detail.by === this) return;
      this.close();
    };
    document.addEventListener(TAKEN, this.yielding);
    document.dispatchEvent(new CustomEvent(TAKEN, { detail: { id: this.world?.meta.id, by: this } }));
    this.followLink().catch(() => {}); // another front end's models are made otherwise
    this.observer = new MutationObserver((records) => {
      for (const { addedNodes } of records)
        for (const node of addedNodes) if (node instanceof Element) this.hydrate(node);
    });
    this.observer.observe(document.body, { childList: true, subtree: true });
    this.clock = setInterval(() => this.tick(), 1000);
    this.hydrate(document.body);
  }

  /** Notice the end of the kernel: a front end marks the models whose link it has cut. */
  async followLink() {
    const itself = await this.model.widget_manager.get_model(this.model.get("key"));
    itself.on("comm_live_update", () => {
      this.cut = itself.comm_live === false;
      this.draw();
    });
  }

  /** @param {any} message */
  hear(message) {
    if ("token" in message) {
      if (message.kind === "late") this.correct(message);
      else this.answer(message);
      return;
    }
    this.world = apply(this.world, message);
    this.heard = performance.now();
    this.ahead = Math.max(this.ahead, message.now - this.heard / 1000);
    if (this.world?.ended) [this.pressed, this.asking] = [null, null]; // a stopped world does not answer
    this.draw();
  }

  /** Seconds without a message. */
  get silent() {
    return (performance.now() - this.heard) / 1000;
  }

  /** The kernel's time, as far as it is known here. */
  now() {
    return this.ahead + performance.now() / 1000;
  }

  tick() {
    if (!isUnderWay(this.pressed) && performance.now() - this.answeredAt > SAID * 1000) this.pressed = null;
    this.draw();
    if (!this.world) return;
    const { silent } = this;
    // Without the seconds that count down.
    const lost =
      isLost(this.world, silent, this.cut) &&
      lostLine(this.world, silent, this.cut).replace(/ (?:for )?(?:about )?\d+ (?:h|min|s)\b/g, "");
    const text = lost || spoken(this.world, this.now());
    if (text !== this.announced && this.announced) write(this.region, text);
    this.announced = text;
  }

  // The buttons' actions.

  /** @param {string} action */
  press(action) {
    if (!this.world || this.world.ended || this.cut) return;
    if (action in ASKS) this.asking = action;
    else this.send(action);
  }

  /** @param {boolean} yes */
  decide(yes) {
    const action = this.asking;
    this.asking = null;
    if (yes && action) this.send(action);
    this.draw();
  }

  /** @param {string} action */
  send(action) {
    const token = Math.random().toString(36).slice(2);
    this.pressed = { action, token, stage: "sent", text: "", ok: true };
    if (action === "interrupt" && this.busy) {
      this.interrupt(token);
      return;
    }
    this.pressedAt = performance.now();
    const unheard = () => this.pressed?.token === token && this.pressed.stage === "sent";
    this.post();
    // A kernel drops messages that JupyterLab sends to a subshell that has just ended, as after a restart. It takes no
    // click twice.
    for (const part of [0.25, 0.6]) setTimeout(() => unheard() && this.post(), part * PATIENCE * 1000);
    setTimeout(() => {
      if (!unheard()) return;
      if (this.cut || (this.silent > SILENCE && !this.busy)) this.answer({ kind: "unheard", token, text: NOBODY });
      else if (action === "interrupt" && this.kernel) this.interrupt(token);
      else this.answer({ kind: "unheard", token, text: UNHEARD });
    }, PATIENCE * 1000);
  }

  /** Send the click, with its time by the best estimate of the kernel's clock so far. */
  post() {
    const { action, token } = this.pressed ?? {};
    try {
      this.model.send({ kind: "press", action, token, at: this.ahead + this.pressedAt / 1000 });
    } catch {
      this.cut = true; // the link is closed
    }
  }

  /** The kernel found a click late. On a slow page, the estimate of its clock may lag until now.
   * @param {{token: string, now: number}} message */
  correct({ token, now }) {
    const here = performance.now();
    this.ahead = Math.max(this.ahead, now - here / 1000);
    const unheard = this.pressed?.token === token && this.pressed.stage === "sent";
    if (unheard && here - this.pressedAt < PATIENCE * 1000) this.post();
  }

  /** The kernel's connection in JupyterLab and Notebook 7; other front ends may have none. @returns {any} */
  get kernel() {
    const kernel = this.model.widget_manager?.kernel;
    return typeof kernel?.interrupt === "function" ? kernel : null;
  }

  /** Whether the kernel is busy, as far as the page knows. */
  get busy() {
    return !!this.kernel && this.kernel.status !== "idle";
  }

  /** Interrupt as the notebook's ■ does: the server signals the kernel, even a busy one. @param {string} token */
  async interrupt(token) {
    this.answer({ kind: "heard", token });
    try {
      await this.kernel.interrupt();
      this.answer({ kind: "done", token, text: "The interrupt was sent, as by the notebook's ■ button.", ok: true });
    } catch (error) {
      const why = error instanceof Error ? error.message : error;
      this.answer({
        kind: "done",
        token,
        text: `The interrupt could not be sent (${why}); use the notebook's ■ button.`,
        ok: false,
      });
    }
  }

  /** @param {any} message */
  answer(message) {
    const before = this.pressed;
    this.pressed = answered(before, message);
    if (this.pressed === before) return;
    this.answeredAt = performance.now();
    this.draw();
    if (this.pressed?.text) write(this.region, this.pressed.text);
  }

  // The places where it is drawn.

  /** @param {Element} root */
  hydrate(root) {
    for (const host of root.matches(this.selector) ? [root] : root.querySelectorAll(this.selector)) this.attach(host);
  }

  /** @param {Element} host */
  attach(host) {
    const view = this.known.get(host) ?? new View(host, this);
    this.known.set(host, view);
    this.views.add(view);
    this.draw();
    const { focused } = this;
    if (focused && !focused.host.isConnected && document.activeElement === document.body) view.focus(focused.key);
  }

  draw() {
    if (!this.world) return;
    const { silent } = this;
    // Without messages it is not known whether the cell still runs, so its clock stops.
    const now = this.world.now + (this.world.ended ? 0 : Math.min(silent, SILENCE));
    const bad = troubled(this.world, now);
    if (bad && !this.troubled) this.open.ladder = this.unasked = true; // it is open until a cell has ended well
    if (!bad && this.troubled && this.unasked) this.open.ladder = this.unasked = false;
    this.troubled = bad;
    if (isWasteful(this.world.timeline) && !this.shut.timeline) this.open.timeline = true;
    if (!this.byHand || !this.world.ranks.some((r) => r.rank === this.chosen)) this.chosen = worst(this.world, now);
    for (const view of this.views) {
      if (view.host.isConnected) view.draw(this.world, now, silent);
      else this.views.delete(view); // scrolled out of a windowed notebook, or replaced by a new table
    }
  }

  close() {
    clearInterval(this.clock);
    document.removeEventListener(TAKEN, this.yielding);
    this.observer.disconnect();
    this.region.remove();
    // A stopped world keeps its last panel; any other end leaves the table.
    if (!this.world?.ended) for (const view of this.views) view.remove();
  }
}

export default withoutView((model) => new Live(model));
