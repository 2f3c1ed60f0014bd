"""What help shows of nbcomm's functions: no annotation stands in quotes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, get_type_hints

import pytest

import nbcomm
from nbcomm.annotations import as_written
from nbcomm.cell_names import METHODS
from nbcomm.comm import Communicator
from nbcomm.comm.transport.async_lanes import Handle
from nbcomm.fabric import Fabric
from nbcomm.notebook.session.session import Session
from nbcomm.pictures.picture import Picture


def public() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Everything with a signature that a user can ask for."""
    for name in nbcomm.__all__:
        if inspect.isfunction(getattr(nbcomm, name)):
            yield name, getattr(nbcomm, name)
    for kind in (Communicator, Fabric, Handle, Picture, Session):
        for name, member in inspect.getmembers(kind, callable):
            if name[0] != "_" or name == "__init__":
                yield f"{kind.__name__}.{name}", member


@pytest.mark.parametrize(("name", "shown"), [*public()], ids=lambda each: each if isinstance(each, str) else "")
def test_no_signature_has_an_annotation_in_quotes(name: str, shown: Callable[..., Any]) -> None:
    signature = inspect.signature(shown)
    kinds = [each.annotation for each in signature.parameters.values()] + [signature.return_annotation]
    quoted = [text for text in kinds if isinstance(text, str) and repr(text) != text]
    assert not quoted, f"{name}{signature}"


def test_every_name_of_a_cell_is_among_them() -> None:
    assert {f"Communicator.{name}" for name in METHODS} <= {name for name, _ in public()}


def test_annotations_can_still_be_resolved() -> None:
    @as_written
    def function(data: int, *more: Any) -> list[str]:
        return [str(data), *more]

    assert str(inspect.signature(function)) == "(data: int, *more: Any) -> list[str]"
    assert get_type_hints(function) == {"data": int, "more": Any, "return": list[str]}
