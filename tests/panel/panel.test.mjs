// The pure half of the panel. cases.json is shared with the Python tests: both must say the same words.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";

const panel = {
  ...(await import("../../nbcomm/frontend/js/page.js")),
  ...(await import("../../nbcomm/panel/js/panel_words.js")),
  ...(await import("../../nbcomm/panel/js/panel_story.js")),
  ...(await import("../../nbcomm/panel/js/panel_link.js")),
};
const cases = JSON.parse(await readFile(new URL("cases.json", import.meta.url), "utf-8"));

const ROW = ["idle", 5, 1 << 20, 0, 0, ""];
const snapshot = (version, ...rows) => ({
  kind: "snapshot",
  version,
  now: 10,
  meta: { id: "ab", title: "w", backend: "gloo" },
  headline: null,
  ranks: rows.map((_, rank) => [rank, rank % 2, Math.floor(rank / 2), "host", "cpu", 100 + rank]),
  rows,
});
const delta = (version, rows) => ({ kind: "delta", version, now: 11, headline: null, rows });
const states = (world) => world.ranks.map((rank) => rank.state);

for (const name of ["fold", "named", "duration", "remaining", "amount", "brief"]) {
  test(`${name} writes what Python writes`, () => {
    for (const [given, expected] of cases[name]) assert.equal(panel[name](given), expected);
  });
}

test("the sentence is Python's", () => {
  for (const { ranks, now, says } of cases.sentence) {
    assert.equal(
      panel.sentence(
        ranks.map(([state, since, note, error = ""], rank) => ({ rank, state, since, note, error })),
        now,
      ),
      says,
    );
  }
});

test("a delta replaces the rows that it names", () => {
  const world = panel.apply(panel.apply(null, snapshot(1, ROW, ROW)), delta(2, { 1: ["running", 9, 0, 0, 0, ""] }));
  assert.deepEqual(states(world), ["idle", "running"]);
  assert.deepEqual([world.version, world.now, world.ranks[1].pid, world.ranks[1].since], [2, 11, 101, 9]);
});

test("a delta without a ladder or a timeline leaves them, and one with takes them", () => {
  const calls = [["barrier #1", 8, "line 3: barrier()"]];
  const timeline = [4, 2, true, "rank 1 came last", 1, [[0, [1, 1, 0], 0.5, [0, 1.5, -1, 1, 2, 0]]], 0.5, calls];
  const packed = ["world", [[1, "barrier", "line 3: barrier()", "am"]]];
  const first = panel.apply(null, { ...snapshot(1, ROW, ROW), ladder: packed, timeline });
  const world = panel.apply(first, delta(2, {}));
  assert.deepEqual(world.ladder, {
    group: "world",
    rungs: [{ seq: 1, name: "barrier", line: "line 3: barrier()", marks: "am" }],
  });
  assert.deepEqual(world.timeline.bars, [
    {
      rank: 0,
      totals: [1, 1, 0],
      spans: [
        { kind: 0, start: 0.5, end: 1.5, name: "", bytes: 0, line: "" },
        { kind: 1, start: 1.5, end: 2, name: "barrier #1", bytes: 8, line: "line 3: barrier()" },
      ],
    },
  ]);
  assert.deepEqual(panel.apply(world, { ...delta(3, {}), ladder: ["world", []] }).ladder.rungs, []);
});

test("what comes late or twice is ignored", () => {
  const world = panel.apply(null, snapshot(5, ROW));
  assert.equal(panel.apply(world, delta(5, { 0: ["dead", 9, 0, 0, 0, ""] })), world);
  assert.equal(panel.apply(world, snapshot(4, ["dead", 9, 0, 0, 0, ""])), world);
  assert.equal(panel.apply(world, { kind: "from a later version" }), world);
  assert.equal(panel.apply(null, delta(1, {})), null);
});

test("a lost delta is made good by the next keyframe", () => {
  const world = panel.apply(panel.apply(null, snapshot(1, ROW, ROW)), snapshot(7, ["running", 9, 0, 0, 0, ""], ROW));
  assert.deepEqual(states(world), ["running", "idle"]);
});

