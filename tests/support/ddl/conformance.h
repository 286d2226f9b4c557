/// The conformance suite that every Communicator must pass, whatever carries its messages. A World is a type with
///   static std::vector<std::vector<int>> shapes();   the hosts of each rank, one entry per case
///   static void run(const std::vector<int>& hosts, const std::function<void(ddl::Communicator&)>& body);
/// where `run` plays `body` on every rank. A backend gets the whole suite with INSTANTIATE_TYPED_TEST_SUITE_P.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "core/error.h"
#include "ddl/allreduce/allreduce.h"
#include "ddl/allreduce/owner_reduction.h"
#include "ddl/comm/agreement.h"
#include "ddl/comm/background_queue.h"
#include "ddl/comm/collectives.h"
#include "tests/support/refusal.h"

namespace spillway::ddl::testing {

/// Returns rank `rank`'s contribution. It is reproducible anywhere, and of mixed sign and magnitude.
inline std::vector<float> contribution(int rank, int64_t count) {
  std::mt19937 generator(1000 + rank);
  std::uniform_real_distribution<float> value(-2.0f, 3.0f);
  std::vector<float> result(count);
  for (float& x : result) x = value(generator);
  return result;
}

/// The oracle: a serial sum in float64, and the sum of magnitudes, which scales the allowed error.
struct SerialSum {
  std::vector<double> sum;
  std::vector<double> magnitude;
  SerialSum(int ranks, int64_t count) : sum(count), magnitude(count) {
    for (int rank = 0; rank < ranks; ++rank) {
      const std::vector<float> term = contribution(rank, count);
      for (int64_t k = 0; k < count; ++k) {
        sum[k] += term[k];
        magnitude[k] += std::abs(term[k]);
      }
    }
  }
};

inline std::vector<int64_t> counts(int ranks) {
  return {0, 1, ranks - 1, ranks, ranks + 1, 2 * ranks + 1, 97, 1009, 65536, 70001};
}

/// A vector of `count` floats that begins off any vector's alignment.
class Misaligned {
 public:
  explicit Misaligned(const std::vector<float>& values) : storage_(values.size() + 1) {
    std::copy(values.begin(), values.end(), storage_.begin() + 1);
  }
  std::span<float> span() { return std::span(storage_).subspan(1); }

 private:
  std::vector<float> storage_;
};

inline bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

/// Fails the test unless all ranks hold the same bits as `values`.
inline void expect_equal_on_all_ranks(Communicator& comm, std::span<const float> values) {
  std::vector<float> all(values.size() * comm.size());
  allgather(comm, std::as_bytes(values), std::as_writable_bytes(std::span(all)));
  for (int rank = 0; rank < comm.size(); ++rank) {
    EXPECT_TRUE(same_bits(values, std::span(all).subspan(values.size() * rank, values.size())))
        << "ranks " << comm.rank() << " and " << rank << " differ in " << values.size() << " elements";
  }
}

inline void check_allreduce(Communicator& comm, Allreduce& allreduce, int64_t count, Reduction reduction) {
  Misaligned data(contribution(comm.rank(), count));
  allreduce.reduce(data.span(), reduction);
  const SerialSum expected(comm.size(), count);
  const double divisor = reduction == Reduction::average ? comm.size() : 1;
  int64_t wrong = 0;
  for (int64_t k = 0; k < count; ++k) {
    const double allowed = expected.magnitude[k] / divisor * comm.size() * 0x1p-24;
    wrong += !(std::abs(data.span()[k] - expected.sum[k] / divisor) <= allowed);
  }
  EXPECT_EQ(wrong, 0) << count << " elements on " << allreduce.plan().levels().shape() << ", rank " << comm.rank();
  expect_equal_on_all_ranks(comm, data.span());
}

/// Returns plans: the same algorithm on every level, different algorithms per level, and oneshot on the last level.
inline std::vector<Plan> plans(const Levels& levels) {
  constexpr std::array kAll{Algorithm::direct, Algorithm::ring, Algorithm::halving, Algorithm::leader};
  std::vector<Plan> result;
  for (const Algorithm algorithm : kAll) result.emplace_back(levels, algorithm);
  if (levels.count() > 1) {
    std::vector<Algorithm> mixed;
    for (int level = 0; level < levels.count(); ++level) mixed.push_back(kAll[static_cast<size_t>(level + 1) % 4]);
    result.emplace_back(levels, mixed);
    std::reverse(mixed.begin(), mixed.end());
    result.emplace_back(levels, mixed);
  }
  if (levels.count() > 0)
    for (const Algorithm below : {Algorithm::direct, Algorithm::ring}) {
      std::vector<Algorithm> last(static_cast<size_t>(levels.count()), below);
      last.back() = Algorithm::oneshot;
      result.emplace_back(levels, last);
      if (last.size() == 1) break;
    }
  return result;
}

/// Returns `values` as elements of any type, and as_doubles() converts them back. They use finish() and combine(),
/// which have tests of their own.
inline std::vector<std::byte> as_elements(Element element, const std::vector<double>& values) {
  const auto count = static_cast<int64_t>(values.size());
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(element_bytes(element)));
  const auto convert = [&](auto type) {
    std::vector<decltype(type)> typed(values.begin(), values.end());
    finish(element, Reduction::sum, bytes.data(), typed.data(), count, 1);
  };
  if (element == Element::float64)
    convert(double{});
  else if (element == Element::int32)
    convert(int32_t{});
  else if (element == Element::int64)
    convert(int64_t{});
  else
    convert(float{});
  return bytes;
}

