// The backend of torch.distributed without Python: random collectives and messages under way together, against an
// oracle.
#include "ddl/process_group/process_group.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "ddl/comm/thread_world.h"
#include "tests/support/ddl/delayed_transport.h"

namespace spillway::ddl {
namespace {

using Group = c10::intrusive_ptr<ProcessGroup>;
using Work = c10::intrusive_ptr<c10d::Work>;
using Tensors = std::vector<at::Tensor>;

/// Plays `body` on each rank over wires whose messages come late.
void run_groups(int ranks, unsigned seed, const std::function<void(const Group&)>& body,
                const ProcessGroupOptions& options = {.calibrate = false}) {
  std::vector<int> hosts(ranks);
  for (int rank = 0; rank < ranks; ++rank) hosts[rank] = rank % 2;
  ThreadWorld world(hosts);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      auto wire = std::make_unique<testing::DelayedTransport>(world.transport(rank), 97 * seed + rank);
      auto comm = std::make_shared<Communicator>(std::move(wire));
      body(c10::make_intrusive<ProcessGroup>(std::move(comm), options));
    });
  for (std::thread& thread : threads) thread.join();
}

/// Returns values that tell the rank that made them, and the call that they are for.
at::Tensor values(int rank, int call, int64_t count) {
  return at::arange(count, at::kLong) * 7 + rank * 1000 + call;
}

/// One call of the program that all ranks make, with what it must leave behind.
struct Pending {
  Work work;
  at::Tensor got, wanted;
};

class RandomProgram {
 public:
  RandomProgram(Group group, unsigned seed)
      : group_(std::move(group)),
        rank_(group_->getRank()),
        size_(group_->getSize()),
        common_(seed),
        own_(seed * 31 + static_cast<unsigned>(rank_)) {}

  /// Makes `calls` calls, the same on every rank, and checks what each leaves. Waits come at random times.
  void run(int calls) {
    for (int call = 0; call < calls; ++call) {
      make(call);
      if (own_() % 8 == 0) std::this_thread::sleep_for(std::chrono::microseconds(own_() % 2000));
      while (!pending_.empty() && own_() % 3 == 0) finish(own_() % pending_.size());
    }
    while (!pending_.empty()) finish(own_() % pending_.size());
  }
  /// Makes calls until one rank gives up, and checks what a dead group leaves: each call ends, with its values or with
  /// a CommError.
  int run_to_death(int calls, int victim, int at) {
    int failed = 0;
    for (int call = 0; call < calls; ++call) {
      if (rank_ == victim && call == at) group_->abort();
      make(call);
    }
    for (Pending& one : pending_) {
      try {
        one.work->wait();
      } catch (const CommError&) {
        ++failed;
        continue;
      }
      EXPECT_TRUE(one.got.equal(one.wanted));
    }
    return failed;
  }

 private:
  int64_t draw(int64_t below) { return static_cast<int64_t>(common_() % static_cast<uint64_t>(below)); }

