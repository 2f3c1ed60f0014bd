"""The likeliest mistakes of learners, and what they see: docs/teaching.md quotes them, and they are played on ranks."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from nbcomm.lessons import solutions

LEFT_OUT = "…"
"""In what is seen: something that is left out, or that differs from run to run."""


@dataclass(frozen=True)
class Mistake:
    """One mistake.

    Attributes:
        lesson: its number; 0 for what happens in all lessons.
        puzzle: which one is checked.
        typed: what the page shows of what the learner types.
        seen: what the learner sees then.
        cell: the cell, if only a part of it is shown.
        after: what the notebook runs between a prediction and its check.
        check: whether the puzzle is checked then; else what is seen is what was typed leads to.
    """

    lesson: int
    puzzle: str
    typed: str
    seen: str
    cell: str = ""
    after: str = ""
    check: bool = True

    @property
    def cells(self) -> list[str]:
        """All cells, of which the last one shows what is seen."""
        check = [f"%distributed check {self.puzzle}"] * self.check
        return [self.cell or self.typed, *filter(None, [self.after]), *check]

    def matches(self, shown: str) -> bool:
        """Return whether this is what is seen."""
        parts = [re.escape(" ".join(part.split())) for part in self.seen.split(LEFT_OUT)]
        return re.fullmatch(r" ?.* ?".join(parts), " ".join(shown.split())) is not None


def _function(lesson: int, asks: str, body: str, seen: str) -> Mistake:
    cell = f"%%distributed\ndef {asks}:\n{textwrap.indent(body, '    ')}"
    return Mistake(lesson, asks.partition("(")[0], cell, seen)


def _spoiled(lesson: int, puzzle: str, file: str, old: str, new: str, seen: str, shown: str = "") -> Mistake:
    """The solution, but for some lines."""
    text = solutions.text(file)
    assert text.count(old) == 1, (puzzle, old)
    return Mistake(lesson, puzzle, shown or textwrap.dedent(new), seen, cell=f"%%distributed\n{text.replace(old, new)}")


def _predicted(lesson: int, puzzle: str, value: str, after: str, seen: str) -> Mistake:
    return Mistake(lesson, puzzle, f"%distributed predict {puzzle} {value}", seen, after=f"%%distributed\n{after}")


_TWO_WAITS = """\
if rank < 2:
    barrier()
elif rank == 2:
    raise ValueError("rank 2 has had enough")
else:
    recv(src=0)"""

MISTAKES = [
    # ── all lessons ──
    Mistake(
        0,
        "gather_all",
        "def gather_all(value):\n    return [broadcast(value, src=source) for source in range(world_size)]",
        """\
– gather_all: Write gather_all(value) in a %%distributed cell; it is not there
yet. …
The notebook itself has a gather_all, which no rank can see: write
%%distributed above it, and run it again.""",
    ),
    Mistake(
        0,
        "bubble",
        "%distributed predict bubble about half",
        """\
about half is no number, and was not taken. Type one, such as 2, 0.5, 3/7 or
1e6: %distributed predict bubble VALUE""",
        check=False,
    ),
    Mistake(
        0,
        "sum_all",
        "%distributed check sum_al",
        """\
LessonError: There is no puzzle 'sum_al'. Did you mean sum_all? There are
ranks_with_secret, …""",
        check=False,
    ),
    # ── 1: four processes ──
    _predicted(
        1,
        "ranks_with_secret",
        "4",
        "having = all_gather(rank == 0)",
        """\
✗ ranks_with_secret: You predicted 4, but the run shows 1.
Each rank is a process with variables of its own.""",
    ),
    _function(
        1,
        "gather_all(value)",
        """\
values = []
for source in range(world_size):
    if rank == source:
        values.append(broadcast(value, src=source))
return values""",
        """\
✗ gather_all: It raised an error on ranks 0-3.
broadcast #1 of the world is not the same on all ranks:
  rank 0 called broadcast of …, line 6
  …
No rank continued past it.""",
    ),
    _function(
        1,
        "sum_all(tensor)",
        "part = reduce_scatter(tensor)\nreturn all_gather(part)",
        """\
