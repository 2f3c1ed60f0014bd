"""From the notebook to a script that torchrun runs to the same answers, and a script on the ranks that are warm."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from .notebook import Notebook, with_ranks

TUTORIAL = """
import os
os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", "12355"
dist.init_process_group("gloo", rank=rank, world_size=world_size)
x = torch.ones(1)
dist.all_reduce(x, group=dist.new_group([0, 1, 2, 3]))
lent = x.tolist()
"""

pytestmark = pytest.mark.story  # what is saved is what all cells before have done

CELLS = [
    (
        "",
        '''
        import torch.nn as nn
        from torch.nn.parallel import DistributedDataParallel as DDP

        class Net(nn.Module):
            """A net.

        The second line of its docstring stands at the margin.
            """
            def __init__(self):
                super().__init__()
                self.layer = nn.Linear(3, 1)

            def forward(self, x):
                return self.layer(x)

        def note(text):
            notes.append(text)
        notes = []
        ''',
    ),
    (
        "",
        """
        %matplotlib inline
        torch.manual_seed(7)
        model = DDP(Net())
        optimizer = torch.optim.SGD(model.parameters(), lr=settings["lr"])
        """,
    ),
    (
        "",
        """
        torch.manual_seed(100 + rank)
        data = torch.randn(8, 3)
        for step in range(settings["steps"]):
            optimizer.zero_grad()
            loss = model(data).square().mean()
            loss.backward()
            optimizer.step()
        total = all_reduce(loss.detach(), "mean")
        total
        """,
    ),
    ("-r 0,2", 'text = f"""of {rank}\n  and {1 +\n1}\n"""\nnote(text); note("a \\\nb")\nif rank:\n    note("odd")'),
    ("", "1 / (rank - 1)"),
    (
        "",
        """
        import asyncio
        late: float = await asyncio.sleep(0.01, result=0.5)
        task = asyncio.create_task(asyncio.sleep(0.01, result=rank))
        """,
    ),
    ("", TUTORIAL),
    ("", TUTORIAL),
    ("", "dist.destroy_process_group()\nmine = await task\n(mine, late, all_reduce(1))"),
    ("", "word = 'shell'\n!echo from the $word of {rank + 1}\nlines = !printf 'a\\nb'"),
    ("", "gathered = all_gather(float(rank) * late, mode='list')\nNone"),
]
NAMES = ("notes", "total", "late", "mine", "lines", "lent", "gathered", "settings", "weight")


def torchrun(script: Path, ranks: int, **environment: str) -> list[str]:
    """Run a script with the real torchrun; return what each rank has printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    own = script.with_suffix(".logs")  # another run's would be among those of a common one
    done = subprocess.run(
        [*command, "--redirects", "1", "--log-dir", str(own), str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        cwd=script.parent,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    logs = {int(path.parent.name): path.read_text() for path in own.glob("**/stdout.log")}
    return [logs[rank] for rank in range(ranks)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the notebook is."""
    return tmp_path_factory.mktemp("scripts")


@pytest.fixture(scope="module")
def notebook(folder: Path) -> Iterator[Notebook]:
    """A notebook with four ranks that has run the cells above."""
    with with_ranks(folder) as opened:
        opened.run("settings = {'lr': 0.1, 'steps': 3}\n%distributed push settings")
        for options, code in CELLS:
            opened.run(f"%%distributed {options}\n{textwrap.dedent(code).strip()}", fails="1 / " in code)
        opened.run("%%distributed\nweight = model.module.layer.weight.detach().flatten().tolist()")
        yield opened


@pytest.mark.timeout(240)  # torch is imported nine times, and the machine may have two cores
def test_torchrun_runs_what_was_saved_to_the_same_answers(notebook: Notebook, folder: Path) -> None:
    saved = notebook.run("%distributed save train.py").lines
    assert saved[0] == "train.py has 11 cells: torchrun --nproc-per-node 4 train.py"
    assert saved[1:] == [
        "Left out: In [8] (failed).",
        "Turned into comments, because they mean nothing in a script: %matplotlib.",
    ]
    pulled = f"%distributed pull {' '.join(NAMES)}"
    dump = "import pickle; open('answers', 'wb').write(pickle.dumps({name: globals()[name] for name in NAMES}))"
    notebook.run(f"NAMES = {NAMES}\n{pulled}\n{dump}")
    answers = pickle.loads((folder / "answers").read_bytes())
    text = (folder / "train.py").read_text()
    assert "get_ipython" not in text
    tell = f"\nimport pickle\nopen(f'answers{{rank}}', 'wb').write(pickle.dumps([globals()[n] for n in {NAMES}]))\n"
    (folder / "told.py").write_text(text + tell)
    printed = torchrun(folder / "told.py", 4, OMP_NUM_THREADS="1")
    for rank in range(4):
        found = pickle.loads((folder / f"answers{rank}").read_bytes())
        assert dict(zip(NAMES, found, strict=True)) == {name: answers[name][rank] for name in NAMES}, rank
    assert "[2] (2, 0.5, 4)" in printed[2].splitlines()
    assert "from the shell of 3" in printed[2].splitlines()


TRAIN = """
import argparse, os, sys
import torch
import torch.distributed as dist
from helper import double

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float, required=True)
parser.add_argument("-r", default="")
parser.add_argument("--by-rank", action="store_true")
parser.add_argument("words", nargs="*")

def main():
    args = parser.parse_args()
    dist.init_process_group("gloo")
    x = torch.ones(2) * dist.get_rank()
    dist.all_reduce(x)
    pair = dist.new_group([0, 1])
    if dist.get_rank() < 2:
        dist.all_reduce(x, group=pair)
    print(double(int(x[0])), args.lr, args.by_rank, args.r, args.words)
    dist.destroy_process_group()
    sys.exit(0)

class Kept:
    pass

kept = Kept()
here = [sys.argv[0], __file__, sys.path[0], os.getcwd(), __name__, sys.modules["__main__"].kept is kept]
if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def train(folder: Path) -> Path:
    """A script as they are, with a module beside it, in a folder with a space in its name."""
    (folder / "a b").mkdir()
    (folder / "a b" / "helper.py").write_text("def double(x):\n    return 2 * x\n")
    script = folder / "a b" / "train.py"
    script.write_text(TRAIN)
    return script


def test_a_script_runs_as_torchrun_would_run_it(notebook: Notebook, folder: Path, train: Path) -> None:
    notebook.run("%%distributed\nimport sys\nbefore = list(sys.path), sys.argv, sys.modules['__main__']")
    arguments = "--lr 0.5 --by-rank -r 7 'two words' '$x' ~ *.py"
    cell = notebook.run(f"%%distributed --no-fold --file 'a b/train.py' {arguments}")
    shown = "True 7 ['two words', '$x', '~', '*.py']"
    assert cell.lines == [f"[0] 24 0.5 {shown}", f"[1] 24 0.5 {shown}", f"[2] 12 0.5 {shown}", f"[3] 12 0.5 {shown}"]
    place = f"['a b/train.py', '{train}', '{train.parent}', '{folder}', '__main__', True]"
    assert notebook.run("%%distributed\nstr(here)").text == f'[0-3] "{place}"\n'
    after = "import pickle\nbefore == (sys.path, sys.argv, sys.modules['__main__']), pickle.loads(pickle.dumps(kept))"
    assert "(True, <__main__.Kept at" in notebook.run(f"%%distributed\n{after}").text
    # The script has destroyed all groups, and yet those of the cells are good.
    assert notebook.run("%%distributed\nloss = model(data).mean()\nloss.backward()\nall_reduce(1)").text == "[0-3] 4\n"


def test_the_script_of_the_moment_and_what_lies_beside_it(notebook: Notebook, train: Path) -> None:
    (train.parent / "helper.py").write_text("def double(x):\n    return 'changed'\n")
    (train.parent / "train.py").write_text(TRAIN.replace("sys.exit(0)", "exit()"))
    cell = notebook.run("%distributed run --by-rank -r 0,2 'a b/train.py' --lr 1", fails=True)
    assert "runs on rank" in cell.error_text or "SubsetError" in cell.error_text
    assert notebook.run("%distributed run 'a b/train.py' --lr 1").lines[0] == "[0-3] changed 1.0 False  []"
    assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


TWICE = """\
import contextlib, datetime, io, os, torch, torch.distributed as dist, torch.multiprocessing as mp
mp.set_start_method("spawn")
dist.init_process_group("gloo")
rank, size, five = dist.get_rank(), dist.get_world_size(), datetime.timedelta(seconds=5)
shared = dist.distributed_c10d._get_default_store()
agents = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
for store in (shared, agents):
    store.add("arrived", 1)
dist.barrier()
print(shared.add("arrived", 0), agents.add("arrived", 0) % size)
raw, x = dist.ProcessGroupGloo(dist.PrefixStore("raw", shared), rank, size, five), torch.ones(1)
raw.allreduce([x]).wait()
with contextlib.redirect_stdout(io.StringIO()) as shown:
    exec(compile("1 + 1", "typed", "single"))
print(x.item(), repr(shown.getvalue()))
dist.destroy_process_group()
"""


def test_each_run_of_a_script_finds_what_a_process_finds(notebook: Notebook, folder: Path) -> None:
    (folder / "twice.py").write_text(TWICE)
    method = "%%distributed\nimport multiprocessing\nmultiprocessing.get_start_method(allow_none=True)"
    before = notebook.run(method).text
    for _ in range(2):
        assert notebook.run("%distributed run twice.py").text == "[0-3] 4 0\n[0-3] 4.0 '2\\n'\n"
    assert notebook.run(method).text == before
    assert notebook.run("%%distributed\n1 + 1").text == "[0-3] 2\n"
    assert torchrun(folder / "twice.py", 2) == ["2 0\n2.0 '2\\n'\n"] * 2


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit(3)", "ExitError: bad.py has ended with exit status 3."),
        ("raise SystemExit('no data')", "ExitError: bad.py has ended with the message: no data"),
        ("import argparse; p = argparse.ArgumentParser(); p.add_argument('x'); p.parse_args()", "exit status 2"),
        ("x = 1\ndef f():\n    return x / 0\nf()", "----> 3     return x / 0"),
        ("x = = 1", "SyntaxError"),
        ("import no_such_module", "No module named 'no_such_module'"),
        ("import torch.distributed as dist\nif dist.get_rank() != 1:\n    dist.barrier()", "line 3: dist.barrier()"),
        (
            "import torch.distributed as dist\ndist.init_process_group('nccl')",
            "requests a process group with backend nccl",
        ),
        (
            "import torch.distributed as dist\ndist.init_process_group('gloo', rank=0, world_size=1)",
            "This script requests a process group of 1 rank, but this world has 4 ranks",
        ),
        ("import torch.distributed as dist\ndist.init_process_group()\ndist.init_process_group()", "twice!"),
    ],
)
def test_a_script_fails_and_says_why(notebook: Notebook, folder: Path, code: str, said: str) -> None:
    (folder / "bad.py").write_text(code)
    cell = notebook.run("%%distributed --file bad.py", fails=True)
    assert said in cell.error_text + cell.text, cell.error_text
    assert "script_runner.py" not in cell.error_text
    assert "__import__" not in cell.error_text
    if "argparse" in code:
        assert "the following arguments are required: x" in cell.text
    assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


