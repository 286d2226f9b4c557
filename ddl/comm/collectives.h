/// Collectives that only move bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddl/comm/communicator.h"

namespace spillway::ddl {

/// Copies `bytes` of rank `root` to every rank in `members`. These are distinct ranks, root among them, in any order
/// that is the same on each of them. Other ranks return at once. `signature` stands for anything else that must agree
/// (types, layouts), and `detail` says of it what a message can. Cost: ⌈log2 members⌉ copies of the bytes on the
/// longest path (a binomial tree over the members as listed). The bytes go in pieces of 4 MiB, so that the deadline is
/// one piece's. Blocking; allocates nothing. Throws BadRequest on a bad list, CommError on every member when they
/// disagree.
void broadcast(Communicator& comm, std::span<std::byte> bytes, int root, std::span<const int> members,
               uint64_t signature = 0, std::string_view detail = {});

/// Copies `bytes` of rank `root` to every rank of the communicator.
void broadcast(Communicator& comm, std::span<std::byte> bytes, int root, uint64_t signature = 0);

/// Returns on every rank after every rank has called it. Cost: ⌈log2 size⌉ small messages. Throws CommError.
void barrier(Communicator& comm);

/// Gathers every rank's `own` bytes in `all`, in rank order; `all` holds size() times as many bytes. Meant for small
/// blobs, because each rank sends its own bytes to each other rank directly. Blocking. Throws BadRequest when `all` has
/// the wrong size, CommError.
void allgather(Communicator& comm, std::span<const std::byte> own, std::span<std::byte> all);

/// Returns every rank's text, in rank order. Meant for small ones. Collective. Throws CommError.
std::vector<std::string> gather_texts(Communicator& comm, const std::string& own);

/// Throws BadRequest on every rank when some rank has a `refusal`, a text that is not empty. The error carries the
/// first such rank's text. So no rank goes on alone when another cannot. Collective. Throws CommError.
void throw_on_all_ranks(Communicator& comm, const std::string& refusal);

/// Calls `check` on every rank. When it throws on some ranks, these get the error that they threw. All other ranks get
/// BadRequest with the first line of the first failing rank's error. Collective. Throws CommError.
void check_together(Communicator& comm, const std::function<void()>& check);

}  // namespace spillway::ddl
