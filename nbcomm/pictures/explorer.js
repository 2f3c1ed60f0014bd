/**
 * The explorer, drawn over the table that the notebook's file holds; the technique is that of panel.js.
 *
 * Nothing is computed here: each choice goes to the kernel, and its answer holds all that is to be drawn. Answers are
 * kept, so going back is instant even while the kernel runs a cell.
 *
 * @typedef {{text: string, sources: number[]}} Cell
 * @typedef {{steps: number, messages: number, busiest: string, received: string, total: string}} Cost
 * @typedef {[src: number, dst: number, chunks: number[], adds: boolean]} Message
 * @typedef {{name: string, messages: Message[], changes: [number, number, Cell | null][], cost: Cost | null}} Stage
 * @typedef {{title: string, formula: string[], labels: string[], start: (Cell | null)[][], stages: Stage[],
 *   cost: Cost | null}} Run
 * @typedef {{error: string, text: string, remedy: string, waits: number[], missing: number[], refused: number[]}} Broken
 * @typedef {{name: string, n: number, op: string, src: number, dst: number, mode: string, exclusive: boolean,
 *   algorithm: string, view: string, how: string, rank: number, own: number | null}} Choices
 * @typedef {{name: string[], op: string[], src: boolean, dst: boolean, mode: string[], exclusive: boolean,
 *   algorithm: string[], how: string[][], own: string[], ranks: number[]}} Options
 * @typedef {{id: string, asked: string | null, choices: Choices, options: Options, sentence: string, title: string,
 *   law: string, notes: string[], ranks: number[], before: (Cell | null)[][], after: (Cell | null)[][], run: Run,
 *   spelling: {library: string, line: string, there: boolean}[], broken: Broken | null}} Answer
 */

const PATIENCE = 1500; // ms without an answer after which the explorer says that the kernel is busy
const TURN = 1400; // ms that a step is shown while it plays
const KEPT = 200; // answers that are kept
/** Okabe and Ito's colours, which people with any colour vision tell apart; from rank 8 on again, and nearer to the text's. */
const COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#8c8c8c"];
const GONE = "The kernel that drew this is gone; run the cell again.";
// Of a restart the browser is not told here: its messages go nowhere.
const BUSY =
  "The kernel is busy with a cell; the answer comes when that has ended. If none runs, it was restarted: run this cell again.";

// ── pure: states, words, marks ───────────────────────────────────────────────────────────────────────────

/** @param {number[]} ranks  `[0, 1, 2, 5]` → `"0-2,5"` */
export function fold(ranks) {
  /** @type {number[][]} */
  const runs = [];
  for (const rank of [...new Set(ranks)].sort((a, b) => a - b)) {
    const last = runs.at(-1);
    if (last && rank === last[1] + 1) last[1] = rank;
    else runs.push([rank, rank]);
  }
  return runs.map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(",");
}

/** @param {number[]} ranks  `rank 3`, `ranks 0-2` */
export const named = (ranks) => `rank${new Set(ranks).size > 1 ? "s" : ""} ${fold(ranks)}`;

/** @param {number} n @param {string} word */
export const many = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

/**
 * What every rank has after a step; of each stage only the changes are known.
 *
 * @param {Run} run @param {number} step  0 is the start @returns {(Cell | null)[][]}
 */
export function stateAt(run, step) {
  const state = run.start.map((row) => [...row]);
  for (const stage of run.stages.slice(0, step))
    for (const [place, slot, cell] of stage.changes) state[place][slot] = cell;
  return state;
}

/** @param {string[]} labels @param {number[]} chunks @param {number} longest  `chunks 0-3`, `data`, `of ranks 1,2` */
export function chunkWords(labels, chunks, longest = 60) {
  const parts = chunks.map((chunk) => /^(.*\D)(\d+)$/.exec(labels[chunk] ?? ""));
  const [first] = parts;
  if (!first || parts.some((part) => part?.[1] !== first[1])) return chunks.map((chunk) => labels[chunk]).join(", ");
  const word = first[1].trim();
  const numbers = fold(parts.map((part) => Number(part?.[2])));
  return `${word}${chunks.length > 1 ? "s" : ""} ${numbers.length > longest ? `${numbers.slice(0, longest)}…` : numbers}`;
}

/** @param {number[]} ranks  whose data is in a cell, in the width of one: `0-3`, or of how many where that is shorter */
export function whose(ranks) {
  const folded = fold(ranks) || "–";
  return folded.length > 6 ? `of ${ranks.length}` : folded;
}

