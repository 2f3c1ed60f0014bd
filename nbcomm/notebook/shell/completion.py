"""Completion and help while a user types a cell for ranks: these are asked, for the cell's names are there.

The first rank's answer comes first, and what only others have is added. Two methods of the kernel are wrapped, as
`kernel_restart` wraps its end. A question that no rank has answered within half a second, or that is not for ranks, is
answered as before. In a terminal, which has no kernel, IPython's completer gets one more matcher.
"""

from __future__ import annotations

import asyncio
import builtins
import inspect
import keyword
from collections.abc import Callable, Sequence
from concurrent import futures
from contextlib import suppress
from typing import Any, NamedTuple

from IPython.core.completer import SimpleCompletion, completion_matcher
from IPython.core.interactiveshell import InteractiveShell

from ...errors import NbcommError
from ..execution.introspection import PATIENCE, Answer
from ..session import registry
from . import line_completion
from .cell_target import part_for_ranks
from .routing import Auto

_TYPES = "_jupyter_types_experimental"
_FIRST = 1000
"""The priority of nbcomm's matcher in a terminal: before IPython's own, which it silences."""

Reply = dict[str, Any]


class _Asked(NamedTuple):
    """A question that is under way to some ranks, and the function that makes a reply of what they answer."""

    answers: Sequence[Answer]
    reply: Callable[[Reply], Reply]

    def content(self) -> Reply | None:
        """Return what has been answered so far; None if nothing has."""
        told = [answer.result() for answer in self.answers if answer.done()]
        return together([content for content in told if content is not None])


class Assist:
    """Completion and help from ranks, for one shell.

    Args:
        shell: the shell of the cells.
        routing: decides where plain cells run.
    """

    def __init__(self, shell: InteractiveShell, routing: Auto) -> None:
        self._shell = shell
        self._routing = routing
        self._undo: list[Callable[[], None]] = []
        self.active = True

    def install(self) -> None:
        """Answer for the shell from now on."""
        kernel = getattr(self._shell, "kernel", None)
        if kernel is not None:
            self._follow_kernel(kernel)
        else:
            self._follow_terminal()

    def remove(self) -> None:
        """Stop answering, and unwrap the methods if nothing has wrapped them since."""
        self.active = False
        for undo in self._undo:
            undo()
        self._undo.clear()

    # ── in a kernel ─────────────────────────────────────────────────────────────────────────────────

    def _follow_kernel(self, kernel: Any) -> None:
        complete, look = kernel.do_complete, kernel.do_inspect

        def do_complete(code: str, cursor_pos: int | None, *args: Any, **kwargs: Any) -> Any:
            cursor = len(code) if cursor_pos is None else cursor_pos
            return self._reply(
                lambda: self._ask_completion(code, cursor), lambda: complete(code, cursor_pos, *args, **kwargs)
            )

        def do_inspect(code: str, cursor_pos: int, detail_level: int = 0, *args: Any, **kwargs: Any) -> Any:
            return self._reply(
                lambda: self._ask("inspect", code, cursor_pos, detail_level),
                lambda: look(code, cursor_pos, detail_level, *args, **kwargs),
            )

        for name, ours in (("do_complete", do_complete), ("do_inspect", do_inspect)):
            setattr(kernel, name, ours)
            self._undo.append(lambda name=name, ours=ours: _remove(kernel, name, ours))  # type: ignore[misc]

    def _reply(self, ask: Callable[[], _Asked | Reply | None], locally: Callable[[], Any]) -> Any:
        """Return the kernel's reply, now or as a future."""
        asked = None
        if self.active:
            with suppress(NbcommError):  # no such ranks: an error is raised when the cell is run
                asked = ask()
        if asked is None:
            return locally()
        return asked if isinstance(asked, dict) else _await(asked, locally)

    # ── in a terminal ───────────────────────────────────────────────────────────────────────────────

    def _follow_terminal(self) -> None:
        """Become the first matcher of the shell's completer."""
        matchers = self._shell.Completer.custom_matchers

        @completion_matcher(identifier="nbcomm", priority=_FIRST, api_version=2)  # type: ignore[untyped-decorator]
        def match(context: Any) -> dict[str, Any]:
            return self._match(context)

        def forget() -> None:
            if match in matchers:
                matchers.remove(match)

        matchers.append(match)
        self._undo.append(forget)

    def _match(self, context: Any) -> dict[str, Any]:
        code, lines = context.full_text, context.full_text.split("\n")
        cursor = sum(len(line) + 1 for line in lines[: context.cursor_line]) + context.cursor_position
        reply: Reply | None = None
        with suppress(NbcommError, TimeoutError):
            asked = self._ask_completion(code, cursor)
            if isinstance(asked, _Asked):
                futures.wait(asked.answers, PATIENCE)
                content = asked.content()
                asked = asked.reply(content) if content is not None else None
            reply = asked
        if reply is None:
            return {"completions": []}
        return {
            "completions": [SimpleCompletion(each["text"], type=each["type"]) for each in reply["metadata"][_TYPES]],
            "matched_fragment": code[reply["cursor_start"] : cursor],
            "ordered": True,
            "suppress": True,
        }

    # ── the question ────────────────────────────────────────────────────────────────────────────────────

    def _ask_completion(self, code: str, cursor: int) -> _Asked | Reply | None:
        line = line_completion.line_at(code, cursor)
        if line is None:
            return self._ask("complete", code, cursor)
        choice = line_completion.choices(line)
        if choice is None:
            return None
        start = cursor - len(line.token)
        if choice.names == "on ranks":
            session = registry.known(choice.world)
            if session is None:
                return None
            answers = session.inquire("complete", line.token, len(line.token))
            if "." in line.token:  # inside a variable
                return _Asked(answers, lambda content: _moved(content, start))
            return _Asked(answers, lambda content: _completions(_names_in(content), start, cursor, "instance"))
        texts = choice.texts
        if choice.names == "here":
            hidden = self._shell.user_ns_hidden
            texts = sorted(name for name in self._shell.user_ns if name not in hidden and not name.startswith("_"))
        elif choice.names == "of worlds":
            texts = [session.name for session in registry.running() if session.name]
        fitting = [text for text in texts if text.startswith(line.token)]
        return _completions(fitting, start, cursor, "instance" if choice.names == "here" else "param")

    def _ask(self, kind: str, code: str, cursor: int, detail: int = 0) -> _Asked | None:
        part = part_for_ranks(code, plain=self._routing.on)
        if part is None or cursor < part.offset:
            return None
        session = registry.known(part.world)
        if session is None:
            return None
        answers = session.inquire(kind, part.code, cursor - part.offset, detail, part.ranks)
        return _Asked(answers, lambda content: _moved(content, part.offset))


