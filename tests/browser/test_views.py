"""Other views of a distributed cell's output, in a real JupyterLab and a real Notebook 7, with four real ranks.

With NBCOMM_SCREENSHOTS=FOLDER the pictures of the docs are taken on the way (``make screenshots``); with
NBCOMM_VIEWS_SCREENSHOTS=FOLDER one of every view.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from nbcomm.rank_spec import parse

from .conftest import THEMES, Notebook, Server, bring_axe, shoot

LOAD = "%load_ext nbcomm"
START = "%distributed start -n 4"
TEXT = """%%distributed
import sys
print("hello from \\x1b[31mrank\\x1b[0m", rank % 2)
for step in range(20):
    print("step", step)
print("[0-3] looks like a prefix")
print("odd" if rank % 2 else "even", file=sys.stderr)
class Two:
    def __repr__(self):
        return f"two\\n  lines of {rank}"
Two()"""
FIGURE = """%%distributed
import matplotlib.pyplot as plt
fig, ax = plt.subplots(figsize=(3, 2))
ax.plot([rank, 1, 2 * rank]); ax.set_title(f"loss on rank {rank}")
plt.show()
print("rank", rank, "has drawn")"""
RUNNING = """%%distributed
import pathlib, time
while rank == 0 and not pathlib.Path("{go}-0").exists():
    time.sleep(0.02)
print("begins", rank, flush=True)
while not pathlib.Path("{go}-1").exists():
    time.sleep(0.02)
print("goes on", rank, flush=True)
while not pathlib.Path("{go}-2").exists():
    time.sleep(0.02)
