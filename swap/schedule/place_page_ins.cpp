#include "swap/schedule/place_page_ins.h"

#include <algorithm>
#include <utility>

namespace spillway::swap {
namespace {

/// The safety factor of copy times: copies that take a fifth longer than their rate says still come in time.
constexpr double kCaution = 1.2;

class Placer {
 public:
  explicit Placer(const PageInInputs& inputs) : inputs_(inputs), held_(inputs.plan.resident_bytes) {
    start_.push_back(0);
    for (const OperatorRecord& op : inputs.trace.operators)
      start_.push_back(start_.back() + op.host_seconds + op.seconds);
    link_free_until_ = start_.back();
  }

  std::vector<Actions::PageIn> place() {
    std::vector<Actions::PageIn> page_ins = inputs_.plan.demanded;
    std::stable_sort(page_ins.begin(), page_ins.end(), [](auto& a, auto& b) { return a.use > b.use; });
    std::vector<double> begins;
    for (const Actions::PageIn& in : page_ins) begins.push_back(begin_of(in));
    for (size_t k = 0; k < page_ins.size(); ++k) {
      const size_t i = inputs_.prefetch_in_use_order ? page_ins.size() - 1 - k : k;
      place(page_ins[i], begins[i]);
    }
    std::stable_sort(page_ins.begin(), page_ins.end(),
                     [](auto& a, auto& b) { return std::pair(a.trigger, a.use) < std::pair(b.trigger, b.use); });
    return page_ins;
  }

 private:
  int64_t bytes_of(const Actions::PageIn& in) const { return inputs_.trace.slots[in.slot].bytes; }

  double rate_of(const Actions::PageIn& in) const {
    const LinkRates& rates = inputs_.rates;
    if (inputs_.on_disk.count({in.slot, in.use}) == 0) return rates.in_bytes_per_second;
    return std::min(rates.in_bytes_per_second, rates.from_disk_bytes_per_second);
  }

  /// Returns the last moment at which the page-in can begin, given those that follow it.
  double begin_of(const Actions::PageIn& in) {
    const double seconds = kCaution * static_cast<double>(bytes_of(in)) / rate_of(in);
    return link_free_until_ = std::min(start_[in.use], link_free_until_) - seconds;
  }

  /// Sets trigger and use of a page-in that operator in.use needs.
  void place(Actions::PageIn& in, double begin) {
    const bool prefetch_early = inputs_.prefetch_early[in.slot];
    const int32_t left_at = last_eviction_before(in.slot, in.use);
    in.trigger = walk_back(in.use - 1, left_at, bytes_of(in), prefetch_early, begin);
    if (in.trigger >= 0 || left_at >= 0) return;
    // A page-in early in the step may come at the end of the step before, where its use is in "the next step".
    const int32_t count = inputs_.trace.operators.size();
    const int32_t left_before = last_eviction_before(in.slot, count);
    const int32_t trigger = walk_back(count - 1, left_before, bytes_of(in), prefetch_early, begin + start_.back());
    if (left_before < 0 || trigger == count - 1) return;
    in = {in.slot, trigger, in.use + count};
  }

  /// Walks from operator `last` towards `left_at`, as far as there is room and reason. Returns the operator to issue
  /// the page-in after.
  int32_t walk_back(int32_t last, int32_t left_at, int64_t bytes, bool prefetch_early, double begin) {
    int32_t trigger = last;
    while (trigger > left_at && held_[trigger] + bytes <= inputs_.limit_bytes &&
           (prefetch_early || start_[trigger + 1] > begin))
      held_[trigger--] += bytes;
    return trigger;
  }

  /// Returns the operator at which the slot left last before `use`. -1: it did not leave before, so it was absent when
  /// the step began. A slot that was born on the host never left, so this returns its birth.
  int32_t last_eviction_before(int32_t slot, int32_t use) const {
    int32_t at = inputs_.trace.slots[slot].birth;
    for (const Eviction& eviction : inputs_.plan.evictions)
      if (eviction.slot == slot && eviction.at < use) at = std::max(at, eviction.at);
    return at;
  }

  const PageInInputs& inputs_;
  std::vector<int64_t> held_;
  std::vector<double> start_;
  double link_free_until_;
};

}  // namespace

std::vector<Actions::PageIn> place_page_ins(const PageInInputs& inputs) {
  return Placer(inputs).place();
}

}  // namespace spillway::swap
