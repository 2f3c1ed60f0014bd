"""The page that tests share is after each of them as if nothing had been opened, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .conftest import Lab, Notebook, Server
from .test_panel import ACTIONS, press

Make = Callable[..., Notebook]


@pytest.fixture
def own(server: Server, browser: Any) -> Iterator[Lab]:
    """Another such page."""
    made = Lab(server, browser)
    yield made
    made.close()


def opened(lab: Lab, server: Server, name: str, *cells: str) -> Notebook:
    """A notebook in the page."""
    server.write(name, *cells)
    book = Notebook(lab.take({"width": 1000, "height": 700}), server, name, lab=lab)
    book.open()
    return book


@pytest.mark.nightly
@pytest.mark.timeout(180)
def test_nothing_is_left_of_a_test_and_the_next_needs_no_other_page(own: Lab, server: Server) -> None:
    one = opened(own, server, "one.ipynb", ACTIONS, "1 / 0")
    one.run(0)
    one.start(1)
    one.cell(1).get_by_text("ZeroDivisionError").first.wait_for()
    press(one, "stop")  # it asks
    one.page.keyboard.press("Escape")
    one.page.evaluate("jupyterapp.commands.execute('application:toggle-mode')")
    one.page.evaluate("() => { jupyterapp.commands.execute('runmenu:restart-and-run-all'); }")
    one.page.locator(".jp-Dialog").wait_for()
    page = own.page
    own.give_back()
    assert own.page is page
    for selector in (".jp-Notebook", ".jp-Dialog", "[class*=nbcomm-]"):
        assert page.locator(selector).count() == 0, selector
    assert page.evaluate("[...jupyterapp.shell.widgets('main')].filter((widget) => widget.context).length") == 0
    assert server.ask("/api/kernels") == []

    two = opened(own, server, "two.ipynb", "print('two')")
    assert two.page is page
    assert own.loaded == 1
    two.run(0)
    assert "two" in two.cell(0).inner_text()
    assert two.page.locator(".jp-Notebook").count() == 1
    assert two.errors == []
    two.page.evaluate("console.error('of the second')")
    assert two.errors == ["of the second"]
    assert one.errors == []
    own.give_back()


@pytest.mark.nightly
@pytest.mark.timeout(180)
@pytest.mark.parametrize("lost", ["load another", "load it again"])
def test_a_page_that_cannot_be_brought_back_is_loaded_again_and_takes_any_theme(
    own: Lab, server: Server, lost: str
) -> None:
    book = opened(own, server, "lost.ipynb", "1")
    if lost == "load another":
        book.page.goto("about:blank")
    else:
        book.page.reload()
        book.idle()
    own.give_back()
    assert own.page is None
    try:
        for theme in ("light", "dark", "light"):
            server.choose_theme(theme)
            book = opened(own, server, f"{theme}.ipynb", "1")
            assert own.loaded == 2
            assert book.page.evaluate("document.body.dataset.jpThemeLight") == str(theme == "light").lower()
            own.give_back()
    finally:
        server.choose_theme("light")
