"""Who answers while somebody types: a rank, the notebook, or nbcomm itself."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell

from nbcomm.errors import SpecError
from nbcomm.notebook.session import registry
from nbcomm.notebook.shell import completion
from nbcomm.notebook.shell.routing import Auto

TYPES = "_jupyter_types_experimental"


class Kernel:
    """Answers as ipykernel does, and awaits what can be awaited."""

    def __init__(self, *, awaits: bool = False) -> None:
        self.awaits = awaits

    def do_complete(self, code: str, cursor_pos: int | None) -> Any:
        return self.answer({"local": (code, cursor_pos)})

    def do_inspect(self, code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Any = ()) -> Any:
        return self.answer({"local": (code, cursor_pos, detail_level, omit_sections)})

    def answer(self, reply: Any) -> Any:
        async def later() -> Any:
            return reply

        return later() if self.awaits else reply


class World:
    """Answers a question with the next answer; a missing one never comes."""

    name, running = "b", True

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[Any, ...]] = []

    def inquire(self, *question: Any) -> Any:
        self.asked.append(question)
        given = self.answers.pop(0) if self.answers else Ellipsis
        if isinstance(given, Exception):
            raise given
        answers: list[Future[Any]] = []
        for each in [] if given == "dead" else given if isinstance(given, list) else [given]:
            answers.append(Future())
            if each is not Ellipsis:
                answers[-1].set_result(each)
        return answers


def followed(shell: Any) -> completion.Assist:
    assist = completion.Assist(shell, Auto(shell))
    assist.install()
    return assist


@pytest.fixture
def shell() -> Iterator[Any]:
    shell = SimpleNamespace(kernel=Kernel(), user_ns={"own": 1, "_hidden": 2, "Out": 3}, user_ns_hidden={"Out": 3})
    assist = followed(shell)
    yield shell
    assist.remove()


def use(monkeypatch: pytest.MonkeyPatch, world: World | None) -> World | None:
    monkeypatch.setattr(registry, "known", lambda name: world if name in ("", "b") else None)
    return world


def completed(kernel: Any, code: str, cursor: int | None = None) -> Any:
    return settled(kernel.do_complete(code, cursor))


def settled(reply: Any) -> Any:
    """What a kernel would send."""
    if asyncio.iscoroutine(reply):
        return asyncio.run(reply)
    return reply


def told(start: int, end: int, *texts: str) -> dict[str, Any]:
    kinds = [{"start": start, "end": end, "text": text, "type": "instance", "signature": ""} for text in texts]
    return {
        "status": "ok",
        "matches": list(texts),
        "cursor_start": start,
        "cursor_end": end,
        "metadata": {TYPES: kinds},
    }


@pytest.mark.parametrize(
    "first", ["%%distributed", "%%distributed -r 2", "\n%%distributed -r 2 --world b", "%%distributed 𝄞"]
)
def test_a_rank_answers_in_places_of_the_cell(shell: Any, monkeypatch: pytest.MonkeyPatch, first: str) -> None:
    world = use(monkeypatch, World(told(4, 6, "own_𝄞", "owl")))
    code = f"{first}\n'𝄞' ow = 1"
    cursor = code.index(" ow") + 3
    reply = completed(shell.kernel, code, cursor)
    assert world is not None
    assert world.asked == [("complete", "'𝄞' ow = 1", 6, 0, "2" if "-r 2" in first else None)]
    assert reply["matches"] == ["own_𝄞", "owl"]
    assert code[reply["cursor_start"] : reply["cursor_end"]] == "ow"
    assert [(each["start"], each["end"]) for each in reply["metadata"][TYPES]] == [(cursor - 2, cursor)] * 2


def test_help_is_a_ranks_too(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"status": "ok", "found": True, "data": {"text/plain": "doc"}, "metadata": {}}
    world = use(monkeypatch, World(answer))
    assert settled(shell.kernel.do_inspect("%%distributed\nx", 15, 1, {"Type"})) == answer
    assert world is not None
    assert world.asked == [("inspect", "x", 1, 1, None)]


@pytest.mark.parametrize("awaits", [False, True])
@pytest.mark.parametrize("answers", [[None], ["dead"], [SpecError("no such ranks")], []], ids=repr)
def test_without_an_answer_the_notebook_answers(monkeypatch: pytest.MonkeyPatch, answers: Any, awaits: bool) -> None:
    monkeypatch.setattr(completion, "PATIENCE", 0.05)
    shell: Any = SimpleNamespace(kernel=Kernel(awaits=awaits))
    assist = followed(shell)
    use(monkeypatch, World(*answers, *answers))
    assert completed(shell.kernel, "%%distributed\nx", None) == {"local": ("%%distributed\nx", None)}
    assert settled(shell.kernel.do_inspect("%%distributed\nx", 15)) == {"local": ("%%distributed\nx", 15, 0, ())}
    use(monkeypatch, None)
    assert completed(shell.kernel, "%%distributed\nx", 15) == {"local": ("%%distributed\nx", 15)}
    assist.remove()


def test_other_cells_are_the_notebooks(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = use(monkeypatch, World())
    for code, cursor in (
        ("x", 1),
        ("x\n%%distributed\ny", 17),
        ("%%distributed\nx", 5),
        ("%%distributed --world other\nx", 29),
    ):
        assert completed(shell.kernel, code, cursor) == {"local": (code, cursor)}
    assert world is not None
    assert world.asked == []


def test_what_only_other_ranks_have_comes_after_what_the_first_has(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "PATIENCE", 0.05)
    nothing, never = told(1, 1), Ellipsis
    use(monkeypatch, World([nothing, told(0, 1, "xb", "xa"), never, told(0, 1, "xa", "xc"), told(1, 1, "of_x"), None]))
    reply = completed(shell.kernel, "%%distributed\nx")
    assert (reply["matches"], reply["cursor_start"], reply["cursor_end"]) == (["xb", "xa", "xc"], 14, 15)
    assert [(each["text"], each["start"]) for each in reply["metadata"][TYPES]] == [("xb", 14), ("xa", 14), ("xc", 14)]
    use(monkeypatch, World([nothing, told(1, 1)]))
    assert completed(shell.kernel, "%%distributed\nx")["matches"] == [], "the ranks have answered"


def test_help_is_that_of_the_first_rank_that_has_the_name(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing, found = ({"status": "ok", "found": bool(text), "data": text, "metadata": {}} for text in ({}, {"a": "b"}))
    use(monkeypatch, World([nothing, found, nothing]))
    assert settled(shell.kernel.do_inspect("%%distributed\nx", 15)) == found


def test_the_kernels_loop_goes_on_meanwhile(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completion, "PATIENCE", 5.0)
    answer: Future[Any] = Future()
    use(monkeypatch, SimpleNamespace(inquire=lambda *_: [answer]))  # type: ignore[arg-type]

    async def both() -> Any:
        reply = asyncio.ensure_future(shell.kernel.do_complete("%%distributed\nx", 15))
        await asyncio.sleep(0)
        answer.set_result(told(0, 1, "xyz"))  # by somebody who has a turn while the reply is waited for
        return await reply

    assert asyncio.run(both())["matches"] == ["xyz"]


def test_lines_of_distributed(shell: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    world = use(monkeypatch, World(told(0, 1, "own_there", "print", "or", "%ordinary")))
    reply = completed(shell.kernel, "%distributed sta")
    assert (reply["matches"], reply["cursor_start"], reply["cursor_end"]) == (["start", "status"], 13, 16)
    assert completed(shell.kernel, "%distributed push ")["matches"] == ["own"]
    assert completed(shell.kernel, "%distributed push x")["matches"] == []
    assert completed(shell.kernel, "%distributed pull o")["matches"] == ["own_there"]
    assert world is not None
    assert world.asked == [("complete", "o", 1)]
    assert "local" in completed(shell.kernel, "%%distributed --trace /tm")
    monkeypatch.setattr(registry, "running", lambda: [world])
    assert completed(shell.kernel, "%distributed stop --world ")["matches"] == ["b"]


def test_removed_twice_it_is_gone() -> None:
    kernel = Kernel()
    assist = followed(SimpleNamespace(kernel=kernel))
    assist.remove()
    assist.remove()
    assert vars(kernel) == {"awaits": False}


def test_somebody_who_has_wrapped_us_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel: Any = Kernel()
    assist = followed(SimpleNamespace(kernel=kernel))
    ours = kernel.do_complete
    kernel.do_complete = functools.partial(ours)
    assist.remove()
    world = use(monkeypatch, World(told(0, 1, "xyz")))
    assert completed(kernel, "%%distributed\nx", 15) == {"local": ("%%distributed\nx", 15)}
    assert world is not None
    assert world.asked == []


@pytest.fixture
def ipython() -> Iterator[InteractiveShell]:
    """A shell, which is gone afterwards: other tests are about a Python without one."""
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def test_in_a_terminal_ipythons_completer_asks(ipython: InteractiveShell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell: Any = ipython
    monkeypatch.setattr(completion, "PATIENCE", 0.05)
    before = list(shell.Completer.custom_matchers)
    assist = followed(shell)
    monkeypatch.setattr(shell.Completer, "use_jedi", False)

    def texts(code: str) -> list[str]:
        lines = code.split("\n")
        results = shell.Completer._complete(full_text=code, cursor_line=len(lines) - 1, cursor_pos=len(lines[-1]))
        assert all(code.endswith(result["matched_fragment"]) for result in results.values())
        return [each.text for result in results.values() for each in result["completions"]]

    use(monkeypatch, World(told(4, 6, "own_there", "owl"), None))
    assert texts("%%distributed\nx = ow") == ["own_there", "owl"]
    assert texts("%distributed start --device cu") == ["cuda"]
    assert "print" in texts("%%distributed\nprin"), "the rank could not say"
    began = time.monotonic()
    assert "print" in texts("%%distributed\nprin"), "the rank says nothing"
    assert time.monotonic() - began < 20
    use(monkeypatch, None)
    assert "print" in texts("%%distributed\nprin"), "there is no world"
    assist.remove()
    assert shell.Completer.custom_matchers == before
