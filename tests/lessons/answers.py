"""What learners may write for each function of the lessons: the mutants are wrong, and a check says how."""

from __future__ import annotations

import ast
import textwrap

from nbcomm.lessons import solutions
from nbcomm.lessons.library import LESSONS


def solved() -> dict[str, str]:
    """Return the cell that defines the solution of each function, by its name."""
    found = {}
    for lesson in LESSONS:
        text, helpers = solutions.text(lesson), list[str]()
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef):
                found[node.name] = "\n".join([*helpers, ast.unparse(node)])
            else:
                helpers.append(ast.unparse(node))
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

_IN_THE_HOOK = """\
def average(parameter):
    parameter.grad = all_reduce(parameter.grad, "mean")
for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(average)
return lambda: None"""

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

_WHOLE_ADAM = """\
optimizer = torch.optim.Adam(model.parameters(), 0.01, eps=0.001)
def step():
    for parameter in model.parameters():
        parameter.grad = all_reduce(parameter.grad, "mean")
    optimizer.step()
return step"""

_OWN_GRADIENTS = """\
parameters = list(model.parameters())
mine = parameters[rank::world_size]
optimizer = torch.optim.Adam(mine, 0.01, eps=0.001)
def step():
    optimizer.step()
    with torch.no_grad():
        for number, parameter in enumerate(parameters):
            parameter.copy_(broadcast(parameter.detach(), src=number % world_size))
return step"""

_NOT_SHARDED = """\
shard = torch.nn.Parameter(weight.chunk(world_size)[rank].clone())
class Whole(torch.autograd.Function):
    @staticmethod
    def forward(context, x, shard):
        context.save_for_backward(x)
        return x @ weight.T
    @staticmethod
    def backward(context, grad):
        return grad @ weight, reduce_scatter(grad.T @ context.saved_tensors[0], "mean")
return lambda x: Whole.apply(x, shard), shard"""

_KEEPS_ALL = """\
shard = torch.nn.Parameter(weight.chunk(world_size)[rank].clone())
class Once(torch.autograd.Function):
    @staticmethod
    def forward(context, x, shard):
        whole = all_gather(shard, mode="cat")
        context.save_for_backward(x, whole)
        return x @ whole.T
    @staticmethod
    def backward(context, grad):
        x, whole = context.saved_tensors
        return grad @ whole, reduce_scatter(grad.T @ x, "mean")
return lambda x: Once.apply(x, shard), shard"""

_SUMMED = _KEEPS_ALL.replace(', "mean"', "")

_NOT_COPIED = """\
rows = torch.nn.Parameter(first.chunk(world_size)[rank].clone())
columns = torch.nn.Parameter(second.chunk(world_size, dim=1)[rank].clone())
class AddedUp(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return all_reduce(x)
    @staticmethod
    def backward(context, grad):
        return grad
return lambda x: AddedUp.apply(torch.nn.functional.gelu(x @ rows.T) @ columns.T), rows, columns"""

_WHOLE_MLP = """\
own_first = torch.nn.Parameter(first.chunk(world_size)[rank].clone())
own_second = torch.nn.Parameter(second.chunk(world_size, dim=1)[rank].clone())
def forward(x):
    one, two = first.clone().requires_grad_(), second.clone().requires_grad_()
    one.register_hook(lambda grad: setattr(own_first, "grad", grad.chunk(world_size)[rank]))
    two.register_hook(lambda grad: setattr(own_second, "grad", grad.chunk(world_size, dim=1)[rank]))
    return torch.nn.functional.gelu(x @ one.T) @ two.T
return forward, own_first, own_second"""

_REPLICATED = """\
from torch.distributed.tensor import DTensor, Replicate, init_device_mesh
mesh = init_device_mesh("cpu", (world_size,))
return DTensor.from_local(columns @ rows, mesh, [Replicate()]).full_tensor()"""

_GPIPE = textwrap.dedent(solved()["gpipe"].partition("\n")[2])

_ONE_AFTER_ANOTHER = """\
for x in inputs:
    if rank > 0:
        x = recv(rank - 1).requires_grad_()
    y = stage(x)
    if rank < world_size - 1:
        send(y.detach(), rank + 1)
        y.backward(recv(rank + 1))
    else:
        loss(y).backward()
    if rank > 0:
        send(x.grad, rank - 1)"""

_RING = textwrap.dedent(solved()["ring_attention"].partition("\n")[2])

