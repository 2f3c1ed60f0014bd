"""What a rank shows: whole, in order, and of the right cell. The descriptors are those of a forked child."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import os
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nbcomm.protocol import Text
from nbcomm.rank.output import capture as module
from nbcomm.rank.output.capture import Capture, follow_threads

from ..descriptors import descriptors

pytestmark = pytest.mark.ranks

LIBC = ctypes.CDLL(None)
LIBC.fdopen.restype = ctypes.c_void_p
BUFFER = ctypes.create_string_buffer(4096)


def in_child(body: Callable[[Capture], Any]) -> Any:
    """Run a function in a forked child whose streams and descriptors 1 and 2 are captured; return what it returns."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with tempfile.TemporaryDirectory() as folder:
                capture = Capture({name: Path(folder, name) for name in ("stdout", "stderr")})
                capture.claim_descriptors()
                follow_threads()
                sys.stdout, sys.stderr = (capture.stream(name, io.StringIO()) for name in ("stdout", "stderr"))
                answer = body(capture)
        except BaseException:  # noqa: BLE001 - nothing may return into pytest twice
            answer = traceback.format_exc()
        os.write(writing, pickle.dumps(answer))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, "the child has ended otherwise"
    return pickle.loads(answer)


def texts(capture: Capture, run: int = 1, *, end: bool = True) -> list[tuple[str, str, bool]]:
    """What was captured of a run: stream, text, late."""
    return [
        (item.stream, item.text, item.late)
        for taken, items in capture.take(end=end)
        for item in items
        if taken == run and isinstance(item, Text)
    ]


def test_python_descriptors_and_children_in_order() -> None:
    def body(capture: Capture) -> Any:
        with capture.of_run(1):
            print("one")
            os.write(1, b"two\n")
            print("three")
            subprocess.run(["echo", "four"], check=True)
            print("five")
        return texts(capture)

    assert in_child(body) == [("stdout", "one\ntwo\nthree\nfour\nfive\n", False)]


def test_each_streams_order_is_kept_whatever_writes_to_it() -> None:
    def body(capture: Capture) -> Any:
        chosen, wrong = random.Random(7), []  # noqa: S311 - no secret
        for run in range(1, 200):
            expected: dict[str, str] = {"stdout": "", "stderr": ""}
            shown: list[tuple[str, str, bool]] = []
            with capture.of_run(run):
                for number in range(chosen.randrange(40)):
                    name = chosen.choice(["stdout", "stdout", "stderr"])
                    text = f"{number}é"
                    expected[name] += text
                    how = chosen.choice(["print", "print", "flush", "descriptor", "half"])
                    if how in ("print", "flush"):
                        print(text, end="", file=getattr(sys, name), flush=how == "flush")
                    elif how == "descriptor":
                        os.write(1 if name == "stdout" else 2, text.encode())
                    else:  # a character in two parts, as a child writes it whose buffer is full
                        for part in (text.encode()[:-1], text.encode()[-1:]):
                            os.write(1 if name == "stdout" else 2, part)
                    if not chosen.randrange(8):
                        shown += texts(capture, run, end=False)
                shown += texts(capture, run)
            found = {name: "".join(text for its, text, _ in shown if its == name) for name in expected}
            if found != expected:
                wrong.append((run, found, expected))
        return wrong

    assert in_child(body) == []


def test_streams_are_kept_apart_and_in_order() -> None:
    def body(capture: Capture) -> Any:
        with capture.of_run(1):
            print("out")
            print("err", file=sys.stderr)
            print("out again")
        return texts(capture)

    assert in_child(body) == [("stdout", "out\n", False), ("stderr", "err\n", False), ("stdout", "out again\n", False)]


def test_what_belongs_to_no_cell_goes_where_it_went() -> None:
    def body(capture: Capture) -> Any:
        print("before")
        kept = sys.stdout._otherwise.getvalue()  # type: ignore[attr-defined]
        return kept, texts(capture)

    assert in_child(body) == ("before\n", [])


def test_a_thread_prints_for_the_cell_that_started_it() -> None:
    def body(capture: Capture) -> Any:
        gate = threading.Event()

        def later() -> None:
            gate.wait(30)
            inner = threading.Thread(target=print, args=("from a thread's thread",))
            inner.start()
            inner.join()

        with capture.of_run(1):
            thread = threading.Thread(target=later)
            thread.start()
        first = texts(capture)
        with capture.of_run(2):
            gate.set()
            thread.join()
            print("second")
            return first, [(run, [i.text for i in items], [i.late for i in items]) for run, items in capture.take()]

    first, then = in_child(body)
    assert first == []
    assert then == [(1, ["from a thread's thread\n"], [True]), (2, ["second\n"], [False])]


