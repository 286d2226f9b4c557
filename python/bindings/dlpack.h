/// DLPack's functions of C for torch.Tensor.
#pragma once
#include <torch/csrc/utils/pybind.h>

namespace spillway::python {

/// Adds `dlpack_exchange_api(capsule)`: it takes what torch.Tensor has as `__dlpack_c_exchange_api__`, and returns
/// functions that keep a tensor on its device before they tell its address. Libraries find them by the type alone and
/// call them without Python, so no method of Python could do that.
void bind_dlpack(pybind11::module_& module);

}  // namespace spillway::python
