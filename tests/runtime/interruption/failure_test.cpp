#include "runtime/interruption/failure.h"

#include <gtest/gtest.h>

#include <new>
#include <string>

#include "core/out_of_memory.h"
#include "ddl/comm/collectives.h"
#include "tests/runtime/on_ranks.h"

namespace spillway {
using namespace runtime;

TEST(FailureTest, OfOneRanksMemoryIsToldInItsWordsOnEveryRank) {
  on_ranks(3, [](const ddl::Comm& comm, int rank) {
    try {
      heard_by_all(comm, [&] {
        if (rank == 1) throw OutOfMemory("[memory cpu] aten::conv3d needs 3.00 MiB, and there is none", 3 << 20);
        ddl::barrier(*comm->communicator);
      });
      ADD_FAILURE() << "rank " << rank << " goes on";
    } catch (const std::exception& error) {
      const Failure failure = failure_of(error);
      EXPECT_EQ(failure.code, kFailure);
      EXPECT_EQ(failure.of_another, rank != 1);
      EXPECT_NE(failure.text.find("aten::conv3d needs 3.00 MiB"), std::string::npos) << failure.text;
    }
  });
}

TEST(FailureTest, NeverSaysNoMoreThanTheNameOfAType) {
  const Failure failure = failure_of(std::bad_alloc());
  EXPECT_EQ(failure.code, kFailure);
  EXPECT_NE(failure.text.find("the host has no memory"), std::string::npos) << failure.text;
}

}  // namespace spillway