def test_a_late_line_that_is_being_printed_is_not_cut_in_two_unless_it_takes_long() -> None:
    def body(capture: Capture) -> Any:
        clock = [0.0]
        module.time = SimpleNamespace(monotonic=lambda: clock[0])  # type: ignore[attr-defined]
        with capture.of_run(1):
            pass
        capture.take(end=True)
        seen = []

        def look(at: float, *, end: bool = False) -> None:
            clock[0] = at
            seen.append([(run, item.text) for run, items in capture.take(end=end) for item in items])

        with capture.on_behalf_of(1):
            sys.stdout.write("one\nnow")
            look(0)
            look(0.9)
            with capture.of_run(2):
                print("of the next cell")
            look(0.9, end=True)
            sys.stdout.write(" 7\nno end")
            look(0.9)
            sys.stderr.write("an error\n")
            sys.stdout.write(" yet")
            look(1.8)
            look(2.0)
            sys.stdout.write("!\n")
            look(2.0)
        return seen

    assert in_child(body) == [
        [(1, "one\n")],
        [],
        [(2, "of the next cell\n")],
        [(1, "now 7\n")],
        [(1, "an error\n")],
        [(1, "no end yet")],
        [(1, "!\n")],
    ]


def test_a_megabyte_at_once_and_characters_cut_in_two() -> None:
    def body(capture: Capture) -> Any:
        with capture.of_run(1):
            os.write(1, "ü€𝄞".encode() * 300_000)
            os.write(1, "€".encode()[:2])
            print(end="")
            os.write(1, "€".encode()[2:])
        return "".join(text for _, text, _ in texts(capture))

    assert in_child(body) == "ü€𝄞" * 300_000 + "€"


def test_no_character_is_cut_where_a_long_text_is_read_in_parts() -> None:
    def body(capture: Capture) -> Any:
        with capture.of_run(1):
            os.write(1, b"a" + "é".encode() * (1 << 20))
        return "".join(text for _, text, _ in texts(capture))

    assert in_child(body) == "a" + "é" * (1 << 20)


def test_bytes_that_are_no_text_are_shown_as_such() -> None:
    def body(capture: Capture) -> Any:
        with capture.of_run(1):
            os.write(1, b"a\xffb\xe2\x82")
        return texts(capture)

    assert in_child(body) == [("stdout", "a\ufffdb\ufffd", False)]


def test_a_child_that_never_stops_writing_does_not_keep_the_reader() -> None:
    def body(capture: Capture) -> Any:
        with capture.of_run(1):
            children = [subprocess.Popen(["yes", "x" * 100]) for _ in range(3)]
        taken = threading.Event()
        try:
            threading.Thread(target=lambda: (capture.take(), taken.set()), daemon=True).start()
            return taken.wait(30)
        finally:
            for child in children:
                child.kill()
                child.wait()

    assert in_child(body)


def test_a_forked_child_prints_through_the_descriptor() -> None:
    def body(capture: Capture) -> Any:
        with capture.of_run(1):
            pid = os.fork()
            if pid == 0:
                print("child")
                os._exit(0)
            os.waitpid(pid, 0)
        return texts(capture)

    assert in_child(body) == [("stdout", "child\n", False)]


def test_what_gloo_prints_for_each_group_is_not_shown() -> None:
    said = "[Gloo] Rank 0 is connected to 1 peer ranks. Expected number of connected peer ranks is : 1\n"

    def body(capture: Capture) -> Any:
        with capture.of_run(1):
            os.write(1, f"before\n{said}behind\n".encode())
            os.write(1, said.encode())
            print(said, end="")
        return texts(capture)

    assert in_child(body) == [("stdout", f"before\nbehind\n{said}", False)], "what a cell itself prints is shown"


def test_the_streams_are_what_programs_expect() -> None:
    def body(capture: Capture) -> Any:
        with contextlib.suppress(TypeError):
            sys.stdout.write(b"bytes")  # type: ignore[arg-type]
            return "bytes were taken"
        out = sys.stdout
        return out.fileno(), sys.stderr.fileno(), out.isatty(), out.writable(), out.encoding, out.getvalue()  # type: ignore[attr-defined]

    assert in_child(body) == (1, 2, False, True, "utf-8", "")


def _locked(stream: ctypes.c_void_p) -> bool:
    """Whether another thread has locked a stream of C."""
    if LIBC.ftrylockfile(stream) != 0:
        return True
    LIBC.funlockfile(stream)
    return False


