#include "tools/allreduce_trial.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>

#include "ddl/allreduce.h"
#include "ddl/calibration.h"
#include "ddl/collectives.h"
#include "ddl/explain.h"
#include "tools/allreduce_values.h"
#include "tools/levels_flag.h"
#include "tools/worker.h"

namespace spillway::tools {
namespace {

using ddl::Allreduce, ddl::Choice, ddl::Communicator, ddl::Costs, ddl::Levels, ddl::Plan;
using nlohmann::json;

constexpr int kWarmUp = 2;

/// One way to reduce a vector, out of place or in place.
struct Way {
  std::string name;
  std::function<void(std::span<const std::byte> in, std::span<std::byte> out)> reduce;
  std::vector<double> seconds{}, in_place_seconds{};
  int64_t wrong = 0, in_place_wrong = 0;
  json more = json::object();
  std::function<json()> explain = [] { return json(nullptr); };
};

/// Everyone to its host's first rank, those around a ring, and back.
Plan leader_plan(const Levels& levels) {
  std::vector<ddl::Algorithm> algorithms(static_cast<size_t>(levels.count()), ddl::Algorithm::ring);
  if (!algorithms.empty()) algorithms.front() = ddl::Algorithm::leader;
  return Plan(levels, algorithms);
}

json json_of(const ddl::Explanation& explanation) {
  json by_level = json::array();
  for (const auto& level : explanation.levels)
    by_level.push_back({{"algorithm", ddl::name_of(level.algorithm)},
                        {"sent_by_rank_bytes", level.traffic.sent_by_rank},
                        {"sent_by_group_bytes", level.traffic.sent_by_group},
                        {"least_bytes", level.least_bytes},
                        {"bound_seconds", level.bound_seconds.value_or(0)},
                        {"predicted_seconds", level.predicted_seconds.value_or(0)},
                        {"waited_seconds", level.waited_seconds.value_or(0)}});
  return {{"by_level", by_level}, {"explanation", ddl::describe(explanation)}};
}

std::vector<Way> ways(ddl::MpiRuntime& mpi, Communicator& comm, const Costs& costs, int64_t bytes,
                      const TrialOptions& options) {
  const ddl::Element element = element_named(options.type);
  const ddl::Reduction reduction = reduction_named(options.op);
  std::vector<Way> ways;
  const auto add = [&](std::string name, std::shared_ptr<Allreduce> allreduce) -> Way& {
    return ways.emplace_back(Way{
        .name = std::move(name),
        .reduce =
            [=](auto in, auto out) {
              allreduce->reduce({in, out, element}, reduction);
            },
    });
  };
  if (!options.mpi_only) {
    const Choice best = ddl::choose(comm.levels(), bytes, costs, options.keep_order);
    const int64_t count = bytes / ddl::element_bytes(element);
    const auto allreduce = std::make_shared<Allreduce>(comm, best.plan, best.options);
    Way& way = add("levels", allreduce);
    way.more = {{"plan", best.plan.name()},
                {"chunk_bytes", best.options.chunk_bytes},
                {"predicted_seconds", ddl::predict_seconds(best, count, element, costs)}};
    way.explain = [=, &costs] { return json_of(ddl::explain(best, count, element, costs, allreduce->totals())); };
  }
  if (ddl::MpiRuntime::reduces(element, reduction))
    ways.push_back(
        {.name = "mpi", .reduce = [=, &mpi](auto in, auto out) { mpi.allreduce(in, out, element, reduction); }});
  if (!options.mpi_only) {
    add("ring", std::make_shared<Allreduce>(comm, Plan(Levels(comm.size()), ddl::Algorithm::ring)));
    add("leader", std::make_shared<Allreduce>(comm, leader_plan(comm.levels())));
  }
  return ways;
}

double seconds_of(Communicator& comm, const std::function<void()>& body) {
  ddl::barrier(comm);
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The largest of all ranks, number by number.
std::vector<double> largest(Communicator& comm, const std::vector<double>& own) {
  std::vector<double> all(own.size() * static_cast<size_t>(comm.size())), most = own;
  ddl::allgather(comm, std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  for (size_t i = 0; i < all.size(); ++i) most[i % own.size()] = std::max(most[i % own.size()], all[i]);
  return most;
}

void measure(Communicator& comm, Way& way, const std::vector<std::byte>& in, std::vector<std::byte>& out,
             const Expected& expected) {
  std::fill(out.begin(), out.end(), std::byte{0xff});  // no result, and none of the way before
  way.seconds.push_back(seconds_of(comm, [&] { way.reduce(in, out); }));
  way.wrong += expected.count_wrong(out);
  out = in;
  way.in_place_seconds.push_back(seconds_of(comm, [&] { way.reduce(out, out); }));
  way.in_place_wrong += expected.count_wrong(out);
}

json costs_of(const Costs& costs) {
  json levels = json::array();
  for (const auto& link : costs.levels)
    levels.push_back({{"latency_seconds", link.latency_seconds},
                      {"message_seconds", link.message_seconds},
                      {"bytes_per_second", link.bytes_per_second},
                      {"piece_bytes", link.piece_bytes == ddl::kWhole ? json(nullptr) : json(link.piece_bytes)},
                      {"by_cores", link.by_cores}});
  return {{"levels", levels}, {"reduce_seconds_per_byte", costs.reduce_seconds_per_byte}};
}

/// One row for each way.
std::vector<json> measure_size(ddl::MpiRuntime& mpi, Communicator& comm, const Costs& costs, int64_t bytes,
                               const TrialOptions& options) {
  const ddl::Element element = element_named(options.type);
  const int64_t count = bytes / ddl::element_bytes(element);
  const auto in = contribution(element, comm.rank(), count);
  const Expected expected(element, reduction_named(options.op), comm.size());
  std::vector<std::byte> out(in.size());
  auto all = ways(mpi, comm, costs, bytes, options);
  for (int round = 0; round < kWarmUp + options.repeats; ++round)
    for (Way& way : all) {
      measure(comm, way, in, out, expected);
      if (round + 1 == kWarmUp) way.seconds.clear(), way.in_place_seconds.clear();
    }
  std::vector<json> rows;
  for (Way& way : all) {
    json& row = rows.emplace_back(std::move(way.more));
    if (const json explained = way.explain(); explained.is_object()) row.update(explained);
    const auto wrong =
        largest(comm, {static_cast<double>(way.wrong + way.in_place_wrong), static_cast<double>(way.in_place_wrong)});
    row.update({{"bytes", bytes},
                {"count", count},
                {"algorithm", way.name},
                {"seconds", median(largest(comm, way.seconds))},
                {"in_place_seconds", median(largest(comm, way.in_place_seconds))},
                {"wrong", static_cast<int64_t>(wrong[0])},
                {"in_place_wrong", static_cast<int64_t>(wrong[1])},
                {"bound_seconds", ddl::bound_seconds(comm.levels(), bytes, costs)}});
  }
  return rows;
}

}  // namespace

json run_trial(ddl::MpiRuntime& mpi, const TrialOptions& options) {
  ddl::CommOptions comm_options;
  comm_options.deadline = std::chrono::milliseconds(static_cast<int64_t>(options.comm_timeout_seconds * 1e3));
  const auto comm = with_levels(mpi, mpi.world(comm_options), comm_options, options.levels, /*gpu_bus_id=*/"");
  const Costs costs = ddl::calibrate(*comm);
  json rows = json::array();
  for (const int64_t bytes : options.sizes)
    for (json& row : measure_size(mpi, *comm, costs, bytes, options)) rows.push_back(std::move(row));
  if (comm->rank() != 0) return nullptr;
  return {{"world_size", comm->size()},
          {"levels", comm->levels().shape()},
          {"mpi", ddl::MpiRuntime::library()},
          {"type", options.type},
          {"op", options.op},
          {"repeats", options.repeats},
          {"costs", costs_of(costs)},
          {"rows", rows}};
}

}  // namespace spillway::tools
