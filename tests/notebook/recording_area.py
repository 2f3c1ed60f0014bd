"""An area that keeps what is shown in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class RecordingArea:
    """It keeps the calls, and the outputs that a notebook would have at the end.

    Attributes:
        calls: the name and arguments of each call.
        outputs: as in a notebook file, with the ``display_id`` of each display.
    """

    def __init__(self, *, updates: bool = True) -> None:
        self.updates = self.comms = updates
        self.calls: list[tuple[Any, ...]] = []
        self.outputs: list[dict[str, Any]] = []
        self._clear_next = False

    def stream(self, name: str, text: str) -> None:
        """Show text as written to "stdout" or "stderr"."""
        self._begin("stream", name, text)
        if self.outputs and self.outputs[-1].get("name") == name:
            self.outputs[-1]["text"].append(text)
        else:
            self.outputs.append({"output_type": "stream", "name": name, "text": [text]})

    def display(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str = "") -> None:
        """Show a MIME bundle."""
        self._begin("display", data, metadata, display_id)
        self.outputs.append({"output_type": "display_data", "data": data, "metadata": metadata, "id": display_id})

    def update(self, data: dict[str, Any], metadata: dict[str, Any], display_id: str) -> None:
        """Replace what is shown under the ``display_id``."""
        self.calls.append(("update", data, metadata, display_id))
        for output in self.outputs:
            if output.get("id") == display_id:
                output.update(data=data, metadata=metadata)

    def clear(self, *, wait: bool) -> None:
        """Remove all output."""
        self.calls.append(("clear", wait))
        if wait:
            self._clear_next = True
        else:
            self.outputs.clear()

    def comm(self, kind: str, content: dict[str, Any], metadata: dict[str, Any], buffers: Sequence[bytes]) -> None:
        """Record a comm's message."""
        self.calls.append(("comm", kind, content, metadata, [*buffers]))

    def _begin(self, *call: Any) -> None:
        self.calls.append(call)
        if self._clear_next:
            self._clear_next = False
            self.outputs.clear()

    @property
    def shown(self) -> list[str]:
        """Each output as one string: text, or a display's MIME types and text."""
        return [
            "".join(output["text"])
            if output["output_type"] == "stream"
            else output["data"].get("text/plain", "")
            if set(output["data"]) <= {"text/plain"}
            else f"<{', '.join(f'{kind}={value}' for kind, value in sorted(output['data'].items()))}>"
            for output in self.outputs
        ]

    @property
    def text(self) -> str:
        """All that is shown, with a newline after each output that has none."""
        return "".join(text if not text or text.endswith("\n") else text + "\n" for text in self.shown)
