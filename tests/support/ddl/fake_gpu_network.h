// A double of NCCL. Ranks are threads, and their GPUs' memory is the host's. A started call proceeds only while every
// rank asks whether it is finished, and no call may be started before that. Sums of different parts begin at different
// ranks, as in a ring.
#pragma once
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "ddl/allreduce/combine.h"
#include "ddl/nccl/gpu_network.h"

namespace spillway::ddl::testing {

/// The calls of one rank, in order: `reduce-scatter of 4 among 2`.
using CallLog = std::vector<std::string>;

/// The failure of a rank.
struct GpuFault {
  std::string call;    ///< the first call of this name, `reduce-scatter of 4 among 2` …
  bool stuck = false;  ///< … never ends; otherwise it fails
};

struct Circle;

class FakeGroup final : public GpuCommunicator {
 public:
  struct Part {
    std::string call;
    const std::byte* from = nullptr;
    int color = 0, key = 0;
  };
  /// One collective: the parts of the ranks that have come, and the ranks that have read them.
  struct Meeting {
    std::map<int, Part> parts;
    std::set<int> seen;
    std::map<int, std::shared_ptr<Circle>> circles;
  };

  FakeGroup(std::shared_ptr<Circle> circle, int rank, CallLog& log, GpuFault& fault)
      : circle_(std::move(circle)), rank_(rank), log_(log), fault_(fault) {}

  void reduce_scatter(const void* from, void* to, int64_t count, Element element, Reduction reduction) override;
  void all_reduce(const void* from, void* to, int64_t count, Element element, Reduction reduction) override;
  void all_gather(const void* from, void* to, int64_t count, Element element) override;
  void broadcast(void* data, int64_t bytes, int root, std::span<const int> members) override;
  std::unique_ptr<GpuCommunicator> split(int color, int key) override;
  bool finished() override;
  void abort() noexcept override { aborted_ = true; }

 private:
  /// Returns all ranks' parts at `offset`, reduced in rank order from the rank after this one on.
  std::vector<std::byte> reduced(const Meeting& initialization, int64_t offset, int64_t count, Element element,
                                 Reduction reduction) const;

  using Members = std::vector<int>;
  void start(const std::string& call, Part part, Members members, std::function<std::vector<std::byte>(Meeting&)> see,
             void* to);

  std::shared_ptr<Circle> circle_;
  int rank_;
  CallLog& log_;
  GpuFault& fault_;
  bool aborted_ = false;

