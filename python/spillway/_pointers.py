"""Lets PyTorch's own uses of pointers see tensors whose bytes are away.

Parts of PyTorch read memory without an operator: numpy, DLPack, torch.save, copy.deepcopy, pickle, tolist, apply_,
storages. Functions whose result keeps a pointer are in place from the import on, because a pointer that was taken
before a Session opens must stay right inside it. The others bring bytes back for a call, and are in place while a
Session is open.
"""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar, cast

import torch
import torch.autograd.graph
import torch.utils.dlpack

from spillway import _spillway

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import TypeAlias, TypeGuard

    from torch._C import PyTorchFileWriter
    from torch.serialization import _opener
    from torch.types import Storage
    from typing_extensions import CapsuleType

    Memory: TypeAlias = torch.Tensor | torch.UntypedStorage
    Patch: TypeAlias = tuple[object, str, Callable[..., object]]  # owner, name, and what wraps that member

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

_originals: dict[tuple[object, str], object] = {}
_here = threading.local()


def _is_plain(value: object) -> TypeGuard[torch.Tensor]:
    return (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    )


def _tensors_among(values: Iterable[object]) -> Iterator[Memory]:
    """Yields the tensors and storages among arguments of a function."""
    for value in values:
        if isinstance(value, torch.UntypedStorage) or _is_plain(value):
            yield value
        elif isinstance(value, torch.TypedStorage):
            yield value._untyped_storage
        elif isinstance(value, (list, tuple)):
            yield from _tensors_among(value)


