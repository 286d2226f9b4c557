/// The suite of reductions that every backend must pass, whatever carries its messages.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <vector>

#include "core/error.h"
#include "ddl/allreduce/allreduce.h"
#include "ddl/allreduce/owner_reduction.h"
#include "tests/support/ddl/contribution.h"
#include "tests/support/ddl/on_every_shape.h"
#include "tests/support/ddl/typed_elements.h"

namespace spillway::ddl::testing {

inline std::vector<int64_t> counts(int ranks) {
  return {0, 1, ranks - 1, ranks, ranks + 1, 2 * ranks + 1, 97, 1009, 65536, 70001};
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

inline void check_typed_allreduce(Communicator& comm, Allreduce& allreduce, int64_t count, Element element,
                                  Reduction reduction, bool is_in_place) {
  std::vector<std::vector<double>> all;
  for (int rank = 0; rank < comm.size(); ++rank) all.push_back(contribution_as(element, rank, count));
  auto input = as_elements(element, all[static_cast<size_t>(comm.rank())]);
  const auto before = input;
  std::vector<std::byte> apart(is_in_place ? 0 : input.size());
  auto& output = is_in_place ? input : apart;
  allreduce.reduce({input, output, element}, reduction);
  if (!is_in_place) {
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
class AllreduceConformance : public OnEveryShape<World> {};
TYPED_TEST_SUITE_P(AllreduceConformance);

TYPED_TEST_P(AllreduceConformance, SumsAnyCountOnAnyShape) {
  this->on_every_shape([](Communicator& comm) {
    Allreduce allreduce(comm);
    for (const int64_t count : counts(comm.size())) check_allreduce(comm, allreduce, count, Reduction::sum);
  });
}

TYPED_TEST_P(AllreduceConformance, EveryAlgorithmReducesEveryType) {
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

TYPED_TEST_P(AllreduceConformance, PlansThatKeepTheOrderGiveTheSameBitsForEverySize) {
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

TYPED_TEST_P(AllreduceConformance, SumsInManyChunks) {
  this->on_every_shape([](Communicator& comm) {
    Allreduce allreduce(comm, {.chunk_bytes = 1028});
    for (const int64_t count : {256, 257, 258, 4099}) check_allreduce(comm, allreduce, count, Reduction::sum);
  });
}

TYPED_TEST_P(AllreduceConformance, ChunksDoNotChangeTheBits) {
  this->on_every_shape([](Communicator& comm) {
    std::vector<float> whole = contribution(comm.rank(), 5003);
    std::vector<float> chunked = whole;
    Allreduce(comm).reduce(whole, Reduction::average);
    Allreduce(comm, {.chunk_bytes = 1044}).reduce(chunked, Reduction::average);
    EXPECT_TRUE(same_bits(whole, chunked));
  });
}

TYPED_TEST_P(AllreduceConformance, AverageDividesOnceAtTheEnd) {
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

TYPED_TEST_P(AllreduceConformance, BorrowedScratchThatIsTooSmallIsRefused) {
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

TYPED_TEST_P(AllreduceConformance, PartsAreReducedAtTheirHomesAndHandedOutFromThere) {
  this->on_every_shape([](Communicator& comm) {
    std::mt19937 random(7);  // the same on every rank
    for (int turn = 0; turn < 24; ++turn) {
      const auto element = static_cast<Element>(turn % 6);
      const auto reduction = static_cast<Reduction>(turn / 6);
      const int64_t count = turn % 3 == 2 ? 30'000 : 1009;  // the larger count is many chunks
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

REGISTER_TYPED_TEST_SUITE_P(AllreduceConformance, SumsAnyCountOnAnyShape, EveryAlgorithmReducesEveryType,
                            PlansThatKeepTheOrderGiveTheSameBitsForEverySize, SumsInManyChunks,
                            ChunksDoNotChangeTheBits, AverageDividesOnceAtTheEnd,
                            BorrowedScratchThatIsTooSmallIsRefused, PartsAreReducedAtTheirHomesAndHandedOutFromThere);

}  // namespace spillway::ddl::testing