inline std::vector<double> as_doubles(Element element, const std::vector<std::byte>& bytes) {
  const auto count = static_cast<int64_t>(bytes.size()) / element_bytes(element);
  const auto convert = [&](auto type) {
    std::vector<decltype(type)> typed(static_cast<size_t>(count));
    const Term term{bytes.data(), false};
    combine(element, Reduction::sum, typed.data(), {&term, 1}, count);
    return std::vector<double>(typed.begin(), typed.end());
  };
  if (element == Element::float64) return convert(double{});
  if (element == Element::int32) return convert(int32_t{});
  if (element == Element::int64) return convert(int64_t{});
  return convert(float{});
}

/// Returns rank `rank`'s elements, as they are after rounding.
inline std::vector<double> contribution_as(Element element, int rank, int64_t count) {
  std::vector<double> values;
  for (const float x : contribution(rank, count)) values.push_back(100.0 * x);
  return as_doubles(element, as_elements(element, values));
}

inline double reduced(Reduction reduction, const std::vector<double>& terms, bool integral) {
  if (reduction == Reduction::maximum) return *std::max_element(terms.begin(), terms.end());
  if (reduction == Reduction::minimum) return *std::min_element(terms.begin(), terms.end());
  const double sum = std::accumulate(terms.begin(), terms.end(), 0.0);
  if (reduction == Reduction::sum) return sum;
  const double average = sum / static_cast<double>(terms.size());
  return integral ? std::trunc(average) : average;
}

