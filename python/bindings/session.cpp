#include "python/bindings/session.h"

#include <ATen/core/Tensor.h>
#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/autograd/python_variable.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/bytes.h"
#include "core/category.h"
#include "core/error.h"
#include "core/ledger.h"
#include "python/bindings/errors.h"
#include "runtime/pictures/session_page.h"
#include "runtime/recording/session_recorder.h"
#include "swap/gate/autograd_purposes.h"
#include "swap/gate/storage_page.h"
#include "swap/schedule/step_trace.h"
#include "swap/session.h"

namespace py = pybind11;

namespace spillway::python {
namespace {

/// A scope of Python in which storage counts as a category.
class CategoryBlock {
 public:
  explicit CategoryBlock(Category category) : category_(category) {}
  void enter() { scope_.emplace(category_); }
  void exit() { scope_.reset(); }

 private:
  const Category category_;
  std::optional<CategoryScope> scope_;
};

/// A scope of Python in which a thread makes buckets of gradients.
class BucketBlock {
 public:
  void enter() { scope_.emplace(); }
  void exit() { scope_.reset(); }

 private:
  std::optional<swap::BucketScope> scope_;
};

Category category_named(const std::string& text) {
  for (size_t c = 0; c < kCategoryCount; ++c)
    if (name(static_cast<Category>(c)) == text) return static_cast<Category>(c);
  throw BadRequest(str("'", text, "' is no category of bytes"));
}

py::dict by_category(const BytesByCategory& bytes) {
  py::dict all;
  for (size_t c = 0; c < kCategoryCount; ++c)
    if (bytes[c] > 0) all[py::str(std::string(name(static_cast<Category>(c))))] = bytes[c];
  return all;
}

py::dict stats_of(RecordedSession& open) {
  const SessionStats stats = open.session().stats();
  const swap::Need& need = open.session().neediest();
  py::dict all;
  all["peak_bytes"] = stats.peak_bytes;
  all["peak_by_category"] = by_category(stats.peak_by_category);
  all["library_bytes"] = stats.library_bytes;
  all["used_bytes"] = open.session().ledger().used_bytes();
  all["floor_bytes"] = need.bytes();
  all["floor_operator"] = std::string(need.name);
  all["host_peak_bytes"] = stats.host_peak_bytes;
  all["disk_peak_bytes"] = stats.disk_peak_bytes;
  all["bytes_out"] = stats.pager.bytes_out;
  all["bytes_in"] = stats.pager.bytes_in;
  all["bytes_to_disk"] = stats.bytes_to_disk;
  all["bytes_from_disk"] = stats.bytes_from_disk;
  all["page_outs"] = stats.pager.page_outs;
  all["page_ins"] = stats.pager.page_ins;
  all["demand_page_ins"] = stats.pager.demand_page_ins;
  all["replays"] = stats.pager.replays;
  all["exposed_seconds"] = stats.pager.exposed_seconds;
  all["operators"] = stats.operators;
  all["deviations"] = stats.deviations;
  return all;
}

SessionOptions options_from(std::string device, const std::string& engine, int64_t budget_bytes,
                            int64_t host_budget_bytes, std::string disk, int64_t split_bytes, bool prefetch,
                            bool replay, int processes_of_host) {
  SessionOptions options;
  options.device = std::move(device);
  options.engine = parse_engine(engine);
  options.budget_bytes = budget_bytes;
  options.host_budget_bytes = host_budget_bytes;
  options.disk_directory = std::move(disk);
  options.split_bytes = split_bytes;
  options.prefetch = prefetch;
  options.replay = replay;
  options.ranks_of_host = processes_of_host;
  options.translate_error = &throw_in_python;
  return options;
}

/// Returns a tensor, or a storage's bytes as one; no operator runs.
at::Tensor tensor_of(py::handle object) {
  if (THPVariable_Check(object.ptr())) return THPVariable_Unpack(object.ptr());
  if (!torch::isStorage(object.ptr())) throw py::type_error("a torch.Tensor or torch.UntypedStorage is needed");
  at::Storage storage = torch::createStorage(object.ptr());
  const c10::DispatchKey key =
      storage.device_type() == c10::DeviceType::CUDA ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  return at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key),
                                                  caffe2::TypeMeta::Make<uint8_t>());
}

