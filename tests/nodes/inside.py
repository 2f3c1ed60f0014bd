"""Tests that run among fake hosts, in namespaces of their own, and are told outside, each as one test."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIMIT = 480
"""Seconds for all tests of a file together."""

WHILE_INSIDE = pytest.mark.timeout(LIMIT + 60)

_PROGRAMS = {"ip": "iproute2", "unshare": "util-linux", "/usr/sbin/sshd": "openssh-server", "ssh": "openssh-client"}
_SLURM = {
    "/usr/sbin/slurmctld": "slurmctld",
    "/usr/sbin/slurmd": "slurmd",
    "srun": "slurm-client",
    "/usr/sbin/munged": "munge",
}
_ALSO = {"": {}, "slurm": _SLURM, "mpi": {"mpiexec": "openmpi-bin"}}
"""By what else the hosts have, the package of each program that it needs."""


def names_in(inside: Path) -> dict[str, bool]:
    """The tests of a file, and which of them are left to `make test-all`."""
    tests = [node for node in ast.parse(inside.read_text()).body if getattr(node, "name", "").startswith("test_")]
    return {
        node.name: any("nightly" in ast.unparse(decorator) for decorator in node.decorator_list)
        for node in tests
        if isinstance(node, ast.FunctionDef)
    }


def _missing(also: str) -> str:
    """Why fake hosts cannot be made here; empty if they can, as far as is known."""
    if sys.platform != "linux" or os.getuid():
        return "fake hosts need root on Linux, for namespaces of network and mounts"
    programs = {**_PROGRAMS, **_ALSO[also]}
    lacking = [package for program, package in programs.items() if shutil.which(program) is None]
    return f"fake hosts need {', '.join(lacking)}: apt-get install {' '.join(lacking)}" if lacking else ""


def told_of(inside_file: Path, asked: str, also: str = "", hosts: str = "a b") -> dict[str, ET.Element]:
    """Run the tests of a file among fake hosts.

    Args:
        inside_file: the file.
        asked: for which marks pytest was asked here.
        also: what the hosts have beside sshd: "slurm".
        hosts: their names.

    Returns:
        By its name, what each test has come to; see `tell`.
    """
    if why := _missing(also):
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command += ["-m", "not nightly"] * ("not nightly" in asked)
        inside = subprocess.Popen(
            [HERE / "fake_hosts" / "enter.sh", folder, *command, str(inside_file)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=HERE.parents[1],
            env={
                **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))},
                "FAKE_HOSTS": hosts,
                "FAKE_HOSTS_ALSO": also,
            },
            start_new_session=True,
        )
        try:
            said, _ = inside.communicate(timeout=LIMIT)
        finally:  # its end is that of all that it has started, and of its namespaces
            with suppress(ProcessLookupError):
                os.killpg(inside.pid, signal.SIGKILL)
            inside.wait()
        if inside.returncode == 77:
            pytest.skip(f"fake hosts cannot be made here: {said.strip()}")
        assert report.exists(), said
        cases = ET.parse(report).iter("testcase")  # noqa: S314 - our own pytest has written it
        return {case.attrib["name"]: case for case in cases}


def told_in(file: str, also: str = "", hosts: str = "a b") -> Callable[..., dict[str, ET.Element]]:
    """A fixture of a module: what each test of a file beside this one has come to inside; see `told_of`."""

    @pytest.fixture(scope="module")
    def told(pytestconfig: pytest.Config) -> dict[str, ET.Element]:
        return told_of(HERE / file, pytestconfig.option.markexpr, also, hosts)

    return told


def each_of(file: str) -> pytest.MarkDecorator:
    """Tell each test of a file."""
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=[pytest.mark.nightly] * late) for name, late in names_in(HERE / file).items()]
    )


def tell(told: dict[str, ET.Element], name: str) -> None:
    """Pass, fail or skip as a test inside has."""
    assert name in told, f"it did not run; these did: {sorted(told)}"
    for kind in ("failure", "error"):
        for found in told[name].iter(kind):
            pytest.fail(f"{found.attrib.get('message', '')}\n{found.text}", pytrace=False)
    for found in told[name].iter("skipped"):
        pytest.skip(found.attrib.get("message", ""))