test("after the end nothing changes any more", () => {
  const ended = panel.apply(panel.apply(null, snapshot(1, ROW)), { ...snapshot(1, ROW), kind: "end" });
  assert.equal(ended.ended, true);
  assert.equal(panel.apply(ended, delta(9, { 0: ["dead", 9, 0, 0, 0, ""] })), ended);
});

test("a wait is amber only after five seconds", () => {
  assert.equal(panel.mood({ state: "waiting", since: 10 }, 14.9), "waiting");
  assert.equal(panel.mood({ state: "waiting", since: 10 }, 15), "slow");
  assert.equal(panel.mood({ state: "running", since: 10 }, 99), "running");
});

test("dark is judged by the background's luminance", () => {
  assert.equal(panel.isDark("rgb(17, 17, 17)"), true);
  assert.equal(panel.isDark("rgb(255, 255, 255)"), false);
  assert.equal(panel.isDark("rgba(0, 0, 0, 0)"), null);
});

test("what is known of a rank's GPU is one line", () => {
  const on = ["idle", 9, 0, 2 ** 31, 2 ** 33, "", "", "torch has 1.0 GiB · NVIDIA H200"];
  const [with_, without] = panel.apply(null, snapshot(1, on, ROW)).ranks;
  assert.equal(panel.gpu(with_), "GPU 2.0 GiB of 8.0 GiB · torch has 1.0 GiB · NVIDIA H200");
  assert.equal(panel.gpu(without), "");
});

test("the first lines and a rank's line", () => {
  const world = panel.apply(null, snapshot(1, ROW, ROW, ["dead", 9, 0, 2 ** 31, 2 ** 33, ""]));
  assert.equal(panel.sizeLine(world), "2 nodes · gloo");
  assert.deepEqual(panel.counts(world.ranks), [
    ["dead", 1],
    ["idle", 2],
  ]);
  assert.deepEqual(
    panel.byNode(world.ranks).map(([node, ranks]) => [node, ranks.length]),
    [
      [0, 2],
      [1, 1],
    ],
  );
  assert.equal(panel.nodeOf({ ...world.ranks[0], host: "" }), "node 0");
  assert.equal(panel.place(world.ranks[0]), "rank 0 · local rank 0 · node 0 (host) · cpu · pid 100 · 1 MiB RSS");
  assert.match(panel.place({ ...world.ranks[0], pss: true }), / · 1 MiB PSS$/);
  assert.equal(
    panel.place(world.ranks[2]),
    "rank 2 · local rank 0 · node 1 (host) · cpu · pid 102 · GPU 2.0 GiB of 8.0 GiB",
  );
});

test("every state has a glyph of its own", () => {
  const glyphs = Object.values(panel.GLYPHS);
  assert.equal(new Set(glyphs).size, glyphs.length);
  assert.equal(glyphs.length, 7);
});

// ── the ladder and the timeline ──

const ladder = (...columns) => ({
  group: "world",
  rungs: columns.map((marks, i) => ({ seq: i + 1, name: "all_reduce", line: "", marks })),
});
const world = (rungs, ...states) => ({
  ladder: ladder(...rungs),
  headline: null,
  ranks: states.map(([state, since], rank) => ({ rank, state, since, note: "", error: "" })),
});

test("the marks are Python's, and so is what is wrong in a ladder", () => {
  assert.deepEqual(
    Object.entries(panel.MARKS).map(([letter, [glyph, word]]) => [letter, glyph, word]),
    cases.marks,
  );
  for (const [columns, says] of cases.ladder_line) assert.equal(panel.ladderLine(ladder(...columns)), says);
  assert.equal(panel.ladderLine(null), "");
});

test("whom the others wait for is blamed only when the wait lasts", () => {
  const hang = (since) => world(["ddd", "aam"], ["waiting", since], ["waiting", since], ["running", 0]);
  assert.deepEqual(panel.missing(hang(96), 100), []);
  assert.deepEqual(panel.missing(hang(90), 100), [2]);
});

