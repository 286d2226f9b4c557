#include "swap/schedule/simulation.h"

#include <algorithm>
#include <utility>

#include "swap/schedule/simulated_time.h"

namespace spillway::swap {
namespace {

constexpr int32_t kGone = -1;  // in the list of resident slots

/// The place of one slot's bytes, as the pager would say it.
struct Place {
  bool resident = false;
  bool clean = false;
  bool outgoing = false;
  bool incoming = false;
  double copy_done = 0;
  EvictionPriority priority = EvictionPriority::by_use;
  int64_t next_use = kNextUseUnknown;
  int32_t last_use = -1;
  int32_t listed = -1;       // its place among the resident slots
  int32_t leased_by = -1;    // the latest operator that leased it
  int32_t streamed_by = -1;  // the latest operator that used it window by window
};

class Simulation {
 public:
  Simulation(const StepTrace& trace, const SimulationInputs& inputs)
      : trace_(trace),
        budget_(inputs.budget_bytes),
        order_(inputs.small_bytes, inputs.costly_bytes),
        time_(inputs.rates),
        actions_(inputs.actions),
        bias_(inputs.bias),
        sent_after_(inputs.evictions_after),
        on_disk_(inputs.on_disk),
        fetch_streamed_(inputs.fetch_streamed),
        places_(trace.slots.size()),
        deaths_(trace.operators.size()),
        copied_(trace.slots.size()) {
    for (size_t s = 0; s < trace.slots.size(); ++s) {
      const Slot& slot = trace.slots[s];
      if (slot.birth == kBeforeStep) arrive(s);
      if (slot.death >= 0) deaths_[slot.death].push_back(s);
    }
  }

  Simulated run() {
    step();
    settle_between_steps();
    step();
    result_.peak_bytes = peak_bytes_;
    return std::move(result_);
  }

 private:
  void step() {
    result_ = {};
    time_.begin_step();
    next_page_in_ = 0;
    index_ = -1;
    for (int32_t s : resident_)
      if (s != kGone) use_next(s, -1);
    if (actions_) prefetch();
    next_message_ = 0;
    hand_over_messages();
    for (size_t i = 0; i < trace_.operators.size() && result_.feasible; ++i) run_operator(i);
    time_.wait_for_messages(std::ssize(trace_.operators));
    time_.pass(trace_.tail_seconds);
    result_.seconds = time_.since_begin();
    result_.exposed_seconds = time_.copies_waited();
    result_.message_seconds = time_.messages_waited();
  }

  void run_operator(int32_t i) {
    time_.wait_for_messages(i);
    index_ = i;
    const OperatorRecord& op = trace_.operators[i];
    operator_ = &op;
    copies_only_ = false;
    unpaged_ = op.unpaged_bytes;
    for (int32_t s : op.touched) place(s).leased_by = i;
    for (int32_t s : op.streamed) place(s).streamed_by = i;
    for (int32_t s : op.touched)
      if (!place(s).resident && !place(s).incoming && slot(s).birth != i && fits(slot(s).bytes)) demand(s);
    for (int32_t s : op.touched) bring_in(s);
    for (int32_t s : op.touched)
      if (writes(s, i)) make_dirty(s);
    make_room(op.own_bytes);
    for (int32_t s : op.streamed) stream(s);
    result_.resident_bytes.push_back(held_ + unpaged_ + op.own_bytes);
    note_peak(result_.resident_bytes.back());
    time_.compute(op.host_seconds + op.seconds);
    for (int32_t s : op.births)
      if (!slot(s).born_streamed) arrive(s);
    for (const auto* used : {&op.touched, &op.streamed, &op.births})
      for (int32_t s : *used) {
        use_next(s, i);
        place(s).last_use = i;
      }
    for (int32_t s : deaths_[i]) die(s);
    operator_ = nullptr;
    result_.ends.push_back(time_.since_begin());
    hand_over_messages();
    if (actions_) act();
    if (sent_after_) send_away();
  }

  /// Hands over the messages that follow the operator that ran last.
  void hand_over_messages() {
    for (; next_message_ < trace_.messages.size() && trace_.messages[next_message_].after <= index_; ++next_message_)
      time_.send(trace_.messages[next_message_]);
  }

