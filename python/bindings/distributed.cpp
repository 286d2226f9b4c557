#include "python/bindings/distributed.h"

#include <ATen/core/ivalue.h>

#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "core/error.h"
#include "ddl/comm/communicator.h"
#include "ddl/comm/mpi.h"
#include "ddl/comm/transport.h"
#include "ddl/process_group/callback_threads.h"
#include "ddl/process_group/process_group.h"
#include "ddl/sockets/socket_transport.h"
#include "python/bindings/errors.h"
#include "swap/gate/blocking_operators.h"
#include "swap/gate/session_scope.h"
#include "swap/session.h"

namespace py = pybind11;

namespace spillway::python {

/// A reference to a group that is dropped without the GIL, because the group's threads may need it to end. Laid out as
/// torch's own holders, which torch's casters take it for.
template <class T>
class DroppedWithoutGil {
 public:
  DroppedWithoutGil() = default;
  explicit DroppedWithoutGil(T* owned) : held_(c10::intrusive_ptr<T>::unsafe_steal_from_new(owned)) {}
  explicit DroppedWithoutGil(c10::intrusive_ptr<T> held) : held_(std::move(held)) {}
  DroppedWithoutGil(const DroppedWithoutGil&) = default;
  DroppedWithoutGil(DroppedWithoutGil&&) noexcept = default;
  DroppedWithoutGil& operator=(const DroppedWithoutGil&) = default;
  DroppedWithoutGil& operator=(DroppedWithoutGil&&) noexcept = default;
  ~DroppedWithoutGil() {
    if (!held_) return;
    std::optional<py::gil_scoped_release> release;
    if (PyGILState_Check() != 0) release.emplace();
    held_.reset();
  }
  T* get() const noexcept { return held_.get(); }

 private:
  c10::intrusive_ptr<T> held_;
};

}  // namespace spillway::python

PYBIND11_DECLARE_HOLDER_TYPE(T, spillway::python::DroppedWithoutGil<T>, true)  // NOLINT: pybind11's own

