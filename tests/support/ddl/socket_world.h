/// Ranks as threads that talk over sockets.
#pragma once
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ddl/comm/communicator.h"
#include "ddl/sockets/socket_transport.h"

namespace spillway::ddl::testing {

/// A rendezvous in the memory of one process.
class SharedTexts final : public Rendezvous {
 public:
  void set(const std::string& key, const std::string& value) override {
    const std::lock_guard lock(mutex_);
    texts_[key] = value;
  }
  std::optional<std::string> find(const std::string& key) override {
    const std::lock_guard lock(mutex_);
    const auto found = texts_.find(key);
    return found == texts_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::string> texts_;
};

/// Runs `body` once per rank, each on its own thread, with its end of the wire. `hosts[r]` is the host that rank r
/// pretends to run on. An error of a rank fails the test.
inline void run_over_sockets(const std::vector<int>& hosts,
                             const std::function<void(std::unique_ptr<Transport>)>& body) {
  SharedTexts texts;
  std::vector<std::thread> threads;
  const int size = static_cast<int>(hosts.size());
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      const SocketOptions options{.deadline = std::chrono::seconds(20), .host = "host" + std::to_string(hosts[rank])};
      EXPECT_NO_THROW(body(socket_transport(rank, size, texts, options)));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace spillway::ddl::testing
