#include "ddl/comm/communicator.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <thread>

#include "core/clock.h"
#include "core/error.h"
#include "core/host/vain_polls.h"
#include "ddl/comm/notice_board.h"
#include "ddl/comm/transport.h"

namespace spillway::ddl {
namespace {

using std::chrono::milliseconds;

/// The interval at which a waiting rank looks for notices. Each look costs one poll.
constexpr milliseconds kNoticeInterval{10};

std::string seconds(milliseconds time) {
  return str(static_cast<double>(time.count()) / 1000, " s");
}

std::string describe(const CollectivePosition& stage) {
  const std::string place = stage.level > 0 ? str("level ", stage.level, " of ", stage.levels, ", ") : std::string();
  return str("(", place, stage.collective, ", ", stage.unit, " ", stage.stage, ")");
}

/// Maps any labels to 0, 1, 2, … in order of first appearance.
std::vector<int> ordinals(const std::vector<int>& labels) {
  std::map<int, int> known;
  std::vector<int> result;
  for (const int label : labels) {
    result.push_back(known.emplace(label, std::ssize(known)).first->second);
  }
  return result;
}

std::vector<int> all_of(int size) {
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/// Returns the time that survivors wait for each other's notices.
milliseconds grace_of(milliseconds deadline) {
  return std::clamp(deadline / 2, milliseconds(200), milliseconds(2000));
}

void check_deadline(milliseconds deadline) {
  if (deadline < milliseconds(1) || deadline > std::chrono::hours(24))
    throw BadRequest(str("[ddl] deadline is ", deadline.count(), " ms; allowed: 1 ms to 86400000 ms (1 day)"));
}

}  // namespace

void CommOptions::validate(int world_size) const {
  check_deadline(deadline);
  for (const auto& groups : levels) {
    if (std::ssize(groups) != world_size)
      throw BadRequest(
          str("[ddl] levels are declared for ", groups.size(), " ranks, but ", world_size, " are running"));
  }
}

Communicator::Communicator(std::unique_ptr<Transport> transport, CommOptions options,
                           std::shared_ptr<NoticeBoard> board, std::vector<int> world_ranks)
    : transport_(std::move(transport)),
      declared_levels_((options.validate(std::ssize(transport_->hosts())), std::move(options.levels))),
      deadline_(options.deadline),
      rank_(transport_->rank()),
      hosts_(ordinals(transport_->hosts())),
      world_ranks_(world_ranks.empty() ? all_of(size()) : std::move(world_ranks)),
      levels_(std::ssize(hosts_), declared_levels_.empty() ? std::vector<std::vector<int>>{hosts_} : declared_levels_),
      board_(std::move(board)) {}

Communicator::Communicator(std::unique_ptr<Transport> transport, CommOptions options)
    : Communicator(std::move(transport), std::move(options), nullptr, {}) {
  board_ = std::make_shared<NoticeBoard>(transport_->duplicate(), grace_of(deadline()));
  // No rank can be told of anything before the board is there. So the transport tells who has ended.
  const auto end = Clock::now() + deadline();
  try {
    for (; !board_->ready(); transport_->idle(end))
      if (Clock::now() >= end)
        throw std::runtime_error(str("not all of ", size(), " ranks came within ", seconds(deadline())));
  } catch (const std::runtime_error& error) {
    throw CommError(str("[ddl] rank ", rank_, ": no communicator was made: ", error.what()));
  }
}

Communicator::~Communicator() = default;

void Communicator::set_deadline(milliseconds deadline) {
  check_deadline(deadline);
  deadline_ = deadline;
}

bool Communicator::is_simulated() const noexcept {
  return transport_->is_simulated();
}

bool Communicator::dead() const noexcept {
  return board_->dead();
}

void Communicator::give_up(const std::string& reason, int exit_code) noexcept {
  board_->give_up(reason, exit_code);
}

int Communicator::local_rank() const {
  return std::count(hosts_.begin(), hosts_.begin() + rank_, hosts_[rank_]);
}

int Communicator::local_size() const {
  return std::count(hosts_.begin(), hosts_.end(), hosts_[rank_]);
}

Request Communicator::send(int peer, Tag tag, std::span<const std::byte> bytes) {
  require_alive();
  ++started_;
  try {
    return transport_->send(peer, tag, bytes);
  } catch (const std::exception& error) {
    fail(str("cannot send ", bytes.size(), " bytes to rank ", world_rank(peer), ": ", error.what()));
  }
}

Request Communicator::receive(int peer, Tag tag, std::span<std::byte> bytes) {
  require_alive();
  ++started_;
  try {
    return transport_->receive(peer, tag, bytes);
  } catch (const std::exception& error) {
    fail(str("cannot receive ", bytes.size(), " bytes from rank ", world_rank(peer), ": ", error.what()));
  }
}

Clock::time_point Communicator::end_of_wait(Clock::time_point start) const {
  return std::max(start, board_->last_busy()) + deadline();
}

void Communicator::wait(std::span<Request> requests, const CollectivePosition& stage) {
  require_alive();
  auto next_look = Clock::now() + kNoticeInterval;
  for (Request& request : requests) {
    for (const auto start = Clock::now(); !test(request, stage);) {
      const auto now = Clock::now(), end = end_of_wait(start);
      if (now >= next_look || now >= end) {
        check_wait(request, start, stage);
        next_look = now + kNoticeInterval;
      }
      idle(std::min(next_look, end));
    }
  }
}

void Communicator::check_wait(const Request& request, Clock::time_point start, const CollectivePosition& stage) {
  read_notices(stage);
  if (request.peer < 0) return;
  if (transport_->will_never_finish(request))
    fail(str("rank ", world_rank(request.peer), " has ended, and owes a message ", describe(stage)));
  if (Clock::now() >= end_of_wait(start)) time_out(request.peer, stage);
}

void Communicator::idle(Clock::time_point until) {
  try {
    transport_->idle(until);
  } catch (const std::exception& error) {
    fail(str("messages cannot go on: ", error.what()));
  }
}

void Communicator::wait_until(const std::function<bool()>& done, const CollectivePosition& stage) {
  require_alive();
  const auto start = Clock::now();
  auto next_look = start + kNoticeInterval;
  VainPolls polls;
  while (!done_or_fail(done, stage)) {
    const auto now = Clock::now();
    if (now >= next_look) {
      read_notices(stage);
      next_look = now + kNoticeInterval;
    }
    if (now >= end_of_wait(start)) time_out(stage);
    if (!polls.yield()) std::this_thread::sleep_for(kSleepBetweenPolls);
  }
}

bool Communicator::done_or_fail(const std::function<bool()>& done, const CollectivePosition& stage) {
  try {
    return done();
  } catch (const std::exception& error) {
    fail(str(error.what(), " ", describe(stage)));
  }
}

bool Communicator::test(Request& request, const CollectivePosition& stage) {
  const int peer = request.peer;
  try {
    return transport_->test(request);
  } catch (const std::exception& error) {
    fail(str("the message with rank ", world_rank(peer), " failed ", describe(stage), ": ", error.what()));
  }
}

void Communicator::fail(const std::string& reason) {
  require_alive();
  give_up(reason);
  die();
}

void Communicator::abandon(const std::string& reason) noexcept {
  give_up(reason);
  if (!abandoned_) transport_->abandon();
  abandoned_ = true;
}

void Communicator::require_alive() {
  if (!dead()) return;
  const Death& death = board_->death();
  abandon(death.reason);
  throw CommError(str("[ddl] rank ", world_rank(rank_), ": this communicator is dead since: ", death.reason),
                  death.origin, death.exit_code);
}

void Communicator::die() {
  const Death& death = board_->death();
  abandon(death.reason);
  throw CommError(str("[ddl] rank ", world_rank(rank_), ": ", death.reason), death.origin, death.exit_code);
}

void Communicator::read_notices(const CollectivePosition& stage) {
  board_->look(describe(stage));
  if (dead()) die();
}

void Communicator::time_out(int peer, CollectivePosition stage) {
  if (stage.level == 0) {
    stage.level = levels_.joining(rank_, peer);
    stage.levels = levels_.count();
  }
  const int named = world_rank(peer);
  const std::string where = str("within ", seconds(deadline()), " ", describe(stage));
  board_->time_out(str("no answer from rank ", named, " ", where), [&](std::vector<int> silent) {
    if (silent.empty())
      return str("rank ", named, " is alive but did not answer ", where, ": the ranks do not make the same calls");
    // The rank we wait for is the cause if it is silent; another silent one may only be busy elsewhere.
    const bool awaited_is_silent = std::erase(silent, named) > 0;
    const std::string others = silent.empty() ? "" : describe_ranks(silent);
    if (!awaited_is_silent) return str("no answer from ", others, " ", where);
    return str("no answer from rank ", named, " ", where, others.empty() ? "" : "; silent too: ", others);
  });
  die();
}

void Communicator::time_out(const CollectivePosition& stage) {
  const std::string reason = str("no end within ", seconds(deadline()), " ", describe(stage));
  board_->time_out(reason, [&](const std::vector<int>& silent) {
    return silent.empty() ? reason : str(reason, "; silent: ", describe_ranks(silent));
  });
  die();
}

}  // namespace spillway::ddl