_OWN_BLOCK = """\
whole = torch.nn.functional.scaled_dot_product_attention
return whole(query[None], key[None], value[None], is_causal=True)[0]"""

_NOT_BACK = """\
order = torch.argsort(expert_of)
arrived = all_to_all(list(tokens[order].split(torch.bincount(expert_of, minlength=world_size).tolist())))
return torch.cat(all_to_all([expert(each) for each in arrived]))"""

_EVERYTHING_TO_ALL = """\
everything = all_gather([tokens, expert_of], mode="object")
changed = [expert(each) for each, _ in everything]
every = all_gather(changed, mode="object")
kept = [every[int(number)][rank][place] for place, number in enumerate(expert_of)]
return torch.stack(kept) if kept else tokens"""

_CHECKPOINT = textwrap.dedent(solved()["checkpoint"].partition("\n")[2])

_RESHARD = textwrap.dedent(solved()["reshard"].partition("\n")[2])

_GATHERED = """\
whole = torch.cat(tuple(all_gather(rows)))
return whole.chunk(ranks)[rank] if rank < ranks else None"""

_EVERYTHING_SENT = """\
sent = [isend(rows, target) for target in range(world_size) if target != rank]
whole = torch.cat([rows if source == rank else recv(source) for source in range(world_size)])
for handle in sent:
    handle.wait()
return whole.chunk(ranks)[rank] if rank < ranks else None"""

