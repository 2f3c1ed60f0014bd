"""What is kept in reserve is there when it is needed, and kept again after that."""

from __future__ import annotations

import errno
import os
import resource
from contextlib import suppress

import pytest

from nbcomm.errors import StateError
from nbcomm.reserve import Reserve


def test_a_command_that_finds_no_descriptor_says_so() -> None:
    reserve = Reserve()
    said = r"^Nothing more can be opened: all \d+ files .* this notebook may have"
    with pytest.raises(StateError, match=said), reserve.telling():
        raise OSError(errno.EMFILE, "Too many open files")
    with pytest.raises(PermissionError), reserve.telling():
        raise OSError(errno.EACCES, "not yours")
    while reserve._kept:
        os.close(reserve._kept.pop())


def test_a_command_is_lent_it_only_where_few_are_left() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserve, held = Reserve(), []
    kept = [*reserve._kept]
    try:
        with reserve.telling():
            assert reserve._kept == kept  # as for most cells
        resource.setrlimit(resource.RLIMIT_NOFILE, (100 + max(kept), before[1]))
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        for _ in range(10):
            os.close(held.pop())
        with reserve.telling():
            assert reserve._kept == []
        assert len(reserve._kept) >= 40
        os.close(held.pop(0))  # a low number is free, and hardly another one
        with reserve.telling():
            assert reserve._kept == []
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        while reserve._kept:
            os.close(reserve._kept.pop())


def test_it_is_lent_where_a_process_may_open_no_more() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    reserve, held = Reserve(), []
    limit = 100 + max(reserve._kept)  # this process may have many open
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
        with suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        with reserve.lent():
            some = [os.open(os.devnull, os.O_RDONLY) for _ in range(40)]
            for descriptor in some[:30]:
                os.close(descriptor)
        with pytest.raises(OSError, match="Too many open files"):
            os.open(os.devnull, os.O_RDONLY)
        assert f"all {limit} files and connections that the process may have" in reserve.explain()[0]
        with reserve.if_needed():
            for descriptor in some[30:]:
                os.close(descriptor)
            assert len(reserve._kept) == 0
            assert reserve.explain() == []
            with reserve.if_needed():
                os.close(os.open(os.devnull, os.O_RDONLY))
            assert len(reserve._kept) == 0, "the block around it still has them"
        os.close(held.pop())
        with reserve.if_needed():
            assert len(reserve._kept) == 0, "one that is free is not enough"
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        while reserve._kept:
            os.close(reserve._kept.pop())
