#include "python/bindings/kfac.h"

#include <torch/csrc/autograd/python_cpp_function.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "ddl/process_group/process_group.h"
#include "kfac/kfac.h"
#include "kfac/plan/option_types.h"

namespace py = pybind11;

namespace spillway::python {
namespace {

using Group = c10::intrusive_ptr<ddl::ProcessGroup>;
using kfac::ForeignModule;
using kfac::Kfac;
using kfac::KfacOptions;
using kfac::LayerKind;

std::optional<LayerKind> kind_named(const std::string& text) {
  for (const LayerKind kind : {LayerKind::linear, LayerKind::conv1d, LayerKind::conv2d, LayerKind::conv3d})
    if (kfac::name(kind) == text) return kind;
  return std::nullopt;
}

/// Takes (name, type, kind, groups, weight, bias), whose kind may be empty and whose tensors may be None.
ForeignModule module_from(const py::tuple& given) {
  const auto tensor = [&](size_t i) { return given[i].is_none() ? at::Tensor() : given[i].cast<at::Tensor>(); };
  return {.name = given[0].cast<std::string>(),
          .type = given[1].cast<std::string>(),
          .kind = kind_named(given[2].cast<std::string>()),
          .groups = given[3].cast<int64_t>(),
          .weight = tensor(4),
          .bias = tensor(5)};
}

/// The numbers that may change from step to step. Python sets them before a step.
struct Numbers {
  double lr = 0.1;
  double damping = 0;
  double kl_clip = 0;
};

/// Sets options from a dict, and refuses keys that it does not know.
class OptionReader {
 public:
  explicit OptionReader(py::dict given) : given_(std::move(given)) {}

  template <class Value>
  void read(const char* key, Value& value) {
    if (const auto found = take(key)) value = found->cast<Value>();
  }
  void read(const char* key, std::optional<kfac::StepSchedule>& value) {
    if (const auto found = take(key)) value = found->cast<double>();
  }
  template <class Value>
  void read(const char* key, Value& value, Value (*parse)(std::string_view)) {
    if (const auto found = take(key)) value = parse(py::str(*found).cast<std::string>());
  }
  bool has(const char* key) const { return given_.contains(key); }
  void finish() const {
    for (const auto& [key, value] : given_)
      throw py::type_error("KFAC has no argument '" + py::str(key).cast<std::string>() + "'");
  }

 private:
  std::optional<py::object> take(const char* key) {
    if (!given_.contains(key)) return std::nullopt;
    py::object value = given_[key];
    given_.attr("pop")(key);
    return value;
  }

