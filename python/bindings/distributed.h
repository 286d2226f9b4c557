/// The backend of torch.distributed in Python.
#pragma once
#include <torch/csrc/utils/pybind.h>

namespace spillway::python {

/// Makes the module's `ProcessGroup`, which spillway/distributed.py registers, and lets its collectives run inside
/// Sessions.
void bind_distributed(pybind11::module_& module);

}  // namespace spillway::python
