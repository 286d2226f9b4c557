/// Ranks and the point-to-point messages between them, on which every collective is built.
#pragma once
#include <atomic>
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

namespace spillway::ddl {

class NoticeBoard;
struct Request;
enum class Tag : int;
class Transport;

/// An error of communication: a rank did not answer within the deadline, gave up, or disagrees about the call. It names
/// rank, level and stage. The communicator and its duplicates are dead afterwards: every later call throws.
class CommError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  CommError(const std::string& what, int origin, int exit_code)
      : std::runtime_error(what), origin_(origin), exit_code_(exit_code) {}
  /// Returns the other rank that gave up and said why, or -1 when this rank found out by itself.
  int origin() const noexcept { return origin_; }
  /// Returns the exit code that the rank which gave up told, or 0 when it told none.
  int exit_code() const noexcept { return exit_code_; }

 private:
  int origin_ = -1;
  int exit_code_ = 0;
};

/// The options of a communicator.
struct CommOptions {
  /// The longest wait for one message; then the rank that owes it is given up. 1 ms to 1 day. It must exceed the
  /// longest time by which ranks are apart when they meet (a slow step). The time for which a rank says that it is Busy
  /// does not count. A survivor spends up to 2 s more to find out which other ranks are alive.
  std::chrono::milliseconds deadline{60'000};
  /// Labels that say which ranks are near each other, level by level, the nearest first, as Levels takes them. Empty:
  /// the hosts that the transport discovered. The same on every rank.
  std::vector<std::vector<int>> levels = {};

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate(int world_size) const;
};

/// The position of a rank in a collective, for messages. `level` and `stage` count from 1. Level 0 stands for the level
/// of the message that does not come: the lowest on which both its ranks are together.
struct CollectivePosition {
  std::string_view collective;
  int level = 0;
  int levels = 0;
  int stage = 0;
  std::string_view unit = "stage";  ///< name of the things that `stage` counts
};

/// One rank's view of a world of ranks. Used by one thread at a time. Ranks call the same collectives in the same
/// order. A communicator, its duplicates and its groups live and die together. Whichever dies first, the reason reaches
/// all of them, on every rank, within 10 ms of a wait there.
class Communicator {
 public:
  /// Makes a communicator over `transport`, and a wire for notices too. Collective. Throws CommError when a rank does
  /// not come within the deadline.
  explicit Communicator(std::unique_ptr<Transport> transport, CommOptions options = {});
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return std::ssize(hosts_); }
  /// Returns the host that each rank runs on, regardless of the declared levels. Hosts count from 0 in order of first
  /// appearance.
  const std::vector<int>& hosts() const noexcept { return hosts_; }
  /// Returns the levels as declared, or those of hosts() when none are declared.
  const Levels& levels() const noexcept { return levels_; }
  /// Returns this rank's place among the ranks of its host, in rank order. local_size() returns the number of those
  /// ranks.
  int local_rank() const;
  int local_size() const;
  std::chrono::milliseconds deadline() const noexcept { return deadline_; }
  /// Changes the longest wait, also of waits under way. Duplicates and groups keep what they were made with. May be
  /// called on any thread. Throws BadRequest outside the range of CommOptions::deadline.
  void set_deadline(std::chrono::milliseconds deadline);
  /// True where the other ranks are not there (simulated_world.h): nothing that they would have sent is to be used.
  bool is_simulated() const noexcept;
  /// True after a CommError here or in a duplicate, for ever.
  bool dead() const noexcept;

  /// Starts a message; see Transport. `wait` finishes the request. Throws CommError when the transport fails.
  [[nodiscard]] Request send(int peer, Tag tag, std::span<const std::byte> bytes);
  [[nodiscard]] Request receive(int peer, Tag tag, std::span<std::byte> bytes);
  /// Returns how many messages were started here, in either direction. A call that threw without any has told the other
  /// ranks nothing, and holds none of their messages.
  int64_t messages_started() const noexcept { return started_; }
  /// Blocks until all requests are finished, and empties them. Throws CommError when a message does not come within the
  /// deadline, naming the rank that owes it, or when another rank gave up. Buffers of unfinished requests may then be
  /// freed.
  void wait(std::span<Request> requests, const CollectivePosition& stage);
  /// Returns true when `request` is finished, and empties it then. Never blocks. Throws CommError when it failed.
  bool test(Request& request, const CollectivePosition& stage);
  /// Looks after a wait of the caller's own for `request`, which began at `start`: throws CommError when another rank
  /// gave up, or when the deadline is over or the request's peer has ended, naming the peer. Call it every 10 ms. Where
  /// the request is empty nothing is waited for.
  void check_wait(const Request& request, std::chrono::steady_clock::time_point start, const CollectivePosition& stage);
  /// Gives the processor away between two tests, at most until `until`.
  void idle(std::chrono::steady_clock::time_point until);
  /// Blocks until `done`, which must not block, returns true. Meant for work beside messages that all ranks do
  /// together, such as a GPU's. Throws CommError when `done` throws, when it does not return true within the deadline,
  /// or when another rank gave up.
  void wait_until(const std::function<bool()>& done, const CollectivePosition& stage);

