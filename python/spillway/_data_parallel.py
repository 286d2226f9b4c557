"""DistributedDataParallel's buckets, so that they can leave the device before their first use."""

import functools

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from spillway import _spillway


def _makes_buckets(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        with _spillway.buckets():
            return function(*args, **kwargs)

    wrapper.original = function
    return wrapper


# What each of them makes is memory that only operators write. DistributedDataParallel compares gradients with it
# without an operator, in later Sessions too. So the functions stay replaced where no Session is open.
_PLACES = ((DistributedDataParallel, "_ddp_init_helper"), (dist.Reducer, "_rebuild_buckets"))


def install():
    """Tells Sessions of new buckets; done again, it changes nothing."""
    for owner, name in _PLACES:
        function = getattr(owner, name)
        if not hasattr(function, "original"):
            setattr(owner, name, _makes_buckets(function))
