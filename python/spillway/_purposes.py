"""The purposes of tensors that autograd does not know: what optimizers keep."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils import _pytree

from spillway import _spillway

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

_hook: RemovableHandle | None = None
_known: weakref.WeakKeyDictionary[torch.optim.Optimizer, int] = (
    weakref.WeakKeyDictionary()
)  # by optimizer: how much state was counted


def _count_state(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Counts what an optimizer keeps as such, after a step that made more of it."""
    size = sum(len(kept) if hasattr(kept, "__len__") else 1 for kept in optimizer.state.values())
    if _known.get(optimizer) == size:
        return
    _known[optimizer] = size
    kept = (leaf for leaf in _pytree.tree_leaves(dict(optimizer.state)) if isinstance(leaf, torch.Tensor))
    _spillway.categorize(list(kept), "optimizer")


def install() -> None:
    """Starts to count; done again, it changes nothing."""
    global _hook  # noqa: PLW0603  PyTorch's hooks are the process's too
    if _hook is None:
        _hook = register_optimizer_step_post_hook(_count_state)


def remove() -> None:
    """Ends counting. Another Session counts anew, because tensors may have been counted otherwise meanwhile."""
    global _hook  # noqa: PLW0603  PyTorch's hooks are the process's too
    if _hook is not None:
        _hook.remove()
        _hook = None
        _known.clear()
