// Messages beside collectives: any order, size and number at once, deaths, and what they leave behind.
#include "ddl/point_to_point/point_to_point.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/error.h"
#include "ddl/comm/collectives.h"
#include "tests/ddl/faults.h"
#include "tests/support/ddl/delayed_transport.h"
#include "tests/support/ddl/forwarding_transport.h"
#include "tests/support/ddl/socket_world.h"
#include "tests/support/refusal.h"

namespace spillway::ddl {
namespace {

using namespace std::chrono_literals;
using spillway::testing::expect_refusal;

/// The end of a message, for a thread that waits.
class End {
 public:
  PointToPoint::Done done() {
    return [state = state_](const std::exception_ptr& error) {
      const std::lock_guard lock(state->mutex);
      ++state->times;
      state->error = error;
      state->changed.notify_all();
    };
  }
  const std::shared_ptr<WaitingSince>& waiting() const { return waiting_; }
  bool is_over() const {
    const std::lock_guard lock(state_->mutex);
    return state_->times > 0;
  }
  /// Waits at most 20 s. Returns the error's text; empty without one.
  std::string wait() {
    waiting_->begin();
    std::unique_lock lock(state_->mutex);
    if (!state_->changed.wait_for(lock, 20s, [&] { return state_->times > 0; })) return "no end within 20 s";
    EXPECT_EQ(state_->times, 1);
    if (!state_->error) return "";
    try {
      std::rethrow_exception(state_->error);
    } catch (const std::exception& error) {
      return error.what();
    }
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    int times = 0;
    std::exception_ptr error;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
  std::shared_ptr<WaitingSince> waiting_ = std::make_shared<WaitingSince>();
};

struct Letter {
  int from, to, tag;
  std::vector<std::byte> bytes;
};

/// Returns messages between random ranks, with sizes from nothing to several of a socket's buffers.
std::vector<Letter> random_letters(int ranks, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Letter> letters(60);
  for (Letter& letter : letters) {
    letter.from = static_cast<int>(random() % ranks);
    letter.to = static_cast<int>(random() % ranks);
    letter.tag = static_cast<int>(random() % 3);
    letter.bytes.resize(random() % 8 == 0 ? random() % 3'000'000 : random() % 5000);
    const auto first = static_cast<unsigned>(random());
    for (size_t i = 0; i < letter.bytes.size(); ++i) letter.bytes[i] = static_cast<std::byte>(first + 31 * i);
  }
  return letters;
}

/// Sends and receives a rank's share of the letters, in an order that only keeps letters of one pair and tag in theirs.
/// All are under way at once, with sums beside them.
void exchange(Communicator& comm, unsigned seed) {
  const std::vector<Letter> letters = random_letters(comm.size(), seed);
  std::mt19937 random(seed + 1000 * comm.rank());
  PointToPoint messages(comm.duplicate());
  std::vector<std::vector<std::byte>> arrived(letters.size());
  std::vector<std::pair<size_t, bool>> calls;  // a letter, and whether it is sent
  for (size_t i = 0; i < letters.size(); ++i) {
    if (letters[i].from == comm.rank()) calls.emplace_back(i, true);
    if (letters[i].to == comm.rank()) calls.emplace_back(i, false);
  }
  // Neighbors of different lines change places.
  const auto line = [&](const std::pair<size_t, bool>& call) {
    const Letter& letter = letters[call.first];
    return std::tuple(call.second, letter.from, letter.to, letter.tag);
  };
  for (int swaps = 0; swaps < 300 && calls.size() > 1; ++swaps)
    if (const size_t i = random() % (calls.size() - 1); line(calls[i]) != line(calls[i + 1]))
      std::swap(calls[i], calls[i + 1]);
  std::vector<End> ends(calls.size());
  std::vector<float> sum(1000, 1.0F);
  Allreduce allreduce(comm);
  for (size_t c = 0; c < calls.size(); ++c) {
    const auto [i, is_sent] = calls[c];
    const Letter& letter = letters[i];
    arrived[i].resize(letter.bytes.size());
    if (is_sent)
      messages.send(letter.to, letter.tag, letter.bytes, ends[c].waiting(), ends[c].done());
    else
      messages.receive(letter.from, letter.tag, arrived[i], ends[c].waiting(), ends[c].done());
  }
  for (int sums = 0; sums < 3; ++sums) {
    std::fill(sum.begin(), sum.end(), 1.0F);
    allreduce.reduce(sum, Reduction::sum);
    EXPECT_EQ(std::count(sum.begin(), sum.end(), static_cast<float>(comm.size())), 1000);
    if (random() % 2 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(random() % 3));
  }
  for (End& end : ends) EXPECT_EQ(end.wait(), "");
  for (size_t i = 0; i < letters.size(); ++i) {
    if (letters[i].to != comm.rank()) continue;
    EXPECT_EQ(arrived[i], letters[i].bytes) << "letter " << i << " of seed " << seed;
  }
  barrier(comm);  // none leaves while another one's letters are under way
}

TEST(PointToPointTest, RandomLettersArriveBesideSumsOverThreads) {
  for (unsigned seed = 0; seed < 6; ++seed) {
    ThreadWorld world(std::vector<int>(1 + seed % 4, 0));
    run_ranks(world, [&](Communicator& comm) { exchange(comm, seed); });
  }
}

TEST(PointToPointTest, RandomLettersArriveBesideSumsOverSockets) {
  for (unsigned seed = 0; seed < 6; ++seed)
    testing::run_over_sockets(seed % 2 == 0 ? std::vector{0, 0, 1} : std::vector{0, 0},
                              [&](std::unique_ptr<Transport> wire) {
                                Communicator comm(std::move(wire));
                                exchange(comm, seed);
                              });
}

TEST(PointToPointTest, RandomLettersArriveBesideSumsOverALateWire) {
  for (unsigned seed = 10; seed < 13; ++seed) {
    ThreadWorld world({0, 0, 1});
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < world.size(); ++rank)
      ranks.emplace_back([&, rank] {
        Communicator comm(std::make_unique<testing::DelayedTransport>(world.transport(rank), 100 * seed + rank));
        exchange(comm, seed);
      });
    for (std::thread& rank : ranks) rank.join();
  }
}

TEST(PointToPointTest, ReceivesBeforeSendsAndLargeSendsAroundARingDoNotWaitForEachOther) {
  ThreadWorld world({0, 0, 0});
  run_ranks(world, [](Communicator& comm) {
    const int next = (comm.rank() + 1) % comm.size(), before = (comm.rank() + comm.size() - 1) % comm.size();
    PointToPoint messages(comm.duplicate());
    for (const size_t bytes : {size_t{16}, size_t{16} << 20}) {
      const std::vector<std::byte> out(bytes, static_cast<std::byte>(comm.rank()));
      std::vector<std::byte> in(bytes);
      std::vector<End> ends(2);
      messages.receive(before, 0, in, ends[0].waiting(), ends[0].done());
      messages.send(next, 0, out, ends[1].waiting(), ends[1].done());
      for (End& end : ends) EXPECT_EQ(end.wait(), "");
      EXPECT_EQ(in.front(), static_cast<std::byte>(before));
    }
    barrier(comm);
  });
}

TEST(PointToPointTest, EveryMessageOfADeadGroupEnds) {
  ThreadWorld world({0, 0});
  run_ranks(world, [](Communicator& comm) {
    PointToPoint messages(comm.duplicate());
    barrier(comm);
    std::vector<std::byte> bytes(4), other(4);
    if (comm.rank() == 0) comm.give_up("was aborted");
    for (int round = 0; round < 300; ++round) {
      std::vector<End> ends(4);
      for (int i = 0; i < 3; ++i) messages.send(1 - comm.rank(), 0, bytes, ends[i].waiting(), ends[i].done());
      messages.receive(1 - comm.rank(), 1, other, ends[3].waiting(), ends[3].done());
      EXPECT_NE(ends[3].wait(), "no end within 20 s") << round;
      for (int i = 0; i < 3; ++i) ends[i].wait();
    }
  });
}

TEST(PointToPointTest, AMessageMayComeLongAfterTheDeadlineWhereNobodyWaits) {
  ThreadWorld world({0, 0});
  run_ranks(world,
            [](Communicator& comm) {
              PointToPoint messages(comm.duplicate());
              std::vector<std::byte> bytes(4, std::byte{7});
              End end;
              if (comm.rank() == 1) {
                messages.receive(0, 0, bytes, end.waiting(), end.done());
                const auto start = Clock::now();
                while (!end.is_over() && Clock::now() - start < 20s) std::this_thread::sleep_for(1ms);
              } else {
                std::this_thread::sleep_for(1200ms);
                messages.send(1, 0, bytes, end.waiting(), end.done());
              }
              EXPECT_EQ(end.wait(), "");
            },
            {.deadline = 400ms});
}

TEST(PointToPointTest, OnceSomebodyWaitsTheDeadlineCounts) {
  ThreadWorld world({0, 0});
  run_ranks(world,
            [](Communicator& comm) {
              PointToPoint messages(comm.duplicate());
              std::vector<std::byte> bytes(4);
              if (comm.rank() == 0) return std::this_thread::sleep_for(1s);
              End end;
              messages.receive(0, 0, bytes, end.waiting(), end.done());
              EXPECT_NE(end.wait().find("rank 0"), std::string::npos);
            },
            {.deadline = 200ms});
}

/// A transport that fails at the second receive, as one without memory does.
class FailsToReceive final : public testing::ForwardingTransport {
 public:
  using ForwardingTransport::ForwardingTransport;
  Request receive(int peer, Tag tag, std::span<std::byte> bytes) override {
    if (static_cast<int>(tag) >= 64 && ++receives_ == 2) throw std::bad_alloc();
    return ForwardingTransport::receive(peer, tag, bytes);
  }
  std::unique_ptr<Transport> duplicate() override { return std::make_unique<FailsToReceive>(inner().duplicate()); }

