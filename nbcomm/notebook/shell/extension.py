"""What ``%load_ext nbcomm`` adds to a shell, and takes away again."""

from __future__ import annotations

from typing import Protocol

from IPython.core.interactiveshell import InteractiveShell

from ...node.seed import client as seed
from ..session import kernel_restart, registry, script_cells
from .completion import Assist
from .hints import Hints
from .magics import DistributedMagics
from .routing import Auto


class _Part(Protocol):
    def install(self) -> None: ...

    def remove(self) -> None: ...


class Extension:
    """All that is loaded into one shell.

    Attributes:
        shell: which.
        routing: decides where its plain cells run.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self.shell = shell
        self.routing = Auto(shell, on=getattr(getattr(shell, "kernel", None), "distributes_cells", False))
        hints = Hints(shell, self.routing)
        self._magics = DistributedMagics(shell, self.routing, hints)
        self._parts: tuple[_Part, ...] = (self.routing, Assist(shell, self.routing), hints)

    def install(self) -> None:
        """Register the magics, and let torch be imported meanwhile."""
        shell = self.shell
        shell.register_magics(self._magics)
        for part in self._parts:
            part.install()
        kernel_restart.follow(getattr(shell, "kernel", None))
        shell.input_transformers_cleanup.append(script_cells.allow_no_body)
        seed.hold()

    def announce(self) -> None:
        """Say, once, which worlds could be taken up."""
        self._magics.announce()

    def let_go(self) -> None:
        """Let another shell have all but the magics themselves; what runs goes on."""
        for part in self._parts:
            part.remove()

    def remove(self) -> None:
        """Stop what runs, and take the magics away."""
        self.let_go()
        for session in registry.running():
            session.stop()
            registry.leave(session)
        seed.let_go()
        transforms = self.shell.input_transformers_cleanup
        if script_cells.allow_no_body in transforms:
            transforms.remove(script_cells.allow_no_body)
        for kind in ("line", "cell"):
            for name in ("distributed", "local"):
                self.shell.magics_manager.magics[kind].pop(name, None)


_loaded: Extension | None = None
"""What `%unload_ext` takes away; all else that is loaded is in it."""


def load(shell: InteractiveShell, *, announce: bool = True) -> Extension:
    """Load the extension.

    Args:
        shell: where to. If it is there already, as in the shell of a cluster kernel, nothing changes; another shell
            lets it go.
        announce: say now which worlds could be taken up, and not before the first cell that needs one.
    """
    global _loaded  # noqa: PLW0603 - one shell at a time has it
    if _loaded is None or _loaded.shell is not shell:
        if _loaded is not None:
            _loaded.let_go()
        _loaded = Extension(shell)
        _loaded.install()
    if announce:
        _loaded.announce()
    return _loaded


def unload() -> None:
    """Take the extension away."""
    global _loaded  # noqa: PLW0603
    if _loaded is not None:
        _loaded.remove()
        _loaded = None


def distributes_cells() -> bool:
    """Return whether a cell that says nothing goes to the ranks."""
    return _loaded is not None and _loaded.routing.on