def _pinned(original: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Wraps functions whose result keeps the pointer: the tensor stays on the device for good."""

    @functools.wraps(original)
    def call(self: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        for one in _tensors_among((self,)):
            _spillway.pin(one)
        return original(self, *args, **kwargs)

    return call


def _pinned_where_sliced(
    original: Callable[[torch.UntypedStorage, int | slice], R],
) -> Callable[[torch.UntypedStorage, int | slice], R]:
    """Wraps the function of a storage's elements, because a slice is a storage of the same memory."""

    @functools.wraps(original)
    def call(self: torch.UntypedStorage, index: int | slice) -> R:
        if isinstance(index, slice):
            _spillway.pin(self)
            return original(self, index)
        lease = _spillway.resident_read(self)
        try:
            return original(self, index)
        finally:
            del lease

    return call


def _pinned_on_a_gpu(original: property) -> property:
    """Wraps a property that tensors of a GPU alone have. Libraries ask others for it, too."""
    read = cast("Callable[[object], object]", original.fget)

    @functools.wraps(read)
    def get(self: object) -> object:
        if _is_plain(self) and self.is_cuda:
            _spillway.pin(self)
        return read(self)

    return property(get, doc=original.__doc__)


def _lent(original: Callable[P, R]) -> Callable[P, R]:
    """Wraps functions that read their arguments' bytes by pointers, and forget these."""

    @functools.wraps(original)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        leases = [_spillway.resident_read(one) for one in _tensors_among((*args, *kwargs.values()))]
        try:
            return original(*args, **kwargs)
        finally:
            del leases

    return call


def _written(original: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Wraps functions that write the first of their arguments by a pointer, and read the others."""

    @functools.wraps(original)
    def call(self: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        leases = [_spillway.resident(one) for one in _tensors_among((self,))]
        leases += [_spillway.resident_read(one) for one in _tensors_among((*args, *kwargs.values()))]
        try:
            return original(self, *args, **kwargs)
        finally:
            del leases

    return call


def _all_written(original: Callable[P, R]) -> Callable[P, R]:
    """Wraps functions that write any of their arguments by pointers."""

    @functools.wraps(original)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        leases = [_spillway.resident(one) for one in _tensors_among((*args, *kwargs.values()))]
        try:
            return original(*args, **kwargs)
        finally:
            del leases

    return call


def _lent_where_subclassed(original: Callable[Concatenate[T, P], R]) -> Callable[Concatenate[T, P], R]:
    """Wraps functions that ask tensors of other classes whether they have memory."""
    lent = _lent(original)

    @functools.wraps(original)
    def call(self: T, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return (original if type(self) is torch.Tensor else lent)(self, *args, **kwargs)

    return call


class _Writer:
    """A writer of torch.save's archive that has one storage resident at a time."""

    def __init__(self, writer: PyTorchFileWriter) -> None:
        self._writer = writer

    def __getattr__(self, name: str) -> object:
        return getattr(self._writer, name)

    def write_record(self, name: str, data: Storage | bytes | int, size: int) -> None:
        lease = _spillway.resident_read(data) if isinstance(data, torch.UntypedStorage) else None
        try:
            self._writer.write_record(name, data, size)
        finally:
            del lease


def _opened_with_lease(original: Callable[P, _opener[PyTorchFileWriter]]) -> Callable[P, _opener[PyTorchFileWriter]]:
    @functools.wraps(original)
    def open_writer(*args: P.args, **kwargs: P.kwargs) -> _opener[PyTorchFileWriter]:
        opened = original(*args, **kwargs)
        opened.file_like = cast("PyTorchFileWriter", _Writer(opened.file_like))
        return opened

    return open_writer


def _numbered(original: Callable[P, R]) -> Callable[P, R]:
    """Wraps functions that tell tensors apart by their addresses: they get numbers that stay while tensors move."""

    @functools.wraps(original)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        before = getattr(_here, "numbers", False)
        _here.numbers = True
        try:
            return original(*args, **kwargs)
        finally:
            _here.numbers = before

    return call


def _address(original: Callable[[Memory], int]) -> Callable[[Memory], int]:
    """Wraps the function of an address, because the code that asks for one may write there before the next operator."""

    @functools.wraps(original)
    def data_ptr(self: Memory) -> int:
        if getattr(_here, "numbers", False) and not _may_be_a_wrapper(self):
            return _number_of(self)
        for one in _tensors_among((self,)):
            _spillway.note_raw_write(one)
        return original(self)

    return data_ptr


def _may_be_a_wrapper(thing: object) -> bool:
    """True for tensors of classes that run operators themselves. Those without memory are known by an address of 0."""
    return isinstance(thing, torch.Tensor) and type(thing).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def _number_of(thing: Memory) -> int:
    if isinstance(thing, torch.UntypedStorage):
        number: int = thing._cdata
        return number
    return _number_of(thing.untyped_storage()) << 64 | int(thing.storage_offset() * thing.element_size())


def _exchanged(original: CapsuleType) -> CapsuleType:
    return _spillway.dlpack_exchange_api(original)


# From the import on: what hands a pointer out.
KEPT: tuple[Patch, ...] = (
    (torch.Tensor, "numpy", _pinned),
    (torch.Tensor, "__dlpack__", _pinned),
    (torch.Tensor, "__cuda_array_interface__", _pinned_on_a_gpu),
    (torch.Tensor, "__dlpack_c_exchange_api__", _exchanged),
    (torch, "to_dlpack", _pinned),
    (torch.utils.dlpack, "to_dlpack", _pinned),
    (torch._C, "_to_dlpack", _pinned),
    (torch._C, "_to_dlpack_versioned", _pinned),
    (torch._C, "_gds_register_buffer", _pinned),
    (torch.UntypedStorage, "__getitem__", _pinned_where_sliced),
    (torch.UntypedStorage, "_share_cuda_", _pinned),
    (torch.UntypedStorage, "_share_fd_cpu_", _pinned),
    (torch.UntypedStorage, "_share_filename_cpu_", _pinned),
)

# While a Session is open: what uses pointers during a call.
USED: tuple[Patch, ...] = (
    (torch.Tensor, "tolist", _lent),
    (torch.Tensor, "apply_", _written),
    (torch.Tensor, "map_", _written),
    (torch.Tensor, "map2_", _written),
    (torch.Tensor, "data_ptr", _address),
    (torch.Tensor, "__deepcopy__", _lent_where_subclassed),
    (torch.Tensor, "_reduce_ex_internal", _lent_where_subclassed),
    (torch.UntypedStorage, "__setitem__", _written),
    (torch.UntypedStorage, "clone", _lent),
    (torch.UntypedStorage, "copy_", _written),
    (torch.UntypedStorage, "data_ptr", _address),
    (torch.UntypedStorage, "fill_", _written),
    (torch.UntypedStorage, "is_shared", _lent),
    (torch.UntypedStorage, "resize_", _written),
    (torch.UntypedStorage, "_byteswap", _written),
    (torch.UntypedStorage, "_get_filename", _lent),
    (torch.UntypedStorage, "_set_from_file", _written),
    (torch.UntypedStorage, "_shared_decref", _lent),
    (torch.UntypedStorage, "_shared_incref", _lent),
    (torch.UntypedStorage, "_to", _numbered),
    (torch.UntypedStorage, "_write_file", _lent),
    (torch.TypedStorage, "_to", _numbered),
    (torch.nn.RNNBase, "flatten_parameters", _numbered),
    (torch.autograd.graph, "_get_sid", _numbered),
    (torch.autograd.graph, "_get_tid", _numbered),
    (torch.serialization, "_save", _numbered),
    (torch.serialization, "_legacy_save", _numbered),
    (torch.serialization, "_open_zipfile_writer", _opened_with_lease),
    (torch._C, "_is_alias_of", _lent),
    (torch._C, "_overlaps", _lent),
    (torch._C, "_tensors_data_ptrs_at_indices_equal", _lent),
    (torch._C, "_broadcast", _all_written),
    (torch._C, "_broadcast_coalesced", _all_written),
    (torch._C, "_broadcast_out", _all_written),
    (torch._C, "_gather", _all_written),
    (torch._C, "_gather_out", _all_written),
    (torch._C, "_gds_load_storage", _written),
    (torch._C, "_gds_save_storage", _lent),
    (torch._C, "_nccl_all_gather", _all_written),
    (torch._C, "_nccl_all_reduce", _all_written),
    (torch._C, "_nccl_broadcast", _all_written),
    (torch._C, "_nccl_reduce", _all_written),
    (torch._C, "_nccl_reduce_scatter", _all_written),
    (torch._C, "_scatter", _all_written),
    (torch._C, "_scatter_out", _all_written),
)


def _put_in_place(patches: Iterable[Patch]) -> None:
    for owner, name, wrap in patches:
        if (owner, name) not in _originals and hasattr(owner, name):  # a torch without CUDA has fewer
            original = vars(owner).get(name)
            wrapper = wrap(original or getattr(owner, name))
            _originals[owner, name] = original
            setattr(owner, name, wrapper)


def keep() -> None:
    """Puts the functions in place that stay. Does nothing where they are."""
    _put_in_place(KEPT)


def install() -> None:
    """Puts the functions of an open Session in place. Does nothing where they are."""
    _put_in_place(USED)


def remove() -> None:
    """Puts PyTorch's own functions back, as the last Session closes."""
    for owner, name, _ in USED:
        if (owner, name) not in _originals:
            continue
        original = _originals.pop((owner, name))
        if original is not None:
            setattr(owner, name, original)
        elif name in vars(owner):  # else an interrupt came before install() had put it there
            delattr(owner, name)  # it was inherited


keep()
