"""The world on GPUs: run where torch sees one."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .notebook import Notebook

Open = Callable[..., Notebook]

pytestmark = pytest.mark.gpu


def test_one_rank_per_gpu_each_bound_to_its_own(open_notebook: Open) -> None:
    notebook = open_notebook("%distributed start")
    cell = notebook.run("%%distributed\nworld_size == torch.cuda.device_count(), dist.get_backend_config()")
    assert "True" in cell.text
    assert "cuda:nccl" in cell.text
    assert notebook.run("%%distributed\nstr(device) == f'cuda:{rank}'").text.split()[-1] == "True"


def test_tensors_on_the_gpu_and_objects_and_cpu_tensors_too(open_notebook: Open) -> None:
    notebook = open_notebook("%distributed start")
    code = "x = torch.ones(3, device=device)\nall_reduce(x).tolist() == [float(world_size)] * 3"
    assert "True" in notebook.run(f"%%distributed\n{code}").text
    code = "all_reduce(torch.ones(1)).item() == world_size, all_gather({'rank': str(rank)}, mode='object')[0]"
    assert "(True, {'rank': '0'})" in notebook.run(f"%%distributed\n{code}").text


def test_more_ranks_than_gpus_run_on_the_cpu_and_say_so(open_notebook: Open) -> None:
    notebook = open_notebook()
    gpus = int(notebook.run("!nvidia-smi -L | wc -l").text)
    cell = notebook.run(f"%distributed start -n {gpus + 1}")
    assert "the ranks run on the CPU; with --device cuda they share" in cell.text
    assert "cpu" in notebook.run("%%distributed\ndevice").text


def test_ranks_share_a_gpu_on_request(open_notebook: Open) -> None:
    notebook = open_notebook()
    gpus = int(notebook.run("!nvidia-smi -L | wc -l").text)
    cell = notebook.run(f"%distributed start -n {gpus + 1} --device cuda")
    assert "share" in cell.text
    code = "all_reduce(torch.ones(2, device=device))[0].item() == world_size"
    assert "True" in notebook.run(f"%%distributed\n{code}").text
