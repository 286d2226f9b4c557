#include "ddl/torch/gradient_allreduce.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <numeric>
#include <utility>

#include "core/category.h"
#include "core/clock.h"
#include "core/distinct_tensors.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/message_listener.h"
#include "ddl/allreduce/gradient_buckets.h"
#include "ddl/allreduce/tuned_allreduce.h"
#include "ddl/comm/background_queue.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"
#include "ddl/torch/staging_memory.h"
#include "ddl/torch/tensor_elements.h"
#include "ddl/torch/tensor_fusion.h"

namespace spillway::ddl {
namespace {

using torch::autograd::variable_list;

/// A hook that runs when a parameter's gradient has been accumulated.
class AfterAccumulation final : public torch::autograd::FunctionPostHook {
 public:
  explicit AfterAccumulation(std::function<void()> body) : body_(std::move(body)) {}
  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    body_();
    return outputs;
  }

 private:
  const std::function<void()> body_;
};

/// Adds a hook to the node that accumulates. The returned pointer keeps the node alive, because the parameter itself
/// does not.
std::shared_ptr<void> after_accumulation(const at::Tensor& parameter, std::function<void()> body) {
  auto node = torch::autograd::impl::grad_accumulator(parameter);
  const auto key = node->add_post_hook(std::make_unique<AfterAccumulation>(std::move(body)));
  return {node.get(), [node, key](void*) { node->del_post_hook(key); }};
}

at::Device device_of(const std::vector<at::Tensor>& parameters) {
  check_one_device(parameters, "gradient_allreduce");
  return parameters.empty() ? at::Device(at::kCPU) : parameters[0].device();
}

uint64_t signature_of_parameters(const std::vector<at::Tensor>& parameters) {
  uint64_t hash = hash_in(kHashSeed, parameters.size());
  for (const at::Tensor& parameter : parameters) {
    check_dense(parameter, "gradient_allreduce");
    hash = hash_in(hash, element_of(parameter, "gradient_allreduce"));
    for (const int64_t size : parameter.sizes()) hash = hash_in(hash, size);
    for (const int64_t stride : parameter.strides()) hash = hash_in(hash, stride);
  }
  return hash;
}

GradientOptions checked(const GradientOptions& options, const std::vector<at::Tensor>& parameters, Communicator& comm) {
  check_together(comm, [&] {
    options.validate();
    (void)device_of(parameters);
    (void)signature_of_parameters(parameters);
  });
  return options;
}

std::vector<GradientBucket> cut(const std::vector<at::Tensor>& parameters, std::span<const size_t> order,
                                int64_t bucket_bytes) {
  std::vector<GradientShape> shapes;
  for (const at::Tensor& parameter : parameters)
    shapes.push_back({element_of(parameter, "gradient_allreduce"), parameter.numel()});
  return cut_into_buckets(shapes, order, bucket_bytes);
}

Allreduce over(Communicator& comm, Choice choice) {
  return {comm, std::move(choice.plan), std::move(choice.options)};
}

at::Tensor flags_of(const GradientBucket& bucket, const at::Tensor& packed) {
  return packed.narrow(0, bucket.count - bucket.flags, bucket.flags);
}

}  // namespace

void GradientOptions::validate() const {
  if (bucket_bytes != 0 && (bucket_bytes < 1024 || bucket_bytes > int64_t{1} << 30))
    throw BadRequest(str("[ddl] bucket_bytes is ", bucket_bytes,
                         "; allowed: 0 (as the cost model says), 1024 (1 KiB) to 1073741824 (1 GiB)"));
  if (max_in_flight_bytes < 0)
    throw BadRequest(str("[ddl] max_in_flight_bytes is ", max_in_flight_bytes, "; allowed: 0 and more"));
  if (reduction != Reduction::sum && reduction != Reduction::average)
    throw BadRequest("[ddl] gradients are reduced by their maximum or minimum; allowed: sum, average");
}

