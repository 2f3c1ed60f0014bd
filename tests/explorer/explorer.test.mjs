// The explorer's pure functions.
import assert from "node:assert/strict";
import test from "node:test";
import {
  chunkWords,
  colour,
  counters,
  fate,
  right,
  score,
  stateAt,
  stepName,
  stepWords,
  stripes,
  task,
  whose,
} from "../../nbcomm/explorer/js/explorer_words.js";
import { fold, isDark, many, ranksInWords } from "../../nbcomm/frontend/js/page.js";

const cell = (text, ...sources) => ({ text, sources });
const cost = (steps, messages, busiest) => ({ steps, messages, busiest, received: busiest, total: "3" });
const run = {
  title: "a ring",
  formula: ["2(W−1)", "2(W−1)/W"],
  labels: ["chunk 0", "chunk 1"],
  start: [
    [cell("1", 0), cell("1", 0)],
    [cell("2", 1), null],
  ],
  stages: [
    {
      name: "one",
      messages: [[0, 1, [0], true]],
      changes: [
        [0, 0, null],
        [1, 0, cell("3", 0, 1)],
      ],
      cost: cost(1, 1, "0.5"),
    },
    { name: "two", messages: [[1, 0, [0, 1], false]], changes: [[0, 0, cell("3", 0, 1)]], cost: cost(2, 2, "1") },
  ],
  cost: cost(2, 2, "1"),
};

test("ranks are folded and named", () => {
  assert.equal(fold([5, 0, 1, 2]), "0-2,5");
  assert.equal(ranksInWords([3]), "rank 3");
  assert.equal(ranksInWords([0, 1]), "ranks 0-1");
  assert.deepEqual([whose([]), whose([0, 1, 2, 3]), whose([0, 4, 8, 12])], ["–", "0-3", "of 4"]);
  assert.equal(many(1, "cell"), "1 cell");
  assert.equal(many(0, "cell"), "0 cells");
});

test("a state is the start and the changes up to a step, and leaves them alone", () => {
  const start = JSON.stringify(run.start);
  assert.deepEqual(stateAt(run, 0), run.start);
  assert.deepEqual(stateAt(run, 1), [
    [null, cell("1", 0)],
    [cell("3", 0, 1), null],
  ]);
  assert.deepEqual(stateAt(run, 2)[0][0], cell("3", 0, 1));
  assert.deepEqual(stateAt(run, 99), stateAt(run, 2));
  assert.equal(JSON.stringify(run.start), start);
});

test("chunks are named in few words", () => {
  assert.equal(chunkWords(["chunk 0", "chunk 1", "chunk 2"], [0, 1, 2]), "chunks 0-2");
  assert.equal(chunkWords(["of rank 4", "of rank 7"], [1]), "of rank 7");
  assert.equal(chunkWords(["data"], [0]), "data");
  assert.equal(chunkWords(["out", "running result"], [0, 1]), "out, running result");
  assert.equal(chunkWords(["d 1", "d 3", "d 5", "d 7"], [0, 1, 2, 3], 6), "ds 1,3,5,…");
});

test("steps have names, and words for who does not see the picture", () => {
  assert.equal(stepName(run, 0), "0 of 2 · the data of each rank");
  assert.equal(stepName(run, 2), "2 of 2 · two");
  assert.equal(stepWords(run, 1), "Step 1 of 2 · one. rank 0 to rank 1: chunk 0, combined.");
  assert.equal(stepWords(run, 0), "Step 0 of 2 · the data of each rank.");
  const crowd = { ...run, stages: [{ ...run.stages[0], messages: Array(16).fill([0, 1, [0], false]) }] };
  assert.match(stepWords(crowd, 1), /and 12 more messages\.$/);
});

test("each of 16 ranks has a colour of its own, and a reduced cell stripes of all", () => {
  assert.equal(new Set(Array.from({ length: 16 }, (_, rank) => colour(rank))).size, 16);
  assert.equal(stripes([]), "none");
  assert.match(stripes([0, 1]), /^linear-gradient\(90deg, #0072b2 0\.00% 50\.00%, #e69f00 50\.00% 100\.00%\)$/);
});

test("predictions are compared as numbers", () => {
  for (const [given, wanted] of [
    ["10", "10"],
    [" 10.0 ", "10"],
    ["−3", "-3"],
    ["1.5", "1.5"],
    ["3.33333", "3.333"],
    ["[1, 2]", "[1 2]"],
    ["", ""],
    ["1e3", "1000"],
    ["inf", "inf"],
  ]) {
    assert.ok(right(given, wanted), `${given} is ${wanted}`);
  }
  for (const [given, wanted] of [
    ["", "10"],
    ["10", ""],
    ["11", "10"],
    ["10.001", "10"],
    ["1 2 3", "[1 2]"],
    ["a", "b"],
    ["-inf", "inf"],
    ["0x", "0"],
  ]) {
    assert.ok(!right(given, wanted), `${given} is not ${wanted}`);
  }
  assert.equal(score([true, true]), "All 2 cells right.");
  assert.equal(score([true, false, false]), "1 of 3 cells right.");
});

test("what to type is said with an example of the data", () => {
  assert.match(task([[cell("10", 0)], [cell("20", 1)]]), /^Type what each rank has after the call, written like 10, /);
  assert.match(task([[], [cell("'a'", 1)]]), /written like 'a', and press Enter\. Leave a field empty/);
  assert.match(task([[], []]), /^Type what each rank has after the call, and press Enter\./); // a barrier
});

test("what a broken collective does to a rank has a glyph and a word", () => {
  const broken = { error: "HangError", text: "", remedy: "", waits: [0], missing: [1], refused: [3] };
  assert.deepEqual(
    [0, 1, 2, 3].map((rank) => fate(broken, rank)[1]),
    ["waits forever", "is absent", "continues", "is refused"],
  );
  assert.equal(new Set([0, 1, 2, 3].map((rank) => fate(broken, rank)[0])).size, 4);
});

test("counters count up to the step, beside the whole and its formula", () => {
  assert.deepEqual(
    counters(run, 0).map(([, value]) => value),
    ["0 of 2", "0 of 2", "0 of 1 n", "0 of 1 n", "0 of 3 n"],
  );
  assert.deepEqual(counters(run, 1)[2], ["sent by the busiest rank", "0.5 of 1 n", "2(W−1)/W · n"]);
  assert.deepEqual(counters({ ...run, cost: null }, 1), []);
});

test("a theme is told by the background", () => {
  assert.equal(isDark("rgb(17, 17, 17)"), true);
  assert.equal(isDark("rgb(255, 255, 255)"), false);
  assert.equal(isDark("rgba(0, 0, 0, 0)"), null);
});
