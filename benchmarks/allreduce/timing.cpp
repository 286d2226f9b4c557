#include "benchmarks/allreduce/timing.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>
#include <utility>

#include "benchmarks/allreduce/parse_name.h"
#include "core/clock.h"
#include "core/median.h"
#include "ddl/comm/collectives.h"

namespace spillway::tools {
namespace {

using ddl::Communicator;
using nlohmann::json;

struct Measured {
  Way way;
  std::vector<double> seconds{}, in_place_seconds{};
  int64_t wrong = 0, in_place_wrong = 0;
  json back_to_back = nullptr;
};

double average(std::vector<double> of_ranks, Average average) {
  switch (average) {
    case Average::rank0:
      return of_ranks.front();
    case Average::mean:
      return std::accumulate(of_ranks.begin(), of_ranks.end(), 0.0) / static_cast<double>(of_ranks.size());
    case Average::minimum:
      return *std::min_element(of_ranks.begin(), of_ranks.end());
    default:
      return *std::max_element(of_ranks.begin(), of_ranks.end());
  }
}

/// Averages the numbers over the ranks, number by number.
std::vector<double> over_ranks(Communicator& comm, const std::vector<double>& own, Average how) {
  const size_t ranks = comm.size();
  std::vector<double> all(own.size() * ranks), result;
  ddl::allgather(comm, std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  for (size_t i = 0; i < own.size(); ++i) {
    std::vector<double> of_ranks;
    for (size_t rank = 0; rank < ranks; ++rank) of_ranks.push_back(all[rank * own.size() + i]);
    result.push_back(average(std::move(of_ranks), how));
  }
  return result;
}

double seconds_of(Communicator& comm, Vectors& vectors, const std::function<void()>& body) {
  vectors.wait();
  ddl::barrier(comm);
  const auto start = Clock::now();
  body();
  vectors.wait();
  return seconds_since(start);
}

void measure_alone(Communicator& comm, Vectors& vectors, Measured& one, const Expected& expected) {
  vectors.spoil();  // holds no result, not even that of the way before
  one.seconds.push_back(seconds_of(comm, vectors, [&] { one.way.reduce(/*in_place=*/false); }));
  one.wrong += expected.count_wrong(vectors.result());
  vectors.refill();
  one.in_place_seconds.push_back(seconds_of(comm, vectors, [&] { one.way.reduce(/*in_place=*/true); }));
  one.in_place_wrong += expected.count_wrong(vectors.result());
}

/// Returns one call's share of the seconds that all calls take.
double seconds_back_to_back(Communicator& comm, Vectors& vectors, const Way& way, bool in_place,
                            const TimingOptions& options) {
  for (int call = 0; call < options.warmup; ++call) way.reduce(in_place);
  const auto calls = [&] {
    for (int call = 0; call < options.iterations; ++call) way.reduce(in_place);
  };
  return seconds_of(comm, vectors, calls) / options.iterations;
}

/// Measures calls back to back. In place, a result is the next call's input, as in nccl-tests, so only the calls out of
/// place have a result to check.
void measure_back_to_back(Communicator& comm, Vectors& vectors, Measured& one, const Expected& expected,
                          const TimingOptions& options) {
  vectors.refill();
  const double in_place = seconds_back_to_back(comm, vectors, one.way, true, options);
  vectors.spoil();
  const double seconds = seconds_back_to_back(comm, vectors, one.way, false, options);
  one.wrong += expected.count_wrong(vectors.result());
  const auto averages = over_ranks(comm, {seconds, in_place}, parse_average(options.back_to_back_average));
  one.back_to_back = {{"iterations", options.iterations}, {"seconds", averages[0]}, {"in_place_seconds", averages[1]}};
}

json row_of(Communicator& comm, Measured one, const TimingOptions& options) {
  json row = std::move(one.way.more);
  if (const json explained = one.way.explain(); explained.is_object()) row.update(explained);
  const auto how = parse_average(options.average);
  const auto calls = over_ranks(comm, one.seconds, how), in_place = over_ranks(comm, one.in_place_seconds, how);
  const auto wrong =
      over_ranks(comm, {static_cast<double>(one.wrong + one.in_place_wrong), static_cast<double>(one.in_place_wrong)},
                 Average::maximum);
  row.update({{"algorithm", one.way.name},
              {"seconds", median(calls)},
              {"in_place_seconds", median(in_place)},
              {"call_seconds", calls},
              {"in_place_call_seconds", in_place},
              {"wrong", static_cast<int64_t>(wrong[0])},
              {"in_place_wrong", static_cast<int64_t>(wrong[1])},
              {"back_to_back", one.back_to_back}});
  return row;
}

}  // namespace

Average parse_average(std::string_view name) {
  constexpr auto kAverages = value_names<Average>(
      {{Average::rank0, "rank0"}, {Average::mean, "mean"}, {Average::minimum, "min"}, {Average::maximum, "max"}});
  return parse_name(kAverages, "--average", name);
}

std::vector<json> measure(Communicator& comm, Vectors& vectors, std::vector<Way> ways, const Expected& expected,
                          const TimingOptions& options) {
  std::vector<Measured> all;
  for (Way& way : ways) all.push_back({std::move(way)});
  for (int round = 0; round < options.warmup + options.repeats; ++round)
    for (Measured& one : all) {
      if (round == options.warmup) one.seconds.clear(), one.in_place_seconds.clear();
      measure_alone(comm, vectors, one, expected);
    }
  if (options.iterations > 0)
    for (Measured& one : all) measure_back_to_back(comm, vectors, one, expected, options);
  std::vector<json> rows;
  for (Measured& one : all) rows.push_back(row_of(comm, std::move(one), options));
  return rows;
}

}  // namespace spillway::tools
