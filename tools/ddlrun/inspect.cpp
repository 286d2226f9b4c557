#include "tools/ddlrun/inspect.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "core/json_text.h"
#include "ddl/allreduce/calibration.h"
#include "ddl/comm/collectives.h"
#include "ddl/comm/mpi.h"
#include "tools/ddlrun/hosts.h"
#include "tools/ddlrun/look.h"
#include "tools/ddlrun/shell.h"

namespace spillway::ddlrun {
namespace {

using nlohmann::json;

/// Seconds that the probe of a level takes, roughly, at any rate of its links.
constexpr double kSecondsALevel = 2;
constexpr std::chrono::milliseconds kLinkDeadline{15'000};

/// Measures the links roughly, then again with messages as large as links of that rate can carry in kSecondsALevel.
ddl::Costs measure(ddl::Communicator& comm) {
  const ddl::Costs rough = ddl::calibrate(comm, {.message_bytes = 64 << 10, .repeats = 1});
  ddl::CalibrationOptions options;
  for (const ddl::LinkCost& link : rough.levels) {
    const double bytes = link.bytes_per_second * kSecondsALevel / (4 * (options.repeats + 1));
    options.message_bytes = std::min(options.message_bytes, std::max<int64_t>(16 << 10, static_cast<int64_t>(bytes)));
  }
  return ddl::calibrate(comm, options);
}

/// Returns every rank's text, in rank order.
std::vector<std::string> gather(ddl::Communicator& comm, const std::string& own) {
  const size_t ranks = comm.size();
  const auto length = std::ssize(own);
  std::vector<int64_t> lengths(ranks);
  ddl::allgather(comm, std::as_bytes(std::span(&length, 1)), std::as_writable_bytes(std::span(lengths)));
  const auto most = static_cast<size_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::string padded = own, all(most * ranks, ' ');
  padded.resize(most, ' ');
  ddl::allgather(comm, std::as_bytes(std::span(padded)), std::as_writable_bytes(std::span(all)));
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < ranks; ++rank) texts.push_back(all.substr(rank * most, lengths[rank]));
  return texts;
}

void print(const json& report) {
  std::printf("%s%s\n", kReport, json_text(report).c_str());
  std::fflush(stdout);
}

}  // namespace

void inspect(const InspectOptions& options) {
  ddl::MpiRuntime mpi;
  // The deadline `hasty` ends before the launcher's timeout, so that ranks can say which links are dead. `patient` is
  // long because reading LibTorch from a slow disk may take as long as that timeout.
  ddl::CommOptions patient{.deadline = options.deadline},
      hasty{.deadline = std::min(kLinkDeadline, options.deadline / 2)};
  auto comm = mpi.world(hasty);
  if (comm->size() != options.ranks) return print({{"world_size", comm->size()}, {"mpi", ddl::MpiRuntime::library()}});
  if (!options.levels.empty()) {
    hasty.levels = ddl::Levels::parse(options.levels, comm->size()).labels();
    comm = mpi.world(hasty);
  }
  const ddl::Costs costs = measure(*comm);
  std::string own;
  if (comm->local_rank() == 0) {
    const char* path = std::getenv("PATH");
    HostRecord record = look_at_this_host(options.program, path ? path : kDefaultPath);
    record.mpi = join(words_of(ddl::MpiRuntime::library()), " ");
    own = json_text(to_json(record));
  }
  const auto all = mpi.world(patient);
  const auto texts = gather(*all, own);
  if (comm->rank() != 0) return;
  json records = json::array(), links = json::array();
  for (size_t rank = 0; rank < texts.size(); ++rank)
    if (!texts[rank].empty()) records.push_back({{"rank", rank}, {"record", json::parse(texts[rank])}});
  for (const ddl::LinkCost& link : costs.levels)
    links.push_back({{"latency_seconds", link.latency_seconds}, {"bytes_per_second", link.bytes_per_second}});
  print({{"world_size", comm->size()},
         {"hosts", comm->hosts()},
         {"records", records},
         {"levels", comm->levels().shape()},
         {"costs", links}});
}

}  // namespace spillway::ddlrun
