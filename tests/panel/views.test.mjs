// From the merged output to what each rank has said: the pure half of the views.
import assert from "node:assert/strict";
import test from "node:test";
import { fold } from "../../nbcomm/frontend/js/page.js";
import * as views from "../../nbcomm/panel/js/views_text.js";

const out = (text) => ({ text, stream: "stdout" });
const err = (text) => ({ text, stream: "stderr" });
const fig = (key) => ({ key });
const said = ({ from, late, lines }) =>
  lines.length ? lines.map(([a, b]) => (late ? "late: " : "") + from.text.slice(a, b)).join("|") : `<${from.key}>`;
const all = (...outputs) => views.itemsOf(outputs).map((item) => [fold(item.ranks), said(item)]);
const rank = (n, ...outputs) => views.ofRank(views.itemsOf(outputs), n).map(said);
const groups = (...outputs) => views.byValue(views.itemsOf(outputs)).map((group) => fold(group.ranks));

test("ranks are read only as nbcomm writes them", () => {
  assert.deepEqual(views.unfold("0-2,5"), [0, 1, 2, 5]);
  assert.deepEqual(views.unfold("0,2-5"), [0, 2, 3, 4, 5]);
  assert.equal(views.unfold("0-63").length, 64);
  for (const other of ["3-1", "5,2", "0,1", "1,1", "01", "2-2", "", "0-99999999999"]) {
    assert.deepEqual(views.unfold(other), [], other);
  }
});

test("each line goes to the ranks before it", () => {
  assert.deepEqual(all(out("[0-3] same\n[0] a\n[1,3] b\n")), [
    ["0-3", "same"],
    ["0", "a"],
    ["1,3", "b"],
  ]);
  assert.deepEqual(rank(3, out("[0-3] same\n[0] a\n[1,3] b\n")), ["same", "b"]);
});

test("only the first prefix counts: what follows is the user's", () => {
  assert.deepEqual(all(out("[0-3] [0] x\n")), [["0-3", "[0] x"]]);
  assert.deepEqual(all(out("[1] a\n    [2] b\n[2] c\n")), [
    ["1", "a|[2] b"],
    ["2", "c"],
  ]);
  assert.deepEqual(all(out("[1][2] no\n[x] no\n[3-1] no\n")), [["", "[1][2] no|[x] no|[3-1] no"]]);
});

test("further lines lose nbcomm's indentation and keep their own", () => {
  assert.deepEqual(all(out("[0,2-5] def f():\n            return 1\n        \n          x\n")), [
    ["0,2-5", "def f():|    return 1||  x"],
  ]);
  assert.deepEqual(all(out("[0]         deep\n")), [["0", "        deep"]]);
  assert.deepEqual(all(out("[0] \n    second\n")), [["0", "|second"]]);
});

test("empty lines are lines, and a text without a last line's end is whole", () => {
  assert.deepEqual(all(out("[0]\n[0] \n[1] x")), [
    ["0", ""],
    ["0", ""],
    ["1", "x"],
  ]);
  assert.deepEqual(all(out("")), []);
});

test("late lines are marked, and their further lines found", () => {
  assert.deepEqual(all(out("[1] (late) one\n           two\n[1] (later) x\n")), [
    ["1", "late: one|late: two"],
    ["1", "(later) x"],
  ]);
  assert.deepEqual(all(out("[1] (late)\n"), fig("f")), [["1", "<f>"]]);
});

test("any script and any width of letters", () => {
  assert.deepEqual(all(out("[0] größe 🙂 日本\n    zwei — 🙂\n[1] é\n")), [
    ["0", "größe 🙂 日本|zwei — 🙂"],
    ["1", "é"],
  ]);
});

test("what has no prefix is nobody's", () => {
  const items = views.itemsOf([out("waiting for rank 2\n  at line 3\n[0] a\n… (about 5 more lines)\n"), fig("error")]);
  assert.deepEqual(views.ofNobody(items).map(said), [
    "waiting for rank 2|  at line 3",
    "… (about 5 more lines)",
    "<error>",
  ]);
  assert.deepEqual(views.speakers(items), [0]);
});

test("a traceback is of the ranks in whose label's lines it stands", () => {
  const error = (text) => ({ text, stream: "stderr", isError: true });
  const text =
    "[2]\n-----\nAssertionError\n\n    odd\n\n[0-1]\n-----\nHangError: x\n\nCellError: 3 of 4 ranks failed\n";
  assert.deepEqual(all(error(text)), [
    ["2", "-----|AssertionError||    odd|"],
    ["0-1", "-----|HangError: x|"],
    ["", "CellError: 3 of 4 ranks failed"],
  ]);
  assert.deepEqual(all(error("[0] KeyError: x\n[1] y\nCellError: two")), [
    ["0", "KeyError: x"],
    ["1", "y"],
    ["", "CellError: two"],
  ]);
});

