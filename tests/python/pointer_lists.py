"""torch's functions that see a tensor's memory without an operator, and all names beside them that do not.

A name that torch gains is on none of the lists, so pointers_test fails until somebody has looked what it does.
"""

import contextlib
import copy
import ctypes
import io
import os
import pickle
import tempfile
import warnings

import numpy as np
import torch
from torch.utils import dlpack


def operators():
    """Names of what passes the dispatcher."""
    return {
        name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")
    }


# Tensor: methods that are made of operators, or are operators under other names.
TENSOR_OPERATORS = """
    H T __abs__ __add__ __bool__ __complex__ __contains__ __div__ __eq__ __float__ __floordiv__ __format__ __ge__ __getitem__ __gt__
    __iadd__ __idiv__ __ifloordiv__ __imod__ __imul__ __index__ __int__ __invert__ __ipow__ __isub__ __iter__ __itruediv__ __le__ __long__
    __lt__ __matmul__ __mod__ __mul__ __ne__ __neg__ __nonzero__ __pos__ __pow__ __radd__ __rand__ __rdiv__ __repr__ __reversed__
    __rfloordiv__ __rlshift__ __rmatmul__ __rmod__ __rmul__ __ror__ __rpow__ __rrshift__ __rsub__ __rtruediv__ __rxor__ __setitem__
    __str__ __sub__ __truediv__ bfloat16 bool byte cdouble cfloat char cpu cuda double eig float half int ipu long lstsq lu module_load
    mtia new_tensor reinforce short solve symeig to_sparse_coo type unique xpu
""".split()

# Tensor: shapes, types, names, autograd's fields, numbers of Python's objects.
TENSOR_NO_BYTES = """
    __annotations__ __array_priority__ __array_wrap__ __class__ __delattr__ __delitem__ __dict__ __dir__ __dlpack_device__ __doc__
    __getattribute__ __getstate__ __hash__ __init__ __init_subclass__ __len__ __module__ __new__ __setattr__ __setstate__ __sizeof__
    __subclasshook__ __torch_dispatch__ __torch_function__ __weakref__ _backward_hooks _base _cdata _clear_non_serializable_cached_data
    _dtensor__new__ _fix_weakref _grad _grad_fn _has_symbolic_sizes_strides _is_view _make_subclass _make_wrapper_subclass
    _post_accumulate_grad_hooks _python_dispatch _rev_view_func_unsafe _typed_storage _update_names _use_count _view_func
    _view_func_unsafe as_subclass device dim_order dtype grad grad_dtype grad_fn has_names is_cpu is_cuda is_ipu is_maia is_meta is_mkldnn
    is_mps is_mtia is_nested is_quantized is_sparse is_sparse_csr is_vulkan is_xla is_xpu itemsize layout name names nbytes ndim
    ndimension nelement new register_hook register_post_accumulate_grad_hook requires_grad shape storage storage_type untyped_storage
    volatile element_size get_device __slotnames__ backward dim is_contiguous numel storage_offset
""".split()

# UntypedStorage: sizes, places, makers of other storages, numbers.
STORAGE_NO_BYTES = """
    __annotations__ __delitem__ __dict__ __len__ __module__ __weakref__ _cdata _checkpoint_offset _expired _fake_device _fix_weakref
    _free_weak_ref _new_shared _new_shared_cuda _new_shared_fd_cpu _new_shared_filename_cpu _new_using_fd_cpu _new_using_filename_cpu
    _new_with_file _new_with_weak_ptr _release_ipc_counter _release_ipc_counter_cuda _set_cdata _weak_ref cpu cuda device element_size
    from_buffer from_file get_device hpu is_cuda is_hpu is_sparse is_sparse_csr mps nbytes new resizable size to type untyped
""".split()

# UntypedStorage: what stands on those that are tried below.
STORAGE_BY_OTHERS = """
    bfloat16 bool byte char complex_double complex_float double float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz half int is_pinned
    long pin_memory short
""".split()