/** @param {Run} run @param {number} step  the step's name, as it stands over the picture */
export function stepName(run, step) {
  const stage = run.stages[step - 1];
  return stage
    ? `${step} of ${run.stages.length} · ${stage.name}`
    : `0 of ${run.stages.length} · what every rank brings`;
}

/** @param {Run} run @param {number} step  the same, and who sends what to whom, for who does not see the picture */
export function stepWords(run, step) {
  const messages = run.stages[step - 1]?.messages ?? [];
  const told = messages
    .slice(0, 4)
    .map(
      ([src, dst, chunks, adds]) =>
        `rank ${src} to rank ${dst}: ${chunkWords(run.labels, chunks)}${adds ? ", combined" : ""}`,
    );
  if (messages.length > told.length) told.push(`and ${many(messages.length - told.length, "more message")}`);
  return [`Step ${stepName(run, step)}.`, ...(told.length ? [`${told.join("; ")}.`] : [])].join(" ");
}

/** @param {number} rank @returns {string} */
export function colour(rank) {
  const plain = COLOURS[rank % COLOURS.length];
  return rank < COLOURS.length ? plain : `color-mix(in srgb, ${plain} 55%, var(--shade))`;
}

/** @param {number[]} ranks  one colour, or stripes of those that are in a reduced cell */
export function stripes(ranks) {
  if (!ranks.length) return "none";
  const width = 100 / ranks.length;
  const stops = ranks.map((rank, i) => `${colour(rank)} ${(i * width).toFixed(2)}% ${((i + 1) * width).toFixed(2)}%`);
  return `linear-gradient(90deg, ${stops.join(", ")})`;
}

/**
 * Whether a prediction is right: numbers compare as numbers (what is shown has four digits), texts without their spaces.
 *
 * @param {string} given @param {string} wanted  "" for nothing
 */
export function right(given, wanted) {
  const parts = (/** @type {string} */ text) =>
    text
      .replace(/−/g, "-")
      .split(/[\s,[\]()]+/)
      .filter(Boolean);
  const [mine, theirs] = [parts(given), parts(wanted)];
  return mine.length === theirs.length && mine.every((part, i) => part === theirs[i] || close(part, theirs[i]));
}

/** @param {string} one @param {string} other */
function close(one, other) {
  const [a, b] = [Number(one.replace(/^(-?)inf$/, "$1Infinity")), Number(other.replace(/^(-?)inf$/, "$1Infinity"))];
  return a === b || (Number.isFinite(a) && Math.abs(a - b) < 5e-4 * Math.abs(b) && !Number.isInteger(b));
}

/** @param {boolean[]} marks */
export function score(marks) {
  const good = marks.filter(Boolean).length;
  return good === marks.length
    ? `All ${many(marks.length, "cell")} right.`
    : `${good} of ${many(marks.length, "cell")} right.`;
}

/** @param {Broken} broken @param {number} rank @returns {[string, string]}  a glyph, and what the rank does, in words */
export function fate(broken, rank) {
  if (broken.missing.includes(rank)) return ["○", "never came"];
  if (broken.waits.includes(rank)) return ["◐", "waits for ever"];
  if (broken.refused.includes(rank)) return ["✕", "is refused"];
  return ["✓", "goes on"];
}

/** @param {Run} run @param {number} step @returns {[string, string, string][]}  counter, its value, and what it means */
export function counters(run, step) {
  if (!run.cost) return [];
  const none = { steps: 0, messages: 0, busiest: "0", received: "0", total: "0" };
  const now = run.stages[step - 1]?.cost ?? none;
  const all = run.cost;
  const [steps, data] = run.formula;
  return [
    ["steps", `${now.steps} of ${all.steps}`, steps],
    ["messages", `${now.messages} of ${all.messages}`, ""],
    [
      "sent by the busiest rank",
      `${now.busiest} of ${all.busiest} n`,
      data && data !== all.busiest ? `${data.replace(/^W−1$/, "(W−1)")} · n` : "",
    ],
    ["received by the busiest rank", `${now.received} of ${all.received} n`, ""],
    ["sent in all", `${now.total} of ${all.total} n`, ""],
  ];
}

/** @param {string} colour  as getComputedStyle writes it @returns {boolean | null}  null: transparent, ask further out */
export function isDark(colour) {
  const [r, g, b, a = 1] = (colour.match(/[\d.]+/g) ?? []).map(Number);
  if (b === undefined || a === 0) return null;
  return 0.2126 * r + 0.7152 * g + 0.0722 * b < 128;
}

// ── elements ─────────────────────────────────────────────────────────────────────────────────────────────

