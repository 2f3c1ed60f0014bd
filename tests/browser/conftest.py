"""A real JupyterLab and a real browser for the tests of this folder: one of each, shared.

Each has a hard deadline, and is ended through its own handle. A test gets its own notebook, in a page that it shares
with those before it, or in one of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from jupyter_core.paths import jupyter_path

from .. import autopsy

TOKEN = secrets.token_hex(8)
PICTURES = os.environ.get("NBCOMM_SCREENSHOTS")
"""The folder of the docs' pictures, where they are taken (``make screenshots``)."""
SHARP: dict[str, Any] = {"device_scale_factor": 2} if PICTURES else {}
"""How a page is opened whose picture is taken: many screens have two pixels in each direction for one of the page."""
THEMES = ["light", "dark"] if PICTURES else ["light"]
"""Where a story is told for its pictures it is told twice; the dark one has tests of its own."""
DEADLINE = 90.0
INSTALL = "install it with `apt-get install chromium fonts-dejavu-core` and `pip install playwright`"
EXTENSIONS = ["@jupyter-widgets/jupyterlab-manager", "anywidget"]
REPAIR = "install both with `pip install --force-reinstall --no-deps jupyterlab_widgets anywidget`"
# Of two lists chromium takes the last, so Playwright's own stands here, too.
PLAYWRIGHTS_OFF = [
    "AvoidUnnecessaryBeforeUnloadCheckSync",
    "DestroyProfileOnBrowserClose",
    "HttpsUpgrades",
    "HttpsFirstBalancedModeAutoEnable",
    "LensOverlay",
    "MediaRouter",
    "PaintHolding",
    "ThirdPartyStoragePartitioning",
    "AvoidCorsURLLoaderRestartOnRedirect",
    "TcpPortRandomizationWin",
    "OptimizationHints",
    "NetworkTimeServiceQuerying",
    "AimEnabled",
    "PreconnectToSearch",
    "msForceBrowserSignIn",
    "msEdgeUpdateLaunchServicesPreferredVersion",
]
# Each window loads pages of its own for an address bar that nobody sees: a second of a processor for every test.
ADDRESS_BAR = ["WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup"]
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--no-proxy-server",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--disable-features={','.join(PLAYWRIGHTS_OFF + ADDRESS_BAR)}",
]
# What JupyterLab and Notebook 7 say of themselves, with an empty notebook too.
THEIR_OWN = [
    "Cannot read properties of undefined (reading 'schema')",
    "Command 'filebrowser:open-path' not registered.",
    "[anywidget] Failed to initialize model.",  # the page was busy for 2 s; page.js hears the kernel all the same
]

# What JupyterLab asks its server every ten seconds; where kernels end just then, the answer is an error.
THEIR_REQUESTS = ["/lsp/status", "/api/kernels", "/api/sessions"]


