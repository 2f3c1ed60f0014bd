"""What a class is given (docs/classroom.md): its files parse, and what they name is there."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml  # JupyterLab's server requires it
from packaging.requirements import Requirement

from nbcomm import cli

ROOT = Path(__file__).parents[1]
FILES = [file for folder in (".binder", ".devcontainer", "environments") for file in sorted((ROOT / folder).iterdir())]
PAGE = ROOT / "docs" / "classroom.md"
TEXTS = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8") for file in (*FILES, PAGE)}
ALL = "\n".join(TEXTS.values())
SCRIPTS = [file for file in FILES if file.read_text(encoding="utf-8").startswith("#!")]


def test_the_page_names_each_file() -> None:
    assert len(FILES) >= 9
    named = set(re.findall(r"[\w.]+/[\w./]*\w", TEXTS["docs/classroom.md"]))
    assert [str(file.relative_to(ROOT)) for file in FILES if str(file.relative_to(ROOT)) not in named] == []


def test_each_command_is_there() -> None:
    lines = [
        line for file in FILES for line in file.read_text(encoding="utf-8").splitlines() if line.lstrip()[:1] != "#"
    ]
    typed = [*lines, *re.findall(r"`(nbcomm [^`]+)`", TEXTS["docs/classroom.md"])]
    words = {word for line in typed for word in re.findall(r'(?:^|/|&& )nbcomm"? ([a-z]+)', line)}
    assert {"class", "demo", "doctor", "lessons"} <= words
    for word in words:
        with pytest.raises(SystemExit) as ended:
            cli.main([word, "--help"])
        assert ended.value.code == 0, word


def test_each_variable_is_one_that_nbcomm_reads() -> None:
    named = set(re.findall(r"\bNBCOMM_[A-Z]+\b", ALL))
    code = "\n".join(module.read_text(encoding="utf-8") for module in (ROOT / "nbcomm").rglob("*.py"))
    assert {"NBCOMM_CLASS", "NBCOMM_PRELOAD", "NBCOMM_WARM"} <= named
    assert {name for name in named if f'"{name}"' not in code} == set()


def test_one_torch_is_installed_everywhere() -> None:
    """It is the one that nbcomm's own tests run with."""
    tested = re.search(r"^torch==([\d.]+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert tested
    assert set(re.findall(r"\btorch==([\d.]+)", ALL)) == {tested[1]}


def test_what_a_first_cell_pins_is_what_nbcomm_accepts() -> None:
    """The lowest version that pyproject.toml allows is among those that the pin allows."""
    project = (
        (ROOT / "pyproject.toml").read_text(encoding="utf-8").partition("\ndependencies = [")[2].partition("\n]")[0]
    )
    lowest = dict(re.findall(r'"([\w-]+)>=([\d.]+)', project))
    pins = [Requirement(pin) for pin in re.findall(r'"([\w-]+<[\d.]+)"', TEXTS["docs/classroom.md"])]
    assert {pin.name for pin in pins} == {"ipykernel", "ipython"}
    assert [str(pin) for pin in pins if not pin.specifier.contains(lowest[pin.name])] == []


def test_what_files_and_page_call_is_there() -> None:
    called = set(re.findall(r"(?<![\w/.])(?:/tmp/nbcomm/)?((?:environments|docs|notebooks)/[\w./]*\w)", ALL))
    assert {"environments/install.sh", "environments/z2jh.yaml", "docs/classroom.md"} <= called
    assert [name for name in called if not (ROOT / name).exists()] == []


def test_the_values_of_the_hub_parse_and_name_the_image_that_is_built() -> None:
    values = yaml.safe_load(TEXTS["environments/z2jh.yaml"])
    person = values["singleuser"]
    assert f"docker build -t {person['image']['name']}:{person['image']['tag']} " in TEXTS["environments/Dockerfile"]
    (volume,) = person["storage"]["extraVolumes"]
    (mount,) = person["storage"]["extraVolumeMounts"]
    assert (mount["name"], mount["mountPath"]) == (volume["name"], "/dev/shm")  # noqa: S108 - a mount point
    assert all(isinstance(value, str) for value in person["extraEnv"].values())
    lessons = re.fullmatch(r"/lab/tree/(lessons/\S+)", person["defaultUrl"])
    assert lessons
    assert (ROOT / "notebooks" / lessons[1]).is_file()


def test_the_dev_container_is_json_with_comments() -> None:
    lines = TEXTS[".devcontainer/devcontainer.json"].splitlines()
    container = json.loads("\n".join(line for line in lines if not line.lstrip().startswith("//")))
    assert container["postCreateCommand"] == "sh environments/install.sh"


def test_each_line_of_the_image_is_an_instruction() -> None:
    text = re.sub(r"\\\n", " ", TEXTS["environments/Dockerfile"])
    lines = [line.split()[0] for line in text.splitlines() if line and not line.startswith("#")]
    assert lines == ["FROM", "COPY", "RUN", "ENV"]


@pytest.mark.ranks
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_parses(script: Path) -> None:
    shell = script.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#!")
    subprocess.run([shell, "-n", str(script)], check=True)
    # What it writes for a laptop is a script, too.
    for inner in re.findall(r"<<'END'\n(#!/bin/sh\n.*?)\nEND\n", script.read_text(encoding="utf-8"), re.DOTALL):
        subprocess.run(["/bin/sh", "-n"], input=inner, text=True, check=True)


def test_binder_can_run_its_scripts() -> None:
    assert [name for name in ("postBuild", "start") if not os.access(ROOT / ".binder" / name, os.X_OK)] == []