# TypedStorage stands on UntypedStorage and tensors.
TYPED_STORAGE = """
    __annotations__ __copy__ __deepcopy__ __dict__ __getitem__ __iter__ __len__ __module__ __setitem__ __weakref__ _cdata _data_ptr _deepcopy
    _dtype _element_size _expired _fake_device _free_weak_ref _from_buffer _get_legacy_storage_class _getitem _is_shared _maybe_wrap_index
    _nbytes _new_shared _new_shared_cuda _new_wrapped_storage _pickle_storage_type _release_ipc_counter _resize_ _set_cdata _set_from_file
    _setitem _share_cuda_ _share_fd_cpu_ _share_filename_cpu_ _share_memory_ _shared_decref _shared_incref _size _to _weak_ref _write_file
    bfloat16 bool byte char clone complex_double complex_float copy_ cpu cuda data_ptr device double element_size filename fill_ float
    float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz from_buffer from_file get_device half hpu int is_cuda is_hpu is_pinned is_shared
    is_sparse long nbytes pickle_storage_type pin_memory resizable resize_ share_memory_ short size to tolist type untyped
""".split()

# torch._C: names that speak of memory. Below them: those of a GPU, which _pointers.py lends to; the rest tells no address,
# makes tensors, or marks what has none.
C_WORDS = (
    "address",
    "alias",
    "buffer",
    "copy",
    "data_ptr",
    "dlpack",
    "gather",
    "gds",
    "ipc",
    "nccl",
    "numpy",
    "overlap",
    "raw",
    "scatter",
    "share",
    "storage",
    "swap_tensor",
    "broadcast",
)
C_NAMES = """
    _broadcast _broadcast_coalesced _broadcast_out _gather _gather_out _gds_deregister_buffer _gds_deregister_handle _gds_load_storage
    _gds_register_buffer _gds_register_handle _gds_save_storage _nccl_all_gather _nccl_all_reduce _nccl_broadcast _nccl_init_rank
    _nccl_reduce _nccl_reduce_scatter _nccl_unique_id _nccl_version _nccl_version_suffix _scatter _scatter_out _cuda_ipc_collect
    _construct_CUDA_Tensor_From_Storage_And_Metadata _cuda_tunableop_get_rotating_buffer_size _cuda_tunableop_set_rotating_buffer_size
    DeepCopyMemoTable AliasDb BufferDict DeserializationStorageContext SerializationStorageContext StorageBase _AliasInfo
    _any_output_is_alias_to_input_or_output _backport_for_mobile_from_buffer _backport_for_mobile_from_buffer_to_buffer
    _backport_for_mobile_to_buffer _construct_storage_from_data_pointer _dispatch_is_alias_key _dispatch_is_included_in_alias
    _dlpack_exchange_api _from_dlpack _get_backcompat_broadcast_warn _get_mobile_model_contained_types_from_buffer
    _get_model_bytecode_version_from_buffer _get_model_extra_files_from_buffer _get_model_ops_and_info_from_buffer
    _get_module_info_from_flatbuffer _has_storage _jit_check_alias_annotation _jit_pass_dbr_quant_remove_redundant_aliases
    _load_for_lite_interpreter_from_buffer _set_backcompat_broadcast_warn _set_storage_access_error_msg
    _set_storage_data_ptr_access_error_msg _set_throw_on_mutable_data_ptr _set_warn_deprecated_on_mutable_data_ptr _storage_Use_Count
    _storage_address _storage_id _swap_tensor_impl _tensor_impl_raw_handle _unsafe_reset_storage import_ir_module_from_buffer
    _cuda_cudaCachingAllocator_raw_alloc _cuda_cudaCachingAllocator_raw_delete _cuda_getCurrentRawStream _mtia_getCurrentRawStream
""".split()


def _storage_of(x):
    return x.untyped_storage()


def _to_file(x):
    with tempfile.TemporaryFile() as file:
        _storage_of(x)._write_file(file, True, False, 1)
        file.seek(0)
        return file.read()


