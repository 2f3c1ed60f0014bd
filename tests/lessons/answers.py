"""What learners may write for each function of the lessons: the mutants are wrong, and a check says how."""

from __future__ import annotations

import ast

from nbcomm.lessons import solutions
from nbcomm.lessons.library import LESSONS


def solved() -> dict[str, str]:
    """Return the cell that defines the solution of each function, by its name."""
    found = {}
    for lesson in LESSONS:
        text = solutions.text(lesson)
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                found[node.name] = ast.unparse(node)
    return found


_TO_ALL = """\
whole = tensor.clone()
for step in range(1, world_size):
    sent = isend(tensor, (rank + step) % world_size)
    whole += recv((rank - step) % world_size)
    sent.wait()
return whole"""

_WHOLE = """\
whole, moving = tensor.clone(), tensor
for step in range(world_size - 1):
    sent = isend(moving, (rank + 1) % world_size)
    moving = recv((rank - 1) % world_size)
    sent.wait()
    whole += moving
return whole"""

_PADDED = """\
from torch.utils.data import DistributedSampler
sampler = DistributedSampler(range(length), shuffle=True)
sampler.set_epoch(epoch)
return list(sampler)"""

_ALL_TO_ONE = """\
order = torch.randperm(length, generator=torch.Generator().manual_seed(epoch)).tolist()
return order if rank == 0 else []"""

_MEAN_OF_MEANS = """\
mine = (predicted == wanted).float().mean().item() if len(wanted) else 0.0
return all_reduce(mine, "mean")"""

_AT_THE_END = """\
def finish():
    for parameter in model.parameters():
        parameter.grad = all_reduce(parameter.grad, "mean")
return finish"""

_SUMS = """\
begun = []
for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(
        lambda parameter: begun.append((parameter, all_reduce(parameter.grad, async_op=True))))
def finish():
    while begun:
        parameter, coming = begun.pop()
        parameter.grad = coming.wait()
return finish"""

_EACH_TIME = """\
for batch in batches:
    (model(batch) / len(batches)).backward()
    for parameter in model.parameters():
        parameter.grad = all_reduce(parameter.grad, "mean")"""

MUTANTS: dict[str, list[tuple[str, str]]] = {
    "gather_all": [
        ("return [value] * world_size", "Wrong on ranks"),
        ("return [3, 'a', None, 4]", "Wrong on ranks 0-3"),
        ("return gather(value, dst=0, mode='object')", "Wrong on ranks 1-3"),
        ("return all_gather(value, mode='object')", "where 4 broadcast is asked for"),
        ("return [broadcast(value, src=0) for _ in range(world_size)]", "Wrong on ranks 0-3"),
        ("return [broadcast(value, src=source) for source in range(world_size - (rank == 1))]", "It can never end"),
    ],
    "sum_all": [
        ("return all_reduce(tensor)", "where 1 all_gather and 1 reduce_scatter is asked for"),
        ("return reduce_scatter(tensor)", "has the shape"),
        ("return torch.zeros_like(tensor)", "Wrong on ranks 0-3"),
        ("return all_gather(reduce_scatter(tensor))", "has the shape"),
        ("return torch.cat(all_gather(reduce_scatter(tensor)))", "It raised an error on ranks 0-3.\nTypeError"),
    ],
    "ring_all_reduce": [
        ("return all_reduce(tensor)", "where only messages are asked for"),
        (_TO_ALL, "which is not on its right"),
        (_WHOLE, "sent 3 messages, where 6 are asked for"),
        (
            "moving = tensor\nsend(moving, (rank + 1) % world_size)\nreturn moving + recv((rank - 1) % world_size)",
            "It can never end",
        ),
    ],
    "from_the_left": [
        ("received = recv((rank - 1) % world_size)\nsend(value, (rank + 1) % world_size)\nreturn received",
         "It can never end"),
        ("return all_gather(value, mode='object')[rank - 1]", "called all_gather, where one message is enough"),
        ("return sendrecv(value, (rank - 1) % world_size, (rank + 1) % world_size)", "Wrong on ranks 0-3"),
    ],
    "my_share": [
        ("return list(range(length))[rank::world_size]", "have the same order"),
        ("return torch.randperm(length).tolist()[rank::world_size]", "is seen"),
        (_PADDED, "is seen 2 times"),
        (_ALL_TO_ONE, "the shares have"),
        ("return [length + rank]", "there is no sample"),
        ("return torch.arange(length)", "where a list of numbers is asked for"),
    ],
    "accuracy": [
        (_MEAN_OF_MEANS, "Wrong on ranks 0-3"),
        ("return all_reduce((predicted == wanted).sum().item()) / all_reduce(len(wanted))", "called 2 collectives"),
        ("return (predicted == wanted).float().mean().item()", "Wrong on"),
    ],
    "average_while_backward": [
        (_AT_THE_END, "began no collective before a backward ended"),
        ("return lambda: None", "Wrong on ranks 0-3"),
        (_SUMS, "Wrong on ranks 0-3"),
    ],
    "accumulate": [
        (_EACH_TIME, "collectives for"),
        ("for batch in batches:\n    model(batch).backward()", "Wrong on ranks 0-3"),
        ("(sum(map(model, batches)) / len(batches)).backward()", "Wrong on ranks 0-3"),
    ],
}  # fmt: skip
"""The body of a wrong function, and a part of what its check says; a function is right only in all its lines."""


def cell(puzzle: str, argument: str, body: str) -> str:
    """Return a cell that defines a learner's function."""
    return f"%%distributed\ndef {puzzle}({argument}):\n" + "".join(f"    {line}\n" for line in body.splitlines())
