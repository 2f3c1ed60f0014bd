"""What a rank asks. The daemon and the notebook behind it are played here."""

from __future__ import annotations

import builtins
import contextlib
import getpass
import io
import os
import signal
import sys
import threading
import time
from cmd import Cmd
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.error import StdinNotImplementedError

from nbcomm.protocol import InputCancelled, InputReply, InputRequest
from nbcomm.rank.cells.stdin import _LOOK, InputPrompter
from nbcomm.rank.collectives.flight_recorder import FlightRecorder
from nbcomm.rank.output.capture import Capture, follow_threads

RUN = 7
PATIENCE = 30.0


class Person:
    """Plays the daemon and whoever types: each question takes the next of these answers."""

    def __init__(self, folder: Path) -> None:
        self.capture = Capture({name: folder / name for name in ("stdout", "stderr")})
        self.record = FlightRecorder()
        self.asker = InputPrompter(self.capture, self.record, lambda: self.reason, self._roused)
        self.reason: BaseException | None = None
        self.answers: list[InputReply | str | None] = []
        self.said: list[InputRequest | InputCancelled] = []
        self.asked = threading.Event()

    def _roused(self) -> None:
        for message in self.asker.take():
            self.said.append(message)
            answer = self.answers.pop(0) if isinstance(message, InputRequest) and self.answers else None
            if answer is not None and isinstance(message, InputRequest):
                self.asker.hear(
                    answer if isinstance(answer, InputReply) else InputReply(message.run, message.number, answer)
                )
            self.asked.set()

    def once_asked(self, act: Callable[[], object]) -> None:
        """Do something on another thread when there is a question: before, it would be lost, or hinder the asking."""

        def wait_and_act() -> None:
            if self.asked.wait(PATIENCE):
                act()

        threading.Thread(target=wait_and_act).start()


@pytest.fixture
def person(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Person]:
    for owner, name in ((builtins, "input"), (getpass, "getpass"), (sys, "stdin"), (threading.Thread, "start")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setattr(sys, "__stdin__", sys.__stdin__)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"elsewhere\nmore\n")))
    made = Person(tmp_path)
    follow_threads()
    made.asker.install()
    with made.capture.of_run(RUN):
        yield made
    made.capture.take(end=True)


def test_a_line_is_asked_for_and_comes_without_its_end(person: Person) -> None:
    person.answers = ["Ünï ", ""]
    assert input("Name? ") == "Ünï "
    assert input() == ""
    assert person.said == [InputRequest(RUN, 1, "Name? "), InputRequest(RUN, 2, "")]
    assert person.asker.open() == []


def test_a_prompt_may_be_anything(person: Person) -> None:
    person.answers = [""]
    input(3)
    assert person.said == [InputRequest(RUN, 1, "3")]


def test_a_password_is_hidden(person: Person) -> None:
    person.answers = ["secret"]
    assert getpass.getpass() == "secret"
    assert person.said == [InputRequest(RUN, 1, "Password: ", hidden=True)]


def test_a_loop_of_commands_says_that_it_will_ask_again(person: Person) -> None:
    class Loop(Cmd):
        def do_end(self, _line: str) -> bool:
            return True

    person.answers = ["end"]
    Loop().cmdloop()
    assert person.said == [InputRequest(RUN, 1, "(Cmd) ", dialogue=True)]


def test_stdin_is_read_in_lines_until_its_end(person: Person) -> None:
    person.answers = ["one", "two", "three", InputReply(RUN, 4, "", "EOFError")]
    assert sys.stdin.readline() == "one\n"
    assert list(sys.stdin) == ["two\n", "three\n"]


def test_stdin_may_be_read_in_parts_and_as_a_whole(person: Person) -> None:
    person.answers = ["word", "a", "b", InputReply(RUN, 4, "", "EOFError"), InputReply(RUN, 5, "", "EOFError")]
    assert (sys.stdin.readline(2), sys.stdin.read(1), sys.stdin.readline()) == ("wo", "r", "d\n")
    assert sys.stdin.read() == "a\nb\n"
    assert sys.stdin.readlines() == []
    sys.stdin.close()
    assert not sys.stdin.isatty()
    assert sys.stdin.readable()


@pytest.mark.parametrize(
    ("name", "kind"),
    [("EOFError", EOFError), ("StdinNotImplementedError", StdinNotImplementedError), ("New", EOFError)],
)
def test_an_answer_may_be_an_error(person: Person, name: str, kind: type[Exception]) -> None:
    person.answers = [InputReply(RUN, 1, "A sentence.", name)]
    with pytest.raises(kind, match="A sentence"):
        input()