print("ends")"""
FAILING = """%%distributed
print("before", rank)
assert rank != 2, "rank 2 is the odd one" """
PAIRS = """%%distributed
import sys
print("part", rank // 2, "of", world_size // 2)
for step in range(6):
    print("step", step)
print("only there" if rank > 1 else "loss 0.125")
print("\\x1b[31mred\\x1b[0m for all, odd", rank // 2, file=sys.stderr)"""
SAME = """%%distributed
print("same")"""
LOCAL = "print('[0] a')\nprint('b')"

STEADY = """%%distributed
import pathlib, time
print("{first}", flush=True)
while not pathlib.Path("{go}-1").exists():
    time.sleep(0.02)
print("differs", rank, flush=True)
while not pathlib.Path("{go}-2").exists():
    time.sleep(0.02)
print("the end")"""
TABLE = """%%distributed
from IPython.display import HTML, display
import time
print("before", rank % 2)
time.sleep(0.1 * (world_size - rank))
display(HTML(f"<table><tr><th>table of</th></tr><tr><td>rank {rank}</td></tr></table>"))
print("for all")
display(HTML("<b>equal</b>"))
class Frame:
    def _repr_html_(self):
        return f"<table><tr><th>frame of</th></tr><tr><td>rank {rank // 2}</td></tr></table>"
Frame()"""

LONG = """%%distributed
for i in range(20_000):
    print("step", i, i % (rank + 2))"""

Make = Callable[..., Notebook]

IN_SIGHT = "el => getComputedStyle(el).opacity === '1'"


def choose(book: Notebook, cell: int, view: str) -> None:
    """Choose by the keyboard: the panel grows just after the first cell, and a mouse misses what moves under it."""
    radio = book.cell(cell).get_by_role("radio", name=view)
    radio.wait_for()
    radio.press("Enter")
    assert radio.get_attribute("aria-checked") == "true"


def view(book: Notebook, cell: int) -> Any:
    return book.cell(cell).locator(".nbcomm-views-host")


def point(book: Notebook, cell: int) -> None:
    """Bring the controls by the pointer: it comes over the output."""
    from playwright.sync_api import TimeoutError as OutOfTime  # the fixture has said how to install it

    # What is late may draw the output anew, with other controls, or move it from under the pointer.
    for x in itertools.count(90):
        book.cell(cell).locator(".jp-Cell-outputArea").hover(position={"x": x, "y": 8})
        with suppress(OutOfTime):
            book.page.wait_for_function(IN_SIGHT, arg=book.cell(cell).locator(".tray").element_handle(), timeout=2000)
            return
        assert x < 120, "the controls do not come"


def is_in_sight(book: Notebook, cell: int) -> bool:
    """Whether the controls are seen."""
    shown: bool = book.cell(cell).locator(".tray").evaluate(IN_SIGHT)
    return shown


def says(book: Notebook, cell: int, *texts: str, never: str = "\0") -> str:
    """Wait until the view of a cell shows these texts, and not that one; returns all of it."""
    book.page.wait_for_function(
        """([host, texts, never]) =>
            texts.every(text => host.innerText.includes(text)) && !host.innerText.includes(never)""",
        arg=[view(book, cell).element_handle(), list(texts), never],
    )
    text: str = view(book, cell).inner_text()
    return text


def audit(book: Notebook, cell: int) -> None:
    """Let axe judge the controls and each view of a cell, as a screen reader and a keyboard meet them."""
    bring_axe(book.page)
    for name in ["merged", "by rank", "by value", "diff"]:
        choose(book, cell, name)
        found = book.page.evaluate(
            """async cell => {
                const all = document.querySelectorAll(".jp-Notebook .jp-CodeCell");
                const include = [...all[cell].querySelectorAll(".nbcomm-views")];
                const { violations } = await axe.run({ include });
                return violations.flatMap(({ id, nodes }) => nodes.map(node => [id, node.html, node.failureSummary]));
            }""",
            cell,
        )
        assert found == [], name


def rows(book: Notebook, cell: int, what: str) -> list[int]:
    """How many of these parts of a view stand beside each other, from top to bottom."""
    tops = view(book, cell).locator(what).evaluate_all("all => all.map(el => el.getBoundingClientRect().top)")
    return [tops.count(top) for top in dict.fromkeys(tops)]


def merged(book: Notebook, cell: int) -> list[bool]:
    """Whether each of the cell's own outputs is in sight."""
    shown: list[bool] = (
        book.cell(cell)
        .locator(".jp-OutputArea-child")
        .evaluate_all("all => all.map(el => getComputedStyle(el).visibility === 'visible' && el.offsetHeight > 0)")
    )
    return shown


def begin(notebook: Make, name: str, *cells: str, app: str = "lab", start: str = START, **options: Any) -> Notebook:
    book = notebook(f"{name}.ipynb", LOAD, start, *cells, **options)
    book.page.set_default_timeout(60_000)
    book.open(app=app)
    book.run(0)
    book.run(1)
    return book


@pytest.mark.timeout(150)
@pytest.mark.parametrize("theme", THEMES)
def test_the_views_of_a_finished_cell(notebook: Make, server: Server, theme: str) -> None:
    server.choose_theme(theme)
    book = begin(notebook, f"views-{theme}", TEXT, viewport={"width": 1200, "height": 900})
    book.run(2)
    book.cell(2).get_by_role("radiogroup").wait_for()
    before = book.save()

    choose(book, 2, "by rank")
    text = says(book, 2, "hello from rank 0", "step 19", "[0-3] looks like a prefix", "even", "two\n  lines of 0")
    assert "rank 1\n" not in text.split("hello")[1]
    assert not any(merged(book, 2))
    assert view(book, 2).locator(".ansi-red-fg").inner_text() == "rank"
    tabs = view(book, 2).get_by_role("tab")
    tabs.nth(0).focus()
    book.page.keyboard.press("ArrowRight")
    says(book, 2, "hello from rank 1", "lines of 1", never="even")
    assert tabs.nth(1).get_attribute("aria-selected") == "true"

    book.cell(2).get_by_role("radio", name="by rank").focus()
    book.page.keyboard.press("ArrowRight")
    says(book, 2, "rank 0", "rank 3", "lines of 3")
    assert rows(book, 2, ".block") == [3, 1]
    book.cell(2).get_by_role("button", name="side by side").click()
    says(book, 2, "lines of 3")
    assert rows(book, 2, ".block") == [1] * 4
    book.cell(2).get_by_role("button", name="side by side").click()
    choose(book, 2, "diff")
    says(book, 2, "- hello from rank 0", "+ hello from rank 1", "- even", "+ odd", "equal lines")
    assert view(book, 2).locator("del .ansi-red-fg").inner_text() == "rank"
    shoot(f"views-text-diff-{theme}", book.cell(2))
    view(book, 2).get_by_role("combobox", name="to rank").select_option("2")
    says(book, 2, "-   lines of 0", "+   lines of 2", never="hello from rank 1")
    choose(book, 2, "merged")
    assert all(merged(book, 2))
    assert book.save() == before
    assert book.errors == []


@pytest.mark.timeout(150)
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.nightly)])
def test_what_differs_is_what_is_seen(notebook: Make, server: Server, theme: str) -> None:
    server.choose_theme(theme)
    book = begin(notebook, f"pairs-{theme}", PAIRS)
    book.run(2)
    choose(book, 2, "diff")
    says(book, 2, "- part 0 of 2", "+ part 1 of 2")
    assert [select.input_value() for select in view(book, 2).get_by_role("combobox").all()] == ["0", "2"]
    view(book, 2).get_by_role("combobox", name="to rank").select_option("1")
    says(book, 2, "Ranks 0 and 1 have shown the same.")  # who chooses a pair gets it

    choose(book, 2, "by value")
    says(book, 2, "ranks 0-1", "ranks 2-3")
    steps = "".join(f"step {i}\n" for i in range(6))
    for at, differs in enumerate(["loss 0.125", "only there"]):
        part = view(book, 2).locator(".block").nth(at)
        dimmed = part.locator(".common")
        assert dimmed.all_text_contents() == ["part ", f" of 2\n{steps}", "red for all, odd "]
        colours = {element.evaluate("el => getComputedStyle(el).color") for element in dimmed.all()}
        assert part.locator("pre").first.evaluate("el => getComputedStyle(el).color") not in colours
        assert differs in part.inner_text()
        assert part.locator(".common .ansi-red-fg").inner_text() == "red"
    audit(book, 2)
    assert book.errors == []