✗ sum_all: Wrong on ranks 0-3. For sum_all(…) on rank 0, the result has the shape
(4, …), where (…) is right.
…""",
    ),
    # ── 2: costs ──
    _predicted(
        2,
        "times_longer",
        "1000",
        "times_longer = 30.0",
        """\
✗ times_longer: You predicted 1000, but the run shows …
A small message costs its latency: a thousandth of the data takes far more of
the time.""",
    ),
    _function(
        2,
        "ring_all_reduce(tensor)",
        """\
right, left = (rank + 1) % world_size, (rank - 1) % world_size
parts = list(tensor.clone().chunk(world_size))
for step in range(world_size - 1):
    send(parts[(rank - step) % world_size], right)
    parts[(rank - step - 1) % world_size] += recv(left)
return torch.cat(parts)""",
        """\
✗ ring_all_reduce: It can never end.
send #1 to rank 1 (…) can never complete:
  rank 0 waits in it, in line 6: send(parts[(rank - step) % world_size], right)
  rank 1 waits in send #1 to rank 2 (…), which needs rank 2
  rank 2 waits in send #1 to rank 3 (…), which needs rank 3
  rank 3 waits in send #1 to rank 0 (…), which needs rank 0
Let one of them receive before it sends, or use sendrecv or isend.""",
    ),
    _function(
        2,
        "ring_all_reduce(tensor)",
        """\
total, moving = tensor.clone(), tensor
for step in range(world_size - 1):
    moving = sendrecv(moving, (rank + 1) % world_size, (rank - 1) % world_size)
    total += moving
return total""",
        """\
✗ ring_all_reduce: Rank 0 sent 3 messages, where 6 are asked for.
… Each rank sends 2 (N-1) messages of an N-th of the tensor.""",
    ),
    # ── 3: verdicts ──
    _predicted(
        3,
        "waiting_ranks",
        "4",
        _TWO_WAITS,
        """\
✗ waiting_ranks: You predicted 4, but the run shows 3.
A rank waits until the verdict, whatever for; one that has raised an error
waits for nobody.""",
    ),
    Mistake(
        3,
        "blame_rank_2",
        "%%distributed\nif rank == 2: barrier()",
        """\
✗ blame_rank_2: The verdict of the last cell does not say that rank 2 has
finished it.""",
    ),
    _function(
        3,
        "from_the_left(value)",
        """\
right, left = (rank + 1) % world_size, (rank - 1) % world_size
received = irecv(left)
send(value, right)
return received""",
        """\
✗ from_the_left: Wrong on ranks 0-3. For from_the_left(…) on rank 0, the result is the handle
of a call; its wait() returns the result.
…""",
    ),
    # ── 4: samples ──
    _predicted(
        4,
        "samples_seen",
        "10",
        "seen = 12",
        """\
✗ samples_seen: You predicted 10, but the run shows 12.
Ten is no multiple of four. So that all ranks have as many, two samples are
seen twice.""",
    ),
    _function(
        4,
        "my_share(length, epoch)",
        "order = torch.randperm(length).tolist()\nreturn order[rank::world_size]",
        """\
✗ my_share: For my_share(…), sample … is seen ….
…""",
    ),
    _function(
        4,
        "accuracy(predicted, wanted)",
        'return all_reduce((predicted == wanted).float().mean().item(), "mean")',
        """\
✗ accuracy: Wrong on ranks 0-3. For accuracy(…) on rank 0, the result is …,
where … is right.
… Ranks have different numbers of samples, and may have none.""",
    ),
    _function(
        4,
        "accuracy(predicted, wanted)",
        """\
if len(wanted) == 0:
    return 0.0
right, count = all_reduce(torch.tensor([(predicted == wanted).sum(), len(wanted)]))
return (right / count).item()""",
        """\
✗ accuracy: It can never end.
all_reduce #1 of the world (int64 (2,), sum) can never complete:
  …
  rank… finished the cell
Let rank… call it, too: if it is inside an if, take it out.
…""",
    ),
    # ── 5: data parallelism ──
    _function(
        5,
        "average_while_backward(model)",
        """\
def finish():
    for parameter in model.parameters():
        parameter.grad = all_reduce(parameter.grad, "mean")
