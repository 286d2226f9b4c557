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

struct EmbeddingPart {
  torch::nn::Embedding word, position, segment;
  torch::nn::LayerNorm norm;
};

at::Tensor embed(const at::Tensor& tokens, EmbeddingPart part, const BertOptions& options) {
  TORCH_CHECK(tokens.dim() == 2 && tokens.size(1) >= 1 && tokens.size(1) <= options.positions,
              "Bert: tokens have shape ", tokens.sizes(), "; needed is [B, L] with L in 1 … ", options.positions);
  at::Tensor x = part.word->forward(tokens) + part.position->weight.narrow(0, 0, tokens.size(1)) +
                 part.segment->weight.select(0, 0);
  return at::dropout(part.norm->forward(x), options.dropout, part.norm->is_training());
}

struct HeadPart {
  torch::nn::Linear transform;
  torch::nn::LayerNorm norm;
  torch::nn::Embedding word;
  at::Tensor bias;
};

/// Returns the scores of all words at the places to guess. Only these places go through the head. Their number is the
/// same in every step, so that every step has the same shapes.
at::Tensor guess(const at::Tensor& x, const at::Tensor& places, HeadPart part) {
  TORCH_CHECK(places.dim() == 2 && places.size(0) == x.size(0), "Bert: places have shape ", places.sizes(),
              "; needed is [", x.size(0), ", K]");
  const at::Tensor there = x.gather(1, places.unsqueeze(2).expand({-1, -1, x.size(2)}));
  return at::linear(part.norm->forward(at::gelu(part.transform->forward(there))), part.word->weight, part.bias);
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

at::Tensor BertImpl::forward(const at::Tensor& tokens, const at::Tensor& places) {
  at::Tensor x = embed(tokens, {word_, position_, segment_, embedding_norm_}, options_);
  for (BertLayer& layer : layers_) x = layer->forward(x);
  return guess(x, places, {transform_, transform_norm_, word_, bias_});
}

std::vector<Part> BertImpl::parts() const {
  std::vector<Part> all;
  const auto add = [&](std::string name, std::vector<std::string> modules, auto run) {
    all.push_back({std::move(name), part_before(all.size()), std::move(modules), std::move(run)});
  };
  add("embedding", {"word", "position", "segment", "embedding_norm"},
      [embedding = EmbeddingPart{word_, position_, segment_, embedding_norm_}, options = options_](
          const auto&, const Batch& batch) { return embed(batch.input, embedding, options); });
  for (size_t i = 0; i < layers_.size(); ++i)
    add(str("layer", i), {str("layer", i)},
        [layer = layers_[i]](const auto& inputs, const Batch&) mutable { return layer->forward(inputs[0]); });
  add("head", {"transform", "transform_norm", "bias", "word"},
      [head = HeadPart{transform_, transform_norm_, word_, bias_}](const auto& inputs, const Batch& batch) {
        return guess(inputs[0], batch.target.select(1, 0), head);
      });
  return all;
}

}  // namespace spillway::runtime