def places(book: Notebook, cell: int) -> dict[str, list[float]]:
    """Where a cell's output is, its first line, what folds it and the bar of its views: left, top, right and bottom."""
    found: dict[str, list[float]] = book.cell(cell).evaluate(
        """cell => {
            const box = (el) => {
                const { left, top, right, bottom } = el.getBoundingClientRect();
                return [left, top, right, bottom];
            };
            const input = cell.querySelector(".jp-Cell-inputWrapper").getBoundingClientRect();
            const pre = cell.querySelector(".jp-OutputArea-output pre");
            const line = document.createRange();
            line.setStart(pre.firstChild, 0);
            line.setEnd(pre.firstChild, pre.firstChild.data.split("\\n", 1)[0].length);
            const places = { line: box(line), fold: box(cell.querySelector(".jp-OutputCollapser")) };
            places.area = box(cell.querySelector(".jp-Cell-outputArea")).slice(0, 3);
            places.fold.pop();
            for (const part of ["handle", "tray"]) {
                const el = cell.querySelector(`.nbcomm-views-bar:not([hidden]) .${part}`);
                if (el && getComputedStyle(el).opacity === "1") places[part] = box(el);
            }
            for (const place of Object.values(places)) for (const i of [1, 3]) if (i in place) place[i] -= input.bottom;
            return places;
        }"""
    )
    return found


