"""Every place where nbcomm catches faults of its own, and what such a fault costs: a table, compared with the code.

``python -m tests.world.boundaries --write docs/reliability.md`` writes it anew; `test_boundaries` does each row.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbcomm

PACKAGE = Path(nbcomm.__file__).parent
ROOT = Path(__file__).parents[2]
_GUARDS = {"beside", "log", "_going_on"}
_BEGIN, _END = "<!-- boundaries: written by tests.world.boundaries -->", "<!-- end of boundaries -->"

NOTHING, SENTENCE, CELL, REST = "nothing", "a sentence", "the cell", "output that has not been shown"


@dataclass(frozen=True)
class Boundary:
    """One fault, and who catches it.

    Attributes:
        guard: the words with which the code catches it; what differs from time to time is {}.
        side: where: "rank", "notebook", "daemon" or "seed".
        spoiled: what fails: module:Class.method, or module:function.
        costs: what the user loses.
        how: it "raises", raises an error of 30 MB ("huge"), gives "None", is "slow", or, as a thread, "ends".
        thread: on which it fails, "main" or the name of another; on any if empty.
        of: it fails only over such a message.
        action: during what: see `test_boundaries`.
        told: what is said in place of the guard's words.
        elsewhere: the test that does it, where that is another one.
    """

    guard: str
    side: str
    spoiled: str
    costs: str
    how: str = "raises"
    thread: str = ""
    of: str = ""
    action: str = "cell"
    told: str = ""
    elsewhere: str = ""


_ITSELF = "nbcomm itself failed on rank 2"

_TRIED = "test_a_step_that_fails_is_tried_again_or_costs_one_order"
_OPENED = "test_a_link_that_cannot_be_opened_again_is_tried_again"
_END_WHATEVER = "test_an_end_is_told_whatever_fails_in_telling_it"
_ONE_LOST = "test_a_process_that_could_not_be_noted_is_ended_and_its_start_has_failed"
_ZYGOTE = "test_a_zygote_that_cannot_be_started_is_tried_again"

TABLE = (
    # What the main thread of a rank does.
    Boundary(
        "a duty failed", "rank", "nbcomm.rank.collectives.journal:Journal.begin", CELL, thread="main", told=_ITSELF
    ),
    Boundary(
        "an answer could not be given",
        "rank",
        "nbcomm.rank.main_loop:MainLoop._answer",
        CELL,
        elsewhere="tests/world/test_own_faults.py::test_an_answer_that_cannot_be_given_is_given_a_moment_later",
    ),
    Boundary(
        "what has left the event loop could not be shown",
        "rank",
        "nbcomm.rank.cells.runner:CellRunner.fail",
        NOTHING,
        elsewhere="tests/world/test_as_in_a_kernel.py::test_a_fault_beside_what_leaves_the_event_loop_ends_no_rank",
    ),
    Boundary("", "rank", "nbcomm.rank.groups.world:World.begin", CELL, thread="main", told="spoiled"),
    Boundary("", "rank", "nbcomm.rank.cells.runner:CellRunner.run", CELL, thread="main", told="spoiled"),
    Boundary("its end could not be noted", "rank", "nbcomm.rank.groups.world:World.end", SENTENCE, thread="main"),
    Boundary(
        "what the cell may lack could not be told",
        "rank",
        "nbcomm.rank.cells.namespace:HidingVariables.explain",
        SENTENCE,
        thread="main",
    ),
    Boundary(
        "its collectives could not be reported",
        "rank",
        "nbcomm.rank.collectives.journal:Journal.steps",
        SENTENCE,
        thread="main",
    ),
    Boundary(
        "its collectives could not be reported",
        "rank",
        "nbcomm.rank.collectives.flight_recorder:FlightRecorder.tidy",
        SENTENCE,
        thread="main",
    ),
    Boundary("", "rank", "nbcomm.rank.collectives.journal:Journal.steps", NOTHING, how="slow", thread="main"),
    Boundary(
        "",
        "rank",
        "nbcomm.rank.collectives.journal:Journal.dropped",
        CELL,
        how="None",
        thread="main",
        told="its answer was lost",
    ),
    Boundary(
        "its unfinished calls are not known",
        "rank",
        "nbcomm.rank.collectives.stuck:StuckDetector.at_end",
        SENTENCE,
        thread="main",
    ),
    Boundary("some of its output is lost", "rank", "nbcomm.rank.output.capture:Capture.take", SENTENCE, thread="main"),
    Boundary(
        "an answer could not be sent",
        "rank",
        "nbcomm.rank.link:to_frames",
        CELL,
        of="Done",
        thread="main",
        told=_ITSELF,
    ),
    Boundary(
        "its end could not be noted", "rank", "nbcomm.rank.groups.world:World.end", SENTENCE, how="huge", thread="main"
    ),
    Boundary("", "rank", "nbcomm.rank.cells.runner:CellRunner.run", CELL, how="huge", thread="main", told="spoiled"),
    *(
        Boundary("the values of a call could not be read", "rank", f"nbcomm.rank.{where}", SENTENCE, action=action)
        for where, action in (
            ("collectives.call_values:of_call", "drawing"),
            ("collectives.call_values:Drawn.finish", "drawing"),
            ("collectives.call_values:Drawn.finish_late", "drawing"),
            ("collectives.journal:size_of", "tracing"),
        )
    ),
    # What its link's thread does.
    Boundary(
        "it could not be looked whether a notebook is there",
        "rank",
        "nbcomm.node.notebook_end:NotebookEnd.looks_up",
        NOTHING,
        elsewhere="tests/rank/test_link.py::test_where_it_cannot_be_looked_who_is_there_what_has_come_is_heard",
    ),
    Boundary("a round of the link failed", "rank", "nbcomm.rank.messages:Messages.leaving", NOTHING),
    Boundary("it could not be told what does not end", "rank", "nbcomm.rank.ending:Ending.look", NOTHING),
    Boundary("a {} failed", "rank", "nbcomm.rank.main_loop:MainLoop.put", CELL, of="Run", told=_ITSELF),
    Boundary("a {} failed", "rank", "nbcomm.rank.link:RankLink._snapshot", NOTHING),
    Boundary("a {} failed", "rank", "nbcomm.rank.cells.completion_thread:CompletionThread.ask", NOTHING, action="ask"),
    Boundary("a {} failed", "rank", "nbcomm.rank.cells.stdin:InputPrompter.hear", CELL, action="input", told=_ITSELF),
    Boundary("a {} failed", "rank", "nbcomm.rank.link:RankLink._terminate", NOTHING, action="interrupt"),
    Boundary("a {} failed", "rank", "nbcomm.rank.cells.runner:CellRunner.interrupts", NOTHING, action="interrupt"),
    Boundary("a {} failed", "rank", "nbcomm.rank.groups.generation:Generation.broken", NOTHING, action="hang"),
    Boundary("a {} failed", "rank", "nbcomm.rank.groups.generation:Generation.abort", NOTHING, action="hang"),
    Boundary(
        "a message could not be read",
        "rank",
        "nbcomm.rank.link:decode_to_rank",
        CELL,
        of="Run",
        action="lost",
        told="its request was lost in transit",
    ),
    Boundary(
        "an interrupt could not be passed on",
        "rank",
        "nbcomm.rank.termination:Termination.proceed",
        NOTHING,
        action="interrupt",
    ),
    Boundary(
        "an answer to what was typed could not be ended",
        "rank",
        "nbcomm.rank.cells.completion_thread:CompletionThread.look",
        NOTHING,
    ),
    Boundary(
        "output could not be sent", "rank", "nbcomm.rank.link:RankLink._send_output", NOTHING, thread="nbcomm-link"
    ),
    Boundary(
        "this rank could not register with ipyparallel's controller",
        "rank",
        "nbcomm.rank.registration:Registration._register",
        "session.client",
        elsewhere="tests/rank/test_registration.py::test_what_fails_is_answered_and_logged_and_can_be_tried_again",
    ),
    # What the notebook's threads do.
    Boundary("the link failed", "notebook", "nbcomm.launch.link:Link._send_waiting", NOTHING),
    Boundary("the link failed", "notebook", "nbcomm.launch.link:Link._take_arrived", NOTHING),
    Boundary(
        "a message could not be taken",
        "notebook",
        "nbcomm.launch.link:decode_from_rank",
        CELL,
        of="Done",
        told="its answer was lost in transit",
    ),
    Boundary("a message could not be taken", "notebook", "nbcomm.launch.link:decode_piece", NOTHING),
    Boundary(
        "a report could not be taken",
        "notebook",
        "nbcomm.launch.link:decode_report",
        NOTHING,
        elsewhere="tests/launch/test_link.py::test_callbacks_that_fail_do_not_end_the_link",
    ),
    Boundary(
        "its run time could not be shown",
        "notebook",
        "nbcomm.notebook.shell.magics:Session.took",
        NOTHING,
        elsewhere="tests/notebook/shell/test_magics.py::test_a_fault_in_telling_the_time_does_not_harm_the_cell",
    ),
    Boundary(
        "what it showed could not be kept", "notebook", "nbcomm.notebook.output.last_cell:KeptArea._grow", NOTHING
    ),
    Boundary(
        "the last words could not be sent",
        "notebook",
        "nbcomm.launch.link:Link._send_waiting",
        NOTHING,
        elsewhere="tests/launch/test_link.py::test_a_link_whose_last_words_fail_is_closed_all_the_same",
    ),
    Boundary(
        "a message could not be taken",
        "notebook",
        "nbcomm.notebook.execution.dispatcher:Dispatcher.hear",
        CELL,
        of="Done",
        thread="nbcomm-link",
        told="its answer was lost in transit",
    ),
    Boundary(
        "a piece of output could not be taken",
        "notebook",
        "nbcomm.notebook.execution.cell_run:CellExecutor.show",
        REST,
        action="printing",
    ),
    Boundary("a message could not be taken", "notebook", "nbcomm.notebook.cluster.rank_table:RankTable.note", NOTHING),
    Boundary(
        "a message could not be taken",
        "notebook",
        "nbcomm.notebook.execution.input_prompts:InputPrompts.hear",
        NOTHING,
        action="input",
    ),
    Boundary(
        "a hang could not be judged",
        "notebook",
        "nbcomm.notebook.cluster.generations:Generations.abort",
        NOTHING,
        action="hang",
    ),
    Boundary(
        "the ranks could not be asked what they do",
        "notebook",
        "nbcomm.notebook.cluster.rank_table:RankTable.asking",
        NOTHING,
    ),
    Boundary(
        "the ranks' processes could not be looked at",
        "notebook",
        "nbcomm.launch.node_client:NodeClient.look",
        NOTHING,
        thread="nbcomm-watch",
    ),
    Boundary(
        "what is lost could not be looked for",
        "notebook",
        "nbcomm.notebook.execution.dispatcher:Dispatcher.open",
        NOTHING,
        thread="nbcomm-watch",
    ),
    Boundary(
        "a question could not be put",
        "notebook",
        "nbcomm.notebook.execution.input_prompts:InputPrompts._due",
        NOTHING,
        elsewhere="tests/world/test_own_faults.py::test_a_question_that_could_not_be_put_costs_no_answer",
    ),
    Boundary(
        "the node could not be told to end",
        "notebook",
        "nbcomm.launch.node_client:NodeClient._is_told_to_end",
        NOTHING,
        elsewhere="tests/launch/test_nodes.py::test_a_fault_in_one_step_of_the_end_leaves_no_process",
    ),
    Boundary(
        "a hang could not be judged", "notebook", "nbcomm.notebook.execution.hang_watch:judge", NOTHING, action="hang"
    ),
    Boundary(
        "collectives could not be kept",
        "notebook",
        "nbcomm.analysis.collective_log:CollectiveLog.hear",
        NOTHING,
        action="waiting",
    ),
    Boundary(
        "the panel could not be told",
        "notebook",
        "nbcomm.notebook.session.session:Panel.update",
        NOTHING,
        thread="nbcomm-watch",
    ),
    Boundary(
        "output could not be shown",
        "notebook",
        "nbcomm.notebook.output.cell_output:CellOutput.render",
        NOTHING,
        thread="main",
        action="printing",
    ),
    *(
        Boundary(f"output could not be shown {where} an input box", "notebook", spoiled, NOTHING, action="input")
        for where, spoiled in (
            ("above", "nbcomm.notebook.output.cell_output:CellOutput.expose"),
            ("after", "nbcomm.notebook.output.cell_output:CellOutput.cut"),
        )
    ),
    Boundary(
        "a piece of output could not be read",
        "notebook",
        "nbcomm.notebook.output.cell_output:as_view",
        REST,
        action="printing",
    ),
    Boundary(
        "output could not be shown beside an input box",
        "notebook",
        "nbcomm.notebook.output.cell_output:CellOutput.render",
        NOTHING,
        thread="nbcomm-input",
        action="input",
    ),
    # A thread that ends.
    *(
        Boundary("the thread {} failed", side, f"thread nbcomm-{name}", costs, how="ends", elsewhere=test)
        for side, name, costs, test in (
            ("notebook", "link", NOTHING, "tests/world/test_threads.py::test_a_thread_of_the_notebook_goes_on"),
            ("notebook", "watch", NOTHING, "tests/world/test_threads.py::test_a_thread_of_the_notebook_goes_on"),
            (
                "notebook",
                "widgets",
                REST,
                "tests/notebook/widgets/test_mirrors.py::test_a_held_back_value_that_cannot_be_sent_is_lost_alone",
            ),
            (
                "notebook",
                "panel",
                NOTHING,
                "tests/panel/test_panel.py::test_a_burst_whose_end_cannot_be_sent_is_sent_a_moment_later",
            ),
            ("rank", "link", NOTHING, "tests/world/test_threads.py::test_a_rank_that_has_lost_its_link_makes_another"),
            (
                "rank",
                "lane",
                CELL,
                "tests/comm/transport/test_async_lanes.py::test_a_thread_that_fails_is_told_to_who_waits",
            ),
        )
    ),
    # What it does at the end of a cell.
    Boundary(
        "a question could not be closed",
        "notebook",
        "nbcomm.notebook.execution.input_prompts:InputPrompts.end",
        NOTHING,
    ),
    Boundary(
        "the end of its output could not be shown",
        "notebook",
        "nbcomm.notebook.output.cell_output:CellOutput.close",
        SENTENCE,
    ),
    Boundary(
        "its collectives could not be kept", "notebook", "nbcomm.analysis.collective_log:CollectiveLog.end", SENTENCE
    ),
    Boundary("", "notebook", "nbcomm.analysis.collective_log:CollectiveLog.end", NOTHING, how="slow"),
    Boundary("the panel could not be saved", "notebook", "nbcomm.notebook.session.session:Panel.settle", SENTENCE),
    Boundary(
        "its pictures or its trace could not be made",
        "notebook",
        "nbcomm.notebook.execution.after_cell:Aftermath.__call__",
        SENTENCE,
    ),
    Boundary(
        "its collectives could not be kept",
        "notebook",
        "nbcomm.analysis.collective_log:CollectiveLog.end",
        SENTENCE,
        how="huge",
    ),
    Boundary(
        "whose cell it is could not be noted",
        "notebook",
        "nbcomm.notebook.shell.routing:_asking",
        SENTENCE,
        elsewhere="tests/notebook/shell/test_routing.py::test_a_cell_runs_also_if_it_cannot_be_noted_whose_it_is",
    ),
    Boundary(
        "a hint could not be shown",
        "notebook",
        "nbcomm.notebook.shell.hints:hint",
        NOTHING,
        elsewhere="tests/notebook/shell/test_hints.py::test_a_hint_that_cannot_be_given_costs_nothing",
    ),
    # What hears of processes, and starts them.
    *(
        Boundary(guard, side, spoiled, costs, elsewhere=f"tests/{test}")
        for guard, side, spoiled, costs, test in (
            (
                "an end was not noted",
                "notebook",
                "nbcomm.notebook.cluster.processes:Processes._ended",
                NOTHING,
                "launch/test_node_client.py::test_who_fails_over_an_end_is_told_of_the_next",
            ),
            (
                "another daemon could not be noted",
                "notebook",
                "nbcomm.notebook.cluster.generations:Generations.look_for_store",
                NOTHING,
                "launch/test_node_client.py::test_who_fails_over_another_daemon_does_not_keep_the_client_from_it",
            ),
            (
                "another daemon could not be started",
                "notebook",
                "nbcomm.launch.node_client:NodeClient.launch",
                NOTHING,
                "launch/test_node_client.py::test_who_asks_is_answered_whatever_keeps_the_next_daemon_from_coming",
            ),
            (
                "what the node has left could not be ended",
                "notebook",
                "nbcomm.node.fence:fence",
                NOTHING,
                "launch/test_head.py::test_a_fence_that_fails_does_not_keep_the_notebook_from_its_end",
            ),
            (
                "a process is only looked at",
                "daemon",
                "os:pidfd_open",
                NOTHING,
                "node/test_daemon.py::test_a_process_that_cannot_be_watched_is_looked_at",
            ),
            *(
                (guard, "daemon", spoiled, NOTHING, f"node/{test}")
                for guard, spoiled, test in (
                    ("a look at what has ended", "os:waitpid", f"test_daemon.py::{_END_WHATEVER}"),
                    (
                        "an end could not be handled",
                        "nbcomm.node.processes.oom:kills",
                        f"test_daemon.py::{_END_WHATEVER}",
                    ),
                    (
                        "an end",
                        "nbcomm.node.processes.children:Children._end",
                        "processes/test_children.py::test_an_end_whose_noting_fails_is_noted_by_the_next_turn",
                    ),
                    (
                        "what a rank has not said",
                        "nbcomm.node.unsaid:read",
                        "processes/test_children.py::test_an_end_is_noted_also_where_it_cannot_be_read_what_was_not_said",
                    ),
                    (
                        "a look at the processes",
                        "nbcomm.node.processes.children:lives",
                        "processes/test_children.py::test_where_no_file_can_be_opened_no_process_is_taken_for_dead",
                    ),
                    (
                        "ending all",
                        "nbcomm.node.processes.children:Children.end_all",
                        "test_daemon_orders.py::test_an_end_comes_though_its_processes_could_not_be_ended",
                    ),
                )
            ),
            (
                "the seed stumbled",
                "seed",
                "os:waitpid",
                NOTHING,
                "node/seed/test_seed.py::test_a_step_that_fails_is_tried_again",
            ),
            (
                "the kills for lack of memory could not be counted",
                "daemon",
                "nbcomm.node.processes.oom:kills",
                NOTHING,
                "node/test_daemon.py::test_a_start_does_not_fail_where_kills_cannot_be_counted",
            ),
            *(
                (guard, "daemon", spoiled, NOTHING, f"node/processes/test_children.py::{test}")
                for guard, spoiled, test in (
                    (
                        "the processes could not be written down",
                        "nbcomm.world_dir:WorldDir.write_children",
                        "test_where_nothing_can_be_written_processes_are_started_and_ended_all_the_same",
                    ),
                    (
                        "a process could not be taken over",
                        "nbcomm.node.processes.children:lives",
                        "test_one_that_cannot_be_taken_over_does_not_keep_the_others_from_it",
                    ),
                    (
                        "the processes of an earlier daemon",
                        "nbcomm.world_dir:WorldDir.read_children",
                        "test_without_an_earlier_one_there_is_nothing_to_take_over",
                    ),
                )
            ),
            *(
                (guard, "daemon", f"nbcomm.node.{spoiled}", NOTHING, f"node/test_daemon_orders.py::{test}")
                for guard, spoiled, test in (
                    ("what the link's monitor told", "notebook_end:NotebookEnd.looks_up", _TRIED),
                    ("opening the link again", "notebook_end:NotebookEnd.open", _OPENED),
                    ("what the notebook sent", "notebook_end:NotebookEnd.receive", _TRIED),
                    ("an order of the notebook", "daemon:Daemon._deliver", _TRIED),
                    ("a turn", "daemon:Daemon._turn", _TRIED),
                    ("what the zygote sent", "daemon:Daemon._hear_zygote", _TRIED),
                    ("a start could not be noted", "processes.children:Children.add", _ONE_LOST),
                    ("what the notebook is to know", "daemon:Daemon._tell", _TRIED),
                    ("a start", "starts:Starts.go_on", _TRIED),
                    ("a connection", "daemon:Daemon._tell_status", _TRIED),
                    ("what the groups need", "rendezvous:Rendezvous.serve", _TRIED),
                    ("starting a zygote", "zygote:Zygote.start", _ZYGOTE),
                )
            ),
            (
                "what a rank of another node has said could not be done",
                "daemon",
                "nbcomm.node.page_copies:PageCopies.write",
                NOTHING,
                "node/test_rendezvous.py::test_what_a_rank_says_and_cannot_be_done_is_logged_and_holds_up_nobody",
            ),
        )
    ),
)


@dataclass(frozen=True)
class Huge:
    """Something that a cell makes, of tens of megabytes or of a million parts.

    Attributes:
        what: in words.
        cell: makes it, or asks for it.
        costs: what the user loses.
        shows: what the cell shows.
        error: what its error says, where it fails.
        said: whether what is left out is said.
        before: a cell that goes before it.
        after: one that takes away what it has left.
        most: characters that it shows at most.
    """

    what: str
    cell: str
    costs: str = NOTHING
    shows: str = ""
    error: str = ""
    said: str = ""
    before: str = ""
    after: str = ""
    most: int = 40 << 20


_ON_2 = "%%distributed -r 2\n"
_LONG = f"'{'z' * 200_000}'"
_CUT = "are left out) …"
_MIDDLE = "the middle of its text, which is said"

HUGE = (
    Huge(
        "the value of a cell, as text",
        f"{_ON_2}class Huge:\n    def __repr__(self): return 'r' * (30 << 20)\nHuge()",
        shows="[2] rrr",
    ),
    Huge(
        "the message of an error",
        f"{_ON_2}raise ValueError('x' * (30 << 20))",
        _MIDDLE,
        error="ValueError: xxx",
        said=_CUT,
        most=3 << 20,
    ),
    Huge(
        "the message of an error, in a million lines",
        f"{_ON_2}raise ValueError('x\\n' * 10 ** 6)",
        _MIDDLE,
        error="ValueError: x",
        said=_CUT,
        most=3 << 20,
    ),
    Huge(
        "a traceback: a deep recursion, in long lines",
        f"{_ON_2}def deep(n): '{'y' * 2000}'; return deep(n + 1)\ndeep(0)",
        error="RecursionError",
    ),
    Huge("a line that is printed", f"{_ON_2}print('x' * (30 << 20))", shows="[2] xxx"),
    Huge("a display, as HTML", f"{_ON_2}display(HTML('h' * (30 << 20)))", shows="HTML object"),
    Huge(
        "a display, as JSON", f"{_ON_2}display(JSON([{{'a': 'x' * 1000}} for _ in range(30_000)]))", shows="JSON object"
    ),
    Huge("a display of a million parts", f"{_ON_2}display(JSON(list(range(10 ** 6))))", shows="JSON object"),
    Huge(
        "a display that changes, each of its values",
        f"{_ON_2}shown = display(HTML('h' * (4 << 20)), display_id=True)\n"
        "for n in range(20): shown.update(HTML(str(n) * (4 << 20)))",
        shows="HTML object",
        after=f"{_ON_2}del shown",
        most=200 << 20,
    ),
    Huge(
        "displays that could change, of many cells",
        f"{_ON_2}for n in range(40): display(HTML(str(n) * (2 << 20)), display_id=True)",
        shows="HTML object",
        most=200 << 20,
    ),
    Huge(
        "the line of a collective, in 600 of them",
        f"get_ipython().run_cell_magic('distributed', '', \"for _ in range(600): {_LONG}; all_reduce(rank)\")\n"
        "assert max(len(each.line) for each in session._executor.collective_log.story(2)[0].rungs) < 400",
        "the end of the line, in the panel, pictures and traces",
    ),
    Huge(
        "the line of a hang",
        f"%%distributed\nif rank != 1: {_LONG}; barrier()",
        "the end of the line",
        error="HangError",
        most=5000,
    ),
    Huge(
        "the values of a picture",
        "%%distributed --draw\nclass Huge:\n    def __repr__(self): return 'r' * (10 << 20)\n"
        "for value in (10 ** 9999, ['x'] * 10 ** 6, {'k' * (5 << 20): 1}, Huge(), 'x' * (5 << 20)):\n"
        "    broadcast(value, src=2);",
        "all but a few characters of each, as of any value",
        shows="broadcast",
        most=100_000,
    ),
    Huge(
        "a trace of a thousand collectives",
        "%%distributed --trace trace.json\nfor _ in range(1000): dist.barrier()",
        shows="Trace of 1000",
    ),
    Huge(
        "the names of variables, and how many there are",
        "%distributed who",
        "the rows behind the first two thousand, which is said",
        shows="variables on ranks 0-3",
        said="The first 2,000 are shown",
        before=f"{_ON_2}globals().update({{f'v{{n}}': n for n in range(3000)}}, **{{'n' * (5 << 20): 1}})\n"
        "ones = [1] * 10 ** 6",
        after=f"{_ON_2}for n in range(3000): del globals()[f'v{{n}}']\ndel globals()['n' * (5 << 20)], n, ones",
        most=600_000,
    ),
    Huge(
        "a line of a rank's log",
        "%distributed log 2",
        "all of the line but its beginning",
        shows="lll",
        before=f"{_ON_2}os.write(2, b'l' * (30 << 20));",
        most=200_000,
    ),
    Huge(
        "what is completed",
        "answered(2, 'complete', 'wide', 4);",
        before=f"{_ON_2}globals().update({{f'wide{{n}}': n for n in range(9999)}})\nglobals()['wide' * 10 ** 6] = 1",
        after=f"{_ON_2}[globals().pop(name) for name in [*globals()] if name.startswith('wide')];",
    ),
    Huge(
        "what is told of a name",
        "told = answered(2, 'inspect', 'documented', 3)\n"
        "assert len(str(told)) < 300_000 and 'ddd' in str(told); del told",
        _MIDDLE,
        before=f"{_ON_2}def documented(): pass\ndocumented.__doc__ = 'd' * (20 << 20)",
        after=f"{_ON_2}del documented",
    ),
    Huge(
        "the state of a widget",
        f"{_ON_2}import ipywidgets\nwidget = ipywidgets.HTML('w' * (20 << 20))",
        after=f"{_ON_2}widget.close(); del widget",
    ),
    Huge(
        "a variable that is pushed",
        "%distributed push text",
        before="text = 't' * (30 << 20)",
        after="del text",
    ),
    Huge(
        "a variable that is pulled",
        "%distributed pull text",
        before="%%distributed\ntext = 't' * (30 << 20)",
        after="del text",
    ),
    Huge("the code of a cell", f"%%distributed\nx = '{'c' * (1 << 20)}'; del x"),
)


# ── compared with the code ──────────────────────────────────────────────────────────────────────────


def guards() -> set[str]:
    """The words of every guard in the package, with {} for what differs from time to time."""
    return {words for path in sorted(PACKAGE.rglob("*.py")) for words in _guards_of(ast.parse(path.read_text()))}


def _guards_of(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _GUARDS:
            owner = ast.unparse(node.func.value)
            if owner.endswith(("_faults", "logged")) or node.func.attr == "_going_on":
                yield from _words(node.args[0], tree)


def _words(node: ast.expr, tree: ast.Module) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    else:  # a loop over a dict of steps by their words
        assert isinstance(node, ast.Name)
        for loop in ast.walk(tree):
            if isinstance(loop, ast.For) and node.id in ast.unparse(loop.target).strip("()").split(", "):
                yield from _keys(ast.unparse(loop.iter).removesuffix(".items()"), tree)


def _keys(name: str, tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name and isinstance(node.value, ast.Dict):
            yield from (str(key.value) for key in node.value.keys if isinstance(key, ast.Constant))


# ── written down ────────────────────────────────────────────────────────────────────────────────────

_HOW = {
    "raises": "raises an error",
    "huge": "raises an error of 30 MB",
    "None": "gives None",
    "slow": "takes a second longer",
    "ends": "ends",
}
_ACTIONS = {
    "cell": "",
    "lost": "",
    "ask": ", while something is typed",
    "input": ", while a cell asks for input",
    "interrupt": ", at ■",
    "hang": ", in a hang",
    "printing": ", in a cell that prints",
    "waiting": ", in a cell that takes long",
    "drawing": ", in a cell that is drawn",
    "tracing": ", in a cell that is traced",
}


def page() -> str:
    """The table in Markdown."""
    rows = [
        f"| {row.side} | `{row.spoiled.removeprefix('nbcomm.').replace(':', '.')}` {_HOW[row.how]}"
        f"{f' over a {row.of}' if row.of else ''}{_ACTIONS[row.action]} | {row.costs} |"
        for row in TABLE
    ]
    huge = [f"| {row.what} | {row.costs} |" for row in HUGE]
    faults = ["| in | what fails | what it costs |", "|---|---|---|", *rows]
    return "\n".join([_BEGIN, *faults, "", "| what is huge | what it costs |", "|---|---|", *huge, _END])


def written(text: str) -> str:
    """Return a text with the table in its place."""
    return re.sub(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", lambda _: page(), text, flags=re.DOTALL)


def main() -> None:
    """Write the table into a page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, required=True, metavar="PAGE")
    path = parser.parse_args().write
    path.write_text(written(path.read_text()))


if __name__ == "__main__":
    main()