@dataclass
class Server:
    """A Jupyter server with folders of its own."""

    url: str
    root: Path
    settings: Path
    theme: str = "light"

    def write(self, name: str, *cells: str, kernel: str = "python3") -> None:
        """Write a notebook of code cells into the server's root."""
        notebook = {
            "cells": [
                {
                    "cell_type": "code",
                    "id": f"c{i}",
                    "metadata": {},
                    "outputs": [],
                    "execution_count": None,
                    "source": cell,
                }
                for i, cell in enumerate(cells)
            ],
            "metadata": {"kernelspec": {"name": kernel, "display_name": kernel, "language": "python"}},
            "nbformat": 4,
            "nbformat_minor": 5,
        }
        (self.root / name).write_text(json.dumps(notebook))

    def read(self, name: str) -> dict[str, Any]:
        """The notebook as it lies on disk."""
        content: dict[str, Any] = json.loads((self.root / name).read_text())
        return content

    def ask(self, path: str, method: str = "GET", timeout: float = DEADLINE) -> Any:
        """Ask the server's REST interface; None where the answer has no content."""
        header = {"Authorization": f"token {TOKEN}"}
        request = urllib.request.Request(f"{self.url}{path}", method=method, headers=header)  # noqa: S310  # http only
        # Loopback must not go through whatever proxy the environment names.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout) as answer:
            body = answer.read()
        return json.loads(body) if body else None

    def choose_theme(self, name: str) -> None:
        """Let pages that are opened from now on be light or dark."""
        self.theme = name
        themes = self.settings / "themes.jupyterlab-settings"
        themes.write_text(json.dumps({"theme": f"JupyterLab {name.capitalize()}"}))

    def stop_kernels(self) -> None:
        """End every kernel and its session."""
        for session in self.ask("/api/sessions"):
            self.ask(f"/api/sessions/{session['id']}", "DELETE")


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A JupyterLab and Notebook 7 server, ready to answer."""
    missing = [name for name in EXTENSIONS if not any(Path(p, name).exists() for p in jupyter_path("labextensions"))]
    if missing:
        pytest.fail(f"JupyterLab does not have {' and '.join(missing)}: {REPAIR}.")
    home = tmp_path_factory.mktemp("jupyter")
    root = home / "root"
    folders = ["CONFIG_DIR", "DATA_DIR", "RUNTIME_DIR"]
    env = {**os.environ, **{f"JUPYTER_{name}": str(home / name.lower()) for name in folders}}
    env["IPYTHONDIR"] = str(home / "ipython")
    env["JUPYTERLAB_SETTINGS_DIR"] = str(home / "settings")
    env["JUPYTERLAB_WORKSPACES_DIR"] = str(home / "workspaces")
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    # The kernel runs the checkout that is tested, wherever the server's notebooks lie.
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), env.get("PYTHONPATH", "")])
    root.mkdir()
    settings = home / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True}
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
    completer = settings.parent / "completer-extension"
    completer.mkdir()
    # Completions that come later than this, in ms, are not shown.
    (completer / "manager.jupyterlab-settings").write_text(json.dumps({"providerTimeout": 60_000}))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ServerApp.ip=127.0.0.1"]
    # Where another process has taken the port meanwhile, it tries others.
    command += [f"--ServerApp.port={port}", f"--IdentityProvider.token={TOKEN}"]
    # It kills no kernel that a busy machine lets end slowly.
    command += [f"--ServerApp.root_dir={root}", "--LabApp.news_url=None", "--KernelManager.shutdown_wait_time=60"]
    command += ["--LabApp.expose_app_in_browser=True"]  # so that a page can be told to open and to close notebooks
    log = home / "server.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=env, stdout=out, stderr=out, start_new_session=True)
    running = Server("", root, settings)
    try:
        _await_server(running, process, log, home / "runtime_dir" / f"jpserver-{process.pid}.json")
        yield running
        running.stop_kernels()
    finally:
        _end(process)


def _await_server(server: Server, process: subprocess.Popen[bytes], log: Path, told: Path) -> None:
    """Wait until it answers where it says, in a file of its own, that it does."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError, ValueError):  # not there yet, half written, or no answer
            server.url = json.loads(told.read_text())["url"].rstrip("/")
            server.ask("/api/status", timeout=5)
            return
        time.sleep(0.1)  # it says nothing when it is ready
    pytest.fail(f"The Jupyter server did not answer within {DEADLINE:.0f} s; its log ends:\n{log.read_text()[-2000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM lets the server end its kernels; the group is its own."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
            return


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Debian's chromium under Playwright."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail(f"The browser tests need playwright: {INSTALL}.")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.fail(f"The browser tests need chromium, which is not on PATH: {INSTALL}.")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=chromium, headless=True, args=FLAGS, timeout=DEADLINE * 1000
        )
        try:
            yield running
        finally:
            running.close()


def shoot(name: str, *targets: Any) -> None:
    """Take a picture of the part of a page that has these elements, if pictures are taken."""
    if not PICTURES:
        return
    page = targets[0].page
    page.mouse.move(2, 2)
    targets[0].scroll_into_view_if_needed()
    boxes = [target.bounding_box() for target in targets]
    left, top = (min(box[side] for box in boxes) - 2 for side in "xy")
    right = max(box["x"] + box["width"] for box in boxes) + 2
    below, edge = max(box["y"] + box["height"] for box in boxes), page.viewport_size["height"]
    assert below < edge + 1, f"{name} is higher than its page"
    below = min(below + 2, edge)
    clip = {"x": max(left, 0), "y": max(top, 0), "width": right - max(left, 0), "height": below - max(top, 0)}
    page.screenshot(path=Path(PICTURES) / f"{name}.png", clip=clip)


def bring_axe(page: Any) -> None:
    """Let axe-core judge a page: whoever calls this asks ``axe.run`` then."""
    file = Path(__file__).parents[2] / "node_modules" / "axe-core" / "axe.min.js"
    if not file.exists():
        pytest.fail("This test needs axe-core, which `make javascript-tools` installs.")
    page.evaluate(file.read_text(encoding="utf-8"))


