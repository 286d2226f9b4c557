#include "runtime/data/preload.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/data/sampler.h"
#include "runtime/data/used_cases.h"

namespace spillway {
using namespace runtime;
namespace {

/// A dataset whose cases hold their number. It records the indices of the cases that were read.
class Recorded final : public Dataset {
 public:
  explicit Recorded(std::vector<int64_t>& read) : read_(read) {}
  int64_t size() const override { return 20; }
  Batch at(int64_t index) const override {
    read_.push_back(index);
    return {at::full({1}, index), at::full({1}, -index)};
  }
  std::string name(int64_t index) const override { return std::to_string(index); }
  int64_t case_bytes() const override { return 16; }

 private:
  std::vector<int64_t>& read_;
};

}  // namespace

TEST(HostCasesTest, ReadOnlyWhatIsUsedAndTheOthersWhenAskedFor) {
  std::vector<int64_t> read;
  const auto cases = preload(std::make_unique<Recorded>(read), {0, 3, 7}, 1000);
  EXPECT_EQ(read, (std::vector<int64_t>{0, 3, 7}));
  EXPECT_EQ(cases->at(7).input.item<int64_t>(), 7);
  EXPECT_EQ(cases->at(3).target.item<int64_t>(), -3);
  EXPECT_EQ(read.size(), 3u) << "read twice";
  EXPECT_EQ(cases->at(4).input.item<int64_t>(), 4);
  EXPECT_EQ(read.back(), 4);
  read.clear();
  const auto none = preload(std::make_unique<Recorded>(read), {0, 3, 7}, 47);
  EXPECT_TRUE(read.empty()) << "more than may be held";
  EXPECT_EQ(none->at(3).input.item<int64_t>(), 3);
}

TEST(UsedCasesTest, AreThoseThatARankLearnsFromAndMeasuresOn) {
  const Split parts = split(40);
  for (int rank = 0; rank < 3; ++rank) {
    Sampler sampler(parts.train, /*batch=*/2, rank, 3, /*seed=*/5);
    const auto used = used_cases(sampler, parts, 4, rank, 3);
    EXPECT_TRUE(std::is_sorted(used.begin(), used.end()));
    std::vector<int64_t> expected{0, parts.validation[static_cast<size_t>(rank)]};
    if (rank == 0) expected.push_back(parts.validation[3]);
    for (int i = 0; i < 4; ++i)
      for (const int64_t index : sampler.next()) expected.push_back(index);
    std::sort(expected.begin(), expected.end());
    expected.erase(std::unique(expected.begin(), expected.end()), expected.end());
    EXPECT_EQ(used, expected) << rank;
  }
  const Sampler alone(parts.train, 2, 0, 1, 5);
  EXPECT_EQ(used_cases(alone, parts, 1'000'000'000, 0, 1).size(), 40u) << "ends when all are drawn";
}

}  // namespace spillway
