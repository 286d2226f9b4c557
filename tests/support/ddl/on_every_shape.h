/// The fixture of the conformance suites, which runs a body on every rank of every shape of a World. A World is a type
/// with
///   static std::vector<std::vector<int>> shapes();   the hosts of each rank, one entry per case
///   static void run(const std::vector<int>& hosts, const std::function<void(ddl::Communicator&)>& body);
/// where `run` plays `body` on every rank.
#pragma once
#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "ddl/comm/communicator.h"

namespace spillway::ddl::testing {

template <class World>
class OnEveryShape : public ::testing::Test {
 protected:
  static void on_every_shape(const std::function<void(Communicator&)>& body) {
    for (const std::vector<int>& hosts : World::shapes()) World::run(hosts, body);
  }
};

}  // namespace spillway::ddl::testing
