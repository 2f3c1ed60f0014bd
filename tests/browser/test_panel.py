"""The panel in a real JupyterLab and a real Notebook 7: live, saved, reloaded.

The world is made up in the notebook. A blocking cell ends when the test has seen what it came for and writes
the file ``go``: nothing here waits for time to pass.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from .conftest import Notebook, Server, bring_axe

NAMES = """
import os, threading, time
from nbcomm.panel import Panel, RankView

def world(state, memory=300):
    return [RankView(r, r, 0, "host", "cpu", 1000 + r, state, time.time(), memory << 20) for r in range(4)]
"""
WORLD = f"""{NAMES}
panel = Panel("demo world", "gloo", world("idle"))
panel.show()
"""
AGAIN = "panel.show()"
BLOCK = """
done = threading.Event()
def watch():
    memory = 400
    while not done.wait(0.2):
        memory += 1
        panel.update(world("running", memory))
watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
while not os.path.exists("{go}"):
    time.sleep(0.02)
done.set()
watcher.join()
panel.update(world("{end}"))
panel.settle()
"""
FAIL = """panel.update(world("failed")); panel.settle()"""

# Draws no conclusion from one look: every frame that the browser paints is looked at.
WATCH_FRAMES = """() => {
  window.bare = 0; window.frames = 0;
  const look = () => {
    window.frames += 1;
    for (const table of document.querySelectorAll(".nbcomm-panel > table")) window.bare += table.offsetParent !== null;
    requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}"""

SAID = "[...document.querySelectorAll('.nbcomm-live .said')].map((el) => el.innerText)"
"""What the places of the panel answer to a click."""

Make = Callable[..., Notebook]


def blocking(go: str, end: str) -> str:
    return BLOCK.format(go=go, end=end)


def in_job(panel: str, views: str, left: int) -> str:
    """Code that puts a panel's world into a job which has so many seconds left."""
    return f"""
from nbcomm.panel import JobView
{panel}.update({views}, job=JobView("Slurm job 12", time.time() + {left}))
"""


# Little time, which stands out, and much.
IN_JOBS = in_job("panel", "views", 300) + in_job("large", "many", 7200)


def live(book: Notebook, mood: str) -> Any:
    return book.page.locator(f".nbcomm-live .card[data-mood={mood}]")


def expect_cards(book: Notebook, mood: str, count: int) -> None:
    book.page.wait_for_function(
        "([mood, count]) => document.querySelectorAll(`.nbcomm-live .card[data-mood=${mood}]`).length === count",
        arg=[mood, count],
    )


@pytest.mark.timeout(180)
def test_it_is_live_while_a_cell_blocks_and_never_bare(notebook: Make, server: Server) -> None:
    book = notebook("live.ipynb", WORLD, AGAIN, blocking("go-live", "interrupted"))
    book.open()
    book.run(0)
    book.run(1)
    expect_cards(book, "idle", 8)
    book.page.evaluate(WATCH_FRAMES)
    book.start(2)
    expect_cards(book, "running", 8)
    process = live(book, "running").first.locator(".process")
    seen = process.inner_text()
    book.page.wait_for_function("([el, seen]) => el.innerText !== seen", arg=[process.element_handle(), seen])
    assert "running for" in book.page.locator(".nbcomm-live .headline").first.inner_text()

    # Typed letters belong to the card: "b" would insert a cell and "d d" delete one.
    cells = book.page.locator(".jp-Notebook .jp-CodeCell").count()
    live(book, "running").first.focus()
    book.page.keyboard.press("ArrowRight")
    assert book.page.evaluate("document.activeElement.dataset.rank") == "1"
    for letter in "bdd":
        book.page.keyboard.press(letter)
    assert book.page.locator(".jp-Notebook .jp-CodeCell").count() == cells

    (server.root / "go-live").touch()
    expect_cards(book, "interrupted", 8)
    book.idle()
    assert book.page.evaluate("document.activeElement.dataset.rank") == "1"
    stored = [output["data"]["text/plain"] for cell in book.save()["cells"][:2] for output in cell["outputs"]]
    assert [lines[1].endswith(": ranks 0-3 interrupted\n") for lines in stored] == [True, True]
    bare, frames = book.page.evaluate("[window.bare, window.frames]")
    assert bare == 0
    assert frames > 0
    assert book.errors == []


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_saved_and_reopened_without_a_kernel_it_is_a_table(notebook: Make, server: Server) -> None:
    book = notebook("saved.ipynb", WORLD, FAIL)
    book.open()
    book.run(0)
    book.run(1)
    expect_cards(book, "failed", 4)
    book.idle()
    saved = book.save()
    assert "widgets" not in saved["metadata"]
    [output] = saved["cells"][0]["outputs"]
    assert set(output["data"]) == {"text/html", "text/plain"}
    server.stop_kernels()

    # As whoever gets the file by mail: nobody's signature, and a kernel and language that are not there.
    saved["metadata"] = {"kernelspec": {"name": "gone", "display_name": "gone", "language": "gone"}}
    (server.root / "mailed.ipynb").write_text(json.dumps(saved))
    reader = notebook("mailed.ipynb")
    reader.open(kernel=False)
    reader.page.locator(".jp-Dialog .jp-mod-reject").click()
    table = reader.page.locator(".nbcomm-panel table")
    table.wait_for()
    assert table.locator("tbody tr").count() == 4
    assert "failed" in table.inner_text()
    assert reader.page.locator(".nbcomm-live").count() == 0
    assert reader.page.get_by_text("Error displaying widget").count() == 0
    assert reader.errors == []


BUSY_PAGE = """() => {
  const timeout = AbortSignal.timeout;
  AbortSignal.timeout = function (ms) {
    const signal = timeout.call(AbortSignal, ms);
    for (const begun = performance.now(); performance.now() < begun + ms + 300; );
    return signal;
  };
}"""
"""The page is busy just when anywidget begins to load a module, for longer than anywidget waits."""


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_a_page_that_is_busy_when_the_panel_comes_misses_nothing(notebook: Make) -> None:
    at_once = "panel.update(world('running')); panel.settle()"
    book = notebook("late.ipynb", f"{ACTIONS}\n{at_once}", FAIL, own_page=True)
    book.open()
    book.page.evaluate(BUSY_PAGE)
    book.run(0)
    expect_cards(book, "running", 4)
    book.run(1)
    expect_cards(book, "failed", 4)
    press(book, "interrupt")
    expect_said(book, "no cell is running", SENT)
    assert book.errors == []


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_a_reloaded_page_goes_live_again(notebook: Make, server: Server) -> None:
    book = notebook("reload.ipynb", WORLD, """panel.update(world("running"))""", blocking("go-reload", "failed"))
    book.open()
    book.run(0)
    book.run(1)
    expect_cards(book, "running", 4)
    book.save()
    book.page.reload()
    book.idle()
    expect_cards(book, "running", 4)
    book.start(2)
    (server.root / "go-reload").touch()
    expect_cards(book, "failed", 4)
    assert book.errors == []


@pytest.mark.timeout(180)
def test_it_works_in_notebook_7(notebook: Make, server: Server) -> None:
    book = notebook("seven.ipynb", WORLD, blocking("go-seven", "idle"), "panel.close()")
    book.open(app="notebook")
    book.run(0)
    expect_cards(book, "idle", 4)
    book.start(1)
    expect_cards(book, "running", 4)
    (server.root / "go-seven").touch()
    expect_cards(book, "idle", 4)
    book.run(2)
    book.page.locator(".nbcomm-panel").filter(has_text="stopped; this was the last state").wait_for()
    assert book.errors == []


# ── its buttons, its ladder, its timeline ──

# By the clock of a busy machine, a click is soon too old for the kernel.
PATIENT = "from nbcomm.panel import clicks; clicks.PATIENCE = 60"
ACTIONS = f"""{NAMES}
acted = []
def act(name, says):
    def do():
        acted.append(name)
        return says
    return do
actions = {{"interrupt": act("interrupt", "no cell is running"), "heal": act("heal", "rank 2 has a new process"),
           "stop": act("stop", "stopped"), "restart": act("restart", "restarted")}}
panel = Panel("demo world", "gloo", world("idle"), actions=actions)
panel.show()
{PATIENT}
"""
# To a page that is slow or has just loaded, what it hears is old.
LAGS = f"""
from nbcomm.panel import feed
keyframe = feed.Feed.keyframe
feed.Feed.keyframe = lambda self, wall: keyframe(self, wall - 100)
{ACTIONS}"""
FOREVER = "while True: pass"
RESTART = f"""{NAMES}
def restart():
    global panel
    old = panel
    old.close()
    panel = Panel("second world", "gloo", world("idle"), actions={{"restart": restart}})
    panel.replace(old)
    return "restarted"
panel = Panel("first world", "gloo", world("idle"), actions={{"restart": restart}})
panel.show()
{PATIENT}
"""
MANY = """
many = [RankView(r, r % 8, r // 8, f"host{r // 8}", "cpu", 1000 + r, "idle", time.time(), 1 << 28) for r in range(64)]
many[5] = RankView(5, 5, 0, "host0", "cpu", 1005, "failed", time.time(), error="ValueError: boom")
large = Panel("large world", "gloo", many, actions=actions)
large.show()
"""
SIZE = "document.querySelector('.nbcomm-live .size').innerText"
ACTED = "print('acted:', acted)"
HANG = """
from nbcomm.analysis.story import Past, Rung, Span
from nbcomm.panel import Ladder, Timeline
views = world("waiting")
views[3] = RankView(3, 3, 0, "host", "cpu", 1003, "running", time.time())
views = [RankView(v.rank, v.local_rank, 0, "host", "cpu", v.pid, v.state, time.time() - 20, 1 << 28) for v in views]
ladder = Ladder(rungs=(Rung(1, "broadcast", "line 1: broadcast(x)", ("done",) * 4),
                       Rung(2, "all_reduce", "line 2: all_reduce(x)", ("arrived",) * 3 + ("missing",))))
call = "all_reduce #2", "line 2: all_reduce(x)", 4096
spans = {r: (Span("compute", 0, 1 + (r == 3)), Span("waiting", 1 + (r == 3), 2, *call)) for r in range(4)}
timeline = Timeline(7, 2.0, False, spans, "rank 3 came last in 1 of 1 collectives; the others waited 1.0 s for it")
past = [Past(cell, 1.5, cell / 20, 3 if cell % 2 else None) for cell in range(1, 8)]
panel.update(views, ladder=ladder, timeline=timeline, past=past)
"""
BLOCK_STILL = """
while not os.path.exists("{go}"):
    time.sleep(0.02)
"""
# What is wider than its place; the ladder has a place of its own to scroll in, and a bar's stretches are clipped.
TOO_WIDE = """() => [...document.querySelectorAll(".nbcomm-live")]
  .flatMap((root) => [root, ...root.querySelectorAll("*")])
  .filter((el) => el.clientWidth && el.scrollWidth > el.clientWidth + 1 && !el.closest(".scroller")
    && getComputedStyle(el).overflowX === "visible")
  .map((el) => el.className)"""
CONTRAST = """async () => {
  const rules = { type: "rule", values: ["color-contrast"] };
  const { violations, passes } = await axe.run({ include: [[".nbcomm-live"]] }, { runOnly: rules });
  return [violations, passes].map((some) => some.flatMap(({ nodes }) => nodes.map(({ html }) => html)));
}"""
# A click is under way for a second and a half only, which a busy machine may miss.
WAITS = """() => {
  window.waits = new Promise((resolve) => {
    const observer = new MutationObserver(() => {
      if (!document.querySelector(".nbcomm-live .button[aria-busy=true]")) return;
      observer.disconnect();
      resolve();
    });
    observer.observe(document.body, { attributes: true, childList: true, subtree: true });
  });
}"""
SENT = "The interrupt was sent, as by the notebook's ■ button."
UNHEARD = "The kernel is busy and cannot respond; use the notebook's ■ button, then try again."


def press(book: Notebook, name: str, *, view: int = 0) -> None:
    book.page.locator(".nbcomm-live").nth(view).get_by_role("button", name=name, exact=True).click()


def expect_said(book: Notebook, *texts: str, times: int = 1) -> None:
    """Wait until so many places say one of these texts."""
    from playwright.sync_api import TimeoutError as OutOfTime  # the fixture has said how to install it

    try:
        book.page.wait_for_function(
            f"([texts, times]) => {SAID}.filter((said) => texts.includes(said)).length === times", arg=[texts, times]
        )
    except OutOfTime as error:
        pytest.fail(f"Said is {book.page.evaluate(SAID)}, and not {times} times one of {texts}: {error}")


@pytest.mark.timeout(180)
@pytest.mark.parametrize("app", ["lab", pytest.param("notebook", marks=pytest.mark.nightly)])
def test_interrupt_ends_a_cell_that_blocks_the_kernel(notebook: Make, app: str) -> None:
    book = notebook(f"interrupt-{app}.ipynb", ACTIONS, FOREVER, ACTED)
    book.open(app=app)
    book.run(0)
    book.start(1)
    book.page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=busy]", state="attached")
    press(book, "interrupt")
    book.cell(1).get_by_text("KeyboardInterrupt").first.wait_for()
    expect_said(book, SENT)
    book.idle()
    # When nothing blocks it, the kernel hears the button itself: something may run on the ranks.
    said: list[str] = []
    while "no cell is running" not in said:  # a kernel that is slow is interrupted as by ■; the test's timeout ends it
        press(book, "interrupt")
        expect_said(book, "no cell is running", SENT)
        said = book.page.evaluate(SAID)
    assert book.errors == []


