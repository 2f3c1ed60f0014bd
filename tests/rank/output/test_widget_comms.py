"""Comms of a rank's cells: what they say goes with the cell's output, and what the page says comes to them.

What is installed is installed in a forked child.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

import comm
import pytest
from comm.base_comm import BaseComm

from nbcomm.protocol import Clear, CommFromRank, CommToRank, Display, Item, Text
from nbcomm.rank.output import output_widget
from nbcomm.rank.output.capture import Capture
from nbcomm.rank.output.output_widget import Outlet
from nbcomm.rank.output.widget_comms import Comms

from .test_capture import in_child

pytestmark = pytest.mark.ranks


def installed(capture: Capture) -> Comms:
    """The comms of a rank, with nobody beside them."""
    comm.create_comm = lambda *args, **kwargs: "another's"
    comms = Comms(capture, object())
    comms.install()
    return comms


def said(capture: Capture, *, end: bool = False) -> list[Any]:
    """What comms and streams have said, as tuples that can be compared."""
    return [_told(item) for _, items in capture.take(end=end) for item in items]


def _told(item: Item) -> Any:
    if isinstance(item, CommFromRank):
        state = item.data.get("state", {})
        return item.kind, item.data.get("method", ""), {key: state[key] for key in state if key[0] != "_"}, item.late
    assert isinstance(item, Text)
    return item.text, item.late


def hear(comms: Comms, name: str, kind: str = "msg", buffers: list[bytes] | None = None, **data: Any) -> None:
    assert comms.put(CommToRank(kind, name, data, {}, buffers or []))
    comms.handle()


def test_a_widget_is_opened_among_what_its_cell_prints() -> None:
    def body(capture: Capture) -> Any:
        import ipywidgets

        installed(capture)
        with capture.of_run(1):
            print("before")
            label = ipywidgets.Label("text")
            print("after")
            label.value = "new"
        ((run, items),) = capture.take(end=True)
        opened = [item for item in items if isinstance(item, CommFromRank) and item.kind == "open"]
        kinds = [type(item).__name__ for item in items]
        last = items[-1]
        return run, kinds, opened[-1].target, opened[-1].data["state"]["value"], last.data, last.comm == label.model_id

    run, kinds, target, value, last, same = in_child(body)
    assert run == 1
    assert kinds == [
        "Text",
        *["CommFromRank"] * 3,
        "Text",
        "CommFromRank",
    ]  # its layout, style, itself; a new value
    assert (target, value) == ("jupyter.widget", "text")
    assert last == {"method": "update", "state": {"value": "new"}, "buffer_paths": []}
    assert same


def test_code_of_no_cell_keeps_the_comms_that_it_had() -> None:
    def body(capture: Capture) -> Any:
        comms = installed(capture)
        with capture.of_run(1):
            mine = comm.create_comm(target_name="mine")
        return comm.create_comm(), isinstance(mine, BaseComm), comms.names() == [mine.comm_id]

    assert in_child(body) == ("another's", True, True)


def test_of_updates_that_wait_the_last_values_are_sent_and_none_passes_an_opening() -> None:
    def body(capture: Capture) -> Any:
        import ipywidgets

        installed(capture)
        with capture.of_run(1):
            slider = ipywidgets.IntSlider()
            capture.take()
            for value in range(1, 50):
                slider.value = value
            slider.max = 200
            box = comm.create_comm(target_name="box", data={"state": {"child": 1}})
            slider.value = 150
            box.send({"method": "custom"}, buffers=[memoryview(b"raw")])
            slider.value = 151
            return said(capture)

    assert in_child(body) == [
        ("msg", "update", {"value": 49, "max": 200}, False),
        ("open", "", {"child": 1}, False),
        ("msg", "update", {"value": 150}, False),
        ("msg", "custom", {}, False),
        ("msg", "update", {"value": 151}, False),
    ]


def test_what_the_page_sets_is_set_and_what_that_prints_belongs_to_the_widgets_cell() -> None:
    def body(capture: Capture) -> Any:
        import ipywidgets

        comms = installed(capture)
        with capture.of_run(1):
            slider = ipywidgets.IntSlider()
            slider.observe(lambda change: print("now", change["new"]), "value")
        capture.take(end=True)
        with capture.of_run(2):
            pass
        capture.take(end=True)
        hear(comms, slider.model_id, method="update", state={"value": 7}, buffer_paths=[])
        hear(comms, "nobody", method="update", state={})
        return slider.value, capture.take()

    value, taken = in_child(body)
    assert value == 7
    assert taken == [(1, [Text("stdout", "now 7\n", late=True)])]


def test_whatever_a_callback_raises_is_shown_and_ends_nothing() -> None:
    def body(capture: Capture) -> Any:
        def fail(message: Any) -> None:
            raise KeyError(message["content"]["data"]["key"])

        def leave(message: Any) -> None:
            sys.exit(3)

        def stop(message: Any) -> None:
            raise KeyboardInterrupt

        comms = installed(capture)
        with capture.of_run(1):
            made = comm.create_comm()
        made.on_msg(fail)
        capture.take(end=True)
        hear(comms, made.comm_id, key="lost")
        made.on_msg(leave)
        hear(comms, made.comm_id)
        made.on_msg(stop)
        hear(comms, made.comm_id)
        hear(comms, made.comm_id, "close")
        ((_, items),) = capture.take()
        return [item.text for item in items], comms.names()

    (text,), names = in_child(body)
    assert "KeyError: 'lost'" in text
    assert text.endswith("SystemExit: 3\nKeyboardInterrupt\n")
    assert names == []


def test_of_what_waits_in_a_row_for_a_widget_the_last_values_count() -> None:
    def body(capture: Capture) -> Any:
        comms, heard = installed(capture), []
        with capture.of_run(1):
            one, other = comm.create_comm(), comm.create_comm()
        for made in (one, other):
            made.on_msg(lambda message: heard.append(message["content"]["data"]))

        def put(made: Any, buffers: list[bytes] | None = None, method: str = "update", **state: Any) -> bool:
            return comms.put(CommToRank("msg", made.comm_id, {"method": method, "state": state}, {}, buffers or []))

        counted = [put(one, value=1), put(one, value=2, max=5), put(other, value=3), put(one, value=4)]
        comms.fence()
        counted += [put(one, value=5), put(one, [b"raw"]), put(one, method="custom"), put(one, value=6)]
        for _ in range(sum(counted)):
            comms.handle()
        return counted, [data["state"] for data in heard]

    counted, states = in_child(body)
    assert counted == [True, False, True, True, True, True, True, True]
    assert states == [{"value": 2, "max": 5}, {"value": 3}, {"value": 4}, {"value": 5}, {}, {}, {"value": 6}]


def test_what_is_shown_in_an_output_widget_is_its_state() -> None:
    def body(capture: Capture) -> Any:
        import ipywidgets

        installed(capture)
        with capture.of_run(1):
            out = ipywidgets.Output()
            capture.take()
            out.msg_id = "the cell's"  # as `with out:` does
            print("in")
            print("it")
            inside = threading.Thread(target=print, args=("from its thread",))
            inside.start()
            inside.join()
            capture.show(1, Display({"text/plain": "shown", "n": {1, 2}}, display_id="d"))
            capture.show(1, Display({"text/plain": "anew"}, display_id="d", update=True))
            print("bad", file=sys.stderr)
            failed = capture.fail("KeyError", "'lost'", ["line"])
            out.msg_id = ""
            print("out of it")
            return out.outputs, failed, capture.fail("KeyError", "", []), said(capture)

    outputs, inside, outside, told = in_child(body)
    assert outputs == (
        {"output_type": "stream", "name": "stdout", "text": "in\nit\nfrom its thread\n"},
        {"output_type": "display_data", "data": {"text/plain": "anew"}, "metadata": {}},
        {"output_type": "stream", "name": "stderr", "text": "bad\n"},
        {"output_type": "error", "ename": "KeyError", "evalue": "'lost'", "traceback": ["line"]},
    )
    assert (inside, outside) == (True, False)
    assert told == [("msg", "update", {"outputs": outputs}, False), ("out of it\n", False)]


def test_an_output_widget_shows_what_it_has_while_it_is_open() -> None:
    def body(capture: Capture) -> Any:
        import ipywidgets

        installed(capture)
        with capture.of_run(1):
            out = ipywidgets.Output()
            out.msg_id = "the cell's"
            capture.take()
            seen = []
            for i in range(100_000):
                print("\r", i, end="")
                seen += said(capture)
                if seen:
                    break
            shown = seen[-1][2]["outputs"]
            out.msg_id = ""  # nothing has come since: the widget has it all the same
            assert list(out.outputs) == list(shown)
            out.msg_id = "the cell's"
            print("\rend")
            out.msg_id = ""
            return seen, said(capture)[-1:]

    (first,), (last,) = in_child(body)
    assert first[2]["outputs"][0]["text"].count("\r") <= 1  # of many states of a bar the last one
    assert last[2]["outputs"][0]["text"].endswith("\rend\n")


def test_what_a_thread_shows_while_an_output_widget_closes_is_in_the_widget_or_in_the_cell() -> None:
    def body(capture: Capture) -> Any:
        import ipywidgets

        installed(capture)
        lock, arrived = capture.lock, threading.Event()

        class Lock:
            def __enter__(self) -> None:
                arrived.set()
                lock.acquire()

            def __exit__(self, *_: object) -> None:
                lock.release()

        with capture.of_run(1):
            out = ipywidgets.Output()
            out.msg_id = "the cell's"
            thread = threading.Thread(target=print, args=("from its thread",))
            capture.lock = Lock()  # type: ignore[assignment]
            with lock:
                arrived.clear()
                thread.start()
                assert arrived.wait(30)
                out.msg_id = ""
            thread.join()
            capture.lock = lock
            return out.outputs, said(capture)[-1:]

    assert in_child(body) == ((), [("from its thread\n", False)])


def test_an_output_widget_left_open_takes_nothing_of_the_next_cell() -> None:
    def body(capture: Capture) -> Any:
        import ipywidgets

        installed(capture)
        with capture.of_run(1):
            out = ipywidgets.Output()
            out.msg_id = "the cell's"
        capture.take(end=True)
        with capture.of_run(2):
            print("next")
        return [item for run, items in capture.take(end=True) if run == 2 for item in items]

    assert in_child(body) == [Text("stdout", "next\n")]


def test_a_forked_child_says_nothing_for_its_parents_widgets() -> None:
    def body(capture: Capture) -> Any:
        import ipywidgets

        installed(capture)
        with capture.of_run(1):
            slider = ipywidgets.IntSlider()
            capture.take()
            pid = os.fork()
            if pid == 0:
                slider.value = 5
                os._exit(len(capture.take()))
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert in_child(body) == 0


@pytest.mark.parametrize("wait", [False, True])
def test_an_outlet_clears(wait: bool) -> None:
    outlet = Outlet([{"output_type": "stream", "name": "stdout", "text": "old\n"}])
    outlet.take(Text("stdout", "more\n"))
    outlet.take(Clear(wait))
    assert bool(outlet.outputs) == wait
    outlet.take(Text("stdout", "new\n"))
    assert [output["text"] for output in outlet.outputs] == ["new\n"]


def test_of_nested_outlets_the_inner_takes_it_and_a_closed_one_never() -> None:
    outer, inner = Outlet(), Outlet()
    outer.open()
    inner.open()
    assert output_widget.current() is inner
    outer.close()
    assert output_widget.current() is inner
    inner.close()
    assert output_widget.current() is None