  /// Tells the other ranks the reason, abandons every message, and throws CommError. Later calls throw the same reason.
  [[noreturn]] void fail(const std::string& reason);
  /// Tells the other ranks why this one cannot go on, and the exit code that it will end with, before that end takes
  /// its time. A wait in this communicator or a duplicate, now or later, gets a CommError. The first reason counts. May
  /// be called on any thread.
  void give_up(const std::string& reason, int exit_code = 0) noexcept;
  /// Gives up as give_up() does, and abandons every message at once. Meant for memory that messages use and that is
  /// about to be freed.
  void abandon(const std::string& reason) noexcept;

  /// Makes a further communicator over the same ranks, hosts and levels, with messages of its own, which another thread
  /// may use. Collective. Throws CommError when the transport fails or a rank does not come within the deadline.
  std::shared_ptr<Communicator> duplicate();
  /// Makes a communicator over some of the ranks, with messages of its own, which another thread may use. `members` are
  /// ascending ranks, the same list on each of them. Ranks are numbered by their place in it, and levels are those that
  /// join them. Collective over the members alone. A rank may be in several groups, and makes them in an order that
  /// lets none wait for another for ever. Throws BadRequest where this rank is no member or the list is none, CommError
  /// as duplicate() does and where members have other lists.
  std::shared_ptr<Communicator> group(const std::vector<int>& members);
  /// Returns a rank's number in the communicator that this one, or a chain of groups and duplicates, was made from.
  /// Messages name ranks by it.
  int world_rank(int rank) const { return world_ranks_[rank]; }

  /// Returns how many collectives over all ranks were started before, and counts one more.
  int64_t next_sequence() noexcept { return sequence_++; }

 private:
  friend class Busy;
  /// `world_ranks`: see world_rank(). Empty: the ranks themselves.
  Communicator(std::unique_ptr<Transport> transport, CommOptions options, std::shared_ptr<NoticeBoard> board,
               std::vector<int> world_ranks);
  std::shared_ptr<Communicator> derived(const std::function<std::unique_ptr<Transport>()>& make, CommOptions options,
                                        std::vector<int> world_ranks, std::string_view name);
  CommOptions options() const { return {.deadline = deadline(), .levels = declared_levels_}; }
  void require_alive();
  bool done_or_fail(const std::function<bool()>& done, const CollectivePosition& stage);
  /// Reads notices, and throws CommError when one says that the communicator is dead.
  void read_notices(const CollectivePosition& stage);
  /// Returns the time until which a wait without progress since `start` may last.
  std::chrono::steady_clock::time_point end_of_wait(std::chrono::steady_clock::time_point start) const;
  [[noreturn]] void time_out(int peer, CollectivePosition stage);
  [[noreturn]] void time_out(const CollectivePosition& stage);
  [[noreturn]] void die();

  std::unique_ptr<Transport> transport_;
  const std::vector<std::vector<int>> declared_levels_;
  std::atomic<std::chrono::milliseconds> deadline_;
  const int rank_;
  std::vector<int> hosts_;
  std::vector<int> world_ranks_;  ///< by rank
  Levels levels_;
  int64_t sequence_ = 0;
  int64_t started_ = 0;
  bool abandoned_ = false;
  std::shared_ptr<NoticeBoard> board_;  ///< shared with duplicates and groups
};

/// Makes the communicator of a process that runs alone: every collective returns at once. Needs no MPI.
std::shared_ptr<Communicator> self_communicator(CommOptions options = {});

}  // namespace spillway::ddl
