"""Worlds in which the others run beside nbcomm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import nbcomm
from nbcomm.notebook.session.session import Session


@pytest.fixture(scope="package")
def four() -> Iterator[Session]:
    """Four real ranks, as a notebook has them."""
    with nbcomm.start(4) as session:
        yield session


@pytest.fixture(scope="package")
def one() -> Iterator[Session]:
    """A world of one rank."""
    with nbcomm.start(1) as session:
        yield session
