/// Before data flows, the ranks make sure that they mean the same call.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

#include "ddl/comm/communicator.h"

namespace spillway::ddl {

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
  duplicate
};

/// What a rank is about to do, as compared with its peers.
struct Call {
  Operation operation = Operation::barrier;
  int32_t root = -1;       ///< a broadcast's root; -1: none
  int64_t count = 0;       ///< elements, or bytes where there is no element type
  uint64_t signature = 0;  ///< anything else that must agree, hashed: types, shapes, members, the plan
  int64_t sequence = -1;   ///< of the collectives over all ranks; -1: among some ranks only
  /// What people should read of it: `float32 by direct x ring`; the signature stands for what is cut off.
  std::array<char, 40> detail = {};

  Call with_detail(std::initializer_list<std::string_view> texts) const;
  bool operator==(const Call&) const = default;
  auto operator<=>(const Call&) const = default;
};

/// `allreduce (sum) of 1000 float32 by direct, number 3, signature 5`.
std::string describe(const Call& call);

/// An agreement under way, so that data can be sent meanwhile: ⌈log2 members⌉ messages of 160 bytes each way. What was
/// sent is looked at after conclude() only: ranks that disagree may not even mean messages of one size.
class Agreement {
 public:
  /// Sends the first message. `members` are the ranks taking part, the same list on each, this rank among them at
  /// `position`; the list outlives the agreement.
  Agreement(Communicator& comm, const Call& call, std::span<const int> members, int position);
  /// Over all ranks; fills in the sequence number.
  Agreement(Communicator& comm, Call call);
  /// Ends the communicator where it was left before conclude() returned: a message may be coming to this object.
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
  /// The smallest and the largest call seen so far. Merging is idempotent, so it does not matter that for a number of
  /// members that is no power of two a vote may arrive twice.
  struct Ballot {
    Vote lowest;
    Vote highest;
    void merge(const Ballot& other);
  };

  int rank_at(int position) const { return members_.empty() ? position : members_[static_cast<size_t>(position)]; }
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

/// An agreement at once.
inline void agree(Communicator& comm, const Call& call, std::span<const int> members, int position) {
  Agreement(comm, call, members, position).conclude();
}
inline void agree(Communicator& comm, const Call& call) {
  Agreement(comm, call).conclude();
}

}  // namespace spillway::ddl