test("a figure is of the ranks whose bare prefix is before it", () => {
  const outputs = [out("[0-1] text\n[0]\n"), fig("a"), out("[1]"), fig("b"), fig("c")];
  assert.deepEqual(all(...outputs), [
    ["0-1", "text"],
    ["0", "<a>"],
    ["1", "<b>"],
    ["", "<c>"],
  ]);
  assert.deepEqual(all(out("[0]\n[0]\n"), fig("a")), [
    ["0", ""],
    ["0", "<a>"],
  ]);
  assert.deepEqual(all(out("[0] text\n"), fig("a")), [
    ["0", "text"],
    ["", "<a>"],
  ]);
});

test("a text that grew is read on, one that changed is read anew", () => {
  const first = views.parse("[0] a\n");
  const grown = views.parse("[0] a\n    b\n[1] c", first);
  assert.equal(grown.pieces, first.pieces);
  assert.deepEqual(grown.pieces, views.parse("[0] a\n    b\n[1] c").pieces);
  for (const text of ["[0] a\n    b\n[1] cd\n", "[2] x\n"]) {
    assert.deepEqual(views.parse(text, grown).pieces, views.parse(text).pieces);
  }
});

test("ranks with equal output share a block", () => {
  assert.deepEqual(groups(out("[0-3] x\n[0,2] a\n[1] b\n[3] c\n")), ["0,2", "1", "3"]);
  assert.deepEqual(groups(out("[0] a\n[1] a\n")), ["0-1"]); // not folded when it was shown
  assert.deepEqual(groups(out("[0] a\n[0] b\n[1] b\n[1] a\n")), ["0", "1"]);
  assert.deepEqual(groups(out("[0] a\n"), err("[1] a\n")), ["0", "1"]);
  assert.deepEqual(groups(out("[0]\n"), fig("f"), out("[1]\n"), fig("f"), out("[2]\n"), fig("g")), ["0-1", "2"]);
  assert.deepEqual(groups(out("[0] a\n    b\n[1] a\n[1] b\n")), ["0-1"]);
  assert.deepEqual(groups(out("[0-63] x\n[7,9-63] y\n")), ["0-6,8", "7,9-63"]);
});

test("a look tells whether ranks differ", () => {
  assert.equal(views.isMixed(["[0-3] a\n[0-3] b\n"]), false);
  assert.equal(views.isMixed(["[0-3] a\n", "[0] b\n"]), true);
  assert.equal(views.isMixed(["[0-3] a\n      [1] b\nplain\n[3-1] x\n"]), false);
  assert.equal(views.isOurs("[0-3] x\n"), true);
  assert.equal(views.isOurs("[3-0] x\n"), false);
});

test("what a first cell tells of its world comes before its ranks' output", () => {
  const told = ["An earlier kernel left 4 ranks on cpu running: …\n", "4 ranks on cpu, gloo, ready in 1.7 s.\n"];
  const isOfRanks = (...texts) => views.isOfRanks(texts.map((textContent) => ({ textContent })));
  assert.equal(isOfRanks(...told, "[0-1] part 0\n[2-3] part 1\n"), true);
  assert.equal(isOfRanks(...told), false);
  assert.equal(isOfRanks("plain\n"), false);
});

test("the diff opens on the first two ranks that differ", () => {
  const pair = (text, before = [0, 1]) => views.pairOf(views.byValue(views.itemsOf([out(text)])), before);
  assert.deepEqual(pair("[0] a\n[1] b\n"), [0, 1]);
  assert.deepEqual(pair("[0-3] x\n[0-2] a\n[3] b\n"), [0, 3]);
  assert.deepEqual(pair("[2] x\n[4-6] y\n"), [2, 4]);
  assert.deepEqual(pair("[0-3] x\n[0-2] a\n[3] b\n", [3, 1]), [3, 1]); // these differ: they stay
  assert.deepEqual(pair("[0-3] x\n", [1, 2]), [0, 1]);
  assert.deepEqual(pair("[5] x\n"), [5, 5]);
  assert.deepEqual(pair("plain\n"), [0, 0]);
});

const show = (a, b) => views.diff(a, b).map(({ sign, at }) => sign + (sign === "+" ? b : a)[at]);

