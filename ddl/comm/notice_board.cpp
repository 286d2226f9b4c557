#include "ddl/comm/notice_board.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

#include "core/error.h"

namespace spillway::ddl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRollInterval{10};
/// The longest time that the last notices of a rank may take to leave.
constexpr milliseconds kFarewell{50};

}  // namespace

std::string describe_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (const int rank : ranks) text += str(" ", rank);
  return text;
}

/// A notice on its way to some ranks.
struct NoticeBoard::Letter {
  Notice notice;
  std::vector<Request> sends;
};

NoticeBoard::NoticeBoard(std::unique_ptr<Transport> transport, milliseconds grace)
    : transport_(std::move(transport)),
      grace_(grace),
      rank_(transport_->rank()),
      size_(std::ssize(transport_->hosts())),
      incoming_(std::make_unique<Notice>()),
      answered_(size_),
      last_busy_(Clock::time_point::min().time_since_epoch().count()) {}

// The transport is destroyed first, because until then notices may still arrive in this object's memory.
NoticeBoard::~NoticeBoard() {
  transport_.reset();
}

std::vector<int> NoticeBoard::others() const {
  std::vector<int> peers;
  for (int step = 1; step < size_; ++step) peers.push_back((rank_ + step) % size_);
  return peers;
}

void NoticeBoard::give_up(const std::string& reason, int exit_code) noexcept {
  const Lock lock(mutex_);
  if (dead_) return;
  post(Notice{Kind::gave_up, rank_, rank_, exit_code}.about(reason), others());
  deliver(kFarewell);
  die({reason, -1, exit_code});
}

void NoticeBoard::tell_busy() noexcept {
  const Lock lock(mutex_);
  if (dead_) return;
  deliver(milliseconds(0));
  // A rank that has not taken the last notice needs no further one.
  if (letters_.empty()) post(Notice{Kind::busy, rank_, rank_}, others());
}

void NoticeBoard::look(std::string_view where) noexcept {
  const Lock lock(mutex_, std::try_to_lock);
  if (!lock) return;
  Notice notice;
  while (!dead_ && take(notice)) handle(notice, where);
  if (!dead_) deliver(milliseconds(0));
}

void NoticeBoard::time_out(const std::string& reason,
                           const std::function<std::string(const std::vector<int>&)>& explain) {
  const Lock lock(mutex_);
  if (dead_) return;
  const std::vector<int> silent = find_silent_ranks(Notice{Kind::timed_out, rank_, rank_}.about(reason));
  if (!dead_) die({explain(silent)});
}

void NoticeBoard::handle(const Notice& notice, std::string_view where) {
  answered_[notice.sender] = answered_[notice.sender] || notice.kind != Kind::busy;
  if (notice.kind == Kind::busy) {
    last_busy_ = Clock::now().time_since_epoch().count();
    return;
  }
  const std::string reason = str("rank ", notice.origin, " gave up: ", notice.text());
  Notice own = notice;
  own.sender = rank_;
  if (notice.kind == Kind::timed_out) {
    const std::vector<int> silent = find_silent_ranks(own);
    if (dead_) return;
    return die({silent.empty() ? reason : str("no answer from ", describe_ranks(silent), " ", where, "; ", reason),
                notice.origin, notice.exit_code});
  }
  // The origin tells every rank. It may have ended in between, so its notice is passed on as an agreement's votes are.
  // All ranks together then send size · log2(size) notices.
  std::vector<int> peers;
  for (int step = 1; step < size_; step *= 2) peers.push_back((rank_ + step) % size_);
  post(own, peers);
  deliver(kFarewell);
  die({reason, notice.origin, notice.exit_code});
}

std::vector<int> NoticeBoard::find_silent_ranks(const Notice& own) {
  post(own, others());
  answered_[rank_] = true;
  const auto end = Clock::now() + grace_;
  std::vector<int> silent;
  do {
    pause(std::min(end, Clock::now() + kRollInterval));
    deliver(milliseconds(0));
    Notice notice;
    while (take(notice)) {
      if (notice.kind == Kind::busy) continue;
      answered_[notice.sender] = true;
      // A reason other than silence explains the silence of others.
      if (notice.kind != Kind::gave_up) continue;
      handle(notice, "");
      return {};
    }
    silent.clear();
    for (int peer = 0; peer < size_; ++peer)
      if (!answered_[peer]) silent.push_back(peer);
  } while (!silent.empty() && Clock::now() < end);
  return silent;
}

void NoticeBoard::post(const Notice& notice, const std::vector<int>& peers) noexcept {
  Letter& letter = letters_.emplace_back(Letter{notice, {}});
  for (const int peer : peers) {
    try {
      letter.sends.push_back(transport_->send(peer, Tag::notice, std::as_bytes(std::span(&letter.notice, 1))));
    } catch (const std::exception&) {
      // The peer may be the reason for the failure; the other ranks must still hear of it.
    }
  }
}

void NoticeBoard::deliver(milliseconds at_most) noexcept {
  const auto gone = [this](Request& request) {
    try {
      return transport_->test(request);
    } catch (const std::exception&) {
      return true;  // the peer may be the reason for the failure
    }
  };
  const auto end = Clock::now() + at_most;
  for (Letter& letter : letters_)
    std::erase_if(letter.sends, [&](Request& request) {
      bool sent = gone(request);
      while (!sent && Clock::now() < end) {
        pause(end);
        sent = gone(request);
      }
      return sent;
    });
  std::erase_if(letters_, [](const Letter& letter) { return letter.sends.empty(); });
}

void NoticeBoard::pause(Clock::time_point until) noexcept {
  try {
    transport_->idle(until);
  } catch (const std::exception&) {
    std::this_thread::sleep_until(std::min(until, Clock::now() + milliseconds(1)));
  }
}

bool NoticeBoard::take(Notice& notice) noexcept {
  if (size_ == 1) return false;
  try {
    if (!request_.active())
      request_ = transport_->receive(kAnyRank, Tag::notice, std::as_writable_bytes(std::span(incoming_.get(), 1)));
    if (!transport_->test(request_)) return false;
  } catch (const std::exception&) {
    return false;  // No notice will come; ranks that only this wire reaches count as silent.
  }
  notice = *incoming_;
  return notice.is_sound(size_);
}

void NoticeBoard::die(Death death) {
  death_ = std::move(death);
  dead_ = true;
}

}  // namespace spillway::ddl
