"""Widgets of ranks in the notebook: kept, passed on both ways, shown in one block, and gone with their world."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import comm
import ipywidgets
import pytest

from nbcomm.notebook.display.area import TerminalArea
from nbcomm.notebook.widgets.as_text import wording
from nbcomm.notebook.widgets.comm_ends import WidgetCommEnd
from nbcomm.notebook.widgets.mirrors import Mirrors
from nbcomm.protocol import CommFromRank, CommToRank, Display, Item, Text

from ..cells import Cell
from ..recording_area import RecordingArea

VIEW = "application/vnd.jupyter.widget-view+json"
CONTROLS = {"_model_module": "@jupyter-widgets/controls", "_model_module_version": "2.0.0"}


class Known:
    """Mirrors with a page and a clock of their own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.area = RecordingArea()
        self.told: list[tuple[int, CommToRank]] = []
        self.mirrors = Mirrors(lambda rank, heard: self.told.append((rank, heard)), lambda: self.now)

    def hear(self, rank: int, *items: Item) -> list[Item]:
        return self.mirrors.hear(rank, [*items], self.area)

    @property
    def sent(self) -> list[tuple[str, dict[str, Any]]]:
        """What the page was told of comms: the kind, and the data."""
        return [(call[1], call[2]["data"]) for call in self.area.calls if call[0] == "comm"]

    def values(self, name: str) -> list[Any]:
        """The values of one widget that the page was told, since it was opened."""
        said = [call[2] for call in self.area.calls if call[:2] == ("comm", "msg")]
        return [each["data"]["state"]["value"] for each in said if each["comm_id"] == name]

    def page_says(self, name: str, data: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        message = {"content": {"comm_id": name, "data": data}, "metadata": {}, "buffers": buffers or []}
        comm.get_comm_manager().comm_msg(None, "", message)


@pytest.fixture
def known() -> Iterator[Known]:
    """Mirrors that leave no widget behind."""
    before = set(ipywidgets.widgets.widget._instances)
    made = Known()
    yield made
    made.mirrors.close()
    assert set(ipywidgets.widgets.widget._instances) == before


def opened(name: str, kind: str = "IntSlider", buffers: list[bytes] | None = None, **state: Any) -> CommFromRank:
    """A rank opens a widget."""
    paths = state.pop("buffer_paths", [])
    full = {"_model_name": f"{kind}Model", "_view_name": f"{kind}View", **CONTROLS, **state}
    data = {"state": full, "buffer_paths": paths}
    return CommFromRank("open", name, data, {"version": "2.1.0"}, "jupyter.widget", buffers or [])


def updated(name: str, **state: Any) -> CommFromRank:
    return CommFromRank("msg", name, {"method": "update", "state": state, "buffer_paths": []})


def view(name: str, **options: Any) -> Display:
    data = {"text/plain": f"Widget({name})", VIEW: {"model_id": name, "version_major": 2, "version_minor": 0}}
    return Display(data, **options)


def test_a_widget_of_a_rank_is_a_widget_of_the_notebook(known: Known) -> None:
    rest = known.hear(1, Text("stdout", "a"), opened("w1", value=3), Text("stdout", "b"))
    assert rest == [Text("stdout", "a"), Text("stdout", "b")]
    widget = known.mirrors.widget("w1")
    assert isinstance(widget, ipywidgets.Widget)
    assert widget.model_id == "w1"
    embedded = ipywidgets.Widget.get_manager_state(widgets=[widget])["state"]["w1"]
    assert embedded["model_name"] == "IntSliderModel"
    assert embedded["model_module"] == "@jupyter-widgets/controls"
    assert embedded["state"]["value"] == 3
    ((_, kind, content, metadata, _),) = known.area.calls
    assert (kind, content["target_name"], metadata) == ("open", "jupyter.widget", {"version": "2.1.0"})


def test_what_the_rank_says_is_kept_and_passed_on(known: Known) -> None:
    known.hear(
        0, opened("w1", value=3), updated("w1", value=4), CommFromRank("msg", "w1", {"method": "custom", "content": 1})
    )
    assert known.mirrors.state("w1")["value"] == 4
    assert [data.get("method") for _, data in known.sent] == [None, "update", "custom"]
    known.hear(0, updated("nobody", value=4), CommFromRank("close", "nobody"))
    assert len(known.sent) == 3


def test_what_the_page_says_is_passed_on_echoed_and_kept(known: Known) -> None:
    known.hear(2, opened("w1", value=3))
    said = {"method": "update", "state": {"value": 9}, "buffer_paths": []}
    known.page_says("w1", said)
    assert known.told == [(2, CommToRank("msg", "w1", said))]
    assert known.sent[-1] == ("msg", {"method": "echo_update", "state": {"value": 9}, "buffer_paths": []})
    assert known.mirrors.state("w1")["value"] == 9
    known.page_says("w1", {"method": "custom", "content": {"event": "click"}}, [memoryview(b"raw")])
    assert known.told[-1] == (
        2,
        CommToRank("msg", "w1", {"method": "custom", "content": {"event": "click"}}, {}, [b"raw"]),
    )


def test_what_the_page_asks_for_is_answered_here(known: Known) -> None:
    known.hear(2, opened("w1", value=3))
    known.page_says("w1", {"method": "request_state"})
    assert known.told == []
    assert known.sent[-1][1]["state"]["value"] == 3


def test_binary_parts_stand_in_their_places_and_travel_apart(known: Known) -> None:
    raw = {"buffer_paths": [["pixels"], ["deep", 1]], "deep": [0, None]}
    known.hear(0, opened("w1", buffers=[b"ab", b"cd"], **raw))
    assert known.mirrors.state("w1")["pixels"] == b"ab"
    assert known.mirrors.state("w1")["deep"] == [0, b"cd"]
    assert known.area.calls[0][4] == [b"ab", b"cd"]
    known.page_says("w1", {"method": "request_state"})
    assert sorted(known.area.calls[-1][4]) == [b"ab", b"cd"]


def test_a_comm_of_another_target_has_its_other_half(known: Known) -> None:
    known.hear(3, CommFromRank("open", "c1", {"hello": 1}, {}, "mine"))
    known.page_says("c1", {"any": "thing"})
    assert known.told == [(3, CommToRank("msg", "c1", {"any": "thing"}))]
    comm.get_comm_manager().comm_close(None, "", {"content": {"comm_id": "c1"}, "metadata": {}})
    assert known.told[-1] == (3, CommToRank("close", "c1"))
    known.hear(3, CommFromRank("msg", "c1", {"too": "late"}))
    assert known.sent == [("open", {"hello": 1})]


def test_a_page_that_knows_no_widgets_and_closes_them_leaves_them_to_others(known: Known) -> None:
    cell = shown_in(known)
    known.hear(0, opened("w0", value=3))
    cell.feed(0, view("w0"))
    comm.get_comm_manager().comm_close(None, "", {"content": {"comm_id": "w0"}, "metadata": {}})
    cell.output.close()
    assert grid(cell) == ["[0]", "w0"]
    assert cell.area.outputs[0]["data"]["text/plain"] == "[0] IntSlider: 3"
    known.page_says("w0", {"method": "update", "state": {"value": 4}})
    assert known.told == [(0, CommToRank("msg", "w0", {"method": "update", "state": {"value": 4}}))]


def test_a_closed_widget_is_closed_everywhere(known: Known) -> None:
    known.hear(0, opened("w1"), CommFromRank("close", "w1"), updated("w1", value=1))
    assert known.mirrors.widget("w1") is None
    assert known.mirrors.has_closed("w1")
    assert known.sent[-1] == ("close", {})
    known.page_says("w1", {"method": "custom"})
    assert known.told == []


def test_a_widget_that_is_opened_once_more_has_its_new_state(known: Known) -> None:
    known.hear(0, opened("w1", value=1), opened("w1", value=2))
    assert known.mirrors.state("w1")["value"] == 2
    assert known.sent[-1][1]["method"] == "update"


def test_more_values_than_a_server_lets_through_are_held_back_and_the_last_ones_come(known: Known) -> None:
    known.hear(0, *(opened(f"w{i}") for i in range(3)))
    for value in range(2000):
        known.hear(0, *(updated(f"w{i}", value=value) for i in range(3)))
    assert len(known.sent) < 1000
    known.mirrors.release()
    last = {call[2]["comm_id"]: call[2]["data"]["state"] for call in known.area.calls if call[1] == "msg"}
    assert last == {f"w{i}": {"value": 1999} for i in range(3)}
    known.now += 10
    before = len(known.sent)
    known.hear(0, updated("w0", value=5))
    assert len(known.sent) == before + 1


def test_a_held_back_value_that_cannot_be_sent_is_lost_alone(
    known: Known, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    plain, failed = WidgetCommEnd.send, threading.Event()

    def send(end: WidgetCommEnd, data: dict[str, Any]) -> None:
        if threading.current_thread().name == "nbcomm-widgets" and not failed.is_set():
            failed.set()
            raise SystemExit
        plain(end, data)

    known.hear(0, opened("w0"), opened("w1"))
    monkeypatch.setattr(WidgetCommEnd, "send", send)
    for value in range(1000):
        known.hear(0, updated("w0", value=value), updated("w1", value=value))
    assert failed.wait(20)
    deadline = time.monotonic() + 20
    while known.values("w1")[-1:] != [999]:  # on a busy machine values are sent before the last is held back, too
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert known.mirrors.state("w1")["value"] == 999
    assert known.sent[-1][1]["state"] == {"value": 999}


def test_what_is_held_back_comes_before_what_must_follow_it(known: Known) -> None:
    known.hear(0, opened("w1"))
    for value in range(1000):
        known.hear(0, updated("w1", value=value))
    known.hear(0, CommFromRank("msg", "w1", {"method": "custom", "content": "done"}))
    assert [data.get("state", {}).get("value") for _, data in known.sent[-2:]] == [999, None]


def test_where_there_is_no_page_nothing_is_opened(known: Known) -> None:
    assert known.mirrors.hear(0, [opened("w1"), Text("stdout", "a")], TerminalArea()) == [Text("stdout", "a")]
    assert known.mirrors.widget("w1") is None


def test_a_world_that_stops_takes_its_widgets_along(known: Known) -> None:
    known.hear(0, opened("w1"), opened("w2"), CommFromRank("open", "c1", target="mine"))
    known.mirrors.close()
    known.mirrors.close()
    assert [kind for kind, _ in known.sent] == ["open", "open", "open", "close", "close", "close"]
    known.hear(0, opened("w3"))
    assert known.mirrors.widget("w3") is None


# ── blocks ──────────────────────────────────────────────────────────────────────────────────────────


def shown_in(known: Known, ranks: int = 2, **options: Any) -> Cell:
    """A cell that shows on the page of these mirrors."""
    cell = Cell(range(ranks), **options)
    cell.output.widgets = known.mirrors
    known.area = cell.area
    return cell


def grid(cell: Cell, output: int = 0) -> list[Any]:
    """The children of a block: its labels as text, the ranks' widgets by their ids."""
    model = cell.area.outputs[output]["data"][VIEW]["model_id"]
    children = ipywidgets.widgets.widget._instances[model].children
    return [child.value if isinstance(child, ipywidgets.Label) else child.model_id for child in children]


def test_ranks_share_a_block_that_grows_as_they_come(known: Known) -> None:
    cell = shown_in(known)
    known.hear(1, opened("w1", value=1))
    cell.feed(1, view("w1"))
    cell.tick(1)
    assert grid(cell) == ["[1]", "w1"]
    known.hear(0, opened("w0", value=0))
    cell.feed(0, view("w0"))
    cell.tick(0.3)
    assert grid(cell) == ["[0]", "w0", "[1]", "w1"]
    cell.output.close()
    assert len(cell.area.outputs) == 1
    assert cell.area.outputs[0]["data"]["text/plain"] == "[0] IntSlider: 0\n[1] IntSlider: 1"


def test_widgets_of_different_kinds_have_blocks_of_their_own(known: Known) -> None:
    cell = shown_in(known)
    known.hear(0, opened("a0", "Button"), opened("b0"))
    known.hear(1, opened("b1"))
    cell.feed(0, view("a0"), view("b0"))
    cell.feed(1, view("b1"))
    cell.output.close()
    assert [grid(cell, i) for i in range(2)] == [["[0]", "a0"], ["[0]", "b0", "[1]", "b1"]]


def test_where_nothing_is_folded_each_rank_has_its_block(known: Known) -> None:
    cell = shown_in(known, fold=False)
    for rank in range(2):
        known.hear(rank, opened(f"w{rank}"))
        cell.feed(rank, view(f"w{rank}"))
    cell.output.close()
    assert [grid(cell, i) for i in range(2)] == [["[0]", "w0"], ["[1]", "w1"]]


def test_the_row_of_a_closed_widget_goes_and_the_last_one_takes_the_block_along(known: Known) -> None:
    cell = shown_in(known)
    for rank in range(2):
        known.hear(rank, opened(f"w{rank}", value=rank))
        cell.feed(rank, view(f"w{rank}"))
    cell.tick()
    known.hear(0, CommFromRank("close", "w0"))
    assert grid(cell) == ["[1]", "w1"]
    known.hear(1, CommFromRank("close", "w1"))
    assert cell.area.outputs[0]["data"] == {}
    known.hear(0, opened("w2"), CommFromRank("close", "w2"))
    cell.feed(0, view("w2"))  # it came and went before anybody looked
    cell.output.close()
    assert cell.area.text == ""


def test_a_widget_that_nobody_knows_is_text_also_beside_others(known: Known) -> None:
    cell = shown_in(known)
    cell.feed(0, view("unknown"))
    cell.output.close()
    assert cell.area.outputs[0]["data"] == {"text/plain": "[0] Widget(unknown)"}


@pytest.mark.parametrize("made", [0, 2])  # before the grid, and before the first label
def test_a_block_that_cannot_be_made_is_text(known: Known, monkeypatch: pytest.MonkeyPatch, made: int) -> None:
    cell = shown_in(known)
    create, left = comm.create_comm, iter(range(made))

    def refuse(*args: Any, **keys: Any) -> Any:
        if next(left, None) is None:
            raise RuntimeError("no comms here")
        return create(*args, **keys)

    with monkeypatch.context() as patch:
        patch.setattr(comm, "create_comm", refuse)
        for rank in range(2):
            known.hear(rank, opened(f"w{rank}", value=rank))
            cell.feed(rank, view(f"w{rank}"))
        cell.feed(0, Text("stdout", "and more\n"))
        cell.output.close()
    assert cell.area.text == "[0] IntSlider: 0\n[1] IntSlider: 1\n[0] and more\n"
    assert VIEW not in str(cell.area.outputs)


def test_a_terminal_shows_text(known: Known) -> None:
    cell = shown_in(known, updates=False)
    for rank in range(2):
        known.hear(rank, opened(f"w{rank}", value=rank))
        cell.feed(rank, view(f"w{rank}"))
    cell.output.close()
    assert [output["data"] for output in cell.area.outputs] == [{"text/plain": "[0] Widget(w0)\n[1] Widget(w1)"}]


def test_a_cleared_cell_closes_its_blocks_and_not_the_ranks_widgets(known: Known) -> None:
    from nbcomm.protocol import Clear

    cell = shown_in(known)
    for rank in range(2):
        known.hear(rank, opened(f"w{rank}"))
        cell.feed(rank, view(f"w{rank}"))
    cell.tick()
    cell.feed(0, Clear(), view("w0"))
    cell.output.close()
    assert sorted(grid(cell)) == ["[0]", "[1]", "w0", "w1"]


def test_a_late_widget_says_so(known: Known) -> None:
    cell = shown_in(known)
    cell.output.close()
    known.hear(1, opened("w1", value=5))
    cell.feed(1, view("w1", late=True))
    assert grid(cell) == ["[1] (late)", "w1"]
    assert cell.area.outputs[0]["data"]["text/plain"] == "[1] (late) IntSlider: 5"


def test_a_world_that_stops_leaves_text(known: Known) -> None:
    cell = shown_in(known)
    known.hear(0, opened("w0", value=1))
    cell.feed(0, view("w0"))
    cell.output.close()
    known.hear(0, updated("w0", value=8))
    known.mirrors.close()
    assert cell.area.outputs[0]["data"] == {"text/plain": "[0] IntSlider: 8"}


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({"_model_name": "FloatProgressModel", "min": 0, "max": 4, "value": 1}, "|██        |"),
        ({"_model_name": "IntProgressModel", "description": "p", "min": 0, "max": 0, "value": 1}, "p |          |"),
        ({"_model_name": "HTMLModel", "value": "<b>a\u2007&lt; b</b>"}, "a < b"),
        ({"_model_name": "ButtonModel", "description": "go"}, "[go]"),
        ({"_model_name": "TextModel", "value": "", "description": "name"}, "name: "),
        ({"_model_name": "AnyModel", "value": b"raw"}, ""),
        ({"_model_name": "OutputModel", "outputs": [{"text": "a\n"}, {"data": {"text/plain": ["b", "c"]}}]}, "a\nbc"),
        ({"_model_name": "VBoxModel", "children": ["IPY_MODEL_x", "IPY_MODEL_none", "IPY_MODEL_x"]}, "[x]\n[x]"),
        ({}, ""),
    ],
)
def test_widgets_in_words(state: dict[str, Any], text: str) -> None:
    states = {"it": state, "x": {"_model_name": "ButtonModel", "description": "x"}}
    assert wording(lambda name: states.get(name, {}), "it") == text


