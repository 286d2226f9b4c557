#include "swap/schedule/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "swap/schedule/host_overflow.h"
#include "swap/schedule/lower_bound.h"

namespace spillway {
using namespace swap;
namespace {

/// Returns a step like training. Its n activations are made going forward and used again going backward. Weights are
/// used twice.
StepTrace forward_and_backward(int n, int64_t bytes) {
  StepTrace trace;
  auto add_operator = [&] {
    OperatorRecord op;
    op.seconds = 0.01;
    op.own_bytes = bytes;
    trace.operators.push_back(op);
    return static_cast<int32_t>(trace.operators.size()) - 1;
  };
  for (int i = 0; i < n; ++i) {
    Slot weight;
    weight.bytes = bytes / 10;
    trace.slots.push_back(weight);
  }
  for (int i = 0; i < n; ++i) {
    int32_t op = add_operator();
    Slot activation;
    activation.bytes = bytes;
    activation.birth = op;
    activation.born_as_output = true;
    activation.uses = activation.writes = {op};
    trace.slots.push_back(activation);
    trace.operators.back().births = {n + i};
    trace.operators.back().touched = {i};
    trace.slots[static_cast<size_t>(i)].uses.push_back(op);
  }
  for (int i = n - 1; i >= 0; --i) {
    int32_t op = add_operator();
    const int activation = n + i;
    trace.operators.back().touched = {i, activation};
    trace.operators.back().own_bytes = bytes / 10;
    trace.operators.back().leased_bytes = bytes + bytes / 10;
    for (int s : {i, activation}) trace.slots[static_cast<size_t>(s)].uses.push_back(op);
    trace.slots[static_cast<size_t>(activation)].death = op;
  }
  return trace;
}

TEST(StepTraceTest, CountsWhatIsAliveAndTheNeediestOperator) {
  StepTrace trace = forward_and_backward(4, 1000);
  std::vector<int64_t> live = live_bytes(trace);
  EXPECT_EQ(live[0], 400 + 1000);         // weights, and the first activation being made
  EXPECT_EQ(live[3], 400 + 3000 + 1000);  // with the last activation
  EXPECT_EQ(live[4], 400 + 4000 + 100);   // with the first backward operator
  EXPECT_EQ(live[7], 400 + 1000 + 100);
  EXPECT_EQ(trace.unconstrained_peak_bytes(), 4500);
  size_t index = 0;
  EXPECT_EQ(trace.floor_bytes(&index), 1000 + 100 + 100);
  EXPECT_GE(index, 4u);
}

TEST(ScheduleTest, DoesNothingWhenEverythingFits) {
  StepTrace trace = forward_and_backward(8, 1000);
  for (int64_t budget : {kUnlimitedBytes, int64_t{8 * 1000 + 800 + 1000}, trace.unconstrained_peak_bytes()}) {
    Schedule schedule = make_schedule(trace, {.budget_bytes = budget, .slack_bytes = budget / 100});
    EXPECT_EQ(schedule.bytes_in, 0);
    EXPECT_EQ(schedule.bytes_out, 0);
    EXPECT_TRUE(schedule.actions.page_ins.empty());
  }
}

TEST(ScheduleTest, SendsAwayOnlyWhatDoesNotFitAndTheFirstMadeFirst) {
  StepTrace trace = forward_and_backward(8, 1000);
  Schedule schedule = make_schedule(trace, {.budget_bytes = 6 * 1000});
  EXPECT_GT(schedule.bytes_out, 0);
  EXPECT_LE(schedule.bytes_out, 4 * 1000 + 800);
  // Activation 0 (slot 8) is used last in backward. So it is the first to leave, right after the operator that made it.
  EXPECT_EQ(schedule.actions.page_outs_after[0], std::vector<int32_t>{8});
  for (const Actions::PageIn& in : schedule.actions.page_ins) EXPECT_LT(in.trigger, in.use);
}

TEST(ScheduleTest, BringsBackEarlyEnoughForASlowLinkWhereThereIsRoom) {
  StepTrace trace = forward_and_backward(8, 1000);
  auto lead = [&](double rate) {
    Schedule schedule = make_schedule(trace, {.budget_bytes = 6500, .rates = {.in_bytes_per_second = rate}});
    int32_t longest = 0;
    for (const Actions::PageIn& in : schedule.actions.page_ins) longest = std::max(longest, in.use - in.trigger);
    return longest;
  };
  EXPECT_EQ(lead(1e9), 2);  // the time of one operator suffices
  EXPECT_GT(lead(4e4), 2);  // a page takes 2.5 operators
}

TEST(HostOverflowTest, WhatIsNeededLastGoesToDiskWhereTooMuchIsAwayAtOnce) {
  StepTrace trace;
  trace.operators.resize(10);
  trace.slots = {{.bytes = 3}, {.bytes = 3}, {.bytes = 3}, {.bytes = 3}};
  const std::vector<Eviction> evictions = {
      {.slot = 0, .at = 1, .back_at = 9, .copied = true},   // beyond the end of the next slot's absence
      {.slot = 1, .at = 2, .back_at = 5, .copied = true},   // the host has room for these two
      {.slot = 2, .at = 4, .back_at = 7, .copied = true},   // but not for three: the first is needed last
      {.slot = 3, .at = 8, .back_at = 13, .copied = true},  // comes back in the next step, in operator 3
      {.slot = 1, .at = 6, .back_at = kNextUseUnknown, .copied = false}};
  EXPECT_EQ(overflow(trace, evictions, 6), (AbsenceSet{{0, 9}}));
  EXPECT_EQ(overflow(trace, evictions, 5), (AbsenceSet{{0, 9}, {1, 5}, {2, 7}})) << "one at a time, the soonest";
  EXPECT_EQ(overflow(trace, evictions, 2), (AbsenceSet{{0, 9}, {1, 5}, {2, 7}, {3, 3}}));
  EXPECT_TRUE(overflow(trace, evictions, 9).empty());
  EXPECT_TRUE(overflow(trace, evictions, kUnlimitedBytes).empty());
}

TEST(ScheduleTest, WhatTheHostHasNoRoomForIsFetchedEarlierAndChargedAtTheDisksRate) {
  const StepTrace trace = forward_and_backward(8, 1000);
  auto schedule = [&](int64_t host_bytes, int64_t budget) {
    return make_schedule(trace, {.budget_bytes = budget,
                                 .host_budget_bytes = host_bytes,
                                 .rates = {.out_bytes_per_second = 1e9,
                                           .in_bytes_per_second = 1e9,
                                           .to_disk_bytes_per_second = 4e4,
                                           .from_disk_bytes_per_second = 4e4}});
  };
  auto lead = [&](const Schedule& schedule) {
    int32_t longest = 0;
    for (const Actions::PageIn& in : schedule.actions.page_ins) longest = std::max(longest, in.use - in.trigger);
    return longest;
  };
  EXPECT_EQ(lead(schedule(kUnlimitedBytes, 6500)), 2);
  EXPECT_GT(lead(schedule(1000, 6500)), 2);  // a page takes 2.5 operators
  // Six pages are absent at once. The fewer of them the host holds, the longer the step.
  double before = 0;
  for (int64_t host_bytes : {kUnlimitedBytes, int64_t{4000}, int64_t{2000}, int64_t{0}}) {
    const double seconds = schedule(host_bytes, 2500).predicted_seconds;
    EXPECT_GT(seconds, before);
    before = seconds;
  }
}

TEST(ScheduleTest, CopiesNothingOutThatIsCleanFromTheLastStep) {
  // Weights are never written in this step: once out, they stay clean over steps.
  StepTrace trace = forward_and_backward(8, 1000);
  Schedule schedule = make_schedule(trace, {.budget_bytes = 2500});
  for (const auto& slots : schedule.actions.page_outs_after)
    for (int32_t slot : slots) EXPECT_GE(slot, 8);
}

TEST(ScheduleTest, SendsAwayWhatIsIdleSoThatAnotherCanComeBackInTime) {
  // The weight (slot 0) and the long-lived activation (slot 1) are never needed together with room for both. Yet
  // nothing forces the weight out. It would only block the activation's return during operator 3.
  StepTrace trace;
  trace.slots = {{.bytes = 2, .uses = {1, 2}},
                 {.bytes = 3, .birth = 0, .born_as_output = true, .death = 4, .uses = {0, 1, 4}, .writes = {0}},
                 {.bytes = 5, .birth = 1, .born_as_output = true, .death = 3, .uses = {1, 2, 3}, .writes = {1}}};
  trace.operators.resize(5);
  for (OperatorRecord& op : trace.operators) op.seconds = 4;
  trace.operators[0].own_bytes = 3, trace.operators[0].births = {1};
  trace.operators[1].own_bytes = 5, trace.operators[1].births = {2}, trace.operators[1].touched = {1, 0};
  trace.operators[2].own_bytes = 2, trace.operators[2].touched = {2, 0};
  trace.operators[3].own_bytes = 2, trace.operators[3].touched = {2};
  trace.operators[4].touched = {1};
  const Schedule schedule = make_schedule(trace, {.budget_bytes = 10, .rates = {1, 1, 0}});
  EXPECT_EQ(schedule.exposed_seconds, 0);
  EXPECT_EQ(schedule.predicted_seconds, 20);
  auto weight = [](const Actions::PageIn& in) { return in.slot == 0; };
  const auto& page_ins = schedule.actions.page_ins;
  EXPECT_EQ(std::count_if(page_ins.begin(), page_ins.end(), weight), 1);
}

TEST(ScheduleTest, EveryUseOfASlotThatLeftIsPrecededByItsReturn) {
  std::mt19937 random(11);
  for (int round = 0; round < 200; ++round) {
    StepTrace trace;
    const int32_t operators = 5 + static_cast<int32_t>(random() % 20);
    trace.operators.resize(static_cast<size_t>(operators));
    for (auto& op : trace.operators) op.seconds = 1e-3 * static_cast<double>(1 + random() % 5);
    const int32_t slots = 3 + static_cast<int32_t>(random() % 8);
    for (int32_t s = 0; s < slots; ++s) {
      Slot slot;
      slot.bytes = 1 + static_cast<int64_t>(random() % 100);
      for (int32_t i = 0; i < operators; ++i)
        if (random() % 4 == 0) slot.uses.push_back(i);
      if (!slot.uses.empty() && random() % 2) {
        slot.birth = slot.uses.front();
        slot.born_as_output = true;
        slot.writes = {slot.birth};
        slot.death = slot.uses.back();
      }
      for (int32_t i : slot.uses) {
        auto& op = trace.operators[static_cast<size_t>(i)];
        if (i == slot.birth) {
          op.births.push_back(s);
          op.own_bytes += slot.bytes;
        } else {
          op.touched.push_back(s);
          op.leased_bytes += slot.bytes;
        }
      }
      trace.slots.push_back(slot);
    }
    const int64_t budget = trace.floor_bytes() + static_cast<int64_t>(random() % 60);
    Schedule schedule = make_schedule(trace, {.budget_bytes = budget, .rates = {.in_bytes_per_second = 1e4}});
    for (const Actions::PageIn& in : schedule.actions.page_ins) {
      const Slot& slot = trace.slots[static_cast<size_t>(in.slot)];
      // Uses of slots that outlive this step are counted on into the next step.
      EXPECT_TRUE(std::binary_search(slot.uses.begin(), slot.uses.end(), in.use % operators)) << "round " << round;
      EXPECT_TRUE(in.use < operators || slot.birth == kBeforeStep) << "round " << round;
      EXPECT_GE(in.trigger, slot.birth) << "round " << round;
      EXPECT_LT(in.trigger, in.use) << "round " << round;
    }
    EXPECT_TRUE(std::is_sorted(schedule.actions.page_ins.begin(), schedule.actions.page_ins.end(),
                               [](auto& a, auto& b) { return a.trigger < b.trigger; }));
  }
}

/// Returns a step with two streamed slots, made one after another and read again, and a slot that is leased in between.
StepTrace streamed_step(int64_t bytes) {
  StepTrace trace;
  trace.slots.resize(3);
  trace.operators.resize(5);
  const std::vector<std::vector<int32_t>> uses{{0, 4}, {1, 3}, {2}};
  for (size_t s = 0; s < 3; ++s) {
    Slot& slot = trace.slots[s];
    slot.bytes = bytes;
    slot.uses = uses[s];
    slot.birth = s < 2 ? static_cast<int32_t>(s) : kBeforeStep;
    slot.born_streamed = s < 2;
    slot.death = s < 2 ? uses[s].back() : kOutlivesStep;
    if (s < 2) slot.writes = {slot.birth};
    for (int32_t i : uses[s]) {
      OperatorRecord& op = trace.operators[static_cast<size_t>(i)];
      (s < 2 ? op.streamed : op.touched).push_back(static_cast<int32_t>(s));
      if (s == 2) op.leased_bytes += bytes;
      if (i == slot.birth) op.births.push_back(static_cast<int32_t>(s));
    }
  }
  for (OperatorRecord& op : trace.operators) {
    op.seconds = 0.01;
    op.own_bytes = bytes / 10;
  }
  return trace;
}

TEST(ScheduleTest, PredictsThePeakOfTheSimulationNotTheBudget) {
  const StepTrace trace = forward_and_backward(8, 1000);
  for (const int64_t budget : {1850, 2050, 2950, 5050}) {
    SCOPED_TRACE(budget);
    const Schedule schedule = make_schedule(trace, {.budget_bytes = budget});
    const LinkRates rates;
    const Simulated on_demand = simulate(trace, {.budget_bytes = budget, .rates = &rates});
    EXPECT_LT(schedule.predicted_peak_bytes, budget) << "every sum of its slots is a multiple of 100";
    EXPECT_GE(schedule.predicted_peak_bytes, on_demand.peak_bytes);
    EXPECT_GE(schedule.predicted_peak_bytes,
              *std::max_element(schedule.resident_bytes.begin(), schedule.resident_bytes.end()));
  }
  EXPECT_EQ(make_schedule(trace, {.budget_bytes = 20'000}).predicted_peak_bytes, trace.unconstrained_peak_bytes());
  EXPECT_EQ(make_schedule(trace, {.budget_bytes = trace.floor_bytes() - 1}).predicted_peak_bytes, 0);
}

TEST(ScheduleTest, WhatIsOnlyStreamedNeedsNoRoomOfItsOwn) {
  const StepTrace trace = streamed_step(1000);
  EXPECT_EQ(trace.floor_bytes(), 1100);
  EXPECT_EQ(trace.unconstrained_peak_bytes(), 3100);
  const Schedule schedule = make_schedule(trace, {.budget_bytes = 1100, .replay = false});
  EXPECT_GT(schedule.predicted_seconds, 0);
  for (const Actions::PageIn& in : schedule.actions.page_ins) EXPECT_EQ(in.slot, 2);
  // Both slots are born on the host and read there. The slot that outlives the step is paged in before them and never
  // written.
  EXPECT_EQ(schedule.bytes_out, 2000);
  EXPECT_EQ(schedule.bytes_in, 2000);
}

TEST(ScheduleTest, BringsBackWhatIsStreamedWhereItsRoomIsNotNeededSooner) {
  const StepTrace trace = streamed_step(1000);
  // There is room for two slots. Slot 0, which is used last, waits on the host.
  const Schedule tight = make_schedule(trace, {.budget_bytes = 2100, .replay = false});
  EXPECT_EQ(tight.bytes_out, 1000);
  EXPECT_EQ(tight.bytes_in, 1000);
  EXPECT_GE(tight.predicted_seconds, bound_seconds(trace, 2100, {}));
  const Schedule wide = make_schedule(trace, {.budget_bytes = 3200, .replay = false});
  EXPECT_EQ(wide.bytes_out + wide.bytes_in, 0);
}

TEST(ScheduleTest, WhatIsStreamedLeavesWhenItsOperatorNeedsTheRoomForItself) {
  StepTrace trace = streamed_step(1000);
  trace.operators[3].own_bytes = 1500;  // it reads slot 1, which found room when it was made
  ASSERT_LE(trace.floor_bytes(), 2200);
  const Schedule schedule = make_schedule(trace, {.budget_bytes = 2200, .replay = false});
  EXPECT_GT(schedule.predicted_seconds, 0);
  EXPECT_LE(*std::max_element(schedule.resident_bytes.begin(), schedule.resident_bytes.end()), 2200);
}

TEST(ScheduleTest, WhatIsStreamedOnceMoreIsFetchedAheadWhereThatHidesTheCopy) {
  // Two of four slots fit. Each slot is streamed for the last time while the link idles behind long operators.
  StepTrace trace;
  trace.slots.resize(4);
  trace.operators.resize(8);
  for (int32_t s = 0; s < 4; ++s) {
    Slot& slot = trace.slots[static_cast<size_t>(s)];
    slot = {.bytes = 1000, .birth = s, .born_streamed = true, .death = 7 - s, .uses = {s, 7 - s}, .writes = {s}};
    for (int32_t i : slot.uses) trace.operators[static_cast<size_t>(i)].streamed = {s};
    trace.operators[static_cast<size_t>(s)].births = {s};
  }
  for (OperatorRecord& op : trace.operators) {
    op.seconds = 1;
    op.own_bytes = 10;
  }
  const LinkRates rates{2000, 2000, 0};
  const Schedule schedule = make_schedule(trace, {.budget_bytes = 2500, .rates = rates, .replay = false});
  EXPECT_FALSE(schedule.actions.page_ins.empty());
  EXPECT_LT(schedule.exposed_seconds, 1.0);  // 2 if two were born on the host and read there in windows
}

TEST(ScheduleTest, WhatWasMadeInWindowsCanBeMadeAgain) {
  StepTrace trace = streamed_step(1000);
  EXPECT_TRUE(replay_before(trace, 0, 4).operators.empty());
  trace.operators[0].replayable = true;
  const Replay replay = replay_before(trace, 0, 4);
  EXPECT_EQ(replay.operators, std::vector<int32_t>{0});
  const ReplayedTrace replayed = with_replays(trace, {&replay, 1});
  const OperatorRecord& again = replayed.trace.operators[4];
  EXPECT_EQ(again.own_bytes, 1100);
  EXPECT_EQ(replayed.trace.operators[5].streamed, again.births);
}

}  // namespace
}  // namespace spillway