@pytest.mark.timeout(180)
def test_a_button_that_a_busy_kernel_hears_too_late_does_nothing(notebook: Make, server: Server) -> None:
    block = f"clicks.PATIENCE = 1.5{BLOCK_STILL.format(go='go-late')}"
    book = notebook("late.ipynb", ACTIONS, block, ACTED, "panel.show()", PATIENT)
    book.open()
    book.run(0)
    book.run(3)
    book.start(1)
    book.page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=busy]", state="attached")
    book.page.evaluate(WAITS)
    press(book, "heal")
    book.page.evaluate("() => window.waits")
    expect_said(book, UNHEARD, times=2)
    (server.root / "go-late").touch()
    book.idle()
    book.run(2)
    # The kernel takes its messages in their order: the click has been heard before this cell.
    assert "acted: []" in book.cell(2).locator(".jp-OutputArea-output").inner_text()
    book.run(4)
    press(book, "heal")
    expect_said(book, "rank 2 has a new process", times=2)
    book.run(2)
    assert "acted: ['heal']" in book.cell(2).locator(".jp-OutputArea-output").inner_text()
    assert book.errors == []


@pytest.mark.timeout(180)
def test_a_page_to_which_the_kernels_clock_seems_to_lag_is_heard(notebook: Make) -> None:
    book = notebook("lags.ipynb", LAGS)
    book.open()
    book.run(0)
    press(book, "heal")
    expect_said(book, "rank 2 has a new process")
    assert book.errors == []