  bool under_way_ = false, stuck_ = false;
  Members members_;
  std::function<std::vector<std::byte>(Meeting&)> see_;  ///< reads the parts of all ranks
  std::vector<std::byte> result_;
  void* to_ = nullptr;
  std::map<Members, int64_t> numbers_;  ///< numbers of collectives
  FakeGroup* child_ = nullptr;
  int color_ = 0;
};

struct Circle {
  explicit Circle(int size) : size(size) {}
  const int size;
  std::mutex mutex;
  std::map<std::pair<std::vector<int>, int64_t>, FakeGroup::Meeting> initializations;
  std::vector<int> everyone() const {
    std::vector<int> all(static_cast<size_t>(size));
    for (int i = 0; i < size; ++i) all[static_cast<size_t>(i)] = i;
    return all;
  }
};

inline void FakeGroup::start(const std::string& call, Part part, Members members,
                             std::function<std::vector<std::byte>(Meeting&)> see, void* to) {
  if (aborted_) throw std::logic_error("a call of a group that was aborted");
  if (!circle_ || under_way_) throw std::logic_error(call + " before the last was finished");
  log_.push_back(call);
  if (fault_.call == call) {
    if (!fault_.stuck) throw std::runtime_error("unhandled card error");
    stuck_ = true;
  }
  part.call = call;
  members_ = std::move(members);
  see_ = std::move(see);
  to_ = to;
  result_.clear();
  under_way_ = true;
  std::lock_guard lock(circle_->mutex);
  circle_->initializations[{members_, ++numbers_[members_]}].parts[rank_] = part;
}

inline bool FakeGroup::finished() {
  if (aborted_) throw std::logic_error("asked of a group that was aborted");
  if (!circle_ || stuck_) return false;
  if (!under_way_) return true;
  std::lock_guard lock(circle_->mutex);
  Meeting& initialization = circle_->initializations[{members_, numbers_[members_]}];
  if (initialization.parts.size() < members_.size()) return false;
  for (const auto& [rank, part] : initialization.parts)
    if (part.call != initialization.parts[rank_].call)
      throw std::runtime_error("rank " + std::to_string(rank) + " calls " + part.call);
  if (initialization.seen.insert(rank_).second) result_ = see_(initialization);
  if (initialization.seen.size() < members_.size()) return false;
  if (to_) std::memcpy(to_, result_.data(), result_.size());
  if (child_) {
    child_->circle_ = initialization.circles[color_];
    child_ = nullptr;
  }
  under_way_ = false;
  return true;
}

inline void check_reduction(Element element, Reduction reduction) {
  if (partial_bytes(element) != element_bytes(element)) throw std::runtime_error("sums in 16 bits");
  const bool floats = element == Element::float32 || element == Element::float64;
  if (reduction == Reduction::average || (floats && reduction != Reduction::sum))
    throw std::runtime_error("a reduction that is not the library's");
}

inline std::vector<std::byte> FakeGroup::reduced(const Meeting& initialization, int64_t offset, int64_t count,
                                                 Element element, Reduction reduction) const {
  std::vector<Term> terms;
  for (int step = 1; step <= circle_->size; ++step)
    terms.push_back({initialization.parts.at((rank_ + step) % circle_->size).from + offset, false});
  std::vector<std::byte> sum(static_cast<size_t>(count * element_bytes(element)));
  combine(element, reduction, sum.data(), terms, count);
  return sum;
}

inline void FakeGroup::reduce_scatter(const void* from, void* to, int64_t count, Element element, Reduction reduction) {
  check_reduction(element, reduction);
  const auto see = [=, this](Meeting& initialization) {
    return reduced(initialization, rank_ * count * element_bytes(element), count, element, reduction);
  };
  start(str("reduce-scatter of ", count, " among ", circle_->size),
        {.call = {}, .from = static_cast<const std::byte*>(from)}, circle_->everyone(), see, to);
}

inline void FakeGroup::all_reduce(const void* from, void* to, int64_t count, Element element, Reduction reduction) {
  check_reduction(element, reduction);
  const auto see = [=, this](Meeting& initialization) { return reduced(initialization, 0, count, element, reduction); };
  start(str("all-reduce of ", count, " among ", circle_->size),
        {.call = {}, .from = static_cast<const std::byte*>(from)}, circle_->everyone(), see, to);
}

inline void FakeGroup::all_gather(const void* from, void* to, int64_t count, Element element) {
  const auto see = [=, this](Meeting& initialization) {
    std::vector<std::byte> all;
    for (const auto& [rank, part] : initialization.parts)
      all.insert(all.end(), part.from, part.from + count * element_bytes(element));
    return all;
  };
  start(str("all-gather of ", count, " among ", circle_->size),
        {.call = {}, .from = static_cast<const std::byte*>(from)}, circle_->everyone(), see, to);
}

inline void FakeGroup::broadcast(void* data, int64_t bytes, int root, std::span<const int> members) {
  const auto see = [=](Meeting& initialization) {
    const std::byte* from = initialization.parts.at(root).from;
    return std::vector<std::byte>(from, from + bytes);
  };
  start(str("broadcast of ", bytes, " among ", members.size()),
        {.call = {}, .from = static_cast<const std::byte*>(data)}, {members.begin(), members.end()}, see, data);
}

inline std::unique_ptr<GpuCommunicator> FakeGroup::split(int color, int key) {
  auto child = std::make_unique<FakeGroup>(nullptr, 0, log_, fault_);
  child_ = child.get();
  color_ = color;
  const auto see = [this](Meeting& initialization) {
    std::set<std::pair<int, int>> order;  // by key, then rank
    for (const auto& [rank, part] : initialization.parts)
      if (part.color == color_) order.insert({part.key, rank});
    auto& circle = initialization.circles[color_];
    if (!circle) circle = std::make_shared<Circle>(static_cast<int>(order.size()));
    int place = 0;
    for (const auto& [key, rank] : order) {
      if (rank == rank_) child_->rank_ = place;
      ++place;
    }
    return std::vector<std::byte>();
  };
  start("split", {.call = {}, .color = color, .key = key}, circle_->everyone(), see, nullptr);
  return child;
}

/// One rank's network. All networks of a world share a `circle`.
class FakeNetwork final : public GpuNetwork {
 public:
  explicit FakeNetwork(std::shared_ptr<Circle> circle, std::string gpu = "card", GpuFault fault = {})
      : circle_(std::move(circle)), gpu_(std::move(gpu)), fault_(std::move(fault)) {}
  std::string name() const override { return "fake 1.0"; }
  std::string gpu_name(int) override { return gpu_; }
  NcclUniqueId make_unique_id() override {
    NcclUniqueId invitation{};
    invitation[0] = std::byte{42};
    return invitation;
  }
  std::unique_ptr<GpuCommunicator> join(const NcclUniqueId& invitation, int size, int rank, int) override {
    if (invitation[0] != std::byte{42} || size != circle_->size) throw std::runtime_error("a wrong invitation");
    return std::make_unique<FakeGroup>(circle_, rank, log, fault_);
  }

  CallLog log;

 private:
  const std::shared_ptr<Circle> circle_;
  const std::string gpu_;
  GpuFault fault_;
};

}  // namespace spillway::ddl::testing