def heard(book: Notebook, cell: int) -> set[int]:
    """The ranks that an output names in its labels."""
    text = "".join(book.cell(cell).locator(".jp-OutputArea-output pre").all_inner_texts())
    return {rank for label in re.findall(r"^\[([\d,-]+)\] ", text, re.MULTILINE) for rank in parse(label, 4)}


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("app", "first"),
    [
        ("lab", "short"),
        *(
            pytest.param(*other, marks=pytest.mark.nightly)
            for other in [("lab", "long"), ("notebook", "short"), ("notebook", "long")]
        ),
    ],
)
def test_nothing_moves_or_is_covered_when_the_views_come(notebook: Make, server: Server, app: str, first: str) -> None:
    server.choose_theme("light")
    go = f"go-steady-{app}-{first}"
    line = first if first == "short" else "a line that is longer than any page is wide " * 6
    steady = STEADY.format(go=go, first=line)
    book = begin(notebook, f"steady-{app}-{first}", steady, SAME, app=app, viewport={"width": 1000, "height": 800})
    book.start(2)
    while heard(book, 2) != {0, 1, 2, 3}:  # whoever comes late changes the label
        book.page.wait_for_timeout(20)
    before = places(book, 2)
    assert not {"handle", "tray"} & before.keys()
    (server.root / f"{go}-1").touch()
    book.cell(2).get_by_role("radiogroup").wait_for()
    book.page.mouse.move(5, 5)
    during = places(book, 2)
    (server.root / f"{go}-2").touch()
    book.cell(2).locator(".jp-OutputArea-output").filter(has_text="the end").wait_for()
    book.idle()
    after = places(book, 2)
    handle = during.pop("handle")
    assert after.pop("handle") == handle
    assert handle[2] - handle[0] < 60
    assert handle[3] - handle[1] < 20
    assert before == during == after
    assert before["fold"][2] - before["fold"][0] > 4  # one can still fold the output

    point(book, 2)
    pointed = places(book, 2)
    tray = pointed.pop("tray")
    assert pointed == before
    assert max(tray[3], handle[3]) <= before["line"][1] + 2  # they cover nothing of the output
    assert tray[0] >= before["area"][0] - 20
    book.page.mouse.move(5, 5)
    book.cell(2).get_by_role("radio", name="merged").press("Home")
    assert places(book, 2) == {**before, "tray": tray}
    book.page.keyboard.press("Escape")
    assert "tray" not in places(book, 2)

    book.run(3)
    assert places(book, 3)["area"] == before["area"]  # where there are no views there is no strip for them


@pytest.mark.timeout(150)
def test_a_finger_reaches_the_views_by_their_handle(notebook: Make, server: Server) -> None:
    server.choose_theme("light")
    book = begin(notebook, "touch", PAIRS, SAME, has_touch=True, viewport={"width": 1000, "height": 800})
    book.run(2)
    book.run(3)
    book.page.mouse.move(5, 5)
    handle = book.cell(2).locator(".handle")
    handle.wait_for()
    assert not is_in_sight(book, 2)
    box = handle.bounding_box()
    book.page.touchscreen.tap(box["x"] + 2, box["y"] - 3)  # a finger need not meet what is seen
    book.page.wait_for_function("() => document.querySelector('.nbcomm-views-bar.open')")
    book.cell(2).get_by_role("radio", name="by value").tap()
    says(book, 2, "ranks 0-1", "ranks 2-3")
    book.cell(3).locator(".jp-OutputArea-output").tap()
    assert not is_in_sight(book, 2)
    assert handle.inner_text() == "by value"
    assert book.errors == []


PARTS = """host => [...host.querySelectorAll("figure")].map(figure => {
    const label = figure.querySelector("figcaption") ?? figure.closest(".block")?.querySelector(".who");
    const [table, above] = [figure.lastElementChild, label].map(el => el?.getBoundingClientRect());
    const isUnder = !above || (above.bottom <= table.top + 1 && Math.abs(above.left - table.left) < 2);
    return [label?.textContent ?? "", figure.lastElementChild.innerText.replace(/\\s+/g, " ").trim(), isUnder];
})"""
"""The label of each display in a view, what it shows, and whether it stands right under the label."""


