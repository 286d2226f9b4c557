#include "kfac/preconditioner.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <mutex>

namespace spillway::kfac {
namespace {

class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  double& seconds_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// float64 weights have float64 state; all others float32.
at::TensorOptions state_options(const at::Tensor& weight) {
  return at::TensorOptions()
      .device(weight.device())
      .dtype(weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

int64_t bytes_of(const std::vector<at::Tensor>& tensors) {
  int64_t sum = 0;
  for (const auto& tensor : tensors) sum += static_cast<int64_t>(tensor.nbytes());
  return sum;
}

std::vector<LayerShape> shapes_of(const std::vector<Layer>& layers) {
  std::vector<LayerShape> shapes;
  for (const auto& layer : layers) shapes.push_back(layer.shape);
  return shapes;
}

}  // namespace

// Shared with the hooks in the graph, which may outlive the Kfac and run on autograd's threads.
struct Kfac::Statistics {
  std::mutex mutex;
  std::vector<LayerFactors> layers;
  double seconds = 0;

  void stage(const Captured& captured) {
    std::lock_guard lock(mutex);
    Stopwatch watch(seconds);
    layers[captured.layer].stage(captured);
  }
};

Kfac::Kfac(const torch::nn::Module& model, KfacOptions options, ddl::Comm comm)
    : options_((options.validate(), std::move(options))),
      exchange_(std::move(comm)),
      statistics_(std::make_shared<Statistics>()) {
  at::NoGradGuard no_grad;
  auto found = find_layers(model, options_);
  layers_ = std::move(found.layers);
  left_alone_ = std::move(found.left_alone);
  check_layers();
  assignments_ = assign(shapes_of(layers_), exchange_.world(), options_.strategy, options_.grad_worker_frac);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const auto& [shape, weight, bias] = layers_[i];
    weight_index_[weight.unsafeGetTensorImpl()] = i;
    statistics_->layers.emplace_back(shape, state_options(weight), options_.patch_workspace_bytes);
    auto& bases = eigenbases_.emplace_back();
    if (!assignments_[i].is_worker(exchange_.rank())) continue;
    for (const auto& factor : shape.factors())
      bases.push_back(Eigenbasis::identity(shape.groups, factor.side, state_options(weight)));
  }
  dropped_ = at::zeros({}, layers_.front().weight.options().dtype(at::kLong));
}

Kfac::~Kfac() = default;

void Kfac::check_layers() const {
  TORCH_CHECK(!layers_.empty(), "[kfac] no layer of the model can be preconditioned: ", left_alone_.size(),
              " modules were left alone");
  for (const auto& [shape, weight, bias] : layers_) {
    TORCH_CHECK(weight.device() == layers_.front().weight.device(), "[kfac] layer ", shape.name, " is on ",
                weight.device(), ", ", layers_.front().shape.name, " on ", layers_.front().weight.device(),
                ": one device is served");
    TORCH_CHECK(exchange_.world() == 1 || weight.scalar_type() == at::kFloat, "[kfac] layer ", shape.name, " is ",
                weight.scalar_type(), "; ", exchange_.world(), " ranks exchange float32 only");
  }
}

bool Kfac::updates_factors() const {
  return counters_.steps < options_.burn_in || counters_.steps % options_.factor_interval == 0;
}

bool Kfac::decomposes() const {
  return counters_.steps % options_.inverse_interval == 0;
}

std::string_view Kfac::kind() const {
  if (updates_factors()) return decomposes() ? "factor+decompose" : "factor";
  return decomposes() ? "decompose" : "plain";
}

void Kfac::watch(const at::Tensor& loss, int64_t batch) {
  TORCH_CHECK(batch >= 1, "[kfac.watch] batch = ", batch, " is outside 1 and more samples");
  if (!updates_factors()) return;
  tap(loss, weight_index_, [statistics = std::weak_ptr(statistics_)](const Captured& captured) {
    if (auto alive = statistics.lock()) alive->stage(captured);
  });
  watched_batch_ += batch;
}

void Kfac::discard() {
  for (auto& layer : statistics_->layers) layer.discard();
  watched_batch_ = 0;
}

void Kfac::step(double lr) {
  at::NoGradGuard no_grad;
  if (updates_factors()) {
    TORCH_CHECK(watched_batch_ > 0, "[kfac.step] step ", counters_.steps,
                " updates the factors: call watch(loss, batch) before backward");
    commit_factors();
    ++counters_.factor_updates;
  }
  if (decomposes()) {
    decompose_owned();
    share_eigenbases();
    ++counters_.decompositions;
  }
  precondition_layers();
  clip(lr);
  ++counters_.steps;
}

void Kfac::commit_factors() {
  // In groups that share messages, so that no group is large.
  auto& layers = statistics_->layers;
  for (size_t begin = 0, end = 0; begin < layers.size(); begin = end) {
    std::vector<at::Tensor> bucket;
    while (end < layers.size() && (end == begin || bytes_of(bucket) < ddl::kFusionBytes)) {
      Stopwatch watch(seconds_.factor_compute);
      const auto& fresh = layers[end++].finish(watched_batch_);
      bucket.insert(bucket.end(), fresh.begin(), fresh.end());
    }
    {
      Stopwatch watch(seconds_.factor_communicate);
      exchange_.average_(bucket);
    }
    Stopwatch watch(seconds_.factor_compute);
    bucket.clear();
    for (size_t i = begin; i < end; ++i) layers[i].commit(options_.decay, dropped_);
  }
  watched_batch_ = 0;
}

void Kfac::decompose_owned() {
  Stopwatch watch(seconds_.decompose);
  for (size_t i = 0; i < layers_.size(); ++i)
    for (size_t f = 0; f < eigenbases_[i].size(); ++f)
      if (assignments_[i].owners[f] == exchange_.rank() && !decompose(factors(i)[f], eigenbases_[i][f]))
        ++counters_.failed_decompositions;
}

void Kfac::share_eigenbases() {
  Stopwatch watch(seconds_.eigenbasis_communicate);
  for (size_t i = 0; i < layers_.size(); ++i)
    for (size_t f = 0; f < eigenbases_[i].size(); ++f) {
      const auto& [vectors, values] = eigenbases_[i][f];
      exchange_.broadcast_({vectors, values}, assignments_[i].owners[f], assignments_[i].workers);
    }
}

void Kfac::precondition_layers() {
  dots_.clear();
  preconditioned_.clear();
  for (size_t i = 0; i < layers_.size(); ++i)
    if (layers_[i].weight.grad().defined()) precondition_layer(i);
}

void Kfac::precondition_layer(size_t i) {
  const auto& [shape, weight, bias] = layers_[i];
  TORCH_CHECK(!shape.bias || bias.grad().defined(), "[kfac.step] layer ", shape.name,
              " has a gradient for its weight and none for its bias");
  const LayerGradient gradient{weight.grad(), shape.bias ? bias.grad() : at::Tensor()};
  auto dot = at::zeros({1}, state_options(weight));
  if (assignments_[i].is_worker(exchange_.rank())) {
    Stopwatch watch(seconds_.precondition);
    const auto natural = precondition(shape, gradient, eigenbases_[i], {options_.relative_damping, options_.damping});
    const auto take = [&](const at::Tensor& v, const at::Tensor& g) {
      dot.add_(at::dot(v.flatten(), g.to(v.scalar_type()).flatten()));
      g.copy_(v);
    };
    take(natural.weight, gradient.weight);
    if (shape.bias) take(natural.bias, gradient.bias);
  }
  const int64_t worker = assignments_[i].worker_of[static_cast<size_t>(exchange_.rank())];
  if (const auto members = assignments_[i].served_by(worker); members.size() > 1) {
    Stopwatch watch(seconds_.gradient_communicate);
    std::vector<at::Tensor> tensors{gradient.weight, dot};
    if (shape.bias) tensors.push_back(gradient.bias);
    exchange_.broadcast_(tensors, worker, members);
  }
  dots_.push_back(std::move(dot));
  preconditioned_.push_back(i);
}

void Kfac::clip(double lr) {
  if (dots_.empty()) return;
  Stopwatch watch(seconds_.precondition);
  // κ_t = κ / (1 + t/τ)
  const double kappa = options_.kl_clip / (1 + static_cast<double>(counters_.steps) / options_.kl_clip_steps);
  // ν = min(1, √(κ_t / (lr² Σ|⟨V, ∇⟩|)))   (SC'20 eq. 18); a zero sum gives 1
  const auto quadratic = at::cat(dots_).abs().sum() * (lr * lr);
  const auto nu = (kappa / quadratic).sqrt().clamp_max(1);
  for (size_t i : preconditioned_) {
    layers_[i].weight.grad().mul_(nu);
    if (layers_[i].shape.bias) layers_[i].bias.grad().mul_(nu);
  }
  dots_.clear();
}

const std::vector<at::Tensor>& Kfac::factors(size_t i) const {
  return statistics_->layers[i].running();
}

void Kfac::resume(const KfacCounters& counters) {
  at::NoGradGuard no_grad;
  counters_ = counters;
  dropped_.fill_(counters.dropped_factors);
}

FactorBytes Kfac::state_bytes() const {
  FactorBytes bytes;
  for (const auto& layer : statistics_->layers) {
    bytes.factors += bytes_of(layer.running());
    bytes.staged += bytes_of(layer.staged());
  }
  for (const auto& bases : eigenbases_)
    for (const auto& [vectors, values] : bases) bytes.eigenbases += bytes_of({vectors, values});
  return bytes;
}

KfacCounters Kfac::counters() const {
  auto counters = counters_;
  counters.dropped_factors = dropped_.item<int64_t>();
  return counters;
}

KfacSeconds Kfac::seconds() const {
  auto seconds = seconds_;
  seconds.factor_compute += statistics_->seconds;
  return seconds;
}

}  // namespace spillway::kfac
