// A double of NCCL: ranks that are threads, whose cards' memory is the host's. What is started goes on only while
// everyone asks whether it is finished, nothing may be started before that, and sums of different parts begin at
// different ranks, as in a ring.
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
#include "ddl/allreduce/reduce_kernels.h"
#include "ddl/nccl/gpu_network.h"

namespace spillway::ddl::testing {

/// What one rank did, in order: `reduce-scatter of 4 among 2`.
using CallLog = std::vector<std::string>;

/// How a rank goes wrong.
struct CardFault {
  std::string call;    ///< the first so called, `reduce-scatter of 4 among 2` …
  bool stuck = false;  ///< … never ends; else fails
};

struct Circle;

class FakeGroup final : public DeviceGroup {
 public:
  struct Part {
    std::string call;
    const std::byte* from = nullptr;
    int colour = 0, key = 0;
  };
  /// One collective: who has come, and who has seen what the others brought.
  struct Meeting {
    std::map<int, Part> parts;
    std::set<int> seen;
    std::map<int, std::shared_ptr<Circle>> circles;
  };

  FakeGroup(std::shared_ptr<Circle> circle, int rank, CallLog& log, CardFault& fault)
      : circle_(std::move(circle)), rank_(rank), log_(log), fault_(fault) {}

  void reduce_scatter(const void* from, void* to, int64_t count, Element element, Reduction reduction) override;
  void all_reduce(const void* from, void* to, int64_t count, Element element, Reduction reduction) override;
  void all_gather(const void* from, void* to, int64_t count, Element element) override;
  void broadcast(void* data, int64_t bytes, int root, std::span<const int> members) override;
  std::unique_ptr<DeviceGroup> split(int colour, int key) override;
  bool finished() override;
  void abort() noexcept override { aborted_ = true; }

 private:
  /// What all brought at `offset` of theirs, reduced from the rank after this one on.
  std::vector<std::byte> reduced(const Meeting& meeting, int64_t offset, int64_t count, Element element,
                                 Reduction reduction) const;

  using Members = std::vector<int>;
  void start(const std::string& call, Part part, Members members, std::function<std::vector<std::byte>(Meeting&)> see,
             void* to);

  std::shared_ptr<Circle> circle_;
  int rank_;
  CallLog& log_;
  CardFault& fault_;
  bool aborted_ = false;

