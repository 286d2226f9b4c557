#include "ddl/courier/courier.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "core/clock.h"
#include "core/error.h"
#include "ddl/comm/communicator.h"
#include "ddl/comm/transport.h"

namespace spillway::ddl {
namespace {

using std::chrono::microseconds;

constexpr int64_t kAlignment = 64;
/// Bytes before the data: the stamp.
constexpr int64_t kHead = kAlignment;
static_assert(sizeof(Stamp) <= kHead);

/// The interval at which the thread looks for notices.
constexpr std::chrono::milliseconds kNoticeInterval{10};
/// The sleep between two looks at messages that are on their way, while nobody waits for them.
constexpr microseconds kSleepBesideSends{50};
constexpr microseconds kSleepBesideReceives{200};

int64_t slot_bytes(const Channel& channel) {
  return kHead + (channel.bytes + kAlignment - 1) / kAlignment * kAlignment;
}

void validate(std::span<const Channel> channels, const Communicator& comm) {
  std::set<std::pair<int, int>> taken;  // peer and number
  for (const Channel& channel : channels) {
    const auto require = [&](bool good, const char* field, int64_t value, const auto&... allowed) {
      if (!good)
        throw BadRequest(str("[courier] ", channel.name, ": ", field, " is ", value, "; allowed is ", allowed...));
    };
    require(channel.number >= 0 && channel.number < kMaxChannels, "number", channel.number, "0 to ", kMaxChannels - 1);
    require(channel.peer >= 0 && channel.peer < comm.size() && channel.peer != comm.rank(), "peer", channel.peer,
            "another rank of ", comm.size());
    require(channel.bytes >= 0, "bytes", channel.bytes, "0 or more");
    require(channel.slots >= 1, "slots", channel.slots, "1 or more");
    require(taken.emplace(channel.peer, 2 * channel.number + channel.sends).second, "number", channel.number,
            "one that no other channel between these ranks has");
  }
}

}  // namespace

class Courier::Impl {
 public:
  Impl(std::shared_ptr<Communicator> comm, std::vector<Channel> channels, std::span<std::byte> memory);
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  const std::vector<Channel>& channels() const { return channels_; }
  void send(size_t channel, const Stamp& stamp, const std::function<void(std::span<std::byte>)>& write);
  Stamp receive(size_t channel, const Stamp& due, const std::function<void(std::span<const std::byte>)>& read);
  ChannelTotals totals(size_t channel) const { return states_[channel].totals; }

 private:
  using Lock = std::unique_lock<std::mutex>;

  /// The messages of a channel, counted from 0. Message k is in slot k mod slots. The caller writes a message, then the
  /// thread starts and finishes it. Or the thread starts and finishes it, then the caller reads it.
  struct ChannelState {
    std::span<std::byte> memory;
    std::vector<Request> requests = {};  ///< by slot; the thread's
    int64_t started = 0;                 ///< the thread's
    int64_t finished = 0;                ///< written by the thread, under the mutex
    int64_t by_caller = 0;               ///< written or read by the caller, under the mutex
    ChannelTotals totals = {};           ///< the caller's
  };
  /// A wait of the caller until so many messages of a channel are finished.
  struct Wait {
    size_t channel = 0;
    int64_t finished = 0;
    int64_t micro_batch = 0;
    Clock::time_point start;
  };

  std::span<std::byte> slot(size_t channel, int64_t message) const;
  /// Blocks until so many messages of a channel are finished. Throws what ended the thread.
  void block(size_t channel, int64_t finished, int64_t micro_batch);
  void notify_thread();

  void run();
  void carry(Lock& lock);
  /// Starts and tests messages once. Returns true when one of them was finished.
  bool advance(Lock& lock);
  void look(Lock& lock);
  void rest(Lock& lock);
  bool has_unfinished_sends(size_t channel) const;
  bool has_unfinished_sends() const;

  std::shared_ptr<Communicator> comm_;
  const std::vector<Channel> channels_;
  std::vector<ChannelState> states_;
  const int exceptions_ = std::uncaught_exceptions();
  Clock::time_point next_look_ = Clock::now();  // the thread's

  std::mutex mutex_;  // guards what follows, and parts of the channels' states
  std::condition_variable for_caller_, for_thread_;
  bool has_news_ = false;  // for the thread
  bool ends_ = false;
  std::optional<Wait> wait_;
  std::exception_ptr error_;

