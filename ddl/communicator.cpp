#include "ddl/communicator.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>

#include "core/error.h"

namespace spillway::ddl {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// How often a waiting rank looks for notices; testing for them costs one poll per peer.
constexpr milliseconds kNoticeInterval{10};

std::string seconds(milliseconds time) {
  return str(static_cast<double>(time.count()) / 1000, " s");
}

std::string describe(const Stage& stage) {
  const std::string place = stage.level > 0 ? str("level ", stage.level, " of ", stage.levels, ", ") : std::string();
  return str("(", place, stage.collective, ", stage ", stage.stage, ")");
}

std::string describe_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (const int rank : ranks) {
    text += str(" ", rank);
  }
  return text;
}

/// Any labels → 0, 1, 2, … in order of first appearance.
std::vector<int> ordinals(const std::vector<int>& labels) {
  std::map<int, int> known;
  std::vector<int> result;
  for (const int label : labels) {
    result.push_back(known.emplace(label, static_cast<int>(known.size())).first->second);
  }
  return result;
}

/// How long survivors wait for each other's notices.
milliseconds grace_of(milliseconds deadline) {
  return std::clamp(deadline / 2, milliseconds(200), milliseconds(2000));
}

}  // namespace

/// A last word, small enough that every transport sends it without its receiver's help.
struct Communicator::Notice {
  int timed_out = 0;
  int origin = -1;  ///< the rank that gave up first, as far as the sender knows
  char reason[504] = {};
};

void CommOptions::validate(int world_size) const {
  if (deadline < milliseconds(1) || deadline > std::chrono::hours(24)) {
    throw BadRequest(str("[ddl] deadline is ", deadline.count(), " ms; allowed: 1 ms to 86400000 ms (1 day)"));
  }
  for (const auto& groups : levels) {
    if (static_cast<int>(groups.size()) != world_size)
      throw BadRequest(
          str("[ddl] levels are declared for ", groups.size(), " ranks, but ", world_size, " are running"));
  }
}

Communicator::Communicator(std::unique_ptr<Transport> transport, CommOptions options)
    : transport_(std::move(transport)),
      options_((options.validate(static_cast<int>(transport_->hosts().size())), std::move(options))),
      rank_(transport_->rank()),
      hosts_(ordinals(transport_->hosts())),
      levels_(static_cast<int>(hosts_.size()),
              options_.levels.empty() ? std::vector<std::vector<int>>{hosts_} : options_.levels) {
  notice_out_ = std::make_unique<Notice>();
  notices_in_.resize(size());
  notice_requests_.resize(size());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer != rank_) {
      notice_requests_[peer] = receive(peer, Tag::notice, std::as_writable_bytes(std::span(&notices_in_[peer], 1)));
    }
  }
}

// The transport goes first: until then notices may still arrive in our buffers.
Communicator::~Communicator() {
  transport_.reset();
}

std::shared_ptr<Communicator> Communicator::duplicate() {
  require_alive();
  try {
    return std::make_shared<Communicator>(transport_->duplicate(), options_);
  } catch (const std::runtime_error& error) {
    fail(str("cannot duplicate the communicator: ", error.what()));
  }
}

int Communicator::local_rank() const {
  return static_cast<int>(std::count(hosts_.begin(), hosts_.begin() + rank_, hosts_[rank_]));
}

int Communicator::local_size() const {
  return static_cast<int>(std::count(hosts_.begin(), hosts_.end(), hosts_[rank_]));
}

Request Communicator::send(int peer, Tag tag, std::span<const std::byte> bytes) {
  require_alive();
  try {
    return transport_->send(peer, tag, bytes);
  } catch (const std::exception& error) {
    fail(str("cannot send ", bytes.size(), " bytes to rank ", peer, ": ", error.what()));
  }
}

Request Communicator::receive(int peer, Tag tag, std::span<std::byte> bytes) {
  require_alive();
  try {
    return transport_->receive(peer, tag, bytes);
  } catch (const std::exception& error) {
    fail(str("cannot receive ", bytes.size(), " bytes from rank ", peer, ": ", error.what()));
  }
}

void Communicator::wait(std::span<Request> requests, const Stage& stage) {
  require_alive();
  const auto end = Clock::now() + options_.deadline;
  auto next_look = Clock::now() + kNoticeInterval;
  for (Request& request : requests) {
    while (!finished(request, stage)) {
      const auto now = Clock::now();
      if (now >= end) {
        time_out(request.peer, stage);
      }
      if (now >= next_look) {
        if (interrupted_) fail(str("was interrupted ", describe(stage)));
        heed_notices(stage);
        next_look = now + kNoticeInterval;
        continue;  // The look may have swallowed the event that idle would wake for.
      }
      transport_->idle(std::min(next_look, end));
    }
  }
}

