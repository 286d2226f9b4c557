/// Before data flows, the ranks make sure that they mean the same call.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "ddl/communicator.h"

namespace spillway::ddl {

enum class Operation : int32_t {
  barrier,
  allgather,
  broadcast,
  allreduce_sum,
  allreduce_average,
  allreduce_maximum,
  allreduce_minimum,
  reduce
};

/// What a rank is about to do, as compared with its peers.
struct Call {
  Operation operation = Operation::barrier;
  int32_t root = -1;       ///< a broadcast's root; -1: none
  int64_t count = 0;       ///< elements, or bytes where there is no element type
  uint64_t signature = 0;  ///< anything else that must agree, hashed: types, shapes, members, the plan
  int64_t sequence = -1;   ///< of the collectives over all ranks; -1: among some ranks only
  bool operator==(const Call&) const = default;
  auto operator<=>(const Call&) const = default;
};

/// `allreduce_sum of 1000, number 3`.
std::string describe(const Call& call);

/// Folds `value` into a running hash (FNV-1a over its bytes); start from kHashSeed.
inline constexpr uint64_t kHashSeed = 1469598103934665603ull;
uint64_t hash_in(uint64_t hash, uint64_t value);

/// Returns when every member has made this very call; ⌈log2 members⌉ messages of 80 bytes each way, all members end
/// together. `members` are the ranks taking part, the same list on each, this rank among them at `position`.
/// Throws CommError on every member when they differ, naming two ranks and their calls.
void agree(Communicator& comm, const Call& call, std::span<const int> members, int position);

/// The same over all ranks; fills in the sequence number.
void agree(Communicator& comm, Call call);

}  // namespace spillway::ddl
