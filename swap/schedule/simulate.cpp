#include <algorithm>
#include <utility>

#include "swap/schedule/simulated_pager.h"
#include "swap/schedule/simulated_time.h"
#include "swap/schedule/simulation.h"

namespace spillway::swap {
namespace {

/// Two equal steps, of which the second counts.
class Simulation {
 public:
  Simulation(const StepTrace& trace, const SimulationInputs& inputs)
      : trace_(trace),
        inputs_(inputs),
        time_(inputs.rates),
        pager_(trace, inputs, time_, result_),
        deaths_(trace.operators.size()) {
    for (size_t s = 0; s < trace.slots.size(); ++s)
      if (trace.slots[s].death >= 0) deaths_[trace.slots[s].death].push_back(s);
  }

  Simulated run() {
    run_step();
    reset_slots();
    run_step();
    result_.peak_bytes = pager_.memory().peak_bytes();
    return std::move(result_);
  }

 private:
  void run_step() {
    result_ = {};
    time_.begin_step();
    pager_.begin_step();
    next_page_in_ = next_message_ = 0;
    prefetch(kBeforeStep);
    send_messages(kBeforeStep);
    for (size_t i = 0; i < trace_.operators.size() && result_.feasible; ++i) run_operator(i);
    time_.wait_for_messages(std::ssize(trace_.operators));
    time_.pass(trace_.tail_seconds);
    result_.seconds = time_.since_begin();
    result_.exposed_seconds = time_.copies_waited();
    result_.message_seconds = time_.messages_waited();
  }

  void run_operator(int32_t i) {
    const OperatorRecord& op = trace_.operators[i];
    time_.wait_for_messages(i);
    pager_.lease(i);
    pager_.make_room(op.own_bytes);
    for (int32_t slot : op.streamed) pager_.stream(slot);
    result_.resident_bytes.push_back(pager_.note_operator_bytes());
    time_.compute(op.host_seconds + op.seconds);
    for (int32_t slot : op.births)
      if (!trace_.slots[slot].born_streamed) pager_.add(slot);
    for (const auto* used : {&op.touched, &op.streamed, &op.births})
      for (int32_t slot : *used) pager_.note_use(slot);
    for (int32_t slot : deaths_[i]) pager_.destroy(slot);
    pager_.unlease();
    result_.ends.push_back(time_.since_begin());
    send_messages(i);
    begin_page_outs(i);
    prefetch(i);
    evict_after(i);
  }

  /// Hands over the messages that follow operator `i`.
  void send_messages(int32_t i) {
    for (; next_message_ < trace_.messages.size() && trace_.messages[next_message_].after <= i; ++next_message_)
      time_.send(trace_.messages[next_message_]);
  }

  /// Follows the schedule's page-outs and releases after operator `i`.
  void begin_page_outs(int32_t i) {
    if (!inputs_.actions) return;
    for (int32_t slot : inputs_.actions->page_outs_after[i])
      if (pager_.is_dirty(slot)) pager_.page_out(slot);
    for (int32_t slot : inputs_.actions->releases_after[i])
      pager_.set_priority(slot, pager_.on_device(slot) ? EvictionPriority::first : EvictionPriority::by_use);
  }

  /// Issues the schedule's page-ins up to operator `i`, as far as there is room.
  void prefetch(int32_t i) {
    if (!inputs_.actions) return;
    for (; next_page_in_ < inputs_.actions->page_ins.size(); ++next_page_in_) {
      const Actions::PageIn& in = inputs_.actions->page_ins[next_page_in_];
      if (in.trigger > i) return;
      if (in.use > i && is_alive_after(in.slot, i) && !pager_.prefetch(in.slot)) return;
    }
  }

  /// Evicts the slots that leave after operator `i`, although nothing needs their room yet, before the next operator.
  void evict_after(int32_t i) {
    if (!inputs_.evictions_after || i + 1 == std::ssize(trace_.operators)) return;
    pager_.move_to_next_operator();
    for (int32_t slot : (*inputs_.evictions_after)[i]) pager_.evict(slot);
  }

  bool is_alive_after(int32_t slot, int32_t i) const {
    const int32_t death = trace_.slots[slot].death;
    return trace_.slots[slot].birth <= i && (death == kOutlivesStep || death > i);
  }

  /// Prepares slots for the next step. A slot that outlives the step is found again by the next one. A slot that was
  /// born in it, or died in it, is as it was.
  void reset_slots() {
    for (size_t s = 0; s < trace_.slots.size(); ++s) {
      const Slot& slot = trace_.slots[s];
      if (slot.birth != kBeforeStep)
        pager_.destroy(s);
      else if (slot.death != kOutlivesStep)
        pager_.add(s);
    }
  }

  const StepTrace& trace_;
  const SimulationInputs& inputs_;
  Simulated result_;
  SimulatedTime time_;
  SimulatedPager pager_;
  std::vector<std::vector<int32_t>> deaths_;  // by operator
  size_t next_page_in_ = 0;
  size_t next_message_ = 0;
};

}  // namespace

Simulated simulate(const StepTrace& trace, const SimulationInputs& inputs) {
  return Simulation(trace, inputs).run();
}

}  // namespace spillway::swap
