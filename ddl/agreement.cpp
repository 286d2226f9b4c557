#include "ddl/agreement.h"

#include <array>

#include "core/error.h"

namespace spillway::ddl {
namespace {

struct Vote {
  Call call;
  int64_t rank;
};

/// The smallest and the largest call seen so far. Merging is idempotent, so it does not matter that for a number of
/// members that is no power of two a vote may arrive twice.
struct Ballot {
  Vote lowest;
  Vote highest;

  void merge(const Ballot& other) {
    if (other.lowest.call < lowest.call) lowest = other.lowest;
    if (highest.call < other.highest.call) highest = other.highest;
  }
};

/// The dissemination pattern: after round k everyone has heard of the 2^(k+1) members before them.
void disseminate(Communicator& comm, Ballot& ballot, int size, int position, auto rank_at) {
  int round = 0;
  for (int step = 1; step < size; step *= 2) {
    const int to = rank_at((position + step) % size);
    const int from = rank_at((position - step + size) % size);
    Ballot theirs{};
    std::array requests{
        comm.receive(from, Tag::agreement, std::as_writable_bytes(std::span(&theirs, 1))),
        comm.send(to, Tag::agreement, std::as_bytes(std::span(&ballot, 1))),
    };
    comm.wait(requests, {.collective = "agreement", .stage = ++round});
    ballot.merge(theirs);
  }
  if (ballot.lowest.call != ballot.highest.call) {
    comm.fail(str("the ranks disagree: rank ", ballot.lowest.rank, " calls ", describe(ballot.lowest.call), "; rank ",
                  ballot.highest.rank, " calls ", describe(ballot.highest.call)));
  }
}

}  // namespace

std::string describe(const Call& call) {
  static constexpr std::array kNames{"barrier",
                                     "allgather",
                                     "broadcast",
                                     "allreduce (sum)",
                                     "allreduce (average)",
                                     "allreduce (maximum)",
                                     "allreduce (minimum)",
                                     "reduce"};
  const auto index = static_cast<size_t>(call.operation);
  std::string text = str(index < kNames.size() ? kNames[index] : "an unknown operation", " of ", call.count);
  if (call.root >= 0) text += str(" from rank ", call.root);
  if (call.sequence >= 0) text += str(", number ", call.sequence);
  return text + str(", signature ", call.signature);
}

uint64_t hash_in(uint64_t hash, uint64_t value) {
  for (int byte = 0; byte < 8; ++byte) {
    hash = (hash ^ (value >> (8 * byte) & 0xff)) * 1099511628211ull;
  }
  return hash;
}

void agree(Communicator& comm, const Call& call, std::span<const int> members, int position) {
  Ballot ballot{{call, comm.rank()}, {call, comm.rank()}};
  disseminate(comm, ballot, static_cast<int>(members.size()), position, [&](int index) { return members[index]; });
}

void agree(Communicator& comm, Call call) {
  call.sequence = comm.next_sequence();
  Ballot ballot{{call, comm.rank()}, {call, comm.rank()}};
  disseminate(comm, ballot, comm.size(), comm.rank(), [](int index) { return index; });
}

}  // namespace spillway::ddl
