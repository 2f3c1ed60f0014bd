"""A tiny language model, and the made-up text that it learns: sums such as "27+58=085". Nothing is downloaded."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

SIGNS = "0123456789+="
"""The characters of the text; a token is the place of one of them."""

LENGTH = len("27+58=085")


def sums(count: int, seed: int = 0) -> torch.Tensor:
    """Return the tokens of that many sums, of shape (count, 9), int64; the same for the same seed."""
    first, second = torch.randint(100, (2, count), generator=torch.Generator().manual_seed(seed))
    lines = (
        f"{one:02}+{other:02}={one + other:03}" for one, other in zip(first.tolist(), second.tolist(), strict=True)
    )
    return torch.tensor([[SIGNS.index(sign) for sign in line] for line in lines]).reshape(count, LENGTH)


def text(tokens: torch.Tensor) -> str:
    """Return what tokens of one line say.

    >>> text(sums(1)[0])
    '44+39=083'
    """
    return "".join(SIGNS[int(token)] for token in tokens)


class Block(nn.Module):
    """Attention over what came before, and a small network; each adds to its input.

    Args:
        width: of the vectors.
        heads: of the attention; they divide the width.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.before_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return vectors of the same shape, (batch, length, width)."""
        x = x + self.project(self._attention(*self.attend(self.before_attention(x)).chunk(3, dim=-1)))
        return x + self.mlp(self.before_mlp(x))  # type: ignore[no-any-return]

    def _attention(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        batch, length, width = query.shape
        query, key, value = (
            each.reshape(batch, length, self.heads, width // self.heads).transpose(1, 2) for each in (query, key, value)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return seen.transpose(1, 2).reshape(batch, length, width)


class TinyLM(nn.Module):
    """A language model of some thousand weights; called with tokens it returns the loss.

    The embedding and the last layer are one weight, as in many models: it gets its gradient from two places.

    Args:
        blocks: how many.
        width: of the vectors.
        heads: of the attention.
    """

    def __init__(self, blocks: int = 2, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(SIGNS), width)
        self.places = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(SIGNS), bias=False)
        self.head.weight = self.embed.weight
        nn.init.normal_(self.embed.weight, std=0.02)  # as GPT-2: it begins as unsure as a guess

    def logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores of each next token, (batch, length, 12)."""
        x = self.embed(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))  # type: ignore[no-any-return]

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of guessing each token from those before it."""
        scores = self.logits(tokens[:, :-1])
        return functional.cross_entropy(scores.reshape(-1, len(SIGNS)), tokens[:, 1:].reshape(-1))
