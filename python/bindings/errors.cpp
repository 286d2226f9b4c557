#include "python/bindings/errors.h"

#include <torch/csrc/Exceptions.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

#include "core/error.h"
#include "core/json_text.h"
#include "ddl/comm/communicator.h"

namespace py = pybind11;

namespace spillway::python {
namespace {

/// The exceptions' types. The module keeps them, and it is never unloaded.
struct Types {
  PyObject* out_of_budget = nullptr;
  PyObject* disk_error = nullptr;
  PyObject* device_error = nullptr;
  PyObject* comm_error = nullptr;
};

Types& types() {
  static Types all;
  return all;
}

/// A CommError for LibTorch, whose functions ask an error for its type in Python, and take all others for
/// RuntimeErrors.
struct CommErrorForTorch final : torch::PyTorchError {
  explicit CommErrorForTorch(const ddl::CommError& error) : PyTorchError(utf8_of(error.what())) {}
  PyObject* python_type() override { return types().comm_error; }
};

PyObject* new_type(py::module_& module, const char* name, PyObject* base, const char* doc) {
  const std::string qualified = std::string("spillway.") + name;
  PyObject* type = PyErr_NewExceptionWithDoc(qualified.c_str(), doc, base, nullptr);
  if (!type) throw py::error_already_set();
  module.add_object(name, py::reinterpret_steal<py::object>(type));
  return py::object(module.attr(name)).release().ptr();
}

/// Returns a message as Python's text. Messages carry names of files and words of other ranks, which may be no UTF-8.
py::object text_of(const std::exception& error) {
  const std::string_view text = error.what();
  PyObject* decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
  if (!decoded) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(decoded);
}

/// Returns the type of Python that stands for `error`; nullptr where none does.
PyObject* type_of(const std::exception& error) {
  if (dynamic_cast<const OutOfBudget*>(&error)) return types().out_of_budget;
  if (dynamic_cast<const DiskError*>(&error)) return types().disk_error;
  if (dynamic_cast<const DeviceError*>(&error)) return types().device_error;
  if (dynamic_cast<const ddl::CommError*>(&error)) return types().comm_error;
  if (dynamic_cast<const CommErrorForTorch*>(&error)) return types().comm_error;
  if (dynamic_cast<const BadRequest*>(&error)) return PyExc_ValueError;
  if (dynamic_cast<const std::system_error*>(&error)) return PyExc_OSError;  // of a file
  return nullptr;
}

/// Sets Python's error to the one that stands for `error`. Returns false where none does.
bool set_error(const std::exception& error) {
  PyObject* type = type_of(error);
  if (!type) return false;
  py::object raised = py::reinterpret_borrow<py::object>(type)(text_of(error));
  if (const auto* out_of_budget = dynamic_cast<const OutOfBudget*>(&error)) {
    raised.attr("requested_bytes") = out_of_budget->requested_bytes();
    raised.attr("budget_bytes") = out_of_budget->budget_bytes();
  }
  PyErr_SetObject(type, raised.ptr());
  return true;
}

}  // namespace

void bind_errors(py::module_& module) {
  types().out_of_budget =
      new_type(module, "OutOfBudget", PyExc_RuntimeError,
               "An operator, or the opening of a Session, that does not fit the budget when nothing more can leave the "
               "device.\n\n"
               "`requested_bytes` is what was asked for last, `budget_bytes` the budget. The message names the "
               "operator, what it\n"
               "needs, and what holds the rest. The tensors are intact, unless the message says otherwise.");
  types().disk_error =
      new_type(module, "DiskError", PyExc_OSError, "The disk failed to store a page, or to give it back unchanged.");
  types().device_error =
      new_type(module, "DeviceError", PyExc_RuntimeError, "A device that is not there or cannot be used.");
  types().comm_error = new_type(
      module, "CommError", PyExc_RuntimeError,
      "A rank that did not answer within the deadline, gave up, or called something else. The message names it.");
  py::register_exception_translator([](std::exception_ptr thrown) {  // NOLINT: the type that pybind11 asks for
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const python_error& error) {
      python_error again(error);
      again.restore();
    } catch (const std::exception& error) {
      if (!set_error(error)) throw;  // to pybind11's own translators
    }
  });
}

void set_python_error(const std::exception& error) noexcept {
  try {
    if (!set_error(error)) PyErr_SetObject(PyExc_RuntimeError, text_of(error).ptr());
  } catch (const std::exception& other) {
    PyErr_SetString(PyExc_RuntimeError, other.what());
  }
}

void throw_in_python(const std::exception& error) {
  const py::gil_scoped_acquire gil;
  if (!set_error(error)) return;
  python_error raised;
  raised.persist();
  throw raised;
}

std::exception_ptr through_torch(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const ddl::CommError& told) {
    return std::make_exception_ptr(CommErrorForTorch(told));
  } catch (...) {
    return error;
  }
}

}  // namespace spillway::python