def test_what_belongs_to_no_cell_reads_as_before(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(person.capture, "attribution", lambda: None)
    assert sys.stdin.readline() == "elsewhere\n"
    assert sys.stdin.read(2) == "mo"
    with contextlib.suppress(EOFError, OSError):  # pytest's own input
        input()
    assert person.said == []


def test_installing_twice_changes_nothing(person: Person) -> None:
    before = builtins.input, getpass.getpass, sys.stdin
    person.asker.install()
    assert (builtins.input, getpass.getpass, sys.stdin) == before


def test_a_wait_that_is_broken_off_is_withdrawn_and_the_answer_dropped(person: Person) -> None:
    person.once_asked(lambda: setattr(person, "reason", KeyboardInterrupt("the notebook's ■")))
    with pytest.raises(KeyboardInterrupt, match="■"):
        input("Name? ")
    assert person.said == [InputRequest(RUN, 1, "Name? "), InputCancelled(RUN, 1)]
    person.asker.hear(InputReply(RUN, 1, "too late"))
    with pytest.raises(EOFError, match="being ended"):  # it catches what should end it, and asks again
        input("Name? ")


def test_a_wait_goes_on_after_a_signal_whose_handler_takes_longer_than_one_look(person: Person) -> None:
    main = threading.main_thread().ident or 0

    def press() -> None:
        for _ in range(5):  # one of them meets the wait itself
            signal.pthread_kill(main, signal.SIGINT)
            time.sleep(_LOOK / 2)
        person.reason = KeyboardInterrupt("the notebook's ■")

    unstuck = threading.Timer(PATIENCE, lambda: person.asker.hear(InputReply(RUN, 1, "it waited for ever")))
    before = signal.signal(signal.SIGINT, lambda *_: time.sleep(2 * _LOOK))  # as where a task is to be cancelled
    try:
        unstuck.start()
        person.once_asked(press)
        with pytest.raises(KeyboardInterrupt, match="■"):
            input("Name? ")
    finally:
        unstuck.cancel()
        signal.signal(signal.SIGINT, before)


def test_an_answer_to_another_question_is_dropped(person: Person) -> None:
    person.asker.hear(InputReply(RUN, 1, "nobody asked"))

    def answer() -> None:
        person.asker.hear(InputReply(RUN - 1, 1, "of another cell"))
        person.asker.hear(InputReply(RUN, 1, "right"))
        person.asker.hear(InputReply(RUN, 1, "of a notebook that had heard the question again"))

    person.once_asked(answer)
    assert input() == "right"


def test_who_waits_for_a_person_waits_for_no_rank(person: Person) -> None:
    seen = []
    person.record.waiting.append(("a handle", False))

    def look() -> None:
        deadline = time.monotonic() + PATIENCE
        while person.record.waiting and time.monotonic() < deadline:  # it asks first, and waits then
            time.sleep(0.001)
        seen.append(person.record.waiting)
        person.asker.hear(InputReply(RUN, 1, ""))

    person.once_asked(look)
    input()
    assert seen == [[]]
    assert person.record.waiting == [("a handle", False)]


def test_a_question_that_a_new_notebook_has_not_heard_is_there_to_be_said_again(person: Person) -> None:
    said_again: list[InputRequest] = []

    def answer() -> None:
        said_again.extend(person.asker.open())
        person.asker.hear(InputReply(RUN, 1, "x"))

    person.once_asked(answer)
    assert input("Name? ") == "x"
    assert said_again == [InputRequest(RUN, 1, "Name? ")]


def test_a_thread_may_ask_while_its_cell_runs(person: Person) -> None:
    got: list[object] = []

    def ask() -> None:
        for _ in range(2):
            try:
                got.append(input("Thread? "))
            except EOFError as error:
                got.append(str(error))
        got.append(sys.stdin.readline())

    person.answers = ["yes"]
    thread = threading.Thread(target=ask)
    thread.start()
    while len(person.said) < 2:
        person.asked.wait(10)
    person.capture.take(end=True)  # the cell ends
    thread.join(10)
    assert got == ["yes", "The cell of this code has ended, so the code cannot ask for input.", ""]


@pytest.mark.ranks
def test_a_forked_child_finds_the_end_of_the_input(person: Person) -> None:
    if not (child := os.fork()):
        code = 1
        try:
            input("Child? ")
        except EOFError as error:
            code = 0 if "forked" in str(error) and sys.stdin.readline() == "" else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert person.said == []


def test_bytes_below_it_come_line_by_line(person: Person) -> None:
    person.answers = ["ü1", "2", "3", "4"]
    stdin: Any = sys.stdin
    assert stdin.buffer.readline() == "ü1\n".encode()
    assert io.TextIOWrapper(stdin.buffer, encoding="utf-8").readline() == "2\n"
    assert stdin.buffer.read(1) == b"3"
    assert stdin.buffer.read(3) == b"\n4\n"
    assert not stdin.buffer.closed  # the wrapper was collected
    stdin.reconfigure(errors="ignore")
    assert sys.stdin is sys.__stdin__


def test_bytes_end_where_the_input_ends(person: Person) -> None:
    def one_line_and_the_end() -> bytes:
        person.answers = ["all", InputReply(RUN, len(person.said) + 2, "", "EOFError")]
        return bytes(sys.stdin.buffer.read())

    assert one_line_and_the_end() == b"all\n"


def test_bytes_of_who_belongs_to_no_cell_are_those_of_the_process(person: Person) -> None:
    with person.capture.on_behalf_of(None):  # type: ignore[arg-type]
        assert sys.stdin.buffer.readline() == b"elsewhere\n"
