"""What a console has no characters for is written all the same."""

from __future__ import annotations

import contextlib
import io
import time

from nbcomm.console import write
from nbcomm.notebook.display.area import TerminalArea
from nbcomm.panel import Panel, RankView


class Poor(io.TextIOWrapper):
    """A console that knows ASCII only."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="ascii", write_through=True)

    @property
    def shown(self) -> str:
        """What has arrived there."""
        return self.buffer.getvalue().decode()  # type: ignore[attr-defined, no-any-return]


def test_what_is_unknown_becomes_a_question_mark() -> None:
    poor, rich = Poor(), io.StringIO()
    for stream in (poor, rich):
        write(stream, "a – b\n")
    assert (poor.shown, rich.getvalue()) == ("a ? b\n", "a – b\n")


def test_output_and_the_panel_are_shown_in_a_poor_console() -> None:
    with contextlib.redirect_stdout(Poor()) as poor:
        TerminalArea().stream("stdout", "über\n")
        Panel("4 ranks", "gloo", [RankView(0, state="idle", since=time.time())]).show()
    assert poor.shown.startswith("?ber\n4 ranks ? ")
