"""A rank's streams are those of an ordinary process, whatever a program does to them."""

from __future__ import annotations

import codecs
import gc
import io
import os
import sys
import threading
from typing import Any

import pytest

from nbcomm.rank.output.capture import Capture
from nbcomm.rank.output.streams import flush_all, restore_missing, stand_in

from .test_capture import in_child, texts

pytestmark = pytest.mark.ranks


def test_bytes_and_text_keep_their_order_and_no_character_is_cut() -> None:
    def body(capture: Capture) -> Any:
        with capture.of_run(1):
            print("one")
            sys.stdout.buffer.write("zwö".encode()[:-1])
            sys.stdout.buffer.raw.write(memoryview("ö\n".encode())[1:])  # type: ignore[attr-defined]
            print("three")
            sys.stderr.buffer.writelines([b"a", b"b\n"])
        return texts(capture)

    assert in_child(body) == [("stdout", "one\nzwö\nthree\n", False), ("stderr", "ab\n", False)]


def test_bytes_of_a_thread_belong_to_its_cell() -> None:
    def body(capture: Capture) -> Any:
        gate = threading.Event()

        def later() -> None:
            gate.wait(30)
            sys.stdout.buffer.write(b"late\n")

        with capture.of_run(1):
            thread = threading.Thread(target=later)
            thread.start()
        texts(capture)
        with capture.of_run(2):
            gate.set()
            thread.join()
            print("second")
        return [(run, [(i.text, i.late) for i in items]) for run, items in capture.take(end=True)]

    assert in_child(body) == [(1, [("late\n", True)]), (2, [("second\n", False)])]


def test_bytes_that_belong_to_no_cell_go_where_text_goes() -> None:
    def body(capture: Capture) -> Any:
        sys.stdout.buffer.write("ö".encode())
        return sys.stdout._otherwise.getvalue(), texts(capture)  # type: ignore[attr-defined]

    assert in_child(body) == ("ö", [])


WRAPPED = {
    "buffer": lambda: io.TextIOWrapper(sys.stdout.buffer, encoding="utf-8"),
    "detach": lambda: io.TextIOWrapper(sys.stdout.detach(), encoding="utf-8"),  # type: ignore[attr-defined]
    "codecs": lambda: codecs.getwriter("utf-8")(sys.stdout.detach()),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("how", WRAPPED)
def test_a_wrapper_works_in_each_run_of_the_cell_that_makes_it(how: str) -> None:
    def body(capture: Capture) -> Any:
        ours, seen = sys.stdout, []
        for run in (1, 2):
            with capture.of_run(run):
                sys.stdout = WRAPPED[how]()  # the one of the run before is collected
                gc.collect()
                print("wräpped")
                flush_all()
                ours.write("itself\n")
            seen.append(texts(capture, run))
        return seen

    assert in_child(body) == [[("stdout", "wräpped\nitself\n", False)]] * 2


@pytest.mark.parametrize("close", [lambda out: out.close(), lambda out: out.buffer.close()])
def test_what_is_closed_refuses_until_the_next_cell(close: Any) -> None:
    def body(capture: Capture) -> Any:
        seen: list[Any] = []
        with capture.of_run(1):
            close(sys.stdout)
            seen.append(sys.stdout.closed)
            for use in (lambda: print("no"), sys.stdout.flush, lambda: sys.stdout.buffer.write(b"no")):
                try:
                    use()
                except ValueError:
                    seen.append("refused")
        with capture.of_run(2):
            print("open", sys.stdout.closed)
        return seen, [(run, items[0].text) for run, items in capture.take(end=True)]  # type: ignore[union-attr]

    assert in_child(body) == ([True] + 3 * ["refused"], [(2, "open False\n")])


def test_what_a_cell_reconfigures_the_next_one_finds_as_it_was() -> None:
    def body(capture: Capture) -> Any:
        out: Any = sys.stdout
        with capture.of_run(1):
            out.reconfigure(encoding="ascii", errors="ignore", line_buffering=True)
            told = out.encoding, out.errors, out.line_buffering
            print("ö")  # the page can show it
        with capture.of_run(2):
            return told, (out.encoding, out.errors, out.line_buffering), texts(capture)

    now = ("utf-8", "strict", False)
    assert in_child(body) == (("ascii", "ignore", True), now, [("stdout", "ö\n", False)])


def test_what_is_deleted_is_there_in_the_next_cell() -> None:
    def body(capture: Capture) -> Any:
        for name in ("stdout", "stderr"):
            stand_in(name, capture.streams[name])
        with capture.of_run(1):
            del sys.stdout, sys.stderr
        with capture.of_run(2):
            print("out")
            print("err", file=sys.stderr)
            sys.stdout = None  # type: ignore[assignment]  # a user's choice: it stays
            flush_all()
            restore_missing()
            print("nobody sees this")
        return texts(capture, 2)

    assert in_child(body) == [("stdout", "out\n", False), ("stderr", "err\n", False)]


def test_a_descriptor_that_was_closed_is_captured_again() -> None:
    def body(capture: Capture) -> Any:
        with capture.of_run(1):
            os.fdopen(1, "w").close()
        with capture.of_run(2):
            os.write(1, b"back\n")
        reading, writing = os.pipe()
        os.dup2(writing, 1)  # a user's choice: it stays
        with capture.of_run(3):
            os.write(1, b"into the pipe\n")
        return texts(capture, 2), os.read(reading, 100)

    assert in_child(body) == ([("stdout", "back\n", False)], b"into the pipe\n")


def test_a_forked_child_writes_bytes_through_the_descriptor() -> None:
    def body(capture: Capture) -> Any:
        with capture.of_run(1):
            pid = os.fork()
            if pid == 0:
                sys.stdout.buffer.write(b"child\n")
                os._exit(0)
            os.waitpid(pid, 0)
        return texts(capture)

    assert in_child(body) == [("stdout", "child\n", False)]
