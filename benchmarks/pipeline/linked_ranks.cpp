#include "benchmarks/pipeline/linked_ranks.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "ddl/comm/communicator.h"
#include "ddl/comm/thread_world.h"
#include "ddl/comm/transport.h"

namespace spillway::tools {
namespace {

/// A decorator of another transport. A message is handed to it when a link would have carried its last byte.
class EmulatedLink final : public ddl::Transport {
 public:
  EmulatedLink(std::unique_ptr<ddl::Transport> inner, double bytes_per_second)
      : inner_(std::move(inner)), bytes_per_second_(bytes_per_second) {}
  int rank() const override { return inner_->rank(); }
  const std::vector<int>& hosts() const override { return inner_->hosts(); }

  ddl::Request send(int peer, ddl::Tag tag, std::span<const std::byte> bytes) override {
    const std::chrono::duration<double> takes(static_cast<double>(bytes.size()) / bytes_per_second_);
    free_ = std::max(Clock::now(), free_) + std::chrono::duration_cast<Clock::duration>(takes);
    held_.push_back({free_, ++last_, peer, tag, bytes});
    return {last_, peer};
  }
  ddl::Request receive(int peer, ddl::Tag tag, std::span<std::byte> bytes) override {
    started_[++last_] = inner_->receive(peer, tag, bytes);
    return {last_, peer};
  }
  bool test(ddl::Request& request) override {
    for (; !held_.empty() && held_.front().leaves <= Clock::now(); held_.pop_front()) {
      const Held& held = held_.front();
      started_[held.slot] = inner_->send(held.peer, held.tag, held.bytes);
    }
    if (!request.active()) return true;
    const auto found = started_.find(request.slot);
    if (found == started_.end() || !inner_->test(found->second)) return false;
    started_.erase(found);
    request = {};
    return true;
  }
  void idle(SteadyTime until) override { inner_->idle(held_.empty() ? until : std::min(until, held_.front().leaves)); }
  bool ready() override { return inner_->ready(); }
  void abandon() noexcept override {
    held_.clear();
    inner_->abandon();
  }
  std::unique_ptr<ddl::Transport> duplicate() override {
    return std::make_unique<EmulatedLink>(inner_->duplicate(), bytes_per_second_);
  }
  std::unique_ptr<ddl::Transport> group(std::span<const int> members) override {
    return std::make_unique<EmulatedLink>(inner_->group(members), bytes_per_second_);
  }

 private:
  struct Held {
    SteadyTime leaves;
    int slot, peer;
    ddl::Tag tag;
    std::span<const std::byte> bytes;
  };

  const std::unique_ptr<ddl::Transport> inner_;
  const double bytes_per_second_;
  SteadyTime free_{};
  std::deque<Held> held_;                ///< on the link, in order
  std::map<int, ddl::Request> started_;  ///< by slot
  int last_ = 0;
};

}  // namespace

void run_linked_ranks(int ranks, double bytes_per_second, const std::function<void(ddl::Communicator&)>& body) {
  ddl::ThreadWorld world(std::vector<int>(ranks, 0));
  std::vector<std::exception_ptr> errors(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        std::unique_ptr<ddl::Transport> wire = world.transport(rank);
        if (bytes_per_second > 0) wire = std::make_unique<EmulatedLink>(std::move(wire), bytes_per_second);
        ddl::Communicator comm(std::move(wire));
        body(comm);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

}  // namespace spillway::tools
