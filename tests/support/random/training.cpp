#include "tests/support/random/training.h"

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>

#include "core/error.h"
#include "core/ledger.h"
#include "swap/optim/optimizer.h"
#include "swap/schedule/step_trace.h"
#include "tests/support/copies.h"
#include "tests/support/random/net.h"

namespace spillway::testing {
using namespace swap;
namespace {

/// An exception of the user's own, in the middle of a step.
struct UserError : std::runtime_error {
  UserError() : std::runtime_error("the user changed their mind") {}
};

enum class Loss { squares, mean_squared_error, binary_cross_entropy, cross_entropy, smooth_l1 };
enum class Update { sgd, sgd_without_momentum, adam };

constexpr int64_t kNever = -1;

/// The variations of the training loop. A new option needs a field, a draw and a use.
struct TrainingPlan {
  int64_t steps, batch, micro_batches;
  Loss loss;
  Update update;
  int64_t group_bytes;
  bool autocast, channels_last, backward_twice, gradient_penalty, clipping, evaluation, inference_mode;
  bool born_before_session;
  int64_t odd_batch_at = kNever, layer_left_out_at = kNever, weights_moved_at = kNever, error_at = kNever;
  int64_t layer = 0;  // the layer that is left out, or in which the error occurs
  bool error_in_backward = false;
};

TrainingPlan plan_training(uint64_t seed, const CaseLimits& limits) {
  std::mt19937_64 random(seed ^ 0x7261636573);
  auto one_in = [&](uint64_t n) { return random() % n == 0; };
  auto sometime = [&](uint64_t n) { return one_in(n) ? static_cast<int64_t>(random() % 5) : kNever; };
  TrainingPlan plan{};
  plan.steps = std::min<int64_t>(limits.steps, 2 + static_cast<int64_t>(random() % 4));
  plan.batch = 2 + static_cast<int64_t>(random() % 3);
  plan.micro_batches = one_in(3) ? 2 : 1;
  plan.loss = static_cast<Loss>(random() % 5);
  plan.update = static_cast<Update>(random() % 3);
  plan.group_bytes = one_in(3) ? kDefaultGroupBytes : 1 << 13;
  plan.autocast = one_in(4);
  plan.channels_last = one_in(4);
  plan.backward_twice = one_in(4);
  plan.gradient_penalty = one_in(4);
  plan.clipping = one_in(3);
  plan.evaluation = one_in(3);
  plan.inference_mode = one_in(2);
  plan.born_before_session = one_in(2);
  plan.odd_batch_at = sometime(4);
  plan.layer_left_out_at = sometime(4);
  plan.weights_moved_at = sometime(5);
  plan.error_at = sometime(3);
  plan.layer = static_cast<int64_t>(random() % 10);
  plan.error_in_backward = one_in(2);
  return plan;
}

std::string describe(const TrainingPlan& p) {
  std::string text = str("; ", p.steps, " steps of ", p.micro_batches, " x ", p.batch, ", loss ",
                         static_cast<int>(p.loss), ", update ", static_cast<int>(p.update));
  const std::pair<bool, const char*> flags[] = {
      {p.autocast, "autocast"},
      {p.channels_last, "channels last"},
      {p.backward_twice, "backward twice"},
      {p.gradient_penalty, "gradient penalty"},
      {p.clipping, "clipping"},
      {p.evaluation, p.inference_mode ? "evaluation in inference mode" : "evaluation"},
      {p.born_before_session, "born before the Session"}};
  for (const auto& [set, name] : flags)
    if (set) text += str(", ", name);
  const std::pair<int64_t, const char*> events[] = {
      {p.odd_batch_at, "odd batch"},
      {p.layer_left_out_at, "layer left out"},
      {p.weights_moved_at, "weights moved"},
      {p.error_at, p.error_in_backward ? "error in backward" : "error in forward"}};
  for (const auto& [step, name] : events)
    if (step != kNever) text += str(", ", name, " at ", step);
  return text + str(", layer ", p.layer);
}

/// A guard that uses bfloat16 for the operators that autocast knows, while it lives.
class Autocast {
 public:
  explicit Autocast(bool on) : on_(on) {
    if (!on_) return;
    at::autocast::increment_nesting();
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  }
  ~Autocast() {
    if (!on_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  const bool on_;
};

at::Tensor loss_of(Loss kind, at::Tensor y) {
  y = y.to(at::kFloat);
  switch (kind) {
    case Loss::squares:
      return y.square().mean();
    case Loss::mean_squared_error:
      return at::mse_loss(y, at::randn(y.sizes()));
    case Loss::binary_cross_entropy:
      return at::binary_cross_entropy_with_logits(y, at::rand(y.sizes()));
    case Loss::cross_entropy: {
      auto sizes = y.sizes().vec();
      sizes.erase(sizes.begin() + 1);
      return at::cross_entropy_loss(y, at::randint(0, y.size(1), sizes, at::kLong));
    }
    case Loss::smooth_l1:
      return at::smooth_l1_loss(y, at::randn(y.sizes()));
  }
  return {};
}

std::unique_ptr<Optimizer> make_optimizer(const TrainingPlan& plan, std::vector<at::Tensor> parameters) {
  switch (plan.update) {
    case Update::sgd:
      return std::make_unique<Sgd>(std::move(parameters), SgdOptions{.lr = 1e-2, .group_bytes = plan.group_bytes});
    case Update::sgd_without_momentum:
      return std::make_unique<Sgd>(std::move(parameters),
                                   SgdOptions{.lr = 1e-2, .momentum = 0, .group_bytes = plan.group_bytes});
    case Update::adam:
      return std::make_unique<Adam>(std::move(parameters), AdamOptions{.lr = 1e-3, .group_bytes = plan.group_bytes});
  }
  return nullptr;
}

/// The bytes of some tensors, to which they can be reset.
class Snapshot {
 public:
  explicit Snapshot(std::vector<at::Tensor> tensors) : tensors_(std::move(tensors)) {
    for (const at::Tensor& t : tensors_) {
      auto lent = resident_read(t);
      const char* data = static_cast<const char*>(t.const_data_ptr());
      bytes_.emplace_back(data, data + t.nbytes());
    }
  }
  void restore() const {
    for (size_t i = 0; i < tensors_.size(); ++i) {
      auto lent = resident(tensors_[i]);
      std::memcpy(tensors_[i].mutable_data_ptr(), bytes_[i].data(), bytes_[i].size());
    }
  }

 private:
  std::vector<at::Tensor> tensors_;
  std::vector<std::vector<char>> bytes_;
};

/// Runs `work` until no copy fails in it. Throws when it fails 100 times. `work` may begin anew where it was left.
template <class Work>
auto insist(Work&& work) {
  for (int attempt = 1;; ++attempt) try {
      return work();
    } catch (const std::runtime_error& error) {
      if (attempt == 100 || !CopyFailed::is(error)) throw;
    }
}

class Training {
 public:
  Training(uint64_t seed, const CaseLimits& limits, const TrainingSurroundings& surroundings)
      : seed_(seed), limits_(limits), plan_(plan_training(seed, limits)), surroundings_(surroundings) {}

  TrainingOutcome run() {
    at::manual_seed(seed_);
    if (plan_.born_before_session) build();
    if (surroundings_.session) {
      session_.emplace(*surroundings_.session);
      outcome_.floor_bytes = session_->ledger().used_bytes();
      if (surroundings_.opened) surroundings_.opened(*session_);
    }
    if (!plan_.born_before_session) insist([&] { in_step("build", [&] { build(); }); });
    outcome_.repeatable = plan_.update != Update::sgd;
    outcome_.description = net_->description() + describe(plan_);
    for (int64_t step = 0; step < plan_.steps; ++step) train(step);
    if (session_) outcome_.stats = session_->stats();
    if (surroundings_.closing) surroundings_.closing();
    session_.reset();
    collect();
    return std::move(outcome_);
  }

 private:
  void build() {
    at::manual_seed(seed_);
    optimizer_.reset();
    net_.emplace(seed_, limits_.parts);
    optimizer_ = make_optimizer(plan_, net_->parameters());
    plan_.gradient_penalty &= net_->twice_differentiable() && !plan_.autocast;
  }

  template <class Work>
  void in_step(const char* kind, Work&& work) {
    {
      std::optional<Session::Step> step;
      if (session_) step.emplace(session_->step(kind));
      work();
      if (step) step->finish();
    }
    if (session_) outcome_.floor_bytes = std::max(outcome_.floor_bytes, session_->trace(kind)->floor_bytes());
  }

  /// Runs one step, and repeats it as long as copies fail.
  void train(int64_t step) {
    if (step == plan_.weights_moved_at)
      for (at::Tensor p : net_->parameters()) insist([&] { in_step("move", [&] { p.set_data(p.detach().clone()); }); });
    const auto before = insist([&] { return Snapshot(state()); });
    const size_t noted = outcome_.bits.size();
    for (int attempt = 1;; ++attempt) try {
        at::manual_seed(seed_ + static_cast<uint64_t>(step));
        try {
          in_step("train", [&] { train_once(step); });
        } catch (const UserError&) {
          outcome_.floor_is_known &= step > 0 && step != plan_.odd_batch_at;
        }
        if (plan_.evaluation) in_step("evaluate", [&] { evaluate(step); });
        if (step + 1 < plan_.steps) zero_gradients();
        return;
      } catch (const std::runtime_error& error) {
        if (attempt == 100 || !CopyFailed::is(error)) throw;
        ++outcome_.repeated_steps;
        outcome_.bits.resize(noted);
        zero_gradients();
        insist([&] { before.restore(); });
      }
  }

  void train_once(int64_t step) {
    for (int64_t micro = 0; micro < plan_.micro_batches; ++micro) {
      at::Tensor loss = loss_of(plan_.loss, forward(step, micro));
      if (plan_.gradient_penalty) loss = loss + penalty(loss);
      note(str("loss ", step), loss);
      if (plan_.backward_twice) loss.backward({}, /*retain_graph=*/true);
      loss.backward();
    }
    update();
  }

  at::Tensor forward(int64_t step, int64_t micro) {
    const bool odd = step == plan_.odd_batch_at && micro == 0;
    at::Tensor x = net_->input(plan_.batch + odd);
    if (plan_.channels_last && x.dim() >= 4)
      x = x.contiguous(x.dim() == 5 ? at::MemoryFormat::ChannelsLast3d : at::MemoryFormat::ChannelsLast);
    ForwardPass pass;
    const int64_t layer = plan_.layer % net_->layers();
    if (step == plan_.layer_left_out_at) pass.skipped_layer = layer;
    if (step == plan_.error_at) {
      pass.after_layer = layer;
      pass.then = [this](at::Tensor& y) { bring_error(y); };
    }
    Autocast autocast(plan_.autocast);
    return net_->forward(x, pass);
  }

  void bring_error(at::Tensor& y) const {
    if (!plan_.error_in_backward) throw UserError();
    if (y.requires_grad()) y.register_hook([](const at::Tensor&) -> at::Tensor { throw UserError(); });
  }

  at::Tensor penalty(const at::Tensor& loss) {
    at::Tensor sum = at::zeros({});
    for (const at::Tensor& g : torch::autograd::grad({loss}, net_->parameters(), {}, true, true, /*allow_unused=*/true))
      if (g.defined()) sum = sum + g.square().sum();
    return sum * 1e-3;
  }

  void update() {
    if (plan_.clipping) clip();
    optimizer_->step();
    at::NoGradGuard no_grad;
    for (const at::Tensor& table : net_->sparse_tables())
      if (table.grad().defined()) at::Tensor(table).add_(table.grad(), -1e-2);
  }

  void clip() {
    at::NoGradGuard no_grad;
    at::Tensor sum = at::zeros({});
    for (const at::Tensor& p : net_->parameters())
      if (p.grad().defined()) sum += p.grad().square().sum();
    const at::Tensor factor = (0.5 / (sum.sqrt() + 1e-6)).clamp_max(1.0);
    for (const at::Tensor& p : net_->parameters())
      if (p.grad().defined()) p.grad().mul_(factor);
  }

  void evaluate(int64_t step) {
    at::NoGradGuard no_grad;
    std::optional<c10::InferenceMode> inference;
    if (plan_.inference_mode) inference.emplace();
    ForwardPass pass{.training = false};
    note(str("evaluation ", step), net_->forward(net_->input(plan_.batch), pass).to(at::kFloat).sum());
  }

  void zero_gradients() {
    optimizer_->zero_grad();
    for (const at::Tensor& table : net_->sparse_tables()) table.mutable_grad().reset();
  }

  /// Returns the tensors that a step changes, except gradients.
  std::vector<at::Tensor> state() const {
    std::vector<at::Tensor> all = net_->parameters();
    for (const auto& more : {net_->sparse_tables(), net_->buffers()}) all.insert(all.end(), more.begin(), more.end());
    for (const OptimizerState& state : optimizer_->state())
      all.insert(all.end(), state.tensors.begin(), state.tensors.end());
    return all;
  }

  void collect() {
    size_t i = 0;
    for (const at::Tensor& t : state()) note(spillway::str("state ", i++, " ", t.sizes()), t.detach());
    for (const at::Tensor& p : net_->parameters())
      if (p.grad().defined()) note("a gradient", p.grad());
    for (const at::Tensor& table : net_->sparse_tables())
      if (table.grad().defined()) note("a sparse gradient", table.grad().to_dense());
  }
  /// Records the bytes of `value`. A tensor would stay allocated during the steps that follow.
  void note(const std::string& name, const at::Tensor& value) {
    const at::Tensor flat = value.contiguous();
    auto lent = resident_read(flat);
    const char* data = static_cast<const char*>(flat.const_data_ptr());
    outcome_.bits.emplace_back(name, std::vector<char>(data, data + flat.nbytes()));
  }

  const uint64_t seed_;
  const CaseLimits limits_;
  TrainingPlan plan_;
  const TrainingSurroundings& surroundings_;
  TrainingOutcome outcome_;
  std::optional<Session> session_;
  std::optional<RandomNet> net_;
  std::unique_ptr<Optimizer> optimizer_;
};

}  // namespace

TrainingOutcome train_random_net(uint64_t seed, const CaseLimits& limits, const TrainingSurroundings& surroundings) {
  return Training(seed, limits, surroundings).run();
}

std::string first_difference(const TrainingOutcome& a, const TrainingOutcome& b) {
  if (a.bits.size() != b.bits.size())
    return str(a.bits.size(), " results on one side, ", b.bits.size(), " on the other");
  for (size_t i = 0; i < a.bits.size(); ++i)
    if (a.bits[i] != b.bits[i]) return str("differs first in ", a.bits[i].first);
  return {};
}

}  // namespace spillway::testing
