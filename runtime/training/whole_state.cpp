#include "runtime/training/whole_state.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <utility>

#include "ddl/comm/collectives.h"
#include "ddl/comm/communicator.h"
#include "runtime/io/sha256.h"
#include "runtime/pipeline/exchange.h"
#include "runtime/pipeline/pipeline.h"
#include "swap/session.h"

namespace spillway::runtime {
namespace {

using nlohmann::json;

json describe(const StateTensor& tensor, const Pipeline& pipeline) {
  // The holder counts within the ranks of this place.
  const int64_t holder = pipeline.of_place
                             ? pipeline.of_place->communicator->world_rank(static_cast<int>(tensor.holder))
                             : pipeline.of_copy->world_rank(pipeline.place);
  return {tensor.name, static_cast<int>(tensor.type), tensor.sizes, holder};
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
  for (const std::string& text : gather_texts(*pipeline.of_copy, described.dump()))
    for (const json& entry : json::parse(text)) {
      const auto name = entry[0].get<std::string>();
      if (!known.insert(name).second) continue;
      StateTensor& tensor = all.emplace_back(name, static_cast<at::ScalarType>(entry[1].get<int>()),
                                             entry[2].get<std::vector<int64_t>>());
      tensor.holder = entry[3];
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

int64_t count_parameters(const torch::nn::Module& own, const RunContext& context) {
  std::map<std::string, int64_t> counts;
  for (const auto& parameter : own.named_parameters()) counts[parameter.key()] = parameter.value().numel();
  if (context.pipeline)
    for (const std::string& text : gather_texts(*context.pipeline->of_copy, json(counts).dump()))
      counts.merge(json::parse(text).get<std::map<std::string, int64_t>>());
  int64_t sum = 0;
  for (const auto& [name, count] : counts) sum += count;
  return sum;
}

}  // namespace spillway::runtime