@pytest.mark.timeout(250)
@pytest.mark.parametrize(
    ("ranks", "theme"),
    [*(pytest.param(*other, marks=pytest.mark.nightly) for other in [(4, "light"), (8, "dark")]), (16, "light")],
)
def test_what_a_rank_displays_stands_under_its_label(notebook: Make, server: Server, ranks: int, theme: str) -> None:
    server.choose_theme(theme)
    start = f"%distributed start -n {ranks}"
    book = begin(notebook, f"table-{ranks}", TABLE, start=start, viewport={"width": 1000, "height": 1500})
    book.run(2)
    choose(book, 2, "by rank")
    says(book, 2, "frame of")
    view(book, 2).get_by_role("tab").nth(2).click()
    whole = ranks < 16  # of many outputs JupyterLab shows fifty, and says so
    own = ["table of rank 2", "equal", "frame of rank 1"]
    assert view(book, 2).evaluate(PARTS)[: 2 + whole] == [["", what, True] for what in own[: 2 + whole]]
    book.cell(2).get_by_role("button", name="side by side").click()
    says(book, 2, f"rank {ranks - 1}")
    shown = view(book, 2).evaluate(PARTS)
    assert [part for part in shown if part[1].startswith("table")] == [
        [f"rank {rank}", f"table of rank {rank}", True] for rank in range(ranks)
    ]
    assert all(is_under for _, _, is_under in shown)
    choose(book, 2, "merged")
    says(book, 2, "ranks", "equal")
    shown = view(book, 2).evaluate(PARTS)
    assert shown[: ranks + 1] == [
        *[[f"rank {rank}", f"table of rank {rank}", True] for rank in range(ranks)],
        [f"ranks 0-{ranks - 1}", "equal", True],
    ]
    assert all(is_under for _, _, is_under in shown)
    choose(book, 2, "diff")
    says(book, 2, "for all")
    assert (
        view(book, 2).evaluate(PARTS)[: 3 + whole]
        == [
            ["rank 0", "table of rank 0", True],
            ["rank 1", "table of rank 1", True],
            ["ranks 0-1", "equal", True],
            ["ranks 0-1", "frame of rank 0", True],
        ][: 3 + whole]
    )
    assert book.errors == []


@pytest.mark.timeout(150)
@pytest.mark.parametrize("app", ["lab", pytest.param("notebook", marks=pytest.mark.nightly)])
def test_what_is_shown_can_be_copied(notebook: Make, server: Server, app: str) -> None:
    server.choose_theme("light")
    book = begin(notebook, f"copy-{app}", PAIRS, app=app, viewport={"width": 1200, "height": 900})
    book.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    book.run(2)
    button = book.cell(2).get_by_role("button", name="copy")
    said = book.cell(2).locator(".said")

    def copied() -> str:
        book.page.evaluate("() => navigator.clipboard.writeText('')")
        # It is shown for two seconds only, which a busy machine may miss. The whole cell is observed, for another bar
        # may come when an output is late.
        book.cell(2).evaluate(
            """(cell) => {
                cell.querySelector(".said").textContent = "";
                window.told = new Promise((resolve) => {
                    const observer = new MutationObserver(() => {
                        const told = cell.querySelector(".said")?.textContent;
                        if (!told) return;
                        observer.disconnect();
                        resolve(told);
                    });
                    observer.observe(cell, { childList: true, characterData: true, subtree: true });
                });
            }"""
        )
        point(book, 2)
        book.cell(2).locator(".copier").click()
        assert book.page.evaluate("() => window.told") == "copied"
        text: str = book.page.evaluate("() => navigator.clipboard.readText()")
        return text

    steps = [f"step {i}" for i in range(6)]
    width = button.bounding_box()["width"]
    assert copied().splitlines() == [
        *["[0-1] part 0 of 2", "[2-3] part 1 of 2", *(f"[0-3] {step}" for step in steps)],
        *["[0-1] loss 0.125", "[2-3] only there", "[0-1] red for all, odd 0", "[2-3] red for all, odd 1"],
    ]
    assert book.cell(2).locator(".copier").bounding_box()["width"] == width  # "copied" moves nothing
    button.wait_for()  # it says "copy" again
    choose(book, 2, "by rank")
    view(book, 2).get_by_role("tab").nth(3).click()
    whole = ["part 1 of 2", *steps, "only there", "red for all, odd 1"]
    assert copied().splitlines() == whole
    choose(book, 2, "diff")
    assert copied().splitlines()[:3] == ["- part 0 of 2", "+ part 1 of 2", "  step 0"]

    # Where the page may not write to the clipboard there is the old way, and then a person's.
    choose(book, 2, "by rank")
    book.page.evaluate(
        """() => {
            const { clipboard } = navigator;
            const write = clipboard.writeText.bind(clipboard);
            const refused = new DOMException("no", "NotAllowedError");
            clipboard.writeText = (text) => text ? Promise.reject(refused) : write(text);
        }"""
    )
    assert copied().splitlines() == whole
    book.page.evaluate("() => { document.execCommand = () => false; }")
    book.cell(2).locator(".copier").click()
    said.filter(has_text="The text is selected now: copy it with Ctrl+C").wait_for()
    assert book.page.evaluate("() => getSelection().toString().trim().split('\\n')") == whole
    bar, shown = said.bounding_box(), view(book, 2).locator(".head").bounding_box()
    assert bar["y"] + bar["height"] <= shown["y"] + 2
    assert book.errors == []