  std::thread thread_;
};

Courier::Impl::Impl(std::shared_ptr<Communicator> comm, std::vector<Channel> channels, std::span<std::byte> memory)
    : comm_(std::move(comm)), channels_((validate(channels, *comm_), std::move(channels))) {
  const int64_t needed = memory_bytes(channels_);
  if (std::ssize(memory) < needed)
    throw BadRequest(str("[courier] the memory has ", memory.size(), " bytes; the channels need ", needed));
  for (const Channel& channel : channels_) {
    const size_t bytes = channel.slots * slot_bytes(channel);
    states_.push_back({.memory = memory.first(bytes), .requests = std::vector<Request>(channel.slots)});
    memory = memory.subspan(bytes);
  }
  thread_ = std::thread([this] { run(); });
}

Courier::Impl::~Impl() {
  if (std::uncaught_exceptions() > exceptions_) comm_->give_up("was interrupted with messages under way");
  {
    const Lock lock(mutex_);
    ends_ = has_news_ = true;
    // The deadline counts from here on.
    for (size_t i = 0; i < states_.size() && !wait_; ++i)
      if (has_unfinished_sends(i)) wait_ = {i, states_[i].by_caller, 0, Clock::now()};
  }
  for_thread_.notify_one();
  thread_.join();
}

std::span<std::byte> Courier::Impl::slot(size_t channel, int64_t message) const {
  const int64_t bytes = slot_bytes(channels_[channel]);
  return states_[channel].memory.subspan(message % channels_[channel].slots * bytes, kHead + channels_[channel].bytes);
}

void Courier::Impl::send(size_t channel, const Stamp& stamp, const std::function<void(std::span<std::byte>)>& write) {
  ChannelState& state = states_[channel];
  block(channel, state.by_caller + 1 - channels_[channel].slots, stamp.micro_batch);
  // The slot is the caller's until it is counted.
  const auto message = slot(channel, state.by_caller);
  std::memcpy(message.data(), &stamp, sizeof stamp);
  write(message.subspan(kHead));
  ++state.totals.messages;
  const Lock lock(mutex_);
  ++state.by_caller;
  notify_thread();
}

Stamp Courier::Impl::receive(size_t channel, const Stamp& due,
                             const std::function<void(std::span<const std::byte>)>& read) {
  ChannelState& state = states_[channel];
  block(channel, state.by_caller + 1, due.micro_batch);
  const auto message = slot(channel, state.by_caller);
  Stamp stamp;
  std::memcpy(&stamp, message.data(), sizeof stamp);
  if (stamp.step != due.step || stamp.micro_batch != due.micro_batch) {
    const std::string reason = str("rank ", comm_->world_rank(channels_[channel].peer), " sent micro-batch ",
                                   stamp.micro_batch, " of step ", stamp.step, " where micro-batch ", due.micro_batch,
                                   " of step ", due.step, " is due (", channels_[channel].name, ")");
    comm_->give_up(reason);
    throw CommError(str("[courier] rank ", comm_->world_rank(comm_->rank()), ": ", reason));
  }
  read(message.subspan(kHead));
  ++state.totals.messages;
  const Lock lock(mutex_);
  ++state.by_caller;
  notify_thread();
  return stamp;
}

void Courier::Impl::notify_thread() {
  has_news_ = true;
  for_thread_.notify_one();
}

void Courier::Impl::block(size_t channel, int64_t finished, int64_t micro_batch) {
  ChannelState& state = states_[channel];
  Lock lock(mutex_);
  if (!error_ && state.finished < finished) {
    const auto start = Clock::now();
    wait_ = {channel, finished, micro_batch, start};
    notify_thread();
    for_caller_.wait(lock, [&] { return error_ || state.finished >= finished; });
    state.totals.waited += Clock::now() - start;
  }
  if (error_) std::rethrow_exception(error_);
}

// --- the thread -----------------------------------------------------------------------------------------------------

void Courier::Impl::run() {
  Lock lock(mutex_);
  try {
    carry(lock);
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    error_ = std::current_exception();
    for_caller_.notify_all();
  }
}

void Courier::Impl::carry(Lock& lock) {
  while (!ends_ || has_unfinished_sends()) {
    const bool went_on = advance(lock);
    if (Clock::now() >= next_look_) look(lock);
    if (!went_on) rest(lock);
  }
}

bool Courier::Impl::has_unfinished_sends(size_t channel) const {
  return channels_[channel].sends && states_[channel].finished < states_[channel].by_caller;
}

bool Courier::Impl::has_unfinished_sends() const {
  for (size_t i = 0; i < states_.size(); ++i)
    if (has_unfinished_sends(i)) return true;
  return false;
}

bool Courier::Impl::advance(Lock& lock) {
  has_news_ = false;
  std::vector<int64_t> startable, finished;
  for (size_t i = 0; i < states_.size(); ++i) {
    startable.push_back(states_[i].by_caller + (channels_[i].sends ? 0 : channels_[i].slots));
    finished.push_back(states_[i].finished);
  }
  lock.unlock();
  bool went_on = false;
  for (size_t i = 0; i < states_.size(); ++i) {
    const Channel& channel = channels_[i];
    ChannelState& state = states_[i];
    const Tag tag{static_cast<int>(Tag::channel) + channel.number};
    for (; state.started < startable[i]; ++state.started) {
      const auto message = slot(i, state.started);
      state.requests[state.started % channel.slots] =
          channel.sends ? comm_->send(channel.peer, tag, message) : comm_->receive(channel.peer, tag, message);
    }
    // Messages of a channel end in their order, so only the oldest is tested.
    while (finished[i] < state.started &&
           comm_->test(state.requests[finished[i] % channel.slots], {.collective = channel.name, .stage = 0})) {
      ++finished[i];
      went_on = true;
    }
  }
  lock.lock();
  for (size_t i = 0; i < states_.size(); ++i) states_[i].finished = finished[i];
  // The wait ends here and not where the caller wakes up, so that this thread hears what the caller does next.
  if (wait_ && states_[wait_->channel].finished >= wait_->finished) {
    wait_.reset();
    for_caller_.notify_all();
  }
  return went_on;
}

// Without a look nobody would hear while this rank computes that another one gave up.
void Courier::Impl::look(Lock& lock) {
  const auto wait = wait_;
  const int64_t finished = wait ? states_[wait->channel].finished : 0;
  lock.unlock();
  if (wait) {
    const Channel& channel = channels_[wait->channel];
    comm_->check_wait(
        states_[wait->channel].requests[finished % channel.slots], wait->start,
        {.collective = channel.name, .stage = static_cast<int>(wait->micro_batch), .unit = "micro-batch"});
  } else {
    comm_->check_wait(Request(), {}, {.collective = "messages of a pipeline", .stage = 1});
  }
  next_look_ = Clock::now() + kNoticeInterval;
  lock.lock();
}

void Courier::Impl::rest(Lock& lock) {
  if (has_news_) return;  // it came while messages were tested
  if (wait_) {            // nobody computes
    lock.unlock();
    comm_->idle(next_look_);
    lock.lock();
  } else {
    for_thread_.wait_for(lock, has_unfinished_sends() ? kSleepBesideSends : kSleepBesideReceives,
                         [&] { return has_news_; });
  }
}

// --- the interface --------------------------------------------------------------------------------------------------

int64_t Courier::memory_bytes(std::span<const Channel> channels) {
  int64_t sum = 0;
  for (const Channel& channel : channels) sum += channel.slots * slot_bytes(channel);
  return sum;
}

Courier::Courier(std::shared_ptr<Communicator> comm, std::vector<Channel> channels, std::span<std::byte> memory)
    : impl_(std::make_unique<Impl>(std::move(comm), std::move(channels), memory)) {}
Courier::~Courier() = default;

const std::vector<Channel>& Courier::channels() const {
  return impl_->channels();
}

void Courier::send(size_t channel, const Stamp& stamp, const std::function<void(std::span<std::byte>)>& write) {
  impl_->send(channel, stamp, write);
}

Stamp Courier::receive(size_t channel, const Stamp& due, const std::function<void(std::span<const std::byte>)>& read) {
  return impl_->receive(channel, due, read);
}

ChannelTotals Courier::totals(size_t channel) const {
  return impl_->totals(channel);
}

}  // namespace spillway::ddl
