"""Compares the calls of a group with what its other members are about to do, before data moves."""

from __future__ import annotations

import builtins
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ...torch_internals.c10d import hash_of
from ..collectives import call_site, signatures
from ..collectives.fingerprints import LONGEST, Pages, entry, words_of
from .hub import Hub

if TYPE_CHECKING:
    from ..collectives.fingerprints import Fingerprint, FingerprintBoard
    from ..collectives.recorded_call import RecordedCall


_PATIENCE, _MOMENT, _LOOK = 3.0, 0.3, 0.001
"""Seconds to wait for ranks whose call torch will refuse, as it has refused this rank's; for those whose call it may
refuse, for all that is known here; and between two looks."""


class CallComparison:
    """Compares the calls of a group with what the other members write of theirs on their pages of the board.

    Args:
        hub: the world.
        members: the group's global ranks, in group order.

    Attributes:
        life: which group, and which of its lives, as a number for the board.
        gloos: whether gloo carries out the calls.
        store: where all members see what is announced that no page shows.
        pages: of the members that can be seen.
    """

    def __init__(self, hub: Hub, members: list[int]) -> None:
        self._hub = hub
        self._members = members
        self._peers = [member for member in members if member != hub.rank]
        self.life = 0
        self.gloos = False
        self.store: Any = None
        self.pages = Pages()
        self._refused = (0, 0, 0)  # what torch has refused of this rank last: where, its position, its number

    def look_at(self, board: FingerprintBoard | None) -> None:
        """Compare from now on with those members whose pages can be seen; with nobody if there is no board."""
        self.pages = board.seen(self._peers) if board is not None else Pages()

    def mismatch(self, seq: int, said: Fingerprint, different: Sequence[int], number: int) -> BaseException:
        """Return what to raise where these members do something else; the world is told, with the number for people."""
        hub = self._hub
        board: FingerprintBoard = hub.board  # type: ignore[assignment]  # nothing is seen without one
        block = call_site.here(hub.record.scope()).block
        board.put_words(self.life, seq, said)
        board.put_place(self.life, seq, block)
        heard = board.hear(0, self.life, seq, self.pages, hub.ended)
        told = {peer: (_words(text), where) for peer, (text, where) in heard.items() if text or peer in different}
        return hub.mismatch(self._members, number, {hub.rank: (_words(said.words), words_of(block) or ""), **told})

    # ── calls that torch refuses ────────────────────────────────────────────────────────────────────

    def refuse(self, call: RecordedCall, error: Exception) -> None:
        """Take back what this rank was about to do: torch has refused it. Those who come there later are told why.

        Such a call has no place in the order of calls: the next one of this rank is at its position.
        """
        board, said = self._hub.board, call.said
        if said is None:
            return
        ring, key = 0, self.life
        if call.kind != "collective":
            ring, key = 1, self._lane_of(call.kind, call.peer, call.tag)
        self._refused = key, call.seq, said.number
        if board is not None:
            told = entry(said.number, getattr(error, "told", f"{type(error).__name__}: {error}"))
            board.compare(1, _refusals(key), call.seq, told, Pages())
            board.withdraw(ring, key, call.seq)
        if call.kind == "send" and (board is None or not board.is_shown_to(call.peer or 0)):
            self.store.delete_key(_announced(key, call.seq))

    def settle(self, seq: int, said: Fingerprint, different: Sequence[int], key: int | None = None) -> Sequence[int]:
        """Look again at members that seem to do something else: torch may refuse, or have refused, what they do.

        Args:
            seq: the position.
            said: what this rank is about to do there.
            different: those who have written something else.
            key: of a message, its lane; of a collective None.

        Returns:
            Those who do something else.

        Raises:
            Exception: torch's, where it has refused this very call on another rank, which has gone on.
        """
        board: FingerprintBoard = self._hub.board  # type: ignore[assignment]  # nothing is seen without one
        ring, key = (0, self.life) if key is None else (1, key)
        began = time.monotonic()
        doing = {peer: board.number(peer, ring, key, seq) for peer in different}
        alike = [peer for peer, number in doing.items() if number == said.number]
        if alike:
            return alike  # the same call, with splits that do not fit
        while True:
            others = {peer: number for peer, number in doing.items() if number not in (None, said.number)}
            if not others:
                return ()
            for peer in others:
                if board.number(peer, 1, _refusals(key), seq) == said.number:
                    raise _again(board.text(peer, 1, _refusals(key), seq), peer)
            slower = all((key, seq, number) == self._refused for number in others.values())
            if self._hub.ended() or time.monotonic() > began + (_PATIENCE if slower else _MOMENT):
                return [*others]
            time.sleep(_LOOK)
            doing = {peer: board.number(peer, ring, key, seq) for peer in different}

    # ── an all-to-all, whose parts differ from rank to rank ─────────────────────────────────────────

    def compare(
        self, method: str, args: tuple[Any, ...], seq: int, said: Fingerprint, *, uneven: bool
    ) -> tuple[Fingerprint, Sequence[int]]:
        """Write what this rank is about to do, with its words; return that, and the members that it does not fit.

        Args:
            method: of the group.
            args: its arguments.
            seq: the position.
            said: of the call.
            uneven: the splits must fit, too.
        """
        board: FingerprintBoard = self._hub.board  # type: ignore[assignment]  # nothing is seen without one
        if not uneven:
            return said, board.compare(0, self.life, seq, said, self.pages)
        splits = self.splits(method, args)
        said = entry(said.number, f"{said.words}|{_numbers(splits[0])}|{_numbers(splits[1])}")
        return said, board.compare(0, self.life, seq, said, self.pages) or self.not_fitting(seq, splits)

    def splits(self, method: str, args: tuple[Any, ...]) -> tuple[list[int], list[int]]:
        """Return how much an all-to-all receives and sends; nothing where gloo will refuse it, whatever others do."""
        splits = signatures.splits_of(method, args, len(self._members))
        if self.gloos and not signatures.gloo_takes(method, args, splits, self._members.index(self._hub.rank)):
            return [], []
        return splits

    def not_fitting(self, seq: int, splits: tuple[list[int], list[int]]) -> list[int]:
        """Return which ranks' splits of an all-to-all do not match this rank's."""
        board: FingerprintBoard = self._hub.board  # type: ignore[assignment]  # nothing is seen without one
        size, me = len(self._members), self._members.index(self._hub.rank)
        wrong = []
        for place, member in enumerate(self._members):
            text = board.text(member, 0, self.life, seq)
            parts = text.split("|")
            if member == self._hub.rank or len(parts) != 3 or len(text) >= LONGEST:  # cut off, where ranks are many
                continue
            received, sent = (list(map(int, part.split(","))) if part else [] for part in parts[1:])
            fits = len(received) == len(sent) == size == len(splits[0]) == len(splits[1])
            if fits and (received[me] != splits[1][place] or sent[me] != splits[0][place]):
                wrong.append(member)
        return wrong

    # ── messages, each compared by its two ranks ────────────────────────────────────────────────────

    def compare_message(  # noqa: PLR0913, PLR0917 - a message has these
        self,
        kind: str,
        to: tuple[int, int],
        seq: int,
        said: Fingerprint,
        number: int,
        where: call_site.Said | None = None,
    ) -> call_site.Said:
        """Write what this rank is about to send or receive; raise if the other one does something else.

        Args:
            kind: "send" or "recv".
            to: the other rank, and the tag.
            seq: which message of this lane.
            said: of the message.
            number: its number for people.
            where: what the cell has called, if that is known.
        """
        board, me = self._hub.board, self._hub.rank
        other, tag = to
        lane = self._lane_of(kind, other, tag)
        where = where or call_site.here(self._hub.record.scope())
        if board is not None:
            board.put_place(lane, seq, where.block)
            seen = self.pages.of(other, board.node_of(other))
            if board.compare(1, lane, seq, said, seen) and self.settle(seq, said, [other], lane):
                heard = board.hear(1, lane, seq, [other], self._hub.ended)
                raise self._hub.mismatch(
                    self._members, number, {me: (said.words, words_of(where.block) or ""), **heard}
                )
        if kind == "send" and (board is None or not board.is_shown_to(other)):
            self._announce(lane, seq, said.words)
        return where

    def _announce(self, lane: int, seq: int, words: str) -> None:
        """Announce a message in the store, for who receives from anyone and does not see this rank's page."""
        try:
            self.store.set(_announced(lane, seq), words)
        except dist.DistNetworkError:  # who receives from this rank by name needs no store, which may have ended
            if self._hub.ended():
                raise

    def take_back_message(self, member: int, tag: int, seq: int) -> None:
        """Take back what this rank was about to receive."""
        if self._hub.board is not None:
            self._hub.board.withdraw(1, self._lane(member, self._hub.rank, tag), seq)

    def has_announced(self, member: int, tag: int, seq: int) -> bool:
        """Return whether a member has announced a message, on its page or where all see it."""
        board, lane = self._hub.board, self._lane(member, self._hub.rank, tag)
        if board is not None and member in self.pages:
            if board.text(member, 1, lane, seq):
                return True
            if board.node_of(member) is None:
                return False  # else it may know that its page is not copied to here any more
        return bool(self.store.check([_announced(lane, seq)]))

    def _lane_of(self, kind: str, other: int | None, tag: int) -> int:
        me = self._hub.rank
        return self._lane(me, other, tag) if kind == "send" else self._lane(other, me, tag)

    def _lane(self, src: int | None, dst: int | None, tag: int) -> int:
        return hash_of(f"{self.life}:{src}:{dst}:{tag}")


def _numbers(values: list[int]) -> str:
    return ",".join(map(str, values))


def _again(told: str, rank: int) -> Exception:
    """Return the error with which torch has refused a call on another rank."""
    name, _, text = told.partition(": ")
    kind = getattr(builtins, name, RuntimeError)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        kind = RuntimeError
    error = kind(f"{text} (Rank {rank} was refused the same call, and has gone on.)")
    error.told = told  # type: ignore[attr-defined]  # for who is refused it because of this rank
    return error


def _refusals(key: int) -> int:
    return hash_of(f"{key}:refused")


def _announced(lane: int, seq: int) -> str:
    return f"sent:{lane}:{seq}"


def _words(text: str) -> str:
    if not text:
        return ""
    call, _, splits = text.partition("|")
    if not splits.strip("|"):
        return call
    received, _, sent = splits.partition("|")
    return f"{call} sending [{sent.replace(',', ', ')}] and receiving [{received.replace(',', ', ')}] elements"
