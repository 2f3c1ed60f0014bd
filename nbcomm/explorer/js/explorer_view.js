/**
 * One place in the page where the explorer is drawn.
 */
/** @import { Transfer, Simulation, Broken, Choices, Options, Answer } from "./explorer_words.js" */
/** @import { Live } from "./explorer.js" */
import { make, themeOf, write } from "../../frontend/js/page.js";
import { button, Choice, chip, key, numbers, plain, show } from "./explorer_parts.js";
import { Spelling } from "./explorer_spelling.js";
import { BUSY, chunkWords, colour, counters, fate, right, score, stateAt, stepName, task } from "./explorer_words.js";

// ── one place in the page ────────────────────────────────────────────────────────────────────────────────

export class View {
  /** @param {HTMLElement} host @param {Live} live */
  constructor(host, live) {
    this.host = host;
    this.live = live;
    this.table = /** @type {HTMLElement[]} */ ([...host.children]);
    this.filled = ""; // the run that is being predicted
    const set = (/** @type {Partial<Choices>} */ some) => live.choose(some);
    this.choices = {
      name: new Choice("collective", (name) => set({ name, own: null })),
      op: new Choice("op", (op) => set({ op })),
      n: new Choice("ranks", (n) => set({ n: Number(n), own: null })),
      src: new Choice("src", (src) => set({ src: Number(src) })),
      dst: new Choice("dst", (dst) => set({ dst: Number(dst) })),
      mode: new Choice("mode", (mode) => set({ mode })),
      exclusive: new Choice("exclusive", (value) => set({ exclusive: value === "yes" })),
      algorithm: new Choice("algorithm", (algorithm) => set({ algorithm })),
      own: new Choice("call of my cell", (own) => set({ own: own === "" ? null : Number(own), view: "watch" })),
      how: new Choice("what it does", (how) => set({ how })),
      rank: new Choice("the rank", (rank) => set({ rank: Number(rank) })),
    };
    const { how, rank, ...others } = this.choices;
    this.tabs = ["watch", "predict", "break"].map((view) => {
      const tab = button({ watch: "Watch it", predict: "Predict it", break: "Break it" }[view] ?? view, "", () =>
        set({ view }),
      );
      tab.dataset.view = view;
      return tab;
    });
    const mine = button("From my cell", "", () => set({ own: this.live.answer.choices.own ?? 0, view: "watch" }));
    const modes = make("div", "tabs", ...this.tabs);
    modes.setAttribute("role", "group");
    modes.setAttribute("aria-label", "view");
    this.law = make("p", "law");
    this.how = make("p", "how");
    this.sentence = make("p", "sentence");
    this.lanes = make("div", "lanes");
    this.heads = ["rank", "before", "messages", "after"].map((word) => make("span", `head ${word}`, word));
    this.arrows = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.arrows.setAttribute("aria-hidden", "true");
    this.picture = make("div", "picture", this.lanes, /** @type {any} */ (this.arrows));
    this.counters = make("dl", "counters");
    this.unit = make("p", "unit", "n is the size of one rank's data; W is the number of ranks");
    this.breaker = make("div", "controls breaker", rank.root, how.root);
    this.verdict = make("div", "verdict");
    this.spelling = new Spelling((text) => this.say(text));
    this.spoken = make("div", "spoken");
    this.spoken.setAttribute("aria-live", "polite");
    this.root = make(
      "section",
      "nbcomm-live-explorer",
      make("div", "controls", ...Object.values(others).map((choice) => choice.root), mine),
      modes,
      this.sentence,
      this.law,
      this.how,
      this.player(),
      this.breaker,
      this.verdict,
      this.picture,
      this.predictor(),
      this.counters,
      this.unit,
      this.spelling.root,
      this.spoken,
    );
    this.root.setAttribute("aria-label", "collective explorer");
    this.root.addEventListener("keydown", (event) => this.pressed(event));
    for (const child of this.table) child.hidden = true;
    host.append(this.root);
    this.resized = new ResizeObserver(() => this.drawArrows());
    this.resized.observe(this.lanes);
  }

