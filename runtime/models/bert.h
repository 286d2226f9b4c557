/// BERT's encoder with its masked-language-model head.
#pragma once
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <cstdint>
#include <vector>

#include "runtime/models/part.h"

namespace spillway::runtime {

struct BertOptions {
  int64_t layers = 12;          ///< ≥ 1
  int64_t hidden = 768;         ///< width; a positive multiple of heads
  int64_t heads = 12;           ///< ≥ 1
  int64_t intermediate = 3072;  ///< width between the two feed-forward layers; ≥ 1
  int64_t vocabulary = 30522;   ///< ≥ 1
  int64_t positions = 512;      ///< longest sequence; ≥ 1
  double dropout = 0.1;  ///< rate for embeddings, attention probabilities and both halves of a layer; 0 ≤ p < 1

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate() const;
};

/// A layer: x ← norm(x + drop(attention(x))), x ← norm(x + drop(W₂ gelu(W₁ x))), [B, L, hidden] → [B, L, hidden].
class BertLayerImpl : public torch::nn::Module {
 public:
  explicit BertLayerImpl(const BertOptions& options);
  at::Tensor forward(at::Tensor x);

 private:
  at::Tensor attention(const at::Tensor& x);

  int64_t heads_;
  double dropout_;
  torch::nn::Linear query_, key_, value_, output_, wide_, narrow_;
  torch::nn::LayerNorm attention_norm_, norm_;
};
TORCH_MODULE(BertLayer);

/// BERT with 109 514 298 parameters by default: those of BERT-Base, without pooler, with the head. The head's last
/// matrix is the embedding of the words. Weights are drawn from N(0, 0.02²).
/// Source: Devlin et al. 2019, §3 and appendix A.2. As published, norms come after the sums, and GELU uses erf.
class BertImpl : public torch::nn::Module {
 public:
  /// Throws BadRequest from options.validate().
  explicit BertImpl(const BertOptions& options = {});

  /// Maps `tokens` [B, L] int64 and the places to guess `places` [B, K] int64, below L, to raw scores of all words [B,
  /// K, vocabulary]. There is one segment and no padding. Throws c10::Error for other shapes and for L above
  /// `positions`.
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& places);

  /// Returns a part for the embedding, one for each layer, and one for the head. The head reads the places from the
  /// batch's target. Embedding and head both use the words' matrix.
  std::vector<Part> parts() const;

  const BertOptions& options() const noexcept { return options_; }

 private:
  BertOptions options_;
  torch::nn::Embedding word_, position_, segment_;
  torch::nn::LayerNorm embedding_norm_;
  std::vector<BertLayer> layers_;
  torch::nn::Linear transform_;
  torch::nn::LayerNorm transform_norm_;
  at::Tensor bias_;
};
TORCH_MODULE(Bert);

}  // namespace spillway::runtime
