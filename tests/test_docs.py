"""The pages of docs: their examples show what they say, and their signatures are the true ones."""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import nbcomm
from nbcomm.rank.comm import Communicator
from nbcomm.vocabulary import METHODS

from .world.notebook import Notebook, transcript, with_ranks

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted((DOCS / "collectives").glob("[a-z]*.md"))
EXECUTED = [DOCS / "variables.md", *PAGES, DOCS / "widgets.md"]  # the first lists all variables that there are
EXAMPLE = re.compile(r"```python\n((?:(?!```).)*)```\n\n```text\n((?:(?!```).)*)```\n", re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+\.md)\)")


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook with four ranks, as the pages have it."""
    with with_ranks(tmp_path_factory.mktemp("docs")) as opened:
        yield opened


@pytest.mark.parametrize("page", EXECUTED, ids=lambda page: page.stem)
def test_every_example_shows_what_the_page_says(notebook: Notebook, page: Path) -> None:
    examples = EXAMPLE.findall(page.read_text())
    assert examples
    for code, shown in examples:
        assert notebook.run(code).text.rstrip("\n") == shown.rstrip("\n")


def test_the_kernels_page_shows_what_it_says(notebook: Notebook) -> None:
    notebook.run("%distributed auto on")
    try:
        for code, shown in EXAMPLE.findall((DOCS / "kernel.md").read_text()):
            assert notebook.run(code).text == shown
    finally:
        notebook.run("%distributed auto off")


def test_dialogues_go_as_the_page_says(notebook: Notebook) -> None:
    examples = EXAMPLE.findall((DOCS / "debugging.md").read_text())
    assert examples
    for code, shown in examples:
        said = re.sub(r"<ipython-input-[\w-]+>", "<cell>", shown)
        cell = notebook.play(code, said)
        error = cell.error_text.splitlines()[-1:]  # the others are the traceback
        assert "\n".join([*transcript(cell).splitlines(), *error]) == said.rstrip("\n")


def test_every_name_has_its_true_signature_on_a_page() -> None:
    written: dict[str, str] = {}
    for page in PAGES:
        first = page.read_text().split("```python\n")[1].split("```")[0]
        for name, arguments in re.findall(r"(?:with |@)?(?:nbcomm\.)?(\w+)\((.*?)\)(?=:? …|\s|$)", first):
            written.setdefault(name, arguments)
    functions = {name: getattr(Communicator, name) for name in METHODS} | {"spawn": nbcomm.spawn}
    assert set(functions) <= set(written)
    for name, function in functions.items():
        parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
        plain = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
        true = str(inspect.Signature(plain)).strip("()").replace("'", '"')
        assert written[name].replace("'", '"') == true, name


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, DOCS / "collectives" / "README.md", *DOCS.glob("*.md"), DOCS.parent / "README.md"]:
        for target in LINK.findall(page.read_text()):
            assert (page.parent / target).exists(), (page.name, target)
    listed = LINK.findall((DOCS / "collectives" / "README.md").read_text())
    assert {page.name for page in PAGES} <= set(listed)


def test_every_picture_is_what_the_plan_draws() -> None:
    spec = importlib.util.spec_from_file_location("pictures", DOCS / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    pictures = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pictures)
    made = pictures.make()
    for name, text in made.items():
        assert (DOCS / "collectives" / "pictures" / name).read_text(encoding="utf-8") == text, "run docs/pictures.py"
    shown = {name for page in PAGES for name in re.findall(r"\(pictures/([^)]+)\)", page.read_text())}
    assert shown == set(made)