def marked(book: Notebook) -> list[str]:
    """The lines that are marked, the current one first."""
    lines: list[str] = book.page.evaluate(
        """() => ["nbcomm-current", "nbcomm-found"].flatMap(name => [...CSS.highlights.get(name) ?? []]).map(range => {
            const live = document.createRange();
            live.setStart(range.startContainer, range.startOffset);
            live.setEnd(range.endContainer, range.endOffset);
            return live.toString();
        })"""
    )
    return lines


@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("app", "theme"), [("lab", "light"), pytest.param("notebook", "dark", marks=pytest.mark.nightly)]
)
def test_what_is_shown_can_be_searched(notebook: Make, server: Server, app: str, theme: str) -> None:
    server.choose_theme(theme)
    book = begin(notebook, f"find-{app}", TEXT, app=app, viewport={"width": 1200, "height": 900})
    book.run(2)
    before = book.save()
    prompt = book.cell(2).locator(".jp-InputPrompt").inner_text()
    opener = book.cell(2).get_by_role("button", name="find")
    opener.press("Enter")
    keys, count = book.page.keyboard, book.cell(2).get_by_role("search").get_by_role("status")
    keys.type("EVEN odd bdd")  # no letter is the notebook's
    assert count.inner_text() == "no line"
    keys.press("Control+a")
    keys.type("Step 1")
    assert count.inner_text() == "1 of 11"
    assert marked(book)[:3] == ["[0-3] step 1", "[0-3] step 10", "[0-3] step 11"]
    keys.press("Enter")
    assert count.inner_text() == "2 of 11"
    keys.press("Shift+Enter")
    keys.press("Shift+Enter")
    assert count.inner_text() == "11 of 11"
    assert marked(book)[0] == "[0-3] step 19"

    choose(book, 2, "diff")
    field = book.cell(2).get_by_role("searchbox")
    field.fill("step 9")
    assert count.inner_text() == "1 of 1"
    assert view(book, 2).locator("details[open]").count() == 1  # it was in lines that are folded
    field.fill("lines of")
    assert marked(book) == ["-   lines of 0", "+   lines of 1"]
    audit(book, 2)
    choose(book, 2, "by rank")
    assert count.inner_text() == "1 of 1"
    field.press("Escape")
    assert book.cell(2).get_by_role("search").count() == 0
    assert opener.evaluate("el => el === document.activeElement")
    assert marked(book) == []
    assert book.cell(2).locator(".jp-InputPrompt").inner_text() == prompt  # Shift+Enter has not run the cell
    choose(book, 2, "merged")
    assert book.save() == before
    assert book.errors == []