  bool under_way_ = false, stuck_ = false;
  Members members_;
  std::function<std::vector<std::byte>(Meeting&)> see_;  ///< reads what all brought
  std::vector<std::byte> result_;
  void* to_ = nullptr;
  std::map<Members, int64_t> numbers_;  ///< of collectives
  FakeGroup* child_ = nullptr;
  int colour_ = 0;
};

struct Circle {
  explicit Circle(int size) : size(size) {}
  const int size;
  std::mutex mutex;
  std::map<std::pair<std::vector<int>, int64_t>, FakeGroup::Meeting> meetings;
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
  circle_->meetings[{members_, ++numbers_[members_]}].parts[rank_] = part;
}

inline bool FakeGroup::finished() {
  if (aborted_) throw std::logic_error("asked of a group that was aborted");
  if (!circle_ || stuck_) return false;
  if (!under_way_) return true;
  std::lock_guard lock(circle_->mutex);
  Meeting& meeting = circle_->meetings[{members_, numbers_[members_]}];
  if (meeting.parts.size() < members_.size()) return false;
  for (const auto& [rank, part] : meeting.parts)
    if (part.call != meeting.parts[rank_].call)
      throw std::runtime_error("rank " + std::to_string(rank) + " calls " + part.call);
  if (meeting.seen.insert(rank_).second) result_ = see_(meeting);
  if (meeting.seen.size() < members_.size()) return false;
  if (to_) std::memcpy(to_, result_.data(), result_.size());
  if (child_) {
    child_->circle_ = meeting.circles[colour_];
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

inline std::vector<std::byte> FakeGroup::reduced(const Meeting& meeting, int64_t offset, int64_t count, Element element,
                                                 Reduction reduction) const {
  std::vector<Term> terms;
  for (int step = 1; step <= circle_->size; ++step)
    terms.push_back({meeting.parts.at((rank_ + step) % circle_->size).from + offset, false});
  std::vector<std::byte> sum(static_cast<size_t>(count * element_bytes(element)));
  combine(element, reduction, sum.data(), terms, count);
  return sum;
}

inline void FakeGroup::reduce_scatter(const void* from, void* to, int64_t count, Element element, Reduction reduction) {
  check_reduction(element, reduction);
  const auto see = [=, this](Meeting& meeting) {
    return reduced(meeting, rank_ * count * element_bytes(element), count, element, reduction);
  };
  start(str("reduce-scatter of ", count, " among ", circle_->size),
        {.call = {}, .from = static_cast<const std::byte*>(from)}, circle_->everyone(), see, to);
}

inline void FakeGroup::all_reduce(const void* from, void* to, int64_t count, Element element, Reduction reduction) {
  check_reduction(element, reduction);
  const auto see = [=, this](Meeting& meeting) { return reduced(meeting, 0, count, element, reduction); };
  start(str("all-reduce of ", count, " among ", circle_->size),
        {.call = {}, .from = static_cast<const std::byte*>(from)}, circle_->everyone(), see, to);
}

inline void FakeGroup::all_gather(const void* from, void* to, int64_t count, Element element) {
  const auto see = [=, this](Meeting& meeting) {
    std::vector<std::byte> all;
    for (const auto& [rank, part] : meeting.parts)
      all.insert(all.end(), part.from, part.from + count * element_bytes(element));
    return all;
  };
  start(str("all-gather of ", count, " among ", circle_->size),
        {.call = {}, .from = static_cast<const std::byte*>(from)}, circle_->everyone(), see, to);
}

inline void FakeGroup::broadcast(void* data, int64_t bytes, int root, std::span<const int> members) {
  const auto see = [=](Meeting& meeting) {
    const std::byte* from = meeting.parts.at(root).from;
    return std::vector<std::byte>(from, from + bytes);
  };
  start(str("broadcast of ", bytes, " among ", members.size()),
        {.call = {}, .from = static_cast<const std::byte*>(data)}, {members.begin(), members.end()}, see, data);
}

inline std::unique_ptr<DeviceGroup> FakeGroup::split(int colour, int key) {
  auto child = std::make_unique<FakeGroup>(nullptr, 0, log_, fault_);
  child_ = child.get();
  colour_ = colour;
  const auto see = [this](Meeting& meeting) {
    std::set<std::pair<int, int>> order;  // by key, then rank
    for (const auto& [rank, part] : meeting.parts)
      if (part.colour == colour_) order.insert({part.key, rank});
    auto& circle = meeting.circles[colour_];
    if (!circle) circle = std::make_shared<Circle>(static_cast<int>(order.size()));
    int place = 0;
    for (const auto& [key, rank] : order) {
      if (rank == rank_) child_->rank_ = place;
      ++place;
    }
    return std::vector<std::byte>();
  };
  start("split", {.call = {}, .colour = colour, .key = key}, circle_->everyone(), see, nullptr);
  return child;
}

/// One rank's. All of a world share a `circle`.
class FakeNetwork final : public DeviceNetwork {
 public:
  explicit FakeNetwork(std::shared_ptr<Circle> circle, std::string card = "card", CardFault fault = {})
      : circle_(std::move(circle)), card_(std::move(card)), fault_(std::move(fault)) {}
  std::string name() const override { return "fake 1.0"; }
  std::string name_of_card(int) override { return card_; }
  Invitation invite() override {
    Invitation invitation{};
    invitation[0] = std::byte{42};
    return invitation;
  }
  std::unique_ptr<DeviceGroup> join(const Invitation& invitation, int size, int rank, int) override {
    if (invitation[0] != std::byte{42} || size != circle_->size) throw std::runtime_error("a wrong invitation");
    return std::make_unique<FakeGroup>(circle_, rank, log, fault_);
  }

  CallLog log;

 private:
  const std::shared_ptr<Circle> circle_;
  const std::string card_;
  CardFault fault_;
};

}  // namespace spillway::ddl::testing
