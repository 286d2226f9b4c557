/// Ranks as threads.
#pragma once
#include <functional>
#include <thread>
#include <vector>

#include "ddl/comm/thread_world.h"
#include "ddl/torch/comm.h"

namespace spillway {

/// Plays `body` on `size` ranks of one host, with a thread each.
inline void on_ranks(int size, const std::function<void(const ddl::Comm&, int rank)>& body) {
  ddl::ThreadWorld world(std::vector<int>(size, 0));
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank)
    ranks.emplace_back([&, rank] { body(ddl::make_comm(world.communicator(rank)), rank); });
}

}  // namespace spillway