  py::dict given_;
};

/// Reads the damping, which Python sets in `numbers` between steps: a share of a curvature, or γ itself.
void read_damping(OptionReader& reader, KfacOptions& options, const std::shared_ptr<Numbers>& numbers) {
  const kfac::StepSchedule now([numbers](int64_t) { return numbers->damping; });
  if (reader.has("absolute_damping")) {
    if (reader.has("damping") || reader.has("damping_scope"))
      throw BadRequest("[kfac.options] absolute_damping stands in place of damping and damping_scope");
    reader.read("absolute_damping", numbers->damping);
    options.damping = now;
    return;
  }
  kfac::DampingScope scope = kfac::default_damping_scope(options.convention);
  reader.read("damping_scope", scope, &kfac::parse_damping_scope);
  numbers->damping = kfac::default_relative_damping(scope);
  reader.read("damping", numbers->damping);
  options.damping_scope = scope;
  options.relative_damping = now;
}

/// Reads the clips. Python sets the learning rate and the trust region in `numbers` between steps.
void read_clips(OptionReader& reader, KfacOptions& options, const std::shared_ptr<Numbers>& numbers) {
  double norm_clip = NAN, kl_clip = NAN;
  reader.read("norm_clip", norm_clip);
  reader.read("kl_clip", kl_clip);
  if (!std::isnan(norm_clip)) options.norm_clip = norm_clip;
  numbers->kl_clip = std::isnan(kl_clip) ? kfac::default_kl_clip(options.convention) : kl_clip;
  options.lr = kfac::StepSchedule([numbers](int64_t) { return numbers->lr; });
  if (!std::isnan(kl_clip)) options.kl_clip = kfac::StepSchedule([numbers](int64_t) { return numbers->kl_clip; });
}

KfacOptions options_from(const py::dict& given, const std::shared_ptr<Numbers>& numbers) {
  KfacOptions options;
  OptionReader reader(given.attr("copy")());
  reader.read("factor_interval", options.factor_interval);
  reader.read("inverse_interval", options.inverse_interval);
  reader.read("strategy", options.strategy, &kfac::parse_strategy);
  reader.read("grad_worker_frac", options.grad_worker_frac);
  reader.read("placement", options.placement, &kfac::parse_placement);
  reader.read("factor_dtype", options.factor_dtype, &kfac::parse_factor_dtype);
  reader.read("overlap_factors", options.overlap_factors);
  reader.read("method", options.method, &kfac::parse_method);
  reader.read("convention", options.convention, &kfac::parse_convention);
  reader.read("conv_factors", options.conv_factors, &kfac::parse_conv_factors);
  reader.read("factor_samples", options.factor_samples, &kfac::parse_factor_samples);
  reader.read("rank", options.eigen_rank, &kfac::parse_eigen_rank);
  reader.read("storage", options.storage, &kfac::parse_factor_dtype);
  reader.read("decay", options.decay);
  reader.read("burn_in", options.burn_in);
  reader.read("staleness", options.staleness);
  reader.read("max_factor_dim", options.max_factor_dim);
  reader.read("max_linear_dim", options.max_linear_dim);
  reader.read("block_linear", options.block_linear);
  reader.read("seed", options.seed);
  reader.read("skip", options.skip);
  read_damping(reader, options, numbers);
  read_clips(reader, options, numbers);
  reader.finish();
  return options;
}

/// Lets Python look at an opaque node of a watched graph.
void watch_reruns(torch::autograd::Node& node, const std::function<void(at::TensorList)>& watch) {
  const py::gil_scoped_acquire gil;
  const auto function = py::reinterpret_steal<py::object>(torch::autograd::functionToPyObject(node.getptr()));
  if (!function) throw py::error_already_set();
  const auto watch_outputs = [watch](const std::vector<at::Tensor>& outputs) {
    const py::gil_scoped_release release;
    watch(outputs);
  };
  py::module_::import("spillway.kfac").attr("_watch_reruns")(function, py::cpp_function(watch_outputs));
}

/// A Kfac with the numbers of its coming step, and the group that it has to itself; null where a process is alone.
class PythonKfac {
 public:
  PythonKfac(const std::vector<py::tuple>& modules, const py::dict& options, double lr, Group group)
      : group_(std::move(group)) {
    numbers_->lr = lr;
    std::vector<ForeignModule> all;
    for (const py::tuple& module : modules) all.push_back(module_from(module));
    KfacOptions read = options_from(options, numbers_);
    const py::gil_scoped_release release;
    kfac_.emplace(all, std::move(read), group_ ? group_->comm() : nullptr, &watch_reruns);
  }
  PythonKfac(const PythonKfac&) = delete;
  PythonKfac& operator=(const PythonKfac&) = delete;
  /// Waits for threads of Kfac and of the group without the GIL, because they may need it to end.
  ~PythonKfac() {
    const py::gil_scoped_release release;
    kfac_.reset();
    group_.reset();
  }
  Kfac& kfac() { return *kfac_; }
  Numbers& numbers() { return *numbers_; }