@pytest.mark.nightly
@pytest.mark.timeout(200)
def test_a_long_output_is_searched_at_once_and_what_is_found_comes_into_sight(notebook: Make, server: Server) -> None:
    server.choose_theme("light")
    book = begin(notebook, "find-long", LONG, viewport={"width": 1200, "height": 900})
    book.run(2)
    for name in ["by rank", "merged"]:
        choose(book, 2, name)
        if not book.cell(2).get_by_role("search").count():
            book.cell(2).get_by_role("button", name="find").press("Enter")
        # Other processes may take the processor away from one search; each goes to lines that are not in sight yet.
        took = book.cell(2).evaluate(
            """async cell => {
                const field = cell.querySelector(".field");
                const took = [];
                for (const step of [6999, 13999, 19999]) {
                    const started = performance.now();
                    field.value = `step ${step} `;
                    field.dispatchEvent(new Event("input"));
                    await new Promise(done => requestAnimationFrame(() => setTimeout(done)));
                    took.push(performance.now() - started);
                }
                return took;
            }"""
        )
        assert min(took) < 2000
        top, bottom = book.page.evaluate(
            """() => {
                const [range] = CSS.highlights.get("nbcomm-current");
                const live = document.createRange();
                live.setStart(range.startContainer, range.startOffset);
                live.setEnd(range.endContainer, range.endOffset);
                const { top, bottom } = live.getBoundingClientRect();
                return [top, bottom];
            }"""
        )
        assert 0 < top < bottom < 900
        book.page.evaluate("() => document.querySelector('.jp-WindowedPanel-outer').scrollTo(0, 0)")
    assert book.errors == []


UNDER = """root => [...root.querySelectorAll("img")].filter(image => image.checkVisibility()).map(image => {
    const before = image.closest(".jp-OutputArea-child")?.previousElementSibling;
    const [figure, block] = [image.closest("figure"), image.closest(".block")];
    const label = figure?.querySelector("figcaption") ?? block?.querySelector(".who");
    const range = document.createRange();
    range.selectNodeContents(label ?? before.querySelector("pre"));
    const [above, own] = [range.getBoundingClientRect(), image.getBoundingClientRect()];
    return above.top < own.top && Math.abs(above.left - own.left) < 2;
})"""
"""Whether each figure stands right under the letters of its label."""


@pytest.mark.timeout(150)
@pytest.mark.parametrize("theme", THEMES)
def test_figures_side_by_side(notebook: Make, server: Server, theme: str) -> None:
    server.choose_theme(theme)
    book = begin(notebook, f"figures-{theme}", FIGURE, app="notebook", viewport={"width": 1200, "height": 900})
    book.run(2)
    book.page.wait_for_function("document.querySelectorAll('.nbcomm-views .figures.side img').length === 4")
    assert rows(book, 2, "figure") == [3, 1]  # as wide as the notebook is
    assert says(book, 2, "rank 0", "rank 3", "[3] rank 3 has drawn")
    assert view(book, 2).evaluate(UNDER) == [True] * 4
    shoot(f"views-figures-side-{theme}", book.cell(2))
    before = book.save()
    book.page.set_viewport_size({"width": 320, "height": 900})
    book.page.wait_for_function("document.querySelector('.nbcomm-views-host').hidden")  # two do not fit
    assert book.cell(2).evaluate(UNDER) == [True] * 4
    book.page.set_viewport_size({"width": 1200, "height": 900})
    book.page.wait_for_function("!document.querySelector('.nbcomm-views-host').hidden")
    point(book, 2)
    toggle = book.cell(2).get_by_role("button", name="side by side")
    assert toggle.get_attribute("aria-pressed") == "true"
    toggle.click()
    assert all(merged(book, 2))
    assert book.cell(2).evaluate(UNDER) == [True] * 4
    choose(book, 2, "by rank")
    says(book, 2, "rank 0 has drawn", never="rank 3 has drawn")
    assert view(book, 2).locator("img").count() == 1
    toggle.click()
    says(book, 2, "rank 3 has drawn")
    assert view(book, 2).locator(".block").count() == 4
    assert view(book, 2).evaluate(UNDER) == [True] * 4
    book.page.set_viewport_size({"width": 320, "height": 900})
    assert view(book, 2).evaluate("el => el.scrollWidth <= el.clientWidth")
    book.page.set_viewport_size({"width": 1200, "height": 900})
    choose(book, 2, "diff")
    says(book, 2, "+ rank 1 has drawn")
    assert view(book, 2).locator("img").count() == 2
    assert book.save() == before
    assert book.errors == []


@pytest.mark.timeout(150)
@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.nightly), "dark"])
def test_nobody_is_left_out(notebook: Make, server: Server, theme: str) -> None:
    server.choose_theme(theme)
    book = begin(notebook, f"axe-{theme}", FIGURE, TEXT)
    for cell in [2, 3]:
        book.run(cell)
        audit(book, cell)
    assert book.errors == []


