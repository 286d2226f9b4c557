#include "runtime/training/checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/error.h"
#include "core/json_text.h"
#include "core/parse_number.h"
#include "core/program.h"
#include "ddl/comm/busy.h"
#include "ddl/comm/collectives.h"
#include "runtime/io/tensor_file.h"
#include "runtime/options/curvature_json.h"
#include "swap/session.h"

namespace spillway::runtime {
namespace {

using Path = std::filesystem::path;
using Fields = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kCpu = "cpu";
constexpr const char* kFormat = "spillway-checkpoint-1";
constexpr const char* kGenerators = "generators";
constexpr const char* kGpuGenerator = "generator_of_the_card";

constexpr const char* kCurvature = "kfac_plan";
constexpr const char* kDelay = "kfac_delay";
constexpr const char* kConvention = "convention";
constexpr const char* kStatistics = "statistics";

/// Returns the options that a resumed run must share with the saved run.
Fields identity(const TrainOptions& o) {
  return {{"model", o.model.name},
          {"data", utf8_of(o.data.source)},
          {"shape", format_shape(o.data.shape)},
          {"cases", str(o.data.cases)},
          {"batch", str(o.data.batch)},
          {"filters", str(o.model.filters)},
          {"hidden", str(o.model.hidden)},
          {"layers", str(o.model.layers)},
          {"classes", str(o.model.classes)},
          {"optimizer", std::string(name(o.optimizer.kind))},
          {"momentum", o.optimizer.kind == OptimizerKind::sgd ? str(o.optimizer.momentum) : "none"},
          {"rest_optimizer", o.optimizer.rest ? std::string(name(o.optimizer.rest->kind)) : "none"},
          {"kfac", o.kfac.enabled ? "on" : "off"},
          {kConvention, o.kfac.enabled ? std::string(kfac::name(o.kfac.preconditioner.convention)) : "none"},
          {kStatistics, !o.kfac.enabled                                        ? "none"
                        : o.kfac.preconditioner.strategy == kfac::Strategy::dp ? "of each layer's owner"
                                                                               : "of all ranks"},
          {"amp", std::string(name(o.precision.amp))},
          {"device", c10::Device(o.memory.device).is_cpu() ? kCpu : "cuda"},
          {"split", o.memory.split_in_use() == kUnlimitedBytes || o.memory.engine == Engine::unified
                        ? "off"
                        : str(o.memory.split_in_use())},
          {"seed", str(o.seed)}};
}

/// Returns the generator of the GPU that the run's tensors are on; undefined on the CPU.
at::Generator gpu_generator(const std::vector<StateTensor>& tensors) {
  for (const StateTensor& tensor : tensors)
    if (tensor.held.defined() && tensor.held.is_cuda())
      return at::globalContext().defaultGenerator(tensor.held.device());
  return {};
}

at::Tensor state_of(at::Generator& generator) {
  std::lock_guard lock(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator& generator, const at::Tensor& state) {
  auto lent = resident_read(state);
  std::lock_guard lock(generator.mutex());
  generator.set_state(state);
}

/// Returns a number of the file's metadata; -1 where there is none.
int64_t number(const TensorFileReader& file, const std::string& name) {
  const auto found = file.metadata().find(name);
  return found == file.metadata().end() ? -1 : std::max<int64_t>(-1, parse_number<int64_t>(found->second).value_or(-1));
}

/// Sets `generator` to this rank's row of the saved states, or seeds it where the saved run had no such rank.
void restore_generator(const TensorFileReader& file, const std::string& name, at::Generator generator,
                       const TrainOptions& options, RunPosition position, int64_t rank) {
  const std::vector<int64_t> sizes = file.sizes(name);
  const int64_t state_bytes = state_of(generator).numel(), saved_ranks = sizes.size() == 2 ? sizes[0] : 0;
  // The file is as long as the product of these sizes says, so the memory allocated below is no larger than the file.
  if (saved_ranks < 1 || sizes[1] != state_bytes)
    throw BadRequest(str("the checkpoint has no '", name, "' of ", state_bytes, " bytes for each rank"));
  if (rank >= saved_ranks) {
    std::lock_guard lock(generator.mutex());
    // No two ranks' first seeds differ by a multiple of this factor, so that no rank repeats the numbers of another.
    generator.set_current_seed(first_seed(options, rank) + 0x9e3779b97f4a7c15 * position.step);
    return;
  }
  const at::Tensor all = at::empty({saved_ranks, state_bytes}, at::kByte);
  file.read(name, all);
  set_state(generator, all[rank].clone());
}

/// Gathers the generator states of all ranks, one row for each rank.
at::Tensor all_states(const at::Tensor& own, const ddl::Comm& comm) {
  const int64_t world = comm ? comm->communicator->size() : 1;
  at::Tensor all = at::empty({world, own.numel()}, at::kByte);
  auto lent = resident_read(own), taken = resident(all);
  auto bytes = [](const at::Tensor& tensor, void* data) {
    return std::span(static_cast<std::byte*>(data), tensor.nbytes());
  };
  if (comm)
    ddl::allgather(*comm->communicator, bytes(own, own.mutable_data_ptr()), bytes(all, all.mutable_data_ptr()));
  else
    std::memcpy(all.mutable_data_ptr(), own.const_data_ptr(), own.nbytes());
  return all;
}

TensorFileReader open_checkpoint(const Path& folder) {
  TensorFileReader file(checkpoint_file(folder));
  const auto format = file.metadata().find("format");
  if (format == file.metadata().end() || format->second != kFormat)
    throw BadRequest(str("'", checkpoint_file(folder).string(), "' is no checkpoint of this version of Spillway"));
  return file;
}

}  // namespace

at::Tensor at_rank_0(const StateTensor& tensor, const ddl::Comm& comm) {
  if (tensor.holder == 0) return tensor.held;
  const int64_t rank = ddl::rank_of(comm);
  if (rank != 0 && rank != tensor.holder) return tensor.held;
  at::Tensor there = rank == 0 ? at::empty(tensor.sizes, tensor.type) : tensor.held.detach().to(at::kCPU).contiguous();
  ddl::broadcast_({there}, comm, tensor.holder, {tensor.holder, 0});
  return there;
}

Path checkpoint_file(const Path& folder) {
  return folder / "checkpoint.safetensors";
}

void prepare_checkpoint_folder(const Path& folder) {
  std::filesystem::create_directories(folder);
  TensorFileWriter(folder / "writable", {}, {});  // removed at once, because it is not committed
}

uint64_t first_seed(const TrainOptions& options, int rank) {
  return options.seed * 1'000'003 + 1 + rank;
}

void write_checkpoint(const Path& folder, const TrainOptions& options, RunPosition position,
                      const std::vector<StateTensor>& tensors, const ddl::Comm& comm) {
  // Rank 0 alone writes, for as long as the disk takes. The other ranks must not give it up meanwhile.
  const ddl::Busy busy(comm ? comm->communicator.get() : nullptr);
  at::Generator generator = at::detail::getDefaultCPUGenerator(), gpu = gpu_generator(tensors);
  const at::Tensor generators = all_states(state_of(generator), comm);
  const at::Tensor on_gpu = gpu.defined() ? all_states(state_of(gpu), comm) : at::Tensor();
  const int world = comm ? comm->communicator->size() : 1;
  std::optional<TensorFileWriter> file;
  if (!comm || comm->communicator->rank() == 0) {
    std::vector<TensorEntry> entries;
    for (const StateTensor& tensor : tensors) entries.push_back({tensor.name, tensor.type, tensor.sizes});
    entries.push_back({kGenerators, at::kByte, generators.sizes().vec()});
    if (on_gpu.defined()) entries.push_back({kGpuGenerator, at::kByte, on_gpu.sizes().vec()});
    std::map<std::string, std::string> metadata{{"format", kFormat},
                                                {"version", kVersion},
                                                {"step", str(position.step)},
                                                {"cases_drawn", str(position.cases_drawn)},
                                                {"run.ranks", str(world / options.pipeline.ranks)},
                                                {"run.accumulate", str(options.optimizer.accumulate)}};
    for (const auto& [name, value] : identity(options)) metadata["run." + name] = value;
    if (const auto& plan = options.kfac.preconditioner.layer_curvature; options.kfac.enabled && !plan.empty()) {
      metadata[kCurvature] = curvature_json(plan).dump();
      metadata[kDelay] = str(options.kfac.preconditioner.curvature_delay);
    }
    file.emplace(checkpoint_file(folder), std::move(entries), metadata);
  }
  for (const StateTensor& tensor : tensors) {
    const at::Tensor there = at_rank_0(tensor, comm);
    if (file) file->write(there);
  }
  if (file) {
    file->write(generators);
    if (on_gpu.defined()) file->write(on_gpu);
    file->commit();
  }
  // A rank that fails after this ends the launch, and would end rank 0 in the midst of its file.
  if (comm) ddl::barrier(*comm->communicator);
}

RunPosition checkpoint_position(const Path& folder, const TrainOptions& options) {
  const TensorFileReader file = open_checkpoint(folder);
  for (const auto& [name, value] : identity(options)) {
    const auto found = file.metadata().find("run." + name);
    // Older files do not record convention and statistics. Files from before there was another device do not record the
    // device.
    const bool untold = name == kConvention || name == kStatistics;
    const std::string was = found != file.metadata().end() ? found->second
                            : untold                       ? value
                            : name == "device"             ? kCpu
                                                           : "unknown";
    if (was != value)
      throw BadRequest(str("checkpoint '", checkpoint_file(folder).string(), "' is of a run with ", name, " ", was,
                           "; this run has ", value));
  }
  RunPosition position{number(file, "step"), number(file, "cases_drawn"), number(file, "run.ranks")};
  if (position.step < 0)
    throw BadRequest(str("checkpoint '", checkpoint_file(folder).string(), "' does not tell its step"));
  if (position.cases_drawn < 0) {  // older files: all steps had this many ranks and micro-batches
    const int64_t micro_batches = number(file, "run.accumulate");
    if (position.ranks < 1 || micro_batches < 1 ||
        __builtin_mul_overflow(position.step, options.data.batch * position.ranks * micro_batches,
                               &position.cases_drawn))
      throw BadRequest(
          str("checkpoint '", checkpoint_file(folder).string(), "' does not tell how many cases its run has drawn"));
  }
  return position;
}

SavedCurvature checkpoint_curvature(const Path& folder) {
  const TensorFileReader file = open_checkpoint(folder);
  const auto found = file.metadata().find(kCurvature);
  if (found == file.metadata().end()) return {};
  SavedCurvature saved;
  try {
    saved.layers = parse_curvature(found->second);
  } catch (const BadRequest& error) {
    throw BadRequest(str("checkpoint '", checkpoint_file(folder).string(), "': ", error.what()));
  }
  if (const int64_t delay = number(file, kDelay); delay >= 0) saved.delay = delay;
  for (const kfac::LayerCurvature& layer : saved.layers)
    for (const char* first : {"vectors0", "inverse0"})
      if (file.has(str("kfac/", layer.layer, "/next_", first))) saved.with_next_inverse.insert(layer.layer);
  return saved;
}

void name_next_inverses(const Path& folder, std::vector<StateTensor>& tensors) {
  const TensorFileReader file = open_checkpoint(folder);
  for (StateTensor& tensor : tensors) {
    if (!tensor.name.starts_with("kfac/")) continue;
    std::string next = tensor.name;
    next.insert(next.rfind('/') + 1, "next_");
    if (file.has(next)) tensor.name = std::move(next);
  }
}

void read_checkpoint(const Path& folder, const TrainOptions& options, RunPosition position,
                     const std::vector<StateTensor>& tensors, const ddl::Comm& comm) {
  const ddl::Busy busy(comm ? comm->communicator.get() : nullptr);
  const TensorFileReader file = open_checkpoint(folder);
  for (const StateTensor& tensor : tensors) {
    if (tensor.name.find("/upcoming_") != std::string::npos && !file.has(tensor.name))
      throw BadRequest(str("the run of checkpoint '", checkpoint_file(folder).string(),
                           "' decomposed nothing beside its steps; this run has staleness ",
                           options.kfac.preconditioner.staleness, "; allowed is 0"));
    if (tensor.held.defined()) file.read(tensor.name, tensor.held);
  }
  const int64_t rank = comm ? comm->communicator->rank() : 0;
  restore_generator(file, kGenerators, at::detail::getDefaultCPUGenerator(), options, position, rank);
  if (at::Generator gpu = gpu_generator(tensors); gpu.defined())
    restore_generator(file, kGpuGenerator, gpu, options, position, rank);
}

}  // namespace spillway::runtime