return finish""",
        """\
✗ average_while_backward: All weights are right, but rank 0 began no collective before a backward ended.
…""",
    ),
    _function(
        5,
        "average_while_backward(model)",
        """\
def average(parameter):
    parameter.grad = all_reduce(parameter.grad, "mean")
for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(average)
return lambda: None""",
        """\
✗ average_while_backward: All weights are right, but rank … waits in backward for a rank that is late:
begin a call there, and wait for it when backward has ended.
…""",
    ),
    _function(
        5,
        "accumulate(model, batches)",
        """\
for batch in batches:
    (model(batch) / len(batches)).backward()
for parameter in model.parameters():
    all_reduce(parameter.grad, "mean")""",
        """\
✗ accumulate: Wrong on ranks 0-3. For accumulate(model, batches) on rank 0,
embed.weight.grad[…] is …, where … is right.
…""",
    ),
    # ── 6: who keeps what ──
    _spoiled(
        6,
        "sharded_adam",
        "zero",
        "                parameter.copy_(broadcast(parameter.detach(), src=owner[parameter]))",
        "                broadcast(parameter.detach(), src=owner[parameter])",
        """\
✗ sharded_adam: Wrong on ranks 0-3. For sharded_adam(model) on rank 0, … is …, where … is
right.
…""",
    ),
    _spoiled(
        6,
        "sharded_adam",
        "zero",
        "    mine = [parameter for parameter in parameters if owner[parameter] == rank]",
        "    owner = {parameter: number % world_size for number, parameter in enumerate(parameters)}\n"
        "    mine = parameters[rank::world_size]",
        """\
✗ sharded_adam: All weights are right, but rank 0 keeps … bytes beside the model; … are enough.
…""",
    ),
    _function(
        6,
        "sharded_linear(weight)",
        """\
shard = torch.nn.Parameter(weight.chunk(world_size)[rank].clone())
return lambda x: x @ all_gather(shard, mode="cat").T, shard""",
        """\
✗ sharded_linear: Wrong on ranks 0-3. For sharded_linear(…) on rank 0, the gradient of the
parameter is None, where … is right.
…""",
    ),
    _spoiled(
        6,
        "sharded_linear",
        "zero",
        "    shard = torch.nn.Parameter(weight.chunk(world_size)[rank].clone())",
        "    shard = torch.nn.Parameter(weight.chunk(world_size)[rank])",
        """\
✗ sharded_linear: Rank 0 keeps … bytes, where … are enough.
…""",
    ),
    # ── 7: tensor parallel ──
    _predicted(
        7,
        "calls_of_an_mlp",
        "2",
        "calls = 1",
        """\
✗ calls_of_an_mlp: You predicted 2, but the run shows 1.
The hidden units are independent of each other: only the second product adds up
over ranks.""",
    ),
    _spoiled(
        7,
        "parallel_mlp",
        "tensor_parallel",
        "        return _AddedUp.apply(hidden @ columns.T)",
        "        return all_reduce(hidden @ columns.T)",
        """\
✗ parallel_mlp: Wrong on ranks 0-3. For parallel_mlp(…) on rank 0, nothing leads back from y to
x: a collective's result is outside of autograd's graph.
…""",
    ),
    _spoiled(
        7,
        "parallel_mlp",
        "tensor_parallel",
        "        hidden = torch.nn.functional.gelu(_Copied.apply(x) @ rows.T)",
        "        hidden = torch.nn.functional.gelu(x @ rows.T)",
        """\
✗ parallel_mlp: Wrong on ranks 0-3. For parallel_mlp(…) on rank 0, the gradient of x[…] is
…, where … is right.
…""",
    ),
    _spoiled(
        7,
        "mended_product",
        "tensor_parallel",
        "    return DTensor.from_local(columns @ rows, mesh, [Partial()]).full_tensor()",
        "    return DTensor.from_local(columns @ rows, mesh, [Partial()])",
        """\
✗ mended_product: Wrong on ranks 0-3. For mended_product(…) on rank 0, the result is a DTensor,
where a plain tensor is right; its full_tensor() is one.
…""",
    ),
    # ── 8: pipelines ──
    _predicted(
        8,
        "bubble",
        "0.75",
        "micro = 4",
        """\
