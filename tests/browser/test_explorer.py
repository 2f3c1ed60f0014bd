"""The explorer in a real JupyterLab and a real Notebook 7: by keyboard alone, saved, reloaded, narrow, dark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .conftest import Notebook, Server, bring_axe

CELL = "from nbcomm.explorer.explorer import explore\nexplore({})"
# A kernel with subshells answers while a cell runs; not while C code in that cell holds Python's lock.
BLOCK = """
import ctypes, os
os.mkfifo("gate")
ctypes.PyDLL(None).system(b"touch blocked; head -c 1 gate >/dev/null")
"""

Make = Callable[..., Notebook]


@pytest.fixture
def dark(server: Server) -> Iterator[None]:
    """Dark, and light again for the other tests."""
    server.choose_theme("dark")
    yield
    server.choose_theme("light")


class Explored:
    """The explorer of a page, by its labels and names as a screen reader finds them."""

    def __init__(self, book: Notebook) -> None:
        self.book, self.page = book, book.page
        self.root = book.page.locator(".nbcomm-live-explorer")
        self.root.wait_for()

    def choice(self, label: str) -> Any:
        return self.root.get_by_label(label, exact=True)

    def press(self, *keys: str) -> None:
        for key in keys:
            self.page.keyboard.press(key)

    def tab_to(self, name: str) -> None:
        """Go on with Tab until the keyboard is at what has this label or name."""
        for _ in range(40):
            if self.at() == name:
                return
            self.page.keyboard.press("Tab")
        pytest.fail(f"Tab does not come to {name!r}.")

    def at(self) -> str:
        """The label or name of what has the keyboard."""
        found: str = self.page.evaluate(
            "(({labels, ariaLabel, innerText}) => labels?.[0]?.innerText ?? ariaLabel ?? innerText)"
            "(document.activeElement)"
        )
        return found

    def go_to(self, label: str, value: str) -> None:
        """Go with the arrows to a choice: of typed letters a browser forgets the first when the next is a second late.

        The keyboard must be there.
        """
        choice = self.choice(label)
        values = choice.locator("option").evaluate_all("all => all.map((el) => el.value)")
        while (here := choice.input_value()) != value:  # the test's timeout ends it
            self.press("ArrowDown" if values.index(here) < values.index(value) else "ArrowUp")

    def counters(self) -> dict[str, str]:
        texts = zip(self.root.locator("dt").all_inner_texts(), self.root.locator("dd").all_inner_texts(), strict=True)
        return dict(texts)

    def says(self, text: str) -> None:
        """Wait until the polite live region says it."""
        self.root.locator("[aria-live=polite]").filter(has_text=text).wait_for(state="attached")

    def shows(self, text: str) -> None:
        self.root.get_by_text(text).first.wait_for()

    def cells(self) -> list[list[str]]:
        """The values in the lanes' last column."""
        rows = self.root.locator(".lane:not(.heads)").all()
        return [row.locator(".state .plate").all_inner_texts() for row in rows]

    def barriers(self) -> list[str]:
        """What axe-core finds that keeps people out, here and now."""
        bring_axe(self.page)
        # What still fades in has a contrast of its own.
        # Its own: an animation of Notebook 7's may go on for ever. What is drawn anew does not finish its animations.
        self.root.evaluate("root => Promise.allSettled(root.getAnimations({subtree: true}).map((one) => one.finished))")
        found = self.page.evaluate("axe.run('.nbcomm-live-explorer').then((result) => result.violations)")
        return [f"{rule['id']}: {node['html']} {node['failureSummary']}" for rule in found for node in rule["nodes"]]


def opened(notebook: Make, name: str, call: str = "", *more: str, app: str = "lab", **options: Any) -> Explored:
    book = notebook(name, CELL.format(call), *more, **options)
    book.open(app=app)
    book.run(0)
    return Explored(book)


