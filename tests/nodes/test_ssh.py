"""Worlds over ssh, on fake hosts with real sshds: each test of inside_ssh.py, run inside and told here."""

from __future__ import annotations

import ast
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

HERE = Path(__file__).parent
INSIDE = HERE / "inside_ssh.py"
LIMIT = 480
"""Seconds for all of them together."""

pytestmark = pytest.mark.timeout(LIMIT + 60)

NAMES = [node.name for node in ast.parse(INSIDE.read_text()).body if getattr(node, "name", "").startswith("test_")]


def _missing() -> str:
    """Why fake hosts cannot be made here; empty if they can, as far as is known."""
    if sys.platform != "linux" or os.getuid():
        return "fake hosts need root on Linux, for namespaces of network and mounts"
    programs = {"ip": "iproute2", "unshare": "util-linux", "/usr/sbin/sshd": "openssh-server", "ssh": "openssh-client"}
    lacking = [package for program, package in programs.items() if shutil.which(program) is None]
    return f"fake hosts need {', '.join(lacking)}: apt-get install {' '.join(lacking)}" if lacking else ""


@pytest.fixture(scope="module")
def told() -> Iterator[dict[str, ET.Element]]:
    """What each test inside has come to."""
    if why := _missing():
        pytest.skip(why)
    with tempfile.TemporaryDirectory(prefix="ssh-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}", str(INSIDE)]
        inside = subprocess.Popen(
            [HERE / "fake_hosts" / "enter.sh", folder, *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=HERE.parents[1],
            env={name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))},
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
        yield {case.attrib["name"]: case for case in cases}


@pytest.mark.parametrize("name", NAMES)
def test_over_ssh(told: dict[str, ET.Element], name: str) -> None:
    assert name in told, f"it did not run; these did: {sorted(told)}"
    for kind in ("failure", "error"):
        for found in told[name].iter(kind):
            pytest.fail(f"{found.attrib.get('message', '')}\n{found.text}", pytrace=False)
    for found in told[name].iter("skipped"):
        pytest.skip(found.attrib.get("message", ""))
