#include "tools/allreduce_trial.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>

#include "ddl/allreduce.h"
#include "ddl/calibration.h"
#include "ddl/collectives.h"
#include "tools/worker.h"

namespace spillway::tools {
namespace {

using ddl::Allreduce, ddl::Choice, ddl::Communicator, ddl::Costs, ddl::Element, ddl::Levels, ddl::Plan, ddl::Reduction;
using nlohmann::json;

constexpr int kWarmUp = 2;

/// What a rank contributes, so that the sum is exact whatever the order.
float contribution(int rank, size_t k) {
  return static_cast<float>((k + static_cast<size_t>(rank)) % 17);
}

float expected(int ranks, size_t k) {
  float sum = 0;
  for (int rank = 0; rank < ranks; ++rank) sum += contribution(rank, k);
  return sum;
}

/// One way to sum a vector.
struct Way {
  std::string name;
  std::function<void(std::span<const float> in, std::span<float> out)> apart;
  std::function<void(std::span<float>)> in_place;
  std::vector<double> seconds{}, in_place_seconds{};
  int64_t wrong = 0;
  json more = json::object();
};

Way way_of(std::string name, std::shared_ptr<Allreduce> allreduce) {
  return {.name = std::move(name),
          .apart =
              [allreduce](std::span<const float> in, std::span<float> out) {
                allreduce->reduce({std::as_bytes(in), std::as_writable_bytes(out), Element::float32}, Reduction::sum);
              },
          .in_place = [allreduce](std::span<float> data) { allreduce->reduce(data, Reduction::sum); }};
}

/// Everyone to its host's first rank, those around a ring, and back.
Plan leader_plan(const Levels& levels) {
  std::vector<ddl::Algorithm> algorithms(static_cast<size_t>(levels.count()), ddl::Algorithm::ring);
  if (!algorithms.empty()) algorithms.front() = ddl::Algorithm::leader;
  return Plan(levels, algorithms);
}

std::vector<Way> ways(ddl::MpiRuntime& mpi, Communicator& comm, const Costs& costs, int64_t bytes,
                      const TrialOptions& options) {
  std::vector<Way> ways;
  ways.push_back({.name = "mpi",
                  .apart = [&mpi](std::span<const float> in, std::span<float> out) { mpi.allreduce(in, out); },
                  .in_place = [&mpi](std::span<float> data) { mpi.allreduce(data, data); }});
  if (options.mpi_only) return ways;
  const Choice best = ddl::choose(comm.levels(), bytes, costs, options.keep_order);
  const auto count = bytes / static_cast<int64_t>(sizeof(float));
  ways.insert(ways.begin(), way_of("levels", std::make_shared<Allreduce>(comm, best.plan, best.options)));
  ways.front().more = {{"plan", best.plan.name()},
                       {"chunk_bytes", best.options.chunk_bytes},
                       {"predicted_seconds", ddl::predict_seconds(best, count, Element::float32, costs)}};
  ways.push_back(way_of("ring", std::make_shared<Allreduce>(comm, Plan(Levels(comm.size()), ddl::Algorithm::ring))));
  ways.push_back(way_of("leader", std::make_shared<Allreduce>(comm, leader_plan(comm.levels()))));
  return ways;
}

double seconds_of(Communicator& comm, const std::function<void()>& body) {
  ddl::barrier(comm);
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// The slowest rank's, number by number.
std::vector<double> slowest(Communicator& comm, const std::vector<double>& own) {
  std::vector<double> all(own.size() * static_cast<size_t>(comm.size())), most = own;
  ddl::allgather(comm, std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  for (size_t i = 0; i < all.size(); ++i) most[i % own.size()] = std::max(most[i % own.size()], all[i]);
  return most;
}

void measure(Communicator& comm, Way& way, const std::vector<float>& in, std::vector<float>& out) {
  way.seconds.push_back(seconds_of(comm, [&] { way.apart(in, out); }));
  for (size_t k = 0; k < out.size(); k += 1 + out.size() / 1000) way.wrong += out[k] != expected(comm.size(), k);
  out = in;
  way.in_place_seconds.push_back(seconds_of(comm, [&] { way.in_place(out); }));
  for (size_t k = 0; k < out.size(); k += 1 + out.size() / 1000) way.wrong += out[k] != expected(comm.size(), k);
}

json costs_of(const Costs& costs) {
  json levels = json::array();
  for (const auto& link : costs.levels)
    levels.push_back({{"latency_seconds", link.latency_seconds},
                      {"message_seconds", link.message_seconds},
                      {"bytes_per_second", link.bytes_per_second},
                      {"piece_bytes", link.piece_bytes == ddl::kWhole ? json(nullptr) : json(link.piece_bytes)}});
  return {{"levels", levels}, {"reduce_seconds_per_byte", costs.reduce_seconds_per_byte}};
}

}  // namespace

json run_trial(ddl::MpiRuntime& mpi, const TrialOptions& options) {
  ddl::CommOptions comm_options;
  comm_options.deadline = std::chrono::milliseconds(static_cast<int64_t>(options.comm_timeout_seconds * 1e3));
  auto comm = mpi.world(comm_options);
  if (!options.levels.empty()) {
    comm_options.levels = Levels::parse(options.levels, comm->size()).labels();
    comm = mpi.world(comm_options);
  }
  const Costs costs = ddl::calibrate(*comm);
  json rows = json::array();
  for (const int64_t bytes : options.sizes) {
    std::vector<float> in(static_cast<size_t>(bytes) / sizeof(float)), out(in.size());
    for (size_t k = 0; k < in.size(); ++k) in[k] = contribution(comm->rank(), k);
    auto all = ways(mpi, *comm, costs, bytes, options);
    for (int round = 0; round < kWarmUp + options.repeats; ++round)
      for (Way& way : all) {
        measure(*comm, way, in, out);
        if (round + 1 == kWarmUp) way.seconds.clear(), way.in_place_seconds.clear();
      }
    for (Way& way : all) {
      json row = way.more;
      const auto wrong = slowest(*comm, {static_cast<double>(way.wrong)});
      row.update({{"bytes", bytes},
                  {"algorithm", way.name},
                  {"seconds", median(slowest(*comm, way.seconds))},
                  {"in_place_seconds", median(slowest(*comm, way.in_place_seconds))},
                  {"wrong", static_cast<int64_t>(wrong.front())},
                  {"bound_seconds", ddl::bound_seconds(comm->levels(), bytes, costs)}});
      rows.push_back(std::move(row));
    }
  }
  if (comm->rank() != 0) return nullptr;
  return {{"world_size", comm->size()},
          {"levels", comm->levels().shape()},
          {"mpi", ddl::MpiRuntime::library()},
          {"costs", costs_of(costs)},
          {"rows", rows}};
}

}  // namespace spillway::tools
