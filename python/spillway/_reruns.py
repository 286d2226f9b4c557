"""Tensors of a module's results, and the watching of functions that run layers again in their backward."""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import torch
from torch import nn
from torch.utils import _pytree

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeAlias

    from torch.autograd.graph import Node
    from torch.utils.hooks import RemovableHandle

    Watch: TypeAlias = Callable[[list[torch.Tensor]], None]  # takes the tensors that a backward begins at

P = ParamSpec("P")
R = TypeVar("R")

# Types whose objects hold no tensors that a module returns.
_CLOSED = (str, bytes, int, float, complex, type, nn.Module, types.FunctionType, types.MethodType, types.ModuleType)


def in_backward() -> bool:
    """Returns true on a thread that goes back through a graph."""
    return torch._C._current_graph_task_id() != -1


def tensors_of(value: object) -> Iterator[torch.Tensor]:
    """Yields the tensors of a value in order: in containers, in dataclasses, and in attributes of other objects."""
    seen: dict[int, object] = {}  # by id; it keeps what it names
    stack = [value]
    while stack:
        leaf = stack.pop()
        if isinstance(leaf, torch.Tensor):
            yield leaf
        elif leaf is not None and not isinstance(leaf, _CLOSED) and id(leaf) not in seen:
            seen[id(leaf)] = leaf
            inside = _pytree.tree_leaves(leaf)
            stack.extend(reversed(_parts_of(leaf) if len(inside) == 1 and inside[0] is leaf else inside))


def _parts_of(value: object) -> list[object]:
    """Returns what an object holds that pytree does not know."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return list(value)
    slots = (name for cls in type(value).__mro__ for name in _names(getattr(cls, "__slots__", ())))
    held = [getattr(value, name) for name in slots if hasattr(value, name)]
    return held + list(getattr(value, "__dict__", {}).values())


def _names(slots: str | Iterable[str]) -> Iterable[str]:
    return (slots,) if isinstance(slots, str) else slots


def roots_of(output: object) -> list[torch.Tensor]:
    """Returns the tensors of a module's result that a backward can begin at."""
    return [tensor for tensor in tensors_of(output) if tensor.grad_fn is not None]


def watch_reruns(node: Node, watch: Watch) -> None:
    """Calls `watch` with what this custom function's backward runs again, before it goes back through it."""
    if callable(run := getattr(node, "run_function", None)):  # a reentrant checkpoint
        node.run_function = functools.partial(_run_again, run, watch)  # type: ignore[attr-defined]  # the checkpoint's own
    elif not node.name().startswith("Compiled"):
        scope = _RerunScope(watch)
        node.register_prehook(scope.enter)
        node.register_hook(scope.leave)


def _run_again(run: Callable[P, R], watch: Watch, *args: P.args, **kwargs: P.kwargs) -> R:
    output = run(*args, **kwargs)
    if torch.is_grad_enabled() and (roots := roots_of(output)):
        watch(roots)
    return output


class _RerunScope:
    """Watches the modules that run, with a graph, while a custom function's backward does."""

    def __init__(self, watch: Watch) -> None:
        self._watch, self._task = watch, -1
        self._handle: RemovableHandle | None = None

    def enter(self, _gradients: object) -> None:
        self.leave()
        self._task = torch._C._current_graph_task_id()
        self._handle = nn.modules.module.register_module_forward_hook(self._ran)

    def leave(self, *_: object) -> None:
        if self._handle:
            self._handle.remove()
        self._handle = None

    def _ran(self, module: nn.Module, _args: object, output: object) -> None:
        if torch.compiler.is_compiling():
            return
        if torch._C._current_graph_task_id() != self._task:
            self.leave()  # the backward ended with an error
        elif module._parameters and torch.is_grad_enabled() and (roots := roots_of(output)):
            self._watch(roots)
