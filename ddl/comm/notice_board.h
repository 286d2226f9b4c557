/// Notices between ranks beside their collectives: a rank gave up and why, or it is busy and will come.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.h"
#include "ddl/comm/transport.h"

namespace spillway::ddl {

/// Returns the ranks as text: `rank 3`, `ranks 3 5`.
std::string describe_ranks(const std::vector<int>& ranks);

/// Returns the beginning of a UTF-8 text, of at most so many bytes, that ends between two characters.
inline std::string beginning_of(const std::string& text, size_t bytes) {
  if (text.size() <= bytes) return text;
  const auto goes_on = [](char c) { return (static_cast<uint8_t>(c) & 0xc0) == 0x80; };
  while (bytes > 0 && goes_on(text[bytes])) --bytes;
  return text.substr(0, bytes);
}

/// A notice, small enough that every transport sends it without its receiver's help.
struct Notice {
  enum class Kind : int32_t { gave_up, timed_out, busy };
  Kind kind = Kind::busy;
  int32_t sender = -1;
  int32_t origin = -1;  ///< the rank that gave up first, as far as the sender knows
  int32_t exit_code = 0;
  std::array<char, 496> reason{};  ///< UTF-8 that ends with a zero

  /// Returns this notice with a reason, which is cut between two characters where it is too long.
  Notice about(const std::string& why) const {
    Notice notice = *this;
    const std::string kept = beginning_of(why, notice.reason.size() - 1);
    std::copy(kept.begin(), kept.end(), notice.reason.begin());
    return notice;
  }
  /// Returns true where kind and ranks are those of a notice among `ranks` ranks. A wire may have brought anything.
  bool is_sound(int ranks) const {
    const auto is_rank = [ranks](int32_t rank) { return rank >= 0 && rank < ranks; };
    return kind >= Kind::gave_up && kind <= Kind::busy && is_rank(sender) && is_rank(origin);
  }
  /// Returns the reason as text.
  std::string text() const { return {reason.begin(), std::find(reason.begin(), reason.end(), '\0')}; }
};

/// The reason why nothing more is communicated.
struct Death {
  std::string reason;
  int origin = -1;    ///< the other rank that gave up and said why; -1: this rank found out by itself
  int exit_code = 0;  ///< exit code of that rank; 0: it did not say
};

/// One rank's end of a wire for notices. A communicator and its duplicates share it, because they die together. Nothing
/// is sent or received outside calls, and a call costs one poll. Thread-safe.
class NoticeBoard {
 public:
  /// Makes a board over `transport`, which is this board's alone. `grace` is the time that survivors wait for each
  /// other's answer to a roll call.
  NoticeBoard(std::unique_ptr<Transport> transport, std::chrono::milliseconds grace);
  ~NoticeBoard();
  NoticeBoard(const NoticeBoard&) = delete;
  NoticeBoard& operator=(const NoticeBoard&) = delete;

  /// True once the wire is made; false while a collective that makes it is under way on other ranks. Never blocks.
  bool ready() { return transport_->ready(); }
  /// Tells every other rank why this one cannot go on. The first reason counts, so it does nothing on a dead board.
  /// Takes up to 50 ms.
  void give_up(const std::string& reason, int exit_code) noexcept;
  /// Tells every other rank that this one is alive, however long it says nothing else. Does not wait.
  void tell_busy() noexcept;
  /// Reads the notices that have come, unless another thread does so. `where` describes the caller's wait, for a
  /// death's reason.
  void look(std::string_view where) noexcept;
  /// Calls the roll: every survivor posts a notice and reads the others'. A rank that posts none is silent. The board
  /// is dead afterwards. Its reason is the text that `explain` makes of the silent ranks, or a reason that came
  /// meanwhile.
  void time_out(const std::string& reason, const std::function<std::string(const std::vector<int>& silent)>& explain);

  bool dead() const noexcept { return dead_; }
  /// Returns why the board is dead; only to be called when it is dead.
  const Death& death() const noexcept { return death_; }
  /// Returns when another rank was last heard to be busy.
  Clock::time_point last_busy() const noexcept { return Clock::time_point(Clock::duration(last_busy_)); }

 private:
  using Kind = Notice::Kind;
  struct Letter;
  using Lock = std::unique_lock<std::mutex>;

  void post(const Notice& notice, const std::vector<int>& peers) noexcept;
  void deliver(std::chrono::milliseconds at_most) noexcept;
  /// Gives the processor away, also where the transport fails: a board must tell a failure, not make one.
  void pause(Clock::time_point until) noexcept;
  /// True when a notice came; `notice` is then that one.
  bool take(Notice& notice) noexcept;
  void handle(const Notice& notice, std::string_view where);
  std::vector<int> find_silent_ranks(const Notice& own);
  void die(Death death);
  std::vector<int> others() const;

  std::mutex mutex_;
  std::unique_ptr<Transport> transport_;
  const std::chrono::milliseconds grace_;
  const int rank_;
  const int size_;
  std::unique_ptr<Notice> incoming_;
  Request request_;
  std::list<Letter> letters_;   ///< notices that are being sent
  std::vector<bool> answered_;  ///< by rank: true when it has answered the roll call
  std::atomic<Clock::rep> last_busy_;
  std::atomic<bool> dead_ = false;
  Death death_;  ///< written once, before dead_
};

}  // namespace spillway::ddl