/// The buckets of the gradients, and those of them that are under way.
class GradientAllreduce::Impl {
 public:
  Impl(const std::vector<at::Tensor>& parameters, Comm comm, GradientOptions options);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void begin();
  void finish();
  void observe(WorkerTimeline::Observer observer) { queue_.observe(std::move(observer)); }
  void listen(MessageListener& listener) { listener_ = &listener; }
  bool begun() const noexcept { return begun_; }
  int64_t bucket_bytes() const noexcept { return bucket_bytes_; }
  int64_t buckets() const noexcept { return std::ssize(buckets_); }
  const Allreduce& allreduce() const noexcept { return allreduce_; }
  GradientTotals totals() const;

 private:
  /// A bucket under way. Its bytes are the worker's until the ticket is done.
  struct BucketInFlight {
    size_t bucket;
    StagingMemory memory;
    Ticket ticket;
    int64_t message = -1;  ///< number with the listener
  };

  void completed(size_t parameter);
  bool complete(const GradientBucket& bucket) const;
  void start_next();
  at::Tensor packed(const GradientBucket& bucket, const StagingMemory& memory) const;
  void pack(const GradientBucket& bucket, const at::Tensor& into);
  /// Waits for the oldest bucket and takes its results, except those of gradients that are missing here.
  void complete_oldest();
  /// Copies results to the gradients that are missing here when `missing`, or else to the others.
  void unpack(const BucketInFlight& flight, bool missing);
  /// Makes the gradients that are missing here and that other ranks have.
  void make_missing();
  /// Gives all ranks the order of rank 0, after the first step.
  void reorder();
  void lay_out(const std::vector<size_t>& order);

  const std::vector<at::Tensor> parameters_;
  const Comm comm_;
  const GradientOptions options_;
  const at::Device device_;
  const uint64_t signature_;
  const int64_t bucket_bytes_;
  const std::shared_ptr<Communicator> queue_comm_;
  Allreduce allreduce_;  ///< over queue_comm_; the worker's while a ticket is open
  std::vector<GradientBucket> buckets_;
  std::vector<std::shared_ptr<void>> hooks_;  ///< hooks that remove themselves from the parameters
  bool begun_ = false;
  std::vector<bool> is_complete_;   ///< by parameter: in this step
  std::vector<bool> is_missing_;    ///< by parameter: on this rank, as finish() saw it
  std::vector<bool> has_landed_;    ///< by parameter: some of its elements are reduced
  std::vector<size_t> completion_;  ///< parameters in the order of this step
  size_t next_ = 0;                 ///< bucket to start
  int64_t bytes_under_way_ = 0;
  std::deque<BucketInFlight> flights_;
  std::deque<BucketInFlight> landed_;  ///< buckets with results for gradients that are missing here
  GradientTotals totals_;
  MessageListener* listener_ = nullptr;
  StagingMemory scratch_;
  BackgroundQueue queue_;  ///< last member, because it must end before the members that it uses
};

GradientAllreduce::Impl::Impl(const std::vector<at::Tensor>& parameters, Comm comm, GradientOptions options)
    : parameters_(distinct_tensors(parameters)),
      comm_(std::move(comm)),
      options_(checked(options, parameters_, *comm_->communicator)),
      device_(device_of(parameters_)),
      signature_(signature_of_parameters(parameters_)),
      bucket_bytes_(options.bucket_bytes > 0 ? options.bucket_bytes : comm_->allreduce->bucket_bytes()),
      queue_comm_(comm_->communicator->duplicate()),
      allreduce_(over(*queue_comm_, comm_->allreduce->choice(bucket_bytes_))),
      is_complete_(parameters_.size()),
      is_missing_(parameters_.size()),
      has_landed_(parameters_.size()),
      queue_(queue_comm_, "gradients") {
  // Backward begins with the parameters with which forward ended.
  std::vector<size_t> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), size_t{0});
  lay_out(order);
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (parameters_[i].requires_grad())
      hooks_.push_back(after_accumulation(parameters_[i], [this, i] { completed(i); }));
}

GradientAllreduce::Impl::~Impl() {
  if (begun_) queue_.give_up("was interrupted before it had finished its gradients");
}

void GradientAllreduce::Impl::begin() {
  TORCH_CHECK(!begun_, "[ddl] begin() of gradients that were begun and not finished");
  begun_ = true;
  next_ = 0;
  std::fill(is_complete_.begin(), is_complete_.end(), false);
  std::fill(is_missing_.begin(), is_missing_.end(), false);
  std::fill(has_landed_.begin(), has_landed_.end(), false);
  completion_.clear();
}