inline void check_typed_allreduce(Communicator& comm, Allreduce& allreduce, int64_t count, Element element,
                                  Reduction reduction, bool in_place_) {
  std::vector<std::vector<double>> all;
  for (int rank = 0; rank < comm.size(); ++rank) all.push_back(contribution_as(element, rank, count));
  auto input = as_elements(element, all[static_cast<size_t>(comm.rank())]);
  const auto before = input;
  std::vector<std::byte> apart(in_place_ ? 0 : input.size());
  auto& output = in_place_ ? input : apart;
  allreduce.reduce({input, output, element}, reduction);
  if (!in_place_) {
    EXPECT_EQ(input, before);
  }
  const auto got = as_doubles(element, output);
  const bool integral = element == Element::int32 || element == Element::int64;
  const double rounding = element == Element::float64    ? 0x1p-53
                          : element == Element::float16  ? 0x1p-11
                          : element == Element::bfloat16 ? 0x1p-8
                                                         : 0x1p-24;
  int64_t wrong = 0;
  for (int64_t k = 0; k < count; ++k) {
    std::vector<double> terms;
    double magnitude = 0;
    for (const auto& values : all) {
      terms.push_back(values[static_cast<size_t>(k)]);
      magnitude += std::abs(terms.back());
    }
    const double expected = reduced(reduction, terms, integral);
    const double sums = element == Element::float64 ? 0x1p-53 : 0x1p-24;  // rounding of partial results
    const bool selects = reduction == Reduction::maximum || reduction == Reduction::minimum;
    const double allowed = integral || selects ? 0 : magnitude * comm.size() * sums + std::abs(expected) * rounding;
    wrong += !(std::abs(got[static_cast<size_t>(k)] - expected) <= allowed);
  }
  EXPECT_EQ(wrong, 0) << count << ' ' << name_of(element) << ", " << name_of(reduction) << ", "
                      << allreduce.plan().name() << " on " << allreduce.plan().levels().shape() << ", rank "
                      << comm.rank();
  std::vector<float> padded(output.size());
  std::transform(output.begin(), output.end(), padded.begin(), [](std::byte b) { return static_cast<float>(b); });
  expect_equal_on_all_ranks(comm, padded);
}

template <class World>
class CommunicatorConformance : public ::testing::Test {
 protected:
  static void on_every_shape(const std::function<void(Communicator&)>& body) {
    for (const std::vector<int>& hosts : World::shapes()) World::run(hosts, body);
  }
};
TYPED_TEST_SUITE_P(CommunicatorConformance);

TYPED_TEST_P(CommunicatorConformance, SumsAnyCountOnAnyShape) {
  this->on_every_shape([](Communicator& comm) {
    Allreduce allreduce(comm);
    for (const int64_t count : counts(comm.size())) check_allreduce(comm, allreduce, count, Reduction::sum);
  });
}

TYPED_TEST_P(CommunicatorConformance, EveryAlgorithmReducesEveryType) {
  this->on_every_shape([](Communicator& comm) {
    auto turn = comm.levels().hash() % 24;  // each shape takes other types and reductions, the same on all ranks
    for (const auto& plan : plans(comm.levels()))
      for (int i = 0; i < 5; ++i, ++turn) {
        Allreduce allreduce(comm, plan, {.chunk_bytes = 4 * 1028, .segment_bytes = {1024, 1025}});
        const auto element = static_cast<Element>(turn % 6);
        const auto reduction = static_cast<Reduction>(turn / 6 % 4);
        for (const int64_t count : {int64_t{1}, int64_t{comm.size() + 1}, int64_t{1009}})
          check_typed_allreduce(comm, allreduce, count, element, reduction, turn % 2 == 0);
      }
  });
}

TYPED_TEST_P(CommunicatorConformance, PlansThatKeepTheOrderGiveTheSameBitsForEverySize) {
  this->on_every_shape([](Communicator& comm) {
    std::vector<std::vector<float>> results;
    for (const auto& plan : plans(comm.levels())) {
      if (!plan.keeps_order()) continue;
      for (const int64_t chunk : {1028, 4096}) {
        auto& whole = results.emplace_back(contribution(comm.rank(), 3001));
        Allreduce(comm, plan, {.chunk_bytes = chunk}).reduce(whole, Reduction::sum);
        EXPECT_TRUE(same_bits(whole, results.front())) << plan.name();
      }
      auto few = contribution(comm.rank(), 3001);
      few.resize(37);
      Allreduce(comm, plan).reduce(few, Reduction::sum);
      EXPECT_TRUE(same_bits(few, std::span(results.front()).first(37))) << plan.name();
    }
    EXPECT_GE(results.size(), comm.size() > 1 ? 4u : 2u);
  });
}

TYPED_TEST_P(CommunicatorConformance, SumsInManyChunks) {
  this->on_every_shape([](Communicator& comm) {
    Allreduce allreduce(comm, {.chunk_bytes = 1028});
    for (const int64_t count : {256, 257, 258, 4099}) check_allreduce(comm, allreduce, count, Reduction::sum);
  });
}

