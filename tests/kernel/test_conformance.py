"""Jupyter's own tests of kernels, `jupyter_kernel_test`, on the installed cluster kernel.

They speak its protocol as nbclient and other front ends do, and validate each message. The samples are those with
which ipykernel is tested; where one has a result, it is the ranks'.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

import pytest
from ipykernel.iostream import IOPubThread
from jupyter_client.manager import KernelManager

from tests.world.notebook import Notebook

from .conftest import RANKS

suite = pytest.importorskip("jupyter_kernel_test", reason="jupyter-kernel-test is not installed")

ALL = f"[0-{RANKS - 1}]"
_SECONDS = 60.0
"""The suite gives a message 0.1 s to come where nothing may come late; on a machine that is busy, it may."""

pytestmark = [pytest.mark.usefixtures("prefix"), pytest.mark.timeout(120)]


@contextmanager
def _patient(channel: Any) -> Iterator[None]:
    """Wait longer for each message than the suite asks for."""
    get = suite.ensure_sync(channel.get_msg)
    with patch.object(channel, "get_msg", lambda timeout: get(timeout=max(timeout, _SECONDS))):
        yield


class TestKernel(suite.KernelTests):
    """A cell's outputs and its reply, completion, inspection, history."""

    __test__ = True
    notebook: ClassVar[Notebook]
    place: ClassVar[tempfile.TemporaryDirectory[str]]

    language_name = "python"
    file_extension = ".py"
    code_hello_world = "print('hello, world')"
    code_stderr = "import sys; print('test', file=sys.stderr)"
    completion_samples: ClassVar = [{"text": "zi", "matches": {"zip"}}]
    complete_code_samples: ClassVar = ["1", "print('hello, world')", "def f(x):\n  return x*2\n\n\n"]
    incomplete_code_samples: ClassVar = ["print('''hello", "def f(x):\n  x*2"]
    invalid_code_samples: ClassVar = ["import = 7q"]
    code_page_something = "zip?"
    code_generate_error = "raise"
    code_execute_result: ClassVar = [
        {"code": "1+2+3", "result": f"{ALL} 6"},
        {"code": "[n*n for n in range(1, 4)]", "result": f"{ALL} [1, 4, 9]"},
        {"code": "from IPython.display import HTML; HTML('<b>x</b>')", "result": "<b>x</b>", "mime": "text/html"},
    ]
    code_display_data: ClassVar = [
        {"code": "from IPython.display import HTML, display; display(HTML('<b>test</b>'))", "mime": "text/html"},
        {"code": "from IPython.display import Math, display; display(Math('\\frac{1}{2}'))", "mime": "text/latex"},
    ]
    code_history_pattern = "1?2*"
    supported_history_operations = ("tail", "search")  # IPython calls the session of a range 0, the suite by its number
    code_inspect_sample = "zip"
    code_clear_output = "from IPython.display import clear_output; clear_output()"

    @classmethod
    def setUpClass(cls) -> None:
        cls.place = tempfile.TemporaryDirectory(prefix="nb", ignore_cleanup_errors=True)
        cls.notebook = Notebook(cls.place.name, kernel="nbcomm")
        cls.km, cls.kc = cls.notebook.manager, cls.notebook.client
        # A start takes longer than the suite waits for a cell.
        assert cls.notebook.run("world_size", timeout=100).lines[-1] == f"{ALL} {RANKS}"
        # What a slow rank holds up is shown live, as displays; the suite looks for plain outputs.
        cls.notebook.run("%%local\nfrom nbcomm.notebook.output import cell_output\ncell_output._QUICK = 60.0")

    @classmethod
    def tearDownClass(cls) -> None:
        cls.notebook.close()
        cls.place.cleanup()

    def flush_channels(self) -> None:
        """Take all that was on its way; the suite takes what comes within 0.1 s, and the next cell would get the rest.

        The kernel tells that it is idle after its reply, and answers in order.
        """
        asked = self.kc.kernel_info()
        for get, last in (
            (self.kc.get_shell_msg, lambda _: True),
            (self.kc.get_iopub_msg, lambda heard: heard["content"].get("execution_state") == "idle"),
        ):
            while True:
                heard = get(timeout=_SECONDS)
                suite.validate_message(heard)
                if heard["parent_header"].get("msg_id") == asked and last(heard):
                    break

    def execute_helper(self, *args: Any, **kwargs: Any) -> Any:
        with _patient(self.kc.iopub_channel):
            return super().execute_helper(*args, **kwargs)


class TestIopubWelcome(suite.IopubWelcomeTests):
    """What a front end hears when it connects."""

    kernel_name = "nbcomm"
    support_iopub_welcome = hasattr(IOPubThread, "_send_welcome_message")  # ipykernel 7 and newer
    place: ClassVar[tempfile.TemporaryDirectory[str]]

    @classmethod
    def setUpClass(cls) -> None:
        # Over TCP ipykernel warns at its start, and that may be heard before the welcome.
        cls.place = tempfile.TemporaryDirectory(prefix="k-", ignore_cleanup_errors=True)
        file = f"{cls.place.name}/k.json"
        cls.km = KernelManager(kernel_name=cls.kernel_name, transport="ipc", connection_file=file)
        cls.km.start_kernel()
        cls.kc = cls.km.client()

    @classmethod
    def tearDownClass(cls) -> None:
        super().tearDownClass()
        cls.place.cleanup()
