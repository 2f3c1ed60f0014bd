"""The user's IPython profile holds on ranks as in the notebook's own kernel: configuration and startup files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from .notebook import Notebook

CONFIG = """
c = get_config()
c.InteractiveShellApp.exec_lines = ["two = 2", "%distributed status", "exit()"]
c.InteractiveShellApp.extensions = ["autoreload", "nbcomm", "no_such_extension"]
c.InteractiveShell.ast_node_interactivity = "all"
c.InteractiveShell.xmode = "Minimal"
c.InteractiveShell.logstart = True
c.HistoryManager.hist_file = "written.sqlite"
c.AliasManager.user_aliases = [("hi", "echo hi")]
"""

STARTUP = {
    # Others look for output while it sleeps.
    "10-names.py": "import time\nprint('begun')\ntime.sleep(0.5)\nmine = 41\ndef helper(): return mine + 1\n",
    "20-magics.ipy": "%alias_magic spelled pwd\n%load_ext nbcomm\n%distributed status\n",
    "30-faulty.py": "1 / 0\n",
}


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook whose profile has all of this, in a folder whose name IPython would expand."""
    folder = tmp_path_factory.mktemp("profiles")
    startup = folder / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup.parent / "ipython_config.py").write_text(CONFIG)
    (startup.parent / "ipython_kernel_config.py").write_text("c = get_config()\nc.ZMQInteractiveShell.cache_size = 7\n")
    for name, text in STARTUP.items():
        (startup / name).write_text(text)
    temporary = Path(tempfile.mkdtemp(prefix="$HOME"))
    kernel = Notebook(str(folder), IPYTHONDIR=str(folder / "ipython"), TMPDIR=str(temporary))
    try:
        yield kernel
    finally:
        kernel.close()
        shutil.rmtree(temporary)


def test_what_startup_prints_is_shown_once_and_a_fault_in_it_costs_nothing(notebook: Notebook) -> None:
    text = notebook.run("%distributed start -n 3", timeout=120).text
    for said in ("begun", "ModuleNotFoundError: No module named 'no_such_extension'", "division by zero"):
        (line,) = (line for line in text.splitlines() if said in line)
        assert line.startswith("[0-2] ")
    assert "%distributed" not in text.split("division by zero")[1].replace("type %distributed stop", "")


def test_names_settings_aliases_and_extensions_are_as_in_the_notebook(notebook: Notebook) -> None:
    for code in ("mine, helper(), two", "1\n2", "%hi", "get_ipython().cache_size, get_ipython().xmode"):
        here, there = notebook.run(f"%%local\n{code}").text, notebook.run(f"%%distributed\n{code}").text
        assert there == "".join(f"[0-2] {line}\n" for line in here.splitlines())
    loaded = notebook.run("%%distributed\nsorted(get_ipython().extension_manager.loaded)").text
    assert loaded == "[0-2] ['IPython.extensions.autoreload', 'IPython.extensions.storemagic', 'nbcomm']\n"


def test_each_rank_keeps_what_a_shell_writes_to_itself(notebook: Notebook) -> None:
    assert notebook.run("%%distributed\nget_ipython().history_manager.hist_file").text == "[0-2] ':memory:'\n"
    where = "%%distributed\nip = get_ipython()\nip.logger.log_active, ip.profile_dir.location[-5:]"
    assert notebook.run(where).lines == [f"[{rank}] (False, 'rank{rank}')" for rank in range(3)]