def _from_file(x):
    with tempfile.TemporaryFile() as file:
        _storage_of(x + 1)._write_file(file, True, True, 1)
        file.seek(0)
        _storage_of(x)._set_from_file(file, None, True, 1)
    return x


def _then(use, x):
    """Uses x, and returns x."""
    use(x)
    return x


def _exchanged(x):
    """Asks for a view of a tensor as libraries of C do."""

    class View(ctypes.Structure):
        _fields_ = (
            ("data", ctypes.c_void_p),
            ("device", ctypes.c_int32 * 2),
            ("ndim", ctypes.c_int32),
            ("dtype", ctypes.c_uint8 * 4),
            ("shape", ctypes.POINTER(ctypes.c_int64)),
            ("strides", ctypes.c_void_p),
            ("offset", ctypes.c_uint64),
        )

    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = pointer(type(x).__dlpack_c_exchange_api__, b"dlpack_exchange_api")
    # The header is two numbers of 32 bits and a pointer; three functions come before the one for views.
    address = ctypes.cast(table + 16 + 3 * 8, ctypes.POINTER(ctypes.c_void_p)).contents.value
    function = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(View))(address)
    view = View()
    assert function(x, ctypes.byref(view)) == 0
    return np.ctypeslib.as_array(ctypes.cast(view.data, ctypes.POINTER(ctypes.c_float)), (x.numel(),))


class Subclass(torch.Tensor):
    """A class of tensors that torch copies otherwise than its own."""

    def new_empty(self, *args, **kwargs):
        return super().new_empty(*args, **kwargs).as_subclass(Subclass)


def _mutated_while_saved(x):
    w = torch.full_like(x, 2.0).requires_grad_()
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        y = (w * x).sum()
        x.mul_(3)
        y.backward()
    return w.grad


