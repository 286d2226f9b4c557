#include "tools/allreduce_trial.h"

#include <ATen/Context.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>

#include "core/device.h"
#include "core/error.h"
#include "ddl/allreduce.h"
#include "ddl/calibration.h"
#include "ddl/collectives.h"
#include "ddl/explain.h"
#include "tools/allreduce_cards.h"
#include "tools/allreduce_values.h"
#include "tools/allreduce_ways.h"
#include "tools/levels_flag.h"
#include "tools/worker.h"

namespace spillway::tools {
namespace {

using ddl::Allreduce, ddl::Choice, ddl::Communicator, ddl::Costs, ddl::Levels, ddl::Plan;
using nlohmann::json;

constexpr int kWarmUp = 2;

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

class HostVectors final : public Vectors {
 public:
  HostVectors(ddl::MpiRuntime& mpi, Communicator& comm, const Costs& costs, const Problem& problem,
              const TrialOptions& options)
      : mpi_(mpi),
        comm_(comm),
        costs_(costs),
        problem_(problem),
        options_(options),
        in_(contribution(problem.element, comm.rank(), problem.count)),
        out_(in_.size()) {}

  void spoil() override { std::fill(out_.begin(), out_.end(), std::byte{0xff}); }
  void refill() override { out_ = in_; }
  void wait() override {}
  std::span<const std::byte> result() override { return out_; }

  std::vector<Way> ways() override {
    std::vector<Way> ways;
    if (!options_.mpi_only) ways.push_back(by_levels());
    if (ddl::MpiRuntime::reduces(problem_.element, problem_.reduction))
      ways.push_back({.name = "mpi", .reduce = [this](bool in_place) {
                        mpi_.allreduce(in_place ? out_ : in_, out_, problem_.element, problem_.reduction);
                      }});
    if (!options_.mpi_only) {
      ways.push_back(by("ring", std::make_shared<Allreduce>(comm_, Plan(Levels(comm_.size()), ddl::Algorithm::ring))));
      ways.push_back(by("leader", std::make_shared<Allreduce>(comm_, leader_plan(comm_.levels()))));
    }
    return ways;
  }

 private:
  Way by(std::string name, std::shared_ptr<Allreduce> allreduce) {
    return {.name = std::move(name), .reduce = [this, allreduce](bool in_place) {
              allreduce->reduce({in_place ? out_ : in_, out_, problem_.element}, problem_.reduction);
            }};
  }

  Way by_levels() {
    const Choice best = ddl::choose(comm_.levels(), problem_.bytes(), costs_, options_.keep_order);
    const auto allreduce = std::make_shared<Allreduce>(comm_, best.plan, best.options);
    Way way = by("levels", allreduce);
    way.more = {{"plan", best.plan.name()},
                {"chunk_bytes", best.options.chunk_bytes},
                {"predicted_seconds", ddl::predict_seconds(best, problem_.count, problem_.element, costs_)}};
    way.explain = [this, best, allreduce] {
      return json_of(ddl::explain(best, problem_.count, problem_.element, costs_, allreduce->totals()));
    };
    return way;
  }

