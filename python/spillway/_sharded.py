"""Lets fully sharded models (FSDP2) and their checkpoints tell storages apart while a Session is open."""

from spillway import _late, _pointers


def install() -> None:
    """Wraps PyTorch's functions, for the life of the process."""
    # They ask for addresses only to learn whether two storages are one, or whether there is one, as torch.save does.
    _late.wrap_member(
        "torch.distributed.fsdp._fully_shard._fsdp_param", "FSDPParam.reset_sharded_param", _pointers._numbered
    )
    _late.wrap_member(
        "torch.distributed.checkpoint._state_dict_stager", "StateDictStager._offload_tensor", _pointers._numbered
    )
