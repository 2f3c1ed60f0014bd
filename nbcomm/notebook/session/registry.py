"""Which worlds this process steers: those that the magics use, by name."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...durations import duration
from ...errors import StartError, StateError
from ...launch.discovery import FoundWorld, find_worlds
from ...launch.head import Head
from ...launch.working_folder import here, written
from ...node.seed import client as seed
from ...world_dir import WorldDir, telling_of_room
from ..cluster.start_options import Progress, StartOptions, check, check_here
from . import buttons
from .this_notebook import is_known, this_notebook
from .world_names import check_name

if TYPE_CHECKING:
    from ...launch.launchers.slurm import Job
    from .session import Session

_LONGEST = 1e9
"""Seconds, some 30 years, that a time may be: neither JSON nor the system's waits know infinity."""

_ANSWER = 10.0
"""Seconds that a daemon has to answer where its world is wanted: on a busy machine a new kernel comes in its way."""

_NOTICED, _TICK = 2.0, 0.02
"""Seconds in which a daemon has noticed that its notebook has let go of it, and seconds between two looks."""

_FOR_NEW = "For new ranks, type %distributed start."

# Of the process, not of the extension: worlds go on when another shell loads it, and `nbcomm.start` needs no shell.
_defaults: dict[str, Any] = {}
_used: dict[str, Session] = {}
"""By name; that of the world that cells use where they name none is empty."""


def start(n: int | None = None, *, progress: Progress = lambda *_: None, **options: Any) -> Session:
    """Start a world of its own; see `start_options.StartOptions`."""
    wanted = _sound(StartOptions(n, **options))
    if wanted.name:
        check_name(wanted.name)
    _refuse(wanted)
    with telling_of_room():
        return _begun(_prepared(), None, wanted, progress)


def _refuse(options: StartOptions) -> None:
    """Refuse what is wrong on every machine, and what this one cannot do, before anything is started.

    Raises:
        StartError: something is.
    """
    if options.engines == "local":
        check(options)
        check_here(options)
        return
    # Imported here: most worlds are on one machine.
    from ..cluster.joining import refuse

    refuse(options)


def _begun(head: Head, job: Job | None, options: StartOptions, progress: Progress) -> Session:
    """Start a world whose daemon comes up."""
    try:
        # Imported here: half of what a notebook needs, and the daemon takes as long to come up.
        from ...launch.nodes import Nodes
        from .session import Session

        nodes = Nodes(head, job)
    except BaseException:
        head.shutdown()
        raise
    return Session.start(nodes, options, progress, actions)


def _prepared() -> Head:
    """Return the head of a world that can be started.

    Raises:
        StartError: it cannot: the notebook's folder is gone, or there is no room.
    """
    if not here():  # IPython and ipyparallel start nothing there
        raise StartError(
            "The notebook's working folder does not exist any more, so nothing was started and nothing was stopped; "
            "create it again, or change to another folder, for example with %cd ~."
        )
    home = WorldDir.create()
    try:
        home.check_room()
    except BaseException:
        home.remove()
        raise
    return Head(home)


def _sound(options: StartOptions) -> StartOptions:
    """Return start options whose times are such.

    Raises:
        StartError: they are not.
    """
    if not options.grace >= 0:  # nor is it NaN
        raise StartError(f"The grace must be a number of seconds, not {options.grace:g}; no world was started.")
    if not options.timeout > 0:
        raise StartError(
            f"The timeout must be a number of seconds above 0, not {options.timeout:g}; no world was started."
        )
    return replace(options, grace=min(options.grace, _LONGEST), timeout=min(options.timeout, _LONGEST))


def defaults() -> dict[str, Any]:
    """Return the options of a start that names none, as of a world that a cell starts: `start_options.StartOptions`."""
    return dict(_defaults)


def set_defaults(**options: Any) -> None:
    """Say what worlds are like where a start says nothing."""
    global _defaults  # noqa: PLW0603 - they are the process's
    _defaults = options


def serves(session: Session, options: StartOptions) -> bool:
    """Return whether a world matches these options of a start."""
    n = len(session.ranks)
    return replace(_sound(options), n=n if options.n is None else options.n) == replace(session.options, n=n)


def restart(session: Session, *, progress: Progress = lambda *_: None) -> Session:
    """End a world, and start another like it, which the magics use if they used that one."""
    used = _used.get(session.name) is session
    with telling_of_room():
        head = _prepared()  # before the world is lost: another one can be started
        try:
            job = session.keep_job()  # its nodes serve the next world, which does not wait for others
            session.stop()
            leave(session)
        except BaseException:
            head.shutdown()
            raise
        made = _begun(head, job, session.options, progress)
    if used:
        use(made)
    return made


