// What a page may lack: the clipboard, and a handle of the kernel.
import assert from "node:assert/strict";
import test from "node:test";
import { Spelling } from "../../nbcomm/explorer/js/explorer_spelling.js";
import { REFUSED, toClipboard, withoutView } from "../../nbcomm/frontend/js/page.js";
import { Live } from "../../nbcomm/panel/js/panel.js";
import { PATIENCE } from "../../nbcomm/panel/js/panel_words.js";

/** A page without `navigator.clipboard`, as over plain http. @param {() => boolean} execCommand */
function page(execCommand) {
  const seen = { selected: [], focused: 0, boxes: 0 };
  const box = { style: {}, append() {}, select: () => seen.selected.push(box.value), remove: () => (seen.boxes -= 1) };
  const range = {
    setStartBefore: (el) => seen.selected.push(el),
    setEndAfter() {},
  };
  globalThis.getSelection = () => ({ removeAllRanges() {}, addRange() {} });
  globalThis.document = {
    activeElement: { focus: () => (seen.focused += 1) },
    body: { append: () => (seen.boxes += 1) },
    createElement: () => box,
    createRange: () => range,
    execCommand,
  };
  return seen;
}

test("without a clipboard a text is copied by a selection, which is taken back", async () => {
  const seen = page(() => true);
  assert.equal(await toClipboard("a text"), true);
  assert.deepEqual(seen, { selected: ["a text"], focused: 1, boxes: 0 });
  const refusing = page(() => {
    throw new Error("no");
  });
  assert.equal(await toClipboard("a text"), false);
  assert.deepEqual(refusing, { selected: ["a text"], focused: 1, boxes: 0 });
});

test("a line that could not be copied is selected, and nobody says that it is copied", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  for (const there of [false, true]) {
    const seen = page(() => there);
    const said = [];
    const [code, pressed] = [{ textContent: "dist.barrier()" }, { textContent: "Copy" }];
    const spelling = { refused: { textContent: "" }, say: (text) => said.push(text) };
    await Spelling.prototype.copy.call(spelling, "torch", code, pressed);
    assert.deepEqual(seen.selected, there ? ["dist.barrier()"] : ["dist.barrier()", code]);
    assert.equal(pressed.textContent, there ? "Copied" : "Copy");
    assert.equal(spelling.refused.textContent, there ? "" : REFUSED);
    assert.deepEqual(said, [there ? "The line of torch is copied." : REFUSED]);
  }
});

test("an interrupt goes to a kernel that the page knows to be busy, and else to the panel's own", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const region = { textContent: "" };
  const pressed = (widget_manager) => {
    const sent = [];
    const model = { widget_manager, send: (press) => sent.push(press) };
    const live = Object.assign(Object.create(Live.prototype), { model, region, world: null, ahead: 0, pressed: null });
    live.send("interrupt");
    return { live, sent };
  };
  let interrupts = 0;
  const kernel = { status: "busy", interrupt: async () => (interrupts += 1) };
  const known = pressed({ kernel });
  await Promise.resolve();
  assert.deepEqual([interrupts, known.sent, known.live.pressed.stage], [1, [], "done"]);
  const unknown = pressed(undefined);
  assert.equal(unknown.sent[0].action, "interrupt");
  context.mock.timers.tick(PATIENCE * 1000);
  assert.deepEqual([interrupts, unknown.live.pressed.stage], [1, "lost"]);
  assert.match(region.textContent, /\.$/);
});

test("a model that anywidget has given up hears the kernel at the link, and asks for what it has missed", async () => {
  for (const givenUp of [false, true]) {
    const [heard, sent] = [[], []];
    class OfIpywidgets {
      comm = { on_msg: (hear) => (this.hears = hear) };
      async _handle_comm_msg(message) {
        heard.push([this, message.content.data.method]);
      }
    }
    class OfAnywidget extends OfIpywidgets {
      async _handle_comm_msg(message) {
        if (givenUp) throw new Error("[anywidget] Failed to initialize model.");
        return super._handle_comm_msg(message);
      }
    }
    const itself = new OfAnywidget();
    const widget_manager = { get_model: async (key) => (key === "its key" ? itself : undefined) };
    const model = { get: (name) => ({ key: "its key" })[name], send: (message) => sent.push(message), widget_manager };
    withoutView(() => ({ close() {} })).initialize({ model });
    await new Promise(setImmediate);
    assert.deepEqual(sent, givenUp ? [{ kind: "missed" }] : []);
    await itself.hears?.({ content: { data: { method: "custom" } } });
    assert.deepEqual(heard, [[itself, givenUp ? "custom" : ""]]);
  }
});

test("a front end that makes models otherwise is left alone", async () => {
  for (const widget_manager of [undefined, {}, { get_model: async () => ({}) }])
    withoutView(() => ({ close() {} })).initialize({ model: { get: () => undefined, widget_manager } });
  await new Promise(setImmediate);
});
