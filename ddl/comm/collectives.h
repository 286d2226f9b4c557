/// Collectives that only move bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "ddl/comm/communicator.h"

namespace spillway::ddl {

/// Copies `bytes` of rank `root` to every rank in `members`: distinct ranks, in any order that is the same on each of
/// them, root among them; other ranks return at once. `signature` is anything else that must agree (types, shapes).
/// Cost: ⌈log2 members⌉ copies of the bytes on the longest path (a binomial tree over the members as listed), in pieces
/// of 4 MiB, so that the deadline is one piece's. Blocking; allocates nothing.
/// Throws BadRequest on a bad list, CommError on every member when they disagree.
void broadcast(Communicator& comm, std::span<std::byte> bytes, int root, std::span<const int> members,
               uint64_t signature = 0);

/// The same to every rank.
void broadcast(Communicator& comm, std::span<std::byte> bytes, int root, uint64_t signature = 0);

/// Returns on every rank after every rank has called it. ⌈log2 size⌉ small messages. Throws CommError.
void barrier(Communicator& comm);

/// Every rank's `own` bytes, in rank order: `all` holds size() times as many. Meant for small blobs (each rank sends
/// its own to each other directly). Blocking. Throws BadRequest when `all` has the wrong size, CommError.
void allgather(Communicator& comm, std::span<const std::byte> own, std::span<std::byte> all);

/// Throws BadRequest on every rank when some have a `refusal`, which is not empty then: the first one's. So that none
/// goes on alone where another cannot. Collective. Throws CommError.
void refuse_together(Communicator& comm, const std::string& refusal);

/// Calls `check` on every rank. When it throws on some, those get what they threw, and all others BadRequest with the
/// first line of the first one's. Collective. Throws CommError.
void check_together(Communicator& comm, const std::function<void()>& check);

}  // namespace spillway::ddl
