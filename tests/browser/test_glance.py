"""The panel at a glance: what is said once, which buttons may be pressed, where the time went. Worlds are made up."""

from __future__ import annotations

import pytest

from .test_panel import ACTED, ACTIONS, FAIL, FOREVER, HANG, Make, expect_cards, press

CALM = """
panel.update(world("idle"), useful=["stop", "restart"])
def keep():
    memory = 300
    while not done.wait(0.5):
        memory += 1  # the page gets at once what is new, and else only a keyframe now and then
        panel.update(world("idle", memory), useful=["stop", "restart"])
done = threading.Event()
threading.Thread(target=keep, daemon=True).start()
"""
ENABLED = """() => [...document.querySelectorAll(".nbcomm-live .button[data-key^=press]")]
  .filter((el) => el.getAttribute("aria-disabled") === "false").map((el) => el.innerText).join()"""


@pytest.mark.timeout(180)
def test_what_would_change_nothing_is_disabled_until_it_may_help(notebook: Make) -> None:
    book = notebook("useful.ipynb", ACTIONS, CALM, FOREVER, ACTED, "done.set()")
    book.open()
    book.run(0)
    book.run(1)
    book.page.wait_for_function(f"({ENABLED})() === 'stop,restart'")
    heal = book.page.get_by_role("button", name="heal", exact=True)
    heal.focus()  # the keyboard still reaches it, and hears why
    assert "every process is alive" in heal.get_attribute("title")
    book.page.keyboard.press("Enter")
    book.run(3)
    assert "acted: []" in book.cell(3).locator(".jp-OutputArea-output").inner_text()
    # Of what the kernel runs besides the world's cells nobody tells the panel.
    book.start(2)
    book.page.wait_for_function(f"({ENABLED})() === 'interrupt,stop,restart'")
    press(book, "interrupt")
    book.cell(2).get_by_text("KeyboardInterrupt").first.wait_for()
    book.idle()
    book.page.wait_for_function(f"({ENABLED})() === 'stop,restart'")
    # Without news what was known is not relied on.
    book.run(4)
    book.page.wait_for_function(f"({ENABLED})() === 'interrupt,heal,stop,restart'")
    assert book.errors == []


ONCE = """
boom = "ValueError: a message that is too long for the sentence, so that it has to stand somewhere else in the panel"
def failed(error, ranks):
    return [RankView(r, r, 0, "host", "cpu", 1000 + r, "failed" if r in ranks else "idle", time.time(), 1 << 28,
                     error=error if r in ranks else "") for r in range(4)]
panel.update(failed(boom, (0, 1, 3)))
"""
SHORT = """panel.update(failed("ValueError: boom", (0, 1, 3)))"""
ALONE = """panel.update(failed("ValueError: boom", (2,)))"""


@pytest.mark.timeout(180)
def test_an_error_of_several_ranks_stands_once_and_the_size_of_the_world_too(notebook: Make) -> None:
    book = notebook("once.ipynb", ACTIONS.replace('"demo world"', '"4 ranks on cpu"'), ONCE, SHORT, ALONE)
    book.open()
    book.run(0)
    view = book.page.locator(".nbcomm-live")
    view.wait_for()
    assert view.inner_text().count("4 ranks") == 1
    assert "of 4" not in view.inner_text()
    boom = "has to stand somewhere else"
    book.run(1)
    view.locator(".errors").get_by_text("ranks 0-1,3").wait_for()
    assert view.inner_text().count(boom) == 1
    assert not any(boom in card.get_attribute("aria-label") for card in view.locator(".card").all())
    # What the sentence says whole has no line of its own, and what one rank has stands in its card.
    book.run(2)
    view.locator(".headline", has_text="ranks 0-1,3 failed (ValueError: boom)").wait_for()
    assert view.inner_text().count("boom") == 1
    book.run(3)
    view.locator(".card", has_text="rank 2").locator(".error", has_text="ValueError: boom").wait_for()
    assert not view.locator(".errors").is_visible()
    assert book.errors == []


@pytest.mark.timeout(180)
def test_each_stretch_of_the_time_tells_itself_to_mouse_and_keyboard_and_can_be_zoomed(notebook: Make) -> None:
    book = notebook("time.ipynb", ACTIONS, HANG, "panel.update(views)")
    book.open()
    book.run(0)
    book.run(1)
    # More than a fifth of the cell was waiting, so nobody has to open it.
    time = book.page.locator(".nbcomm-live details.timeline[open]")
    time.wait_for()
    keyboard, tip = book.page.keyboard, time.locator(".tip")
    waited = "rank 0 · waiting in all_reduce #2 · 1.0 s · 4 KiB · line 2: all_reduce(x)"
    stretch = time.get_by_role("img", name=waited)
    stretch.hover()
    assert tip.inner_text() == waited
    book.page.mouse.move(2, 2)
    tip.wait_for(state="hidden")

    # One stop for Tab; arrows go along a bar and from bar to bar.
    assert time.locator(".span[tabindex='0']").count() == 1
    time.locator(".span[tabindex='0']").focus()
    assert tip.inner_text() == "rank 0 · compute · 1.0 s"
    keyboard.press("ArrowRight")
    assert tip.inner_text() == waited
    keyboard.press("ArrowDown")
    assert tip.inner_text().startswith("rank 1 · waiting")
    keyboard.press("End")
    book.run(2)  # what is drawn anew leaves the keyboard where it was, and so do the letters typed there
    assert time.locator(".span[tabindex='0']").count() == 1

    time.locator(".span[tabindex='0']").focus()
    ends = time.locator(".axis span")
    for key in "++":
        keyboard.press(key)
    assert ends.all_inner_texts() == ["1.1 s", "1.6 s"]
    assert time.locator(".span").count() == 4  # each rank's one; rank 3 computes
    keyboard.press("ArrowLeft")  # out of view: the view goes with it
    assert ends.first.inner_text() != "1.1 s"
    keyboard.press("Escape")
    assert ends.all_inner_texts() == ["0", "2.0 s"]
    assert book.page.evaluate("document.activeElement.className") == "span"

    time.get_by_role("button", name="zoom into the bars").click()
    assert ends.all_inner_texts() == ["500 ms", "1.5 s"]
    time.get_by_role("button", name="whole cell").click()
    assert ends.all_inner_texts() == ["0", "2.0 s"]
    # The wheel is the page's, until the keyboard is in the bars.
    track = time.locator(".track").first
    track.hover(position={"x": 5, "y": 8})
    book.page.mouse.wheel(0, -100)
    track.locator(".span").first.focus()
    track.hover(position={"x": 5, "y": 8})
    book.page.mouse.wheel(0, -100)
    book.page.wait_for_function("document.querySelector('.nbcomm-live .axis .until').innerText === '1.6 s'")

    assert book.errors == []


@pytest.mark.timeout(180)
def test_the_last_cells_stand_below_the_time_and_what_is_closed_stays_closed(notebook: Make) -> None:
    book = notebook("cells.ipynb", ACTIONS, HANG, FAIL)
    book.open()
    book.run(0)
    book.run(1)
    time = book.page.locator(".nbcomm-live details.timeline[open]")
    time.wait_for()
    table = time.locator("table")
    assert table.locator("tbody tr").first.locator("td").count() == 7
    assert "the others waited for rank 3 in 4 of the last 7 cells" in time.inner_text()
    assert table.locator("td[data-waste=true]").all_inner_texts() == ["25 %", "30 %", "35 %"]

    time.locator("summary").click()
    time.wait_for(state="detached")
    book.run(2)
    expect_cards(book, "failed", 4)
    assert time.count() == 0
    assert book.errors == []