@pytest.mark.timeout(180)
@pytest.mark.parametrize("app", ["lab", pytest.param("notebook", marks=pytest.mark.nightly)])
def test_what_destroys_asks_first_and_its_keys_are_its_own(notebook: Make, app: str) -> None:
    book = notebook(f"ask-{app}.ipynb", ACTIONS, "panel.show()", ACTED)
    book.open(app=app)
    book.run(0)
    book.run(1)
    cells = book.page.locator(".jp-Notebook .jp-CodeCell").count()
    keyboard, key = book.page.keyboard, "document.activeElement.dataset.key"
    press(book, "stop")
    assert book.page.evaluate(key) == "no"
    assert book.page.locator(".nbcomm-live .ask:visible").count() == 2
    for letter in "bdd":
        keyboard.press(letter)
    keyboard.press("Escape")
    assert book.page.locator(".nbcomm-live .ask:visible").count() == 0
    assert book.page.evaluate(key) == "press stop"
    for letter in "bdd":
        keyboard.press(letter)
    assert book.page.locator(".jp-Notebook .jp-CodeCell").count() == cells

    keyboard.press("Enter")
    keyboard.press("Shift+Tab")
    keyboard.press("Enter")
    expect_said(book, "stopped", times=2)
    assert book.page.evaluate(key) == "press stop"
    book.run(2)
    assert "acted: ['stop']" in book.cell(2).locator(".jp-OutputArea-output").inner_text()

    press(book, "hide controls", view=1)
    assert book.page.get_by_role("button", name="heal", exact=True).count() == 0
    press(book, "show controls")
    assert book.page.get_by_role("button", name="heal", exact=True).count() == 2
    assert book.errors == []


