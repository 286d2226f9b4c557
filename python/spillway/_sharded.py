"""Lets fully sharded models (FSDP) empty, fill and compare the storages of their weights while a Session is open."""

import functools

import torch

from spillway import _compiled, _late, _pointers, _spillway


def _resized(original):
    """For a storage's resize_, which copies bytes by pointers."""

    @functools.wraps(original)
    def resize_(self, size):
        lease = _spillway.resident_read(_pointers._tensor_of(self)) if _compiled.is_gated() and self.nbytes() > 0 else None
        try:
            return original(self, size)
        finally:
            del lease

    return resize_


def install() -> None:
    """Wraps PyTorch's functions, for the life of the process."""
    torch.UntypedStorage.resize_ = _resized(torch.UntypedStorage.resize_)
    # It asks for addresses only to learn whether two storages are one, as torch.save does.
    _late.wrap_member("torch.distributed.fsdp._fully_shard._fsdp_param", "FSDPParam.reset_sharded_param", _pointers._saving)