def test_what_calls_a_script_is_not_shown_as_a_line_of_it(notebook: Notebook, folder: Path) -> None:
    (folder / "meets.py").write_text(
        "import torch.distributed as dist\nif dist.get_rank() == 1: raise ValueError\ndist.barrier()\n"
    )
    # Rank 2 has not come to the script's first line yet.
    late = (
        "import time; from nbcomm.rank.cells import script_runner; keep = script_runner._keep; "
        "script_runner._keep = lambda _: time.sleep(60)"
    )
    notebook.run(f"%%distributed -r 2\nlate = {{}}\nexec({late!r}, late)")
    cell = notebook.run("%%distributed --file meets.py", fails=True)
    assert "rank 2 is still running" in cell.error_text, cell.error_text
    assert "__import__" not in cell.error_text
    notebook.run("%%distributed -r 2\nexec('script_runner._keep = keep', late)")
    assert notebook.run("%%distributed\nall_reduce(1)").text == "[0-3] 4\n"


def test_a_script_can_be_interrupted_and_leaves_no_trace(notebook: Notebook, folder: Path) -> None:
    (folder / "long.py").write_text(
        "import asyncio, os, signal, sys\nsys.path.insert(0, '/nowhere')\nos.chdir('/')\nsys.stdout = sys.stderr\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "async def wait():\n    print('on')\n    await asyncio.sleep(600)\nasyncio.run(wait())\n"
    )
    notebook.interrupted("%%distributed --file long.py", times=2)
    look = "import asyncio, os, signal, sys\nawait asyncio.sleep(0)\n"
    look += (
        f"('/nowhere' in sys.path, os.getcwd() == {str(folder)!r}, sys.stdout is sys.stderr, get_ipython() is None, "
    )
    look += "signal.getsignal(signal.SIGTERM) is signal.SIG_IGN)"
    assert notebook.run(f"%%distributed\n{look}").text == "[0-3] (False, True, False, False, False)\n"