def actions(session: Session) -> dict[str, Callable[[], str]]:
    """Return each button's function: it runs on the kernel's main thread and returns a sentence."""
    return {
        "interrupt": lambda: buttons.interrupt(session),
        "heal": lambda: buttons.heal(session),
        "stop": lambda: stop(session),
        "restart": lambda: _restart_with_panel(session),
    }


def stop(session: Session) -> str:
    """End a world, which the magics use no longer; say that it is so."""
    if not session.running:
        raise StateError("This world is stopped; start one with %distributed start.")
    session.stop()
    leave(session)
    return f"Stopped {session.title}."


def _restart_with_panel(session: Session) -> str:
    """End the world and start another like it, whose panel takes the places of this one's."""
    began, old = time.monotonic(), session.panel
    made = restart(session)
    if made.panel is not None and old is not None:
        made.panel.replace(old)
    return f"{made.title}, {made.backend}, ready in {time.monotonic() - began:.1f} s; the previous variables are lost."


def leave(session: Session) -> None:
    """Stop using this world in the magics, if they did."""
    if _used.get(session.name) is session:
        del _used[session.name]


def spawn(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any] | None, nproc_per_node: int | None
) -> list[Any]:
    """Call a function on the ranks that are there, or on others for the while; see `nbcomm.spawn`."""
    here = next((session for session in running() if not session.name), None)
    if here is not None and nproc_per_node in (None, len(here.ranks)):
        return here.spawn(function, args, kwargs)
    with start(nproc_per_node) as session:
        return session.spawn(function, args, kwargs)


def attach(identity: str | None = None) -> Session:
    """Take up a world that a kernel of this user has left; see `nbcomm.attach`.

    Raises:
        StateError: there is none, it must be named, or another notebook steers it.
    """
    return _take_up(_choose(identity)[0], "")


def attach_and_use(identity: str | None = None, name: str = "") -> tuple[Session, str]:
    """Take up a world for the magics.

    Args:
        identity: which; by default that of this notebook.
        name: what this notebook calls it; by default what the other one did.

    Returns:
        Its session, and which world it is in words, if there were several.

    Raises:
        StateError: there is none, it must be named, another notebook steers it, or the name is taken.
    """
    if not any(world.info.name for world in left_behind()):  # else the name is not known yet
        _check_free(name)
    world, which = _choose(identity)
    name = name or world.info.name
    _check_free(name)
    session = _take_up(world, name)
    try:
        use(session)
    except BaseException:
        session.release()  # nobody here could reach it
        raise
    return session, which


def _check_free(name: str) -> None:
    if _used.get(name) in running():
        raise StateError(
            f"This notebook already controls a world of {_used[name].title}; type %distributed stop first, or give the "
            "other world a name: %distributed attach --world NAME."
        )


def _take_up(world: FoundWorld, name: str) -> Session:
    from ...launch.nodes import Nodes
    from .session import Session

    seed.let_go()
    with telling_of_room():
        head = Head(world.home, running=True)
        try:
            return Session.attach(Nodes(head), world.info, name, actions)
        except BaseException:
            head.release()  # nobody else could attach to it while this kernel lives
            raise


def _choose(identity: str | None) -> tuple[FoundWorld, str]:
    """Return a world to attach to, and which it is, in words, if it was chosen from several."""
    silent: list[str] = []
    found = _found(silent)
    which = ""
    if identity is not None:
        chosen = [world for world in found if world.home.id == identity]
        if not chosen:
            there = f" There {_are(len(found), 'world')}:\n" + _listed(found) if found else ""
            raise StateError(f"No world {identity!r} is running on this machine.{there}")
    else:
        chosen = [world for world in found if not world.holder]
        if not chosen:
            there = f" These worlds are in use:\n{_listed(found)}" if found else ""
            if silent:
                there += "\nThese are there, and do not answer:\n" + "\n".join(f"  {line}" for line in silent)
            raise StateError(
                f"No world without a notebook is running on this machine; type %distributed start to start one.{there}"
            )
        chosen, which = _own(chosen)
    (world,) = chosen
    if world.holder == os.getpid():
        raise StateError(f"The world {world.home.id} is already in use by this process.")
    if world.holder:
        raise StateError(
            f"The world {world.home.id} is in use by the notebook of process {world.holder}; end that kernel first."
        )
    return world, which


