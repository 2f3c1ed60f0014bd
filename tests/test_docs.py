"""The pages of docs: their examples show what they say, and their signatures are the true ones."""

from __future__ import annotations

import ast
import html
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from IPython.core.inputtransformer2 import TransformerManager
from nbconvert.exporters import HTMLExporter, SlidesExporter

import nbcomm
from nbcomm import cli
from nbcomm.cell_names import METHODS, PROPERTIES
from nbcomm.comm import Communicator
from nbcomm.notebook.shell import arguments as usage

from .world.notebook import Notebook, transcript, with_ranks

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted((DOCS / "collectives").glob("[a-z]*.md"))
EXECUTED = [DOCS / "variables.md", *PAGES, DOCS / "widgets.md"]
EXAMPLE = re.compile(r"```python\n((?:(?!```).)*)```\n\n```text\n((?:(?!```).)*)```\n", re.DOTALL)
BLOCK = re.compile(r"^ *```python\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SIGNATURE = re.compile(r"^(?:with |@)?[\w.]+\((.*)\)(?:: \.\.\.|\s+#.*)?$", re.MULTILINE)
ROOT = DOCS.parent
README = ROOT / "README.md"
REFERENCE = DOCS / "reference.md"
LINK = re.compile(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)|\b(?:src|srcset)=\"([^\"]+)\"")


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """A notebook with four ranks, as the pages have it."""
    with with_ranks(tmp_path_factory.mktemp("docs")) as opened:
        yield opened


@pytest.mark.world
@pytest.mark.parametrize("page", EXECUTED, ids=lambda page: page.stem)
def test_every_example_shows_what_the_page_says(notebook: Notebook, page: Path) -> None:
    examples = EXAMPLE.findall(page.read_text())
    assert examples
    notebook.run("%%distributed\n%reset -f")  # some pages list all variables that there are
    for code, shown in examples:
        assert notebook.run(code).text.rstrip("\n") == shown.rstrip("\n")


@pytest.mark.world
def test_the_kernels_page_shows_what_it_says(notebook: Notebook) -> None:
    notebook.run("%distributed auto on")
    try:
        for code, shown in EXAMPLE.findall((DOCS / "kernel.md").read_text()):
            assert notebook.run(code).text == shown
    finally:
        notebook.run("%distributed auto off")


@pytest.mark.world
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
        for name, arguments in re.findall(r"(?:with |@)?(?:nbcomm\.)?(\w+)\((.*?)\)(?=:|\s|$)", first):
            written.setdefault(name, arguments)
    functions = {name: getattr(Communicator, name) for name in METHODS} | {"spawn": nbcomm.spawn}
    assert set(functions) <= set(written)
    for name, function in functions.items():
        parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
        plain = [p.replace(annotation=inspect.Parameter.empty) for p in parameters]
        true = str(inspect.Signature(plain)).strip("()").replace("'", '"')
        assert written[name].replace("'", '"') == true, name


@pytest.mark.parametrize("page", [*sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*.md"))], ids=lambda page: page.stem)
def test_every_block_of_python_is_python(page: Path) -> None:
    """Those of which a page shows the output are run, too, by the tests above and below."""
    for number, block in enumerate(BLOCK.findall(page.read_text())):
        signatures = page in PAGES and number == 0 and not block.startswith("%")
        code = (
            SIGNATURE.sub(r"def _(\1): ...", block)
            if signatures
            else re.sub(r"\A%%(?:distributed|local).*\n", "", block)
        )
        if re.search(r"^return\b", code, re.MULTILINE):  # the end of a function
            code = f"def _():\n{textwrap.indent(code, '    ')}"
        cell = TransformerManager().transform_cell(code)
        compile(cell, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page in its links."""
    headings = re.findall(r"^#+ (.*)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_somewhere() -> None:
    for page in [*DOCS.rglob("*.md"), *ROOT.glob("*.md"), ROOT / "tests" / "README.md"]:
        for file, anchor, picture in LINK.findall(page.read_text()):
            target = page.parent / (file or picture or page.name)
            assert target.exists(), (page.name, target)
            assert not anchor or anchor in anchors(target), (page.name, file, anchor)
    listed = LINK.findall((DOCS / "collectives" / "README.md").read_text())
    assert {page.name for page in PAGES} <= {file for file, _, _ in listed}


# ── the README and the reference ────────────────────────────────────────────────────────────────────


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) < 150


@pytest.mark.world
def test_the_readmes_cells_show_what_it_says(notebook: Notebook) -> None:
    first, wrong, hang = EXAMPLE.findall(README.read_text())
    assert notebook.run(first[0]).text == first[1]
    assert transcript(notebook.run(wrong[0])).strip() == wrong[1].strip()
    told = " ".join(notebook.run(hang[0], fails=True).error_text.split())
    before, who, behind = " ".join(hang[1].split()).partition("ranks 0,2-3 wait in it")
    assert who
    # A slow rank may be on its way yet, for rank 1 will never come.
    behind, has, remedy = behind.partition("rank 1 has finished the cell")
    assert has
    said = rf"{re.escape(before)}ranks? [0-9,-]+ waits? in it{re.escape(behind)}{has}"
    said += rf"( ranks? [0-9,-]+ (is|are) still (running|[^.]+\.ones\(4\)))?{re.escape(remedy)}"
    assert re.search(said, told), told


def test_the_readmes_first_block_installs_the_small_torch_into_an_environment_and_plays_the_demo() -> None:
    """Without one, a system's pip refuses (PEP 668); without the small torch, PyPI's brings gigabytes."""
    first = re.findall(r"^```\n(.*?)```", README.read_text(), re.MULTILINE | re.DOTALL)[0].splitlines()
    parts = ("-m venv .venv", ".venv/bin/activate", "whl/cpu", "pip install . ", "nbcomm demo")
    assert [part in line for part, line in zip(parts, first, strict=True)] == [True] * len(parts)


def test_what_the_readme_and_the_reference_tell_to_type_in_a_terminal_is_there(
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = README.read_text() + REFERENCE.read_text()
    lines = re.findall(r"(?:^|`)nbcomm ([a-z]+(?: [a-z]+)?)(?:`|$| [A-Z-])", text, re.MULTILINE)
    typed = {tuple(line.split()) for line in lines}
    assert cli.main([]) == 0
    assert {words[0] for words in typed} == {*re.findall(r"^ {4}([a-z]+)\b", capsys.readouterr().out, re.MULTILINE)}
    for words in typed:
        with pytest.raises(SystemExit) as ended:
            cli.main([*words, "--help"])
        assert ended.value.code == 0, words
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"`make (\S+)`", text)
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_reference_has_every_word_option_and_name() -> None:
    text = REFERENCE.read_text()
    words = set(usage.line_parser()[1])
    assert {word for word in words - {"help"} if f"| `%distributed {word}" not in text} == set()
    assert set(re.findall(r"`%distributed ([a-z]+)", text)) <= words
    options = {option for action in usage.cell_parser()._actions for option in action.option_strings} - {"-h", "--help"}
    rows = "\n".join(re.findall(r"^\| (`.*?) \|", text, re.MULTILINE))
    assert {option for option in options if not re.search(rf"`{option}[ `]", rows)} == set()
    code = " ".join(re.findall(r"`([^`\n]+)`", text))
    assert {name for name in (*METHODS, *PROPERTIES) if not re.search(rf"\b{name}\b", code)} == set()


def test_the_contract_has_the_words_and_their_options() -> None:
    said = (DOCS / "contract.md").read_text().partition("## `%distributed`")[2].partition("\n## ")[0]
    words = usage.line_parser()[1]
    assert {word for word in words if not re.search(rf"`{word}[ `]", said)} == set()
    options = {
        option
        for word, parser in words.items()
        if word != "run"  # it has those of a cell
        for action in parser._actions
        for option in action.option_strings
    }
    there = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", said)) | {"-h", "--help", "--ranks"}
    assert there - {"--file"} == options


@pytest.mark.world
@pytest.mark.usefixtures("no_processes_left")
def test_the_references_program_prints_what_it_says(tmp_path: Path) -> None:
    (program,) = [
        code for code in re.findall(r"```python\n(.*?)```", REFERENCE.read_text(), re.DOTALL) if "start(" in code
    ]
    file = tmp_path / "program.py"
    file.write_text(program)
    ended = subprocess.run(
        [sys.executable, file],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert ended.stdout.splitlines() == re.findall(r"# (.*)", program), ended.stderr


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
    made = pictures.charts()
    for name, text in made.items():
        assert (DOCS / "charts" / name).read_text(encoding="utf-8") == text, "run docs/pictures.py"
    assert {*re.findall(r"\(charts/([^)]+)\)", (DOCS / "charts.md").read_text())} == {*made}


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").rglob("[0-9]*.ipynb")), ids=lambda path: path.stem)
def test_each_cell_of_a_notebook_has_a_place_on_slides(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    places = [cell.metadata["slideshow"]["slide_type"] for cell in cells]
    begins = [cell.source.startswith("#") and cell.cell_type == "markdown" for cell in cells]
    assert [place == "slide" for place in places] == begins
    assert {*places} == {"slide", "subslide", "fragment", "-"} - (
        {"fragment"} if "details" not in str(cells) else set()
    )


ALL_NOTEBOOKS = sorted(str(path.relative_to(ROOT / "notebooks")) for path in (ROOT / "notebooks").rglob("[0-9]*.ipynb"))


@pytest.mark.parametrize("name", ALL_NOTEBOOKS)
def test_a_played_copy_is_a_page_and_slides_that_need_no_kernel(name: str) -> None:
    """As ``jupyter nbconvert --to html`` and ``--to slides`` make them."""
    copy = nbformat.read(DOCS / "notebooks" / name, as_version=4)
    heads = [cell.source.partition("\n")[0].lstrip("# ") for cell in copy.cells if cell.source.startswith("#")]
    shown = [output.text for cell in copy.cells for output in cell.get("outputs", []) if output.output_type == "stream"]
    for exporter in (HTMLExporter(), SlidesExporter()):
        page, _ = exporter.from_notebook_node(copy)
        text = " ".join(html.unescape(re.sub("<[^>]*>", "", page)).split())
        assert [head for head in heads if " ".join(head.replace("`", "").split()) not in text] == []
        plain = (" ".join(re.sub(r"\x1b\[[0-9;]*m", "", each).split()) for each in shown)
        assert [each for each in plain if each not in text] == []
        assert page.count('class="nbcomm-picture') == str(copy.cells).count('class="nbcomm-picture')
    assert page.count("<section") >= len(heads)


@pytest.mark.parametrize("name", ALL_NOTEBOOKS)
def test_the_played_copy_of_a_notebook_is_of_its_cells_and_has_what_they_show(name: str) -> None:
    """``python docs/notebooks.py`` plays all of them again."""
    notebook, copy = (nbformat.read(folder / name, as_version=4) for folder in (ROOT / "notebooks", DOCS / "notebooks"))
    assert [cell.source for cell in copy.cells] == [cell.source for cell in notebook.cells]
    kinds: set[str] = set()
    for cell in copy.cells:
        outputs = cell.get("outputs", [])
        failed = [output for output in outputs if output.output_type == "error"]
        fails = "raises-exception" in cell.metadata.get("tags", []) and "# your cell" not in cell.source
        assert bool(failed) == fails
        kinds.update(*(output.get("data", [output.output_type]) for output in outputs))
    assert {"stream", "text/html", "image/png"} <= kinds
    assert not any("widget" in kind for kind in kinds), "such an output is an error message without a kernel"
    shown = ""
    for cell in copy.cells:
        called = re.findall(r"\w+ #\d+ of the world", cell.source) if cell.cell_type == "markdown" else []
        assert [call for call in called if call not in shown] == []
        shown += str(cell.get("outputs", ""))
    text = (DOCS / "notebooks" / name).read_text()
    assert not re.search(r"/(?:home|root|tmp|work|Users)/", text), "a path of the machine where it was played"
