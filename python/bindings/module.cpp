// The extension module spillway._spillway.
#include "core/program.h"
#include "python/bindings/distributed.h"
#include "python/bindings/dlpack.h"
#include "python/bindings/errors.h"
#include "python/bindings/kfac.h"
#include "python/bindings/session.h"

PYBIND11_MODULE(_spillway, module) {
  module.doc() = "The extension of the package spillway: Sessions, K-FAC and process groups of C++. Use the package.";
  module.attr("__version__") = spillway::kVersion;
  module.attr("torch_version") = SPILLWAY_TORCH_VERSION;
  spillway::python::bind_errors(module);
  spillway::python::bind_session(module);
  spillway::python::bind_dlpack(module);
  spillway::python::bind_kfac(module);
  spillway::python::bind_distributed(module);
}
