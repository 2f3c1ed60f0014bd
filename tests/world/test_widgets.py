"""Widgets and progress bars that cells make on ranks, with a page that shows and moves them."""

from __future__ import annotations

import base64
import re
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .page import VIEW, Page, page_with_ranks

_COLOUR = re.compile(r"\x1b\[[\d;]*m")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """A page with four ranks on the CPU."""
    with page_with_ranks(tmp_path_factory.mktemp("page")) as opened:
        opened.run("%%distributed\nimport ipywidgets, time")
        yield opened


def cell(page: Page, code: str, options: str = "", **how: Any) -> Any:
    """Run a cell on ranks."""
    return page.run(f"%%distributed {options}\n{textwrap.dedent(code)}", **how)


def only(page: Page, shown: Any) -> str:
    """The one widget in the one block of a cell."""
    ((widget,),) = (block.values() for block in page.rows(shown))
    return widget


def test_a_slider_moved_in_the_page_is_moved_on_its_rank(page: Page) -> None:
    code = """\
        s = ipywidgets.IntSlider(3, description="x")
        s.observe(lambda change: print("now", change["new"]), "value")
        s"""
    shown = cell(page, code, "-r 0")
    widget = only(page, shown)
    assert shown.text == "[0] x: 3\n"
    opened = {comm: parent for kind, comm, _, _, parent in page.said if kind == "open"}
    assert opened[widget] == shown.message
    assert page.models[widget]["value"] == 3
    assert page.models[widget]["_model_name"] == "IntSliderModel"

    message = page.tell(widget, {"method": "update", "state": {"value": 7}, "buffer_paths": []})
    page.until(lambda: "now 7" in shown.text, 20, "the observer did not run", shown)
    assert shown.lines[-1] == "[0] (late) now 7"
    assert cell(page, "s.value", "-r 0").text == "[0] 7\n"
    echoes = [
        parent for _, comm, data, _, parent in page.said if comm == widget and data.get("method") == "echo_update"
    ]
    assert echoes == [message]

    moved = cell(page, "s.value = 9", "-r 0")
    updates = [
        (data["state"], parent) for _, comm, data, _, parent in page.said if comm == widget and parent == moved.message
    ]
    assert updates == [({"value": 9}, moved.message)]


def test_a_page_that_is_loaded_again_finds_the_widgets_of_ranks(page: Page) -> None:
    shown = cell(page, "kept = ipywidgets.FloatSlider(0.5); kept", "-r 0")
    states = page.all_states()
    known = states[only(page, shown)]
    assert known["model_name"] == "FloatSliderModel"
    assert known["model_module"] == "@jupyter-widgets/controls"
    assert known["state"]["value"] == 0.5
    assert known["state"]["layout"].removeprefix("IPY_MODEL_") in states
    assert shown.outputs[0]["data"][VIEW]["model_id"] in states


def test_a_button_runs_its_callback_and_what_that_raises_is_shown(page: Page) -> None:
    code = """\
        def pressed(button):
            print("pressed on", rank)
            raise ValueError("no more")
        b = ipywidgets.Button(description="go")
        b.on_click(pressed)
        b"""
    shown = cell(page, code, "-r 0")
    assert shown.text == "[0] [go]\n"
    page.click(only(page, shown))
    page.until(lambda: "no more" in shown.text, 20, "the callback did not run", shown)
    assert "[0] (late) pressed on 0" in shown.lines
    assert "ValueError" in shown.stream("stderr")
    assert cell(page, "all_reduce(1)").text == "[0-3] 4\n"


def test_a_callback_is_told_that_nobody_can_be_asked(page: Page) -> None:
    for asks, told in (("input()", "so the code cannot ask for input"), ("breakpoint()", "The debugger has no input")):
        shown = cell(page, f"s = ipywidgets.IntSlider(3); s.observe(lambda _: {asks}, 'value'); s", "-r 0")
        page.set(only(page, shown), value=7)
        page.until(lambda told=told, shown=shown: told in shown.stream("stderr"), 20, "it was not told", shown)
    assert cell(page, "all_reduce(1)").text == "[0-3] 4\n"


