"""Widgets as text, for places where no page draws them."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from typing import Any

StateOf = Callable[[str], dict[str, Any]]
"""A widget's state, by its id; empty if there is no such widget."""

_TAG = re.compile(r"<[^>]*>")
_BAR = 10
"""Characters of a progress bar."""


def wording(state_of: StateOf, model: str) -> str:
    """Describe a widget as it looks now; empty if it has no text."""
    state = state_of(model)
    name = str(state.get("_model_name", "")).removesuffix("Model")
    if isinstance(state.get("children"), list):
        parts = [wording(state_of, str(child).removeprefix("IPY_MODEL_")) for child in state["children"]]
        return ("\n" if name == "VBox" else " ").join(filter(None, parts))
    return _SAYINGS.get(name, _any)({**state, "name": name})


def _markup(state: dict[str, Any]) -> str:
    text = html.unescape(_TAG.sub("", str(state.get("value") or ""))).replace("\u2007", " ")
    return _described(state, text.strip())


def _described(state: dict[str, Any], text: str) -> str:
    return " ".join(filter(None, (str(state.get("description") or ""), text)))


def _any(state: dict[str, Any]) -> str:
    value = state.get("value")
    known = value is not None and not isinstance(value, bytes | memoryview)
    return f"{state.get('description') or state['name']}: {value}" if known else ""


def _progress(state: dict[str, Any]) -> str:
    least, most, value = (float(state.get(key) or 0) for key in ("min", "max", "value"))
    share = min(max((value - least) / (most - least), 0), 1) if most > least else 0
    done = int(share * _BAR + 1e-9)
    return _described(state, f"|{'█' * done}{' ' * (_BAR - done)}|")


def _output(output: dict[str, Any]) -> str:
    if "text" in output:
        return str(output["text"])
    if "traceback" in output:
        return "\n".join(map(str, output["traceback"])) + "\n"
    return bundle_text(output.get("data", {})) + "\n"


def bundle_text(data: dict[str, Any]) -> str:
    """Return the text of a MIME bundle."""
    text = data.get("text/plain", "")
    return ("".join(map(str, text)) if isinstance(text, list) else str(text)).removesuffix("\n")


_SAYINGS: dict[str, Callable[[dict[str, Any]], str]] = {
    "Button": lambda state: f"[{state.get('description') or ''}]",
    "FloatProgress": _progress,
    "HTML": _markup,
    "HTMLMath": _markup,
    "IntProgress": _progress,
    "Label": _markup,
    "Output": lambda state: "".join(map(_output, state.get("outputs") or ())).removesuffix("\n"),
}
