// A world of one rank.
#include <stdexcept>

#include "ddl/comm/communicator.h"
#include "ddl/comm/transport.h"

namespace spillway::ddl {
namespace {

/// A transport without peers, in which every message is a mistake.
class SelfTransport final : public Transport {
 public:
  int rank() const override { return 0; }
  const std::vector<int>& hosts() const override { return hosts_; }
  Request send(int, Tag, std::span<const std::byte>) override {
    throw std::runtime_error("a world of one has no peers");
  }
  Request receive(int, Tag, std::span<std::byte>) override { throw std::runtime_error("a world of one has no peers"); }
  bool test(Request&) override { return true; }
  void idle(std::chrono::steady_clock::time_point) override {}
  void abandon() noexcept override {}
  bool ready() override { return true; }
  std::unique_ptr<Transport> duplicate() override { return std::make_unique<SelfTransport>(); }
  std::unique_ptr<Transport> group(std::span<const int>) override { return duplicate(); }

 private:
  const std::vector<int> hosts_{0};
};

}  // namespace

std::shared_ptr<Communicator> self_communicator(CommOptions options) {
  return std::make_shared<Communicator>(std::make_unique<SelfTransport>(), std::move(options));
}

}  // namespace spillway::ddl
