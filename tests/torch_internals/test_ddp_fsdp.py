"""DDP and FSDP modules begin anew on real ranks, whatever was done to them before."""

from __future__ import annotations

import torch
import torch.distributed as dist

from nbcomm.torch_internals import ddp_fsdp

from ..worlds import Worlds, worlds_of_a_module  # noqa: F401  # the fixture `worlds`


class _Failing(torch.autograd.Function):
    """Fails in the backward, behind all layers that come later."""

    @staticmethod
    def forward(_, x):
        return x.clone()

    @staticmethod
    def backward(_, grad):
        raise ValueError("mine")


def _backward(comm, model, *, fails=False):
    """Train one step; return each gradient's values, or the name of what the backward raised."""
    model.zero_grad()
    inner = getattr(model, "module", model)
    hook = inner[0].register_forward_hook(lambda *args: _Failing.apply(args[2])) if fails else None
    try:
        model(torch.full((1, 2), comm.rank + 1.0)).sum().backward()
    except ValueError as error:
        return str(error)
    finally:
        if hook is not None:
            hook.remove()
    return [None if each.grad is None else _whole(each.grad).flatten().tolist() for each in model.parameters()]


def _whole(grad):
    return grad.full_tensor() if hasattr(grad, "full_tensor") else grad


def _net():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 1, bias=False), torch.nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(1.0)
    return model


AVERAGED = [[1.5, 1.5], [3.0]]  # of inputs 1 and 2


def test_ddp_reduces_what_was_frozen_when_it_began_anew(worlds: Worlds) -> None:
    def use(comm):
        model = torch.nn.parallel.DistributedDataParallel(_net(), find_unused_parameters=True)
        first = model.module[0].weight.requires_grad_(False)
        ddp_fsdp.reset_interrupted_modules()
        told = [first.requires_grad, _backward(comm, model)]
        first.requires_grad_(True)
        told.append(_backward(comm, model))
        model.requires_grad_(False)  # nothing is left to be reduced
        ddp_fsdp.reset_interrupted_modules()
        model.requires_grad_(True)
        return [*told, _backward(comm, model)]

    assert worlds[2].run(use) == [[False, [None, [3.0]], AVERAGED, AVERAGED]] * 2


def test_ddp_with_a_static_graph_a_hook_of_torchs_own_or_a_copy_of_it_begins_anew(worlds: Worlds) -> None:
    def use(comm):
        import copy

        ddp = torch.nn.parallel.DistributedDataParallel
        models = [ddp(_net(), static_graph=True), ddp(_net()), ddp(_net())]
        models[1]._register_builtin_comm_hook(dist.BuiltinCommHookType.FP16_COMPRESS)
        models[2] = copy.deepcopy(models[2])
        told = []
        for model in models:
            told.append([*(_backward(comm, model) for _ in range(3)), ddp_fsdp.interrupted()])
            told.append([_backward(comm, model, fails=True), ddp_fsdp.interrupted()])
            ddp_fsdp.reset_interrupted_modules()
            told.append([ddp_fsdp.interrupted(), *(_backward(comm, model) for _ in range(3))])
        with torch.no_grad():
            models[1].module[1].weight.fill_(1 + 2**-12)  # the halves of floats know no such number
        return told, _backward(comm, models[1])[0]

    again = [[*[AVERAGED] * 3, False], ["mine", True], [False, *[AVERAGED] * 3]]
    assert worlds[2].run(use) == [(again * 3, [1.5, 1.5])] * 2


def test_a_static_graph_whose_first_backward_fails_is_interrupted(worlds: Worlds) -> None:
    def use(comm):
        model = torch.nn.parallel.DistributedDataParallel(_net(), static_graph=True)
        told = [_backward(comm, model, fails=True), ddp_fsdp.interrupted()]
        ddp_fsdp.reset_interrupted_modules()
        return [*told, *(_backward(comm, model) for _ in range(3)), ddp_fsdp.interrupted()]

    assert worlds[2].run(use) == [["mine", True, *[AVERAGED] * 3, False]] * 2


def test_fsdp_begins_anew_without_the_gradients_of_what_was_cut_short(worlds: Worlds) -> None:
    def use(comm):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2,))
        model = _net()
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        told = [_backward(comm, model), ddp_fsdp.interrupted()]
        told += [_backward(comm, model, fails=True), ddp_fsdp.interrupted()]
        ddp_fsdp.reset_interrupted_modules()
        told += [ddp_fsdp.interrupted(), _backward(comm, model)]
        model.set_requires_gradient_sync(requires_gradient_sync=False)
        _backward(comm, model)
        model.set_requires_gradient_sync(requires_gradient_sync=True)
        ddp_fsdp.reset_interrupted_modules()
        told.append(_backward(comm, model))
        hook = model[1].register_forward_hook(lambda *_: 1 / 0)
        try:
            model(torch.ones(1, 2))
        except ZeroDivisionError:
            told.append(ddp_fsdp.interrupted())
        hook.remove()
        ddp_fsdp.reset_interrupted_modules()
        return [*told, _backward(comm, model)]

    expected = [AVERAGED, False, "mine", True, False, AVERAGED, AVERAGED, True, AVERAGED]
    assert worlds[2].run(use) == [expected] * 2


def test_a_module_that_cannot_begin_anew_keeps_no_other_from_it(worlds: Worlds) -> None:
    def use(comm):
        ddp = torch.nn.parallel.DistributedDataParallel
        spoiled, bare, model = ddp(_net()), ddp(_net()), ddp(_net())
        spoiled._bucket_config = None
        del bare.reducer
        told = [_backward(comm, model, fails=True)]
        ddp_fsdp.reset_interrupted_modules()
        return [*told, ddp_fsdp.interrupted(), _backward(comm, model)]

    assert worlds[2].run(use) == [["mine", False, AVERAGED]] * 2
