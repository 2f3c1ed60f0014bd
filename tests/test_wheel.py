"""What a built wheel brings beside the modules: the notebooks, and the README as a package index shows it."""

from __future__ import annotations

import email
import importlib.util
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.outside

pytest.importorskip("hatchling", reason="the wheel is built with hatchling, which `make test` installs")

ROOT = Path(__file__).parents[1]


def _notebooks(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("[0-9][0-9]_*.ipynb")}


NOTEBOOKS, LESSONS = _notebooks(ROOT / "notebooks"), _notebooks(ROOT / "notebooks" / "lessons")
SAMPLE = """See [a page](docs/page.md#top), [here](#here) and [there](https://example.org/x.md).

<picture>
  <source srcset="docs/dark.png">
  <img src="docs/light.png" alt="A picture">
</picture>

`x[0](1)`
"""


def _built(kind: str, checkout: Path, folder: Path) -> Path:
    build = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    subprocess.run(build, cwd=checkout, check=True, stdout=subprocess.DEVNULL)
    (built,) = folder.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the wheel of this checkout is unpacked, as pip does."""
    folder = tmp_path_factory.mktemp("wheel")
    wheel = _built("wheel", ROOT, folder)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")  # noqa: S202 - our own
    return folder / "site"


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    """The module that makes the README of the index."""
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_sdist_makes_the_same_wheel(site: Path, tmp_path: Path) -> None:
    """As pip installs one: with all modules, notebooks and lessons."""
    with tarfile.open(_built("sdist", ROOT, tmp_path)) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    with zipfile.ZipFile(_built("wheel", source, tmp_path / "wheel")) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if not name.endswith("/")}
    here = {str(path.relative_to(site)): path.read_bytes() for path in site.rglob("*") if path.is_file()}
    assert files.keys() == here.keys()
    assert [name for name, text in files.items() if text != here[name] and not name.endswith("/RECORD")] == []


def test_the_wheel_brings_every_notebook_and_copies_them(site: Path, tmp_path: Path) -> None:
    brought = site / "nbcomm" / "notebooks"
    assert {path.name for path in brought.iterdir()} == {*NOTEBOOKS, "lessons"}
    assert (_notebooks(brought), _notebooks(brought / "lessons")) == (NOTEBOOKS, LESSONS)
    # Outside the checkout, so that the package is the wheel's.
    for word, expected in (("notebooks", NOTEBOOKS), ("lessons", LESSONS)):
        ended = subprocess.run(
            [sys.executable, "-m", "nbcomm.cli", word, word],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(site)},
            check=False,
            capture_output=True,
            text=True,
        )
        assert ended.returncode == 0, ended.stderr
        assert {path.name: path.read_bytes() for path in (tmp_path / word).iterdir()} == expected


def test_no_link_of_the_index_page_leads_nowhere(site: Path) -> None:
    (metadata,) = site.glob("*.dist-info/METADATA")
    message = email.message_from_string(metadata.read_text(encoding="utf-8"))
    assert message["Description-Content-Type"] == "text/markdown"
    page = message.get_payload()
    assert page.startswith("# nbcomm\n")
    assert "%%distributed" in page
    targets = re.findall(r"\]\(([^)]*)\)|\b(?:src|srcset)=\"([^\"]*)\"", page)
    assert len(targets) >= 4
    assert [link or picture for link, picture in targets if not (link or picture).startswith(("https://", "#"))] == []


def test_links_and_pictures_lead_into_the_repository_if_it_has_an_address(hook: ModuleType) -> None:
    assert hook.standing_alone(SAMPLE, "https://github.com/o/r") == (
        SAMPLE.replace("(docs/", "(https://github.com/o/r/blob/HEAD/docs/").replace(
            '"docs/', '"https://github.com/o/r/raw/HEAD/docs/'
        )
    )


def test_without_an_address_their_words_are_left_and_no_picture(hook: ModuleType) -> None:
    assert hook.standing_alone(SAMPLE, None) == (
        "See a page, [here](#here) and [there](https://example.org/x.md).\n\n`x[0](1)`\n"
    )


def test_the_address_is_that_of_the_projects_urls(hook: ModuleType) -> None:
    metadata = {"urls": {"Repository": "https://github.com/o/r"}}
    hook.Readme(str(ROOT), {}).update(metadata)
    assert "](https://github.com/o/r/blob/HEAD/docs/reference.md)" in metadata["readme"]["text"]
