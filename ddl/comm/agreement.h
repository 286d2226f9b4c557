/// The agreement by which the ranks make sure, before data flows, that they mean the same call.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "ddl/comm/communicator.h"
#include "ddl/comm/transport.h"

namespace spillway::ddl {

/// The operation that ranks must agree on.
enum class Operation : int32_t {
  barrier,
  allgather,
  broadcast,
  allreduce_sum,
  allreduce_average,
  allreduce_maximum,
  allreduce_minimum,
  reduce,
  gather,
  duplicate,
  group,
  gather_to_root,
  scatter,
  all_to_all
};

/// The call that a rank is about to make, as compared with its peers' calls.
struct Call {
  Operation operation = Operation::barrier;
  int32_t root = -1;       ///< the rank that all data comes from or goes to; -1: none
  int64_t count = 0;       ///< elements, or bytes where there is no element type; -1: may differ from rank to rank
  uint64_t signature = 0;  ///< anything else that must agree, hashed: types, shapes, members, the plan
  int64_t sequence = -1;   ///< number among the collectives over all ranks; -1: among some ranks only
  /// The part of the call that people read in messages: `float32 by direct x ring`. The signature stands for any text
  /// that is cut off.
  std::array<char, 40> detail = {};

  Call with_detail(std::initializer_list<std::string_view> texts) const;
  bool operator==(const Call&) const = default;
  // NOLINTNEXTLINE(modernize-use-nullptr): clang-tidy 14 takes the 0 inside for a pointer
  auto operator<=>(const Call&) const = default;
};

/// Returns the call as text: `allreduce (sum) of 1000 float32 by direct, number 3, signature 5`.
std::string describe(const Call& call);

/// An agreement under way, so that data can be sent meanwhile. Cost: ⌈log2 members⌉ messages of 160 bytes each way.
/// Received data may be looked at only after conclude(), because ranks that disagree may not even mean messages of one
/// size.
class Agreement {
 public:
  /// Sends the first message. `members` are the ranks that take part, the same list on each of them. This rank is among
  /// them at `position`. The list outlives the agreement.
  Agreement(Communicator& comm, const Call& call, std::span<const int> members, int position);
  /// Starts an agreement over all ranks and fills in the sequence number.
  Agreement(Communicator& comm, Call call);
  /// Ends the communicator when conclude() has not returned, because a message may still be coming to this object.
  ~Agreement();
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  /// Blocks until every member has made this very call. Throws CommError on every member when they differ, naming two
  /// ranks and their calls.
  void conclude();

 private:
  struct Vote {
    Call call;
    int64_t rank = 0;
  };
  /// The smallest and the largest call seen so far. Merging is idempotent, so a vote may arrive twice, as it may when
  /// the number of members is no power of two.
  struct Ballot {
    Vote lowest;
    Vote highest;
    void merge(const Ballot& other);
  };

  int rank_at(int position) const { return members_.empty() ? position : members_[position]; }
  void post();

  Communicator& comm_;
  const std::span<const int> members_;  ///< empty: all ranks
  const int size_;
  const int position_;
  int step_ = 1;
  int round_ = 0;
  Ballot seen_;
  Ballot sent_;
  Ballot theirs_;
  std::array<Request, 2> requests_;
};

/// Starts an agreement and concludes it at once.
inline void agree(Communicator& comm, const Call& call, std::span<const int> members, int position) {
  Agreement(comm, call, members, position).conclude();
}
/// Agrees among all ranks.
inline void agree(Communicator& comm, const Call& call) {
  Agreement(comm, call).conclude();
}

}  // namespace spillway::ddl
