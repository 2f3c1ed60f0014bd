"""Functions and classes that were typed in the notebook, and are pushed, live on the rank as if they were typed there.

cloudpickle gives each a namespace of its own, with what it uses of the notebook's. Here they get the rank's, so that
they see its names and its variables, as those are at each call.
"""

from __future__ import annotations

import io
import pickle
import types
from collections.abc import Sequence
from typing import Any

from cloudpickle import cloudpickle

# By these names pickles say what to call, so they are as public as the format.
_MODULE, _MAKE, _SET_STATE = cloudpickle.__name__, cloudpickle._make_function, cloudpickle._function_setstate  # noqa: SLF001


def load(pickled: bytes, *, buffers: Sequence[Any], namespace: dict[str, Any]) -> Any:
    """Rebuild a value, as `pickle.loads` does.

    Args:
        pickled: the value.
        buffers: its bytes.
        namespace: the rank's. What a function uses, and this lacks, is added to it; nothing is if the value cannot be
            rebuilt.
    """
    arriving = _Unpickler(io.BytesIO(pickled), buffers=buffers)
    arriving.namespace, arriving.added = namespace, []
    try:
        return arriving.load()
    except BaseException:
        for name in arriving.added:
            namespace.pop(name, None)
        raise


class _Unpickler(pickle.Unpickler):
    namespace: dict[str, Any]
    added: list[str]

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name)
        return {_MAKE: self._make, _SET_STATE: self._set_state}.get(found, found) if module == _MODULE else found

    def _make(self, code: types.CodeType, own: dict[str, Any], *rest: Any) -> types.FunctionType:
        if own.get("__name__") == "__main__":
            return types.FunctionType(code, self.namespace, *rest)
        return _MAKE(code, own, *rest)  # type: ignore[no-any-return]  # of a module that is pickled by value

    def _set_state(self, function: types.FunctionType, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
        if function.__globals__ is not self.namespace:
            _SET_STATE(function, state)
            return
        brought, state[1]["__globals__"] = state[1]["__globals__"], {}
        for name in brought.keys() - self.namespace.keys():
            self.namespace[name] = brought[name]
            self.added.append(name)
        builtins = self.namespace["__builtins__"]
        _SET_STATE(function, state)
        self.namespace["__builtins__"] = builtins  # it has put others there
