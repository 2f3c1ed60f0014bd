"""The site of the pages (``make docs``): built without a warning, all of it there, and no page needs another host."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import nbcomm
import nbcomm.lessons
from nbcomm.cell_names import METHODS, PROPERTIES

pytest.importorskip("sphinx", reason="the site is built with the extra `docs`, which `make test` installs")
pytestmark = [
    pytest.mark.timeout(300),  # of the build, on a busy machine
    pytest.mark.skipif(
        sys.version_info < (3, 11), reason="the versions of Sphinx that the site is built with need Python 3.11"
    ),
]

ROOT = Path(__file__).parents[2]
PAGES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "docs" / "notebooks").rglob("*.ipynb"),
]
LOADED = {"href": ("link",), "src": (), "srcset": (), "data": (), "poster": ()}
"""Attributes that let a browser load something, each with the elements in which it does: by default in all."""
FOREIGN = re.compile(r"""(?:@import\s+|url\()\s*["']?(?:https?:)?//|\bimport\(?\s*["'](?:https?:)?//""")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as ``make docs`` builds it."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "sphinx", "--quiet", "--fresh-env", "--fail-on-warning", "-c", "docs"]
    ended = subprocess.run(
        [*build, "-d", str(folder / "read"), "-b", "html", ".", str(folder / "site")],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    return folder / "site"


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page without a network, on a system whose scheme is dark; it fails if it has asked another host."""
    context = browser.new_context(offline=True, color_scheme="dark")
    try:
        made, asked = context.new_page(), []
        made.on("request", lambda request: asked.append(request.url))
        yield made
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []
    finally:
        context.close()


class Loads(HTMLParser):
    """Collects what a browser loads of other hosts with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [
            value
            for name, value in attrs
            if value and tag in (LOADED.get(name, (None,)) or (tag,)) and re.match(r"\s*(https?:)?//", value)
        ]


def test_every_page_is_there_and_the_first_one_leads_to_the_others(site: Path) -> None:
    pages = [site / page.relative_to(ROOT).with_suffix(".html") for page in PAGES]
    assert len(pages) > 60
    assert [page for page in pages if not page.exists()] == []
    (first,) = re.findall(r'<a href="([^"]+)"', (site / "index.html").read_text())
    assert (site / first).exists()


def test_no_page_loads_anything_of_another_host(site: Path) -> None:
    for file in [*site.rglob("*.html"), *site.rglob("*.css")]:
        text = file.read_text(encoding="utf-8")
        loads = Loads()
        if file.suffix == ".html":
            loads.feed(text)
        assert (loads.found, FOREIGN.findall(text)) == ([], []), file


def test_the_reference_of_names_has_all_that_users_can_rely_on(site: Path) -> None:
    shown = set(re.findall(r'<dt [^>]*\bid="nbcomm\.([\w.]+)"', (site / "docs" / "api.html").read_text()))
    last = {name.rpartition(".")[2] for name in shown}
    assert {*nbcomm.__all__, "Fabric", *nbcomm.lessons.__all__} - last == set()
    assert {f"comm.Communicator.{name}" for name in (*METHODS, *PROPERTIES)} - shown == set()
    contract = (
        (ROOT / "docs" / "contract.md").read_text().partition("returns a `Session`")[2].partition("`nbcomm.attach")[0]
    )
    promised = set(re.findall(r"`(\w+)", contract))
    assert len(promised) > 10
    assert {name.rpartition(".")[2] for name in shown if "session.Session." in name} == promised


def search(site: Path, page: Any, words: str) -> list[str]:
    """What the search finds, best first."""
    page.goto((site / "docs" / "index.html").as_uri())
    page.keyboard.press("Control+k")
    page.keyboard.type(words)
    page.keyboard.press("Enter")
    page.locator("#search-results h2", has_text="Search Results").wait_for()
    page.locator(".search-summary", has_text="finished").wait_for()  # they come one after the other
    links = page.locator("ul.search li > a").all()
    return [str(link.get_attribute("href")).removeprefix("docs/") for link in links]


@pytest.mark.parametrize("words", ["hang", "stuck", "slow", "crash", "out of memory"])
def test_the_search_needs_no_server_and_a_trouble_leads_to_its_section(site: Path, page: Any, words: str) -> None:
    file, _, section = search(site, page, words)[0].partition("#")
    assert file == "troubleshooting.html"
    assert section


def test_the_search_leaves_out_what_is_for_those_who_build_nbcomm(site: Path, page: Any) -> None:
    found = search(site, page, "nccl")
    assert len(found) > 3
    assert [each for each in found if re.search("CHANGELOG|decisions|internals|tests/", each)] == []


def test_pictures_follow_the_sites_switch(site: Path, page: Any) -> None:
    """A picture without a dark file is drawn in the page's scheme, so that is what the switch must set."""
    page.goto((site / "docs" / "panel.html").as_uri())
    for scheme in ("light", "dark"):
        page.locator(".theme-switch-button:visible").first.click()
        page.locator(f".theme-change-button[data-mode={scheme}]:visible").first.click()
        assert page.evaluate("getComputedStyle(document.documentElement).colorScheme") == scheme
        shown = [str(picture.get_attribute("src")) for picture in page.locator("article img:visible").all()]
        assert len(shown) == 5
        assert [name for name in shown if not name.endswith(f"-{scheme}.png")] == []
        links = page.locator("article a:has(img):visible").all()
        assert [link.get_attribute("href") for link in links] == shown
    links[0].click()
    assert page.evaluate("[document.contentType, document.images[0].naturalWidth > 1200]") == ["image/png", True]