def test_messages_of_a_widgets_own_and_binary_parts_travel_both_ways(page: Page) -> None:
    code = """\
        import anywidget, traitlets
        class Pixels(anywidget.AnyWidget):
            _esm = "export default { render() {} }"
            data = traitlets.Any(b"\\x00\\xff").tag(sync=True)
        def answer(widget, content, buffers):
            widget.send({"got": content["n"] + 1}, [bytes(buffers[0])[::-1]])
        p = Pixels(); p.on_msg(answer)
        p"""
    widget = only(page, cell(page, code, "-r 0"))
    (opened,) = [(data, buffers) for kind, comm, data, buffers, _ in page.said if comm == widget and kind == "open"]
    assert opened[0]["buffer_paths"] == [["data"]]
    assert opened[1] == [b"\x00\xff"]
    page.custom(widget, {"n": 1}, [b"abc"])
    said: list[Any] = []

    def answered() -> bool:
        said[:] = [
            (data, raw) for _, comm, data, raw, _ in page.said if comm == widget and data.get("method") == "custom"
        ]
        return bool(said)

    page.until(answered, 20, "the widget did not answer")
    assert said == [({"method": "custom", "content": {"got": 2}}, [b"cba"])]
    message = {"method": "update", "state": {}, "buffer_paths": [["data"]]}
    page.tell(widget, message, [b"\x01\x02\x03"])
    page.until(lambda: "3" in cell(page, "len(p.data)", "-r 0").text, 20, "the bytes did not come")


def test_other_comms_have_their_other_half_too(page: Page) -> None:
    code = """\
        import comm
        c = comm.create_comm(target_name="mine", data={"hello": rank})
        c.on_msg(lambda message: c.send({"back": message["content"]["data"]}))"""
    cell(page, code, "-r 1")
    (opened,) = [comm for kind, comm, data, *_ in page.said if kind == "open" and data == {"hello": 1}]
    page.tell(opened, {"a": [1]})
    page.until(lambda: any(data == {"back": {"a": [1]}} for _, _, data, *_ in page.said), 20, "it did not answer")
    cell(page, "c.close()", "-r 1")
    page.until(lambda: any(kind == "close" and comm == opened for kind, comm, *_ in page.said), 20, "it is open")


def test_what_the_page_says_while_a_cell_runs_waits_and_the_last_value_counts(page: Page, tmp_path: Path) -> None:
    code = """\
        s, seen = ipywidgets.IntSlider(), []
        s.observe(lambda change: seen.append(change["new"]), "value")
        s"""
    widget = only(page, cell(page, code, "-r 0"))
    begun, go = tmp_path / "begun", tmp_path / "go"
    # JupyterLab speaks to widgets on a thread of the kernel's own, so that it is heard while a cell runs.
    page.run(f"""
import comm, pathlib, threading, time
def speak():
    while not pathlib.Path({str(begun)!r}).exists(): time.sleep(0.01)
    for value in range(1, 30):
        data = {{"method": "update", "state": {{"value": value}}, "buffer_paths": []}}
        message = {{"content": {{"comm_id": {widget!r}, "data": data}}, "metadata": {{}}, "buffers": []}}
        comm.get_comm_manager().comm_msg(None, None, message)
    pathlib.Path({str(go)!r}).touch()
threading.Thread(target=speak).start()""")
    code = f"""\
        import pathlib
        pathlib.Path({str(begun)!r}).touch()
        while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)
        print(seen)"""
    assert cell(page, code, "-r 0").text == "[0] []\n"
    page.until(lambda: "29" in cell(page, "s.value", "-r 0").text, 20, "the slider did not move")
    assert cell(page, "len(seen) < 29", "-r 0").text == "[0] True\n"