TYPED_TEST_P(CommunicatorConformance, ChunksDoNotChangeTheBits) {
  this->on_every_shape([](Communicator& comm) {
    std::vector<float> whole = contribution(comm.rank(), 5003);
    std::vector<float> chunked = whole;
    Allreduce(comm).reduce(whole, Reduction::average);
    Allreduce(comm, {.chunk_bytes = 1044}).reduce(chunked, Reduction::average);
    EXPECT_TRUE(same_bits(whole, chunked));
  });
}

TYPED_TEST_P(CommunicatorConformance, AverageDividesOnceAtTheEnd) {
  this->on_every_shape([](Communicator& comm) {
    Allreduce allreduce(comm);
    check_allreduce(comm, allreduce, 1009, Reduction::average);
    std::vector<float> sum = contribution(comm.rank(), 1009);
    std::vector<float> average = sum;
    allreduce.reduce(sum, Reduction::sum);
    allreduce.reduce(average, Reduction::average);
    for (float& x : sum) x /= static_cast<float>(comm.size());
    EXPECT_TRUE(same_bits(sum, average));
  });
}

TYPED_TEST_P(CommunicatorConformance, BorrowedScratchThatIsTooSmallIsRefused) {
  this->on_every_shape([](Communicator& comm) {
    if (comm.size() == 1) return;
    Allreduce allreduce(comm);
    std::vector<float> data(1000);
    const auto vector = in_place(std::span(data), Element::float32);
    std::vector<std::byte> scratch(allreduce.scratch_bytes(1000, Element::float32) - 1);
    EXPECT_THROW(allreduce.reduce(vector, Reduction::sum, scratch), BadRequest);
    EXPECT_THROW(allreduce.reduce({vector.input.first(8), vector.output, Element::float32}, Reduction::sum),
                 BadRequest);
    EXPECT_THROW(Allreduce(comm, Plan(Levels(comm.size() + 1))), BadRequest);
  });
}

TYPED_TEST_P(CommunicatorConformance, BroadcastReachesTheMembersAndNobodyElse) {
  this->on_every_shape([](Communicator& comm) {
    for (int root = 0; root < comm.size(); ++root) {
      std::vector<int> members;  // all ranks except root's successor, backwards
      for (int rank = comm.size() - 1; rank >= 0; --rank) {
        if (rank == root || rank != (root + 1) % comm.size()) members.push_back(rank);
      }
      std::vector<float> data = contribution(comm.rank(), 301);
      broadcast(comm, std::as_writable_bytes(std::span(data)), root, members);
      const bool member = std::find(members.begin(), members.end(), comm.rank()) != members.end();
      EXPECT_TRUE(same_bits(data, contribution(member ? root : comm.rank(), 301)));
    }
  });
}

TYPED_TEST_P(CommunicatorConformance, BroadcastOfManyPiecesAndOfNothing) {
  this->on_every_shape([](Communicator& comm) {
    std::vector<float> data = contribution(comm.rank(), 2'200'003);
    const int root = comm.size() - 1;
    broadcast(comm, std::as_writable_bytes(std::span(data)), root);
    EXPECT_TRUE(same_bits(data, contribution(root, 2'200'003)));
    broadcast(comm, {}, root);
  });
}

TYPED_TEST_P(CommunicatorConformance, BroadcastRefusesABadListOfMembers) {
  this->on_every_shape([](Communicator& comm) {
    std::vector<std::byte> data(8);
    EXPECT_THROW(broadcast(comm, data, 0, std::vector{0, comm.size()}), BadRequest);
    EXPECT_THROW(broadcast(comm, data, 0, std::vector{0, 0}), BadRequest);
    EXPECT_THROW(broadcast(comm, data, 0, std::vector<int>{}), BadRequest);
  });
}

