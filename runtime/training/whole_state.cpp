#include "runtime/training/whole_state.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "core/error.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"
#include "runtime/io/sha256.h"
#include "runtime/pipeline/pipeline.h"
#include "swap/session.h"

namespace spillway::runtime {
namespace {

using nlohmann::json;

json describe(const StateTensor& tensor, const Pipeline& pipeline) {
  // The holder counts within the ranks of this place.
  const int64_t holder = pipeline.of_place ? pipeline.of_place->communicator->world_rank(tensor.holder)
                                           : pipeline.of_copy->world_rank(pipeline.place);
  return {{"name", tensor.name}, {"type", tensor.type}, {"sizes", tensor.sizes}, {"holder", holder}};
}

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

std::vector<StateTensor> whole_state(std::vector<StateTensor> own, const RunContext& context) {
  if (!context.pipeline) return own;
  const Pipeline& pipeline = *context.pipeline;
  std::map<std::string, at::Tensor> held;
  json described = json::array();
  for (const StateTensor& tensor : own) {
    held[tensor.name] = tensor.held;
    described.push_back(describe(tensor, pipeline));
  }
  std::vector<StateTensor> all;
  std::set<std::string> known;
  for (const std::string& text : ddl::gather_texts(*pipeline.of_copy, described.dump()))
    for (const json& entry : json::parse(text)) {
      const auto name = entry["name"].get<std::string>();
      if (!known.insert(name).second) continue;
      StateTensor& tensor =
          all.emplace_back(name, entry["type"].get<at::ScalarType>(), entry["sizes"].get<std::vector<int64_t>>());
      tensor.holder = entry["holder"];
      if (const auto found = held.find(name); found != held.end()) tensor.held = found->second;
    }
  return all;
}

std::string weights_sha256(std::vector<StateTensor> weights, const ddl::Comm& comm) {
  std::sort(weights.begin(), weights.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  Sha256 sha;
  for (const StateTensor& tensor : weights) {
    const at::Tensor there = at_rank_0(tensor, comm);
    if (comm->communicator->rank() != 0) continue;
    const at::Tensor dense = there.detach().cpu().contiguous();
    const auto lent = resident_read(dense);
    sha.add(dense.const_data_ptr(), dense.nbytes());
  }
  std::string text = hex(sha.finish());
  ddl::broadcast(*comm->communicator, std::as_writable_bytes(std::span(text)), 0);
  return text;
}

at::Tensor gather_rows(ddl::Communicator& comm, const at::Tensor& rows, const std::vector<int64_t>& numbers) {
  const at::Tensor own = rows.cpu().contiguous();
  const size_t row_bytes = rows.size(1) * rows.element_size();
  std::string packed(numbers.size() * (sizeof(int64_t) + row_bytes), '\0');
  {
    const auto lent = resident_read(own);
    for (size_t i = 0; i < numbers.size(); ++i) {
      char* entry = packed.data() + i * (sizeof(int64_t) + row_bytes);
      std::memcpy(entry, &numbers[i], sizeof(int64_t));
      std::memcpy(entry + sizeof(int64_t), static_cast<const char*>(own.const_data_ptr()) + i * row_bytes, row_bytes);
    }
  }
  std::map<int64_t, std::string> by_number;
  for (const std::string& text : ddl::gather_texts(comm, packed))
    for (size_t begin = 0; begin < text.size(); begin += sizeof(int64_t) + row_bytes) {
      int64_t number = 0;
      std::memcpy(&number, text.data() + begin, sizeof number);
      by_number[number] = text.substr(begin + sizeof number, row_bytes);
    }
  const at::Tensor all = at::empty({std::ssize(by_number), rows.size(1)}, own.options());
  {
    const auto lent = resident(all);
    char* to = static_cast<char*>(all.mutable_data_ptr());
    for (const auto& [number, row] : by_number) {
      std::memcpy(to, row.data(), row_bytes);
      to += row_bytes;
    }
  }
  return all.to(rows.device());
}

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

int64_t count_parameters(const torch::nn::Module& own, const RunContext& context) {
  std::map<std::string, int64_t> counts;
  for (const auto& parameter : own.named_parameters()) counts[parameter.key()] = parameter.value().numel();
  if (context.pipeline)
    for (const std::string& text : ddl::gather_texts(*context.pipeline->of_copy, json(counts).dump()))
      counts.merge(json::parse(text).get<std::map<std::string, int64_t>>());
  int64_t sum = 0;
  for (const auto& [name, count] : counts) sum += count;
  return sum;
}

}  // namespace spillway::runtime
