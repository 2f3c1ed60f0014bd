"""What a node's fork server is to the notebook, wherever it runs."""

from __future__ import annotations

from typing import Protocol


class ForkServer(Protocol):
    """The fork server of a node, as far as the notebook can start it and see it."""

    @property
    def is_ours(self) -> bool:
        """Whether this notebook has started it, so that its end is seen here."""

    @property
    def has_ended(self) -> bool:
        """Whether one that this notebook has started has ended."""

    @property
    def how(self) -> str:
        """How it has ended, in words."""

    @property
    def has_cleared(self) -> bool:
        """Whether nothing is left on its node: neither its process nor the world's directory."""

    def start(self) -> None:
        """Start one; it starts an agent, and takes over what an earlier one has started."""

    def kill(self) -> None:
        """End it, if this notebook has started it."""

    def fence(self, timeout: float) -> None:
        """End what it and its agent have left on the node, where neither does that.

        Raises:
            Exception: that is not known to be done.
        """

    def working_folder(self) -> str:
        """Return where processes of the node start."""

    def last_words(self) -> str:
        """Return the end of its log."""

    def close(self) -> None:
        """Close what was opened to see it."""
