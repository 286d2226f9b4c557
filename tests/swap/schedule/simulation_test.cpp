// Tests of the simulation against a pager that takes the same steps.
#include "swap/schedule/simulation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "core/error.h"
#include "swap/conductor/conductor.h"
#include "tests/support/buffers.h"
#include "tests/support/copies.h"

namespace spillway {
using namespace swap;
namespace {

using testing::Buffer;

/// A timeline that copies at once, and reports the time that a link of this rate takes.
class InstantTimeline final : public testing::RunwiseTimeline {
 public:
  explicit InstantTimeline(double bytes_per_second) : rate_(bytes_per_second) {}
  Ticket copy(void* destination, const void* source, int64_t bytes) override {
    bytes_ += bytes;
    return real_.copy(destination, source, bytes);
  }
  CopyTotals totals() const override { return {bytes_, static_cast<double>(bytes_) / rate_}; }

 private:
  testing::SameThreadTimeline real_;
  const double rate_;
  int64_t bytes_ = 0;
};

/// A pager on which the steps of a trace run. Buffers stand for its slots.
struct Machine {
  Machine(const StepTrace& steps, int64_t budget_bytes, int64_t small_bytes, double rate)
      : trace(steps), ledger("test", budget_bytes), out(rate), in(rate), pager(memory, host, out, in, small_bytes) {
    memory.set_reclaimer(&pager);
    slots.resize(trace.slots.size());
    for (size_t s = 0; s < slots.size(); ++s)
      if (trace.slots[s].birth == kBeforeStep) slots[s] = make(s);
  }
  ~Machine() {
    slots.clear();
    memory.set_reclaimer(nullptr);
  }
  static int64_t bytes_of(const Slot& slot) { return slot.bytes - DeviceMemory::charge_of(0); }
  std::unique_ptr<Buffer> make(size_t s) {
    return std::make_unique<Buffer>(memory, pager, bytes_of(trace.slots[s]), static_cast<unsigned char>(s));
  }
  std::vector<PageUse> uses_of(size_t i, bool with_next_use) {
    std::vector<PageUse> uses;
    const auto index = static_cast<int32_t>(i);
    for (int32_t s : trace.operators[i].touched) {
      const Slot& slot = trace.slots[static_cast<size_t>(s)];
      const bool write = std::binary_search(slot.writes.begin(), slot.writes.end(), index);
      uses.push_back({slots[static_cast<size_t>(s)]->page(), write,
                      with_next_use ? next_use_after(trace, slot, index) : kNextUseKept});
    }
    return uses;
  }
  /// Runs the operator. Returns the slots that it makes, and frees its scratch.
  std::vector<Birth> compute(size_t i) {
    int64_t scratch = trace.operators[i].own_bytes;
    for (int32_t s : trace.operators[i].births) scratch -= trace.slots[static_cast<size_t>(s)].bytes;
    Block* block = scratch > 0 ? memory.allocate(scratch - DeviceMemory::charge_of(0), Category::workspace) : nullptr;
    std::vector<Birth> births;
    for (int32_t s : trace.operators[i].births) {
      slots[static_cast<size_t>(s)] = make(static_cast<size_t>(s));
      births.push_back({slots[static_cast<size_t>(s)]->page(), kOutputPosition + s});
    }
    if (block) memory.release(block);
    return births;
  }
  void let_die(size_t i) {
    for (size_t s = 0; s < slots.size(); ++s)
      if (trace.slots[s].death == static_cast<int32_t>(i)) slots[s].reset();
  }

