"""The cluster kernel: ipykernel's kernel, with nbcomm loaded and auto on from the start.

`nbcomm.notebook.shell.routing` decides where a cell runs, in this kernel as in any other. Output is shown as in any
other kernel, except for a cell's value and help, which go where a front end expects them (`areas`).
"""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp, kernel_aliases
from traitlets import Dict, Enum, Integer, Type

from .. import __version__
from ..notebook.display.area import Area, JupyterArea
from ..notebook.output.execute_result import placing
from ..notebook.session import registry
from ..notebook.shell import extension, routing
from .areas import ClusterArea, PageArea, asks_for_help


class ClusterKernel(IPythonKernel):
    """A kernel that runs every cell on all ranks, except those that begin with ``%%local``.

    Attributes:
        distributes_cells: whether auto is on when nbcomm is loaded.
        keeps_worlds: whether a restart leaves the world for ``%distributed attach``; here it ends the world, because a
            user who restarts this kernel wants fresh ranks.
    """

    ranks = Integer(
        None,
        allow_none=True,
        help="Number of ranks; by default one per GPU; without a GPU 4, or 2 on a machine with one core.",
    ).tag(config=True)
    device = Enum(("auto", "cpu", "cuda"), "auto", help="Device of the ranks.").tag(config=True)

    implementation = "nbcomm"
    implementation_version = __version__
    distributes_cells = True
    keeps_worlds = False

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)  # type: ignore[no-untyped-call]
        registry.set_defaults(n=self.ranks, device=self.device)

    def start(self) -> None:
        """Load nbcomm, whose daemon warms up while the user still types, and then take requests."""
        # The application ignores interrupts between cells; processes that are started now must not inherit that.
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        assert self.shell is not None  # noqa: S101 - for mypy
        try:
            extension.load(self.shell, announce=False)
        finally:
            signal.signal(signal.SIGINT, handler)
        super().start()  # type: ignore[no-untyped-call]

    async def do_execute(
        self,
        code: str,
        silent: bool,  # noqa: FBT001 - ipykernel's
        store_history: bool = True,  # noqa: FBT001, FBT002
        *args: Any,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Run a cell; if it runs on ranks, send its value and its help as any kernel does."""
        execute = partial(super().do_execute, code, silent, store_history, *args, **kwargs)
        part = None if silent else routing.part_for_ranks(code, plain=extension.distributes_cells() and store_history)
        if part is None:  # it runs in this kernel
            return await execute()  # type: ignore[no-any-return]
        shell, number = self.shell, self.execution_count
        assert shell is not None  # noqa: S101 - for mypy
        pages: list[PageArea] = []
        paged = asks_for_help(part[0]) and not shell.display_page

        def place(area: Area) -> Area:
            if type(area) is not JupyterArea:  # it is captured
                return area
            if not paged:
                return ClusterArea(shell.display_pub, number)
            pages.append(PageArea(shell.display_pub, number))
            return pages[-1]

        try:
            with placing(place):
                reply: dict[str, Any] = await execute()
            if reply["status"] == "ok":
                help_ = [page for page in (each.page() for each in pages) if page is not None]
                reply["payload"] = [*reply["payload"], *help_]
        finally:
            for each in pages:
                each.show()  # it failed: the help of some ranks becomes the cell's output
        return reply

    @property
    def banner(self) -> str:  # type: ignore[override]  # as in IPythonKernel
        """The text that a console shows first."""
        default = "one rank per GPU, or 4 ranks without a GPU (2 on one core)"
        ranks = {None: default, 1: "1 rank"}.get(self.ranks, f"{self.ranks} ranks")
        return (
            f"{super().banner}Every cell runs on {ranks}; a cell that begins with %%local runs in the kernel itself.\n"
        )


class ClusterKernelApp(IPKernelApp):
    """The application that starts a `ClusterKernel`."""

    kernel_class = Type(ClusterKernel, klass=IPythonKernel)
    classes = [ClusterKernel, *IPKernelApp.classes]  # noqa: RUF012 - traitlets wants it so
    aliases = Dict({**kernel_aliases, ("n", "ranks"): "ClusterKernel.ranks", "device": "ClusterKernel.device"})