namespace spillway::python {
namespace {

/// The store of torch.distributed, where ranks tell each other their addresses. Ctrl-C ends a rank's looking for
/// others.
class StoreRendezvous final : public ddl::Rendezvous {
 public:
  explicit StoreRendezvous(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  void set(const std::string& key, const std::string& value) override { store_->set(key, value); }
  std::optional<std::string> find(const std::string& key) override {
    {
      const py::gil_scoped_acquire gil;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    }
    if (!store_->check({key})) return std::nullopt;
    return store_->get_to_str(key);
  }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
};

/// Returns the device of a call's first tensor; the CPU without one.
c10::DeviceType device_of(std::span<const c10::IValue> arguments) {
  for (const c10::IValue& argument : arguments) {
    if (argument.isTensor() && argument.toTensor().defined()) return argument.toTensor().device().type();
    if (argument.isTensorList() && !argument.toTensorList().empty())
      return argument.toTensorVector()[0].device().type();
  }
  return c10::DeviceType::CPU;
}

/// Returns the group of a collective's call; nullptr: it has none that is known here. Functional collectives, which
/// DTensor makes, say its name in their last text.
c10::intrusive_ptr<c10d::ProcessGroup> group_of(std::span<const c10::IValue> arguments) {
  const std::string* name = nullptr;
  for (const c10::IValue& argument : arguments) {
    if (argument.isString()) name = &argument.toStringRef();
    if (!argument.isCustomClass() && !argument.isObject()) continue;
    try {
      return argument.toCustomClass<c10d::ProcessGroup>();
    } catch (const c10::Error&) {  // another class
      continue;
    }
  }
  return name ? c10d::resolve_process_group(*name) : nullptr;
}

/// True for calls of groups whose backend for the tensors is ours, because they block inside a Session.
bool is_ours(std::span<const c10::IValue> arguments) {
  try {
    const auto group = group_of(arguments);
    return group && group->getBackend(device_of(arguments))->getBackendName() == "spillway";
  } catch (const c10::Error&) {  // no such group, or it has no backend for the device
    return false;
  }
}

using Group = DroppedWithoutGil<ddl::ProcessGroup>;

/// Returns the process's MPI, which starts at the first call unless the program has started it, as mpi4py does.
ddl::MpiRuntime& mpi(std::chrono::milliseconds deadline) {
  static ddl::MpiRuntime runtime(deadline);
  return runtime;
}

/// Returns a wire over all of MPI's processes. They must be the ranks of the group.
std::unique_ptr<ddl::Transport> mpi_transport(int rank, int size, std::chrono::milliseconds deadline) {
  if (!ddl::built_with_mpi())
    throw BadRequest(
        "[ddl] transport is 'mpi', and this package was built without MPI: "
        "pip install . --config-settings=cmake.define.SPILLWAY_MPI=ON");
  auto wire = mpi(deadline).transport(deadline);
  const int processes = static_cast<int>(wire->hosts().size());
  if (wire->rank() != rank || processes != size)
    throw BadRequest(str("[ddl] rank ", rank, " of ", size, " is rank ", wire->rank(), " of ", processes,
                         " in MPI; transport 'mpi' is for a group of all of MPI's processes in MPI's order"));
  return wire;
}

std::unique_ptr<ddl::Transport> make_transport(const std::string& kind, const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank, int size, const std::string& address,
                                               const std::string& secret, std::chrono::milliseconds deadline) {
  if (kind == "mpi") return mpi_transport(rank, size, deadline);
  if (kind != "sockets") throw BadRequest(str("[ddl] transport is '", kind, "'; allowed are 'sockets' and 'mpi'"));
  StoreRendezvous rendezvous(store);
  return ddl::socket_transport(rank, size, rendezvous, {.address = address, .deadline = deadline, .secret = secret});
}

Group make_group(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, double deadline_seconds,
                 const std::string& transport, const std::string& address, const std::string& secret,
                 std::vector<std::vector<int>> levels, bool calibrate) {
  const auto deadline = std::chrono::milliseconds(std::llround(1000 * deadline_seconds));
  auto wire = make_transport(transport, store, rank, size, address, secret, deadline);
  auto comm = std::make_shared<ddl::Communicator>(std::move(wire),
                                                  ddl::CommOptions{.deadline = deadline, .levels = std::move(levels)});
  const auto must_block = [] { return swap::SessionScope::current() != nullptr; };
  const auto hold = [](const at::Tensor& tensor, bool written) -> std::shared_ptr<void> {
    return std::make_shared<Resident>(written ? resident(tensor) : resident_read(tensor));
  };
  return Group(c10::make_intrusive<ddl::ProcessGroup>(
      std::move(comm),
      ddl::ProcessGroupOptions{
          .calibrate = calibrate, .must_block = must_block, .hold = hold, .translate_error = &through_torch}));
}

}  // namespace

void bind_distributed(py::module_& module) {
  swap::set_blocking_collectives(&is_ours);
  // Its base class is torch's, whose module must be there first.
  const py::module_ base = py::module_::import("torch.distributed");
  if (!base.attr("is_available")().cast<bool>()) return;
  py::class_<ddl::ProcessGroup, c10d::Backend, Group>(module, "ProcessGroup")
      .def(py::init(&make_group), py::kw_only(), py::arg("store"), py::arg("rank"), py::arg("size"),
           py::arg("deadline_seconds"), py::arg("transport"), py::arg("address"), py::arg("secret"), py::arg("levels"),
           py::arg("calibrate"), py::call_guard<py::gil_scoped_release>())
      .def(
          "duplicate", [](ddl::ProcessGroup& group) { return Group(group.duplicate()); },
          py::call_guard<py::gil_scoped_release>())
      .def("explain", &ddl::ProcessGroup::explain, py::arg("bytes"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("hosts", [](const ddl::ProcessGroup& group) { return group.communicator().hosts(); })
      .def("leave", &ddl::ProcessGroup::leave, py::call_guard<py::gil_scoped_release>())
      .def_static("end_callbacks", &ddl::CallbackThreads::end_all);
}

}  // namespace spillway::python