  /// Evicts the slots that leave after this operator, each before the next one.
  void send_away() {
    const auto& evict_after_use = (*sent_after_)[index_];
    if (++index_ == std::ssize(trace_.operators)) return;
    for (int32_t s : evict_after_use) {
      if (!place(s).resident) continue;
      if (!place(s).clean) begin_page_out(s);
      settle(s);
      drop(s);
    }
  }

  void act() {
    const size_t i = index_;
    for (int32_t s : actions_->page_outs_after[i])
      if (place(s).resident && !place(s).clean && !place(s).outgoing) begin_page_out(s);
    for (int32_t s : actions_->releases_after[i])
      place(s).priority = place(s).resident ? EvictionPriority::first : EvictionPriority::by_use;
    prefetch();
  }

  /// Sets the slot's next use after operator `i`.
  void use_next(int32_t s, int32_t i) {
    place(s).next_use = next_use_after(trace_, slot(s), i);
    place(s).priority = EvictionPriority::by_use;
  }

  void prefetch() {
    for (; next_page_in_ < actions_->page_ins.size(); ++next_page_in_) {
      const Actions::PageIn& in = actions_->page_ins[next_page_in_];
      if (in.trigger > index_) return;
      Place& p = place(in.slot);
      if (p.resident || p.incoming || in.use <= index_ || !alive(in.slot)) continue;
      reap();
      while (!fits(slot(in.slot).bytes)) {
        int32_t victim = choose_victim(next_use_after(trace_, slot(in.slot), index_), /*clean_only=*/true);
        if (victim < 0) return;
        drop(victim);
      }
      begin_page_in(in.slot);
    }
  }

  // --- the pager's rules ---

  bool fits(int64_t bytes) const { return held_ + unpaged_ + bytes <= budget_; }

  void make_room(int64_t bytes) {
    while (!fits(bytes)) {
      reap();
      if (fits(bytes)) return;
      int32_t victim = choose_victim(-1, /*clean_only=*/false);
      if (victim < 0) {
        if (make_progress()) continue;
        if (operator_ && !std::exchange(copies_only_, true)) continue;
        result_.feasible = false;
        return;
      }
      if (!place(victim).clean && !place(victim).outgoing) begin_page_out(victim);
      if (!place(victim).clean) {
        if (time_.copies_take_time()) begin_another(victim);
        time_.wait_for_copy(place(victim).copy_done);
      }
      settle(victim);
      drop(victim);
    }
  }

  /// Waits for a copy that frees bytes, or for a page that was fetched too early and can then leave again. Returns
  /// false when there is none.
  bool make_progress() {
    if (!lingering_.empty()) {
      time_.wait_for_copy(lingering_.front().first);
      return true;
    }
    for (size_t s = 0; s < places_.size(); ++s)
      if (places_[s].incoming && !leased(s)) {
        finish_page_in(s);
        return true;
      }
    return false;
  }

  void finish_page_in(int32_t s) {
    Place& p = place(s);
    time_.wait_for_copy(p.copy_done);
    p.incoming = false;
    p.priority = EvictionPriority::by_use;
    p.resident = p.clean = true;
    list(s);
  }

  /// Adds a slot to those that are resident. Their order is that in which they came.
  void list(int32_t s) {
    place(s).listed = std::ssize(resident_);
    resident_.push_back(s);
  }

  /// Takes a slot out of them. Places of those that went are closed up now and then.
  void unlist(int32_t s) {
    const int32_t at = std::exchange(place(s).listed, -1);
    if (at < 0) return;
    resident_[at] = kGone;
    if (++gone_ * 2 < std::ssize(resident_)) return;
    std::erase(resident_, kGone);
    gone_ = 0;
    for (size_t i = 0; i < resident_.size(); ++i) place(resident_[i]).listed = static_cast<int32_t>(i);
  }

  /// Begins to page out one more slot while the first one's copy is waited for.
  void begin_another(int32_t first) {
    place(first).resident = false;
    int32_t next = choose_victim(-1, /*clean_only=*/false);
    place(first).resident = true;
    if (next >= 0 && !place(next).clean && !place(next).outgoing) begin_page_out(next);
  }

