#include "runtime/checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <charconv>
#include <cstring>
#include <optional>

#include "core/error.h"
#include "ddl/collectives.h"
#include "runtime/tensor_file.h"
#include "runtime/version.h"
#include "swap/session.h"

namespace spillway {
namespace {

using Path = std::filesystem::path;
using Fields = std::vector<std::pair<std::string, std::string>>;

constexpr const char* kCpu = "cpu";
constexpr const char* kFormat = "spillway-checkpoint-1";
constexpr const char* kGenerators = "generators";
constexpr const char* kCardGenerator = "generator_of_the_card";

/// What a run must share with the one that it goes on with.
Fields identity(const TrainOptions& o, int world) {
  return {{"model", o.model},
          {"data", o.data},
          {"shape", format_shape(o.shape)},
          {"cases", str(o.cases)},
          {"batch", str(o.batch)},
          {"accumulate", str(o.accumulate)},
          {"filters", str(o.filters)},
          {"hidden", str(o.hidden)},
          {"layers", str(o.layers)},
          {"classes", str(o.classes)},
          {"optimizer", o.optimizer},
          {"momentum", o.optimizer == "sgd" ? str(o.momentum) : "none"},
          {"kfac", o.use_kfac ? "on" : "off"},
          {"amp", o.amp},
          {"split", o.split_bytes == kUnlimitedBytes || o.engine == "unified" ? "off" : str(o.split_bytes)},
          {"device", c10::Device(o.device).is_cpu() ? kCpu : "cuda"},
          {"seed", str(o.seed)},
          {"ranks", str(world)}};
}

/// The generator of the card that the run's tensors are on; undefined on the CPU.
at::Generator card_generator(const std::vector<StateTensor>& tensors) {
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

/// One row for each rank.
at::Tensor all_states(const at::Tensor& own, const ddl::Comm& comm) {
  const int64_t world = comm ? comm->communicator->size() : 1;
  const at::Tensor all = at::empty({world, own.numel()}, at::kByte);
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

Path checkpoint_file(const Path& folder) {
  return folder / "checkpoint.safetensors";
}

void prepare_checkpoint_folder(const Path& folder) {
  std::filesystem::create_directories(folder);
  TensorFileWriter(folder / "writable", {}, {});  // removed at once: it is not committed
}

void write_checkpoint(const Path& folder, const TrainOptions& options, int64_t step,
                      const std::vector<StateTensor>& tensors, const ddl::Comm& comm) {
  at::Generator generator = at::detail::getDefaultCPUGenerator(), card = card_generator(tensors);
  const at::Tensor generators = all_states(state_of(generator), comm);
  const at::Tensor on_card = card.defined() ? all_states(state_of(card), comm) : at::Tensor();
  const int world = comm ? comm->communicator->size() : 1;
  std::optional<TensorFileWriter> file;
  if (!comm || comm->communicator->rank() == 0) {
    std::vector<TensorEntry> entries;
    for (const StateTensor& tensor : tensors) entries.push_back({tensor.name, tensor.type, tensor.sizes});
    entries.push_back({kGenerators, at::kByte, generators.sizes().vec()});
    if (on_card.defined()) entries.push_back({kCardGenerator, at::kByte, on_card.sizes().vec()});
    std::map<std::string, std::string> metadata{{"format", kFormat}, {"version", kVersion}, {"step", str(step)}};
    for (const auto& [name, value] : identity(options, world)) metadata["run." + name] = value;
    file.emplace(checkpoint_file(folder), std::move(entries), metadata);
  }
  for (const StateTensor& tensor : tensors) {
    const at::Tensor there = tensor.fetch ? tensor.fetch() : tensor.held;
    if (file) file->write(there);
  }
  if (!file) return;
  file->write(generators);
  if (on_card.defined()) file->write(on_card);
  file->commit();
}

int64_t checkpoint_step(const Path& folder, const TrainOptions& options, int world) {
  const TensorFileReader file = open_checkpoint(folder);
  for (const auto& [name, value] : identity(options, world)) {
    const auto found = file.metadata().find("run." + name);
    // Files of versions that knew no other device do not tell theirs.
    const std::string was = found != file.metadata().end() ? found->second : name == "device" ? kCpu : "unknown";
    if (was != value)
      throw BadRequest(str("checkpoint '", checkpoint_file(folder).string(), "' is of a run with ", name, " ", was,
                           "; this run has ", value));
  }
  int64_t step = -1;
  const auto found = file.metadata().find("step");
  if (found != file.metadata().end()) {
    const std::string& text = found->second;
    std::from_chars(text.data(), text.data() + text.size(), step);
  }
  if (step < 0) throw BadRequest(str("checkpoint '", checkpoint_file(folder).string(), "' does not tell its step"));
  return step;
}

void read_checkpoint(const Path& folder, const std::vector<StateTensor>& tensors, const ddl::Comm& comm) {
  const TensorFileReader file = open_checkpoint(folder);
  for (const StateTensor& tensor : tensors)
    if (tensor.held.defined()) file.read(tensor.name, tensor.held);
  const int64_t world = comm ? comm->communicator->size() : 1, rank = comm ? comm->communicator->rank() : 0;
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const at::Tensor all = at::empty({world, state_of(generator).numel()}, at::kByte);
  file.read(kGenerators, all);
  set_state(generator, all[rank].clone());
  if (at::Generator card = card_generator(tensors); card.defined()) {
    const at::Tensor on_cards = at::empty({world, state_of(card).numel()}, at::kByte);
    file.read(kCardGenerator, on_cards);
    set_state(card, on_cards[rank].clone());
  }
}

}  // namespace spillway
