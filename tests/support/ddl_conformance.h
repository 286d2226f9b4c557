/// What every Communicator must do, whatever carries its messages. A World is a type with
///   static std::vector<std::vector<int>> shapes();   the hosts of each rank, one entry per case
///   static void run(const std::vector<int>& hosts, const std::function<void(ddl::Communicator&)>& body);
/// where `run` plays `body` on every rank; a backend gets the whole suite with INSTANTIATE_TYPED_TEST_SUITE_P.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "core/error.h"
#include "ddl/agreement.h"
#include "ddl/allreduce.h"
#include "ddl/collectives.h"

namespace spillway::ddl::testing {

/// What rank `rank` contributes: reproducible anywhere, of mixed sign and magnitude.
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

/// `count` floats that begin off any vector's alignment.
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

/// Fails the test unless all ranks hold these very bits.
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
  EXPECT_EQ(wrong, 0) << count << " elements on " << allreduce.plan().shape() << ", rank " << comm.rank();
  expect_equal_on_all_ranks(comm, data.span());
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
    std::vector<float> scratch(allreduce.scratch_elements(1000) - 1);
    EXPECT_THROW(allreduce.reduce(data, Reduction::sum, scratch), BadRequest);
  });
}

TYPED_TEST_P(CommunicatorConformance, BroadcastReachesTheMembersAndNobodyElse) {
  this->on_every_shape([](Communicator& comm) {
    for (int root = 0; root < comm.size(); ++root) {
      std::vector<int> members;  // all but root's successor, backwards
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

TYPED_TEST_P(CommunicatorConformance, PendingAllgathersKeepTheirOrderWhileOthersRun) {
  this->on_every_shape([](Communicator& comm) {
    const auto blob_of = [](int rank, int64_t round) { return std::vector<int64_t>(3, 100 * round + rank); };
    std::vector<std::vector<int64_t>> own, all;
    for (int64_t round = 0; round < 3; ++round) {
      own.push_back(blob_of(comm.rank(), round));
      all.emplace_back(3 * comm.size());
    }
    std::vector<PendingAllgather> pending;
    for (size_t round = 0; round < 3; ++round) {
      pending.emplace_back(comm, std::as_bytes(std::span(own[round])), std::as_writable_bytes(std::span(all[round])));
      int64_t number = comm.rank() == 0 ? 7 : 0;
      broadcast(comm, std::as_writable_bytes(std::span(&number, 1)), 0);
      EXPECT_EQ(number, 7);
    }
    while (!pending[2].arrived()) {
    }
    for (size_t round = 0; round < 3; ++round) {
      pending[round].wait();
      EXPECT_TRUE(pending[round].arrived());
      for (int rank = 0; rank < comm.size(); ++rank)
        EXPECT_EQ(std::vector<int64_t>(&all[round][3 * rank], &all[round][3 * rank] + 3), blob_of(rank, round));
    }
    std::vector<std::byte> few(1);
    EXPECT_THROW(PendingAllgather(comm, std::as_bytes(std::span(own[0])), few), BadRequest);
  });
}

TYPED_TEST_P(CommunicatorConformance, LocalRanksCountTheRanksOfAHost) {
  this->on_every_shape([](Communicator& comm) {
    const Plan plan(comm.hosts());
    const std::vector<int>& mates = plan.ranks_of(comm.hosts()[comm.rank()]);
    EXPECT_EQ(comm.local_size(), static_cast<int>(mates.size()));
    EXPECT_EQ(mates[comm.local_rank()], comm.rank());
    barrier(comm);
  });
}

REGISTER_TYPED_TEST_SUITE_P(CommunicatorConformance, SumsAnyCountOnAnyShape, SumsInManyChunks, ChunksDoNotChangeTheBits,
                            AverageDividesOnceAtTheEnd, BorrowedScratchThatIsTooSmallIsRefused,
                            BroadcastReachesTheMembersAndNobodyElse, BroadcastOfManyPiecesAndOfNothing,
                            BroadcastRefusesABadListOfMembers, AllgatherKeepsRankOrder,
                            PendingAllgathersKeepTheirOrderWhileOthersRun, LocalRanksCountTheRanksOfAHost);

}  // namespace spillway::ddl::testing