  int32_t choose_victim(int64_t used_after, bool clean_only) {
    VictimSearch<int32_t> search(order_, {used_after, clean_only}, -1);
    for (int32_t s : resident_) {
      if (s == kGone || !place(s).resident || leased(s)) continue;
      settle(s);
      search.consider(s, candidate(s));
    }
    return search.victim();
  }

  EvictionCandidate candidate(int32_t s) {
    const Place& p = place(s);
    return {.charged_bytes = slot(s).bytes,
            .next_use = p.next_use,
            .last_use = p.last_use,
            .priority = p.priority,
            .bias = bias_ ? (*bias_)[s] : EvictionBias::neutral,
            .is_clean = p.clean,
            .is_paging_out = p.outgoing};
  }

  void begin_page_out(int32_t s) {
    Place& p = place(s);
    p.outgoing = true;
    p.copy_done = time_.copy_out(slot(s).bytes, on_disk(s));
    result_.bytes_out += slot(s).bytes;
    copied_[s] = true;
  }

  void begin_page_in(int32_t s) {
    Place& p = place(s);
    p.incoming = true;
    held_ += slot(s).bytes;
    note_peak(held_ + unpaged_);  // a page fetched ahead may have to leave again before the next operator
    p.copy_done = time_.copy_in(slot(s).bytes, on_disk(s));
    result_.bytes_in += slot(s).bytes;
  }

  /// True when the absence that the slot begins now, or that it is in, passes the disk.
  bool on_disk(int32_t s) const {
    if (!on_disk_ || on_disk_->empty()) return false;
    const int64_t use = next_use_after(trace_, slot(s), operator_ ? index_ - 1 : index_);
    return on_disk_->count({s, static_cast<int32_t>(use % std::ssize(trace_.operators))}) > 0;
  }

  void demand(int32_t s) {
    result_.demanded.push_back({s, index_ - 1, index_});
    begin_page_in(s);
  }

  /// Uses a slot window by window. The slot comes in, or is born resident, where room for it costs no slot that is used
  /// before it is used again. Otherwise its windows pass over the link while the operator waits.
  void stream(int32_t s) {
    Place& p = place(s);
    const bool born = slot(s).birth == index_;
    if (p.incoming) finish_page_in(s);
    if (!p.resident && admit(s, born)) {
      if (born) return arrive(s);
      demand(s);
      finish_page_in(s);
    }
    if (p.resident) {
      if (writes(s, index_)) make_dirty(s);
      return;
    }
    if (!born || !slot(s).born_streamed) {
      time_.wait_for_copy(time_.copy_in(slot(s).bytes, /*passes_disk=*/false));
      result_.bytes_in += slot(s).bytes;
    }
    if (writes(s, index_)) {
      time_.wait_for_copy(time_.copy_out(slot(s).bytes, /*passes_disk=*/false));
      result_.bytes_out += slot(s).bytes;
    }
  }

  bool admit(int32_t s, bool born) {
    if (born && !slot(s).born_streamed) return true;  // an argument that is first seen here
    const bool fetch = fetch_streamed_ && !born;
    const int64_t next = fetch ? index_ + 1 : next_use_after(trace_, slot(s), index_);
    if (next == kNextUseUnknown && !born) return false;
    const int64_t need = slot(s).bytes + operator_->own_bytes;
    while (!fits(need)) {
      reap();
      if (fits(need)) break;
      int32_t victim = choose_victim(next, /*clean_only=*/false);
      if (victim < 0) return false;
      if (!place(victim).clean && !place(victim).outgoing) begin_page_out(victim);
      if (!place(victim).clean) time_.wait_for_copy(place(victim).copy_done);
      settle(victim);
      drop(victim);
    }
    return true;
  }

  void bring_in(int32_t s) {
    Place& p = place(s);
    if (p.resident || slot(s).birth == index_) {
      if (!p.resident) arrive(s);  // an argument that is first seen here
      return;
    }
    if (!p.incoming) {
      make_room(slot(s).bytes);
      if (!result_.feasible) return;
      demand(s);
    }
    finish_page_in(s);
  }

  void make_dirty(int32_t s) {
    Place& p = place(s);
    if (p.outgoing) time_.wait_for_copy(p.copy_done);
    p.outgoing = p.clean = false;
  }