test("after the verdict whom the others waited for is still to blame, until a cell ends well", () => {
  assert.deepEqual(panel.missing(world(["ffm"], ["failed", 99], ["failed", 99], ["idle", 99]), 100), [2]);
  assert.deepEqual(panel.missing(world(["ffm"], ["idle", 99], ["idle", 99], ["idle", 99]), 100), []);
});

test("who is to blame, and in what words, is Python's", () => {
  for (const { rungs, ranks, says } of cases.blames) {
    assert.deepEqual(Object.fromEntries(panel.blames(world(rungs, ...ranks), 100)), says);
  }
});

test("who has died is to blame, until the world is stopped", () => {
  const one = world([], ["idle", 0], ["dead", 0]);
  one.ranks[1].note = "was killed by SIGKILL";
  assert.deepEqual([...panel.blames(one, 100)], [[1, "was killed by SIGKILL"]]);
  assert.deepEqual([...panel.blames({ ...one, ended: true }, 100)], []);
});

test("who waited for the missing is quiet, and who failed by itself is not", () => {
  const hang = world(["ffm"], ["failed", 99], ["failed", 99], ["idle", 99]);
  assert.deepEqual([...panel.victims(hang, 100)], [0, 1]);
  assert.deepEqual([...panel.victims(world(["ff"], ["failed", 99], ["failed", 99]), 100)], []);
});

test("an error that several ranks have is told once, and one rank's own is left to its card", () => {
  const ranks = ["one\n two", "", "one two", "own"].map((error, rank) => ({ rank, error }));
  assert.deepEqual([...panel.sharedErrors(ranks)], [["one two", [0, 2]]]);
});

test("until somebody chooses, the one to look at is the culprit", () => {
  assert.equal(panel.worst(world(["aam"], ["waiting", 90], ["failed", 90], ["running", 0]), 100), 2);
  assert.equal(panel.worst(world([], ["idle", 0], ["failed", 0], ["dead", 0]), 100), 2);
  assert.equal(panel.worst(world([], ["idle", 0], ["failed", 0]), 100), 1);
  assert.equal(panel.worst(world([], ["idle", 0], ["idle", 0]), 100), 0);
});

test("ranks that stand alike share a row when there are many", () => {
  const rows = panel.ladderRows(ladder(`${"d".repeat(30)}-d`, `${"a".repeat(30)}-m`));
  assert.deepEqual(
    rows.map(({ ranks, marks }) => [panel.fold(ranks), marks.join("")]),
    [
      ["0-29", "da"],
      ["31", "dm"],
    ],
  );
  assert.equal(panel.ladderRows(ladder("aaa")).length, 3);
  assert.deepEqual(panel.ladderRows(ladder()), []);
});

test("the ladder explains failures, deaths and long waits", () => {
  for (const [state, since, expected] of [
    ["failed", 99, true],
    ["dead", 99, true],
    ["waiting", 99, false],
    ["waiting", 90, true],
    ["running", 0, false],
  ]) {
    assert.equal(panel.troubled(world([], [state, since]), 100), expected, state);
  }
});

test("a bar in words", () => {
  assert.equal(panel.barLine({ rank: 3, totals: [1.25, 0.012, 0] }), "rank 3: compute 1.3 s, waiting 12 ms");
});

test("a stretch in words has its collective, its data and its line", () => {
  const span = { kind: 1, start: 1, end: 2.5, name: "all_reduce #3", bytes: 4096, line: "line 5: all_reduce(step)" };
  assert.equal(panel.spanLine(2, span), "rank 2 · waiting in all_reduce #3 · 1.5 s · 4 KiB · line 5: all_reduce(step)");
  assert.equal(panel.spanLine(0, { ...span, kind: 0, name: "", bytes: 0, line: "" }), "rank 0 · compute · 1.5 s");
  assert.deepEqual([1, 8, 2048, 5 << 20].map(panel.bytes), ["1 byte", "8 bytes", "2 KiB", "5 MiB"]);
});