  /** First, back, play, next, last, and the slider. */
  player() {
    const { live } = this;
    this.slider = /** @type {HTMLInputElement} */ (key(make("input", "")));
    this.slider.type = "range";
    this.slider.setAttribute("aria-label", "step");
    this.slider.addEventListener("input", () => live.go(Number(this.slider?.value)));
    this.play = button("Play", "", () => live.toggle());
    this.buttons = {
      first: button("First", "", () => live.go(0)),
      back: button("Back", "", () => live.go(live.step - 1)),
      next: button("Next", "", () => live.go(live.step + 1)),
      last: button("Last", "", () => live.go(Infinity)),
    };
    const { first, back, next, last } = this.buttons;
    this.name = make("p", "step");
    this.steps = make(
      "div",
      "player",
      make("div", "buttons", first, back, this.play, next, last, this.slider),
      this.name,
    );
    return this.steps;
  }

  /** The buttons "check" and "reveal"; the fields for the predictions are in the lanes. */
  predictor() {
    this.result = make("p", "result");
    this.predict = make(
      "div",
      "predictor",
      make(
        "div",
        "buttons",
        button("Check", "", () => this.check()),
        button("Reveal", "", () => this.check(true)),
      ),
      this.result,
    );
    return this.predict;
  }

  draw() {
    const { answer, step, waiting } = this.live;
    const { choices, options, run } = answer;
    this.root.dataset.theme = themeOf(this.host);
    this.root.dataset.view = choices.view;
    this.root.setAttribute("aria-busy", `${waiting === BUSY}`);
    this.drawChoices(choices, options);
    write(this.sentence, waiting || answer.sentence);
    show(this.sentence, (waiting || answer.sentence) !== "");
    write(this.law, `${answer.law}${answer.notes.length ? ` · ${answer.notes.join(" · ")}` : ""}`);
    const [watching, predicting] = ["watch", "predict"].map((view) => choices.view === view);
    write(this.how, predicting ? task(answer.before) : run.title && `${choices.algorithm}: ${run.title}`);
    show(this.how, predicting || (watching && run.title !== ""));
    show(/** @type {HTMLElement} */ (this.steps), watching);
    for (const el of [this.counters, this.unit]) show(el, watching && run.cost !== null);
    show(/** @type {HTMLElement} */ (this.predict), predicting);
    this.drawPlayer(run, step);
    this.drawBroken(answer);
    this.drawLanes(answer, step);
    this.drawCounters(run, step);
    this.spelling.draw(answer);
  }

  /** @param {Choices} choices @param {Options} options */
  drawChoices(choices, options) {
    const { name, n, op, src, dst, mode, exclusive, algorithm, own, how, rank } = this.choices;
    const made = choices.own === null;
    const ranks = numbers(0, choices.n - 1);
    name.put(plain(options.name), choices.name);
    n.put(made ? numbers(options.ranks[0], options.ranks[1]) : [], `${choices.n}`);
    op.put(made ? plain(options.op) : [], choices.op);
    src.put(made && options.src ? ranks : [], `${choices.src}`);
    dst.put(made && options.dst ? ranks : [], `${choices.dst}`);
    mode.put(made ? plain(options.mode) : [], choices.mode);
    exclusive.put(made && options.exclusive ? plain(["no", "yes"]) : [], choices.exclusive ? "yes" : "no");
    algorithm.put(plain(options.algorithm), choices.algorithm);
    own.put(
      made
        ? []
        : [
            ...options.own.map((title, i) => /** @type {[string, string]} */ ([`${i}`, title])),
            ["", "none: made-up data"],
          ],
      `${choices.own}`,
    );
    how.put(
      options.how.map(([value, text]) => [value, text]),
      choices.how,
    );
    rank.put(ranks, `${choices.rank}`);
    for (const tab of this.tabs) {
      tab.setAttribute("aria-pressed", `${tab.dataset.view === choices.view}`);
      if (tab.dataset.view === "break") tab.disabled = !made;
    }
  }

  /** @param {Simulation} run @param {number} step */
  drawPlayer(run, step) {
    const [slider, play] = [
      /** @type {HTMLInputElement} */ (this.slider),
      /** @type {HTMLButtonElement} */ (this.play),
    ];
    slider.max = `${run.stages.length}`;
    slider.value = `${step}`;
    slider.setAttribute("aria-valuetext", stepName(run, step));
    // Not disabled at the ends: the button that was just pressed would lose the keyboard focus.
    for (const [name, el] of Object.entries(this.buttons ?? {})) {
      const end = name === "first" || name === "back" ? step === 0 : step === run.stages.length;
      el.setAttribute("aria-disabled", `${end}`);
    }
    write(play, this.live.playing ? "Pause" : "Play");
    show(play, !still());
    write(/** @type {HTMLElement} */ (this.name), stepName(run, step));
  }