/** @param {string} tag @param {string} name @param {(Node | string)[]} children @returns {HTMLElement} */
function make(tag, name, ...children) {
  const el = document.createElement(tag);
  if (name) el.className = name;
  el.append(...children);
  return el;
}

/**
 * Something that takes the keyboard. Typed letters would be the notebook's shortcuts ("d d" deletes the cell), and the
 * mark that prevents it must be on the focusable element itself.
 *
 * @template {HTMLElement} T @param {T} el @returns {T}
 */
function key(el) {
  el.setAttribute("data-lm-suppress-shortcuts", "true");
  return el;
}

/** @param {string} text @param {string} name @param {() => void} press @returns {HTMLButtonElement} */
function button(text, name, press) {
  const el = /** @type {HTMLButtonElement} */ (key(make("button", "", text)));
  el.type = "button";
  if (name) el.setAttribute("aria-label", name);
  el.addEventListener("click", press);
  return el;
}

/** @param {HTMLElement} el @param {boolean} shown */
const show = (el, shown) => {
  el.hidden = !shown;
};

/** Writes only what differs, or a screen reader would say it again. @param {Element} el @param {string} text */
function write(el, text) {
  if (el.textContent !== text) el.textContent = text;
}

/** A choice among some, with its label. */
class Choice {
  /** @param {string} label @param {(value: string) => void} chosen */
  constructor(label, chosen) {
    this.select = /** @type {HTMLSelectElement} */ (key(make("select", "")));
    const name = /** @type {HTMLLabelElement} */ (make("label", "", label));
    name.htmlFor = this.select.id = `nbcomm-choice-${Math.random().toString(36).slice(2)}`;
    this.root = make("div", "choice", name, this.select);
    this.select.addEventListener("change", () => chosen(this.select.value));
  }

  /** @param {[string, string][]} options  values and texts @param {string} value */
  put(options, value) {
    const old = [...this.select.options].map((option) => option.value + option.text).join("\n");
    if (options.map(([v, text]) => v + text).join("\n") !== old) {
      this.select.replaceChildren(...options.map(([v, text]) => new Option(text, v)));
    }
    this.select.value = value;
    show(this.root, options.length > 0);
  }
}

/** @param {number} from @param {number} to @returns {[string, string][]} */
const numbers = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => [`${from + i}`, `${from + i}`]);
/** @param {string[]} texts @returns {[string, string][]} */
const plain = (texts) => texts.map((text) => [text, text]);

/** One value: its contributors' colours around a plate with the text, and their ranks below it, since a colour alone
 * tells nothing. @param {Cell | null} cell @param {string} label @param {boolean} fresh */
function chip(cell, label, fresh) {
  if (!cell) {
    const empty = make("span", "cell empty", make("span", "plate", "·"));
    empty.title = `${label}: empty`;
    return empty;
  }
  const el = make("span", "cell", make("span", "plate", cell.text), make("span", "who", whose(cell.sources)));
  el.style.setProperty("--stripes", stripes(cell.sources));
  el.classList.toggle("fresh", fresh);
  el.title = `${label}: ${cell.text}${cell.sources.length ? `, from ${named(cell.sources)}` : ""}`;
  return el;
}

// ── one place in the page ────────────────────────────────────────────────────────────────────────────────