  void settle(int32_t s) {
    Place& p = place(s);
    if (!p.outgoing || p.copy_done > time_.now()) return;
    p.outgoing = false;
    p.clean = true;
  }

  void drop(int32_t s) {
    Place& p = place(s);
    result_.leaves.push_back({s, std::max(index_, 0), next_use_after(trace_, slot(s), index_), copied_[s]});
    copied_[s] = false;
    p.resident = false;
    held_ -= slot(s).bytes;
    unlist(s);
  }

  void arrive(int32_t s) {
    Place& p = place(s);
    if (p.resident) return;
    forget(p);
    p.resident = true;
    copied_[s] = false;
    held_ += slot(s).bytes;
    list(s);
  }

  void die(int32_t s) {
    Place& p = place(s);
    if (p.resident || p.incoming) {
      if ((p.outgoing || p.incoming) && p.copy_done > time_.now())
        lingering_.emplace_back(p.copy_done, slot(s).bytes);
      else
        held_ -= slot(s).bytes;
    }
    unlist(s);
    forget(p);
  }

  /// Makes a place that of a slot that is nowhere. The operator under way keeps its lease.
  static void forget(Place& p) { p = {.leased_by = p.leased_by, .streamed_by = p.streamed_by}; }

  void reap() {
    std::erase_if(lingering_, [&](auto& l) {
      if (l.first > time_.now()) return false;
      held_ -= l.second;
      return true;
    });
  }

  /// Prepares slots for the next step. A slot that outlives the step is found again by the next one. A slot that was
  /// born in it, or died in it, is as it was.
  void settle_between_steps() {
    for (size_t i = 0; i < places_.size(); ++i) {
      const int32_t s = i;
      if (slot(s).birth != kBeforeStep)
        die(s);
      else if (slot(s).death != kOutlivesStep)
        arrive(s);
    }
  }

  void note_peak(int64_t bytes) { peak_bytes_ = std::max(peak_bytes_, bytes); }

  Place& place(int32_t s) { return places_[s]; }
  const Slot& slot(int32_t s) const { return trace_.slots[s]; }
  bool leased(int32_t s) const {
    const Place& p = places_[s];
    return operator_ && (p.leased_by == index_ || (!copies_only_ && p.streamed_by == index_));
  }
  bool writes(int32_t s, int32_t i) const {
    return std::binary_search(slot(s).writes.begin(), slot(s).writes.end(), i);
  }
  bool alive(int32_t s) const {
    const Slot& x = slot(s);
    return x.birth <= index_ && (x.death == kOutlivesStep || x.death > index_);
  }

  const StepTrace& trace_;
  const int64_t budget_;
  const EvictionOrder order_;
  SimulatedTime time_;
  const Actions* actions_;
  const std::vector<EvictionBias>* bias_;
  const std::vector<std::vector<int32_t>>* sent_after_;
  const AbsenceSet* on_disk_;
  const bool fetch_streamed_;
  std::vector<Place> places_;
  std::vector<std::vector<int32_t>> deaths_;
  std::vector<int32_t> resident_;                      // with kGone where a slot left
  int64_t gone_ = 0;                                   // the number of those
  std::vector<std::pair<double, int64_t>> lingering_;  // slots that died while copied: end of the copy, bytes
  std::vector<bool> copied_;                           // by slot
  const OperatorRecord* operator_ = nullptr;           // the operator that runs: its slots stay
  bool copies_only_ = false;                           // except its streamed slots, when nothing else can go
  int32_t index_ = -1;
  size_t next_page_in_ = 0;
  size_t next_message_ = 0;
  int64_t held_ = 0;
  int64_t unpaged_ = 0;
  int64_t peak_bytes_ = 0;
  Simulated result_;
};

}  // namespace

double loss_beside_a_thread(int ranks_of_host, int threads_of_rank, int cores) {
  return ranks_of_host * threads_of_rank < cores ? 0 : 1.0 / std::min(threads_of_rank, cores);
}

Simulated simulate(const StepTrace& trace, const SimulationInputs& inputs) {
  return Simulation(trace, inputs).run();
}

}  // namespace spillway::swap