TYPED_TEST_P(CommunicatorConformance, AllgatherKeepsRankOrder) {
  this->on_every_shape([](Communicator& comm) {
    const int64_t own = 100 + comm.rank();
    std::vector<int64_t> all(comm.size());
    allgather(comm, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
    for (int rank = 0; rank < comm.size(); ++rank) EXPECT_EQ(all[rank], 100 + rank);
  });
}

TYPED_TEST_P(CommunicatorConformance, WhatSomeRanksRefuseAllRefuseAndGoOn) {
  this->on_every_shape([](Communicator& comm) {
    EXPECT_NO_THROW(throw_on_all_ranks(comm, ""));
    const int last = comm.size() - 1;
    for (const int first : {0, last}) {
      const std::string own =
          str("rank ", comm.rank(), " cannot, ", std::string(static_cast<size_t>(comm.rank()), '!'));
      const std::string expected = str("rank ", first, " cannot, ", std::string(static_cast<size_t>(first), '!'));
      EXPECT_EQ(spillway::testing::refusal([&] { throw_on_all_ranks(comm, comm.rank() >= first ? own : ""); }),
                expected);
    }
    EXPECT_NO_THROW(throw_on_all_ranks(comm, "")) << "nobody is dead";
  });
}

TYPED_TEST_P(CommunicatorConformance, PartsAreReducedAtTheirHomesAndHandedOutFromThere) {
  this->on_every_shape([](Communicator& comm) {
    std::mt19937 random(7);  // the same on every rank
    for (int turn = 0; turn < 24; ++turn) {
      const auto element = static_cast<Element>(turn % 6);
      const auto reduction = static_cast<Reduction>(turn / 6);
      const int64_t count = turn % 3 == 2 ? 300'000 : 1009;  // the larger count is more than a chunk
      std::vector<OwnedPart> parts = equal_parts(count, comm.size());
      if (turn % 2 == 0) {  // any owners, gaps between parts, ranks without a part
        parts.clear();
        for (int64_t end = 0; end + 5 < count;) {
          const int64_t begin = end + static_cast<int64_t>(random() % 5);
          end = std::min<int64_t>(count, begin + 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(count / 2)));
          parts.push_back({{begin, end}, static_cast<int>(random() % static_cast<unsigned>(comm.size()))});
        }
      }
      const auto own = as_elements(element, contribution_as(element, comm.rank(), count));
      auto all = own, data = own;
      Allreduce(comm).reduce({own, all, element}, reduction);
      OwnerReduction at_owners(comm, count, element, parts, {1025});
      std::vector<std::byte> scratch(static_cast<size_t>(at_owners.reduce_scratch_bytes()));
      at_owners.reduce(data, reduction, scratch);
      auto expected = own;
      const auto take = [&](const OwnedPart& part) {
        const int64_t bytes = element_bytes(element), begin = part.range.begin * bytes;
        std::copy_n(all.begin() + begin, part.range.size() * bytes, expected.begin() + begin);
      };
      for (const OwnedPart& part : parts)
        if (part.owner == comm.rank()) take(part);
      EXPECT_TRUE(data == expected) << "turn " << turn << " on " << comm.levels().shape() << ", rank " << comm.rank();
      at_owners.gather(data);
      for (const OwnedPart& part : parts) take(part);
      EXPECT_TRUE(data == expected) << "turn " << turn << " on " << comm.levels().shape() << ", rank " << comm.rank();
    }
  });
}