  void finish(size_t i) {
    Pending& one = pending_[i];
    while (own_() % 2 == 0 && !one.work->isCompleted()) std::this_thread::yield();
    one.work->wait();
    EXPECT_TRUE(one.got.equal(one.wanted)) << "rank " << rank_ << " got " << one.got << " and not " << one.wanted;
    pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  void make(int call) {
    const int64_t count = draw(10) == 0 ? draw(200'000) : draw(300);
    switch (draw(7)) {
      case 0:
        return reduce(call, count);
      case 1:
        return broadcast(call, count, static_cast<int>(draw(size_)));
      case 2:
        return gather(call, count, draw(2) == 0);
      case 3:
        return scatter_sums(call, count);
      case 4:
        return exchange(call, count);
      default:
        return message(call, count, static_cast<int>(draw(size_)), static_cast<int>(draw(size_)),
                       static_cast<int>(draw(3)));
    }
  }

  void reduce(int call, int64_t count) {
    Tensors mine{values(rank_, call, count)};
    at::Tensor wanted = at::zeros({count}, at::kLong);
    for (int r = 0; r < size_; ++r) wanted += values(r, call, count);
    pending_.push_back({group_->allreduce(mine, {}), mine[0], wanted});
  }
  void broadcast(int call, int64_t count, int root) {
    Tensors mine{values(rank_, call, count)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    pending_.push_back({group_->broadcast(mine, options), mine[0], values(root, call, count)});
  }
  void gather(int call, int64_t count, bool even) {
    const auto count_of = [&](int r) { return even ? count : count + r; };
    int64_t all = 0;
    for (int r = 0; r < size_; ++r) all += count_of(r);
    // The outputs are views of one tensor, at offsets that are no multiples of anything.
    const at::Tensor got = at::zeros({all + 1}, at::kLong), wanted = at::zeros({all + 1}, at::kLong);
    std::vector<Tensors> outputs(1);
    for (int64_t r = 0, begin = 1; r < size_; begin += count_of(static_cast<int>(r)), ++r) {
      const int64_t length = count_of(static_cast<int>(r));
      outputs[0].push_back(got.narrow(0, begin, length));
      wanted.narrow(0, begin, length).copy_(values(static_cast<int>(r), call, length));
    }
    Tensors mine{values(rank_, call, count_of(rank_))};
    pending_.push_back({group_->allgather(outputs, mine, {}), got, wanted});
  }
  void scatter_sums(int call, int64_t count) {
    at::Tensor got = at::zeros({count}, at::kLong), mine = values(rank_, call, count * size_);
    at::Tensor wanted = at::zeros({count}, at::kLong);
    for (int r = 0; r < size_; ++r) wanted += values(r, call, count * size_).narrow(0, rank_ * count, count);
    pending_.push_back({group_->_reduce_scatter_base(got, mine, {}), got, wanted});
  }
  void exchange(int call, int64_t count) {
    Tensors to, from;
    const at::Tensor got = at::zeros({count * size_}, at::kLong), wanted = at::zeros({count * size_}, at::kLong);
    for (int r = 0; r < size_; ++r) {
      to.push_back(values(rank_, call + 100 * r, count));
      from.push_back(got.narrow(0, r * count, count));
      wanted.narrow(0, r * count, count).copy_(values(r, call + 100 * rank_, count));
    }
    pending_.push_back({group_->alltoall(from, to, {}), got, wanted});
  }
  void message(int call, int64_t count, int source, int target, int tag) {
    if (source == rank_ && source != target) {
      Tensors mine{values(rank_, call, count)};
      pending_.push_back({group_->send(mine, target, tag), mine[0], mine[0]});
    }
    if (target == rank_ && source != target) {
      Tensors got{at::zeros({count, 2}, at::kLong).select(1, 0)};  // not contiguous
      if (call % 2 == 0) got = {at::zeros({count}, at::kLong)};
      pending_.push_back({group_->recv(got, source, tag), got[0], values(source, call, count)});
    }
  }

  const Group group_;
  const int rank_, size_;
  std::mt19937 common_;  ///< draws alike on every rank
  std::mt19937 own_;
  std::vector<Pending> pending_;
};

TEST(ProcessGroupTest, RandomCollectivesAndMessagesTogetherLeaveTheOraclesValues) {
  for (unsigned seed = 1; seed <= 6; ++seed)
    run_groups(2 + static_cast<int>(seed % 3), seed, [&](const Group& group) {
      RandomProgram(group, seed).run(60);
      group->barrier({})->wait();
    });
}

TEST(ProcessGroupTest, WhenARankGivesUpEveryWorkEndsWithItsValuesOrAnError) {
  for (unsigned seed = 1; seed <= 5; ++seed)
    run_groups(3, seed, [&](const Group& group) {
      EXPECT_GT(RandomProgram(group, seed).run_to_death(40, static_cast<int>(seed % 3), 5 * static_cast<int>(seed)), 0);
    });
}

TEST(ProcessGroupTest, WhatIsHeldForACallIsDroppedWhenItHasEnded) {
  const auto held = std::make_shared<int>(0);
  ThreadWorld world({0});
  ProcessGroupOptions options{.calibrate = false};
  options.hold = [&](const at::Tensor&, bool) -> std::shared_ptr<void> { return held; };
  const auto group = c10::make_intrusive<ProcessGroup>(world.communicator(0), options);
  for (int i = 0; i < 5; ++i) {
    Tensors tensors{at::zeros({3})}, got{at::zeros({3})};
    group->allreduce(tensors, {})->wait();
    const Work arrives = group->recv(got, 0, 1);
    EXPECT_GT(held.use_count(), 1);
    group->send(tensors, 0, 1)->wait();
    arrives->wait();
  }
  group->shutdown();
  // A message's thread drops what it held right after those who wait have gone on.
  for (int tries = 0; held.use_count() > 1 && tries < 10'000; ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_EQ(held.use_count(), 1);
}

TEST(ProcessGroupTest, AMessageThatCannotBeHeldIsRefusedAndTheGroupLives) {
  ThreadWorld world({0});
  ProcessGroupOptions options{.calibrate = false};
  options.hold = [](const at::Tensor&, bool) -> std::shared_ptr<void> { throw std::runtime_error("no room"); };
  const auto group = c10::make_intrusive<ProcessGroup>(world.communicator(0), options);
  Tensors tensors{at::zeros({3})};
  EXPECT_THROW(group->allreduce(tensors, {}), std::runtime_error);
  EXPECT_THROW(group->send(tensors, 0, 1), std::runtime_error);
  EXPECT_THROW(group->recv(tensors, 0, 1), std::runtime_error);
  EXPECT_NO_THROW(group->barrier({})->wait());
}

TEST(ProcessGroupTest, TensorsOfInferenceModeAreFilledLikeAnyOther) {
  ThreadWorld world({0, 0});
  run_ranks(world, [&](Communicator& given) {
    const auto group = c10::make_intrusive<ProcessGroup>(given.duplicate(), ProcessGroupOptions{.calibrate = false});
    std::vector<Tensors> outputs(1);
    Tensors mine, column;
    {
      const c10::InferenceMode inference;
      mine = {at::full({3}, group->getRank(), at::kFloat)};
      outputs[0] = {at::zeros({3}), at::zeros({3})};
      column = {at::zeros({4, 2}).select(1, 0)};
    }
    const int other = 1 - group->getRank();
    const Work arrives = group->recv(column, other, 0);
    Tensors four{at::full({4}, group->getRank(), at::kFloat)};
    group->send(four, other, 0)->wait();
    arrives->wait();
    EXPECT_TRUE(column[0].equal(at::full({4}, other, column[0].options())));
    group->allgather(outputs, mine, {})->wait();
    EXPECT_TRUE(outputs[0][1].equal(at::full({3}, 1, at::kLong).to(at::kFloat)));
    group->allreduce(column, {})->wait();
    EXPECT_TRUE(column[0].equal(at::full({4}, 1, column[0].options())));
  });
}

TEST(ProcessGroupTest, CallsOfSeveralThreadsTakeTurns) {
  constexpr int kThreads = 4, kCalls = 300;
  std::atomic<unsigned> asked = 0;
  const auto calls = [](const Group& group) {
    for (int call = 0; call < kCalls; ++call) {
      Tensors mine{at::full({5}, 1, at::kLong)};
      group->allreduce(mine, {})->wait();
      EXPECT_TRUE(mine[0].equal(at::full({5}, 2, at::kLong)));
    }
  };
  run_groups(2, 1,
             [&](const Group& group) {
               std::vector<std::thread> threads;
               for (int i = 0; i < kThreads; ++i) threads.emplace_back([&] { calls(group); });
               for (std::thread& thread : threads) thread.join();
               EXPECT_EQ(group->getSequenceNumberForGroup(), kThreads * kCalls);
             },
             {.calibrate = false, .must_block = [&] { return asked++ % 3 == 0; }});
}

TEST(ProcessGroupTest, ADeadlineSetLaterEndsWaitsUnderWay) {
  std::promise<void> ended;
  run_groups(2, 1, [&](const Group& group) {
    if (group->getRank() == 1) return ended.get_future().wait();  // alive, but silent
    EXPECT_THROW(group->setTimeout(std::chrono::hours(25)), BadRequest);
    Tensors got{at::zeros({3})};
    const Work message = group->recv(got, 1, 0), barrier = group->barrier({});
    std::thread later([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      group->setTimeout(std::chrono::milliseconds(300));
    });
    for (const Work& work : {message, barrier}) {
      try {
        work->wait();
        ADD_FAILURE() << "ended without the other rank";
      } catch (const CommError& error) {
        EXPECT_NE(std::string(error.what()).find("within 0.3 s"), std::string::npos) << error.what();
      }
    }
    later.join();
    ended.set_value();
    EXPECT_EQ(group->getBackendOptions()->timeout, std::chrono::milliseconds(300));
  });
}

/// The host's memory, in which one allocation fails: the first of `bytes` after fail_once(bytes).
class MemoryThatFails final : public c10::Allocator {
 public:
  static MemoryThatFails& install() {
    static auto& memory = *new MemoryThatFails(*c10::GetCPUAllocator());
    static const bool once = (c10::SetCPUAllocator(&memory, /*priority=*/1), true);
    (void)once;
    return memory;
  }
  void fail_once(size_t bytes) { failing_ = bytes; }
  bool has_failed() const { return failing_ == 0; }

  at::DataPtr allocate(size_t bytes) override {
    if (size_t wanted = bytes; wanted > 0 && failing_.compare_exchange_strong(wanted, 0))
      throw std::runtime_error("no room for a copy");
    return real_.allocate(bytes);
  }
  at::DeleterFnPtr raw_deleter() const override { return real_.raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  explicit MemoryThatFails(c10::Allocator& real) : real_(real) {}

  c10::Allocator& real_;
  std::atomic<size_t> failing_ = 0;
};

/// Vectors whose copies have sizes that nothing else has.
constexpr int64_t kFirst = 3 * 10'007, kSecond = 3 * 20'011;

TEST(ProcessGroupTest, ARankThatFindsNoMemoryInMidCollectiveEndsTheGroupWithItsWords) {
  MemoryThatFails& memory = MemoryThatFails::install();
  memory.fail_once(kSecond * sizeof(float));
  std::atomic<int> own = 0, told = 0;
  run_groups(3, 1, [&](const Group& group) {
    Tensors inputs{at::full({kFirst}, 1, at::kFloat), at::full({2, kSecond}, 1, at::kFloat)[0]};
    Tensors outputs{at::zeros({kFirst / 3}), at::zeros({kSecond / 3})};
    try {
      group->reduce_scatter_tensor_coalesced(outputs, inputs, {})->wait();
      ADD_FAILURE() << "rank " << group->getRank() << " learned of nothing";
    } catch (const CommError& error) {
      EXPECT_NE(std::string(error.what()).find("no room for a copy"), std::string::npos) << error.what();
      ++told;
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "no room for a copy");
      ++own;
    }
    EXPECT_THROW(group->barrier({})->wait(), CommError);
  });
  EXPECT_EQ(own, 1);
  EXPECT_EQ(told, 2);
}

TEST(ProcessGroupTest, ARankThatFindsNoMemoryBeforeItsFirstMessageMayCallAgain) {
  MemoryThatFails& memory = MemoryThatFails::install();
  memory.fail_once(kFirst * sizeof(float));
  run_groups(3, 2, [&](const Group& group) {
    Tensors inputs{at::full({2, kFirst}, 1, at::kFloat)[0]}, outputs{at::zeros({kFirst / 3})};
    const auto call = [&] { group->reduce_scatter_tensor_coalesced(outputs, inputs, {})->wait(); };
    try {
      call();
    } catch (const std::runtime_error&) {
      call();
    }
    EXPECT_TRUE(outputs[0].equal(at::full({kFirst / 3}, 3, at::kFloat)));
  });
  EXPECT_TRUE(memory.has_failed());
}

}  // namespace
}  // namespace spillway::ddl