def _own(free: list[FoundWorld]) -> tuple[list[FoundWorld], str]:
    """Return, of the worlds without a notebook, this notebook's own; and which it is, in words, if there are others.

    Of kernels that do not know their notebook, only the folder can tell.

    Raises:
        StateError: none is, or several are: another notebook's world is taken only by its id.
    """
    mine = [world for world in free if _is_mine(world)]
    here = [world for world in mine or filter(_may_be_mine, free) if world.info.cwd == written()]
    for chosen, whose in ((mine, "the world of this notebook"), (here, "the world that was started in this folder")):
        if len(chosen) == 1:
            others = _listed(world for world in free if world is not chosen[0])
            said = f"It is {whose}, {chosen[0].home.id}, of {len(free)} without a notebook. The others:\n{others}"
            return chosen, said if others else ""
    which = f"%distributed attach {free[0].home.id if len(free) == 1 else 'ID'}"
    said = (
        f"There are {len(mine)} worlds of this notebook to choose from; type {which}"
        if mine
        else "The only world without a notebook is not known to be this notebook's; to take it all the same, type "
        f"{which}"
        if len(free) == 1
        else f"None of the {len(free)} worlds without a notebook is known to be this notebook's; to take one all the "
        f"same, type {which}"
    )
    raise StateError(f"{said}:\n{_listed(free)}")


def _is_mine(world: FoundWorld) -> bool:
    return world.info.notebook == this_notebook() != ""


def _may_be_mine(world: FoundWorld) -> bool:
    """Return whether nothing tells the notebook that has left a world from this one."""
    return not is_known(this_notebook()) and not is_known(world.info.notebook)


def _found(silent: list[str]) -> list[FoundWorld]:
    """Return all worlds, when none seems to be steered by this notebook that it has let go of a moment ago."""
    steered, deadline = {session.home.id for session in running()}, time.monotonic() + _NOTICED
    while True:
        silent.clear()
        found = find_worlds(_ANSWER, silent)
        late = [world for world in found if world.holder == os.getpid() and world.home.id not in steered]
        if not late or time.monotonic() > deadline:
            return found
        time.sleep(_TICK)


def left_behind() -> list[FoundWorld]:
    """Return the worlds that a notebook could attach to."""
    return [world for world in find_worlds() if not world.holder]


def left_of_mine(name: str | None = None) -> str:
    """Tell of the worlds that earlier kernels of this notebook have left, and how to go on with them; often empty.

    Args:
        name: only of the one with this name; empty for that without one.
    """
    return _of_mine(left_behind(), name)


def left_worlds() -> list[str]:
    """Tell of all worlds that kernels have left, and how to take them; of this notebook's own first."""
    free = left_behind()  # once: each world is asked
    others = [
        f"Another kernel{_of_notebook(world)} left {_titled(world)} running, for {duration(world.left)} more: type "
        f"%distributed attach {world.home.id} to attach to them."
        for world in free
        if not _is_mine(world)
    ]
    return [*filter(None, [_of_mine(free)]), *others]


def _of_mine(free: Sequence[FoundWorld], name: str | None = None) -> str:
    mine = [world for world in free if _is_mine(world)]
    return "\n".join(
        f"An earlier kernel of this notebook left {_titled(world)}, with their variables.\n"
        f"They run for {duration(world.left)} more: type %distributed attach{f' {world.home.id}' * (len(mine) > 1)}"
        f"{' --world before' * (known(world.info.name) is not None)} to go on with them."
        for world in mine
        if name in (None, world.info.name)
    )


def _titled(world: FoundWorld) -> str:
    return f"{world.info.name}: {world.info.title}" if world.info.name else world.info.title


def _of_notebook(world: FoundWorld) -> str:
    return f" of {world.info.notebook}" if is_known(world.info.notebook) else ""


def _listed(found: Iterable[FoundWorld]) -> str:
    return "\n".join(
        f"  {world}{', of this notebook' if _is_mine(world) else f',{of}' if (of := _of_notebook(world)) else ''}"
        for world in found
    )


def _are(count: int, what: str) -> str:
    return f"is one {what}" if count == 1 else f"are {count} {what}s"


def running() -> list[Session]:
    """Return the worlds that the magics use, by name; the one without a name first."""
    return [session for _, session in sorted(_used.items()) if session.running]


def current(name: str = "") -> Session:
    """Return the world of this name that the magics use; by default the one that has none.

    Raises:
        StateError: there is none.
    """
    session = known(name)
    if session is not None:
        return session
    if left := left_of_mine(name):
        raise StateError(f"No world{f' {name!r}' * bool(name)} is running in this kernel.\n{left}\n{_FOR_NEW}")
    if name:
        others = ", ".join(session.name for session in running() if session.name)
        there = f" There {_are(len(others.split(', ')), 'world')} with a name: {others}." if others else ""
        raise StateError(f"No world {name!r} is running; start it with %distributed start --world {name}.{there}")
    named = ", ".join(f"--world {session.name}" for session in running())
    there = f" (There is {named}.)" if named else ""
    raise StateError(f"No world is running; start one with %distributed start, or run a %%distributed cell.{there}")


def known(name: str) -> Session | None:
    """Return the world of this name that the magics use, if there is one."""
    session = _used.get(name)
    return session if session is not None and session.running else None


def use(session: Session) -> None:
    """Let the magics use this world, under its name."""
    _used[session.name] = session