@pytest.mark.timeout(180)
def test_after_a_restart_the_new_world_is_where_the_old_one_was(notebook: Make) -> None:
    book = notebook("restart.ipynb", RESTART, AGAIN, FAIL)
    book.open()
    book.run(0)
    book.run(1)
    book.page.wait_for_function("document.querySelectorAll('.nbcomm-live').length === 2")
    press(book, "restart")
    press(book, "Yes, restart")
    titles = "[...document.querySelectorAll('.nbcomm-live .title')].map((el) => el.innerText).join()"
    book.page.wait_for_function(f"{titles} === 'second world,second world'")
    book.run(2)  # what the new world writes at the end of its cells goes there too
    expect_cards(book, "failed", 8)
    book.idle()
    stored = [output["data"]["text/plain"] for cell in book.save()["cells"][:2] for output in cell["outputs"]]
    assert [lines[0] for lines in stored] == ["second world · 1 node · gloo\n"] * 2
    assert [lines[1].endswith(": ranks 0-3 failed\n") for lines in stored] == [True, True]
    assert book.errors == []


@pytest.mark.timeout(180)
def test_a_hang_is_one_empty_circle_and_a_filled_head(notebook: Make) -> None:
    book = notebook("hang.ipynb", ACTIONS, HANG, "panel.show()", "panel.close()")
    book.open()
    for cell in range(3):
        book.run(cell)
    expect_ladder(book)
    panel = book.page.locator(".nbcomm-live").last
    panel.get_by_role("group", name="rank 3: compute 2.0 s", exact=True).wait_for()
    assert panel.locator(".row .waited").all_inner_texts() == ["waited 1.0 s"] * 3 + [""]
    for name, said in [("ladder", "Collectives: rank 3 has not"), ("timeline", "Time: In [7] took 2.0 s")]:
        # What stands on one line is not read as one word.
        assert said in panel.locator(f"details.{name} summary").aria_snapshot()
    # What one closes is closed in both, and a table at the end of a cell changes nothing about it.
    book.page.locator(".nbcomm-live details.timeline summary").first.press("Enter")
    book.page.wait_for_function("document.querySelectorAll('.nbcomm-live details.timeline[open]').length === 0")
    book.page.locator(".nbcomm-live details.ladder summary").last.click()
    book.page.wait_for_function("document.querySelectorAll('.nbcomm-live details.ladder[open]').length === 0")

    book.save()
    book.page.reload()
    book.idle()
    expect_ladder(book)
    press(book, "interrupt")
    # A kernel that still has something of the new page to do, or is slow, is interrupted as by ■.
    expect_said(book, "no cell is running", SENT, times=2)
    book.run(3)
    book.page.wait_for_function(
        "document.querySelectorAll('.nbcomm-live .button[data-key^=press]:not([disabled])').length === 0"
    )
    assert book.errors == []


