#include "ddl/comm/thread_world.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <numeric>
#include <thread>

#include "core/error.h"
#include "ddl/comm/transport.h"

namespace spillway::ddl {
namespace {

/// The maximum size of a message that is copied when it is sent, so that it arrives even if its sender dies.
constexpr size_t kEagerBytes = 512;

/// One posted send or receive. Guarded by the wire's mutex; `bytes` are copied outside it while `matched`.
struct Post {
  enum class State { free, posted, matched, done, mismatched };
  State state = State::free;
  int source = -1;
  int destination = -1;
  Tag tag{};
  std::byte* bytes = nullptr;
  size_t size = 0;
};

/// True when a receive accepts messages from `source`.
bool hears(const Post& receive, int source) {
  return receive.source == source || receive.source == kAnyRank;
}

/// A message that no receive has matched yet. Its bytes are the sender's (`post`), or the wire's (`post` is null).
struct Sent {
  int source;
  Tag tag;
  Post* post;
  std::vector<std::byte> eager;
};

}  // namespace

/// The part that all ranks share: the posts of every rank, under one mutex. Each rank sleeps on its own condition.
class ThreadWorld::Wire {
 public:
  explicit Wire(std::vector<int> hosts) : hosts(std::move(hosts)), ranks(this->hosts.size()) {}

  struct Rank {
    std::condition_variable changed;
    uint64_t events = 0;
    std::list<Sent> sends;      ///< to this rank, not matched yet, in order of posting
    std::list<Post*> receives;  ///< by this rank, not matched yet, in order of posting
  };

  void notify(int rank) {
    ++ranks[rank].events;
    ranks[rank].changed.notify_all();
  }

  const std::vector<int> hosts;
  std::mutex mutex;
  std::vector<Rank> ranks;
  std::map<std::vector<int>, std::vector<std::shared_ptr<Wire>>> derived;  ///< by members, as ranks ask for them
};

namespace {

using Wire = ThreadWorld::Wire;

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Wire> wire, int rank) : wire_(std::move(wire)), rank_(rank) {}
  int rank() const override { return rank_; }
  const std::vector<int>& hosts() const override { return wire_->hosts; }

  Request send(int peer, Tag tag, std::span<const std::byte> bytes) override {
    std::unique_lock lock(wire_->mutex);
    Wire::Rank& target = wire_->ranks[peer];
    const int slot = take_slot();
    Post& post = slots_[slot];
    // The receiver's side of the message only reads.
    post = {Post::State::posted, rank_, peer, tag, const_cast<std::byte*>(bytes.data()), bytes.size()};
    const auto receive = std::find_if(target.receives.begin(), target.receives.end(),
                                      [&](const Post* other) { return hears(*other, rank_) && other->tag == tag; });
    if (receive != target.receives.end()) {
      Post& matched = **receive;
      target.receives.erase(receive);
      transfer(lock, post, matched);
    } else if (bytes.size() <= kEagerBytes) {
      target.sends.push_back({rank_, tag, nullptr, {bytes.begin(), bytes.end()}});
      post.state = Post::State::done;
    } else {
      target.sends.push_back({rank_, tag, &post, {}});
    }
    return {slot, peer};
  }

  Request receive(int peer, Tag tag, std::span<std::byte> bytes) override {
    std::unique_lock lock(wire_->mutex);
    Wire::Rank& own = wire_->ranks[rank_];
    const int slot = take_slot();
    Post& post = slots_[slot];
    post = {Post::State::posted, peer, rank_, tag, bytes.data(), bytes.size()};
    const auto sent = std::find_if(own.sends.begin(), own.sends.end(),
                                   [&](const Sent& other) { return hears(post, other.source) && other.tag == tag; });
    if (sent == own.sends.end()) {
      own.receives.push_back(&post);
    } else if (Post* send = sent->post) {
      own.sends.erase(sent);
      transfer(lock, *send, post);
    } else {
      post.state = sent->eager.size() == post.size ? Post::State::done : Post::State::mismatched;
      std::copy_n(sent->eager.begin(), std::min(sent->eager.size(), post.size), post.bytes);
      own.sends.erase(sent);
    }
    return {slot, peer};
  }

  bool test(Request& request) override {
    if (!request.active()) return true;
    std::lock_guard lock(wire_->mutex);
    Post& post = slots_[request.slot];
    if (post.state == Post::State::mismatched) {
      throw std::runtime_error(str("the ends of a message differ: rank ", post.source, " sent another size than the ",
                                   post.size, " bytes that rank ", post.destination, " expects"));
    }
    if (post.state != Post::State::done) return false;
    release_slot(request.slot);
    request = {};
    return true;
  }

