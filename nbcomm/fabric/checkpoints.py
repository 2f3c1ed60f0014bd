"""``fabric.save`` and ``fabric.load``: rank 0 writes one file, and every rank reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from ..comm import Communicator


class Checkpoints:
    """Saving and loading."""

    _comm: Communicator

    def save(
        self,
        path: str | Path,
        state: Mapping[str, Any],
        filter: Mapping[str, Callable[[str, Any], bool]] | None = None,  # noqa: A002
    ) -> None:
        """Save modules, optimizers, schedulers and other values to a file. Every rank must call this.

        Args:
            path: the file; its folder is created if it does not exist.
            state: objects with ``state_dict`` and ``load_state_dict`` are saved as state dicts, other values as they
                are.
            filter: for keys of ``state``, a function of name and value; entries for which it is false are left out.

        Raises:
            TypeError: ``filter`` is not a dict of functions.
            ValueError: it has a key that ``state`` does not have.
            CollectiveError: on the other ranks, if rank 0 could not write.
        """
        checked: Any = {} if filter is None else filter
        if not isinstance(checked, Mapping) or not all(map(callable, checked.values())):
            raise TypeError(f"fabric.save takes filter={{key: function}}, not {filter!r}.")
        if unknown := [key for key in checked if key not in state]:
            raise ValueError(f"The filter keys {unknown} are not in the state, which has {list(state)}.")

        def write() -> None:
            whole = {key: _saved(value, checked.get(key)) for key, value in state.items()}
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            torch.save(whole, path)

        self._comm.one_rank_only(0, with_barrier=True)(write)()

    def load(
        self,
        path: str | Path,
        state: dict[str, Any] | None = None,
        strict: bool = True,  # noqa: FBT001, FBT002
        *,
        weights_only: bool | None = None,
    ) -> dict[str, Any]:
        """Load a file of `save`. Every rank must call this.

        Args:
            path: the file.
            state: objects with ``load_state_dict`` get their state back, other values are replaced in the dict.
            strict: whether every key of ``state`` must be in the file.
            weights_only: as for ``torch.load``.

        Returns:
            The entries of the file that are not in ``state``; without ``state`` all entries.

        Raises:
            KeyError: ``strict``, and the file lacks keys.
        """
        found: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=weights_only)
        missing = [key for key in state or {} if key not in found]
        if missing and strict:
            raise KeyError(
                f"{path} has no {missing}; it has {list(found)}. Pass strict=False to load the keys that exist."
            )
        for key in [key for key in state or {} if key in found]:
            assert state is not None  # noqa: S101 - for mypy
            value = found.pop(key)
            if isinstance(state[key], torch.nn.Module):
                state[key].load_state_dict(value, strict=strict)
            elif _is_stateful(state[key]):
                state[key].load_state_dict(value)
            else:
                state[key] = value
        self._comm.barrier("fabric.load")
        return found

    @staticmethod
    def load_raw(
        path: str | Path,
        obj: torch.nn.Module | torch.optim.Optimizer,
        strict: bool = True,  # noqa: FBT001, FBT002
        *,
        weights_only: bool | None = None,
    ) -> None:
        """Load a state dict that was saved without Fabric into a module or an optimizer."""
        found = torch.load(path, map_location="cpu", weights_only=weights_only)
        if isinstance(obj, torch.nn.Module):
            obj.load_state_dict(found, strict=strict)
        else:
            obj.load_state_dict(found)


def _is_stateful(value: Any) -> bool:
    """Tell whether a value has a state dict, as modules, optimizers, schedulers and GradScalers have."""
    names = ("state_dict", "load_state_dict")
    return not isinstance(value, type) and all(callable(getattr(value, name, None)) for name in names)


def _saved(value: Any, keeps: Callable[[str, Any], bool] | None) -> Any:
    if _is_stateful(value):
        value = value.state_dict()
    if keeps is not None and isinstance(value, Mapping):
        value = {name: part for name, part in value.items() if keeps(name, part)}
    return value
