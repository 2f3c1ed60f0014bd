"""The tiny language model of the lessons, and its text."""

from __future__ import annotations

import torch

from nbcomm.lessons.tiny import LENGTH, SIGNS, TinyLM, sums, text


def test_the_text_is_of_right_sums_and_the_same_for_the_same_seed() -> None:
    tokens = sums(50, seed=3)
    assert tokens.shape == (50, LENGTH)
    assert torch.equal(tokens, sums(50, seed=3))
    assert not torch.equal(tokens, sums(50, seed=4))
    for line in map(text, tokens):
        first, second, total = line.replace("=", "+").split("+")
        assert int(first) + int(second) == int(total)


def test_the_model_begins_as_unsure_as_a_guess_and_learns() -> None:
    torch.manual_seed(0)
    model = TinyLM()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    losses = []
    for step in range(60):
        loss = model(sums(32, seed=step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    guess = torch.tensor(len(SIGNS)).log().item()
    assert abs(losses[0] - guess) < 0.3
    assert losses[-1] < 0.75 * losses[0]


def test_it_sees_nothing_of_what_comes() -> None:
    torch.manual_seed(0)
    model = TinyLM(blocks=1)
    tokens = sums(1)
    changed = tokens.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 10
    scores, others = model.logits(tokens), model.logits(changed)
    assert torch.allclose(scores[:, :5], others[:, :5])
    assert not torch.allclose(scores[:, 5], others[:, 5])


def test_one_weight_has_two_places() -> None:
    model = TinyLM(blocks=2)
    assert model.head.weight is model.embed.weight
    assert len(list(model.parameters())) == 28
