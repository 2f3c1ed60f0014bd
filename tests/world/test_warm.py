"""A second notebook, a restarted world, a restarted kernel and a script start without another import of torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from .notebook import Notebook
from .processes import pid_of

_HOLD = (
    "import time\nfrom nbcomm.node.seed import client\n"
    "while client._held.hear() is None: time.sleep(0.01)\nprint(client._held._pid)"
)
"""Waits until the seed has imported all; tells its process."""

_WARM = "Warm start: torch was imported before."

_ENVIRONMENT = {"OF_TEST_WARM": "1"}
"""So that these notebooks have a seed of their own, and may break it."""


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook with a world of two ranks."""
    notebook = Notebook(str(tmp_path_factory.mktemp("first")), **_ENVIRONMENT)
    try:
        notebook.run("%load_ext nbcomm")
        notebook.run(_HOLD)
        notebook.run("%distributed start -n 2")
        yield notebook
    finally:
        notebook.close()


def _seed_of(notebook: Notebook) -> psutil.Process:
    seed = psutil.Process(pid_of(notebook, "daemon")).parent()
    assert seed is not None
    assert "nbcomm.node.seed" in seed.cmdline()
    return seed


def test_the_status_says_that_it_was_warm(first: Notebook) -> None:
    assert first.run("%distributed").lines[-1] == _WARM
    assert first.run("%%distributed\nall_reduce(rank)").text == "[0-1] 1\n"


def test_a_rank_touches_no_modules_for_a_debugger_that_it_does_not_have(first: Notebook) -> None:
    assert first.run("%%distributed\nget_ipython().kernel._kernel_modules").text == "[0-1] []\n"


def test_a_second_notebook_has_the_same_seed(first: Notebook, open_notebook: Callable[..., Notebook]) -> None:
    second = open_notebook("%distributed start -n 2", **_ENVIRONMENT)
    assert _seed_of(second) == _seed_of(first)
    assert second.run("%distributed").lines[-1] == _WARM
    assert second.run("%%distributed\nimport numpy as np\nnumbers = np.random.rand(3).tolist()").text == ""
    first.run("%%distributed\nimport numpy as np\nnumbers = np.random.rand(3).tolist()")
    drawn = [notebook.run("%distributed pull numbers\nnumbers").text for notebook in (first, second)]
    assert drawn[0] != drawn[1], "processes that were forked draw numbers of their own"


def test_a_restarted_world_is_warm(first: Notebook) -> None:
    seed = _seed_of(first)
    first.run("%distributed restart")
    assert _seed_of(first) == seed
    assert first.run("%distributed").lines[-1] == _WARM


def test_while_a_world_lives_the_seed_imports_what_training_needs(first: Notebook) -> None:
    deadline = time.monotonic() + 90
    while first.run("%%distributed\nimport sys\n'torch._dynamo' in sys.modules").text != "[0-1] True\n":
        assert time.monotonic() < deadline
        time.sleep(12)  # the seed waits for five idle seconds, and a restart is a question
        first.run("%distributed restart")


def test_a_restarted_kernel_is_warm(open_notebook: Callable[..., Notebook], first: Notebook) -> None:
    notebook = open_notebook("%distributed start -n 2", **_ENVIRONMENT)
    notebook.restart()
    notebook.run("%load_ext nbcomm")
    notebook.run("%distributed start -n 2")
    assert _seed_of(notebook) == _seed_of(first)
    assert notebook.run("%distributed").lines[-1] == _WARM


def test_a_script_is_warm(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import nbcomm\nwith nbcomm.start(2) as session:\n    session.run('x = all_reduce(1)', quiet=True)\n"
        "    print(session.pull('x'), session.how_started)\n"
    )
    told = [
        subprocess.run(
            [sys.executable, script],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
            env={**os.environ, **_ENVIRONMENT, "OF_A_SCRIPT": "1"},
        ).stdout
        for _ in range(2)
    ]
    assert told[0].startswith("[2, 2] ")
    assert told[1] == f"[2, 2] {_WARM}\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.nightly)])
def test_a_seed_that_is_gone_or_stopped_costs_an_import_and_no_world(
    open_notebook: Callable[..., Notebook], number: int
) -> None:
    environment = {"OF_TEST_WARM": f"broken {number}"}
    notebook = open_notebook(_HOLD, "%distributed start -n 2", **environment)
    notebook.run("%%distributed\nkept = 7")
    seed = _seed_of(notebook)
    seed.send_signal(number)
    assert notebook.run("%%distributed\nkept").text == "[0-1] 7\n"
    other = open_notebook("%distributed start -n 2", **environment)
    assert other.run("%%distributed\nall_reduce(1)").text == "[0-1] 2\n"
    assert "\nCold start: torch was imported for this world, because " in other.run("%distributed").text
    notebook.run("%%distributed -r 1\nimport os\nos.kill(os.getpid(), 9)", fails=True)
    assert "Rank 1 is back" in notebook.run("%distributed heal").text
    assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-1] 2\n"
    assert "Stopped" in notebook.run("%distributed stop").text
    seed.send_signal(signal.SIGCONT) if seed.is_running() else None
    seed.kill() if seed.is_running() else None


def test_a_profile_names_what_all_ranks_are_to_share(open_notebook: Callable[..., Notebook], tmp_path: Path) -> None:
    (tmp_path / "nbcomm").mkdir()
    (tmp_path / "nbcomm" / "profiles.toml").write_text('preload = ["colorsys", "not_there"]\n')
    notebook = open_notebook(XDG_CONFIG_HOME=str(tmp_path))
    started = notebook.run("%distributed start -n 2").text
    assert "NBCOMM_PRELOAD: these could not be imported: not_there (ModuleNotFoundError" in started
    assert notebook.run("%%distributed\nimport sys\n'colorsys' in sys.modules").text == "[0-1] True\n"


def test_without_a_seed_a_world_starts_all_the_same(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook("%distributed start -n 2", NBCOMM_WARM="0")
    told = notebook.run("%distributed").lines[-1]
    assert told == "Cold start: torch was imported for this world, because NBCOMM_WARM=0."
    assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-1] 2\n"
