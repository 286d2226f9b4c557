#include "python/bindings/dlpack.h"

#include <ATen/dlpack.h>
#include <torch/csrc/autograd/python_variable.h>

#include <exception>

#include "python/bindings/errors.h"
#include "swap/gate/storage_page.h"

namespace py = pybind11;

namespace spillway::python {
namespace {

constexpr const char* kCapsuleName = "dlpack_exchange_api";

/// torch's own functions. Libraries keep pointers to such tables forever, so both tables live as long as the process.
const DLPackExchangeAPI* torchs = nullptr;

/// Keeps a tensor on its device. Returns false, with an error of Python set, when it cannot come back there.
bool keep(void* object) noexcept {
  auto* tensor = static_cast<PyObject*>(object);
  if (!THPVariable_Check(tensor)) return true;  // torch's function refuses it
  try {
    const at::Tensor kept = THPVariable_Unpack(tensor);
    const py::gil_scoped_release release;
    swap::keep_on_device(kept);
    return true;
  } catch (const std::exception& error) {
    set_python_error(error);
    return false;
  }
}

int export_managed(void* object, DLManagedTensorVersioned** out) {
  return keep(object) ? torchs->managed_tensor_from_py_object_no_sync(object, out) : -1;
}
int export_view(void* object, DLTensor* out) {
  return keep(object) ? torchs->dltensor_from_py_object_no_sync(object, out) : -1;
}

py::capsule exchange_api(const py::object& capsule) {
  torchs = static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule.ptr(), kCapsuleName));
  if (!torchs) throw py::error_already_set();
  static DLPackExchangeAPI functions = *torchs;
  functions.managed_tensor_from_py_object_no_sync = &export_managed;
  if (torchs->dltensor_from_py_object_no_sync) functions.dltensor_from_py_object_no_sync = &export_view;
  return py::capsule(&functions, kCapsuleName);
}

}  // namespace

void bind_dlpack(py::module_& module) {
  module.def("dlpack_exchange_api", &exchange_api, py::arg("capsule"));
}

}  // namespace spillway::python
