"""Lets fully sharded models (FSDP2) compare the storages of their weights while a Session is open."""

from spillway import _late, _pointers


def install() -> None:
    """Wraps PyTorch's functions, for the life of the process."""
    # It asks for addresses only to learn whether two storages are one, as torch.save does.
    _late.wrap_member("torch.distributed.fsdp._fully_shard._fsdp_param", "FSDPParam.reset_sharded_param", _pointers._numbered)