@pytest.mark.timeout(180)
def test_the_time_of_a_job_counts_down_by_the_pages_own_clock(notebook: Make) -> None:
    book = notebook(
        "job.ipynb",
        WORLD,
        in_job("panel", "world('idle')", 80),
        in_job("panel", "world('idle')", 7225),
        "panel.close()",
    )
    book.open()
    book.run(0)
    expect_cards(book, "idle", 4)
    assert book.page.locator(".nbcomm-live .size").inner_text() == "1 node · gloo"
    book.run(1)  # the last message: what follows is the page's alone
    book.page.wait_for_function(f"Number({SIZE}.match(/^1 node · gloo · Slurm job 12, (\\d+) s left$/)?.[1]) <= 76")
    job = book.page.locator(".nbcomm-live .job")
    assert job.evaluate("el => getComputedStyle(el).backgroundColor") == "rgb(230, 159, 0)"
    assert set(book.page.locator(".nbcomm-spoken").all_inner_texts()) == {""}
    book.run(2)
    book.page.wait_for_function(f"{SIZE} === '1 node · gloo · Slurm job 12, 2 h 0 min left'")
    assert job.evaluate("el => getComputedStyle(el).backgroundColor") == "rgba(0, 0, 0, 0)"
    book.run(3)
    book.page.wait_for_function(f"{SIZE} === '1 node · gloo · Slurm job 12'")
    assert book.errors == []