  const StepTrace& trace;
  Arena arena{1 << 28};
  Ledger ledger;
  DeviceMemory memory{arena, ledger};
  HostSlab host{1 << 28};
  InstantTimeline out, in;
  Pager pager;
  std::vector<std::unique_ptr<Buffer>> slots;
};

/// Runs a conductor's step, in which operators take the seconds of the trace.
void follow(Machine& machine, Conductor& conductor) {
  conductor.begin_step("step");
  for (size_t i = 0; i < machine.trace.operators.size(); ++i) {
    std::vector<PageUse> uses = machine.uses_of(i, /*with_next_use=*/false);
    machine.pager.lease(uses, conductor.user());
    const OperatorRecord& op = machine.trace.operators[i];
    conductor.begin_operator({&op, "test::operate", op.replayable}, uses, {}, {});
    const std::vector<Birth> births = machine.compute(i);
    conductor.end_operator(op.seconds, op.own_bytes, births);
    machine.pager.unlease(uses);
    machine.let_die(i);
    conductor.issue_copies();
  }
  conductor.end_step();
}

TEST(SimulationTest, WhatIsSentAwayAheadLetsAnotherComeBackInTime) {
  // The weight (slot 0) and the activation (slot 1) do not fit beside slot 2 together. The activation leaves for the
  // weight. Once the weight has been used, it leaves for the activation, which then comes back during operator 3.
  constexpr int64_t kUnit = 64 << 10;
  StepTrace trace;
  trace.slots = {{.bytes = 3, .uses = {2}},
                 {.bytes = 3, .birth = 0, .born_as_output = true, .death = 4, .uses = {0, 4}, .writes = {0}},
                 {.bytes = 5, .birth = 1, .born_as_output = true, .death = 3, .uses = {1, 2, 3}, .writes = {1}}};
  for (Slot& slot : trace.slots) slot.bytes *= kUnit;
  trace.operators.resize(5);
  for (OperatorRecord& op : trace.operators) op.seconds = 4;
  trace.operators[0].own_bytes = 3 * kUnit, trace.operators[0].births = {1};
  trace.operators[1].own_bytes = 5 * kUnit, trace.operators[1].births = {2};
  trace.operators[2].own_bytes = 2 * kUnit, trace.operators[2].touched = {2, 0};
  trace.operators[3].own_bytes = 2 * kUnit, trace.operators[3].touched = {2};
  trace.operators[4].touched = {1};
  Machine machine(trace, 10 * kUnit, 0, kUnit);
  Conductor conductor(machine.pager, {.budget_bytes = 10 * kUnit, .rates = {kUnit, kUnit, 0}, .replay = false}, true,
                      machine.pager.table().add_user());
  for (int i = 0; i < 3; ++i) follow(machine, conductor);
  const PagerStats before = machine.pager.stats();
  follow(machine, conductor);
  const PagerStats after = machine.pager.stats();
  EXPECT_EQ(conductor.deviations(), 0);
  EXPECT_EQ(after.page_ins - before.page_ins, 2);
  EXPECT_EQ(after.demand_page_ins, before.demand_page_ins);
}

/// A source of recipes that need no input, and fail as often as they are told to.
struct FailingBook final : RecipeSource {
  struct Again final : ReplayRecipe {
    Again(FailingBook& from, int64_t size) : book(from), bytes(size) {}
    const std::vector<Input>& inputs() const override { return none; }
    uint64_t write_epoch() const override { return 0; }  // only its birth wrote its page
    Block* run(Pager& pager) override {
      if (book.failures > 0) {
        --book.failures;
        throw DiskError("an input cannot be had back");
      }
      return pager.device().allocate(bytes, Category::other);
    }
    FailingBook& book;
    const int64_t bytes;
    const std::vector<Input> none;
  };
  explicit FailingBook(int64_t size) : bytes(size) {}
  void clear() noexcept override {}
  std::unique_ptr<ReplayRecipe> take(int32_t) override { return std::make_unique<Again>(*this, bytes); }
  const int64_t bytes;
  int failures = 0;
};

TEST(ConductorTest, AReplayAheadThatFailsIsNoErrorOfTheOperatorBeforeIt) {
  // Slot 0 is cheap to make again while slot 1 comes back, which takes long.
  constexpr int64_t kUnit = 64 << 10;
  StepTrace trace;
  trace.slots = {{.birth = 0, .born_as_output = true, .death = 4, .uses = {0, 4}, .writes = {0}},
                 {.birth = 1, .born_as_output = true, .death = 4, .uses = {1, 3, 4}, .writes = {1}}};
  for (Slot& slot : trace.slots) slot.bytes = 5 * kUnit;
  trace.operators.resize(5);
  for (OperatorRecord& op : trace.operators) op.seconds = 1;
  trace.operators[0].own_bytes = 5 * kUnit, trace.operators[0].births = {0}, trace.operators[0].replayable = true;
  trace.operators[1].own_bytes = 5 * kUnit, trace.operators[1].births = {1};
  trace.operators[2].own_bytes = 8 * kUnit;
  trace.operators[3].touched = {1};
  trace.operators[4].touched = {0, 1};
  Machine machine(trace, 11 * kUnit, 0, kUnit);
  FailingBook book(Machine::bytes_of(trace.slots[0]));
  Conductor conductor(machine.pager, {.budget_bytes = 11 * kUnit, .rates = {kUnit, kUnit, 0}}, true,
                      machine.pager.table().add_user(), &book);
  for (int i = 0; i < 3; ++i) follow(machine, conductor);
  const std::vector<Replay>& replays = conductor.schedule("step")->replays;
  ASSERT_EQ(replays.size(), 1u);
  ASSERT_LT(replays[0].before, replays[0].use);
  const int64_t made = machine.pager.stats().replays;
  book.failures = 1;
  EXPECT_NO_THROW(follow(machine, conductor));
  EXPECT_EQ(book.failures, 0);
  EXPECT_EQ(machine.pager.stats().replays, made + 1);
}

/// Returns a step whose operators use one slot each, so that no two uses are at the same time. Slots have all sizes.
StepTrace random_trace(std::mt19937& random, int64_t unit) {
  StepTrace trace;
  const int32_t slots = 4 + static_cast<int32_t>(random() % 8);
  for (int32_t s = 0; s < slots; ++s) {
    Slot slot;
    slot.bytes = unit * (1 + static_cast<int64_t>(random() % 12));
    trace.slots.push_back(slot);
  }
  const int32_t operators = 3 * slots;
  for (int32_t i = 0; i < operators; ++i) {
    OperatorRecord op;
    op.seconds = 1e-3;
    const auto s = static_cast<int32_t>(i < slots ? static_cast<uint32_t>(i) : random() % static_cast<uint32_t>(slots));
    Slot& slot = trace.slots[static_cast<size_t>(s)];
    if (i < slots && random() % 2) {
      slot.birth = i;
      slot.born_as_output = true;
      slot.writes = {i};
      op.births = {s};
      op.own_bytes = slot.bytes;
    } else {
      op.touched = {s};
      op.leased_bytes = slot.bytes;
      if (random() % 3 == 0) slot.writes.push_back(i);
    }
    slot.uses.push_back(i);
    trace.operators.push_back(op);
  }
  for (Slot& slot : trace.slots)
    if (slot.birth != kBeforeStep)
      slot.death = std::min(slot.uses.back() + static_cast<int32_t>(random() % 4), operators - 1);
  return trace;
}

TEST(SimulationTest, EvictsWhatThePagerEvicts) {
  constexpr int64_t kSmall = 64 << 10;
  const int64_t small_charge = DeviceMemory::charge_of(kSmall);
  std::mt19937 random(3);
  const LinkRates quick{1e29, 1e29, 0};
  int64_t compared = 0;
  for (int round = 0; round < 300; ++round) {
    const StepTrace trace = random_trace(random, kSmall / 4);
    int64_t before = 0;  // bytes before the step, which a simulation takes to be resident
    for (const Slot& slot : trace.slots) before += slot.birth == kBeforeStep ? slot.bytes : 0;
    const int64_t budget = std::max(before, trace.floor_bytes()) + kSmall * static_cast<int64_t>(random() % 4);
    const Simulated simulated = simulate(trace, {.budget_bytes = budget, .small_bytes = small_charge, .rates = &quick});
    ASSERT_TRUE(simulated.feasible);
    std::map<int32_t, std::set<int32_t>> expected, found;
    for (const Eviction& eviction : simulated.evictions) expected[eviction.at].insert(eviction.slot);

    Machine machine(trace, budget, kSmall, 1e29);
    for (int step = 0; step < 2; ++step) {
      for (size_t s = 0; s < trace.slots.size(); ++s)
        if (machine.slots[s])
          machine.pager.table().set_next_use(*machine.slots[s]->page(), next_use_after(trace, trace.slots[s], -1));
      found.clear();
      for (size_t i = 0; i < trace.operators.size(); ++i) {
        std::vector<bool> present;
        for (const auto& slot : machine.slots) present.push_back(slot && slot->present());
        const std::vector<PageUse> uses = machine.uses_of(i, /*with_next_use=*/true);
        machine.pager.lease(uses);
        const std::vector<Birth> births = machine.compute(i);
        for (int32_t s : trace.operators[i].births)
          machine.pager.table().set_next_use(
              *machine.slots[static_cast<size_t>(s)]->page(),
              next_use_after(trace, trace.slots[static_cast<size_t>(s)], static_cast<int64_t>(i)));
        machine.pager.unlease(uses);
        for (size_t s = 0; s < present.size(); ++s)
          if (present[s] && !machine.slots[s]->present())
            found[static_cast<int32_t>(i)].insert(static_cast<int32_t>(s));
        machine.let_die(i);
      }
    }
    EXPECT_EQ(found, expected) << "round " << round;
    compared += static_cast<int64_t>(simulated.evictions.size());
    if (HasFailure()) return;
  }
  EXPECT_GT(compared, 100);
}

}  // namespace
}  // namespace spillway
