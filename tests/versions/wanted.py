"""What to install: read from a built wheel, whose metadata are what a user's pip reads."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

NEEDED = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis")
"""Without these no test runs."""

WANTED = (
    "accelerate",
    "jupyter-console",
    "jupyter-kernel-test",
    "lightning-fabric",
    "matplotlib",
    "nbconvert",
    "papermill",
    "pytorch-ignite",
    "rich",
    "tqdm",
)
"""Without one of these, the tests that need it fail or are skipped."""


@dataclass(frozen=True)
class Wanted:
    """What a wheel asks for.

    Attributes:
        runtime: for itself.
        tools: of its extra ``dev``, what the suites need.
    """

    runtime: list[Requirement]
    tools: dict[str, Requirement]

    @property
    def torch(self) -> SpecifierSet:
        return next(requirement.specifier for requirement in self.runtime if requirement.name == "torch")


def read(wheel: Path) -> Wanted:
    """What this wheel's metadata ask for."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(name).decode())
    return sorted_out(headers.get_all("Requires-Dist", []))


def sorted_out(lines: Iterable[str]) -> Wanted:
    """Sort requirements into those of the package and those of its tests."""
    runtime, tools = [], {}
    for requirement in map(Requirement, lines):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            runtime.append(requirement)
        elif requirement.name in {*NEEDED, *WANTED}:
            requirement.marker = None
            tools[requirement.name] = requirement
    return Wanted(runtime, tools)


def lowest(requirement: Requirement) -> str | None:
    """The lowest version that it allows, or None if it names none."""
    floors = [Version(part.version) for part in requirement.specifier if part.operator in {">=", "~=", "=="}]
    return str(max(floors)) if floors else None


def lowest_pins(requirements: Iterable[Requirement]) -> list[str]:
    """Constraints by which pip takes the lowest version of each, but for torch, which is chosen by hand."""
    found = ((requirement.name, lowest(requirement)) for requirement in requirements)
    return [f"{name}=={version}" for name, version in found if version and name != "torch"]


def full(version: str) -> str:
    """A version of torch with all of its three parts, so that one environment has one name.

    Examples:
        >>> full("2.6")
        '2.6.0'
    """
    parsed = Version(version)
    return str(parsed) if parsed.is_prerelease else f"{parsed.major}.{parsed.minor}.{parsed.micro}"