@pytest.mark.timeout(150)
def test_a_failed_cell_and_cells_without_views(notebook: Make, server: Server) -> None:
    server.choose_theme("dark")
    book = begin(notebook, "failed", SAME, LOCAL, FAILING)
    book.run(2)
    book.run(3)
    book.start(4)
    book.cell(4).locator(".jp-OutputArea-output").filter(has_text="CellError").wait_for()
    book.idle()
    choose(book, 4, "by rank")
    text = says(book, 4, "before 0", "CellError", never="before 1")
    assert "Traceback" not in text
    view(book, 4).get_by_role("tab").nth(2).click()
    says(book, 4, "before 2", "Traceback", "AssertionError: rank 2 is the odd one", "CellError")
    assert view(book, 4).locator(".body .ansi-red-fg").count()
    choose(book, 4, "by value")
    says(book, 4, "rank 0", "rank 2")
    choose(book, 4, "by rank")

    # Typed letters belong to the controls: "b" would insert a cell and "d d" delete one.
    count = book.page.locator(".jp-Notebook .jp-CodeCell").count()
    for stop in ["radio", "tab"]:
        book.cell(4).get_by_role(stop).nth(1).focus()
        for letter in "bdd":
            book.page.keyboard.press(letter)
    assert book.page.locator(".jp-Notebook .jp-CodeCell").count() == count
    assert book.cell(2).get_by_role("radiogroup").count() == 0
    assert book.cell(3).get_by_role("radiogroup").count() == 0
    assert book.errors == []


@pytest.mark.nightly
@pytest.mark.timeout(150)
@pytest.mark.parametrize("app", ["lab", "notebook"])
def test_a_running_cell_and_a_reload(notebook: Make, server: Server, app: str) -> None:
    server.choose_theme("dark" if app == "notebook" else "light")
    go = f"go-views-{app}"
    book = begin(notebook, f"running-{app}", RUNNING.format(go=go), app=app, viewport={"width": 1000, "height": 800})
    book.start(2)
    choose(book, 2, "by value")
    says(book, 2, "begins 1", "begins 3", never="begins 0")
    (server.root / f"{go}-0").touch()
    says(book, 2, "begins 0", "begins 3")
    (server.root / f"{go}-1").touch()
    says(book, 2, "goes on 0", "goes on 3")
    choose(book, 2, "by rank")
    says(book, 2, "goes on 0", never="goes on 3")
    (server.root / f"{go}-2").touch()
    says(book, 2, "ends")
    book.idle()
    choose(book, 2, "by value")
    choose(book, 2, "diff")
    book.save()
    book.page.reload()
    book.idle()
    choose(book, 2, "diff")
    says(book, 2, "- begins 0", "+ begins 1")
    assert book.errors == []


@pytest.mark.nightly
@pytest.mark.timeout(150)
def test_figures_of_ranks_that_come_in_another_order_stand_in_the_order_of_the_ranks(
    notebook: Make, server: Server
) -> None:
    late = FIGURE.replace("\n", "\nimport time; time.sleep(0.6 * (3 - rank))\n", 1)
    book = begin(notebook, "figures-late", late)
    book.run(2)
    book.page.wait_for_function("document.querySelectorAll('.nbcomm-views .figures.side img').length === 4")
    titles = "all => all.map(el => el.querySelector('figcaption').textContent)"
    assert view(book, 2).locator("figure").evaluate_all(titles) == [f"rank {rank}" for rank in range(4)]
    point(book, 2)
    book.cell(2).get_by_role("button", name="side by side").click()
    tops = (
        book.cell(2)
        .locator(".jp-OutputArea-output img")
        .evaluate_all("all => all.map(el => el.getBoundingClientRect().top)")
    )
    assert len(tops) == 4
    assert tops == sorted(tops)
    book.cell(2).get_by_role("button", name="side by side").click()
    choose(book, 2, "by rank")
    says(book, 2, "rank 0", "rank 3")
    assert view(book, 2).locator(".block").count() == view(book, 2).locator("figure img").count() == 4
    assert book.errors == []
