/// Ranks and the point-to-point messages between them: what every collective is built on.
#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "ddl/comm/levels.h"
#include "ddl/comm/notice_board.h"
#include "ddl/comm/transport.h"

namespace spillway::ddl {

/// A rank did not answer within the deadline, gave up, or disagrees about what is being communicated. Names rank, level
/// and stage. The communicator and its duplicates are dead afterwards: every later call throws.
class CommError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  CommError(const std::string& what, int origin, int exit_code)
      : std::runtime_error(what), origin_(origin), exit_code_(exit_code) {}
  /// Returns the other rank that gave up and said why; -1: this rank found out by itself.
  int origin() const noexcept { return origin_; }
  /// Returns the exit code that the rank which gave up told; 0: it did not tell.
  int exit_code() const noexcept { return exit_code_; }

 private:
  int origin_ = -1;
  int exit_code_ = 0;
};

struct CommOptions {
  /// How long a wait for one message may last before the rank that owes it is given up; 1 ms to 1 day. Must exceed the
  /// longest time by which ranks are apart when they meet (a slow step), but for the time that one says it is Busy. A
  /// survivor spends up to 2 s more on finding out who else is alive.
  std::chrono::milliseconds deadline{60'000};
  /// Which ranks are near each other, level by level, as Levels takes it, the nearest first. Empty: the
  /// hosts that the transport discovered. The same on every rank.
  std::vector<std::vector<int>> levels = {};

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate(int world_size) const;
};

/// Where in a collective a rank is: for messages. `level` and `stage` count from 1; level 0: that of the message which
/// does not come, the lowest on which both its ranks are together.
struct Stage {
  std::string_view collective;
  int level = 0;
  int levels = 0;
  int stage = 0;
};

/// One rank's view of a world of ranks. Used by one thread at a time; ranks call the same collectives in the same
/// order. It and its duplicates live and die together: whichever dies first, the reason reaches all of them, on every
/// rank, within 10 ms of a wait there.
class Communicator {
 public:
  /// Collective: makes the wire for notices too. Throws CommError when a rank does not come within the deadline.
  explicit Communicator(std::unique_ptr<Transport> transport, CommOptions options = {});
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(hosts_.size()); }
  /// The host that each rank runs on, whatever is declared; counted from 0 in order of first appearance.
  const std::vector<int>& hosts() const noexcept { return hosts_; }
  /// As declared, else those of hosts().
  const Levels& levels() const noexcept { return levels_; }
  /// This rank's place among the ranks of its host, in rank order, and their number.
  int local_rank() const;
  int local_size() const;
  std::chrono::milliseconds deadline() const noexcept { return options_.deadline; }
  /// True after a CommError here or in a duplicate, for ever.
  bool dead() const noexcept { return board_->dead(); }

  /// Starts a message; see Transport. The request is finished by `wait`. Throws CommError when the transport fails.
  [[nodiscard]] Request send(int peer, Tag tag, std::span<const std::byte> bytes);
  [[nodiscard]] Request receive(int peer, Tag tag, std::span<std::byte> bytes);
  /// Blocks until all are finished, and empties them. Throws CommError naming the rank that owes a message, when it
  /// does not come within the deadline or another rank gave up; buffers of unfinished requests may then be freed.
  void wait(std::span<Request> requests, const Stage& stage);
  /// Blocks until `done`, which must not block, says true: for work beside messages, such as a card's, that all ranks
  /// do together. Throws CommError when `done` throws, when it does not come within the deadline, or another rank gave
  /// up.
  void wait_until(const std::function<bool()>& done, const Stage& stage);

  /// Tells the other ranks why, abandons every message, and throws CommError. Later calls throw the same reason.
  [[noreturn]] void fail(const std::string& reason);
  /// Tells the other ranks why this one cannot go on, and what it will end with, before that takes its time. Whoever
  /// waits in this communicator or a duplicate, now or later, gets a CommError. The first reason counts. Any thread.
  void give_up(const std::string& reason, int exit_code = 0) noexcept { board_->give_up(reason, exit_code); }
  /// That, and abandons every message at once: for memory that messages use and that is about to go.
  void abandon(const std::string& reason) noexcept;

  /// A further communicator over the same ranks, hosts and levels, with messages of its own, which another thread may
  /// use. Collective. Throws CommError when the transport fails or a rank does not come within the deadline.
  std::shared_ptr<Communicator> duplicate();

  /// How many collectives over all ranks were started before; then one more.
  int64_t next_sequence() noexcept { return sequence_++; }

 private:
  friend class Busy;
  Communicator(std::unique_ptr<Transport> transport, CommOptions options, std::shared_ptr<NoticeBoard> board);
  void require_alive();
  bool finished(Request& request, const Stage& stage);
  bool done_or_fail(const std::function<bool()>& done, const Stage& stage);
  /// Throws CommError when a notice says so.
  void heed_notices(const Stage& stage);
  /// How long a wait without progress since `start` may last.
  std::chrono::steady_clock::time_point end_of_wait(std::chrono::steady_clock::time_point start) const;
  [[noreturn]] void time_out(int peer, Stage stage);
  [[noreturn]] void time_out(const Stage& stage);
  [[noreturn]] void die();

  std::unique_ptr<Transport> transport_;
  const CommOptions options_;
  const int rank_;
  std::vector<int> hosts_;
  Levels levels_;
  int64_t sequence_ = 0;
  bool abandoned_ = false;
  std::shared_ptr<NoticeBoard> board_;  ///< the duplicates' too
};

}  // namespace spillway::ddl