TYPED_TEST_P(CommunicatorConformance, JobsGoOnInTheBackgroundInTheirOrderWhileOtherCollectivesRun) {
  this->on_every_shape([](Communicator& comm) {
    const auto own = comm.duplicate();
    Allreduce allreduce(*own, {.chunk_bytes = 4096});
    std::vector<std::vector<float>> vectors;
    std::vector<Ticket> tickets;
    for (const int64_t count : {5003, 0, 1, 70001}) vectors.push_back(contribution(comm.rank(), count));
    std::vector<std::byte> scratch(static_cast<size_t>(allreduce.scratch_bytes(70001, Element::float32)));
    BackgroundQueue queue(own, "queue");
    for (auto& vector : vectors) {
      tickets.push_back(queue.submit([&](Communicator&) {
        allreduce.reduce(in_place(std::span(vector), Element::float32), Reduction::sum, scratch);
      }));
      int64_t number = comm.rank() == 0 ? 7 : 0;
      broadcast(comm, std::as_writable_bytes(std::span(&number, 1)), 0);
      EXPECT_EQ(number, 7);
    }
    Allreduce foreground(comm);
    for (size_t i = 0; i < vectors.size(); ++i) {
      auto expected = contribution(comm.rank(), static_cast<int64_t>(vectors[i].size()));
      foreground.reduce(expected, Reduction::sum);
      tickets[i].wait();
      EXPECT_TRUE(same_bits(vectors[i], expected));
    }
    EXPECT_GT(queue.busy().count(), 0);
  });
}

TYPED_TEST_P(CommunicatorConformance, DuplicatesDoNotHearEachOther) {
  this->on_every_shape([](Communicator& comm) {
    const auto one = comm.duplicate(), other = comm.duplicate();
    EXPECT_EQ(one->levels().hash(), comm.levels().hash());
    EXPECT_EQ(one->rank(), comm.rank());
    const std::array<int64_t, 2> own{100 + comm.rank(), 200 + comm.rank()};
    std::array<std::vector<int64_t>, 2> all;
    const auto post = [&](Communicator& duplicate, size_t i) {
      all[i].assign(static_cast<size_t>(comm.size()), own[i]);
      std::vector<Request> requests;
      for (int peer = 0; peer < comm.size(); ++peer) {
        if (peer == comm.rank()) continue;
        requests.push_back(duplicate.receive(peer, Tag::blob, std::as_writable_bytes(std::span(&all[i][peer], 1))));
        requests.push_back(duplicate.send(peer, Tag::blob, std::as_bytes(std::span(&own[i], 1))));
      }
      return requests;
    };
    // The exchanges begin in one order and end in the other.
    auto first = post(*one, 0), second = post(*other, 1);
    other->wait(second, {.collective = "exchange", .stage = 1});
    one->wait(first, {.collective = "exchange", .stage = 1});
    for (size_t i = 0; i < all.size(); ++i)
      for (int rank = 0; rank < comm.size(); ++rank) EXPECT_EQ(all[i][rank], 100 * static_cast<int64_t>(i + 1) + rank);
  });
}

TYPED_TEST_P(CommunicatorConformance, LocalRanksCountTheRanksOfAHost) {
  this->on_every_shape([](Communicator& comm) {
    std::vector<int> mates;
    for (int rank = 0; rank < comm.size(); ++rank)
      if (comm.hosts()[rank] == comm.hosts()[comm.rank()]) mates.push_back(rank);
    EXPECT_EQ(comm.local_size(), static_cast<int>(mates.size()));
    EXPECT_EQ(mates[comm.local_rank()], comm.rank());
    barrier(comm);
  });
}

REGISTER_TYPED_TEST_SUITE_P(CommunicatorConformance, SumsAnyCountOnAnyShape, EveryAlgorithmReducesEveryType,
                            PlansThatKeepTheOrderGiveTheSameBitsForEverySize, SumsInManyChunks,
                            ChunksDoNotChangeTheBits, AverageDividesOnceAtTheEnd,
                            BorrowedScratchThatIsTooSmallIsRefused, BroadcastReachesTheMembersAndNobodyElse,
                            BroadcastOfManyPiecesAndOfNothing, BroadcastRefusesABadListOfMembers,
                            AllgatherKeepsRankOrder, WhatSomeRanksRefuseAllRefuseAndGoOn,
                            PartsAreReducedAtTheirHomesAndHandedOutFromThere,
                            JobsGoOnInTheBackgroundInTheirOrderWhileOtherCollectivesRun, DuplicatesDoNotHearEachOther,
                            LocalRanksCountTheRanksOfAHost);

}  // namespace spillway::ddl::testing