@pytest.mark.timeout(180)
def test_by_keyboard_alone(notebook: Make) -> None:
    it = opened(notebook, "keys.ipynb", "'broadcast'")
    cells = it.page.locator(".jp-Notebook .jp-CodeCell").count()
    it.choice("collective").focus()
    it.go_to("collective", "all_reduce")
    it.says("all_reduce · sum")
    it.tab_to("algorithm")
    it.go_to("algorithm", "ring")
    it.shows("a ring twice: reduce-scatter, then all-gather")
    it.tab_to("Next")
    it.press("Enter", "Space")
    it.says("Step 2 of 6 · reduce-scatter, step 2 of 3")
    it.tab_to("step")
    it.press("End")
    it.says("Step 6 of 6 · all-gather, step 3 of 3")
    assert it.counters() == {
        "steps": "6 of 6 = 2(W−1)",
        "messages": "24 of 24",
        "sent by the busiest rank": "1.5 of 1.5 n = 2(W−1)/W · n",
        "received by the busiest rank": "1.5 of 1.5 n",
        "sent in all": "6 of 6 n",
    }
    assert it.cells() == [["10"] * 4] * 4
    assert it.barriers() == []

    # Wherever the keyboard is, typed letters are no shortcuts: "b" would insert a cell and "d d" delete one.
    it.choice("collective").focus()
    for _ in range(20):
        if not it.page.evaluate("document.querySelector('.nbcomm-live-explorer').contains(document.activeElement)"):
            break
        if it.page.evaluate("document.activeElement.tagName") != "SELECT":  # there letters choose
            it.press("b", "d", "d")
        it.press("Tab")
    it.root.get_by_role("button", name="Next").focus()
    it.press("b", "d", "d", "Escape")
    assert it.page.locator(".jp-Notebook .jp-CodeCell").count() == cells
    assert it.book.errors == []


@pytest.mark.timeout(180)
def test_it_is_predicted_and_broken(notebook: Make) -> None:
    it = opened(notebook, "predict.ipynb", "'gather', n=3")
    it.choice("collective").focus()
    it.tab_to("Predict it")
    it.press("Enter")
    it.shows("Type what each rank has after the call, written like 10, and press Enter. Leave a field empty if")
    it.root.get_by_label("after, rank 0, cell 0").focus()
    for text in ("10", "20.0", "31"):
        it.page.keyboard.type(text)
        it.press("Tab")
    it.tab_to("Check")
    it.press("Enter")
    it.shows("8 of 9 cells right.")
    marks = it.root.locator(".guess .mark").all_inner_texts()
    assert marks == ["✓ right", "✓ right", "✕ wrong", *["✓ right"] * 6]
    assert it.barriers() == []
    it.press("Tab", "Enter")
    assert it.root.get_by_label("after, rank 0, cell 2").input_value() == "30"

    it.root.get_by_role("button", name="Break it").focus()
    it.press("Enter")
    it.shows("ranks 0,2 wait in it, in line 2: if rank != 1: ")
    assert it.root.locator(".fate").all_inner_texts() == ["◐\nwaits forever", "○\nis absent", "◐\nwaits forever"]
    assert it.barriers() == []
    it.tab_to("what it does")
    it.page.keyboard.type("calls")
    it.says("MismatchError: The ranks are not in the same collective:")
    assert it.book.errors == []


@pytest.mark.timeout(180)
def test_a_busy_kernel_is_said_and_answers_later(notebook: Make, server: Server) -> None:
    it = opened(notebook, "busy.ipynb", "", BLOCK)
    it.choice("algorithm").select_option("tree")
    it.shows("a binomial tree up and down")
    it.book.start(1)
    while not (server.root / "blocked").exists():  # the test's timeout ends it
        it.page.wait_for_timeout(20)
    it.choice("algorithm").select_option("ring")
    it.shows("a ring twice")  # that answer is there
    it.choice("collective").select_option("scan")
    it.shows("The kernel is busy with a cell, and answers when that cell has ended.")
    (server.root / "gate").write_bytes(b"x")
    it.says("scan · sum")
    it.root.locator(".sentence").wait_for(state="hidden")
    assert it.book.errors == []


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_reloaded_it_is_as_it_was_and_mailed_it_is_a_table(notebook: Make, server: Server) -> None:
    it = opened(notebook, "mail.ipynb", "'scatter', n=5")
    it.choice("src").select_option("3")
    it.shows("out[r] = item r of rank 3's items")
    saved = it.book.save()
    it.page.reload()
    it.book.idle()
    it = Explored(it.book)
    it.shows("out[r] = item r of rank 3's items")
    assert it.choice("src").input_value() == "3"
    it.choice("ranks").select_option("2")
    it.says("scatter · src 1")

    assert "widgets" not in saved["metadata"]
    [output] = saved["cells"][0]["outputs"]
    assert set(output["data"]) == {"text/html", "text/plain"}
    server.stop_kernels()
    saved["metadata"] = {"kernelspec": {"name": "gone", "display_name": "gone", "language": "gone"}}
    (server.root / "mailed-explorer.ipynb").write_text(json.dumps(saved))
    reader = notebook("mailed-explorer.ipynb")
    reader.open(kernel=False)
    reader.page.locator(".jp-Dialog .jp-mod-reject").click()
    table = reader.page.locator(".nbcomm-explorer table")
    table.wait_for()
    assert table.locator("tbody tr").count() == 5
    assert reader.page.locator(".nbcomm-live-explorer").count() == 0
    assert reader.page.get_by_text("Error displaying widget").count() == 0
    assert reader.errors == []