def test_no_more_is_kept_than_a_page_can_use(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbcomm.notebook.widgets.mirrors._MOST", 3)
    monkeypatch.setattr("nbcomm.notebook.widgets.mirrors._BLOCKS", 2)
    cell = shown_in(known, 1)
    for i in range(4):
        known.hear(0, opened(f"w{i}", value=i))
        cell.feed(0, view(f"w{i}"))
        cell.tick(0.2)
    cell.output.close()
    assert [known.mirrors.widget(f"w{i}") is None for i in range(4)] == [True, False, False, False]
    assert [VIEW in output["data"] for output in cell.area.outputs] == [False, False, True, True]
    assert "close" not in [call[1] for call in known.area.calls if call[0] == "comm" and call[2]["comm_id"] == "w0"]
    known.hear(0, updated("w0", value=9))
    known.page_says("w0", {"method": "custom"})
    assert known.told == []


def test_a_block_can_be_asked_for_a_widget_that_is_kept_no_longer(
    known: Known, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbcomm.notebook.widgets.mirrors._MOST", 1)
    cell = shown_in(known, 1)
    known.hear(0, opened("w0"))
    cell.feed(0, view("w0"))
    cell.output.close()
    known.hear(0, opened("w1"))
    block = ipywidgets.widgets.widget._instances[cell.area.outputs[0]["data"][VIEW]["model_id"]]
    assert block.get_state()["children"][1] == "IPY_MODEL_w0"


def test_a_widget_that_the_notebook_closes_is_closed(known: Known) -> None:
    known.hear(0, opened("w1"))
    known.mirrors.widget("w1").close()
    assert known.mirrors.has_closed("w1")
    assert known.sent[-1] == ("close", {})