MUTANTS: dict[str, list[tuple[str, str]]] = {
    "deal_out": [
        ("return broadcast(numbers)[2 * rank : 2 * rank + 2]", "where 1 scatter is asked for"),
        ("return scatter(numbers[:world_size] if rank == 0 else None)", "Wrong on ranks 0-3"),
        ("return numbers[2 * rank : 2 * rank + 2]", "TypeError: 'NoneType' object is not subscriptable"),
    ],
    "sentence": [
        ("return ' '.join(all_gather(word, mode='object'))", "Wrong on ranks 0,2-3"),
        ("words = all_gather(word, mode='object')\nreturn ' '.join(words) if rank == 1 else None", "where 1 gather is"),
        ("words = gather(word)\nreturn ' '.join(words) if rank == 1 else None", "It raised an error on rank 1"),
    ],
    "mean_of_all": [
        ("return all_reduce(batch.mean().item(), 'mean')", "Wrong on ranks 0-3"),
        ("return batch.mean().item()", "Wrong on"),
    ],
    "best_rank": [
        ("return all_reduce(loss, 'min')", "Wrong on"),
        ("return rank if loss == all_reduce(loss, 'min') else None", "Wrong on"),
    ],
    "row_numbers": [
        ("begin = scan(rows)\nreturn begin, begin + rows - 1", "Wrong on ranks 0-3"),
        ("begin = sum(all_gather(rows, mode='object')[:rank])\nreturn begin, begin + rows - 1", "where 1 scan is"),
    ],
    "sum_of_color": [
        ("return all_reduce(number)", "Wrong on"),
        ("return all_reduce(number, group=split_group(number % 2))", "Wrong on"),
    ],
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
        ("isend(value, (rank + 1) % world_size)\nreturn irecv((rank - 1) % world_size)", "its wait() returns"),
        ("return recv(rank - 1)", "src=-1 is not a rank of the group; choose one of 0-3.\n in line 3 of its cell:"),
    ],
    "my_share": [
        ("return list(range(length))[rank::world_size]", "have the same order"),
        ("return torch.randperm(length).tolist()[rank::world_size]", "is seen"),
        (_PADDED, "is seen 2 times"),
        (_ALL_TO_ONE, "the shares have"),
        ("return [length + rank]", "there is no sample"),
        ("return torch.arange(length)", "returned the Tensor "),
        ("return list(torch.arange(length))", "a list with a Tensor in it, where a list of numbers is"),
    ],
    "accuracy": [
        (_MEAN_OF_MEANS, "Wrong on ranks 0-3"),
        ("return all_reduce((predicted == wanted).sum().item()) / all_reduce(len(wanted))", "called 2 collectives"),
        ("return (predicted == wanted).float().mean().item()", "Wrong on"),
    ],
    "average_while_backward": [
        (_AT_THE_END, "began no collective before a backward ended"),
        (_IN_THE_HOOK, "waits in backward for a rank that is late"),
        ("return lambda: None", "For average_while_backward(model) on rank 0, embed.weight[0, 0] is "),
        ("model.train()", "the result is None, where a function is right"),
        (_SUMS, "Wrong on ranks 0-3"),
    ],
    "accumulate": [
        ("model.train()", "embed.weight.grad is None, where"),
        (_EACH_TIME, "collectives for"),
        ("for batch in batches:\n    model(batch).backward()", "Wrong on ranks 0-3"),
        ("(sum(map(model, batches)) / len(batches)).backward()", "Wrong on ranks 0-3"),
    ],
    "sharded_adam": [
        (_WHOLE_ADAM, "bytes beside the model"),
        (_OWN_GRADIENTS, "Wrong on ranks"),
        ("return torch.optim.Adam(model.parameters(), 0.01, eps=0.001).step", "Wrong on ranks"),
    ],
    "sharded_linear": [
        ("return lambda x: x", "where a function and a parameter are right"),
        (_NOT_SHARDED, "called 1 reduce_scatter"),
        (_KEEPS_ALL, "called 1 all_gather and 1 reduce_scatter"),
        (_SUMMED, "the gradient of the parameter[0, 0] is"),
    ],
    "parallel_mlp": [
        (_NOT_COPIED, "the gradient of x[0, 0] is"),
        (_NOT_COPIED.replace("AddedUp.apply", "all_reduce"), "a collective's result is outside of autograd's graph"),
        (_WHOLE_MLP, "where 2 all_reduce is asked for"),
        ("return 1", "the result is 1, where a function, a parameter and another parameter are right"),
    ],
    "mended_product": [
        ("return columns @ rows", "Wrong on ranks 0-3"),
        (_REPLICATED, "Wrong on ranks 0-3"),
        ("return sum(all_gather(columns @ rows))", "where 1 all_reduce is enough"),
        (_REPLICATED.replace(".full_tensor()", ""), "is a DTensor, where a plain tensor is right; its full_tensor()"),
    ],
    "gpipe": [
        (_ONE_AFTER_ANOTHER, "nothing is in parallel"),
        (_GPIPE.replace("loss(y).backward()", "(loss(y) / len(inputs)).backward()"), "Wrong on ranks 0-3"),
        ("stage.zero_grad()", "Wrong on ranks 0-3"),
    ],
    "one_forward_one_backward": [
        (_GPIPE, "had 6 micro-batches under way"),
        (_ONE_AFTER_ANOTHER, "nothing is in parallel"),
    ],
    "ring_attention": [
        (_RING.replace("own[:, None] < source", "own[:, None] < -1 + 0 * source"), "Wrong on"),
        (_RING.replace("torch.stack([key, value])", "torch.stack([key, value, query])")
         .replace("key, value = block", "key, value, _ = block"), "are enough: keys and values, no more"),
        (_RING.replace("if step < world_size - 1:\n        ", "if True:\n        "), "sent 4 messages, where 3"),
        (_OWN_BLOCK, "Wrong on ranks 1-3"),
    ],
    "dispatch": [
        (_NOT_BACK, "Wrong on"),
        ("return expert(tokens)", ", expert) on rank"),
        (
            _NOT_BACK.replace(", minlength=world_size", ""),
            "all_to_all needs a list or tuple of 4 items, one for each rank of the group, not a list of",
        ),
        (_EVERYTHING_TO_ALL, "where 2 all_to_all are enough"),
    ],
    "checkpoint": [
        (_CHECKPOINT.replace("torch.set_rng_state(kept['random'])", ""), "step 1 after it draws other random numbers"),
        (_CHECKPOINT.replace("run.optimizer.load_state_dict(kept['optimizer'])", ""), "optimizer has another state"),
        (_CHECKPOINT.replace("run.order, run.position =", "run.order, _ ="), "step 1 after it reads other samples"),
        (_CHECKPOINT.replace("deepcopy(", "("), "step 1 after it begins with other weights"),
        ("torch.manual_seed(0)\n" + _CHECKPOINT, "a save changes the run that goes on"),
    ],
    "reshard": [
        (_GATHERED, "where only messages are asked for"),
        (_RESHARD.replace("parts else None", "parts else rows[:0]"), "Wrong on"),
        (_EVERYTHING_SENT, "bytes, where it needs no more than"),
    ],
}  # fmt: skip
"""The body of a wrong function, and a part of what its check says; a function is right only in all its lines."""


def cell(puzzle: str, argument: str, body: str) -> str:
    """Return a cell that defines a learner's function."""
    return f"%%distributed\ndef {puzzle}({argument}):\n" + "".join(f"    {line}\n" for line in body.splitlines())
