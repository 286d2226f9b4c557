#include "runtime/training/replicas.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <map>

#include "core/error.h"
#include "ddl/comm/collectives.h"

namespace spillway::runtime {
namespace {

struct Replica {
  std::array<char, 64> sha256{};
  int64_t threads = 0;
};

std::vector<Replica> gather_replicas(const ddl::Comm& comm, const std::string& sha256) {
  Replica own{.threads = at::get_num_threads()};
  TORCH_CHECK(sha256.size() == own.sha256.size(), "[replicas] a hash has ", sha256.size(),
              " digits; required: ", own.sha256.size());
  std::copy(sha256.begin(), sha256.end(), own.sha256.begin());
  std::vector<Replica> all(comm->communicator->size());
  ddl::allgather(*comm->communicator, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

/// Returns text such as `ranks 0 2 have 0123456789ab…`, a group for each hash, in the order of ranks.
std::string describe(const std::vector<Replica>& all) {
  constexpr size_t kDigits = 12;
  std::vector<std::string> hashes;
  std::map<std::string, std::vector<size_t>> holders;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string hash(all[rank].sha256.begin(), all[rank].sha256.end());
    if (!holders.contains(hash)) hashes.push_back(hash);
    holders[hash].push_back(rank);
  }
  std::string text;
  for (const std::string& hash : hashes) {
    const auto& ranks = holders[hash];
    text += str(text.empty() ? "" : ", ", ranks.size() == 1 ? "rank" : "ranks");
    for (const size_t rank : ranks) text += str(' ', rank);
    text += str(ranks.size() == 1 ? " has " : " have ", hash.substr(0, kDigits), "…");
  }
  return text;
}

std::string describe_threads(const std::vector<Replica>& all) {
  const auto [least, most] =
      std::minmax_element(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.threads < b.threads; });
  return least->threads == most->threads ? str(least->threads) : str(least->threads, " to ", most->threads);
}

}  // namespace

void require_equal_weights(const ddl::Comm& comm, const std::string& sha256, int64_t step) {
  const auto all = gather_replicas(comm, sha256);
  const bool equal =
      std::all_of(all.begin(), all.end(), [&](const Replica& one) { return one.sha256 == all.front().sha256; });
  if (equal) return;
  throw std::runtime_error(
      str("[train] after step ", step, " the weights are not the same on all ", all.size(), " ranks: ", describe(all),
          " (SHA-256). Ranks compute the same bits only with as many threads each (here ", describe_threads(all),
          ") and the same kind of processor; take hosts of one kind, and resume from the last checkpoint"));
}

void complete_gradients(const std::vector<at::Tensor>& parameters, const ddl::Comm& comm) {
  std::vector<char> own;
  for (const at::Tensor& parameter : parameters) own.push_back(parameter.grad().defined());
  std::vector<char> all(own.size() * comm->communicator->size());
  ddl::allgather(*comm->communicator, std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (own[i]) continue;
    bool reached = false;
    for (size_t at = i; at < all.size(); at += own.size()) reached |= all[at] != 0;
    if (reached) parameters[i].mutable_grad() = at::zeros_like(parameters[i]);
  }
}

}  // namespace spillway::runtime