auto without_gil_on(auto* function, py::handle object) {
  const at::Tensor tensor = tensor_of(object);
  const py::gil_scoped_release release;
  return function(tensor);
}

void bind_tensors(py::module_& module) {
  const py::call_guard<py::gil_scoped_release> without_gil;
  py::class_<CategoryBlock>(module, "category")
      .def(py::init([](const std::string& text) { return std::make_unique<CategoryBlock>(category_named(text)); }),
           py::arg("name"))
      .def("__enter__", &CategoryBlock::enter)
      .def("__exit__", [](CategoryBlock& block, const py::args&) { block.exit(); });
  py::class_<BucketBlock>(module, "buckets")
      .def(py::init<>())
      .def("__enter__", &BucketBlock::enter)
      .def("__exit__", [](BucketBlock& block, const py::args&) { block.exit(); });
  module.def(
      "categorize",
      [](const std::vector<at::Tensor>& tensors, const std::string& text) {
        for (const at::Tensor& tensor : tensors) swap::categorize(tensor, category_named(text));
      },
      py::arg("tensors"), py::arg("name"), without_gil);
  const py::class_<Resident> resident_type(module, "Resident");
  // The GIL is given up inside, because objects become tensors under it.
  module.def(
      "resident", [](py::handle object) { return without_gil_on(&resident, object); }, py::arg("object"));
  module.def(
      "resident_read", [](py::handle object) { return without_gil_on(&resident_read, object); }, py::arg("object"));
  module.def(
      "pin", [](py::handle object) { without_gil_on(&swap::keep_on_device, object); }, py::arg("object"));
  module.def(
      "note_raw_write", [](py::handle object) { without_gil_on(&note_raw_write, object); }, py::arg("object"));
}

}  // namespace

void bind_session(py::module_& module) {
  const py::call_guard<py::gil_scoped_release> without_gil;
  py::class_<RecordedSession>(module, "Session")
      .def(py::init([](std::string device, const std::string& engine, int64_t budget_bytes, int64_t host_budget_bytes,
                       std::string disk, int64_t split_bytes, bool prefetch, bool replay, int processes_of_host) {
             auto options = options_from(std::move(device), engine, budget_bytes, host_budget_bytes, std::move(disk),
                                         split_bytes, prefetch, replay, processes_of_host);
             const py::gil_scoped_release release;
             return std::make_unique<RecordedSession>(std::move(options));
           }),
           py::kw_only(), py::arg("device"), py::arg("engine"), py::arg("budget_bytes"), py::arg("host_budget_bytes"),
           py::arg("disk"), py::arg("split_bytes"), py::arg("prefetch"), py::arg("replay"),
           py::arg("processes_of_host"))
      .def("begin_step", &RecordedSession::begin_step, py::arg("kind"), without_gil)
      .def("end_step", &RecordedSession::end_step, without_gil)
      .def("forget_step", &RecordedSession::forget_step, without_gil)
      .def("close", &RecordedSession::close, without_gil)
      .def("reset_peak", [](RecordedSession& open) { open.session().reset_peak(); })
      .def("stats", &stats_of)
      .def(
          "report", [](RecordedSession& open, const std::string& folder) { write_report(folder, open.report()); },
          py::arg("folder"), without_gil);
  bind_tensors(module);
  module.def(
      "parse_bytes", [](const std::string& text) { return parse_bytes(text); }, py::arg("text"));
  module.def("format_bytes", &format_bytes, py::arg("bytes"));
  module.attr("UNLIMITED_BYTES") = kUnlimitedBytes;
  module.attr("SPLIT_BY_DEVICE") = kSplitByDevice;
}

}  // namespace spillway::python