@pytest.mark.nightly
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("dark")
def test_in_notebook_7_dark_narrow_and_still(notebook: Make) -> None:
    # 900 px until the kernel is there: a narrower Notebook 7 hides what tells of it.
    it = opened(
        notebook,
        "dark.ipynb",
        "'all_to_all', n=16",
        app="notebook",
        reduced_motion="reduce",
        viewport={"width": 900, "height": 800},
    )
    assert it.root.get_attribute("data-theme") == "dark"
    assert it.root.get_by_role("button", name="Play").count() == 0
    cells = it.page.locator(".jp-Notebook .jp-CodeCell").count()
    it.choice("algorithm").select_option("recursive doubling")
    it.shows("Bruck's algorithm: fewer steps, more data")
    it.root.get_by_role("button", name="Next").focus()
    it.press("b", "d", "d", *["Enter"] * 3)
    it.says("Step 3 of 6 · step 2 of 4")
    assert it.page.locator(".jp-Notebook .jp-CodeCell").count() == cells
    # The explorer's own: what Notebook 7 itself lets move, on a slow machine still at that time, is its affair.
    moving = "root => root.getAnimations({subtree: true}).filter((a) => a.playState === 'running').length"
    assert it.root.evaluate(moving) == 0
    assert it.barriers() == []
    for width in (450, 320):  # 200 % of 900 px, and the least
        it.page.set_viewport_size({"width": width, "height": 800})
        it.page.wait_for_function("width => innerWidth === width", arg=width)
        for view in ("Watch it", "Predict it", "Break it"):
            it.root.get_by_role("button", name=view).click()
            it.root.locator(f"[aria-pressed=true]:text-is('{view}')").wait_for()
            wide, seen, inside, room = it.page.evaluate(
                "(el => [document.documentElement.scrollWidth, innerWidth, el.scrollWidth, el.clientWidth])"
                "(document.querySelector('.nbcomm-live-explorer'))"
            )
            assert wide <= seen, (width, view)
            assert inside <= room, (width, view)
            assert it.barriers() == [], (width, view)
    assert it.book.errors == []


def columns(it: Explored) -> dict[str, list[str]]:
    """Each column's head, and what stands below it."""
    heads = it.root.locator(".lane.heads > *").all_inner_texts()
    rows = [lane.locator("> *").all() for lane in it.root.locator(".lane:not(.heads)").all()]
    assert {len(row) for row in rows} == {len(heads)}
    has = "el => [...el.querySelectorAll('*')].map((one) => one.tagName + one.textContent).join() || el.textContent"
    return {head: [row[i].evaluate(has) for row in rows] for i, head in enumerate(heads)}


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "name", ["all_reduce", *(pytest.param(name, marks=pytest.mark.nightly) for name in ("barrier", "broadcast"))]
)
def test_no_column_is_empty_and_nothing_is_far_apart(notebook: Make, name: str) -> None:
    it = opened(notebook, f"columns-{name}.ipynb", f"{name!r}, n=4", viewport={"width": 1200, "height": 900})
    it.root.get_by_role("button", name="Next").click()
    it.says("Step 1 of")
    for view in ("Watch it", "Predict it", "Break it"):
        it.root.get_by_role("button", name=view).click()
        it.root.locator(f"[aria-pressed=true]:text-is('{view}')").wait_for()
        shown = columns(it)
        assert "" not in shown
        assert [head for head, below in shown.items() if not any(below)] == [], view
        assert ("before" in shown) == (name != "barrier")
        assert ("messages" in shown) == (view == "Watch it")
        if view != "Watch it" and name == "all_reduce":
            had, next_to_it = it.root.locator(".lane .cell").first, it.root.locator(".lane .state > *").first
            assert next_to_it.bounding_box()["x"] - had.bounding_box()["x"] < 120
    assert it.book.errors == []


