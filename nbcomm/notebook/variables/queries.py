"""Questions to the ranks about their variables, and how these differ; values sent between ranks stay packed here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...errors import SteeringError, TransferError
from ...protocol import CompareVariable, DescribeVariables, SendVariable
from ..cluster.pending import UNSENT
from ..execution.transfers import transferred, unpack_answer

if TYPE_CHECKING:
    from ..execution.cell_run import CellExecutor
    from ..execution.dispatcher import Dispatcher
    from .comparison import Comparison, Outcome
    from .table import Variable


class VariableQueries:
    """Questions to living ranks.

    Args:
        dispatcher: sends requests, and waits for answers.
        executor: one thing at a time.
    """

    def __init__(self, dispatcher: Dispatcher, executor: CellExecutor) -> None:
        self._dispatcher = dispatcher
        self._executor = executor

    def who(self, names: str | Iterable[str], ranks: list[int]) -> list[Variable]:
        """Describe variables; see `Session.who`."""
        with self._executor.alone():
            return self._survey([names] if isinstance(names, str) else list(names), ranks)

    def diff(self, name: str, ranks: list[int], atol: float) -> Comparison:
        """Compare one variable; see `Session.diff`."""
        # Imported here and below: few cells ask, and a start would wait for it.
        from .comparison import Comparison
        from .table import absence

        if not 0 <= atol < math.inf:
            raise SteeringError(f"The tolerance is {atol}; it must be a number of at least 0.")
        with self._executor.alone():
            (found,) = self._survey([name], ranks, hashes=True)
            if not found.seen:
                raise TransferError(absence(found))
            first = min(found.seen)
            if found.seen[first].digest is None:
                raise TransferError(f"{name} {found.seen[first].note} (rank {first}).")
            apart = [group for group in found.groups if first not in group]
            others: dict[int, list[tuple[int, ...]]] = {}
            for group in apart:
                others.setdefault(found.counterpart(group[0]), []).append(group)
            outcomes = [each for other, groups in others.items() for each in self._compare(name, other, groups, atol)]
            return Comparison(name, first, found, tuple(outcomes), atol)

    def _survey(self, names: Sequence[str], ranks: list[int], *, hashes: bool | None = None) -> list[Variable]:
        from .table import merge

        hashes = len(ranks) > 1 if hashes is None else hashes  # a single rank has nothing to be compared with
        with transferred(self._dispatcher, ranks, DescribeVariables(UNSENT, list(names), hashes)) as request:
            return merge({rank: unpack_answer(request, rank) for rank in ranks}, names)

    def _compare(self, name: str, other: int, apart: list[tuple[int, ...]], atol: float) -> list[Outcome]:
        """Let one rank of each group with another value find where it differs from another rank's."""
        from .comparison import Outcome

        with transferred(self._dispatcher, [other], SendVariable(UNSENT, name)) as offer:
            blob, frames = offer.value(other)
            asked, order = [group[0] for group in apart], CompareVariable(UNSENT, name, blob, atol)
            with transferred(self._dispatcher, asked, order, frames) as request:
                return [Outcome(group, unpack_answer(request, group[0]), other) for group in apart]
