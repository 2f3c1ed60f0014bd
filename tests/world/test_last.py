"""``%distributed last`` shows again what a cell has shown."""

from __future__ import annotations

from .notebook import Notebook


def test_the_last_cell_is_shown_again(four: Notebook) -> None:
    code = "print('one'); import time; time.sleep(0.5)\nfrom IPython.display import HTML, display\n"
    first = four.run(f"%%distributed\n{code}display(HTML(f'<b>{{rank}}</b>'))\nrank")
    four.run("%distributed who")
    four.run("rubbish = 1\nprint('of the notebook itself')")
    for _ in range(2):
        cell = four.run("%distributed last")
        head, _, rest = cell.text.partition("\n")
        assert head.startswith("In [")
        assert " on ranks 0-3 ended after " in head
        assert head.endswith(" s. Its output:")
        assert rest == first.text
        html = [output["data"]["text/html"] for output in cell.outputs if "text/html" in output.get("data", {})]
        assert html == [f"<b>{rank}</b>" for rank in range(4)]


def test_a_cell_that_failed_is_shown_with_its_errors_and_raises_nothing(four: Notebook) -> None:
    failed = four.run("%%distributed\nprint('before')\n1 / rank", fails=True)
    cell = four.run("%distributed last")
    assert "[0-3] before" in cell.text
    assert "division by zero" in cell.text
    assert cell.text.rstrip().endswith(failed.error_text.splitlines()[-1])


def test_an_interrupted_cell_is_shown_as_one(four: Notebook) -> None:
    four.interrupted("%%distributed\nprint('on', flush=True)\nimport time\ntime.sleep(100)")
    text = four.run("%distributed last").text
    assert "[0-3] on" in text
    assert "the cell was interrupted on ranks 0-3" in text


def test_before_the_first_cell_there_is_nothing_to_show(four: Notebook) -> None:
    four.run("%distributed restart")
    cell = four.run("%distributed last", fails=True)
    assert "No cell of this notebook has run on this world's ranks yet: there is nothing to show." in cell.error_text
