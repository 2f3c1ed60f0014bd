"""``fabric`` in a cell beside real Lightning Fabric, call by call, on the same random inputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nbcomm.notebook.session.session import Session

from . import inputs

SEEDS = st.integers(0, 2**31)
few = settings(max_examples=20)


def both() -> tuple[Any, Any]:
    """On a rank: nbcomm's fabric and Lightning's, over the same world."""
    import warnings

    from lightning_fabric import Fabric

    import nbcomm
    from nbcomm.fabric import Fabric as Ours

    warnings.simplefilter("ignore")
    comm = nbcomm.init()
    real = Fabric(accelerator="cpu", devices=comm.world_size, strategy="ddp" if comm.world_size > 1 else "auto")
    real.launch()
    return Ours(comm), real


@few
@given(described=inputs.trees(st.one_of(inputs.leaves, inputs.numbers, inputs.texts)), seed=SEEDS)
def test_all_gather(four: Session, described: Any, seed: int) -> None:
    def check() -> bool:
        ours, real = both()
        value = inputs.made(described, seed, ours.global_rank)
        return inputs.same(ours.all_gather(value), real.all_gather(value))

    assert four.call(check) == [True] * 4


@few
@given(
    described=inputs.trees(
        st.tuples(st.just("tensor"), inputs.shapes, st.sampled_from(("float32", "float64")))
        | st.just(("float",))
        | inputs.texts
    ),
    op=st.sampled_from(("mean", "sum", "avg", "max", "MIN")),
    seed=SEEDS,
)
def test_all_reduce_of_floats(four: Session, described: Any, op: str, seed: int) -> None:
    def check() -> Any:
        ours, real = both()
        mine, theirs = (inputs.made(described, seed, ours.global_rank) for _ in range(2))
        return inputs.same(ours.all_reduce(mine, reduce_op=op), real.all_reduce(theirs, reduce_op=op)), inputs.same(
            mine,
            theirs,  # in place, both
        )

    assert four.call(check) == [(True, True)] * 4


@few
@given(described=inputs.trees(inputs.leaves), op=st.sampled_from(("sum", "max", "min")), seed=SEEDS)
def test_all_reduce_of_any_tensor(four: Session, described: Any, op: str, seed: int) -> None:
    def check() -> Any:
        ours, real = both()
        mine, theirs = (inputs.made(described, seed, ours.global_rank) for _ in range(2))
        return inputs.same(ours.all_reduce(mine, None, op), real.all_reduce(theirs, None, op)), inputs.same(
            mine, theirs
        )

    assert four.call(check) == [(True, True)] * 4


@few
@given(
    described=inputs.trees(st.one_of(inputs.leaves, inputs.numbers, inputs.texts)), src=st.integers(0, 3), seed=SEEDS
)
def test_broadcast(four: Session, described: Any, src: int, seed: int) -> None:
    def check() -> bool:
        ours, real = both()
        value = inputs.made(described, seed, ours.global_rank)
        return inputs.same(ours.broadcast(value, src), real.broadcast(value, src))

    assert four.call(check) == [True] * 4


def test_who_and_where(four: Session) -> None:
    def check() -> bool:
        ours, real = both()
        names = ("world_size", "global_rank", "local_rank", "node_rank", "is_global_zero", "device")
        return all(getattr(ours, name) == getattr(real, name) for name in names)

    assert four.call(check) == [True] * 4


def test_the_signatures_are_fabrics() -> None:
    import inspect

    from lightning_fabric import Fabric

    from nbcomm.fabric import Fabric as Ours

    for name, method in inspect.getmembers(Ours, inspect.isfunction):
        if name.startswith("_"):
            continue
        theirs = inspect.signature(getattr(Fabric, name)).parameters
        mine = {
            key: value for key, value in inspect.signature(method).parameters.items() if value.kind != value.VAR_KEYWORD
        }
        for key, parameter in mine.items():
            assert key in theirs, (name, key)
            assert parameter.kind == theirs[key].kind, (name, key)
            if (name, key) != ("launch", "function"):  # theirs is a private function that does nothing
                assert parameter.default == theirs[key].default, (name, key)
        assert [key for key in theirs if key in mine] == list(mine), name


def test_gradients_through_all_gather(four: Session) -> None:
    def check() -> bool:
        import torch

        ours, real = both()
        grads = []
        for each in (ours, real):
            x = torch.arange(3.0).add(ours.global_rank).requires_grad_()
            (each.all_gather(x, sync_grads=True) ** 2).sum().backward()
            grads.append(x.grad)
        return inputs.same(*grads)

    assert four.call(check) == [True] * 4


def test_print_barrier_to_device_and_rank_zero_first(four: Session, capsys: pytest.CaptureFixture[str]) -> None:
    def check() -> Any:
        import torch

        ours, real = both()
        order = []
        for each in (ours, real):
            each.barrier("named")
            each.print("printed", each is ours, sep="-")
            with each.rank_zero_first():
                order.append(each.global_rank)
            with each.rank_zero_first(local=True):
                order.append(each.local_rank)
        moved = [each.to_device({"x": torch.ones(1), "n": [1]}) for each in (ours, real)]
        return order[:2] == order[2:], inputs.same(*moved)

    assert four.call(check) == [(True, True)] * 4
    assert capsys.readouterr().out.splitlines() == ["[0] printed-True", "[0] printed-False"]


def test_training_gives_the_same_weights(four: Session) -> None:
    def check() -> Any:
        import torch

        results = []
        for each in both():
            each.seed_everything(7, verbose=False)
            model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            data = torch.randn(64, 4)
            loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data, data.sum(1)), batch_size=4)
            model, optimizer = each.setup(model, optimizer)
            loader = each.setup_dataloaders(loader)
            losses, seen = [], []
            for _ in range(3):
                for step, (x, y) in enumerate(loader):
                    seen.append(x.sum())
                    with each.no_backward_sync(model, enabled=step % 2 == 0):
                        loss = (model(x).squeeze(1) - y).pow(2).mean()
                        each.backward(loss)
                    if step % 2:
                        norm = each.clip_gradients(model, optimizer, max_norm=1.0)
                        optimizer.step()
                        optimizer.zero_grad()
                losses.append(each.all_reduce(loss.detach()).item())
            results.append(
                (losses, torch.stack(seen), norm, dict(model.state_dict()), len(loader), losses[-1] < losses[0])
            )
        return inputs.same(*results), results[0][-1]

    assert four.call(check) == [(True, True)] * 4


def test_steps_marked_methods_attributes_and_schedulers(four: Session) -> None:
    def check() -> Any:
        import torch

        class Net(torch.nn.Linear):
            factor = 1.0

            def training_step(self, x):  # type: ignore[no-untyped-def]
                return (self(x) * self.factor).sum()

            def marked(self, x):  # type: ignore[no-untyped-def]
                return self(x).sum() * 2

        results = []
        for each in both():
            torch.manual_seed(0)
            plain = Net(2, 1)
            optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
            steps = torch.optim.lr_scheduler.StepLR(optimizer, 1)
            model, optimizer, scheduler = each.setup(plain, optimizer, scheduler=steps)
            model.mark_forward_method("marked")
            model.factor = 3.0
            x = torch.full((1, 2), float(each.global_rank))
            try:
                model.marked_by_nobody = 1
                each.backward(model.training_step(x) + model.marked(x))
                norm = each.clip_gradients(model, optimizer, max_norm=1.0)
                optimizer.step()
                scheduler.step()
            except Exception as error:  # noqa: BLE001 - is shown
                return repr(error)
            results.append((plain.weight.detach(), norm, plain.factor, plain.marked_by_nobody, scheduler.last_epoch))
        return inputs.same(*results)

    assert four.call(check) == [True] * 4


def test_shuffled_dataloaders_deal_every_sample_once_and_anew(four: Session) -> None:
    def check() -> Any:
        import torch

        import nbcomm

        ours, _ = both()
        ours.seed_everything(3, verbose=False)
        loader = ours.setup_dataloaders(torch.utils.data.DataLoader(range(32), batch_size=4, shuffle=True))
        epochs = [[int(n) for batch in loader for n in batch] for _ in range(2)]
        return [nbcomm.init().all_gather(epoch, "object") for epoch in epochs]

    first, second = four.call(check)[0]
    for epoch in (first, second):
        assert sorted(n for share in epoch for n in share) == list(range(32))
    assert first != second


def test_checkpoints_are_read_by_either(four: Session, tmp_path: Path) -> None:
    folder = str(tmp_path)

    def check() -> Any:
        import torch

        ours, real = both()
        found = []
        for number, (writer, reader) in enumerate([(ours, real), (real, ours), (ours, ours)]):
            model, other = (each.setup(torch.nn.Linear(2, 2)) for each in (writer, reader))
            path = f"{folder}/new/{number}.pt"
            keep = {"model": lambda key, _: "weight" in key}
            writer.save(path, {"model": model, "epoch": 3, "more": [1]}, filter=keep)
            rest = reader.load(path, state := {"epoch": 0})
            found.append((list(rest["model"]), state["epoch"], sorted(rest)))
            writer.save(path, {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.5)})
            optimizer = torch.optim.SGD(other.parameters(), 0.1)
            reader.load(path, {"model": other, "optimizer": optimizer})
            same = inputs.same(model.module.weight.detach(), other.module.weight.detach())
            found.append((same, optimizer.param_groups[0]["lr"]))
        try:
            ours.load(path, {"nothing": 1})
        except KeyError as error:
            found.append("nothing" in str(error))
        return found

    expected = [(["weight"], 3, ["model", "more"]), (True, 0.5)] * 3 + [True]
    assert four.call(check) == [expected] * 4


def test_what_it_has_not_says_where_it_is(four: Session) -> None:
    def check() -> str:
        try:
            both()[0].strategy  # noqa: B018
        except AttributeError as error:
            return str(error)
        return ""

    assert "from lightning.fabric import Fabric" in four.call(check)[0]


def test_in_a_world_of_one_rank_nothing_is_added(one: Session) -> None:
    def check() -> Any:
        import torch

        ours, real = both()
        x = {"x": torch.ones(2), "n": 3, "s": "a"}
        return [
            inputs.same(ours.all_gather(x), real.all_gather(x)),
            inputs.same(ours.all_reduce(x), real.all_reduce(x)),
            inputs.same(ours.broadcast(x), real.broadcast(x)),
            type(ours.setup(torch.nn.Linear(1, 1)).forward_module).__name__,
        ]

    assert one.call(check) == [[True, True, True, "Linear"]]
