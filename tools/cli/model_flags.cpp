// The flags of the model and its data.
#include "core/error.h"
#include "runtime/data/open_dataset.h"
#include "runtime/models/model_info.h"
#include "tools/cli/checks.h"
#include "tools/cli/train_flags.h"

namespace spillway::tools {
namespace {

/// A number that some models have and other models have not.
struct ModelNumber {
  const char* flag;
  std::optional<int64_t> TrainFlags::*asked;
  int64_t TrainOptions::*option;
  int64_t ModelInfo::*own;
  int64_t least;
  const char* meaning;
};

constexpr ModelNumber kNumbers[]{
    {"--cases", &TrainFlags::cases, &TrainOptions::cases, &ModelInfo::cases, 2, "Cases of synthetic data"},
    {"--batch", &TrainFlags::batch, &TrainOptions::batch, &ModelInfo::batch, 1, "Cases per rank and micro-batch"},
    {"--filters", &TrainFlags::filters, &TrainOptions::filters, &ModelInfo::filters, 1, "Channels of the top level"},
    {"--hidden", &TrainFlags::hidden, &TrainOptions::hidden, &ModelInfo::hidden, 1, "Width of the hidden layers"},
    {"--layers", &TrainFlags::layers, &TrainOptions::layers, &ModelInfo::layers, 1, "How many hidden layers"},
    {"--classes", &TrainFlags::classes, &TrainOptions::classes, &ModelInfo::classes, 2, "Outputs of the model"}};

/// Returns the models that have this number, with their defaults: `16 (unet3d), 128 (bp3d)`.
std::string defaults(int64_t ModelInfo::*own) {
  std::string text;
  for (const ModelInfo& model : known_models())
    if (model.*own > 0) text += str(text.empty() ? "" : ", ", model.*own, " (", model.name, ")");
  return text;
}

}  // namespace

void TrainFlags::add_model_flags(CLI::App& command) {
  command.add_option("--model", options.model, model_names())->capture_default_str();
  command.add_option("--data", data,
                     "synthetic:N with N the edge, the sequence length (bert-base) or the features (mlp); unet3d: or a "
                     "folder of NIfTI cases in the BraTS layout; default synthetic:" +
                         defaults(&ModelInfo::size));
  command.add_option("--edge", edge,
                     "N of synthetic:N; with a folder the edge of the cube that volumes are cropped and padded to");
  command.add_option("--shape", shape,
                     "What volumes are cropped and padded to, DxHxW, multiples of 16 (bp3d: of 4); default: the "
                     "smallest that holds all cases");
  for (const ModelNumber& number : kNumbers)
    command.add_option(number.flag, this->*number.asked, str(number.meaning, "; default ", defaults(number.own)));
  command
      .add_option("--split", split,
                  "Operators that need more than this at once run window by window, so that the smallest feasible "
                  "budget falls to about this: a size, or off")
      ->capture_default_str();
  command.add_option("--seed", options.seed, "Of weights, data order, dropout and synthetic data")
      ->capture_default_str()
      ->check(without_sign());
  command.add_option("--device", device, "cpu; cuda or cuda:N, a card whose memory is then the budget's; auto: cpu")
      ->capture_default_str();
  command
      .add_option("--engine", options.engine,
                  "How tensors move: gate, Spillway's own copies; unified, on a card: CUDA's Unified Memory under the "
                  "same schedule, which also runs operators that are larger than the budget")
      ->capture_default_str();
}

void TrainFlags::resolve_model() {
  const ModelInfo& info = model_info(options.model);
  for (const ModelNumber& number : kNumbers) {
    const std::optional<int64_t>& asked = this->*number.asked;
    if (!asked) continue;
    if (info.*number.own == 0)
      throw BadRequest(
          str(number.flag, " says nothing to ", info.name, "; models that have it: ", defaults(number.own)));
    if (*asked < number.least)
      throw BadRequest(str(number.flag, " is ", *asked, "; allowed is ", number.least, " or more"));
    options.*number.option = *asked;
  }
  if (edge && *edge < 1) throw BadRequest(str("--edge is ", *edge, "; it must be positive"));
  if (edge && !shape.empty()) throw BadRequest("--edge and --shape exclude each other");
  if (!shape.empty() && info.input != InputKind::volumes)
    throw BadRequest(str("--shape is for volumes; ", info.name, " takes --data synthetic:N"));
  options.split_bytes = split == "off" ? kUnlimitedBytes : parse_bytes(split);
  options.data = !data.empty() ? data : str("synthetic:", edge.value_or(info.size));
  if (!shape.empty()) options.shape = parse_shape(shape);
  const int64_t size = synthetic_size(options.data);
  if (edge && size > 0 && *edge != size)
    throw BadRequest(str("--edge is ", *edge, ", but --data is '", options.data, "'; give one of them"));
  if (edge && size == 0 && info.input == InputKind::volumes) options.shape = {*edge, *edge, *edge};
}

std::vector<std::string> model_arguments(const TrainOptions& options) {
  const ModelInfo& info = model_info(options.model);
  std::vector<std::string> arguments{
      "--model",  options.model,  "--data",   options.data,  "--seed", std::to_string(options.seed),
      "--device", options.device, "--engine", options.engine};
  arguments.insert(arguments.end(),
                   {"--split", options.split_bytes == kUnlimitedBytes ? "off" : std::to_string(options.split_bytes)});
  if (options.shape != Shape3{}) arguments.insert(arguments.end(), {"--shape", format_shape(options.shape)});
  for (const ModelNumber& number : kNumbers)
    if (info.*number.own > 0) arguments.insert(arguments.end(), {number.flag, std::to_string(options.*number.option)});
  return arguments;
}

}  // namespace spillway::tools
