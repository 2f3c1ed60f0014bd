"""A script in a process that has done other things before, and will again."""

from __future__ import annotations

import asyncio
import builtins
import inspect
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from nbcomm.errors import ExitError, ScriptError
from nbcomm.rank.cells import script_runner


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """The cells' variables; the shell is this process's only while a test lasts."""
    monkeypatch.chdir(tmp_path)
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    with shell.builtin_trap:
        yield shell.user_ns
    InteractiveShell.clear_instance()


def run(code: str, *args: str, name: str = "script.py") -> None:
    """Run this text as a script in the present folder."""
    Path(name).write_text(code)
    with script_runner.instead_of_cell(code.encode(), "a run"):
        script_runner.run(str(Path.cwd() / name), [name, *args])


def test_a_script_is_main_and_leaves_its_variables(user: dict[str, Any]) -> None:
    before = list(sys.path), sys.argv, sys.modules["__main__"]
    code = (
        "import sys\nseen = __name__, __file__, sys.argv, sys.path[0], sys.modules['__main__'].__dict__ is globals()\n"
    )
    run(code + "def f():\n    return later\nlater = 1", "a b")
    here = Path.cwd()
    assert user["seen"] == ("__main__", str(here / "script.py"), ["script.py", "a b"], str(here), True)
    assert user["f"]() == 1
    assert user["__name__"] != str(here)
    assert (list(sys.path), sys.argv, sys.modules["__main__"]) == before
    assert script_runner.scope is None


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("", None),
        ("sys.exit()", None),
        ("sys.exit(0)", None),
        ("exit()", None),
        ("quit(False)", None),
        ("sys.exit(2)", r"^script.py has ended with exit status 2\.$"),
        ("exit(True)", r"exit status 1\.$"),
        ("sys.exit('no data')", "ended with the message: no data$"),
        ("raise SystemExit(['a'])", r"ended with the message: \['a'\]$"),
    ],
)
def test_how_a_script_ends(user: dict[str, Any], end: str, said: str | None) -> None:
    if said is None:
        run(f"import sys\nx = 1\n{end}")
    else:
        with pytest.raises(ExitError, match=said):
            run(f"import sys\nx = 1\n{end}")
    assert user["x"] == 1


def test_what_a_script_changes_is_put_back(user: dict[str, Any]) -> None:
    handler, stdout, folder = signal.getsignal(signal.SIGTERM), sys.stdout, Path.cwd()
    code = "import os, signal, sys\nos.chdir('/')\nsys.stdout = None\nsys.path.clear()\nsys.argv = 3\n"
    with pytest.raises(ZeroDivisionError) as caught:
        run(
            code
            + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\ntry:\n    get_ipython()\nexcept NameError:\n    1 / 0"
        )
    assert (signal.getsignal(signal.SIGTERM), sys.stdout, Path.cwd()) == (handler, stdout, folder)
    assert sys.path
    assert eval("get_ipython()", {}) is InteractiveShell.instance()  # noqa: S307 - the builtin is back
    shown = "\n".join(caught.value._render_traceback_())  # type: ignore[attr-defined]
    assert "script.py" in shown
    assert "program.py" not in shown


PRINTS_ON_ONE_RANK = """\
import builtins
plain = builtins.print
def once(*words):
    wrapped.append(plain is true_print)
    plain("once:", *words)
builtins.print, builtins.added = once, 1
del builtins.oct
wrapped = []
print("hello")
"""
"""As every example of DDP does."""


def test_a_script_that_changes_builtins_changes_them_for_itself_and_each_time_alike(
    user: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    before = dict(vars(builtins))
    for end in ("", "", "1 / 0"):
        code = f"true_print = print\n{PRINTS_ON_ONE_RANK}{end}"
        if end:
            with pytest.raises(ZeroDivisionError):
                run(code)
        else:
            run(code)
        assert user["wrapped"] == [True]
        assert capsys.readouterr().out == "once: hello\n"
        assert vars(builtins) == before
    user["once"]("later")
    assert capsys.readouterr().out == "once: later\n"


def test_modules_beside_it_are_as_they_are_now(user: dict[str, Any]) -> None:
    Path("beside_it").mkdir()
    for value in ("one", "three"):
        Path("beside_it/part.py").write_text(f"value = {value!r}")
        run("from beside_it.part import value\nimport json")
        assert user["value"] == value
    assert "beside_it.part" in sys.modules, "what cells hold of it can be pickled"
    kept = sys.modules["json"]
    run("")
    assert "beside_it.part" not in sys.modules
    assert sys.modules["json"] is kept


def test_asyncio_runs_within_a_loop_that_runs(user: dict[str, Any]) -> None:
    async def cell() -> bool:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        run("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    return 5\nx = asyncio.run(f())")
        await asyncio.sleep(0)
        return asyncio.get_running_loop() is loop and asyncio.current_task() is task

    assert asyncio.run(cell())
    assert user["x"] == 5


@pytest.mark.parametrize("here", [None, "another = 1\n"])
def test_a_script_that_is_not_on_this_machine_runs_and_is_quoted(user: dict[str, Any], here: str | None) -> None:
    file = Path("there.py")
    if here is not None:
        file.write_text(here)
    content = "# coding: latin-1\nname = 'é'\ndef f():\n    return 1 / 0\n".encode("latin-1")
    with script_runner.instead_of_cell(content, "a run"):
        script_runner.run(str(file.absolute()), [file.name])
    assert user["name"] == "é"
    assert inspect.getsource(user["f"]) == "def f():\n    return 1 / 0\n"
    with pytest.raises(ZeroDivisionError) as raised:
        user["f"]()
    assert "return 1 / 0" in "".join(traceback.format_exception(raised.value))
    file.write_text("def f():\n    pass\n")
    run(file.read_text(), name=file.name)
    assert inspect.getsource(user["f"]) == file.read_text()


def test_a_call_without_an_order_is_refused(user: dict[str, Any]) -> None:
    with pytest.raises(ScriptError, match="%%distributed --file"):
        script_runner.run(str(Path.cwd() / "nowhere.py"), ["nowhere.py"])
