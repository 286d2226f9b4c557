#include "runtime/models/bert.h"

#include <ATen/ATen.h>

#include "core/error.h"

namespace spillway::runtime {
namespace {

constexpr double kNormEps = 1e-12;
constexpr double kInitialDeviation = 0.02;
constexpr int64_t kSegments = 2;

torch::nn::LayerNorm layer_norm(int64_t width) {
  return torch::nn::LayerNorm(torch::nn::LayerNormOptions({width}).eps(kNormEps));
}

}  // namespace

void BertOptions::validate() const {
  auto require = [](bool good, const char* field, const auto& value, const auto&... allowed) {
    if (!good) throw BadRequest(str("BertOptions: ", field, " is ", value, "; allowed is ", allowed...));
  };
  require(layers >= 1, "layers", layers, "1 or more");
  require(heads >= 1, "heads", heads, "1 or more");
  require(hidden >= 1 && hidden % heads == 0, "hidden", hidden, "a positive multiple of the ", heads, " heads");
  require(intermediate >= 1, "intermediate", intermediate, "1 or more");
  require(vocabulary >= 1, "vocabulary", vocabulary, "1 or more");
  require(positions >= 1, "positions", positions, "1 or more");
  require(dropout >= 0 && dropout < 1, "dropout", dropout, "0 up to, not including, 1");
}

BertLayerImpl::BertLayerImpl(const BertOptions& o)
    : heads_(o.heads),
      dropout_(o.dropout),
      query_(register_module("query", torch::nn::Linear(o.hidden, o.hidden))),
      key_(register_module("key", torch::nn::Linear(o.hidden, o.hidden))),
      value_(register_module("value", torch::nn::Linear(o.hidden, o.hidden))),
      output_(register_module("output", torch::nn::Linear(o.hidden, o.hidden))),
      wide_(register_module("wide", torch::nn::Linear(o.hidden, o.intermediate))),
      narrow_(register_module("narrow", torch::nn::Linear(o.intermediate, o.hidden))),
      attention_norm_(register_module("attention_norm", layer_norm(o.hidden))),
      norm_(register_module("norm", layer_norm(o.hidden))) {}

at::Tensor BertLayerImpl::attention(const at::Tensor& x) {
  auto by_head = [&](torch::nn::Linear& projection) {
    return projection->forward(x).unflatten(2, {heads_, -1}).transpose(1, 2);
  };
  // softmax(QKᵀ/√d) V
  at::Tensor mixed = at::scaled_dot_product_attention(by_head(query_), by_head(key_), by_head(value_), {},
                                                      is_training() ? dropout_ : 0.0);
  return output_->forward(mixed.transpose(1, 2).flatten(2));
}

at::Tensor BertLayerImpl::forward(at::Tensor x) {
  x = attention_norm_->forward(x + at::dropout(attention(x), dropout_, is_training()));
  at::Tensor y = narrow_->forward(at::gelu(wide_->forward(x)));
  return norm_->forward(x + at::dropout(y, dropout_, is_training()));
}

BertImpl::BertImpl(const BertOptions& options)
    : options_((options.validate(), options)),
      word_(register_module("word", torch::nn::Embedding(options.vocabulary, options.hidden))),
      position_(register_module("position", torch::nn::Embedding(options.positions, options.hidden))),
      segment_(register_module("segment", torch::nn::Embedding(kSegments, options.hidden))),
      embedding_norm_(register_module("embedding_norm", layer_norm(options.hidden))),
      transform_(nullptr),
      transform_norm_(nullptr) {
  for (int64_t i = 0; i < options.layers; ++i) layers_.push_back(register_module(str("layer", i), BertLayer(options)));
  transform_ = register_module("transform", torch::nn::Linear(options.hidden, options.hidden));
  transform_norm_ = register_module("transform_norm", layer_norm(options.hidden));
  bias_ = register_parameter("bias", at::zeros({options.vocabulary}));
  at::NoGradGuard no_grad;
  for (const auto& module : modules(/*include_self=*/false)) {
    if (auto* embedding = module->as<torch::nn::Embedding>()) embedding->weight.normal_(0, kInitialDeviation);
    if (auto* linear = module->as<torch::nn::Linear>()) {
      linear->weight.normal_(0, kInitialDeviation);
      linear->bias.zero_();
    }
  }
}

at::Tensor BertImpl::embed(const at::Tensor& tokens) {
  at::Tensor x =
      word_->forward(tokens) + position_->weight.narrow(0, 0, tokens.size(1)) + segment_->weight.select(0, 0);
  return at::dropout(embedding_norm_->forward(x), options_.dropout, is_training());
}

at::Tensor BertImpl::forward(const at::Tensor& tokens, const at::Tensor& places) {
  TORCH_CHECK(tokens.dim() == 2 && tokens.size(1) >= 1 && tokens.size(1) <= options_.positions,
              "Bert: tokens have shape ", tokens.sizes(), "; needed is [B, L] with L in 1 … ", options_.positions);
  TORCH_CHECK(places.dim() == 2 && places.size(0) == tokens.size(0), "Bert: places have shape ", places.sizes(),
              "; needed is [", tokens.size(0), ", K]");
  at::Tensor x = embed(tokens);
  for (BertLayer& layer : layers_) x = layer->forward(x);
  // Only the places to guess go through the head. Their number is the same in every step, so that every step has the
  // same shapes.
  x = x.gather(1, places.unsqueeze(2).expand({-1, -1, options_.hidden}));
  x = transform_norm_->forward(at::gelu(transform_->forward(x)));
  return at::linear(x, word_->weight, bias_);
}

}  // namespace spillway::runtime