test("how long a cell took, and whom the others wait for again and again, are Python's words", () => {
  for (const { says, ...given } of cases.took) assert.equal(panel.took({ running: false, ...given }), says);
  assert.equal(panel.took({ running: true, seconds: 2, waiting: 0, sentence: "" }), "runs for 2.0 s");
  for (const [late, says] of cases.past_line) assert.equal(panel.pastLine(late.map((rank) => ({ late: rank }))), says);
});

test("the time is worth a look by itself when a fifth of a cell was waiting, and it was not short", () => {
  for (const [seconds, waiting, running, expected] of [
    [2, 0.5, false, true],
    [2, 0.2, false, false],
    [0.9, 0.5, false, false],
    [2, 0.5, true, false],
    [6, 0.5, true, true],
  ]) {
    assert.equal(panel.isWasteful({ seconds, waiting, running }), expected, `${seconds} s, ${waiting}`);
  }
  assert.equal(panel.isWasteful(null), false);
});

test("what is zoomed stays in its place, within the cell, and comes back to the whole", () => {
  assert.deepEqual(panel.zoomed([0, 1], 2, 0.5), [0.25, 0.75]);
  assert.deepEqual(panel.zoomed([0, 1], 2, 0), [0, 0.5]);
  assert.deepEqual(panel.zoomed([0.5, 1], 0.5, 1), [0, 1]);
  let view = [0, 1];
  for (let i = 0; i < 20; i += 1) view = panel.zoomed(view, 2, 0.3);
  assert.ok(view[0] < 0.3 && view[1] > 0.3 && Math.abs(view[1] - view[0] - 0.001) < 1e-9);
  for (let i = 0; i < 20; i += 1) view = panel.zoomed(view, 0.5, 0.3);
  assert.equal(panel.isWhole(view), true);
  assert.equal(panel.isWhole([0, 0.9]), false);
  assert.deepEqual(panel.shifted([0, 0.25], 0.1, 0.2), [0, 0.25]);
  assert.deepEqual(panel.shifted([0, 0.25], 0.5, 0.75), [0.5, 0.75]);
  assert.deepEqual(panel.shifted([0, 0.25], 0.9, 1), [0.75, 1]);
});

test("the last cells travel", () => {
  const first = panel.apply(null, { ...snapshot(1, ROW), past: [[4, 2, 0.5, 1]] });
  assert.deepEqual(first.past, [{ cell: 4, seconds: 2, waiting: 0.5, late: 1 }]);
  assert.deepEqual(panel.apply(first, delta(2, {})).past, first.past);
  assert.deepEqual(panel.apply(first, { ...delta(2, {}), past: [] }).past, []);
});

test("what is left of a job's time is said as in Python, and little time stands out", () => {
  for (const { now, ends, says, soon } of cases.job_line) {
    const job = { name: "Slurm job 12", ends };
    assert.deepEqual([panel.jobLine(job, now), panel.endsSoon(job, now)], [says, soon]);
  }
});

test("a job travels, and may be prolonged", () => {
  const first = panel.apply(null, { ...snapshot(1, ROW), job: ["Slurm job 12", 60] });
  assert.deepEqual(first.job, { name: "Slurm job 12", ends: 60 });
  assert.deepEqual(panel.apply(first, delta(2, {})).job, first.job);
  const longer = panel.apply(first, { ...delta(2, {}), job: ["Slurm job 12", 3600] });
  assert.deepEqual(longer.job, { name: "Slurm job 12", ends: 3600 });
  assert.deepEqual(panel.apply(longer, { ...snapshot(3, ROW), job: ["Slurm job 12", null] }).job.ends, null);
  assert.equal(panel.apply(null, { ...snapshot(1, ROW), job: null }).job, null);
  assert.equal(panel.apply(null, snapshot(1, ROW)).job, null);
});