def expect_ladder(book: Notebook) -> None:
    """The hang of `HANG`, open by itself in two places, with its culprit."""
    book.page.wait_for_function("document.querySelectorAll('.nbcomm-live details.ladder[open] table').length === 2")
    table = book.page.locator(".nbcomm-live details.ladder table").first
    assert [row.locator("td .sign").last.inner_text() for row in table.locator("tbody tr").all()] == [
        "◐",
        "◐",
        "◐",
        "○",
    ]
    assert table.get_by_role("row", name="rank 3").get_by_text("not reached").count() == 1
    assert book.page.locator(".nbcomm-live .card[data-blamed=true]").count() == 2
    assert book.page.locator(".nbcomm-live .card[data-victim=true]").count() == 6
    head = book.page.locator(".nbcomm-live .card[data-blamed=true] .top").first
    assert head.evaluate("el => getComputedStyle(el).backgroundColor") == "rgb(213, 94, 0)"
    assert "has not reached all_reduce #2" in book.page.locator(".nbcomm-live [data-blamed=true]").first.inner_text()
    summary = book.page.locator(".nbcomm-live details.timeline summary").first.inner_text()
    assert "rank 3 came last in 1 of 1 collectives" in summary


@pytest.mark.timeout(180)
@pytest.mark.parametrize("theme", [pytest.param("light", marks=pytest.mark.nightly), "dark"])
def test_nobody_is_shut_out(notebook: Make, server: Server, theme: str) -> None:
    server.choose_theme(theme)
    book = notebook(f"axe-{theme}.ipynb", ACTIONS, HANG, MANY + IN_JOBS, own_page=True)  # its style is changed
    book.open()
    for cell in range(3):
        book.run(cell)
    book.page.locator(".nbcomm-live.many").wait_for()
    book.page.wait_for_function("document.querySelectorAll('.nbcomm-live .job[data-soon]').length === 2")
    for summary in book.page.locator(".nbcomm-live details:not([open]) summary:visible").all():
        summary.click()
    press(book, "stop")
    bring_axe(book.page)
    found = book.page.evaluate(
        "axe.run({include: [['.nbcomm-live']]}).then(({violations, passes}) => [violations, passes.length])"
    )
    # JupyterLab's body has no height and hides what is outside of it: to axe nothing can be seen there, and it judges
    # no contrast.
    book.page.add_style_tag(content="body { min-height: 100vh; }")
    faint, judged = book.page.evaluate(CONTRAST)
    server.choose_theme("light")
    violations, passes = found
    bad = [
        f"{v['id']}: {v['help']}: {node['html'][:200]} {node['failureSummary']}"
        for v in violations
        if v["impact"] in ("serious", "critical")
        for node in v["nodes"]
    ]
    assert bad == []
    assert passes > 10
    assert faint == []
    assert any('data-soon="true"' in html for html in judged)


@pytest.mark.timeout(180)
def test_a_narrow_page_does_not_scroll_sideways(notebook: Make) -> None:
    high = "panel.update(views, timeline=Timeline(8, 2.0, False, {10 + rank: spans[rank] for rank in range(4)}))"
    book = notebook("narrow.ipynb", ACTIONS, HANG, high, MANY + IN_JOBS)
    book.open(app="notebook")
    for cell in range(4):
        book.run(cell)
    book.page.locator(".nbcomm-live.many").wait_for()
    book.page.locator(".nbcomm-live .row .who").filter(has_text="rank 13").first.wait_for()
    book.page.set_viewport_size({"width": 320, "height": 800})
    book.page.wait_for_function("document.querySelector('.nbcomm-live.many').clientWidth < 320")
    assert book.page.evaluate(TOO_WIDE) == []
