// What a page has missed of cells' outputs: the pure half.
import assert from "node:assert/strict";
import test from "node:test";
import * as missed from "../../nbcomm/panel/js/views_missed.js";

const RAN = [4, "c2", 100, 108];
const CELL = { id: "c2", executionCount: null, trusted: false, outputs: { fromJSON() {} } };

test("a page has missed what cells show that ran when it was loaded, or before it had a link", () => {
  const numbers = (loaded, cell = CELL, cells = [RAN], opened = 50) =>
    missed.missedOf({ opened, cells }, loaded, (id) => (cell?.id === id ? cell : null)).map(({ number }) => number);
  assert.deepEqual(numbers(103), [4]);
  assert.deepEqual(numbers(99), [4], "it began while the page was loading, as one that was queued");
  assert.deepEqual(numbers(99, null), [], "nothing shows that it did");
  assert.deepEqual(numbers(103, null), [4], "the cell was deleted, or is another notebook's");
  assert.deepEqual(numbers(103, { ...CELL, executionCount: 4 }), [], "it has it by now");
  assert.deepEqual(numbers(103, { ...CELL, executionCount: 2 }), [4], "that of an earlier run");
  assert.deepEqual(numbers(109), [], "it was loaded after the end, with the file of then");
  assert.deepEqual(numbers(103, CELL, [RAN], 104), [], "the world was started in this page");
  assert.deepEqual(numbers(103, CELL, [[4, "c2", 100, null]]), [], "it still runs");
  assert.deepEqual(numbers(103, CELL, []), []);
  assert.deepEqual(numbers(103, CELL, [RAN, [5, "c2", 109, 110]]), [4, 5], "each that was queued");
  assert.deepEqual(numbers(103, CELL, [[0, "c2", 100, 108]]), [0]);
  assert.deepEqual(numbers(103, { ...CELL, executionCount: 7 }, [[0, "c2", 100, 108]]), []);
});

test("what was missed is said, with what to do", () => {
  const ran = (number) => ({ number, id: "c2", began: 100, ended: 108 });
  assert.equal(
    missed.missedLine([ran(4)], true),
    "This page missed output of In [4]: it was loaded while the cell ran.",
  );
  assert.equal(
    missed.missedLine([ran(4), ran(5), ran(7)], true),
    "This page missed output of In [4], In [5] and In [7]: it was loaded while the cells ran.",
  );
  assert.match(missed.missedLine([ran(0)], false), /of a cell: .* Type %distributed last in a cell to show it/);
});

test("what was missed goes to its cell, whose number it then has", () => {
  const cells = [{ id: "text" }, { ...CELL, outputs: { fromJSON: (shown) => (cells[1].shown = shown) } }];
  const context = { model: { cells: { length: 2, get: (at) => cells[at] } } };
  const cell = missed.cellOf({ widget_manager: { context } }, "c2");
  assert.equal(cell, cells[1]);
  assert.equal(missed.cellOf({ widget_manager: { context } }, "text"), null, "it has no outputs");
  assert.equal(missed.cellOf({ widget_manager: { context } }, ""), null);
  assert.equal(missed.cellOf({ widget_manager: {} }, "c2"), null, "another front end");
  assert.equal(missed.cellOf({}, "c2"), null);
  missed.putOutputs(cell, { number: 4 }, ["all"]);
  assert.deepEqual([cell.shown, cell.executionCount, cell.trusted], [["all"], 4, true]);
});