def test_what_was_saved_runs_on_the_warm_ranks_too(notebook: Notebook, folder: Path) -> None:
    cell = notebook.run("%%distributed --file train.py")
    assert "[0-3] from the shell of 1" not in cell.lines
    assert "[2] (2, 0.5, 4)" in cell.lines
    assert "[2] from the shell of 3" in cell.lines


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%%distributed --file", "--file needs a script's name"),
        ("%%distributed --file ''", "The file name of the script is missing"),
        ("%%distributed --file nowhere.py", "There is no script 'nowhere.py' in"),
        ("%%distributed --file .", "'.' is a folder"),
        ("%%distributed --file train.py\n1 + 1", "This cell has --file and code below it"),
        ("%%distributed", "This %%distributed cell is empty"),
        ("%distributed run", "required: FILE"),
        ("%distributed save nowhere/x.py", "There is no folder"),
        ("%distributed save .", "'.' is a folder"),
        ("%distributed save ''", "A script needs a file's name"),
        ("%distributed save bad.py", "nbcomm did not write it or it was edited since"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(notebook: Notebook, line: str, said: str) -> None:
    assert said in notebook.run(line, fails=True).error_text


def test_a_saved_script_is_written_anew_unless_somebody_has_changed_it(notebook: Notebook, folder: Path) -> None:
    notebook.run("%distributed save again.py")
    notebook.run("%distributed save again.py")
    (folder / "again.py").write_text((folder / "again.py").read_text() + "# mine\n")
    assert "nothing was changed" in notebook.run("%distributed save again.py", fails=True).error_text
    notebook.run("%distributed save --force again.py")
    assert "# mine" not in (folder / "again.py").read_text()
    assert [file.name for file in folder.iterdir() if file.name.endswith(".tmp")] == []


LIBRARY = """
class State:
    shared = {}

    def __init__(self, precision):
        if self.shared.setdefault("precision", precision) != precision:
            raise ValueError("The state is there already; restart your runtime.")
"""
"""What accelerate's `AcceleratorState` does, and others: it lives as long as its process."""


@pytest.fixture(scope="module")
def singleton(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A script that uses a library, which does not lie beside it."""
    installed = tmp_path_factory.mktemp("installed")
    (installed / "singleton_library.py").write_text(LIBRARY)
    (folder / "uses.py").write_text(
        f"import sys\nsys.path.insert(0, {str(installed)!r})\nimport singleton_library\n"
        "print(singleton_library.State(sys.argv[1]).shared)\nmade = sys.argv[1]\n"
    )
    return "uses.py"


def test_what_libraries_remember_is_forgotten_by_fresh_processes(
    notebook: Notebook, singleton: str, folder: Path
) -> None:
    said = "are new and without variables"
    notebook.run("%%distributed\nmine = [rank]\nimport os\npid = os.getpid()")
    pids = notebook.run("%distributed pull pid\npid").text
    assert notebook.run(f"%distributed run {singleton} no").lines == ["[0-3] {'precision': 'no'}"]
    assert "The state is there already" in notebook.run(f"%distributed run {singleton} bf16", fails=True).error_text
    cell = notebook.run(f"%distributed run --fresh --by-rank {singleton} bf16")
    assert cell.lines == [f"Ranks 0-3 {said}.", *(f"[{rank}] {{'precision': 'bf16'}}" for rank in range(4))]
    assert notebook.run("%%distributed\nmade, 'mine' in globals(), all_reduce(1)").text == "[0-3] ('bf16', False, 4)\n"
    notebook.run("%%distributed\nimport os\npid, mine = os.getpid(), rank")
    fresh = notebook.run("%distributed pull pid\npid").text
    assert not set(pids.strip("[]\n").split(", ")) & set(fresh.strip("[]\n").split(", "))
    # On some ranks, dead ones among them, and with the words in the other order.
    notebook.run("%%distributed -r 3\nos.kill(os.getpid(), 9)", fails=True)
    cell = notebook.run(f"%%distributed -r 2,3 --fresh --quiet --file {singleton} no")
    assert cell.text == ""
    assert notebook.run("%%distributed\nall_reduce(1), made, globals().get('mine')").lines == [
        "[0] (4, 'bf16', 0)",
        "[1] (4, 'bf16', 1)",
        "[2-3] (4, 'no', None)",
    ]
    cell = notebook.run(f"%distributed run --fresh -r 1 {singleton} fp16")
    assert cell.lines[0] == "Rank 1 is new and without variables; the other ranks keep theirs."
    saved = notebook.run("%distributed save fresh.py").text
    assert "New processes replaced ranks in between (--fresh): later cells did not find" in saved
    assert "# Here new processes took the places of ranks 2-3, without variables." in (folder / "fresh.py").read_text()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("%distributed run --fresh nowhere.py", "There is no script 'nowhere.py' in"),
        ("%distributed run --fresh -r 9 uses.py no", "Rank 9 (in "),
        ("%distributed run --fresh --trace nowhere/t.json uses.py no", "nowhere"),
        ("%%distributed --fresh\n1", "--fresh applies only to a script, so nothing was run"),
    ],
)
@pytest.mark.usefixtures("singleton")
def test_a_fresh_run_that_is_refused_replaces_nothing(notebook: Notebook, line: str, said: str) -> None:
    notebook.run("%%distributed\nstays = rank")
    assert said in notebook.run(line, fails=True).error_text
    assert notebook.run("%%distributed\nall_reduce(stays)").text == "[0-3] 6\n"


@pytest.mark.usefixtures("singleton")
def test_a_fresh_run_waits_for_no_cell_and_ends_none(notebook: Notebook, folder: Path) -> None:
    wait = "import os, time; open(f'on{rank}', 'w'); stays = rank\nwhile not os.path.exists('go'): time.sleep(0.01)"
    notebook.run(
        "import os, threading, time\nfrom nbcomm.notebook.session import registry\n"
        f"thread = threading.Thread(target=registry.current().run, args=({wait!r},))\nthread.start()\n"
        "while not all(os.path.exists(f'on{rank}') for rank in range(4)): time.sleep(0.01)"
    )
    refused = notebook.run("%distributed run --fresh uses.py no", fails=True).error_text
    (folder / "go").touch()
    notebook.run("thread.join()")
    assert "This world is running another cell" in refused
    assert notebook.run("%%distributed\nall_reduce(stays)").text == "[0-3] 6\n"


TELL = """
def tell(*facts):
    with open("told", "a") as file:
        print(*facts, file=file)

"""

EACH = """
import json, os, pathlib, subprocess, sys

answers, told = {}, pathlib.Path("told")
for name, code in json.loads(pathlib.Path("cases.json").read_text()).items():
    told.unlink(missing_ok=True)
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    answers[name] = [done.stdout.decode().splitlines(), told.read_text() if told.exists() else ""]
print(json.dumps(answers))
"""

STREAMS = {
    "facts": """
        for out in (sys.stdout, sys.stderr):
            tell(out.encoding, out.errors, out.closed, out.mode, out.name, out.newlines, out.fileno(), out.isatty())
            tell(out.writable(), out.readable(), out.seekable(), out.buffer.mode, out.buffer.name, out.write_through)
        tell(sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdin is sys.__stdin__)
        tell(*[isinstance(s, io.TextIOWrapper) for s in (sys.stdin, sys.stdout, sys.stderr)], sys.stdin.mode)
        tell(hasattr(sys.stdin, "buffer"), sys.stdin.buffer.readable(), sys.stderr.line_buffering)""",
    "bytes": """
        sys.stdout.buffer.write(b"bytes\\n")
        sys.stdout.flush()
        sys.stdout.buffer.raw.write(memoryview(b"raw\\n"))""",
    "reconfigured": "sys.stdout.reconfigure(errors='replace')\ntell(sys.stdout.errors)\nprint('ü')",
    "wrapped": "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')\nprint('wräpped')",
    "detached": "sys.stdout = io.TextIOWrapper(sys.stdout.detach(), encoding='utf-8')\nprint('detached')",
    "of codecs": "import codecs\nsys.stdout = codecs.getwriter('utf-8')(sys.stdout.detach())\nprint('cödec')",
    "a file of its own": "sys.stdout = os.fdopen(sys.stdout.fileno(), 'w', 1)\nprint('own')",
    "deleted": "del sys.stdout, sys.stderr, sys.stdin\ntry: print('no')\nexcept RuntimeError as error: tell(error)",
    "none": "sys.stdout = None\nprint('no')\ntell('yes')",
    "closed": "sys.stdout.close()\ntell(sys.stdout.closed)\ntry: print('no')\nexcept ValueError as error: tell(error)",
    "its descriptor closed": "os.close(1)\ntry: os.write(1, b'no')\nexcept OSError as error: tell(error)",
    "its descriptor led elsewhere": "os.dup2(os.open(os.devnull, os.O_WRONLY), 1)\nos.write(1, b'no')",
    "put back": "sys.stdout = io.StringIO()\nprint('no')\nsys.stdout = sys.__stdout__\nprint('back')",
    "a tee": """
        class Tee:
            def __init__(self, *outs): self.outs = outs
            def write(self, text): return [out.write(text) for out in self.outs][0]
            def flush(self): [out.flush() for out in self.outs]
        sys.stdout = Tee(sys.stdout, io.StringIO())
        print('tee', file=sys.stdout, flush=True)""",
    "children": """
        import subprocess
        subprocess.run([sys.executable, '-c', 'print(1)'], stdout=sys.stdout, check=True)
        subprocess.run(['sh', '-c', 'echo 2 >&2'], stderr=sys.stdout.buffer, check=True)""",
    "logging": "import logging\nlogging.basicConfig(stream=sys.stdout)\nlogging.warning('logged')",
    "faulthandler": "import faulthandler\nfaulthandler.enable()\ntell(faulthandler.is_enabled())",
}
"""What scripts do with their streams."""


@pytest.mark.timeout(240)
def test_streams_are_those_that_torchrun_gives_and_the_next_script_finds_them_new(
    notebook: Notebook, folder: Path
) -> None:
    # One process for each case, started by a worker of the real torchrun as that was started by it.
    cases = {name: f"import io, os, sys\n{TELL}{textwrap.dedent(code).strip()}\n" for name, code in STREAMS.items()}
    (folder / "cases.json").write_text(json.dumps(cases))
    (folder / "each.py").write_text(EACH)
    there = json.loads(torchrun(folder / "each.py", 1, PYTHONIOENCODING="utf-8:strict", PYTHONUNBUFFERED="")[0])
    here = {}
    for name, code in cases.items():
        (folder / "streams.py").write_text(code)
        (folder / "told").unlink(missing_ok=True)
        cell = notebook.run("%distributed run -r 0 streams.py")
        shown = [line.removeprefix("[0] ") for line in cell.stream("stdout").splitlines()]
        here[name] = [shown, (folder / "told").read_text() if (folder / "told").exists() else ""]
        after = "import os, sys\nprint('out', file=sys.stdout)\nprint('err', file=sys.stderr)\nos.write(1, b'fd\\n');"
        assert notebook.run(f"%%distributed -r 0\n{after}").text == "[0] out\n[0] err\n[0] fd\n", name
    assert here == there


@pytest.mark.usefixtures("singleton")
def test_a_world_that_begins_with_a_script_is_fresh_enough(notebook: Notebook) -> None:
    notebook.run("%distributed stop")
    cell = notebook.run("%distributed run --fresh uses.py no", timeout=120)
    assert "[0-" in cell.text
    assert "are new" not in cell.text
    assert "there is nothing to save" in notebook.run("%distributed save none.py", fails=True).error_text


def test_after_a_restart_the_record_begins_anew(notebook: Notebook, folder: Path) -> None:
    notebook.run("%distributed restart", timeout=120)
    assert "there is nothing to save" in notebook.run("%distributed save anew.py", fails=True).error_text
    notebook.run("%%distributed\n'new'")
    assert "anew.py has 1 cell:" in notebook.run("%distributed save anew.py").text
    assert "comm.show('new')" in (folder / "anew.py").read_text()
