#include "ddl/comm/agreement.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/error.h"

namespace spillway::ddl {
std::string describe(const Call& call) {
  static constexpr std::array kNames{"barrier",
                                     "allgather",
                                     "broadcast",
                                     "allreduce (sum)",
                                     "allreduce (average)",
                                     "allreduce (maximum)",
                                     "allreduce (minimum)",
                                     "reduce",
                                     "gather",
                                     "duplicate",
                                     "group",
                                     "gather",
                                     "scatter",
                                     "all_to_all"};
  const auto index = static_cast<size_t>(call.operation);
  std::string text = str(index < kNames.size() ? kNames[index] : "an unknown operation", " of");
  if (call.count >= 0) text += str(" ", call.count);
  // The calls of other ranks came over a wire, so the text may lack its end.
  const std::string_view detail(call.detail.data(), strnlen(call.detail.data(), call.detail.size()));
  if (!detail.empty()) text += str(" ", detail);
  if (call.root >= 0) text += str(call.operation == Operation::gather_to_root ? " to" : " from", " rank ", call.root);
  if (call.sequence >= 0) text += str(", number ", call.sequence);
  return text + str(", signature ", call.signature);
}

Call Call::with_detail(std::initializer_list<std::string_view> texts) const {
  Call call = *this;
  size_t used = 0;
  for (const std::string_view text : texts) {
    const size_t size = std::min(text.size(), call.detail.size() - 1 - used);
    std::copy_n(text.begin(), size, call.detail.begin() + used);
    used += size;
  }
  return call;
}

void Agreement::Ballot::merge(const Ballot& other) {
  if (other.lowest.call < lowest.call) lowest = other.lowest;
  if (highest.call < other.highest.call) highest = other.highest;
}

Agreement::Agreement(Communicator& comm, const Call& call, std::span<const int> members, int position)
    : comm_(comm),
      members_(members),
      size_(comm.is_simulated() ? 1 : std::ssize(members)),
      position_(position),
      seen_{{call, comm.rank()}, {call, comm.rank()}} {
  post();
}

Agreement::Agreement(Communicator& comm, Call call)
    : comm_(comm), size_(comm.is_simulated() ? 1 : comm.size()), position_(comm.rank()) {
  call.sequence = comm.next_sequence();
  seen_ = {{call, comm.rank()}, {call, comm.rank()}};
  post();
}

Agreement::~Agreement() {
  if (requests_[0].active() || requests_[1].active()) comm_.abandon("was interrupted in the middle of a collective");
}

// The dissemination pattern: after round k every member has heard of the 2^(k+1) members before it.
void Agreement::post() {
  if (step_ >= size_) return;
  sent_ = seen_;
  requests_ = {comm_.receive(rank_at((position_ - step_ + size_) % size_), Tag::agreement,
                             std::as_writable_bytes(std::span(&theirs_, 1))),
               comm_.send(rank_at((position_ + step_) % size_), Tag::agreement, std::as_bytes(std::span(&sent_, 1)))};
}

void Agreement::conclude() {
  for (; step_ < size_; post()) {
    comm_.wait(requests_, {.collective = "agreement", .stage = ++round_});
    for (const Vote* vote : {&theirs_.lowest, &theirs_.highest})
      if (vote->rank < 0 || vote->rank >= comm_.size()) comm_.fail("another rank sent something else than a vote");
    seen_.merge(theirs_);
    step_ *= 2;
  }
  if (seen_.lowest.call == seen_.highest.call) return;
  comm_.fail(str("the ranks disagree: rank ", comm_.world_rank(seen_.lowest.rank), " calls ",
                 describe(seen_.lowest.call), "; rank ", comm_.world_rank(seen_.highest.rank), " calls ",
                 describe(seen_.highest.call)));
}

}  // namespace spillway::ddl