  /** @param {Answer} answer @param {number} step */
  drawLanes(answer, step) {
    const { ranks, run, broken, choices, before } = answer;
    const predicting = choices.view === "predict";
    const mark = JSON.stringify([choices, answer.asked]);
    if (predicting && this.filled === mark) return; // keep what the user has filled in
    this.filled = predicting ? mark : "";
    const breaking = choices.view === "break" && broken;
    const [now, old] = [stateAt(run, step), stateAt(run, Math.max(0, step - 1))];
    const stage = run.stages[step - 1];
    write(
      this.heads[3],
      breaking ? "what it does" : predicting ? "after: fill in" : step ? `after step ${step}` : "initially",
    );
    const arrived = new Set(
      (stage?.messages ?? []).flatMap(([, dst, chunks]) => chunks.map((chunk) => `${dst}/${chunk}`)),
    );
    const width = Math.max(1, ...answer.after.map((cells) => cells.length));
    // A column that is always empty is left out.
    const [having, sending] = [before.some((cells) => cells.length > 0), choices.view === "watch"];
    const rows = ranks.map((rank, place) => {
      const who = make("span", "rank", make("i", "swatch"), `rank ${rank}`);
      who.style.setProperty("--stripes", colour(rank));
      const had = make("span", "cells before", ...before[place].map((cell, i) => chip(cell, `item ${i}`, false)));
      const sent = (stage?.messages ?? []).filter(([src]) => src === rank);
      const gutter = make(
        "span",
        "gutter",
        ...sent.slice(0, 1).map((message) => this.letter(message, run, sent.length - 1)),
      );
      const cells = make("span", "cells state");
      if (breaking) cells.append(this.fate(broken, rank));
      else if (predicting) cells.append(...Array.from({ length: width }, (_, i) => this.blank(rank, i, width)));
      else
        cells.append(
          ...now[place].map((cell, slot) =>
            chip(cell, run.labels[slot], arrived.has(`${rank}/${slot}`) || old[place][slot]?.text !== cell?.text),
          ),
        );
      const row = make("div", "lane", who, ...(having ? [had] : []), ...(sending ? [gutter] : []), cells);
      row.dataset.rank = `${rank}`;
      row.setAttribute("role", "group");
      row.setAttribute("aria-label", `rank ${rank}`);
      return row;
    });
    const all = [...now, ...before].flat();
    this.lanes.classList.toggle(
      "many",
      run.labels.length > 8 && all.every((cell) => (cell?.text.length ?? 0) < 5) && !breaking,
    );
    this.lanes.classList.toggle("long", run.labels.length > 4); // this leaves less room for the messages
    const heads = this.heads.filter((_, column) => (column !== 1 || having) && (column !== 2 || sending));
    this.lanes.dataset.columns = `${heads.length}`;
    this.lanes.replaceChildren(make("div", "lane heads", ...heads), ...rows);
    this.drawArrows();
  }

  /** @param {Transfer} message @param {Simulation} run @param {number} more */
  letter([, dst, chunks, adds], run, more) {
    const words = chunkWords(run.labels, chunks);
    const short = chunkWords(run.labels, chunks, 6);
    const el = make(
      "span",
      "letter",
      make("span", "what", `${adds ? "+ " : ""}${short} `),
      `→ ${dst}${more ? ` +${more}` : ""}`,
    );
    el.title = `${words} to rank ${dst}${adds ? ", combined with the data there" : ""}`;
    return el;
  }

