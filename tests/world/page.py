"""A notebook's page for tests of widgets: it knows the models that the kernel has opened, and speaks to them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from .notebook import Cell, Notebook, started

VIEW = "application/vnd.jupyter.widget-view+json"


class Page(Notebook):
    """A kernel, its cells, and what its comms say.

    Attributes:
        models: each open model's state, by its id.
        said: every comm message: its kind, the id, its data, buffers, and the cell that it belongs to.
    """

    def __init__(self, directory: str, **environment: str) -> None:
        self.models: dict[str, dict[str, Any]] = {}
        self.said: list[tuple[str, str, dict[str, Any], list[bytes], str]] = []
        super().__init__(directory, **environment)

    def _connect(self) -> None:
        super()._connect()
        self.models.clear()
        self.said.clear()

    def _take(self, message: dict[str, Any]) -> None:
        super()._take(message)
        kind, _, name = message["msg_type"].partition("_")
        if kind != "comm":
            return
        comm, data = message["content"]["comm_id"], message["content"].get("data", {})
        buffers = [bytes(buffer) for buffer in message["buffers"]]
        self.said.append((name, comm, data, buffers, message["parent_header"].get("msg_id", "")))
        if name == "open":
            self.models[comm] = dict(data.get("state", {}))
        elif name == "close":
            self.models.pop(comm, None)
        elif data.get("method") in {"update", "echo_update"} and comm in self.models:
            self.models[comm].update(data["state"])

    def tell(self, comm: str, data: dict[str, Any], buffers: Sequence[bytes] = ()) -> str:
        """Say something to a comm."""
        message = self.client.session.msg("comm_msg", {"comm_id": comm, "data": data})
        self.client.session.send(self.client.shell_channel.socket, message, buffers=[*buffers])
        return str(message["header"]["msg_id"])

    def set(self, comm: str, **state: Any) -> None:
        """Set traits, as a control does that is moved."""
        self.tell(comm, {"method": "update", "state": state, "buffer_paths": []})

    def custom(self, comm: str, content: dict[str, Any], buffers: Sequence[bytes] = ()) -> None:
        """Send a message of a widget's own kind."""
        self.tell(comm, {"method": "custom", "content": content}, buffers)

    def click(self, comm: str) -> None:
        """Press a button."""
        self.custom(comm, {"event": "click"})

    def all_states(self) -> dict[str, Any]:
        """Ask for all widgets, as a page does that is loaded again."""
        comm = f"control-{time.monotonic_ns()}"
        content = {"comm_id": comm, "target_name": "jupyter.widget.control", "data": {}}
        message = self.client.session.msg("comm_open", content, metadata={"version": "1.0.0"})
        self.client.session.send(self.client.shell_channel.socket, message)
        self.tell(comm, {"method": "request_states"})
        answers: list[dict[str, Any]] = []

        def answered() -> bool:
            answers[:] = [data for _, of, data, *_ in self.said if of == comm and data.get("method") == "update_states"]
            return bool(answers)

        self.until(answered, 20, "the control comm did not answer")
        return dict(answers[0]["states"])

    def named(self, name: str, **state: Any) -> list[str]:
        """The ids of the open models of this name and state."""
        return [
            comm
            for comm, known in self.models.items()
            if known.get("_model_name") == f"{name}Model" and all(known.get(key) == state[key] for key in state)
        ]

    def rows(self, cell: Cell) -> list[dict[str, str]]:
        """The blocks of widgets in a cell's output: of each, the model beside each label."""
        blocks = []
        for output in cell.outputs:
            if VIEW in output.get("data", {}):
                grid = self.models[output["data"][VIEW]["model_id"]]
                parts = [part.removeprefix("IPY_MODEL_") for part in grid["children"]]
                blocks.append(
                    {self.models[of]["value"]: part for of, part in zip(parts[::2], parts[1::2], strict=True)}
                )
        return blocks


def page_with_ranks(folder: Path, ranks: int = 4, **environment: str) -> AbstractContextManager[Page]:
    """A page in a folder, with ranks on the CPU; its kernel is shut down in the end."""
    return started(Page(str(folder), **environment), ranks)
