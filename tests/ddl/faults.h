// Ranks on threads and the errors that they end with.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "ddl/allreduce/allreduce.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/thread_world.h"

namespace spillway::ddl {

/// Plays `body` on each rank and returns each rank's CommError, empty where there was none.
inline std::vector<std::string> errors_of(const std::vector<int>& hosts, const std::function<void(Communicator&)>& body,
                                          const CommOptions& options = {}) {
  ThreadWorld world(hosts);
  std::vector<std::string> errors(hosts.size());
  run_ranks(
      world,
      [&](Communicator& comm) {
        try {
          body(comm);
        } catch (const CommError& error) {
          errors[comm.rank()] = error.what();
          EXPECT_TRUE(comm.dead());
          EXPECT_THROW(barrier(comm), CommError);
        }
      },
      options);
  return errors;
}

inline void reduce(Communicator& comm, int64_t count, Reduction reduction = Reduction::sum) {
  std::vector<float> data(count, 1.0f);
  Allreduce(comm).reduce(data, reduction);
}

inline void expect_all_contain(const std::vector<std::string>& errors, const std::string& text) {
  for (size_t rank = 0; rank < errors.size(); ++rank) {
    EXPECT_NE(errors[rank].find(text), std::string::npos) << "rank " << rank << ": " << errors[rank];
  }
}

}  // namespace spillway::ddl
