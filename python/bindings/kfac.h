/// K-FAC in Python.
#pragma once
#include <torch/csrc/utils/pybind.h>

namespace spillway::python {

/// Makes the module's `Kfac`, which spillway/kfac.py wraps.
void bind_kfac(pybind11::module_& module);

}  // namespace spillway::python
