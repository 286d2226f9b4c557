/// How ranks hear of each other beside their collectives: one gave up and why, or is busy and will come.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "ddl/comm/transport.h"

namespace spillway::ddl {

/// `rank 3`, `ranks 3 5`.
std::string describe_ranks(const std::vector<int>& ranks);

/// Why nothing more is communicated.
struct Death {
  std::string reason;
  int origin = -1;    ///< the other rank that gave up and said why; -1: this rank found out by itself
  int exit_code = 0;  ///< what that rank ends with; 0: it did not say
};

/// One rank's end of a wire for notices, which a communicator and its duplicates share: they die together. Nothing is
/// sent or received outside calls, and a call costs one poll. Thread-safe.
class NoticeBoard {
 public:
  using Clock = std::chrono::steady_clock;

  /// `transport` is this board's alone. `grace`: how long survivors wait for each other's answer to a roll call.
  NoticeBoard(std::unique_ptr<Transport> transport, std::chrono::milliseconds grace);
  ~NoticeBoard();
  NoticeBoard(const NoticeBoard&) = delete;
  NoticeBoard& operator=(const NoticeBoard&) = delete;

  /// False while a collective that makes the wire is under way on other ranks. Never blocks.
  bool ready() { return transport_->ready(); }
  /// Tells every other rank why this one cannot go on. The first reason counts: does nothing on a dead board. Takes up
  /// to 50 ms.
  void give_up(const std::string& reason, int exit_code) noexcept;
  /// Tells every other rank that this one is alive, however long it says nothing else. Does not wait.
  void tell_busy() noexcept;
  /// Reads what has come, unless another thread does so. `where`: what the caller waits for, for a death's reason.
  void look(std::string_view where) noexcept;
  /// Calls the roll: every survivor posts a notice and reads the others', and who posts none is silent. The board is
  /// dead afterwards of what `explain` makes of the silent ranks, or of a reason that came meanwhile.
  void time_out(const std::string& reason, const std::function<std::string(const std::vector<int>& silent)>& explain);

  bool dead() const noexcept { return dead_; }
  /// Returns why the board is dead; only where it is.
  const Death& death() const noexcept { return death_; }
  /// When another rank was last heard to be busy.
  Clock::time_point last_busy() const noexcept { return Clock::time_point(Clock::duration(last_busy_)); }

 private:
  enum class Kind : int32_t { gave_up, timed_out, busy };
  struct Notice;
  struct Letter;
  using Lock = std::unique_lock<std::mutex>;

  void post(const Notice& notice, const std::vector<int>& peers) noexcept;
  void deliver(std::chrono::milliseconds at_most) noexcept;
  /// True, and `notice` is one that came.
  bool take(Notice& notice) noexcept;
  void heed(const Notice& notice, std::string_view where);
  std::vector<int> call_the_roll(const Notice& own);
  void die(Death death);
  std::vector<int> others() const;

  std::mutex mutex_;
  std::unique_ptr<Transport> transport_;
  const std::chrono::milliseconds grace_;
  const int rank_;
  const int size_;
  std::unique_ptr<Notice> incoming_;
  Request request_;
  std::list<Letter> letters_;   ///< that are being sent
  std::vector<bool> answered_;  ///< by rank: the roll
  std::atomic<Clock::rep> last_busy_;
  std::atomic<bool> dead_ = false;
  Death death_;  ///< written once, before dead_
};

}  // namespace spillway::ddl