 private:
  Group group_;
  const std::shared_ptr<Numbers> numbers_ = std::make_shared<Numbers>();
  std::optional<Kfac> kfac_;
};

py::dict counters_of(PythonKfac& own) {
  const kfac::KfacCounters counters = own.kfac().counters();
  py::dict all;
  all["steps"] = counters.steps;
  all["factor_updates"] = counters.factor_updates;
  all["decompositions"] = counters.decompositions;
  all["dropped_factors"] = counters.dropped_factors;
  all["failed_decompositions"] = counters.failed_decompositions;
  all["damping_scale"] = counters.damping_scale;
  return all;
}

py::dict seconds_of(PythonKfac& own) {
  const kfac::KfacSeconds seconds = own.kfac().usage().seconds;
  py::dict all;
  all["factors"] = seconds.factor_compute;
  all["decompose"] = seconds.decompose;
  all["precondition"] = seconds.precondition;
  all["communicate"] = seconds.factor_communicate + seconds.eigenbasis_communicate + seconds.gradient_communicate;
  return all;
}

py::dict bytes_of(PythonKfac& own) {
  const kfac::FactorBytes bytes = own.kfac().usage().bytes;
  py::dict all;
  all["factors"] = bytes.factors;
  all["eigenbases"] = bytes.eigenbases;
  all["scales"] = bytes.scales;
  all["staged"] = bytes.staged;
  all["background"] = bytes.background;
  return all;
}

py::list layers_of(PythonKfac& own) {
  py::list all;
  for (const kfac::Layer& layer : own.kfac().layers()) all.append(layer.shape.name);
  return all;
}

py::list named(const std::vector<kfac::SkippedLayer>& layers) {
  py::list all;
  for (const kfac::SkippedLayer& layer : layers) all.append(py::make_tuple(layer.name, layer.reason));
  return all;
}

py::list unseen_by(PythonKfac& own) {
  std::vector<kfac::SkippedLayer> unseen;
  {
    const py::gil_scoped_release release;
    unseen = own.kfac().unseen_layers();
  }
  return named(unseen);
}

void bind_numbers(py::class_<PythonKfac>& type) {
  type.def_property(
          "lr", [](PythonKfac& own) { return own.numbers().lr; },
          [](PythonKfac& own, double v) { own.numbers().lr = v; })
      .def_property(
          "damping", [](PythonKfac& own) { return own.numbers().damping; },
          [](PythonKfac& own, double v) { own.numbers().damping = v; })
      .def_property(
          "kl_clip", [](PythonKfac& own) { return own.numbers().kl_clip; },
          [](PythonKfac& own, double v) { own.numbers().kl_clip = v; });
}

}  // namespace

void bind_kfac(py::module_& module) {
  const py::call_guard<py::gil_scoped_release> without_gil;
  py::class_<PythonKfac> type(module, "Kfac");
  bind_numbers(type);
  type.def(py::init<const std::vector<py::tuple>&, const py::dict&, double, Group>(), py::arg("modules"),
           py::arg("options"), py::arg("lr"), py::arg("group"))
      .def(
          "watch",
          [](PythonKfac& own, const std::vector<at::Tensor>& roots, int64_t batch) {
            own.kfac().watch_stage(roots, {.count = batch, .micro_batch = -1});
          },
          py::arg("roots"), py::arg("batch"), without_gil)
      .def(
          "watch_rerun",
          [](PythonKfac& own, const std::vector<at::Tensor>& roots, int64_t batch) {
            own.kfac().watch_rerun(roots, batch);
          },
          py::arg("roots"), py::arg("batch"), without_gil)
      .def(
          "step", [](PythonKfac& own, double loss_scale) { own.kfac().step(loss_scale); }, py::arg("loss_scale"),
          without_gil)
      .def(
          "discard", [](PythonKfac& own) { own.kfac().discard(); }, without_gil)
      .def(
          "adapt_damping",
          [](PythonKfac& own, double before, double after) { return own.kfac().adapt_damping(before, after); },
          without_gil)
      .def("updates_factors", [](PythonKfac& own) { return own.kfac().work().updates_factors; })
      .def("kind", [](PythonKfac& own) { return std::string(own.kfac().work().kind); })
      .def(
          "state", [](PythonKfac& own) { return own.kfac().state_dict(); }, without_gil)
      .def(
          "load_state", [](PythonKfac& own, const kfac::StateDict& state) { own.kfac().load_state_dict(state); },
          without_gil)
      .def("layers", &layers_of)
      .def("left_alone", [](PythonKfac& own) { return named(own.kfac().left_alone()); })
      .def("unseen_layers", &unseen_by)
      .def("counters", &counters_of)
      .def("seconds", &seconds_of)
      .def("bytes", &bytes_of);
}

}  // namespace spillway::python