  /** @param {number} rank @param {number} cell @param {number} width */
  blank(rank, cell, width) {
    const input = /** @type {HTMLInputElement} */ (key(make("input", "")));
    input.setAttribute("aria-label", `after, rank ${rank}${width > 1 ? `, cell ${cell}` : ""}`);
    input.autocomplete = "off";
    input.spellcheck = false;
    input.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.check();
    });
    return make("span", "guess", input, make("span", "mark"));
  }

  /** @param {Broken} broken @param {number} rank */
  fate(broken, rank) {
    const [glyph, word] = fate(broken, rank);
    const el = make("span", "fate", make("span", "glyph", glyph), word);
    el.dataset.fate = word;
    return el;
  }

  /** Mark each cell with a glyph and a word. @param {boolean} reveal */
  check(reveal = false) {
    const { answer } = this.live;
    const marks = [...this.lanes.querySelectorAll(".lane:not(.heads)")].flatMap((lane, place) =>
      [...lane.querySelectorAll(".guess")].map((guess, i) => {
        const input = /** @type {HTMLInputElement} */ (guess.querySelector("input"));
        const wanted = answer.after[place][i]?.text ?? "";
        if (reveal) input.value = wanted;
        const good = right(input.value, wanted);
        /** @type {HTMLElement} */ (guess).dataset.right = `${good}`;
        input.setAttribute("aria-invalid", `${!good}`);
        write(
          /** @type {Element} */ (guess.querySelector(".mark")),
          reveal ? (wanted ? "" : "nothing") : good ? "✓ right" : "✕ wrong",
        );
        return good;
      }),
    );
    const text = reveal ? "This is the result of each rank." : score(marks);
    write(/** @type {HTMLElement} */ (this.result), text);
    this.say(text);
  }

  /** Draw arrows from the senders' lanes to the receivers', at the positions of the browser's layout. */
  drawArrows() {
    const { answer, step } = this.live;
    const box = this.picture.getBoundingClientRect();
    const gutters = new Map(
      [...this.lanes.querySelectorAll(".lane:not(.heads)")].map((lane) => [
        Number(/** @type {HTMLElement} */ (lane).dataset.rank),
        lane.querySelector(".gutter")?.getBoundingClientRect(),
      ]),
    );
    const messages = answer.choices.view === "watch" ? (answer.run.stages[step - 1]?.messages ?? []) : [];
    this.arrows.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
    this.arrows.replaceChildren(
      ...messages.flatMap(([src, dst]) => {
        const [from, to] = [gutters.get(src), gutters.get(dst)];
        if (!from?.width || !to) return [];
        const [x1, y1] = [from.left - box.left + 2, from.top - box.top + from.height / 2];
        const [x2, y2] = [to.right - box.left - 9, to.top - box.top + to.height / 2];
        const bend = Math.min(40, (x2 - x1) / 2);
        const way = `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
        // The edge below makes pale yellow visible on white, and dark blue on black.
        return [
          ["edge", way],
          ["line", way],
          ["tip", `M${x2 + 8} ${y2}l-9 -4.5v9z`],
        ].map(([name, d]) => {
          const el = document.createElementNS("http://www.w3.org/2000/svg", "path");
          el.setAttribute("class", name);
          el.setAttribute("d", d);
          el.setAttribute("pathLength", "1");
          el.style.setProperty("--ink", colour(src));
          return el;
        });
      }),
    );
  }

  /** @param {Answer} answer */
  drawBroken({ choices, broken }) {
    const shown = choices.view === "break" && broken !== null;
    show(this.breaker, shown);
    show(this.verdict, shown);
    if (!broken) return;
    const text = broken.error ? `${broken.error}: ${broken.text}` : broken.text;
    if (this.verdict.dataset.text !== text) {
      this.verdict.dataset.text = text;
      const parts = [make("p", "", ...(broken.error ? [make("b", "", `${broken.error}: `)] : []), broken.text)];
      if (broken.remedy) parts.push(make("p", "", make("b", "", "What to do: "), broken.remedy));
      this.verdict.replaceChildren(...parts);
    }
  }

  /** @param {Simulation} run @param {number} step */
  drawCounters(run, step) {
    this.counters.replaceChildren(
      ...counters(run, step).map(([name, value, formula]) =>
        make(
          "div",
          "",
          make("dt", "", name),
          make("dd", "", value, ...(formula ? [make("small", "", ` = ${formula}`)] : [])),
        ),
      ),
    );
  }

  /** @param {string} text */
  say(text) {
    write(this.spoken, text);
  }

  /** @param {KeyboardEvent} event */
  pressed(event) {
    if (event.key !== "Escape") return;
    // Back to the cell, where the notebook's shortcuts work again.
    /** @type {HTMLElement | null} */ (document.activeElement)?.blur();
    /** @type {HTMLElement | null | undefined} */ (this.host.closest("[tabindex]"))?.focus();
  }

  /** Restore the table, as before the explorer. */
  remove() {
    this.resized.disconnect();
    this.root.remove();
    for (const child of this.table) child.hidden = false;
  }
}

/** Whether the user prefers reduced motion. */
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;
