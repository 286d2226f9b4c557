"""DistributedDataParallel's buckets, so that they can leave the device before their first use."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from torch._C._distributed_c10d import Reducer
from torch.nn.parallel import DistributedDataParallel

from spillway import _spillway

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
R = TypeVar("R")


def _makes_buckets(function: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        with _spillway.buckets():
            return function(*args, **kwargs)

    vars(wrapper)["original"] = function
    return wrapper


# Each of them makes memory that only operators write. DistributedDataParallel compares gradients with it
# without an operator, in later Sessions too. So the functions stay replaced where no Session is open.
_PLACES = ((DistributedDataParallel, "_ddp_init_helper"), (Reducer, "_rebuild_buckets"))


def install() -> None:
    """Tells Sessions of new buckets; done again, it changes nothing."""
    for owner, name in _PLACES:
        function = getattr(owner, name)
        if not hasattr(function, "original"):
            setattr(owner, name, _makes_buckets(function))