VIEWPORT = {"width": 1280, "height": 720}
THEME = "name => jupyterapp.commands.execute('apputils:change-theme', { theme: name })"
HAS_THEME = "name => document.body.dataset.jpThemeName === name"
OPEN = """async path => {
  await jupyterapp.restored;
  await jupyterapp.serviceManager.kernelspecs.refreshSpecs();
  void jupyterapp.commands.execute('docmanager:open', { path });
}"""
# What is not saved would be asked about. A dialog keeps the keyboard until it is answered. The place where a panel
# speaks to screen readers stays until its kernel ends, and what a search has marked until the next one.
CLOSE = """() => {
  for (const no of document.querySelectorAll(".jp-Dialog-footer button:first-of-type")) no.click();
  for (const widget of [...jupyterapp.shell.widgets("main")]) {
    if (widget.context) widget.context.model.dirty = false;
    widget.dispose();
  }
  for (const place of document.querySelectorAll(".nbcomm-spoken[aria-live]")) place.remove();
  CSS.highlights.clear();
}"""
# A page that a test has loaded again may open the notebook of its address once more, when all is closed.
OPENED = "() => { window.nbcommOpened = true; }"
WAS_OPENED = "() => window.nbcommOpened === true"
# Where all is closed JupyterLab opens its launcher, a little later; it would come before the next notebook.
NOTHING_LEFT = """() => document.querySelector(".jp-Launcher") && !document.querySelector(
  ".jp-Dialog, .jp-Notebook, .jp-Cell, [class^=nbcomm-], [class*=' nbcomm-']"
)"""


class Lab:
    """One page of JupyterLab, in which tests open notebooks one after the other: to load it takes seconds.

    After each test it is as if nothing had been opened; where it cannot be brought there, the next test loads another.
    """

    def __init__(self, server: Server, browser: Any) -> None:
        self.page: Any = None
        self.is_free = True
        self.loaded = 0
        self._server, self._browser = server, browser
        self._is_loaded = False
        self._book: Notebook | None = None

    def take(self, viewport: dict[str, int]) -> Any:
        """Give the page to a test."""
        self.is_free = False
        if self.page is None:
            self.page = self._browser.new_context(**SHARP).new_page()
            _hear_errors(self.page, self._complain)
            self._is_loaded = False
        self.page.set_viewport_size(viewport)
        self.page.set_default_timeout(60_000)
        return self.page

    def show(self, book: Notebook) -> None:
        """Open a notebook; JupyterLab is loaded where it is not."""
        self._book = book
        if not self._is_loaded:
            self._is_loaded = True
            self.loaded += 1
            self.page.goto(f"{self._server.url}/lab/tree/{book.name}?reset&token={TOKEN}")
            return
        theme = f"JupyterLab {self._server.theme.capitalize()}"
        if not self.page.evaluate(HAS_THEME, theme):
            self.page.evaluate(THEME, theme)
            self.page.wait_for_function(HAS_THEME, arg=theme)
        self.page.evaluate(OPEN, book.name)

    def give_back(self) -> None:
        """Close what the test has opened, and end its kernels."""
        self.is_free, book, self._book = True, self._book, None
        try:
            if book is not None and not self.page.evaluate(WAS_OPENED):
                self.close()
            elif book is not None:
                self.page.set_default_timeout(10_000)
                self.page.evaluate(CLOSE)
                self.page.wait_for_function(NOTHING_LEFT)
                self.page.emulate_media(media="null", color_scheme="null", reduced_motion="null", forced_colors="null")
                self.page.context.clear_permissions()
        except Exception:  # noqa: BLE001 - a page that a test has left in any state; Playwright's errors are of many kinds
            self.close()
        self._server.stop_kernels()

    def close(self) -> None:
        """Close the page."""
        if self.page is not None:
            self.page.context.close()
            self.page = None

    def _complain(self, text: str) -> None:
        if self._book is not None:
            self._book.errors.append(text)


@pytest.fixture(scope="package")
def lab(server: Server, browser: Any) -> Iterator[Lab]:
    """The page that tests share where they need none of their own."""
    made = Lab(server, browser)
    yield made
    made.close()