class View {
  /** @param {HTMLElement} host @param {Live} live */
  constructor(host, live) {
    this.host = host;
    this.live = live;
    this.table = /** @type {HTMLElement[]} */ ([...host.children]);
    this.filled = ""; // what is being predicted
    const set = (/** @type {Partial<Choices>} */ some) => live.choose(some);
    this.choices = {
      name: new Choice("collective", (name) => set({ name, own: null })),
      op: new Choice("op", (op) => set({ op })),
      n: new Choice("ranks", (n) => set({ n: Number(n), own: null })),
      src: new Choice("src", (src) => set({ src: Number(src) })),
      dst: new Choice("dst", (dst) => set({ dst: Number(dst) })),
      mode: new Choice("mode", (mode) => set({ mode })),
      exclusive: new Choice("without its own", (value) => set({ exclusive: value === "yes" })),
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
    modes.setAttribute("aria-label", "what to do with it");
    this.law = make("p", "law");
    this.how = make("p", "how");
    this.sentence = make("p", "sentence");
    this.lanes = make("div", "lanes");
    this.heads = ["rank", "before", "messages", "after"].map((word) => make("span", `head ${word}`, word));
    this.arrows = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    this.arrows.setAttribute("aria-hidden", "true");
    this.picture = make("div", "picture", this.lanes, /** @type {any} */ (this.arrows));
    this.counters = make("dl", "counters");
    this.unit = make("p", "unit", "n is the size of what one rank brings; W is the number of ranks");
    this.breaker = make("div", "controls breaker", rank.root, how.root);
    this.verdict = make("div", "verdict");
    this.spelling = make("div", "spelling");
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
      this.spelling,
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

  /** Check and reveal; what is filled in lies in the lanes. */
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
    this.root.dataset.theme = theme(this.host);
    this.root.dataset.view = choices.view;
    this.root.setAttribute("aria-busy", `${waiting === BUSY}`);
    this.drawChoices(choices, options);
    write(this.sentence, waiting || answer.sentence);
    show(this.sentence, (waiting || answer.sentence) !== "");
    write(this.law, `${answer.law}${answer.notes.length ? ` · ${answer.notes.join(" · ")}` : ""}`);
    write(this.how, run.title && `${choices.algorithm}: ${run.title}`);
    const watching = choices.view === "watch";
    show(this.how, watching && run.title !== "");
    show(/** @type {HTMLElement} */ (this.steps), watching);
    for (const el of [this.counters, this.unit]) show(el, watching && run.cost !== null);
    show(/** @type {HTMLElement} */ (this.predict), choices.view === "predict");
    this.drawPlayer(run, step);
    this.drawBroken(answer);
    this.drawLanes(answer, step);
    this.drawCounters(run, step);
    this.drawSpelling(answer);
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

  /** @param {Run} run @param {number} step */
  drawPlayer(run, step) {
    const [slider, play] = [
      /** @type {HTMLInputElement} */ (this.slider),
      /** @type {HTMLButtonElement} */ (this.play),
    ];
    slider.max = `${run.stages.length}`;
    slider.value = `${step}`;
    slider.setAttribute("aria-valuetext", stepName(run, step));
    // Not disabled at the ends: that would take the keyboard's place away from who has just pressed it.
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
    if (predicting && this.filled === mark) return; // what the learner has filled in stays
    this.filled = predicting ? mark : "";
    const breaking = choices.view === "break" && broken;
    const [now, old] = [stateAt(run, step), stateAt(run, Math.max(0, step - 1))];
    const stage = run.stages[step - 1];
    write(this.heads[2], choices.view === "watch" ? "messages" : "");
    write(
      this.heads[3],
      breaking ? "what it does" : predicting ? "after: fill in" : step ? `after step ${step}` : "at first",
    );
    const arrived = new Set(
      (stage?.messages ?? []).flatMap(([, dst, chunks]) => chunks.map((chunk) => `${dst}/${chunk}`)),
    );
    const width = Math.max(1, ...answer.after.map((cells) => cells.length));
    const rows = ranks.map((rank, place) => {
      const who = make("span", "rank", make("i", "swatch"), `rank ${rank}`);
      who.style.setProperty("--stripes", colour(rank));
      const had = make("span", "cells before", ...before[place].map((cell, i) => chip(cell, `item ${i}`, false)));
      const sent = (stage?.messages ?? []).filter(([src]) => src === rank);
      const gutter = make(
        "span",
        "gutter",
        ...(choices.view === "watch" ? sent.slice(0, 1) : []).map((message) =>
          this.letter(message, run, sent.length - 1),
        ),
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
      const row = make("div", "lane", who, had, gutter, cells);
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
    this.lanes.replaceChildren(make("div", "lane heads", ...this.heads), ...rows);
    this.drawArrows();
  }

  /** @param {Message} message @param {Run} run @param {number} more */
  letter([, dst, chunks, adds], run, more) {
    const words = chunkWords(run.labels, chunks);
    const short = chunkWords(run.labels, chunks, 6);
    const el = make(
      "span",
      "letter",
      make("span", "what", `${adds ? "+ " : ""}${short} `),
      `→ ${dst}${more ? ` +${more}` : ""}`,
    );
    el.title = `${words} to rank ${dst}${adds ? ", combined with what is there" : ""}`;
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

  /** Mark each cell, in a glyph and a word. @param {boolean} reveal */
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
    const text = reveal ? "This is what the ranks get." : `${score(marks)} A rank that gets nothing stays empty.`;
    write(/** @type {HTMLElement} */ (this.result), text);
    this.say(text);
  }

  /** From the sender's lane to the receiver's, where the browser has put them. */
  drawArrows() {
    const { answer, step } = this.live;
    const box = this.picture.getBoundingClientRect();
    const gutters = new Map(
      [...this.lanes.querySelectorAll(".lane:not(.heads)")].map((lane) => [
        Number(/** @type {HTMLElement} */ (lane).dataset.rank),
        /** @type {Element} */ (lane.querySelector(".gutter")).getBoundingClientRect(),
      ]),
    );
    const messages = answer.choices.view === "watch" ? (answer.run.stages[step - 1]?.messages ?? []) : [];
    this.arrows.setAttribute("viewBox", `0 0 ${box.width} ${box.height}`);
    this.arrows.replaceChildren(
      ...messages.flatMap(([src, dst]) => {
        const [from, to] = [gutters.get(src), gutters.get(dst)];
        if (!from || !to || !from.width) return [];
        const [x1, y1] = [from.left - box.left + 2, from.top - box.top + from.height / 2];
        const [x2, y2] = [to.right - box.left - 9, to.top - box.top + to.height / 2];
        const bend = Math.min(40, (x2 - x1) / 2);
        const way = `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
        // The edge below makes pale yellow seen on white, and dark blue on black.
        return [
          ["edge", way],
          ["line", way],
          ["tip", `M${x2 + 8} ${y2}l-9 -4.5v9z`],
        ].map(([name, d]) => {
          const el = document.createElementNS("http://www.w3.org/2000/svg", "path");
          el.setAttribute("class", name);
          el.setAttribute("d", d);
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

  /** @param {Run} run @param {number} step */
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

  /** @param {Answer} answer */
  drawSpelling({ spelling }) {
    const text = JSON.stringify(spelling);
    show(this.spelling, spelling.length > 0);
    if (this.spelling.dataset.text === text) return;
    this.spelling.dataset.text = text;
    this.spelling.replaceChildren(
      ...spelling.map(({ library, line, there }) => {
        const code = make(there ? "code" : "span", there ? "" : "none", line);
        const copy = button("Copy", `copy the line of ${library}`, () => this.copy(library, line, copy));
        return make("div", "", make("span", "library", library), code, ...(there ? [copy] : []));
      }),
    );
  }

  /** @param {string} library @param {string} line @param {HTMLButtonElement} pressed */
  async copy(library, line, pressed) {
    try {
      await navigator.clipboard.writeText(line);
    } catch {
      // a page that is not served over https has no clipboard
      const area = /** @type {HTMLTextAreaElement} */ (make("textarea", ""));
      area.value = line;
      this.root.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
      pressed.focus();
    }
    write(pressed, "Copied");
    this.say(`The line of ${library} is copied.`);
    setTimeout(() => write(pressed, "Copy"), 2000);
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

  /** The table again, as if the explorer had never been there. */
  remove() {
    this.resized.disconnect();
    this.root.remove();
    for (const child of this.table) child.hidden = false;
  }
}

/** Whether whoever looks has asked for less motion. */
const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** By what is really behind it: a theme's name tells nothing. @param {Element} host */
function theme(host) {
  for (let el = /** @type {Element | null} */ (host); el; el = el.parentElement) {
    const dark = isDark(getComputedStyle(el).backgroundColor);
    if (dark !== null) return dark ? "dark" : "light";
  }
  return "light";
}

// ── life ─────────────────────────────────────────────────────────────────────────────────────────────────

/** What is chosen and answered, and every place in the page where it is drawn. */
class Live {
  /** @param {any} model */
  constructor(model) {
    this.model = model;
    this.answer = /** @type {Answer} */ (model.get("snapshot"));
    this.step = 0;
    this.playing = 0;
    this.waiting = ""; // why there is no answer yet
    this.busy = 0;
    this.asked = "";
    /** @type {Choices | undefined} what was asked for last, until that is answered */
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

  /** Ask for an answer, and show the one that is known already. @param {Partial<Choices>} some */
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
      // the link was closed: a restart, or many newer explorers
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
    // What a real cell did may be another thing after the next cell.
    if (answer.asked && answer.choices.own === null && !answer.sentence) this.kept.set(answer.asked, answer);
    if (this.kept.size > KEPT) this.kept.delete(/** @type {string} */ (this.kept.keys().next().value));
    if (answer.asked !== this.asked) return; // something else has been chosen since
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
    const verdict =
      choices.view === "break" && broken ? [broken.error, broken.text, broken.remedy].filter(Boolean).join(": ") : "";
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

/** This module is loaded once for each widget. @type {Live | undefined} */
let live;

/** @param {{model: any}} context */
function initialize({ model }) {
  live = new Live(model);
  return () => live?.close();
}

/** For a frontend that shows widgets, but not their neighbours in the page. @param {{el: HTMLElement}} context */
function render({ el }) {
  if (live) el.classList.add(live.selector.slice(1)); // it is put into the page later, and found then
  return live?.hydrate(el);
}

export default { initialize, render };
