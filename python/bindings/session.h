/// Sessions in Python.
#pragma once
#include <torch/csrc/utils/pybind.h>

namespace spillway::python {

/// Makes the module's `Session` and `Resident`, which spillway/session.py wraps.
void bind_session(pybind11::module_& module);

}  // namespace spillway::python