# What sees memory: each use returns what is compared. Arrays and the like are compared again after more pressure.
TENSOR_USES = {
    "numpy": lambda x: x.numpy(),
    "__array__": np.asarray,
    "__dlpack__": np.from_dlpack,
    "__dlpack_c_exchange_api__": _exchanged,
    "__deepcopy__": lambda x: copy.deepcopy(x.as_subclass(Subclass)),
    "__reduce__": lambda x: pickle.loads(pickle.dumps(x)),
    "__reduce_ex__": lambda x: copy.copy(x),
    "_reduce_ex_internal": lambda x: pickle.loads(pickle.dumps(x.as_subclass(Subclass))),
    "apply_": lambda x: x.apply_(lambda value: value + 5),
    "map_": lambda x: x.map_(x.clone(), lambda a, b: a + 2 * b),
    "map2_": lambda x: x.map2_(x.clone(), x.clone(), lambda a, b, c: a + 2 * b + c),
    "data_ptr": None,
    "is_shared": lambda x: (x.is_shared(), x),
    "share_memory_": lambda x: x.share_memory_(),
    "tolist": lambda x: x.tolist(),
    "__cuda_array_interface__": lambda x: (hasattr(x, "__cuda_array_interface__"), x),
}
STORAGE_USES = {
    "__copy__": lambda x: copy.copy(_storage_of(x)),
    "__deepcopy__": lambda x: copy.deepcopy(_storage_of(x)),
    "__getitem__": lambda x: (_storage_of(x)[5], _storage_of(x)[8:4096]),
    "__iter__": lambda x: [value for value, _ in zip(_storage_of(x), range(16), strict=False)],
    "__setitem__": lambda x: _then(lambda x: _storage_of(x).__setitem__(3, 64), x),
    "_byteswap": lambda x: _then(lambda x: _storage_of(x)._byteswap(4), x),
    "byteswap": lambda x: _then(lambda x: _storage_of(x).byteswap(torch.float32), x),
    "_get_filename": lambda x: (_storage_of(x)._get_filename(), x),
    "filename": lambda x: (_storage_of(x).filename, x),
    "_get_shared_fd": lambda x: _then(lambda x: os.fstat(_storage_of(x.share_memory_())._get_shared_fd()), x),
    "_set_from_file": _from_file,
    "_share_cuda_": None,
    "_share_fd_cpu_": lambda x: _then(lambda x: _storage_of(x)._share_fd_cpu_(), x),
    "_share_filename_cpu_": lambda x: _then(lambda x: _storage_of(x)._share_filename_cpu_(), x),
    "_shared_decref": lambda x: _then(lambda x: _storage_of(x)._shared_decref(), x),
    "_shared_incref": lambda x: _then(lambda x: _storage_of(x)._shared_incref(), x),
    "_to": lambda x: _storage_of(x)._to(torch.uint8),
    "_write_file": _to_file,
    "clone": lambda x: _storage_of(x).clone(),
    "copy_": lambda x: _then(lambda x: _storage_of(x).copy_(_storage_of(x * 2)), x),
    "data_ptr": None,
    "fill_": lambda x: _then(lambda x: _storage_of(x).fill_(64), x),
    "float": lambda x: _storage_of(x[:4096].clone()).float(),
    "is_shared": lambda x: (_storage_of(x).is_shared(), x),
    "resize_": lambda x: _then(lambda x: _storage_of(x).resize_(2 * x.nbytes), x),
    "share_memory_": lambda x: _then(lambda x: _storage_of(x).share_memory_(), x),
    "tolist": lambda x: _storage_of(x)[:64].tolist(),
}
C_USES = {
    "_to_dlpack": lambda x: np.from_dlpack(_Capsule(torch._C._to_dlpack(x))),
    "_to_dlpack_versioned": lambda x: torch.from_dlpack(torch._C._to_dlpack_versioned(x)),
    "_is_alias_of": lambda x: (torch._C._is_alias_of(x, x[3:]), torch._C._is_alias_of(x, x + 1)),
    "_overlaps": lambda x: (torch._C._overlaps(x, x[3:]), torch._C._overlaps(x, x + 1)),
    "_data_address": None,
    "_tensors_data_ptrs_at_indices_equal": lambda x: torch._C._tensors_data_ptrs_at_indices_equal([x], [0], [0]),
}
OTHER_USES = {
    "torch.to_dlpack": lambda x: np.from_dlpack(_Capsule(torch.to_dlpack(x))),
    "torch.utils.dlpack.to_dlpack": lambda x: dlpack.from_dlpack(dlpack.to_dlpack(x)),
    "torch.from_dlpack": torch.from_dlpack,
    "torch.save": lambda x: torch.load(_saved(x)),
    "torch.save, in the format of before": lambda x: torch.load(_saved(x, _use_new_zipfile_serialization=False)),
    "torch.autograd.graph.allow_mutation_on_saved_tensors": _mutated_while_saved,
    "torch.TypedStorage": lambda x: (x.storage()[7], x.storage()._to(torch.float32), x.storage().tolist()[:9]),
}


class _Capsule:
    """A capsule as numpy takes it."""

    def __init__(self, capsule):
        self._capsule = capsule

    def __dlpack__(self, **_):
        return self._capsule

    def __dlpack_device__(self):
        return 1, 0


def _saved(x, **options):
    file = io.BytesIO()
    torch.save(x, file, **options)
    file.seek(0)
    return file


def bits_of(value):
    """Returns what is compared: bytes of tensors, arrays and storages, and other values as they are."""
    if isinstance(value, torch.TypedStorage):
        value = value.untyped()
    if isinstance(value, torch.UntypedStorage):
        value = torch.empty(0, dtype=torch.uint8).set_(value)
    if isinstance(value, torch.Tensor):
        return value.detach().as_subclass(torch.Tensor).contiguous().view(torch.uint8).clone().numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, tuple):
        return tuple(bits_of(one) for one in value)
    return value


@contextlib.contextmanager
def quiet():
    """Silences torch's warnings of functions that it will remove."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
