"""CUDA is begun by ranks, and by no process that forks: its driver does not survive a fork.

A driver without a GPU stands in for NVIDIA's, and notes who begins it.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch

from .notebook import Notebook

DRIVER = r"""
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int no_device(void) { return 100; }

int cuInit(unsigned int flags) {
    char line[32];
    int file = open(getenv("COUNTED"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    int size = snprintf(line, sizeof line, "%d\n", (int)getpid());
    if (file >= 0 && write(file, line, size) == size) close(file);
    return no_device();
}

int cuDriverGetVersion(int *version) { *version = 13000; return 0; }

int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags, int *found) {
    *function = !strcmp(name, "cuInit") ? (void *)cuInit
        : !strcmp(name, "cuDriverGetVersion") ? (void *)cuDriverGetVersion
        : !strncmp(name, "cuGetProcAddress", 16) ? (void *)cuGetProcAddress_v2 : (void *)no_device;
    if (found) *found = 0;
    return 0;
}

int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags) {
    return cuGetProcAddress_v2(name, function, version, flags, 0);
}
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Where the driver is, and what it notes; short enough for sockets, and with a seed of its own."""
    compiler = shutil.which("cc")
    if torch.version.cuda is None:
        pytest.skip(
            f"torch {torch.__version__} is a build without CUDA, which never begins it; make test-torch has one"
        )
    if compiler is None:
        pytest.skip("there is no C compiler (cc) to make a driver that counts")
    with tempfile.TemporaryDirectory(prefix="nb", ignore_cleanup_errors=True) as made:
        source = Path(made, "driver.c")
        source.write_text(DRIVER)
        command = [compiler, "-shared", "-fPIC", "-o", f"{made}/libcuda.so.1", str(source)]
        subprocess.run(command, check=True, timeout=60)
        yield Path(made)


@pytest.mark.parametrize("warm", ["0", "1s"])
def test_cuda_is_begun_by_no_process_that_forks(folder: Path, warm: str) -> None:
    counted = folder / "counted"
    notebook = Notebook(
        str(folder), TMPDIR=str(folder), COUNTED=str(counted), LD_LIBRARY_PATH=str(folder), NBCOMM_WARM=warm
    )
    try:
        notebook.run("import os\nimport torch\ntorch.cuda.is_available()")
        (own,) = map(int, counted.read_text().split())
        assert own == int(notebook.run("print(os.getpid())").text), "the driver does not count"
        counted.unlink()
        notebook.run("%load_ext nbcomm")
        notebook.run("%distributed start -n 2", timeout=120)
        assert notebook.run("%%distributed\nall_reduce(rank)").text == "[0-1] 1\n"
        lines = notebook.run("%%distributed\nimport os\nprint(os.getpid())").lines
        ranks = {int(line.split()[-1]) for line in lines}
        began = set(map(int, counted.read_text().split())) - ranks
        # The GPUs are counted in a child, which has ended.
        assert len(began) == 1
        assert not any(psutil.pid_exists(pid) for pid in began)
        # Each process that forks lives.
        parents = {parent.pid for rank in ranks for parent in psutil.Process(rank).parents()}
        assert len(parents) > 1
        assert not began & parents
    finally:
        notebook.close()