def _buffered_stdout() -> ctypes.c_void_p:
    """C's own stdout, which Python leaves without a buffer where PYTHONUNBUFFERED is set."""
    stream = ctypes.c_void_p.in_dll(LIBC, "stdout")
    assert LIBC.setvbuf(stream, BUFFER, 0, len(BUFFER)) == 0  # _IOFBF
    return stream


def _ended(capture: Capture) -> list[tuple[str, str, bool]] | None:
    """What the end of a cell finds, if it comes to it."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(texts(capture)), daemon=True)
    thread.start()
    thread.join(30)
    return found[0] if found else None


def test_a_thread_in_c_that_waits_for_a_pipe_does_not_keep_the_cell() -> None:
    def body(capture: Capture) -> Any:
        reading, _ = os.pipe()
        stream = ctypes.c_void_p(LIBC.fdopen(reading, b"r"))
        read = threading.Thread(target=LIBC.fread, args=(ctypes.create_string_buffer(9), 1, 1, stream), daemon=True)
        with capture.of_run(1):
            read.start()
            while not _locked(stream):
                assert read.is_alive()
            LIBC.printf(b"from C\n")
        return _ended(capture)

    assert in_child(body) == [("stdout", "from C\n", False)]


def test_what_a_thread_in_c_still_writes_comes_with_the_next_cell() -> None:
    def body(capture: Capture) -> Any:
        stream, gate = _buffered_stdout(), threading.Event()

        def write() -> None:
            LIBC.flockfile(stream)
            LIBC.fputs(b"from C\n", stream)
            gate.wait(30)
            LIBC.funlockfile(stream)

        with capture.of_run(1):
            thread = threading.Thread(target=write)
            thread.start()
            while not _locked(stream):
                assert thread.is_alive()
            print("Python")
        first = _ended(capture)
        gate.set()
        thread.join()
        with capture.of_run(2):
            pass
        return first, texts(capture, 2)

    assert in_child(body) == ([("stdout", "Python\n", False)], [("stdout", "from C\n", False)])


def test_c_code_that_was_led_to_a_full_pipe_does_not_keep_the_cell() -> None:
    def body(capture: Capture) -> Any:
        stream = _buffered_stdout()
        reading, writing = os.pipe()
        os.set_blocking(writing, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writing, b"x" * 65536)
        os.set_blocking(writing, True)
        with capture.of_run(1):
            LIBC.fputs(b"it waits in the buffer of C\n", stream)
            os.dup2(writing, 1)
            print("Python")
        return _ended(capture), os.read(reading, 1)

    assert in_child(body) == ([("stdout", "Python\n", False)], b"x")


def test_descriptors_are_claimed_once() -> None:
    def body(capture: Capture) -> Any:
        before = descriptors()
        with capture.of_run(1):
            os.write(1, b"before ")
            capture.claim_descriptors()  # groups are formed anew, so this is asked for again
            os.write(1, b"after")
        return texts(capture), [before, descriptors()]

    said, (before, after) = in_child(body)
    assert said == [("stdout", "before after", False)]
    assert after == before


def test_where_no_further_file_can_be_made_what_is_printed_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    opens = os.open

    def refusing(path: Any, *rest: Any, **named: Any) -> int:
        if os.fspath(path).endswith(".said"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return opens(path, *rest, **named)

    def body(capture: Capture) -> Any:
        with capture.of_run(1):
            os.write(1, b"shown")
        return texts(capture)

    monkeypatch.setattr(os, "open", refusing)
    assert in_child(body) == [("stdout", "shown", False)]


def test_what_is_flushed_is_in_the_file_and_is_shown_once_in_its_order() -> None:
    def body(capture: Capture) -> Any:
        file = Path(f"/proc/self/fd/{1}")
        with capture.of_run(1):
            print("a")
            before = file.read_text()
            os.write(1, b"b\n")
            print("c", flush=True)
            after = file.read_text()
            os.write(1, b"d\n")
            print("e")
            sys.stderr.write("line\nno end")
            errors = Path("/proc/self/fd/2").read_text()
            first = capture.take()
            print("f", flush=True)
            os.write(1, b"g\n")
        shown = [(run, [(item.stream, item.text) for item in items]) for run, items in first]  # type: ignore[union-attr]
        return before, after, errors, shown, texts(capture), (file.read_text(), capture.taken)

    before, after, errors, shown, rest, (kept, taken) = in_child(body)
    assert (before, after, errors) == ("", "b\na\nc\n", "line\nno end")
    assert shown == [(1, [("stdout", "a\nb\nc\nd\ne\n"), ("stderr", "line\nno end")])]
    assert rest == [("stdout", "f\ng\n", False)]
    assert kept == "b\na\nc\nd\ne\nf\ng\n"  # all that was said is there
    assert taken == (len(kept), len("line\nno end"))