def test_an_output_widget_takes_what_is_shown_in_it(page: Page) -> None:
    code = """\
        out = ipywidgets.Output()
        display(out)
        with out:
            print("inside", rank); print("too")
            display({"text/html": "<b>bold</b>", "text/plain": "bold"}, raw=True)
        print("outside")
        with out:
            raise KeyError("caught")
        [output["output_type"] for output in out.outputs]"""
    shown = cell(page, code, "-r 0-1")
    assert "[0-1] outside" in shown.lines
    assert "[0-1] ['stream', 'display_data', 'error']" in shown.lines
    assert re.match(r"\[0\] inside 0\n    too\n    bold\n", shown.text)
    (rows,) = page.rows(shown)
    for rank in (0, 1):
        state = page.models[rows[f"[{rank}]"]]
        assert state["msg_id"] == ""  # or a page would wait for messages that answer it
        assert state["outputs"][0] == {"output_type": "stream", "name": "stdout", "text": f"inside {rank}\ntoo\n"}
        assert state["outputs"][2]["ename"] == "KeyError"
    cell(page, "out.clear_output()\nwith out: print('again')", "-r 0-1")
    assert page.models[rows["[1]"]]["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "again\n"}]


def test_tasks_and_threads_share_an_output_widget(page: Page) -> None:
    code = """\
        import asyncio
        from concurrent.futures import ThreadPoolExecutor
        out = ipywidgets.Output(); display(out)
        async def task(name):
            with out:
                print("begin", name)
                await asyncio.sleep(0.05 * name)
                print("end", name)
            print("outside", name)
        _ = await asyncio.gather(task(1), task(2))
        def work(name):
            with out: print("thread", name)
        with ThreadPoolExecutor(2) as pool: pool.submit(work, 1); pool.submit(work, 2)
        print(out.msg_id == "")"""
    shown = cell(page, code, "-r 0")
    assert shown.lines[-3:] == ["[0] outside 1", "[0] outside 2", "[0] True"]
    taken = page.models[only(page, shown)]["outputs"][0]["text"].splitlines()
    assert taken[:4] == ["begin 1", "begin 2", "end 1", "end 2"]
    assert sorted(taken[4:]) == ["thread 1", "thread 2"]


def test_who_enters_an_output_widget_as_another_one_leaves_it_keeps_what_is_there(page: Page) -> None:
    code = """\
        import threading, traitlets
        leaving, entered = threading.Event(), threading.Event()
        class Slow(ipywidgets.Output):
            @traitlets.validate("outputs")
            def _stored(self, proposal):
                leaving.set()
                entered.wait(0.5)  # it may not, before this is over
                return proposal.value
        out = Slow(); display(out)
        def second():
            leaving.wait(20)
            with out: entered.set(); print("second")
        thread = threading.Thread(target=second); thread.start()
        with out: print("first")
        thread.join()"""
    shown = cell(page, code, "-r 0")
    assert page.models[only(page, shown)]["outputs"][0]["text"] == "first\nsecond\n"


def test_an_output_widget_grows_while_the_cell_runs(page: Page, tmp_path: Path) -> None:
    go = tmp_path / "go"
    code = f"""\
        import pathlib, time
        from tqdm import tqdm
        out = ipywidgets.Output(); display(out)
        with out:
            for _ in tqdm(range(50)): print(end="")
            print("half")
            while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)
            print("whole")"""
    running = page.submit(f"%%distributed -r 0\n{textwrap.dedent(code)}")

    def outputs() -> str:
        return str([page.models[name]["outputs"] for name in page.named("Output")])

    page.until(lambda: "half" in outputs(), 20, "nothing was shown", running)
    assert not running.idle
    go.write_text("")
    page.finish(running)
    assert "whole" in outputs()
    assert "50/50" in running.text


def test_interact_runs_its_function_where_it_was_made(page: Page) -> None:
    code = """\
        def twice(n=3):
            print("rank", rank, "has", n)
            return 2 * n
        _ = ipywidgets.interact(twice, n=(0, 10))"""
    shown = cell(page, code, "-r 2")
    assert shown.text == "[2] n: 3\n    rank 2 has 3\n    6\n"
    page.set(page.named("IntSlider", description="n")[-1], value=5)

    def answered() -> bool:
        return "rank 2 has 5" in str([page.models[name]["outputs"] for name in page.named("Output")])

    page.until(answered, 20, "the function did not run again", shown)
    assert "10" in str(page.models[page.named("Output")[-1]]["outputs"])
    assert "late" not in shown.text


def test_bars_that_are_widgets_share_one_block(page: Page) -> None:
    code = """\
        from tqdm.notebook import tqdm
        for _ in tqdm(range(5), desc=f"step of {rank}"): pass
        for _ in tqdm(range(5), leave=False): pass"""
    shown = cell(page, code)
    assert len(shown.outputs) == 1, shown.outputs
    assert list(page.rows(shown)[0]) == ["[0]", "[1]", "[2]", "[3]"]
    for rank, line in enumerate(shown.lines):
        assert line.startswith(f"[{rank}] step of {rank}: 100% |██████████| 5/5 ["), line


@pytest.mark.parametrize("module", ["tqdm", "tqdm.auto"])
def test_bars_of_text_are_lines(page: Page, module: str) -> None:
    code = f"""\
        from {module} import tqdm, trange
        for _ in tqdm(range(30), desc=f"outer {{rank}}", ncols=50):
            for _ in trange(3, desc="inner", leave=False, ncols=50): pass
        bars = [tqdm(total=4, position=i, desc=f"at {{i}}", ncols=50) for i in range(2)]
        for bar in bars: bar.update(4)
        for bar in bars: bar.close()"""
    shown = cell(page, code)
    assert not any(VIEW in output.get("data", {}) for output in shown.outputs)
    lines = [line for line in shown.lines if line.strip() and not re.fullmatch(r"\[[\d,-]+\]", line)]
    assert all("100%" in line for line in lines), shown.text
    assert [line.split()[2] for line in lines if "outer" in line] == ["0:", "1:", "2:", "3:"]
    assert not any("inner" in line for line in lines)
    assert {line.split()[2] for line in lines if " at " in line} == {"0:", "1:"}


def test_what_rich_shows_live_is_one_line_of_each_rank(page: Page) -> None:
    code = """\
        from rich.progress import Progress
        import rich, time
        with Progress() as progress:
            task = progress.add_task(f"task {rank}", total=40)
            for i in range(40):
                progress.advance(task)
                time.sleep(0.01)
        with rich.get_console().status("soon gone"): pass
        rich.print("[bold]done[/bold]")"""
    shown = cell(page, code, "-r 0-1")
    lines = [_COLOUR.sub("", line) for line in shown.lines if line.strip()]
    assert len(lines) == 3, lines
    for rank, line in enumerate(lines[:2]):
        assert line.startswith(f"[{rank}] task {rank} ━"), line
        assert "100%" in line
    assert lines[2] == "[0-1] done"
    assert not any(VIEW in output.get("data", {}) for output in shown.outputs)


def test_figures_are_one_per_rank_and_folded_where_they_are_the_same(page: Page) -> None:
    code = """\
        import matplotlib.pyplot as plt
        plt.plot([0, {}])
        plt.show()"""
    for height, labels in (("1", ["[0-3]"]), ("1 + rank % 2", ["[0,2]", "[1,3]"])):
        shown = cell(page, code.format(height))
        pictures = [output["data"]["image/png"] for output in shown.outputs if "image/png" in output.get("data", {})]
        assert len(pictures) == len(labels)
        assert all(base64.b64decode(picture).startswith(b"\x89PNG") for picture in pictures)
        # Whoever draws first is shown first, where the others take long.
        assert sorted(re.findall(r"\[[\d,-]+\]", shown.text)) == labels


def test_a_rank_that_clears_its_output_takes_its_row_out(page: Page) -> None:
    code = """\
        from IPython.display import clear_output
        display(ipywidgets.Label(f"first {rank}"))
        if rank == 0: clear_output()
        display(ipywidgets.Label("second"))"""
    shown = cell(page, code, "-r 0-1")
    assert sorted(shown.lines) == ["[0] second", "[1] first 1", "[1] second"]


def test_a_callback_that_needs_other_ranks_is_told_that_they_take_no_part(page: Page) -> None:
    code = """\
        b = ipywidgets.Button()
        b.on_click(lambda _: all_reduce(1))
        b"""
    shown = cell(page, code, "-r 0")
    page.click(only(page, shown))
    page.until(lambda: "Error" in shown.text, 20, "nothing was said", shown)
    assert cell(page, "all_reduce(1)").text == "[0-3] 4\n"


def test_a_callback_that_does_not_end_is_ended_by_an_interrupt(page: Page) -> None:
    code = """\
        def forever(_):
            print("callback begins")
            while True: time.sleep(0.05)
        b = ipywidgets.Button()
        b.on_click(forever)
        b"""
    shown = cell(page, code, "-r 0")
    page.click(only(page, shown))
    page.until(lambda: "callback begins" in shown.text, 20, "the callback did not run", shown)
    waiting = page.submit("%%distributed\nprint('on', rank)\ntime.sleep(60)")
    page.until(lambda: "on 3" in waiting.text, 20, "the cell did not begin", waiting)
    page.interrupt()
    page.finish(waiting, 20)
    assert waiting.error is not None
    assert waiting.error["ename"] == "KeyboardInterrupt", waiting.error_text + shown.text
    assert cell(page, "all_reduce(1)").text == "[0-3] 4\n"


def bars(page: Page, ranks: int) -> None:
    """Any number of ranks have their bars in one block."""
    shown = cell(page, "from tqdm.notebook import tqdm\nfor _ in tqdm(range(5)): pass")
    assert list(page.rows(shown)[0]) == [f"[{rank}]" for rank in range(ranks)]
    assert shown.text.count("100%") == ranks
    assert len(shown.outputs) == 1


def test_widgets_of_the_dead_are_silent_and_a_stopped_world_leaves_text(tmp_path: Path) -> None:
    with page_with_ranks(tmp_path, 2) as page:
        code = """\
            import ipywidgets, os
            s = ipywidgets.IntSlider(4, description=f"of {rank}")
            b = ipywidgets.Button(); b.on_click(lambda _: os.kill(os.getpid(), 9))
            display(s, b)"""
        shown = cell(page, code)
        sliders, buttons = page.rows(shown)
        page.click(buttons["[1]"])
        page.until(lambda: "dead" in page.run("%distributed status").text, 20, "rank 1 lives on")
        page.set(sliders["[1]"], value=5)
        page.click(buttons["[1]"])
        page.run("%distributed heal")
        page.click(buttons["[1]"])  # another process is in its place
        page.set(sliders["[0]"], value=6)
        page.until(lambda: "6" in cell(page, "s.value", "-r 0").text, 20, "the slider did not move")
        assert cell(page, "all_reduce(1)").text == "[0-1] 2\n"
        page.run("%distributed stop")
        page.until(lambda: not page.models, 20, "widgets are open")
        assert shown.text == "[0] of 0: 6\n[1] of 1: 5\n[0] []\n[1] []\n"
        assert not any(VIEW in output["data"] for output in shown.outputs)
        assert page.run("import ipywidgets; len(ipywidgets.widgets.widget._instances)").text == "0\n"

        page.run("%distributed start -n 8")
        bars(page, 8)


def test_another_kernel_that_attaches_has_the_widgets(tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(prefix="nb", dir="/tmp", ignore_cleanup_errors=True) as elsewhere,
        page_with_ranks(tmp_path, 1, TMPDIR=elsewhere) as page,
    ):
        cell(page, "import ipywidgets\ns, late = ipywidgets.IntSlider(4), ipywidgets.Image(value=b'raw')")
        cell(page, "box = ipywidgets.VBox(); box.children = [s, ipywidgets.Label('x'), late]")
        page.restart()
        page.run("%load_ext nbcomm")
        page.run("%distributed attach")
        bars(page, 1)
        shown = cell(page, "box")
        assert shown.text.startswith("[0] IntSlider: 4\n    x")
        slider, _, image = page.models[only(page, shown)]["children"]
        opened = [comm for kind, comm, *_ in page.said if kind == "open"]
        assert opened.index(slider.removeprefix("IPY_MODEL_")) < opened.index(only(page, shown))
        assert [raw for _, comm, _, raw, _ in page.said if f"IPY_MODEL_{comm}" == image] == [[b"raw"]]
        page.set(slider.removeprefix("IPY_MODEL_"), value=6)
        page.until(lambda: "6" in cell(page, "s.value").text, 20, "the slider did not move")
        page.run("%distributed stop")
