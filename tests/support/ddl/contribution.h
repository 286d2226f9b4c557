/// The elements that ranks contribute to collectives in tests, and comparisons of results.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"

namespace spillway::ddl::testing {

/// Returns rank `rank`'s contribution. It is reproducible anywhere, and of mixed sign and magnitude.
inline std::vector<float> contribution(int rank, int64_t count) {
  uint64_t state = 1000 + static_cast<uint64_t>(rank);
  std::vector<float> result(count);
  for (float& x : result) {
    state = state * 6364136223846793005 + 1442695040888963407;  // Knuth's MMIX: quicker than the standard's generators
    x = static_cast<float>(state >> 40) * 0x5p-24f - 2;         // -2 to 3
  }
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

}  // namespace spillway::ddl::testing
