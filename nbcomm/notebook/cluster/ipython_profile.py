"""What a profile of IPython says of engines: `ipcluster_config.py`, which ipyparallel's `ipcluster` reads.

Who has set up ipyparallel for a cluster has written there how its engines are started. nbcomm starts nodes in another
way, but on the same machines: from that file it takes the launcher, and what that is told.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from ...errors import StartError

_DIRECTIVES = {"slurm": "#SBATCH", "pbs": "#PBS", "sge": "#$", "lsf": "#BSUB"}


def read(name: str) -> dict[str, Any]:
    """Return the options of a start, by the names of `StartOptions`, that a profile of IPython stands for.

    Args:
        name: the profile's: "mycluster" for ``~/.ipython/profile_mycluster``.

    Raises:
        StartError: there is no such profile, it cannot be read, or its launcher is none that nbcomm knows.
    """
    import ipyparallel
    from ipyparallel.cluster import launcher as known

    config = _config(name)
    where = f"The profile {name!r} of IPython"
    try:
        cluster = ipyparallel.Cluster(config=config)
        launcher = cluster.engine_launcher_class(config=config)
    except Exception as error:  # traitlets' errors have many kinds, and a launcher may be anybody's
        raise StartError(f"{where} has no launcher that can be used: {error}.") from error
    said: dict[str, Any] = {} if cluster.n is None else {"n": cluster.n}
    if isinstance(launcher, known.SSHEngineSetLauncher):
        python = launcher.remote_python
        own = {} if python in ("python", sys.executable) else {"python": python}
        return {"engines": "ssh", "hosts": _hosts(launcher.engines), **own}
    if isinstance(launcher, known.MPILauncher):
        if launcher.mpi_cmd not in (["mpiexec"], ["mpirun"]):
            raise StartError(f"{where} starts MPI by {shlex.join(launcher.mpi_cmd)}; nbcomm uses mpiexec.")
        args = shlex.join(launcher.mpi_args)
        return {**said, "engines": "mpi", **({"lines": [args]} if args else {})}
    for engines, kind in (  # SGE's is a kind of PBS's
        ("slurm", known.SlurmLauncher),
        ("sge", known.SGELauncher),
        ("pbs", known.PBSLauncher),
        ("lsf", known.LSFLauncher),
        ("htcondor", known.HTCondorLauncher),
    ):
        if isinstance(launcher, kind):
            return {**said, "engines": engines, **_of_scheduler(launcher, engines, where)}
    if isinstance(launcher, known.LocalEngineSetLauncher):
        return said
    raise StartError(
        f"{where} has the launcher {type(launcher).__name__}, which nbcomm does not know; write the start's options "
        "yourself."
    )


def _config(name: str) -> Any:
    """Return the configuration of ipcluster in a profile."""
    from IPython.core.profiledir import ProfileDir, ProfileDirError
    from IPython.paths import get_ipython_dir
    from traitlets.config.loader import ConfigFileNotFound, PyFileConfigLoader

    try:
        folder = ProfileDir.find_profile_dir_by_name(get_ipython_dir(), name).location
    except ProfileDirError as error:
        raise StartError(f"IPython has no profile {name!r} in {get_ipython_dir()}.") from error
    file = Path(folder) / "ipcluster_config.py"
    try:
        return PyFileConfigLoader(file.name, path=folder).load_config()
    except ConfigFileNotFound as error:
        raise StartError(f"The profile {name!r} of IPython has no {file}.") from error
    except Exception as error:  # it is Python, and may raise anything
        raise StartError(f"{file} fails: {type(error).__name__}: {error}.") from error


def _hosts(engines: dict[str, Any]) -> str:
    """Write ipyparallel's engines by host as `--hosts` takes them.

    >>> _hosts({"a": 4, "user@b": (2, ["--x"]), "c": {"n": 3}})
    'a:4,user@b:2,c:3'
    """
    counts = {}
    for host, many in engines.items():
        count = many.get("n", 1) if isinstance(many, dict) else many[0] if isinstance(many, (tuple, list)) else many
        counts[host] = int(count)
    return ",".join(f"{host}:{count}" for host, count in counts.items())


def _of_scheduler(launcher: Any, engines: str, where: str) -> dict[str, Any]:
    """Return what the launcher of a scheduler is told, and what its template has beside ipyparallel's own fields."""
    said = {"partition": launcher.queue}
    lines = []
    if engines == "slurm":
        said |= {"time": str(launcher.timelimit), "account": launcher.account}
        lines += [f"--qos={launcher.qos}"] if launcher.qos else []
        lines += shlex.split(launcher.options)
    template = launcher.batch_template
    if launcher.batch_template_file:
        try:
            template = Path(launcher.batch_template_file).read_text()
        except OSError as error:
            raise StartError(f"{where} has a template that cannot be read: {error}.") from error
    if template and template != launcher.default_template:
        kept, prologue = parts(template, _DIRECTIVES.get(engines, ""))
        lines += kept
        said["prologue"] = prologue
    return {**{name: value for name, value in said.items() if value}, **({"lines": lines} if lines else {})}


def parts(template: str, directive: str) -> tuple[list[str], str]:
    r"""Return a template's options for the scheduler, and what it does before the program.

    Lines with ipyparallel's fields are left out: nbcomm says these things itself.

    >>> parts("#!/bin/sh\n#SBATCH --qos=high\n#SBATCH -n {n}\nmodule load x\nsrun {program_and_args}\n", "#SBATCH")
    (['--qos=high'], 'module load x')
    """
    lines, before = [], []
    for line in template.splitlines():
        if "{program" in line:
            break
        if "{" in line or not line.strip():
            continue
        if directive and line.startswith(directive):
            lines.append(line.removeprefix(directive).strip())
        elif not line.startswith("#"):
            before.append(line)
    return lines, "\n".join(before)
