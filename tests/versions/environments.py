"""An environment for one torch and one Python, in which nbcomm is installed as its users install it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from .processes import Ended, run
from .wanted import NEEDED, WANTED, Wanted, lowest_pins

NIGHTLY = "nightly"
"""In place of a version: the newest pre-release."""

_NIGHTLY_INDEX = "https://download.pytorch.org/whl/nightly/cpu"
_INSTALL_SECONDS = 3600.0
_QUICK_SECONDS = 300.0


class BrokenOffError(Exception):
    """Nothing can be tested; the sentence says why."""


def version_of(python: str) -> str:
    """The version of this Python, major and minor.

    Raises:
        BrokenOffError: it does not run, or is too old.
    """
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        found = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BrokenOffError(f"{python} does not run here ({error}); name another by PYTHON=/path/to/python.") from None
    if found.returncode:
        # A shim of pyenv is there for every version, whether it is active or not.
        why = (found.stderr.strip().splitlines() or ["it says nothing"])[0]
        raise BrokenOffError(f"{python} does not run here ({why}); name another by PYTHON=/path/to/python.")
    version = found.stdout.strip()
    if Version(version) < Version("3.10"):
        raise BrokenOffError(f"{python} is Python {version}; nbcomm needs 3.10 or newer.")
    return version


@dataclass(frozen=True)
class Environment:
    """A virtual environment.

    Attributes:
        folder: where it is.
    """

    folder: Path

    @property
    def programs(self) -> Path:
        return self.folder / "bin"

    @property
    def python(self) -> Path:
        return self.programs / "python"

    def run(self, name: str, command: Sequence[str | os.PathLike[str]], *, within: float, cwd: Path) -> Ended:
        """Run a program as if the environment were active; what it writes is kept under this name."""
        # PYTHONPATH would bring the checkout back in.
        left_out = {"PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "MAKEFLAGS", "MAKELEVEL"}
        env = {name: value for name, value in os.environ.items() if name not in left_out}
        env["PATH"] = os.pathsep.join([str(self.programs), env.get("PATH", os.defpath)])
        env["VIRTUAL_ENV"] = str(self.folder)
        return run(command, within=within, log=self.folder / "logs" / f"{name}.txt", cwd=cwd, env=env)

    def pip(self, name: str, *arguments: str | os.PathLike[str], within: float = _INSTALL_SECONDS) -> Ended:
        """Run the environment's pip."""
        command = [self.python, "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments]
        return self.run(name, command, within=within, cwd=self.folder)

    def install(self, name: str, *what: str | os.PathLike[str]) -> None:
        """Install, or break off."""
        ended = self.pip(name, "install", "--quiet", *what)
        if not ended.well:
            raise BrokenOffError(f"{ended.told()}\npip could not install what was asked for.")

    def version(self, package: str) -> str:
        """What version of a package is here.

        Raises:
            BrokenOffError: it is not here.
        """
        code = f"from importlib.metadata import version; print(version({package!r}))"
        ended = self.run("version", [self.python, "-c", code], within=_QUICK_SECONDS, cwd=self.folder)
        if not ended.well:
            raise BrokenOffError(f"{ended.told()}\nThere is no {package} in {self.folder}.")
        return ended.text.split()[-1]

    def check_that_nbcomm_is_its_own(self, cwd: Path) -> None:
        """Break off if nbcomm comes from anywhere else when it is imported in this folder."""
        code = "import nbcomm; print(nbcomm.__file__)"
        ended = self.run("where", [self.python, "-c", code], within=_QUICK_SECONDS, cwd=cwd)
        if not ended.well:
            raise BrokenOffError(f"{ended.told()}\nnbcomm cannot be imported in {self.folder}.")
        file = Path(ended.text.split()[-1])
        if not (file.is_relative_to(self.folder) and "site-packages" in file.parts):
            raise BrokenOffError(f"nbcomm comes from {file}, and not from {self.folder}.")

    # ── how it is made ──────────────────────────────────────────────────────────────────────────────

    @property
    def _bare(self) -> Path:
        """The names of the packages that it had before the tools of the tests came."""
        return self.folder / "asked-for.txt"

    def make(self, python: str, *, fresh: bool) -> str:
        """Make it, or take up one that is here already; says which.

        Raises:
            BrokenOffError: this Python cannot make environments.
        """
        if not fresh and self._bare.exists() and self.python.exists():
            before = set(self._bare.read_text(encoding="utf-8").split())
            if tools := sorted(self._names() - before):
                # What a tool of the tests brings, nbcomm must not miss in its own metadata unseen.
                self.pip("uninstall", "uninstall", "--quiet", "--yes", *tools)
            return "The environment is here already; its packages stay as they are (FRESH=1 makes it anew)."
        if self.folder.exists() and not (self.folder / "pyvenv.cfg").exists() and any(self.folder.iterdir()):
            raise BrokenOffError(f"{self.folder} is not an environment, and is left as it is.")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        made = run([python, "-m", "venv", self.folder], within=_QUICK_SECONDS, log=self.folder / "logs" / "venv.txt")
        if not made.well:
            raise BrokenOffError(f"{made.told()}\n{python} cannot make environments: is python3-venv installed?")
        return "The environment is made; torch from PyPI brings gigabytes of CUDA libraries and takes minutes."

    def _names(self) -> set[str]:
        frozen = self.pip("freeze", "list", "--format=freeze", within=_QUICK_SECONDS).text
        return set(re.findall(r"^([\w.-]+)==", frozen, re.MULTILINE))

    def bring(self, wheel: Path, wanted: Wanted, torch: str, *, lowest: bool) -> str:
        """Install the wheel with this torch and what its metadata ask for, and nothing else.

        Args:
            wheel: nbcomm.
            wanted: its metadata.
            torch: a version, or ``NIGHTLY``.
            lowest: whether to take the lowest version of each package that nbcomm names.

        Returns:
            What was out of the ordinary, in a sentence.
        """
        pins = lowest_pins(wanted.runtime) if lowest else []
        others = [str(requirement) for requirement in wanted.runtime if requirement.name != "torch"]
        if torch == NIGHTLY:
            self.install("torch", "--pre", "--upgrade", "torch", "--extra-index-url", _NIGHTLY_INDEX)
            torch = self.version("torch")
        constraints = self._constraints("asked-for", [*pins, f"torch=={torch}"])
        if wanted.torch.contains(torch, prereleases=True):
            self.install("install", "--constraint", constraints, f"torch=={torch}", wheel)
            said = ""
        else:
            # Together pip would refuse them; one after the other, it would bring two torches.
            self.install("install", "--constraint", constraints, f"torch=={torch}", *others)
            said = f"torch {torch} is not what nbcomm asks for (torch{wanted.torch}): it is installed all the same."
        # The version stays the same from build to build, and pip would leave the last one in place.
        self.install("wheel", "--no-deps", "--force-reinstall", wheel)
        self._bare.write_text("\n".join(sorted(self._names())), encoding="utf-8")
        return said

    def conflicts(self) -> tuple[list[str], list[str]]:
        """What ``pip check`` says: that torch is none that nbcomm asks for, and all the rest."""
        ended = self.pip("check", "check", within=_QUICK_SECONDS)
        if ended.well:
            return [], []
        lines = [line for line in ended.text.splitlines() if line and not line.startswith("WARNING")]
        cap = [line for line in lines if re.match(r"nbcomm \S+ (has requirement|requires) torch\b", line)]
        return cap, [line for line in lines if line not in cap]

    def bring_tools(self, wanted: Wanted, requirements: Iterable[Requirement]) -> list[str]:
        """Install what the tests need, beside what is here; says which tools are older than wanted, or not there."""
        versions = dict(
            re.findall(r"^([\w.-]+)==(\S+)$", self.pip("freeze", "list", "--format=freeze").text, re.MULTILINE)
        )
        by_name = {_plain(name): version for name, version in versions.items()}
        kept = [requirement.name for requirement in wanted.runtime if _plain(requirement.name) in by_name]
        constraints = self._constraints("kept", [f"{name}=={by_name[_plain(name)]}" for name in kept])
        tools = {requirement.name: requirement for requirement in requirements}
        if self.pip("tools", "install", "--quiet", "--constraint", constraints, *map(str, tools.values())).well:
            return []
        # One of them does not go with what is here: each by itself, then.
        self.install("tools-needed", "--constraint", constraints, *(str(tools[name]) for name in NEEDED))
        said = []
        for name in WANTED:
            if self.pip(f"tool-{name}", "install", "--quiet", "--constraint", constraints, str(tools[name])).well:
                continue
            if self.pip(f"tool-{name}", "install", "--quiet", "--constraint", constraints, name).well:
                said.append(f"{tools[name]} does not go with what is here: it is {name} {self.version(name)}.")
            else:
                said.append(f"{name} cannot be installed beside what is here, and is left out.")
        return said

    def _constraints(self, name: str, lines: Iterable[str]) -> Path:
        path = self.folder / "logs" / f"{name}.constraints"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")
        return path


def build(checkout: Path, folder: Path) -> Path:
    """Build the wheel of this checkout.

    Raises:
        BrokenOffError: it cannot be built.
    """
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, checkout]
    ended = run(command, within=_QUICK_SECONDS, log=folder / "wheel.txt", cwd=folder)
    wheels = list(folder.glob("*.whl"))
    if not ended.well or len(wheels) != 1:
        raise BrokenOffError(f"{ended.told()}\nThe wheel cannot be built.")
    return wheels[0]


def _plain(name: str) -> str:
    """A package's name as all of its spellings have it."""
    return re.sub(r"[-_.]+", "-", name).lower()