@dataclass
class Notebook:
    """One notebook in one page, of JupyterLab or Notebook 7; their selectors are the same.

    Attributes:
        page: where it is.
        server: of which server.
        name: of its file.
        own_page: makes a page for it alone; it is in the shared one as long as it has none.
        lab: the shared page.
    """

    page: Any
    server: Server
    name: str
    kernel: str = "Python 3"
    errors: list[str] = field(default_factory=list)
    lab: Lab | None = None
    own_page: Callable[[], Any] | None = None

    def open(self, *, app: str = "lab", kernel: bool = True) -> None:
        """Go to the notebook; with ``kernel``, wait until it is idle."""
        if self.lab is not None and app != "lab":
            assert self.own_page is not None
            self.page, self.lab = self.own_page(), None
        if self.lab is not None:
            self.lab.show(self)
        else:
            path = f"/lab/tree/{self.name}?reset&" if app == "lab" else f"/notebooks/{self.name}?"
            self.page.goto(f"{self.server.url}{path}token={TOKEN}")
        self.page.wait_for_selector(".jp-Notebook .jp-CodeCell .cm-content")
        self.page.evaluate(OPENED)
        if kernel:
            self.idle()

    def idle(self) -> None:
        """Wait until the kernel is connected and runs nothing."""
        # Before the session exists the indicator says idle too, and a cell that is run then is dropped.
        self.page.locator(".jp-KernelName").filter(has_text=self.kernel).first.wait_for()
        self.page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status=idle]", state="attached")

    def start(self, cell: int) -> None:
        """Begin to run a cell, without waiting for its end."""
        self.cell(cell).locator(".cm-content").click()
        self.page.keyboard.press("Shift+Enter")

    def run(self, cell: int) -> None:
        """Run a cell to its end."""
        prompt = self.cell(cell).locator(".jp-InputPrompt")
        # A cell that is run again has its old number until it begins.
        old = re.search(r"\d+", prompt.text_content())
        self.start(cell)
        number = rf"(?!{old[0]}\])\d+" if old else r"\d+"
        prompt.filter(has_text=re.compile(rf"\[{number}\]:")).wait_for(state="attached")

    def shown(self) -> str:
        """All that the page shows, for whoever wonders why a test has run out of its time."""
        text: str = self.page.locator("body").inner_text(timeout=2000)
        return f"{self.name}:\n{text}"

    def cell(self, number: int) -> Any:
        """A code cell."""
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(number)

    def save(self) -> dict[str, Any]:
        """Save, and return what is on disk then."""
        # Where a card of the panel has the keyboard the notebook's shortcuts are off; Escape leaves it.
        self.page.keyboard.press("Escape")
        with self.page.expect_response(lambda r: r.request.method == "PUT" and "/api/contents/" in r.url):
            self.page.keyboard.press("Control+s")
        return self.server.read(self.name)


def _is_error(line: Any) -> bool:
    """Whether a line of the browser's console is an error that is not the application's own."""
    theirs = line.text in THEIR_OWN or any(path in line.location["url"] for path in THEIR_REQUESTS)
    return line.type == "error" and not theirs


def _hear_errors(page: Any, complain: Callable[[str], None]) -> None:
    """Tell of each error of a page that is not the application's own."""
    page.on("console", lambda line: complain(line.text) if _is_error(line) else None)
    page.on("pageerror", lambda error: complain(error.message) if error.message not in THEIR_OWN else None)


Make = Callable[..., Notebook]


@pytest.fixture
def notebook(
    request: pytest.FixtureRequest, server: Server, browser: Any, lab: Lab
) -> Iterator[Callable[..., Notebook]]:
    """Makes a notebook of the given cells; at the end it is closed, and kernels end.

    It is in the shared page of JupyterLab, but in one of its own if the test asks for that by ``own_page=True`` or the
    options of a page, or its file by ``OWN_PAGES = True``.
    """
    contexts, opened = [], []

    def new_page(made: Notebook, **options: Any) -> Any:
        context = browser.new_context(**SHARP | options)
        contexts.append(context)
        context.set_default_timeout(60_000)
        page = context.new_page()
        _hear_errors(page, made.errors.append)
        return page

    def make(name: str, *cells: str, own_page: bool = False, viewport: Any = VIEWPORT, **options: Any) -> Notebook:
        if cells:
            server.write(name, *cells)
        made = Notebook(None, server, name)
        alone = own_page or options or getattr(request.module, "OWN_PAGES", False) or not lab.is_free
        if alone:
            made.page = new_page(made, viewport=viewport, **options)
        else:
            made.page, made.lab = lab.take(viewport), lab
            made.own_page = lambda: new_page(made, viewport=viewport)
        opened.append(made)
        autopsy.remember(made, asks=True)
        return made

    yield make
    for made in opened:
        autopsy.forget(made)
    for context in contexts:
        context.close()
    lab.give_back()