  ddl::MpiRuntime& mpi_;
  Communicator& comm_;
  const Costs& costs_;
  const Problem problem_;
  const TrialOptions& options_;
  const std::vector<std::byte> in_;
  std::vector<std::byte> out_;
};

double seconds_of(Communicator& comm, Vectors& vectors, const std::function<void()>& body) {
  vectors.wait();
  ddl::barrier(comm);
  const auto start = std::chrono::steady_clock::now();
  body();
  vectors.wait();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The largest of all ranks, number by number.
std::vector<double> largest(Communicator& comm, const std::vector<double>& own) {
  std::vector<double> all(own.size() * static_cast<size_t>(comm.size())), most = own;
  ddl::allgather(comm, std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  for (size_t i = 0; i < all.size(); ++i) most[i % own.size()] = std::max(most[i % own.size()], all[i]);
  return most;
}

struct Measured {
  Way way;
  std::vector<double> seconds{}, in_place_seconds{};
  int64_t wrong = 0, in_place_wrong = 0;
};

void measure(Communicator& comm, Vectors& vectors, Measured& one, const Expected& expected) {
  vectors.spoil();  // no result, and none of the way before
  one.seconds.push_back(seconds_of(comm, vectors, [&] { one.way.reduce(/*in_place=*/false); }));
  one.wrong += expected.count_wrong(vectors.result());
  vectors.refill();
  one.in_place_seconds.push_back(seconds_of(comm, vectors, [&] { one.way.reduce(/*in_place=*/true); }));
  one.in_place_wrong += expected.count_wrong(vectors.result());
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
std::vector<json> measure_ways(Communicator& comm, Vectors& vectors, const Problem& problem, int repeats) {
  const Expected expected(problem.element, problem.reduction, comm.size());
  std::vector<Measured> all;
  for (Way& way : vectors.ways()) all.push_back({std::move(way)});
  for (int round = 0; round < kWarmUp + repeats; ++round)
    for (Measured& one : all) {
      measure(comm, vectors, one, expected);
      if (round + 1 == kWarmUp) one.seconds.clear(), one.in_place_seconds.clear();
    }
  std::vector<json> rows;
  for (Measured& one : all) {
    json& row = rows.emplace_back(std::move(one.way.more));
    if (const json explained = one.way.explain(); explained.is_object()) row.update(explained);
    const auto wrong =
        largest(comm, {static_cast<double>(one.wrong + one.in_place_wrong), static_cast<double>(one.in_place_wrong)});
    row.update({{"bytes", problem.bytes()},
                {"count", problem.count},
                {"algorithm", one.way.name},
                {"seconds", median(largest(comm, one.seconds))},
                {"in_place_seconds", median(largest(comm, one.in_place_seconds))},
                {"wrong", static_cast<int64_t>(wrong[0])},
                {"in_place_wrong", static_cast<int64_t>(wrong[1])}});
  }
  return rows;
}

/// Each rank's card; none on the CPU.
Device* open_card(const Communicator& world, const TrialOptions& options) {
  if (options.device == "cpu") return nullptr;
  if (options.keep_order) at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  return &open_device(options.device == "cuda" ? str("cuda:", world.local_rank()) : options.device);
}

}  // namespace

json run_trial(ddl::MpiRuntime& mpi, const TrialOptions& options) {
  ddl::CommOptions comm_options;
  comm_options.deadline = std::chrono::milliseconds(static_cast<int64_t>(options.comm_timeout_seconds * 1e3));
  const auto world = mpi.world(comm_options);
  Device* card = open_card(*world, options);
  const auto comm = with_levels(mpi, world, comm_options, options.levels, card ? bus_id_of(*card) : "");
  const Costs costs = ddl::calibrate(*comm);
  const ddl::Comm on_cards = card ? ddl::make_comm(comm, costs) : nullptr;
  Problem problem{.element = element_named(options.type), .reduction = reduction_named(options.op)};
  json rows = json::array();
  for (const int64_t bytes : options.sizes) {
    problem.count = bytes / ddl::element_bytes(problem.element);
    const std::unique_ptr<Vectors> vectors =
        card ? vectors_on_card(on_cards, on_cards->cards, card->torch_device(), problem)
             : std::make_unique<HostVectors>(mpi, *comm, costs, problem, options);
    for (json& row : measure_ways(*comm, *vectors, problem, options.repeats)) {
      row["bound_seconds"] = card ? json(nullptr) : json(ddl::bound_seconds(comm->levels(), bytes, costs));
      rows.push_back(std::move(row));
    }
  }
  const json cards = card ? json(decision(on_cards->cards, card->torch_device(), problem)) : json(nullptr);
  if (comm->rank() != 0) return nullptr;
  return {{"world_size", comm->size()},
          {"levels", comm->levels().shape()},
          {"mpi", ddl::MpiRuntime::library()},
          {"device", card ? "cuda" : "cpu"},
          {"cards", cards},
          {"type", options.type},
          {"op", options.op},
          {"repeats", options.repeats},
          {"costs", costs_of(costs)},
          {"rows", rows}};
}

}  // namespace spillway::tools
