"""The folder of a notebook may have any name, and be taken away."""

from __future__ import annotations

from collections.abc import Callable

from .notebook import Notebook


def test_any_bytes_may_be_in_the_folders_name_and_the_environment_and_the_folder_may_be_gone(
    open_notebook: Callable[..., Notebook],
) -> None:
    notebook = open_notebook(
        "import os\nos.makedirs(b'caf\\xe9/lib')\nos.chdir(b'caf\\xe9')\nopen('lib/beside.py', 'w').close()",
        "%distributed start -n 2",
        ODD="\udcff",
        PYTHONPATH="lib",  # from this folder, and not from one of nbcomm's
    )
    beside = "%%distributed\nimport os, beside\nos.path.samefile(beside.__file__, 'lib/beside.py')"
    assert notebook.run(beside).text == "[0-1] True\n"
    seen = notebook.run("%%distributed\nimport os\nkept = rank\nos.getcwdb()[-4:], os.environb[b'ODD']")
    assert seen.text == "[0-1] (b'caf\\xe9', b'\\xff')\n"
    notebook.run("import shutil\nshutil.rmtree(os.getcwdb())")
    healed = notebook.run("%distributed heal 1").text
    assert "Rank 1 is back" in healed
    assert "The notebook's working folder does not exist any more, so new processes were started in '" in healed
    assert notebook.run("%%distributed\nall_reduce(1), 'kept' in globals()").lines == [
        "[0] (2, True)",
        "[1] (2, False)",
    ]
    said = notebook.run("%distributed run train.py", fails=True).error_text.flat
    assert (
        said == "ScriptError: There is no script 'train.py' in this notebook's folder, which does not exist any more; "
        "nothing was run."
    )
    said = notebook.run("%distributed restart", fails=True).error_text
    assert (
        "The notebook's working folder does not exist any more, so nothing was started and nothing was stopped" in said
    )
    assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-1] 2\n"
    notebook.run("os.chdir('/')\n%distributed restart", timeout=120)
    assert notebook.run("%%distributed\nimport os\nos.getcwd()").text == "[0-1] '/'\n"