void Communicator::wait_until(const std::function<bool()>& done, const Stage& stage) {
  require_alive();
  const auto end = Clock::now() + options_.deadline;
  auto next_look = Clock::now() + kNoticeInterval;
  while (!done_or_fail(done, stage)) {
    const auto now = Clock::now();
    if (now >= end) time_out(stage);
    if (now >= next_look) {
      if (interrupted_) fail(str("was interrupted ", describe(stage)));
      heed_notices(stage);
      next_look = now + kNoticeInterval;
    }
    std::this_thread::yield();
  }
}

bool Communicator::done_or_fail(const std::function<bool()>& done, const Stage& stage) {
  try {
    return done();
  } catch (const std::exception& error) {
    fail(str(error.what(), " ", describe(stage)));
  }
}

bool Communicator::finished(Request& request, const Stage& stage) {
  const int peer = request.peer;
  try {
    return transport_->test(request);
  } catch (const std::exception& error) {
    fail(str("the message with rank ", peer, " failed ", describe(stage), ": ", error.what()));
  }
}

void Communicator::fail(const std::string& reason) {
  require_alive();
  post_notice(rank_, reason, false);
  die(reason);
}

void Communicator::require_alive() const {
  if (dead()) {
    throw CommError(str("[ddl] rank ", rank_, ": this communicator is dead since: ", death_));
  }
}

void Communicator::die(const std::string& reason) {
  death_ = reason;
  transport_->abandon();
  throw CommError(str("[ddl] rank ", rank_, ": ", reason));
}

void Communicator::post_notice(int origin, const std::string& reason, bool timed_out) {
  notice_out_->origin = origin;
  notice_out_->timed_out = timed_out;
  std::strncpy(notice_out_->reason, reason.c_str(), sizeof(notice_out_->reason) - 1);
  std::vector<Request> sends;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    try {
      sends.push_back(transport_->send(peer, Tag::notice, std::as_bytes(std::span(notice_out_.get(), 1))));
    } catch (const std::exception&) {
      // The peer may be why we fail; the others must still hear of it.
    }
  }
  const auto end = Clock::now() + milliseconds(50);
  for (Request& request : sends) {
    try {
      while (!transport_->test(request) && Clock::now() < end) {
        transport_->idle(end);
      }
    } catch (const std::exception&) {
      // As above.
    }
  }
}

int Communicator::collect_notices() {
  int telling = -1;
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank_) continue;
    try {
      if (!transport_->test(notice_requests_[peer])) continue;
    } catch (const std::exception&) {
      continue;  // No notice will come; the rank counts as silent.
    }
    // A reason other than silence explains the silence of others.
    if (telling < 0 || (notices_in_[telling].timed_out && !notices_in_[peer].timed_out)) {
      telling = peer;
    }
  }
  return telling;
}

std::vector<int> Communicator::call_the_roll(int origin, const std::string& reason) {
  post_notice(origin, reason, true);
  const auto end = Clock::now() + grace_of(options_.deadline);
  std::vector<int> silent;
  do {
    transport_->idle(std::min(end, Clock::now() + kNoticeInterval));
    collect_notices();
    silent.clear();
    for (int peer = 0; peer < size(); ++peer) {
      if (notice_requests_[peer].active()) silent.push_back(peer);
    }
  } while (!silent.empty() && Clock::now() < end);
  return silent;
}

void Communicator::heed_notices(const Stage& stage) {
  const int peer = collect_notices();
  if (peer < 0) return;
  const Notice notice = notices_in_[peer];
  const std::string reason = str("rank ", notice.origin, " gave up: ", notice.reason);
  if (!notice.timed_out) {
    post_notice(notice.origin, notice.reason, false);
    die(reason);
  }
  const std::vector<int> silent = call_the_roll(notice.origin, notice.reason);
  die(silent.empty() ? reason : str("no answer from ", describe_ranks(silent), " ", describe(stage), "; ", reason));
}

void Communicator::time_out(int peer, Stage stage) {
  if (stage.level == 0) {
    stage.level = levels_.joining(rank_, peer);
    stage.levels = levels_.count();
  }
  const std::string where = str("within ", seconds(options_.deadline), " ", describe(stage));
  std::vector<int> silent = call_the_roll(rank_, str("no answer from rank ", peer, " ", where));
  if (silent.empty()) {
    die(str("rank ", peer, " is alive but did not answer ", where, ": the ranks do not make the same calls"));
  }
  // The rank we wait for is the cause if it is silent; another silent one may only be busy elsewhere.
  const bool awaited_is_silent = std::erase(silent, peer) > 0;
  const std::string others = silent.empty() ? "" : describe_ranks(silent);
  if (awaited_is_silent) {
    die(str("no answer from rank ", peer, " ", where, others.empty() ? "" : "; silent too: ", others));
  }
  die(str("no answer from ", others, " ", where));
}

void Communicator::time_out(const Stage& stage) {
  const std::string reason = str("no end within ", seconds(options_.deadline), " ", describe(stage));
  const std::vector<int> silent = call_the_roll(rank_, reason);
  die(silent.empty() ? reason : str(reason, "; silent: ", describe_ranks(silent)));
}

}  // namespace spillway::ddl