  void idle(std::chrono::steady_clock::time_point until) override {
    std::unique_lock lock(wire_->mutex);
    Wire::Rank& own = wire_->ranks[rank_];
    own.changed.wait_until(lock, until, [&] { return own.events != seen_; });
    seen_ = own.events;  // what came before is tested from here on
  }

  void abandon() noexcept override {
    std::unique_lock lock(wire_->mutex);
    for (Post& post : slots_) {
      if (post.state == Post::State::posted) {
        if (post.source == rank_) {
          std::erase_if(wire_->ranks[post.destination].sends, [&](const Sent& sent) { return sent.post == &post; });
        } else {
          std::erase(wire_->ranks[rank_].receives, &post);
        }
      }
      // Another thread may be copying from or to this buffer; that ends soon.
      wire_->ranks[rank_].changed.wait(lock, [&] { return post.state != Post::State::matched; });
      post.state = Post::State::free;
    }
  }

  bool ready() override { return true; }

  std::unique_ptr<Transport> duplicate() override {
    std::vector<int> all(wire_->hosts.size());
    std::iota(all.begin(), all.end(), 0);
    return group(all);
  }
  // The first rank that asks for the wire makes it; no rank waits.
  std::unique_ptr<Transport> group(std::span<const int> members) override {
    std::lock_guard lock(wire_->mutex);
    const std::vector<int> key(members.begin(), members.end());
    auto& wires = wire_->derived[key];
    size_t& taken = derived_[key];
    if (taken == wires.size()) wires.push_back(std::make_shared<Wire>(hosts_of(members, wire_->hosts)));
    return std::make_unique<ThreadTransport>(wires[taken++], place_of(rank_, members));
  }

  ~ThreadTransport() override { abandon(); }

 private:
  int take_slot() {
    if (free_.empty()) {
      slots_.emplace_back();
      free_.reserve(slots_.size());
      return std::ssize(slots_) - 1;
    }
    const int slot = free_.back();
    free_.pop_back();
    return slot;
  }

  void release_slot(int slot) {
    slots_[slot].state = Post::State::free;
    free_.push_back(slot);
  }

  /// Copies outside the lock, then wakes both ends.
  void transfer(std::unique_lock<std::mutex>& lock, Post& send, Post& receive) {
    const bool fits = send.size == receive.size;
    send.state = receive.state = Post::State::matched;
    if (fits && send.size > 0) {
      lock.unlock();
      std::memcpy(receive.bytes, send.bytes, send.size);
      lock.lock();
    }
    send.state = receive.state = fits ? Post::State::done : Post::State::mismatched;
    wire_->notify(send.source);
    wire_->notify(receive.destination);
  }

  const std::shared_ptr<Wire> wire_;
  const int rank_;
  uint64_t seen_ = 0;                           // events at the end of the last idle()
  std::map<std::vector<int>, size_t> derived_;  // by members: the wires that this rank has asked for
  std::deque<Post> slots_;                      // stable addresses
  std::vector<int> free_;
};

}  // namespace

ThreadWorld::ThreadWorld(std::vector<int> hosts) {
  if (hosts.empty()) {
    throw BadRequest("[ddl] a world has 0 ranks; allowed: at least 1");
  }
  wire_ = std::make_shared<Wire>(std::move(hosts));
}

ThreadWorld::~ThreadWorld() = default;

int ThreadWorld::size() const noexcept {
  return std::ssize(wire_->hosts);
}

std::unique_ptr<Transport> ThreadWorld::transport(int rank) {
  if (rank < 0 || rank >= size()) {
    throw BadRequest(str("[ddl] rank ", rank, " of a world of ", size(), " ranks; allowed: 0 to ", size() - 1));
  }
  return std::make_unique<ThreadTransport>(wire_, rank);
}

std::shared_ptr<Communicator> ThreadWorld::communicator(int rank, CommOptions options) {
  return std::make_shared<Communicator>(transport(rank), std::move(options));
}

void run_ranks(ThreadWorld& world, const std::function<void(Communicator&)>& body, const CommOptions& options) {
  std::vector<std::exception_ptr> errors(world.size());
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(*world.communicator(rank, options));
      } catch (...) {
        errors[rank] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace spillway::ddl
