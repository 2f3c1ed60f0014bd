"""Several worlds in one notebook, each under its name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import psutil
import pytest

from .notebook import Notebook
from .processes import of_notebook

pytestmark = pytest.mark.story  # two worlds come and go


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook with a world of two ranks, and one of one rank that is called b."""
    notebook = Notebook(str(tmp_path_factory.mktemp("several")))
    try:
        notebook.run("%load_ext nbcomm")
        notebook.run("%distributed start -n 2")
        assert "b: 1 rank on cpu, gloo, ready" in notebook.run("%distributed start -n 1 --world b").text
        yield notebook
    finally:
        notebook.close()


def test_a_cell_runs_on_the_world_that_it_names(pair: Notebook) -> None:
    pair.run("%%distributed\nwhere = 'here'")
    pair.run("%%distributed --world b\nwhere = 'there'")
    assert pair.run("%%distributed\nwhere, all_reduce(1)").text == "[0-1] ('here', 2)\n"
    assert pair.run("%%distributed --world=b -r 0\nwhere, all_reduce(1)").text == "[0] ('there', 1)\n"
    pair.run("value = 5\n%distributed push value --world b")
    assert "NameError" in pair.run("%%distributed\nvalue", fails=True).error_text
    pair.run("%distributed pull where --world b")
    assert pair.run("where").text == "['there']\n"


def test_each_has_a_status_and_a_panel(pair: Notebook) -> None:
    shown = pair.run("%distributed").text
    assert shown.startswith("2 ranks on cpu")
    assert "Other worlds:\n  b: 1 rank on cpu" in shown
    for line in ("--world b", "--world=b", "status --world b", "--world b status"):
        assert pair.run(f"%distributed {line}").text.startswith("b: 1 rank on cpu")
    panels = [pair.run(f"%distributed panel {which}") for which in ("", "--world b")]
    html = [panel.outputs[0]["data"]["text/html"] for panel in panels]
    assert "b: 1 rank on cpu" in html[1]
    assert "b: 1 rank" not in html[0]
    places = [re.findall(r"nbcomm-world-(\w+)", page)[0] for page in html]
    assert places[0] != places[1]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%distributed start --world b", "A world of b: 1 rank on cpu is already running"),
        ("%distributed start", "beside it, name that one: %distributed start --world NAME"),
        (
            "%distributed stop --world c",
            "start it with %distributed start --world c. There is one world with a name: b.",
        ),
        ("%distributed stop --world 'a b'", "'a b' is not a valid world name"),
        ("%%distributed --world c\n1", "No world 'c' is running"),
        ("%distributed --world c stop", "No world 'c' is running"),
        ("%distributed auto on --world b", "Write %%distributed --world b at the top"),
    ],
)
def test_what_cannot_be(pair: Notebook, line: str, said: str) -> None:
    cell = pair.run(line, fails=True)
    assert said in cell.error_text + cell.text


def test_what_breaks_in_one_is_its_own_affair_and_the_remedy_names_it(pair: Notebook) -> None:
    pair.run("%%distributed\nkept = rank")
    died = pair.run("%%distributed --world b\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)", fails=True)
    assert "%distributed heal --world b" in died.error_text
    assert pair.run("%%distributed\nall_reduce(kept)").text == "[0-1] 1\n"
    assert "%distributed heal --world b" in pair.run("%%distributed --world b\n1", fails=True).error_text
    assert "All processes are alive" in pair.run("%distributed heal").text
    assert "Rank 0 is back" in pair.run("%distributed heal --world b").text
    hung = pair.run("%%distributed\nif rank: barrier()", fails=True)
    assert "HangError" in hung.error_text
    assert pair.run("%%distributed --world b\nall_reduce(3)").text == "[0] 3\n"


def test_a_restart_keeps_the_name_and_a_stop_ends_one(pair: Notebook) -> None:
    assert "b: 1 rank on cpu" in pair.run("%distributed restart --world b").text
    assert pair.run("%%distributed --world b\nrank").text == "[0] 0\n"
    assert pair.run("%distributed stop --world b").text == "Stopped b: 1 rank on cpu.\n"
    assert "kept" in pair.run("%%distributed\n'kept' * (kept == rank)").text
    assert "Other worlds" not in pair.run("%distributed").text
    assert "No world 'b' is running" in pair.run("%distributed status --world b").text


def test_another_kernel_takes_them_up_under_their_names(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook("%distributed start -n 1", "%distributed start -n 1 --world b")
    notebook.run("%%distributed --world b\nkept = 7")
    # Worlds that an earlier test has left may still be there, until their grace is over.
    mine = "[found.home.id for found in find_worlds() if found.holder == os.getpid()]"
    own = re.findall(
        r"'(\w+)'", notebook.run(f"import os\nfrom nbcomm.launch.discovery import find_worlds\n{mine}").text
    )
    notebook.restart()
    left = notebook.run("%load_ext nbcomm").text
    ids = re.findall(r"%distributed attach (\w+)", left)
    assert len(own) == 2
    assert set(own) <= set(ids)
    refused = notebook.run("%distributed attach", fails=True).error_text
    assert "There are 2 worlds of this notebook to choose from; type %distributed attach ID:" in refused
    mine = re.findall(r"(\w+): [^:]*, of this notebook", refused.flat)
    assert {*mine} == {*own}, "two are its own, and nothing says which of them is meant"
    for identity in own:
        assert "Attached to" in notebook.run(f"%distributed attach {identity}").text
    assert notebook.run("%%distributed --world b\nkept").text == "[0] 7\n"
    assert "b: 1 rank" in notebook.run("%distributed").text
    ranks = of_notebook(notebook.pid)
    notebook.run("%unload_ext nbcomm")
    _, alive = psutil.wait_procs(ranks, timeout=60)
    assert not alive