test("a diff keeps what is equal", () => {
  assert.deepEqual(show([], []), []);
  assert.deepEqual(show(["a", "b", "c"], ["a", "x", "c"]), [" a", "-b", "+x", " c"]);
  assert.deepEqual(show(["a"], []), ["-a"]);
  assert.deepEqual(show([], ["a"]), ["+a"]);
  assert.deepEqual(show(["x", "x", "a"], ["x", "a"]), [" x", "-x", " a"]);
  assert.deepEqual(show(["a", "b"], ["b", "a"]).filter((line) => line[0] === " ").length, 1);
});

test("a diff always leads from one list to the other", () => {
  let seed = 7;
  const random = (n) => {
    seed = (seed * 48271) % 2147483647;
    return seed % n;
  };
  for (let round = 0; round < 300; round++) {
    const list = () => Array.from({ length: random(12) }, () => "abcdefgh"[random(8)]);
    const [a, b] = [list(), list()];
    const lines = show(a, b);
    const side = (gone) => lines.filter((line) => line[0] !== gone).map((line) => line.slice(1));
    assert.deepEqual([side("+"), side("-")], [a, b]);
  }
});

/** What stays bright of each value, a common line as "·". */
const bright = (...texts) => {
  const values = texts.map((text) => views.itemsOf([out(text)]));
  return views.common(values).map(({ same, ends }, i) =>
    values[i]
      .flatMap(({ from, lines }) => lines.map(([start, end]) => from.text.slice(start, end)))
      .map((line, at) => {
        const [head, tail] = ends.get(at) ?? [0, 0];
        return same.has(at) ? "·" : line.slice(head, line.length - tail);
      })
      .join("|"),
  );
};

test("what all values have in common is known, by lines and within a line", () => {
  assert.deepEqual(bright("[0] a\n[0] b\n[0] c\n", "[1] a\n[1] x\n[1] c\n"), ["·|b|·", "·|x|·"]);
  assert.deepEqual(bright("[0] a\n[0] b\n", "[1] b\n[1] a\n"), ["a|·", "·|a"]); // the order differs
  assert.deepEqual(bright("[0] a\n[0] b\n[0] c\n", "[1] a\n[1] c\n", "[2] a\n[2] b\n"), ["·|b|c", "·|c", "·|b"]);
  assert.deepEqual(bright("[0] rank 0 of 4\n", "[1] rank 1 of 4\n", "[2] rank 2 of 4\n"), ["0", "1", "2"]);
});

test("a word, a number and a letter are never cut", () => {
  assert.deepEqual(bright("[0] loss=0.123, ok\n", "[1] loss=0.145, ok\n"), ["0.123", "0.145"]);
  assert.deepEqual(bright("[0] at 10\n", "[1] at 110\n"), ["10", "110"]);
  assert.deepEqual(bright("[0] x 🙂\n", "[1] x 🙃\n"), ["🙂", "🙃"]);
  assert.deepEqual(bright("[0] größe\n", "[1] große\n"), ["größe", "große"]);
  assert.deepEqual(bright("[0] a a\n", "[1] a a a\n"), ["", " a"]);
});

test("figures and streams are compared as a whole", () => {
  const values = [
    [out("[0]\n"), fig("f"), out("[0] x 1\n"), err("[0] y\n")],
    [out("[1]\n"), fig("g"), out("[1] x 2\n"), out("[1] y\n")],
  ].map((outputs) => views.itemsOf(outputs));
  const [{ same, ends }] = views.common(values);
  assert.deepEqual([[...same], [...ends]], [[], [[1, [2, 0]]]]);
});

const spent = () => process.cpuUsage().user / 1000; // whatever else the machine does

test("20,000 lines of 64 ranks, and a diff of two such, take no time that one could see", () => {
  const lines = Array.from({ length: 20_000 }, (_, i) => (i % 2 ? `[0-63] step ${i}` : `[${i % 64}] own ${i % 7}`));
  const started = spent();
  const items = views.itemsOf([out(lines.join("\n"))]);
  assert.equal(views.byValue(items).length, 33);
  assert.equal(views.diff(Array(20_000).fill("a"), Array(20_000).fill("b")).length, 40_000);
  const texts = (n) => Array.from({ length: 20_000 }, (_, i) => `${i % n} of ${i}`);
  assert.ok(views.diff(texts(3), texts(5)).length >= 20_000);
  assert.ok(spent() - started < 5000);
});

test("what 8 values of 20,000 lines have in common takes no time that one could see", () => {
  const lines = (n) => Array.from({ length: 20_000 }, (_, i) => `[${n}] ${i % (n + 2)} of ${i}\n`).join("");
  const values = Array.from({ length: 8 }, (_, n) => views.itemsOf([out(lines(n))]));
  const started = spent();
  assert.equal(views.common(values).length, 8);
  assert.ok(spent() - started < 2000);
});
