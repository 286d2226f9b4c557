#include "ddl/comm/simulated_world.h"

#include <utility>
#include <vector>

#include "core/error.h"
#include "ddl/comm/transport.h"

namespace spillway::ddl {
namespace {

/// Sends vanish. Receives are finished at once and leave their bytes as they are. Notices never come.
class SimulatedTransport final : public Transport {
 public:
  SimulatedTransport(int rank, std::vector<int> hosts) : rank_(rank), hosts_(std::move(hosts)) {}
  int rank() const override { return rank_; }
  const std::vector<int>& hosts() const override { return hosts_; }
  bool is_simulated() const override { return true; }
  Request send(int peer, Tag, std::span<const std::byte>) override { return {kFinished, peer}; }
  Request receive(int peer, Tag tag, std::span<std::byte>) override {
    return {tag == Tag::notice ? kNever : kFinished, peer};
  }
  bool test(Request& request) override {
    if (request.slot == kNever) return false;
    request = {};
    return true;
  }
  void idle(std::chrono::steady_clock::time_point) override {}
  void abandon() noexcept override {}
  bool ready() override { return true; }
  std::unique_ptr<Transport> duplicate() override { return std::make_unique<SimulatedTransport>(rank_, hosts_); }
  std::unique_ptr<Transport> group(std::span<const int> members) override {
    return std::make_unique<SimulatedTransport>(place_of(rank_, members), hosts_of(members, hosts_));
  }

 private:
  static constexpr int kFinished = 0;
  static constexpr int kNever = 1;
  const int rank_;
  const std::vector<int> hosts_;
};

}  // namespace

std::shared_ptr<Communicator> simulated_communicator(int rank, const Levels& levels) {
  if (rank < 0 || rank >= levels.size())
    throw BadRequest(str("[ddl] rank ", rank, " of a simulated world of ", levels.size()));
  std::vector<int> hosts;
  for (int r = 0; r < levels.size(); ++r) hosts.push_back(levels.count() > 1 ? levels.group_of(1, r) : 0);
  return std::make_shared<Communicator>(std::make_unique<SimulatedTransport>(rank, std::move(hosts)),
                                        CommOptions{.levels = levels.labels()});
}

}  // namespace spillway::ddl