void GradientAllreduce::Impl::completed(size_t parameter) {
  if (!begun_) return;
  TORCH_CHECK(!is_complete_[parameter], "[ddl] the gradient of parameter ", parameter, " of ", parameters_.size(),
              " was accumulated twice after begin(); allowed: one backward before finish()");
  is_complete_[parameter] = true;
  completion_.push_back(parameter);
  // The last bucket waits for finish(), which knows the missing gradients.
  while (next_ + 1 < buckets_.size() && complete(buckets_[next_])) start_next();
}

bool GradientAllreduce::Impl::complete(const GradientBucket& bucket) const {
  return std::all_of(bucket.pieces.begin(), bucket.pieces.end(),
                     [&](const auto& piece) { return is_complete_[piece.parameter]; });
}

void GradientAllreduce::Impl::start_next() {
  const GradientBucket& bucket = buckets_[next_];
  while (!flights_.empty() && bytes_under_way_ + bucket.bytes() > options_.max_in_flight_bytes) complete_oldest();
  const at::NoGradGuard no_grad;
  StagingMemory memory(bucket.bytes(), device_);
  pack(bucket, packed(bucket, memory));
  const ReduceBuffers vector = in_place(memory.bytes, bucket.element);
  flights_.push_back({next_++, std::move(memory), {}});
  bytes_under_way_ += bucket.bytes();
  flights_.back().ticket = queue_.submit(
      [this, vector](Communicator&) { allreduce_.reduce(vector, options_.reduction, scratch_.bytes, signature_); },
      recorded(device_), bucket.bytes());
  if (listener_) flights_.back().message = listener_->sent(comm_->allreduce->predicted_seconds(bucket.bytes()));
}

at::Tensor GradientAllreduce::Impl::packed(const GradientBucket& bucket, const StagingMemory& memory) const {
  const auto type = bucket.pieces.empty() ? at::kFloat : parameters_[bucket.pieces[0].parameter].scalar_type();
  return memory.vector(bucket.count, type);
}

void GradientAllreduce::Impl::pack(const GradientBucket& bucket, const at::Tensor& into) {
  for (const auto& piece : bucket.pieces) {
    const at::Tensor& parameter = parameters_[piece.parameter];
    at::Tensor gradient = parameter.grad();
    const at::Tensor target = into.narrow(0, piece.offset, piece.range.size());
    if (!gradient.defined()) {
      target.zero_();
      continue;
    }
    TORCH_CHECK(gradient.layout() == at::kStrided, "[ddl] the gradient of parameter ", piece.parameter, " is ",
                gradient.layout(), "; allowed: dense");
    if (gradient.strides() != parameter.strides())
      parameter.mutable_grad() = gradient = at::zeros_like(parameter).copy_(gradient);
    target.copy_(elements(gradient, piece.range), /*non_blocking=*/true);
    // From here on only the message holds the gradient, unless some of it has come back already.
    if (piece.range.end == parameter.numel() && !has_landed_[piece.parameter]) parameter.mutable_grad().reset();
  }
  if (bucket.flags == 0) return;
  const at::Tensor flags = at::zeros({bucket.flags});
  for (int64_t i = 0; i < bucket.flags; ++i) flags.data_ptr<float>()[i] = is_missing_[i] ? 0 : 1;
  flags_of(bucket, into).copy_(flags);
}

void GradientAllreduce::Impl::complete_oldest() {
  BucketInFlight flight = std::move(flights_.front());
  flights_.pop_front();
  if (listener_) listener_->awaited(flight.message);
  const auto start = Clock::now();
  flight.ticket.wait();
  totals_.exposed += Clock::now() - start;
  const GradientBucket& bucket = buckets_[flight.bucket];
  totals_.bytes += bucket.bytes();
  unpack(flight, /*missing=*/false);
  const bool needed = bucket.flags > 0 || std::any_of(bucket.pieces.begin(), bucket.pieces.end(),
                                                      [&](const auto& piece) { return is_missing_[piece.parameter]; });
  if (needed)
    landed_.push_back(std::move(flight));
  else
    bytes_under_way_ -= bucket.bytes();
}

