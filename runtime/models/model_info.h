/// What is known of a model before it is made: what it trains on, and what it does where nothing else is asked for.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace spillway {

/// What a model reads; see Batch for the shapes.
enum class InputKind : uint8_t { volumes, images, tokens, vectors, curves };

struct ModelInfo {
  std::string_view name;
  InputKind input = InputKind::vectors;
  /// N of synthetic:N: the edge of volumes, images and curves, the length of token sequences, the features of vectors.
  int64_t size = 1;
  int64_t smallest_size = 1;
  int64_t largest_size = 32767;
  int64_t batch = 1;    ///< cases per rank and micro-batch
  int64_t cases = 32;   ///< of synthetic data
  int64_t filters = 0;  ///< channels of the top level; 0: the model has no such choice, as for the next three
  int64_t hidden = 0;   ///< width of the hidden layers
  int64_t layers = 0;   ///< how many of them
  int64_t classes = 0;  ///< outputs
  /// What training with K-FAC starts from. κ is in the loss's units squared and lr moves what K-FAC leaves to SGD, so
  /// both belong to the model. docs/performance.md ("Does second order pay?") has the measurements.
  std::string_view kfac_skip = {};  ///< regular expression of layers to leave to SGD; empty: none
  double kfac_lr = 0.1;
  double kfac_kl_clip = 3e-5, kfac_kl_clip_steps = 10;  ///< under Convention::fisher; see KlClipDefault
  bool reads_folders = false;                           ///< NIfTI cases in the BraTS layout

  bool has_channels() const { return input == InputKind::volumes || input == InputKind::images; }
};

/// unet3d, bp3d, resnet50, bert-base, mlp, autoencoder.
std::span<const ModelInfo> known_models();

/// Their names, separated by commas.
std::string model_names();

/// Throws BadRequest naming the known models.
const ModelInfo& model_info(std::string_view name);

/// Throws BadRequest when synthetic:`size` is none that the model can read, naming the allowed ones.
void check_size(const ModelInfo& model, int64_t size);

}  // namespace spillway
