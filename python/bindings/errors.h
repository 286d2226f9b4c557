/// Spillway's errors as Python's exceptions.
#pragma once
#include <torch/csrc/utils/pybind.h>

#include <exception>

namespace spillway::python {

/// Makes the exceptions of the module, and throws them where a bound function throws Spillway's errors:
/// OutOfBudget (a RuntimeError with `requested_bytes` and `budget_bytes`), DeviceError and CommError (RuntimeErrors),
/// DiskError (an OSError). BadRequest is a ValueError, std::system_error an OSError.
void bind_errors(pybind11::module_& module);

/// Sets Python's error, for functions of C that Python's libraries call: the one that stands for `error`, else a
/// RuntimeError. Needs the GIL.
void set_python_error(const std::exception& error) noexcept;

/// Throws LibTorch's `python_error` with the Python exception that stands for `error`, so that it arrives through the
/// operators of LibTorch and through autograd's threads. Returns where none does. Takes the GIL.
void throw_in_python(const std::exception& error);

/// Returns an error that arrives as CommError where LibTorch's own functions throw it, such as the end of a backward,
/// if `error` is one; else `error`. Needs no GIL, so threads of a group may call it while the interpreter ends.
std::exception_ptr through_torch(const std::exception_ptr& error);

}  // namespace spillway::python