void GradientAllreduce::Impl::unpack(const BucketInFlight& flight, bool missing) {
  const GradientBucket& bucket = buckets_[flight.bucket];
  const at::NoGradGuard no_grad;
  const at::Tensor from = packed(bucket, flight.memory);
  for (const auto& [index, range, offset] : bucket.pieces) {
    const at::Tensor& parameter = parameters_[index];
    if (is_missing_[index] != missing || (missing && !parameter.grad().defined())) continue;
    if (!parameter.grad().defined()) {
      const CategoryScope gradients(Category::gradients);
      parameter.mutable_grad() = at::empty_like(parameter);
    }
    elements(parameter.grad(), range).copy_(from.narrow(0, offset, range.size()), /*non_blocking=*/true);
    has_landed_[index] = true;
  }
}

void GradientAllreduce::Impl::finish() {
  TORCH_CHECK(begun_, "[ddl] finish() of gradients without begin()");
  for (size_t i = 0; i < parameters_.size(); ++i) is_missing_[i] = !is_complete_[i] && !parameters_[i].grad().defined();
  while (next_ < buckets_.size()) start_next();
  while (!flights_.empty()) complete_oldest();
  make_missing();
  landed_.clear();
  bytes_under_way_ = 0;
  begun_ = false;
  if (++totals_.steps == 1) reorder();
}

void GradientAllreduce::Impl::make_missing() {
  if (std::find(is_missing_.begin(), is_missing_.end(), true) == is_missing_.end()) return;
  const at::NoGradGuard no_grad;
  const BucketInFlight& last = landed_.back();
  const at::Tensor flags = flags_of(buckets_[last.bucket], packed(buckets_[last.bucket], last.memory)).to(at::kFloat);
  for (size_t i = 0; i < parameters_.size(); ++i)
    if (is_missing_[i] && flags.data_ptr<float>()[i] > 0)
      parameters_[i].mutable_grad() = at::zeros_like(parameters_[i]);
  for (const BucketInFlight& flight : landed_) unpack(flight, /*missing=*/true);
}

void GradientAllreduce::Impl::reorder() {
  std::vector<int64_t> order(completion_.begin(), completion_.end());
  for (size_t i = parameters_.size(); i-- > 0;)
    if (!is_complete_[i]) order.push_back(i);
  broadcast(*comm_->communicator, std::as_writable_bytes(std::span(order)), 0, signature_);
  lay_out({order.begin(), order.end()});
}

void GradientAllreduce::Impl::lay_out(const std::vector<size_t>& order) {
  buckets_ = cut(parameters_, order, bucket_bytes_);
  int64_t scratch = 0;
  for (const GradientBucket& bucket : buckets_)
    scratch = std::max(scratch, comm_->allreduce->scratch_bytes(bucket_bytes_, bucket.count, bucket.element));
  if (scratch > std::ssize(scratch_.bytes)) scratch_ = StagingMemory(scratch);
}

GradientTotals GradientAllreduce::Impl::totals() const {
  GradientTotals totals = totals_;
  totals.busy = queue_.busy();
  return totals;
}

GradientAllreduce::GradientAllreduce(const std::vector<at::Tensor>& parameters, Comm comm, GradientOptions options)
    : impl_(std::make_unique<Impl>(parameters, std::move(comm), options)) {}
GradientAllreduce::~GradientAllreduce() = default;

void GradientAllreduce::begin() {
  impl_->begin();
}

void GradientAllreduce::finish() {
  impl_->finish();
}

void GradientAllreduce::observe(WorkerTimeline::Observer observer) {
  impl_->observe(std::move(observer));
}

void GradientAllreduce::listen(MessageListener& listener) {
  impl_->listen(listener);
}

bool GradientAllreduce::begun() const noexcept {
  return impl_->begun();
}

int64_t GradientAllreduce::bucket_bytes() const noexcept {
  return impl_->bucket_bytes();
}

int64_t GradientAllreduce::buckets() const noexcept {
  return impl_->buckets();
}

const Plan& GradientAllreduce::plan() const noexcept {
  return impl_->allreduce().plan();
}

GradientTotals GradientAllreduce::totals() const {
  return impl_->totals();
}

const AllreduceTotals& GradientAllreduce::allreduces() const noexcept {
  return impl_->allreduce().totals();
}

}  // namespace spillway::ddl