✗ bubble: You predicted 0.75, but the run shows 0.4286.
(p-1) / (m+p-1), with p ranks and m micro-batches: 3/7. More micro-batches make
it smaller.""",
    ),
    Mistake(
        8,
        "gpipe",
        "x = recv(rank - 1)",
        """\
✗ gpipe: It raised an error on rank 2.
RuntimeError: grad can be implicitly created only for scalar outputs
  in line … of its cell: y.backward(recv(rank + 1))""",
        cell="%%distributed\n" + solutions.text("pipelines").replace(".requires_grad_()", ""),
    ),
    Mistake(
        8,
        "one_forward_one_backward",
        "send(y.detach(), rank + 1)\n...\nsend(x.grad, rank - 1)",
        """\
✗ one_forward_one_backward: It can never end.
send #2 to rank 3 (float32 (2, 4)) can never complete:
  rank 2 waits in it, in line …: send(y.detach(), rank + 1)
  rank 3 waits in send #1 to rank 2 (…), which needs rank 2
…
Let one of them receive before it sends, or use sendrecv or isend.""",
        cell="%%distributed\n" + re.sub(r"sent\.append\(i(send\(.*\))\)\n", r"\1\n", solutions.text("pipelines")),
    ),
    # ── 9: long sequences, many experts ──
    _predicted(
        9,
        "times_smaller",
        "4",
        "all_at_once, in_a_ring = 16, 1",
        """\
✗ times_smaller: You predicted 4, but the run shows 16.
A rank has a quarter of the queries, and at each step a quarter of the keys: a
sixteenth of the pairs.""",
    ),
    _spoiled(
        9,
        "ring_attention",
        "long_sequences",
        "        total = total * shrink + weights.sum(1, keepdim=True)\n        out = out * shrink + weights @ value",
        "        total = total + weights.sum(1, keepdim=True)\n        out = out + weights @ value",
        """\
✗ ring_attention: Wrong on rank…. For ring_attention(…) on rank …, item […] is …, where … is
right.
…""",
    ),
    _spoiled(
        9,
        "ring_attention",
        "long_sequences",
        "        if step < world_size - 1:\n            block = sendrecv(block, right, left)",
        "        block = sendrecv(block, right, left)",
        """\
✗ ring_attention: Rank 0 sent 4 messages, where 3 are enough.
…""",
    ),
    _spoiled(
        9,
        "dispatch",
        "long_sequences",
        "    counts = torch.bincount(expert_of, minlength=world_size).tolist()",
        "    counts = torch.bincount(expert_of).tolist()",
        """\
✗ dispatch: It raised an error on rank….
all_to_all needs a list or tuple of 4 items, one for each rank of the group,
not a list of ….
  in line … of its cell: arrived = all_to_all(list(tokens[order].split(counts)))""",
    ),
    # ── 10: checkpoints ──
    _predicted(
        10,
        "steps_lost",
        "28",
        "lost = 8",
        """\
✗ steps_lost: You predicted 28, but the run shows 8.
What came after the last checkpoint is done again; the other ranks' variables
are as they were.""",
    ),
    _spoiled(
        10,
        "checkpoint",
        "checkpoints",
        "        return deepcopy({**state,",
        "        return ({**state,",
        """\
✗ checkpoint: On rank 0, the run is restarted, and step 1 after it begins with other weights.
…""",
        shown='return {**state, "order": run.order}  # and so on, in place of a deepcopy',
    ),
    _spoiled(
        10,
        "checkpoint",
        "checkpoints",
        '    torch.set_rng_state(kept["random"])\n',
        "",
        """\
✗ checkpoint: On rank 0, the run is restarted, and step 1 after it draws other random
numbers.
…""",
        shown='# torch.set_rng_state(kept["random"]) is missing',
    ),
    _function(
        10,
        "reshard(rows, ranks)",
        'whole = all_gather(rows, mode="cat")\nreturn whole.chunk(ranks)[rank] if rank < ranks else None',
        """\
✗ reshard: Rank 0 called all_gather, where only messages are asked for.
…""",
    ),
]
"""In the order of the page."""