 private:
  int receives_ = 0;
};

TEST(PointToPointTest, AnErrorEndsTheOthersUnderWayAndReleasesTheirMemory) {
  ThreadWorld world({0, 0});
  std::thread other([&] {
    Communicator comm(world.transport(1));
    PointToPoint messages(comm.duplicate());
    std::this_thread::sleep_for(100ms);
    const std::vector<std::byte> bytes(1 << 20);
    std::vector<End> ends(2);
    for (End& end : ends) messages.send(0, 0, bytes, end.waiting(), end.done());
    for (End& end : ends) end.wait();
  });
  {
    Communicator comm(std::make_unique<FailsToReceive>(world.transport(0)));
    PointToPoint messages(comm.duplicate());
    std::vector<End> ends(2);
    auto memory = std::make_unique<std::vector<std::byte>>(2 << 20);
    const std::span<std::byte> all(*memory);
    messages.receive(1, 0, all.first(1 << 20), ends[0].waiting(), ends[0].done());
    messages.receive(1, 0, all.subspan(1 << 20), ends[1].waiting(), ends[1].done());
    for (End& end : ends) EXPECT_NE(end.wait(), "");
    memory.reset();  // a late write would be found by a sanitizer
    std::this_thread::sleep_for(200ms);
    EXPECT_TRUE(comm.dead());
  }
  other.join();
}

TEST(PointToPointTest, TagsOutOfRangeAreRefused) {
  ThreadWorld world({0});
  run_ranks(world, [](Communicator& comm) {
    PointToPoint messages(comm.duplicate());
    End end;
    for (const int tag : {-1, -65, PointToPoint::kMaxTag + 1})
      expect_refusal([&] { messages.send(0, tag, {}, end.waiting(), end.done()); }, {"tag is"});
  });
}

}  // namespace
}  // namespace spillway::ddl
