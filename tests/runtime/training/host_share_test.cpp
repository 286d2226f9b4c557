#include "runtime/training/host_share.h"

#include <gtest/gtest.h>

#include "core/bytes.h"

namespace spillway {
namespace {

TEST(HostShareTest, RanksOfAHostPinHalfOfItsMemoryTogether) {
  constexpr int64_t kMemory = (int64_t{1} << 40) + 12'345;
  for (const int ranks : {2, 3, 8}) {
    const int64_t share = host_share(/*pinned=*/true, ranks, kMemory);
    EXPECT_LE(ranks * share, kMemory / 2);
    EXPECT_GT(ranks * (share + 1), kMemory / 2);
  }
}

TEST(HostShareTest, WhoIsAloneOrPinsNothingHasNoLimitButTheMachines) {
  EXPECT_EQ(host_share(/*pinned=*/true, 1, 1000), kUnlimitedBytes);
  EXPECT_EQ(host_share(/*pinned=*/false, 4, 1000), kUnlimitedBytes);
}

}  // namespace
}  // namespace spillway
