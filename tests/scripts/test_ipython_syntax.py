"""IPython's own syntax as Python."""

from __future__ import annotations

import pytest

from nbcomm.scripts.ipython_syntax import expanded, plain

KNOWN = {"x", "y", "name", "len"}


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("x = 1", "x = 1"),
        ("!ls -l", 'subprocess.run("ls -l", shell=True)'),
        ("!echo $x '{y}'", "subprocess.run(f\"echo $x '{y}'\", shell=True)"),
        ("out = !cat 'a b'", "out = subprocess.getoutput(\"cat 'a b'\").splitlines()"),
        ("if x:\n    !ls\n    %timeit x", 'if x:\n    subprocess.run("ls", shell=True)\n    pass  # %timeit x'),
        ("%matplotlib inline\nx", "# %matplotlib inline\nx"),
        ("y = %magic 1 2", "# y = %magic 1 2"),
        ("%time y = f(x)", "y = f(x)"),
        ("y = %time f(x)", "y = f(x)"),
        ("%time -n 3 f(x)", "# %time -n 3 f(x)"),
        ("%%time\n%cd ..\nf(x)", '# %%time\nos.chdir(os.path.expanduser(".."))\nf(x)'),
        ("%%capture\n%%time\nf(x)", "# %%capture\n# %%time\nf(x)"),
        ("%%timeit -n 1\nf(x)\n\ng(x)", "# %%timeit -n 1\n# f(x)\n#\n# g(x)"),
        ("%env A = $x", 'os.environ["A"] = f"{x}"'),
        ("%env A b c", 'os.environ["A"] = "b c"'),
        ("%env A", "# %env A"),
        ("%%bash\necho 'a'", '# %%bash\nsubprocess.run(["bash"], input="echo \'a\'\\n", text=True, check=True)'),
        ("%%bash -s 1\necho", "# %%bash -s 1\n# echo"),
        ("%%writefile 'f.txt'\na\nb", '# %%writefile \'f.txt\'\npathlib.Path("f.txt").write_text("a\\nb\\n")'),
        ("%%writefile -a f.txt\na", "# %%writefile -a f.txt\n# a"),
        ("?x", "# x?"),
        ("x.y??", "# x.y??"),
        ("'''\n!ls\n%time x\n'''", "'''\n!ls\n%time x\n'''"),
        ("\n  x = 1\n  y = 2", "x = 1\ny = 2"),
        ("x = 1\r\nif x:\r\n  !ls\r\n", 'x = 1\nif x:\n  subprocess.run("ls", shell=True)'),
    ],
)
def test_a_cell_becomes_python(cell: str, text: str) -> None:
    assert plain(cell, KNOWN).text.rstrip("\n") == text


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("echo $HOME", '"echo $HOME"'),
        ("echo $HOME $x", '"echo $HOME $x"'),
        ("echo $$HOME $x", 'f"echo $HOME {x}"'),
        ("echo $$HOME", '"echo $HOME"'),
        ("awk '{print $1}' f", "\"awk '{print $1}' f\""),
        ("echo {x!r:>5} {len(y) + 1}", 'f"echo {x!r:>5} {len(y) + 1}"'),
        ("echo {x['a']} \"b\"", "'echo {} \"b\"'.format(x['a'])"),
        ("printf 'a\\n' {x}", "\"printf 'a\\\\n' {}\".format(x)"),
        ("echo {{x}} {y}", 'f"echo {{x}} {y}"'),
        ("echo {nowhere}", '"echo {nowhere}"'),
        ("echo {x:{y}}", '"echo {x:{y}}"'),
        ("echo {x", '"echo {x"'),
        ("echo $x.real", 'f"echo {x.real}"'),
    ],
)
def test_variables_in_a_command(command: str, text: str) -> None:
    assert expanded(command, KNOWN) == text


def test_what_a_command_names_may_be_bound_in_its_own_cell() -> None:
    assert plain("z = 1\n!echo $z", ()).text == 'z = 1\nsubprocess.run(f"echo {z}", shell=True)\n'


def test_what_is_dropped_is_named_and_what_is_needed_is_imported() -> None:
    made = plain("%load_ext x\n!ls\n%cd ~\n%matplotlib", ())
    assert made.dropped == ["%load_ext", "%matplotlib"]
    assert made.modules == {"subprocess", "os"}
