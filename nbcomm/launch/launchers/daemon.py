"""What a node's daemon is to the notebook, wherever it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class Daemon(Protocol):
    """The daemon of a node, as far as the notebook can start it and see it."""

    is_remote: bool
    """Whether it has an environment of its own, to which a start only adds."""

    @property
    def is_far(self) -> bool:
        """Whether it is on another machine, which may die, or be cut off."""

    @property
    def is_ours(self) -> bool:
        """Whether this notebook has started it, so that its end is seen here."""

    @property
    def is_cut_off(self) -> bool:
        """Whether what this notebook has started cannot be seen any more, though it may go on."""

    @property
    def has_ended(self) -> bool:
        """Whether one that this notebook has started has ended."""

    @property
    def how(self) -> str:
        """How it has ended, in words."""

    @property
    def starter(self) -> str:
        """What has started the programs of all nodes together, in words; empty where each was started alone."""

    @property
    def without_heal(self) -> str:
        """Why no other one can be started when it has ended, and what to do, in sentences; empty where one can be."""

    @property
    def has_cleared(self) -> bool:
        """Whether nothing is left on its node: neither its process nor the world's directory."""

    def start(self) -> None:
        """Start one; it starts a daemon, and takes over what an earlier one has started."""

    def kill(self) -> None:
        """End it, if this notebook has started it."""

    def fence(self, timeout: float, pids: Sequence[int] = ()) -> None:
        """End what it and its daemon have left on the node, with these processes of the world; neither does that.

        Raises:
            StartError: that is not known to be done; the message has the words of what was to do it.
        """

    def environment(self, added: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a process of the node, or what is added to the node's own."""

    def working_folder(self) -> str:
        """Return where processes of the node start."""

    def last_words(self) -> str:
        """Return the end of its log."""

    def close(self) -> None:
        """Close what was opened to see it."""