SIZES = """root => [...root.querySelectorAll("*")]
  .filter((el) => [...el.childNodes].some((node) => node.nodeType === 3 && node.data.trim()) && el.checkVisibility())
  .map((el) => [el.className, parseFloat(getComputedStyle(el).fontSize)])"""


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_its_digits_are_large_and_nothing_is_small(notebook: Make) -> None:
    it = opened(notebook, "large.ipynb", "'all_reduce', n=4", viewport={"width": 1200, "height": 900})
    for n, wide, least in (("4", 1200, 16), ("16", 1200, 14), ("16", 450, 12)):
        it.page.set_viewport_size({"width": 1200, "height": 900})
        it.choice("ranks").select_option(n)
        it.root.locator(".lane").nth(int(n)).wait_for()
        it.page.set_viewport_size({"width": wide, "height": 900})
        it.page.wait_for_function("width => innerWidth === width", arg=wide)
        sizes = it.root.evaluate(SIZES)
        assert min(size for _, size in sizes) >= 10
        assert min(size for name, size in sizes if name == "plate") >= least
    assert it.book.errors == []


GAPS = """async (root) => {
  await Promise.allSettled(root.getAnimations({subtree: true}).map((each) => each.finished));
  return [...root.querySelectorAll("path.line")].map((line) => {
    const long = line.getTotalLength();
    const there = (part) => line.isPointInStroke(line.getPointAtLength(part * long));
    return [long, [0.01, 0.25, 0.5, 0.75, 0.99].filter((part) => !there(part))];
  });
}"""


@pytest.mark.timeout(180)
def test_the_longest_arrow_is_drawn_to_its_end(notebook: Make) -> None:
    it = opened(notebook, "long.ipynb", "'all_to_all', n=16", viewport={"width": 1200, "height": 900})
    it.page.emulate_media(reduced_motion="no-preference")
    it.choice("algorithm").select_option("ring")
    it.shows("pairwise: in step k")
    for step in ("Step 1 of", "Step 2 of"):  # in the first, every rank keeps its own item
        it.root.get_by_role("button", name="Next").click()
        it.says(step)
    arrows = it.root.evaluate(GAPS)
    assert len(arrows) == 16
    assert max(long for long, _ in arrows) > 1600
    assert [gaps for _, gaps in arrows if gaps] == []
    assert it.book.errors == []


PLAYS = """(root) => {
  const isPause = (el) => el.innerText.trim() === "Pause" && el.checkVisibility();
  window.plays = new Promise((resolve) => {
    const observer = new MutationObserver(() => {
      if (![...root.querySelectorAll("button")].some(isPause)) return;
      observer.disconnect();
      resolve();
    });
    observer.observe(root, { attributes: true, childList: true, characterData: true, subtree: true });
  });
}"""


@pytest.mark.timeout(180)
def test_it_plays_and_shows_real_calls(notebook: Make) -> None:
    code = "from nbcomm.pictures.plan import plan\nfrom nbcomm.explorer.explorer import remember\n"
    code += "remember([plan('all_reduce', [7, 8], op='max'), plan('broadcast', ['a', 'b'])])"
    clipboard = ["clipboard-read", "clipboard-write"]
    it = opened(notebook, "play.ipynb", "'barrier', n=2", code, permissions=clipboard)
    copy = it.root.get_by_role("button", name="copy the line of Lightning Fabric")
    assert copy.count() == 0
    it.root.get_by_text("The same call in nbcomm, torch, Lightning Fabric and Ignite").click()
    copy.click()
    it.says("The line of Lightning Fabric is copied.")
    assert it.page.evaluate("navigator.clipboard.readText()") == "fabric.barrier()"
    # It plays for a second and a half only, which a busy machine may miss.
    it.root.evaluate(PLAYS)
    it.root.get_by_role("button", name="Play").click()
    it.page.evaluate("() => window.plays")
    it.says("Step 2 of 2")
    it.root.get_by_role("button", name="Play").wait_for()
    mine = it.root.get_by_role("button", name="From my cell")
    mine.click()
    it.shows("No cell has been drawn yet")
    it.book.run(1)
    mine.click()
    it.says("all_reduce · max")
    it.root.get_by_role("button", name="Last").click()
    assert {text for row in it.cells() for text in row} == {"8"}
    it.choice("call of my cell").select_option(label="2. broadcast · src 0")
    it.root.get_by_role("button", name="Next").click()
    it.shows("what the call did")
    assert it.cells() == [["'a'"], ["'a'"]]
    it.choice("call of my cell").select_option(label="none: made-up data")
    it.choice("call of my cell").wait_for(state="hidden")
    assert it.book.errors == []
