// The pure half of panel.js. cases.json is shared with the Python tests: both must say the same words.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import test from "node:test";

// As the browser gets it, from its text: the folder has no package.json to say that it is a module.
const source = await readFile(new URL("../../nbcomm/panel/panel.js", import.meta.url));
const panel = await import(`data:text/javascript;base64,${source.toString("base64")}`);
const cases = JSON.parse(await readFile(new URL("cases.json", import.meta.url), "utf-8"));

const ROW = ["idle", 5, 1 << 20, 0, 0, ""];
const snapshot = (version, ...rows) => ({
  kind: "snapshot", version, now: 10, meta: { id: "ab", title: "w", backend: "gloo" }, headline: null,
  ranks: rows.map((_, rank) => [rank, rank % 2, Math.floor(rank / 2), "host", "cpu", 100 + rank]), rows,
});
const delta = (version, rows) => ({ kind: "delta", version, now: 11, headline: null, rows });
const states = (world) => world.ranks.map((rank) => rank.state);

for (const name of ["fold", "duration", "amount"]) {
  test(`${name} writes what Python writes`, () => {
    for (const [given, expected] of cases[name]) assert.equal(panel[name](given), expected);
  });
}

test("the sentence is Python's", () => {
  for (const { ranks, now, says } of cases.sentence) {
    assert.equal(panel.sentence(ranks.map(([state, since, note], rank) => ({ rank, state, since, note })), now), says);
  }
});

test("a delta replaces the rows that it names", () => {
  const world = panel.apply(panel.apply(null, snapshot(1, ROW, ROW)), delta(2, { 1: ["running", 9, 0, 0, 0, ""] }));
  assert.deepEqual(states(world), ["idle", "running"]);
  assert.deepEqual([world.version, world.now, world.ranks[1].pid, world.ranks[1].since], [2, 11, 101, 9]);
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

test("the first lines and a rank's line", () => {
  const world = panel.apply(null, snapshot(1, ROW, ROW, ["dead", 9, 0, 2 ** 31, 2 ** 33, ""]));
  assert.equal(panel.sizeLine(world), "3 ranks on 2 nodes · gloo");
  assert.deepEqual(panel.counts(world.ranks), [["dead", 1], ["idle", 2]]);
  assert.deepEqual(panel.byNode(world.ranks).map(([node, ranks]) => [node, ranks.length]), [[0, 2], [1, 1]]);
  assert.equal(panel.place(world.ranks[0], 3), "rank 0 of 3 · local rank 0 · node 0 (host) · cpu · pid 100 · 1 MiB");
  assert.equal(
    panel.place(world.ranks[2], 3),
    "rank 2 of 3 · local rank 0 · node 1 (host) · cpu · pid 102 · – · GPU 2.0 GiB of 8.0 GiB",
  );
});

test("every state has a glyph of its own", () => {
  const glyphs = Object.values(panel.GLYPHS);
  assert.equal(new Set(glyphs).size, glyphs.length);
  assert.equal(glyphs.length, 7);
});
