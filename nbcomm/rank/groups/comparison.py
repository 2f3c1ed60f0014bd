"""Compares the calls of a group with what its other members are about to do, before data moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...torch_internals.c10d import hash_of
from ..collectives import call_site, signatures
from ..collectives.fingerprints import LONGEST, Pages, entry, words_of
from .hub import Hub

if TYPE_CHECKING:
    from ..collectives.fingerprints import Fingerprint, FingerprintBoard


class CallComparison:
    """Compares the calls of a group with what the other members write of theirs on their pages of the board.

    Args:
        hub: the world.
        members: the group's global ranks, in group order.

    Attributes:
        life: which group, and which of its lives, as a number for the board.
        store: where all members see what is announced that no page shows.
        pages: of the members that can be seen.
    """

    def __init__(self, hub: Hub, members: list[int]) -> None:
        self._hub = hub
        self._members = members
        self._peers = [member for member in members if member != hub.rank]
        self.life = 0
        self.store: Any = None
        self.pages = Pages()

    def look_at(self, board: FingerprintBoard | None) -> None:
        """Compare from now on with those members whose pages can be seen; with nobody if there is no board."""
        self.pages = board.seen(self._peers) if board is not None else Pages()

    def mismatch(self, seq: int, said: Fingerprint, different: Sequence[int]) -> BaseException:
        """Return what to raise where these members do something else; the world is told."""
        hub = self._hub
        board: FingerprintBoard = hub.board  # type: ignore[assignment]  # nothing is seen without one
        block = call_site.here(hub.record.scope()).block
        board.put_place(self.life, seq, block)
        heard = board.hear(0, self.life, seq, self.pages, hub.ended)
        told = {peer: (_words(text), where) for peer, (text, where) in heard.items() if text or peer in different}
        return hub.mismatch(self._members, seq, {hub.rank: (_words(said.words), words_of(block) or ""), **told})

    # ── an all-to-all, whose parts differ from rank to rank ─────────────────────────────────────────

    def compare_uneven(
        self, method: str, args: tuple[Any, ...], seq: int, said: Fingerprint
    ) -> tuple[Fingerprint, Sequence[int]]:
        """Write what this rank is about to do; return that, with its splits, and the members that it does not fit."""
        board: FingerprintBoard = self._hub.board  # type: ignore[assignment]  # nothing is seen without one
        splits = signatures.splits_of(method, args, len(self._members))
        said = entry(said.number, f"{said.words}|{_numbers(splits[0])}|{_numbers(splits[1])}")
        return said, board.compare(0, self.life, seq, said, self.pages) or self._not_fitting(board, seq, splits)

    def _not_fitting(self, board: FingerprintBoard, seq: int, splits: tuple[list[int], list[int]]) -> list[int]:
        """Return which ranks' splits of an all-to-all do not match this rank's."""
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

    def compare_message(
        self, kind: str, to: tuple[int, int], seq: int, said: Fingerprint, where: call_site.Said | None = None
    ) -> call_site.Said:
        """Write what this rank is about to send or receive; raise if the other one does something else.

        Args:
            kind: "send" or "recv".
            to: the other rank, and the tag.
            seq: which message of this lane.
            said: of the message.
            where: what the cell has called, if that is known.
        """
        board, me = self._hub.board, self._hub.rank
        other, tag = to
        lane = self._lane(me, other, tag) if kind == "send" else self._lane(other, me, tag)
        where = where or call_site.here(self._hub.record.scope())
        if kind == "send" and (board is None or not board.is_shown_to(other)):  # for who receives from anyone
            self.store.set(_announced(lane, seq), said.words)
        if board is None:
            return where
        board.put_place(lane, seq, where.block)
        seen = self.pages.of(other, board.node_of(other))
        if board.compare(1, lane, seq, said, seen):
            heard = board.hear(1, lane, seq, [other], self._hub.ended)
            raise self._hub.mismatch(self._members, seq, {me: (said.words, words_of(where.block) or ""), **heard})
        return where

    def has_announced(self, member: int, tag: int, seq: int) -> bool:
        """Return whether a member has announced a message, on its page or where all see it."""
        board, lane = self._hub.board, self._lane(member, self._hub.rank, tag)
        if board is not None and member in self.pages:
            if board.text(member, 1, lane, seq):
                return True
            if board.node_of(member) is None:
                return False  # else it may know that its page is not copied to here any more
        return bool(self.store.check([_announced(lane, seq)]))

    def _lane(self, src: int, dst: int, tag: int) -> int:
        return hash_of(f"{self.life}:{src}:{dst}:{tag}")


def _numbers(values: list[int]) -> str:
    return ",".join(map(str, values))


def _announced(lane: int, seq: int) -> str:
    return f"sent:{lane}:{seq}"


def _words(text: str) -> str:
    if not text:
        return ""
    call, _, splits = text.partition("|")
    if not splits:
        return call
    received, _, sent = splits.partition("|")
    return f"{call} sending [{sent.replace(',', ', ')}] and receiving [{received.replace(',', ', ')}] elements"
