"""The site of the pages: ``make docs`` builds it, and no page of it needs another host."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from IPython.lib.lexers import IPython3Lexer
from pygments.lexer import bygroups
from pygments.token import Keyword, Operator, Text
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.domains.python import PyXRefRole
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the docstrings are those of this checkout

import nbcomm  # noqa: E402

project = "nbcomm"
author = "The nbcomm developers"
project_copyright = author
version = release = nbcomm.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]

# Pages stay where they are, so that a link works here as it does on GitHub. Sphinx is given the whole checkout, and
# these of it.
root_doc = "docs/index"
NOT_SEARCHED = re.compile(r"CHANGELOG|CONTRIBUTING|tests/|docs/(decisions|internals)/")
include_patterns = ["*.md", "docs/**.md", "docs/notebooks/**.ipynb", "tests/README.md"]
exclude_patterns = [".*", "build", "dist", "mutants", "node_modules"]

# Notebooks are shown as they are saved.
nb_execution_mode = "off"
nb_ipywidgets_js = {}  # they come from another host, and no saved notebook has a widget

myst_heading_anchors = 4  # of the names that GitHub gives them
highlight_language = "text"
nitpicky = True
smartquotes = False  # "" in a docstring is a text of Python

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "py:name"  # below
add_module_names = False
nitpick_ignore_regex = [("py:class", ".*")]  # annotations name what torch and Python have, too

html_theme = "pydata_sphinx_theme"
html_title = "nbcomm"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_extra_path = ["site/root"]
html_copy_source = False
html_theme_options = {
    "logo": {"text": "nbcomm"},
    "navbar_persistent": ["search-button"],
    "footer_start": ["copyright"],
    "footer_end": [],
}


class Cell(IPython3Lexer):
    """Colours cells; IPython's own leaves what is below a line with ``%%`` as it is."""

    tokens: ClassVar = {
        "root": [(r"(%%)(distributed|local)\b(.*)", bygroups(Operator, Keyword, Text)), *IPython3Lexer.tokens["root"]]
    }


class Pictures(SphinxTransform):
    """Makes two pictures of each ``<picture>``, of which the site's switch between light and dark shows one.

    In the page's own HTML, the browser would choose by the system's setting alone.
    """

    default_priority = 500

    def apply(self, **_: Any) -> None:
        """Replace them before Sphinx collects the files of pictures."""
        for raw in list(self.document.findall(nodes.raw)):
            text = raw.astext()
            if not text.startswith("<picture>"):
                continue
            (width,) = re.findall(r'\bwidth="(\d+)"', text) or ["100%"]  # with one, Sphinx links it to the file
            (alt,) = re.findall(r'\balt="([^"]+)"', text)
            both = nodes.paragraph()
            both.source, both.line = raw.source, raw.line
            for scheme, attribute in (("dark", "srcset"), ("light", "src")):
                (uri,) = re.findall(rf'\b{attribute}="([^"]+)"', text)
                both += nodes.image(uri=uri, alt=alt, classes=[f"only-{scheme}"], width=width)
            raw.replace_self(both)


class SearchWords(SphinxTransform):
    """Lets the search lead to a section by words that need not be in it: ``<!-- search: one, two -->`` at its top."""

    default_priority = 500

    def apply(self, **_: Any) -> None:
        """Make them entries of the index, before which the search puts nothing."""
        for raw in list(self.document.findall(nodes.raw)):
            for words in re.findall(r"<!-- search: (.*?) -->", raw.astext(), re.DOTALL):
                (here, *_) = raw.parent["ids"]
                entries = [("single", word.strip(), here, "main", None) for word in words.split(",")]
                raw.replace_self(addnodes.index(entries=entries))


def leave_out_of_the_search(app: Sphinx, _: nodes.document) -> None:
    """Leave out pages for those who build nbcomm: they have all words that a user looks for, and no answer."""
    if NOT_SEARCHED.match(app.env.docname):
        app.env.metadata[app.env.docname]["nosearch"] = True


class Name(PyXRefRole):
    """A name in a docstring's backticks, which may leave out its module and class."""

    def process_link(self, env: Any, node: nodes.Element, *rest: Any) -> tuple[str, str]:
        """Let Sphinx look for its end, too."""
        node["reftype"] = "obj"
        title, target = super().process_link(env, node, *rest)
        node["refspecific"] = True
        return title, target


def setup(app: Sphinx) -> None:
    """Let Sphinx know what is ours."""
    app.add_transform(Pictures)
    app.add_transform(SearchWords)
    app.connect("doctree-read", leave_out_of_the_search)
    app.add_role_to_domain("py", "name", Name())
    for name in ("python", "ipython3"):
        app.add_lexer(name, Cell)