test("without its kernel a panel names the way back while there is one", () => {
  const line = (grace, silent, cut = false) => panel.lostLine({ meta: { grace } }, silent, cut);
  const back = "in the next kernel, run %load_ext nbcomm and %distributed attach.";
  assert.equal(
    line(60, 8),
    `No news for 8 s; the kernel may have ended. Its ranks and their variables live on for about 52 s more: ${back} ` +
      "This is the last known state.",
  );
  assert.match(line(60, 1, true), /^The kernel of this panel has ended. Its ranks .* for about 59 s more/);
  assert.match(line(60, 61, true), /Its ranks have ended by now, unless a notebook has attached to them/);
  assert.equal(line(0, 1, true), "The kernel of this panel has ended. This is the last known state.");
  assert.equal(panel.isLost({ ended: false }, 1, true), true);
  assert.equal(panel.isLost({ ended: false }, 7, false), true);
  assert.equal(panel.isLost({ ended: false }, 5, false), false);
  assert.equal(panel.isLost({ ended: true }, 99, true), false);
});

// ── what is said, and the buttons ──

test("what is spoken has no clock and no short waits", () => {
  assert.equal(panel.spoken(world([], ["running", 25], ["waiting", 99]), 100), "running on ranks 0-1");
  assert.equal(panel.spoken(world([], ["waiting", 20], ["idle", 0]), 100), "rank 0 waiting");
  const given = (headline) => panel.spoken({ ...world([], ["idle", 0]), headline }, 100);
  assert.equal(given("waiting for rank 3 in all_reduce #12 (1 min 5 s)"), "waiting for rank 3 in all_reduce #12");
});

test("a button is disabled only where it is known that it would change nothing", () => {
  const calm = { ...world([], ["idle", 0], ["idle", 0]), useful: ["stop", "restart"] };
  const usable = (action, its = {}, silent = 0, busy = false) =>
    panel.usable({ ...calm, ...its }, action, silent, busy);
  assert.deepEqual(
    ["interrupt", "heal", "stop", "restart", "own"].map((action) => usable(action)),
    [false, false, true, true, true],
  );
  assert.equal(usable("interrupt", { useful: ["interrupt"] }), true);
  assert.equal(usable("interrupt", {}, 0, true), true, "the kernel runs something");
  assert.equal(usable("interrupt", { ranks: [{ state: "running" }] }), true);
  assert.equal(usable("heal", { ranks: [{ state: "dead" }] }), true);
  assert.equal(usable("heal", {}, 0, true), false);
  for (const action of ["interrupt", "heal"]) {
    assert.equal(usable(action, { useful: null }), true, "nothing is known");
    assert.equal(usable(action, {}, 4), true, "what is known is old");
    assert.equal(usable(action, { ended: true }), false);
  }
});

test("what may be pressed travels", () => {
  const first = panel.apply(null, { ...snapshot(1, ROW), useful: ["heal"] });
  assert.deepEqual(first.useful, ["heal"]);
  assert.deepEqual(panel.apply(first, delta(2, {})).useful, ["heal"]);
  assert.deepEqual(panel.apply(first, { ...delta(2, {}), useful: [] }).useful, []);
  assert.equal(panel.apply(null, snapshot(1, ROW)).useful, null);
});

test("a press is heard, then done", () => {
  const sent = { action: "heal", token: "t", stage: "sent", text: "", ok: true };
  const heard = panel.answered(sent, { kind: "heard", token: "t" });
  const done = panel.answered(heard, { kind: "done", token: "t", text: "rank 2 has a new process", ok: true });
  assert.deepEqual([sent, heard, done].map(panel.isUnderWay), [true, true, false]);
  assert.equal(done.text, "rank 2 has a new process");
  assert.equal(panel.answered(done, { kind: "unheard", token: "t", text: panel.UNHEARD }), done);
});

