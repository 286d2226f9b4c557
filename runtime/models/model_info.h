/// Facts about a model that are known before it is made: the data that it trains on, and its defaults.
#pragma once
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace spillway::runtime {

/// The kind of data that a model reads; see Batch for the shapes.
enum class InputKind : uint8_t { volumes, images, tokens, vectors, curves };

struct ModelInfo {
  std::string_view name;
  InputKind input = InputKind::vectors;
  /// N of synthetic:N: the edge of volumes, images and curves, the length of token sequences, the features of vectors.
  int64_t size = 1;
  int64_t smallest_size = 1;
  int64_t largest_size = 32767;
  int64_t batch = 1;    ///< cases per rank and micro-batch
  int64_t cases = 32;   ///< cases of synthetic data
  int64_t filters = 0;  ///< channels of the top level; 0, also in hidden, layers and classes: no such choice
  int64_t hidden = 0;   ///< width of the hidden layers
  int64_t layers = 0;   ///< number of hidden layers
  int64_t classes = 0;  ///< outputs
  /// Regular expression of the output layers, empty for none. K-FAC, muon and soap leave them to Adam.
  std::string_view output = {};
  /// Defaults of training with K-FAC. rest_lr is Adam's for the parameters that K-FAC leaves alone, so it belongs to
  /// the model. docs/performance.md ("Does second order pay?") has the measurements.
  double kfac_lr = 0.1, kfac_rest_lr = 1e-3;
  /// κ under Convention::fisher, and the steps in which it falls to half, where they were measured. DampingScope::layer
  /// goes with them. The other models have the defaults of KfacOptions.
  std::optional<double> kfac_kl_clip = std::nullopt;
  double kfac_kl_clip_steps = std::numeric_limits<double>::infinity();
  bool reads_folders = false;  ///< NIfTI cases in the BraTS layout

  bool has_channels() const { return input == InputKind::volumes || input == InputKind::images; }
};

/// Returns the known models: unet3d, bp3d, resnet50, bert-base, mlp, autoencoder.
std::span<const ModelInfo> known_models();

/// Returns the names of the known models, separated by commas.
std::string model_names();

/// Returns the facts about the model `name`. Throws BadRequest naming the known models.
const ModelInfo& model_info(std::string_view name);

/// Throws BadRequest naming the allowed sizes when the model cannot read synthetic:`size`.
void check_size(const ModelInfo& model, int64_t size);

}  // namespace spillway::runtime
