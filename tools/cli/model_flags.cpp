// The flags of the model and its data.
#include "core/error.h"
#include "runtime/data/open_dataset.h"
#include "runtime/models/model_info.h"
#include "tools/cli/numbers.h"
#include "tools/cli/train_flags.h"

namespace spillway::tools {
using namespace runtime;
namespace {

/// A number that some models have and other models have not.
struct ModelNumber {
  const char* flag;
  std::optional<int64_t> TrainFlags::*asked;
  int64_t& (*option)(TrainOptions&);
  int64_t ModelInfo::*own;
  int64_t least;
  const char* meaning;
};

constexpr ModelNumber kNumbers[]{
    {"--cases", &TrainFlags::cases, [](TrainOptions& o) -> int64_t& { return o.data.cases; }, &ModelInfo::cases, 2,
     "Number of synthetic cases"},
    {"--batch", &TrainFlags::batch, [](TrainOptions& o) -> int64_t& { return o.data.batch; }, &ModelInfo::batch, 1,
     "Cases per rank and micro-batch"},
    {"--filters", &TrainFlags::filters, [](TrainOptions& o) -> int64_t& { return o.model.filters; },
     &ModelInfo::filters, 1, "Channels of the top level"},
    {"--hidden", &TrainFlags::hidden, [](TrainOptions& o) -> int64_t& { return o.model.hidden; }, &ModelInfo::hidden, 1,
     "Width of the hidden layers"},
    {"--layers", &TrainFlags::layers, [](TrainOptions& o) -> int64_t& { return o.model.layers; }, &ModelInfo::layers, 1,
     "Number of hidden layers"},
    {"--classes", &TrainFlags::classes, [](TrainOptions& o) -> int64_t& { return o.model.classes; },
     &ModelInfo::classes, 2, "Number of classes"}};

/// Returns the models that have this number, with their defaults: `16 (unet3d), 128 (bp3d)`.
std::string defaults(int64_t ModelInfo::*own) {
  std::string text;
  for (const ModelInfo& model : known_models())
    if (model.*own > 0) text += str(text.empty() ? "" : ", ", model.*own, " (", model.name, ")");
  return text;
}

}  // namespace

void TrainFlags::add_model_flags(CLI::App& command) {
  command.option_defaults()->group("Model and data");
  command.add_option("--model", options.model.name, model_names())->type_name("NAME")->capture_default_str();
  command
      .add_option("--data", data,
                  "Training data: synthetic:N, or for unet3d a folder of NIfTI cases in the BraTS layout")
      ->type_name("SOURCE")
      ->default_str("synthetic:N, N by model");
  add_number(command, "--edge", edge,
             "Size of synthetic cases (voxels, pixels, words, features), or of the cube that volumes are cropped "
             "and padded to")
      ->type_name("N")
      ->default_str(defaults(&ModelInfo::size));
  command
      .add_option("--shape", shape,
                  "Size that volumes are center-cropped and zero-padded to; multiples of 16, for bp3d multiples of 4")
      ->type_name("DxHxW")
      ->default_str("the smallest that holds all cases");
  for (const ModelNumber& number : kNumbers)
    add_number(command, number.flag, this->*number.asked, str(number.meaning, "; ", number.least, " or more"))
        ->type_name("N")
        ->default_str(defaults(number.own));
  add_number(command, "--seed", options.seed, "Random seed for weights, data order, dropout and synthetic data")
      ->type_name("N")
      ->capture_default_str();
  add_device_flags(command);
}

void TrainFlags::add_device_flags(CLI::App& command) {
  command.option_defaults()->group("Device and memory");
  command
      .add_option("--device", device,
                  "Device that computes and whose memory the budget limits: cpu, cuda or cuda:N; auto: cpu")
      ->type_name("NAME")
      ->capture_default_str();
  command
      .add_option("--engine", engine,
                  "Paging engine: gate (Spillway's own copies), or on a GPU unified (CUDA Unified Memory with the same "
                  "schedule)")
      ->type_name("NAME")
      ->capture_default_str();
  command
      .add_option("--split", split,
                  "Run operators that need more memory than SIZE window by window; or off; auto: 224MiB, on a GPU 8GiB")
      ->type_name("SIZE")
      ->capture_default_str();
}

void TrainFlags::resolve_model() {
  const ModelInfo& info = model_info(options.model.name);
  for (const ModelNumber& number : kNumbers) {
    const std::optional<int64_t>& asked = this->*number.asked;
    if (!asked) continue;
    if (info.*number.own == 0)
      throw BadRequest(
          str(number.flag, " says nothing to ", info.name, "; models that have it: ", defaults(number.own)));
    if (*asked < number.least)
      throw BadRequest(str(number.flag, " is ", *asked, "; allowed is ", number.least, " or more"));
    number.option(options) = *asked;
  }
  if (edge && *edge < 1) throw BadRequest(str("--edge is ", *edge, "; it must be positive"));
  if (edge && !shape.empty()) throw BadRequest("--edge and --shape exclude each other");
  if (!shape.empty() && info.input != InputKind::volumes)
    throw BadRequest(str("--shape is for volumes; ", info.name, " takes --data synthetic:N"));
  options.memory.engine = parse_engine(engine);
  options.model.layout = parse_layout(memory_format);
  options.memory.split_bytes = split == "off" ? kUnlimitedBytes : split == "auto" ? kSplitByDevice : parse_bytes(split);
  if (split != "auto" && options.memory.split_bytes == 0) throw BadRequest("--split is 0; allowed is 1 or more");
  options.data.source = !data.empty() ? data : str("synthetic:", edge.value_or(info.size));
  if (!shape.empty()) options.data.shape = parse_shape(shape);
  const int64_t size = synthetic_size(options.data.source);
  if (edge && size > 0 && *edge != size)
    throw BadRequest(str("--edge is ", *edge, ", but --data is '", options.data.source, "'; give one of them"));
  if (edge && size == 0 && info.input == InputKind::volumes) options.data.shape = {*edge, *edge, *edge};
}

std::vector<std::string> model_arguments(TrainOptions options) {
  const ModelInfo& info = model_info(options.model.name);
  std::vector<std::string> arguments{"--model",  options.model.name,
                                     "--data",   options.data.source,
                                     "--seed",   std::to_string(options.seed),
                                     "--device", options.memory.device,
                                     "--engine", std::string(name(options.memory.engine))};
  const int64_t split = options.memory.split_in_use();
  arguments.insert(arguments.end(), {"--split", split == kUnlimitedBytes ? "off" : std::to_string(split)});
  if (options.data.shape != Shape3{}) arguments.insert(arguments.end(), {"--shape", format_shape(options.data.shape)});
  for (const ModelNumber& number : kNumbers)
    if (info.*number.own > 0) arguments.insert(arguments.end(), {number.flag, std::to_string(number.option(options))});
  return arguments;
}

}  // namespace spillway::tools