test("a press that nobody hears is lost, unless the kernel did hear it", () => {
  const sent = { action: "heal", token: "t", stage: "sent", text: "", ok: true };
  const lost = panel.answered(sent, { kind: "unheard", token: "t", text: panel.UNHEARD });
  assert.match(lost.text, /^The kernel is busy and cannot respond; use the notebook's ■ button, then try again\.$/);
  assert.equal(panel.isUnderWay(lost), false);
  assert.equal(panel.isUnderWay(panel.answered(lost, { kind: "heard", token: "t" })), true);
  const heard = panel.answered(sent, { kind: "heard", token: "t" });
  assert.equal(panel.answered(heard, { kind: "unheard", token: "t", text: panel.UNHEARD }), heard);
});

test("the answer to another page's press is none of this one's", () => {
  const sent = { action: "heal", token: "t", stage: "sent", text: "", ok: true };
  assert.equal(panel.answered(sent, { kind: "done", token: "u", text: "x", ok: true }), sent);
  assert.equal(panel.answered(null, { kind: "heard", token: "t" }), null);
});

/** A panel in a page without a table, and what it sends. */
async function live(world) {
  const part = () => ({
    append() {},
    remove() {},
    setAttribute() {},
    matches: () => false,
    querySelectorAll: () => [],
  });
  globalThis.document = Object.assign(new EventTarget(), { body: part(), createElement: part });
  globalThis.MutationObserver = class {
    observe() {}
    disconnect() {}
  };
  const { Live } = await import("../../nbcomm/panel/js/panel.js");
  const sent = [];
  const page = new Live({ get: () => world, on() {}, send: (press) => sent.push(press) });
  return { page, sent };
}

test("a job's time passes without being spoken", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
  let now = 1000;
  t.mock.method(performance, "now", () => now);
  const { page } = await live({ ...snapshot(1, ROW), job: ["Slurm job 12", 14] });
  for (let i = 0; i < 6; i += 1) {
    page.tick();
    now += 1000;
  }
  assert.equal(page.region.textContent, undefined);
  page.hear(delta(2, { 0: ["dead", 9, 0, 0, 0, ""] }));
  page.tick();
  assert.equal(page.region.textContent, "rank 0 died");
  page.close();
});

test("a click that the kernel found late goes again by the right clock, unless it is late here, too", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
  let now = 1000;
  t.mock.method(performance, "now", () => now);
  const { page, sent } = await live(snapshot(1, ROW)); // which was 3 seconds on its way
  page.send("heal");
  const { token } = page.pressed;
  now += 100;
  page.hear({ kind: "late", token, now: 13.1 });
  assert.deepEqual(
    sent.map(({ token, at }) => [token, at]),
    [
      [token, 10],
      [token, 13],
    ],
  );
  now += 1500; // its time here is over, although no timer has run yet
  page.hear({ kind: "late", token, now: 14.6 });
  assert.equal(sent.length, 2);
  t.mock.timers.tick(1500);
  assert.equal(page.pressed.stage, "lost");
  page.hear({ kind: "late", token, now: 99 });
  assert.equal(page.pressed.stage, "lost");
  assert.equal(sent.length, 4); // with the two that a click without an answer repeats
  page.close();
});

test("a click that nobody hears is not said to be sent, nor to wait for a busy kernel", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "setInterval"] });
  let now = 1000;
  t.mock.method(performance, "now", () => now);
  const { page } = await live(snapshot(1, ROW));
  let interrupts = 0;
  const kernel = { status: "idle", interrupt: () => interrupts++ };
  page.model.widget_manager = { kernel };
  const answer = (action) => {
    page.send(action);
    t.mock.timers.tick(1500);
    return page.pressed.text;
  };
  assert.equal(answer("heal"), panel.UNHEARD, "there was news just now");
  now += 7000;
  for (const action of ["heal", "interrupt"]) assert.equal(answer(action), panel.NOBODY);
  assert.equal(interrupts, 0);
  kernel.status = "busy"; // it may run a cell in which its threads have no turn
  page.send("interrupt");
  assert.equal(interrupts, 1);
  page.cut = true;
  page.pressed = null;
  page.press("heal");
  assert.equal(page.pressed, null, "nor is it sent where the kernel is known to have ended");
  page.close();
});