async def _await(asked: _Asked, locally: Callable[[], Any]) -> Reply:
    """Wait for the ranks, without blocking the kernel's loop."""
    if asked.answers:
        await asyncio.wait([asyncio.wrap_future(answer) for answer in asked.answers], timeout=PATIENCE)
    content = asked.content()
    if content is not None:
        return asked.reply(content)
    here = locally()
    reply: Reply = await here if inspect.isawaitable(here) else here
    return reply


def together(contents: Sequence[Reply]) -> Reply | None:
    """Return the first rank's answer, with what only others have; None if nobody has answered.

    Args:
        contents: the ranks' answers, in their order.
    """
    useful = [content for content in contents if content.get("matches") or content.get("found")]
    if not useful:
        return contents[0] if contents else None
    first, *others = useful
    if "matches" not in first:
        return first
    matches, kinds = dict.fromkeys(first["matches"]), list(first["metadata"].get(_TYPES, ()))
    for content in others:
        if content["cursor_start"] == first["cursor_start"]:
            kinds += [each for each in content["metadata"].get(_TYPES, ()) if each["text"] not in matches]
            matches.update(dict.fromkeys(content["matches"]))
    return {**first, "matches": list(matches), "metadata": {**first["metadata"], _TYPES: kinds}}


def _moved(content: Reply, offset: int) -> Reply:
    """Convert a reply about a part of the cell into one about the whole cell."""
    moved = {**content}
    for key in ("cursor_start", "cursor_end"):
        if key in moved:
            moved[key] += offset
    metadata = dict(moved.get("metadata", {}))
    if _TYPES in metadata:
        metadata[_TYPES] = [
            {**each, "start": each["start"] + offset, "end": each["end"] + offset} for each in metadata[_TYPES]
        ]
    return {**moved, "metadata": metadata}


def _completions(texts: Sequence[str], start: int, cursor: int, kind: str) -> Reply:
    return {
        "status": "ok",
        "matches": list(texts),
        "cursor_start": start,
        "cursor_end": cursor,
        "metadata": {
            _TYPES: [{"start": start, "end": cursor, "text": text, "type": kind, "signature": ""} for text in texts]
        },
    }


def _names_in(content: Reply) -> list[str]:
    """Return the variables among completions."""
    return [
        name
        for name in content["matches"]
        if name.isidentifier() and not keyword.iskeyword(name) and not hasattr(builtins, name)
    ]


def _remove(kernel: Any, name: str, ours: Any) -> None:
    if vars(kernel).get(name) is ours:  # otherwise another wrapper is around it; it passes calls on
        delattr(kernel, name)
