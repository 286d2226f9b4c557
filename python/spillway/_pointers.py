"""Lets PyTorch's own uses of pointers see tensors whose bytes are away.

Python's halves of torch.save, copy.deepcopy, pickle, tolist, numpy and DLPack read memory without an operator. While a
Session is open, these functions bring the bytes back first. They are put back when the last Session closes.
"""

import functools
import threading

import torch

from spillway import _spillway

_originals = {}
_here = threading.local()


def _tensor_of(storage):
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _is_plain(value):
    return isinstance(value, torch.Tensor) and value.layout == torch.strided and not torch._C._functorch.is_functorch_wrapped_tensor(value)


def _pinned(original):
    """For functions whose result keeps the pointer: the tensor stays on the device for good."""

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        if _is_plain(self):
            _spillway.pin(self)
        return original(self, *args, **kwargs)

    return call


def _lent(original):
    """For functions of a tensor that use the pointer and forget it."""

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        lease = _spillway.resident_read(self) if _is_plain(self) else None
        try:
            return original(self, *args, **kwargs)
        finally:
            del lease

    return call


def _storage_lent(original):
    """The same for functions of a storage."""

    @functools.wraps(original)
    def call(self, *args, **kwargs):
        lease = _spillway.resident_read(_tensor_of(self))
        try:
            return original(self, *args, **kwargs)
        finally:
            del lease

    return call


class _Writer:
    """A writer of torch.save's archive that has one storage resident at a time."""

    def __init__(self, writer):
        self._writer = writer

    def __getattr__(self, name):
        return getattr(self._writer, name)

    def write_record(self, name, data, size):
        lease = _spillway.resident_read(_tensor_of(data)) if isinstance(data, torch.UntypedStorage) else None
        try:
            return self._writer.write_record(name, data, size)
        finally:
            del lease


def _saving(original):
    """For torch.save, which tells storages apart by their addresses."""

    @functools.wraps(original)
    def call(*args, **kwargs):
        _here.saves = True
        try:
            return original(*args, **kwargs)
        finally:
            _here.saves = False

    return call


def _number_while_saving(original):
    @functools.wraps(original)
    def data_ptr(self):
        return self._cdata if getattr(_here, "saves", False) else original(self)

    return data_ptr


def _opened_with_lease(original):
    @functools.wraps(original)
    def open_writer(file):
        opened = original(file)
        opened.file_like = _Writer(opened.file_like)
        return opened

    return open_writer


_PATCHES = (
    (torch.Tensor, "numpy", _pinned),
    (torch.Tensor, "__dlpack__", _pinned),
    (torch.Tensor, "tolist", _lent),
    (torch.UntypedStorage, "clone", _storage_lent),
    (torch.UntypedStorage, "_write_file", _storage_lent),
    (torch.UntypedStorage, "data_ptr", _number_while_saving),
    (torch.serialization, "_save", _saving),
    (torch.serialization, "_legacy_save", _saving),
    (torch.serialization, "_open_zipfile_writer", _opened_with_lease),
)


def install():
    """Puts the functions in place. Does nothing where they are."""
    for owner, name, wrap in _PATCHES:
        if (owner, name) not in _originals:
            _originals[owner, name] = vars(owner).get(name)
            setattr(owner, name, wrap(getattr(owner, name)))


def remove():
    """Puts PyTorch's own functions back."""
    for (owner, name), original in _originals.items():
        if original is None:  # it was inherited
            delattr(owner, name)
        else:
            setattr(owner, name, original)
    _originals.clear()
