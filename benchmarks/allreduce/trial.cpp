#include "benchmarks/allreduce/trial.h"

#include <ATen/Context.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "benchmarks/allreduce/gpu.h"
#include "benchmarks/allreduce/host.h"
#include "core/device/device.h"
#include "core/device/open_device.h"
#include "core/error.h"
#include "ddl/allreduce/calibration.h"
#include "ddl/allreduce/cost_model.h"
#include "ddl/comm/collectives.h"
#include "ddl/torch/gpu_backend.h"
#include "tools/cli/launch.h"
#include "tools/cli/levels_flag.h"

namespace spillway::tools {
namespace {

using ddl::Communicator, ddl::Costs;
using nlohmann::json;

json costs_of(const Costs& costs) {
  json levels = json::array();
  for (const auto& link : costs.levels)
    levels.push_back({{"latency_seconds", link.latency_seconds},
                      {"message_seconds", link.message_seconds},
                      {"bytes_per_second", link.bytes_per_second},
                      {"piece_bytes", link.segment_bytes == ddl::kWhole ? json(nullptr) : json(link.segment_bytes)},
                      {"by_cores", link.by_cores}});
  return {{"levels", levels}, {"reduce_seconds_per_byte", costs.reduce_seconds_per_byte}};
}

/// Returns this rank's GPU; null on the CPU.
Device* open_gpu(const Communicator& world, const TrialOptions& options) {
  if (options.device == "cpu") return nullptr;
  if (options.keep_order) at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/true);
  return &open_device(options.device == "cuda" ? str("cuda:", world.local_rank()) : options.device);
}

/// Returns the GPU's name as hwloc knows it; empty when hwloc does not know it.
std::string name_of_gpu(const std::string& bus_id) {
  for (const Gpu& gpu : discover_machine().gpus)
    if (gpu.bus_id == bus_id) return gpu.name;
  return "";
}

/// The place where a rank runs; it has a fixed size, because it is gathered.
struct Place {
  std::array<char, 64> host{}, bus_id{}, name{};
  int64_t pid = ::getpid(), own_gpu = -1;
};

void put(std::array<char, 64>& to, const std::string& text) {
  std::copy_n(text.begin(), std::min(text.size(), to.size() - 1), to.begin());
}

/// Returns an entry for each rank. Collective.
json places_of(Communicator& comm, const Device* own_gpu) {
  Place own;
  ::gethostname(own.host.data(), own.host.size() - 1);
  if (own_gpu) {
    own.own_gpu = +own_gpu->torch_device().index();  // a number, not a character
    put(own.bus_id, bus_id_of(*own_gpu));
    put(own.name, name_of_gpu(bus_id_of(*own_gpu)));
  }
  std::vector<Place> all(comm.size());
  ddl::allgather(comm, std::as_bytes(std::span(&own, 1)), std::as_writable_bytes(std::span(all)));
  json places = json::array();
  const auto text = [](const auto& chars) { return chars[0] ? json(chars.data()) : json(nullptr); };
  for (const Place& place : all)
    places.push_back({{"rank", places.size()},
                      {"host", place.host.data()},
                      {"pid", place.pid},
                      {"device", place.own_gpu < 0 ? "cpu" : str("cuda:", place.own_gpu)},
                      {"name", text(place.name)},
                      {"bus_id", text(place.bus_id)}});
  return places;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

/// Returns the ways that are asked for.
std::vector<Way> chosen(std::vector<Way> ways, const std::vector<std::string>& names) {
  const auto unwanted = [&](const Way& way) {
    return !names.empty() && std::find(names.begin(), names.end(), way.name) == names.end();
  };
  std::erase_if(ways, unwanted);
  return ways;
}

json to_json(const Problem& problem) {
  const bool rooted = problem.collective == Collective::broadcast;
  return {{"bytes", problem.bytes()},
          {"count", problem.count},
          {"collective", name_of(problem.collective)},
          {"type", ddl::name_of(problem.element)},
          {"op", problem.reduces() ? json(name_of_op(problem.reduction)) : json(nullptr)},
          {"root", rooted ? json(kRoot) : json(nullptr)}};
}

}  // namespace

struct Trial::State {
  ddl::MpiRuntime& mpi;
  const TrialOptions options;
  std::shared_ptr<Communicator> comm{};
  Device* own_gpu = nullptr;
  Costs costs{};
  ddl::Comm on_gpus{};
  json places{};
  bool interrupted = false;

  std::unique_ptr<Vectors> vectors_of(const Problem& problem) const {
    return own_gpu ? vectors_on_gpu(on_gpus, *on_gpus->gpus, own_gpu->torch_device(), problem)
                   : vectors_on_host(mpi, *comm, costs, problem, options.keep_order);
  }

  /// Measures a problem and returns one row for each way.
  std::vector<json> measure_problem(const Problem& problem) const {
    const auto vectors = vectors_of(problem);
    const Expected expected(problem, comm->rank(), comm->size());
    const bool bounded = !own_gpu && problem.collective == Collective::allreduce;
    auto rows = measure(*comm, *vectors, chosen(vectors->ways(), options.ways), expected, options.timing);
    for (json& row : rows) {
      row.update(to_json(problem));
      row["bound_seconds"] = bounded ? json(ddl::bound_seconds(comm->levels(), problem.bytes(), costs)) : json(nullptr);
    }
    return rows;
  }

  /// True when any rank was told to end. Collective.
  bool agree_to_end(bool told) const {
    const std::byte own{told};
    std::vector<std::byte> all(comm->size());
    ddl::allgather(*comm, std::span(&own, 1), all);
    return std::find(all.begin(), all.end(), std::byte{1}) != all.end();
  }

  json head(const Problem& last) const {
    const TimingOptions& timing = options.timing;
    const json gpu_choice = own_gpu ? json(decision(*on_gpus->gpus, own_gpu->torch_device(), last)) : json(nullptr);
    return {{"world_size", comm->size()},
            {"levels", comm->levels().shape()},
            {"mpi", ddl::MpiRuntime::library()},
            {"device", own_gpu ? "cuda" : "cpu"},
            {"cards", gpu_choice},
            {"type", joined(options.types)},
            {"op", joined(options.ops)},
            {"collective", joined(options.collectives)},
            {"repeats", timing.repeats},
            {"timing",
             {{"warmup", timing.warmup},
              {"repeats", timing.repeats},
              {"average", timing.average},
              {"iterations", timing.iterations},
              {"back_to_back_average", timing.back_to_back_average}}},
            {"offset_bytes", options.offset_bytes},
            {"ranks", places},
            {"costs", costs_of(costs)}};
  }
};

std::vector<Problem> problems_of(const TrialOptions& options) {
  std::vector<Problem> problems;
  Problem problem{.offset_bytes = options.offset_bytes};
  for (const std::string& collective : options.collectives)
    for (const std::string& type : options.types)
      for (const std::string& op : options.ops) {
        problem.collective = parse_collective(collective);
        problem.element = parse_element(type);
        problem.reduction = parse_reduction(op);
        if (!problem.reduces() && op != options.ops.front()) continue;
        for (const int64_t bytes : options.sizes) {
          problem.count = bytes / ddl::element_bytes(problem.element);
          problems.push_back(problem);
        }
      }
  return problems;
}

Trial::Trial(ddl::MpiRuntime& mpi, std::shared_ptr<ddl::Communicator> world, const TrialOptions& options)
    : state_(new State{mpi, options}) {
  State& state = *state_;
  state.own_gpu = open_gpu(*world, options);
  state.comm = with_levels(mpi, std::move(world), comm_options(options.comm_timeout_seconds), options.levels,
                           state.own_gpu ? bus_id_of(*state.own_gpu) : "");
  state.costs = ddl::calibrate(*state.comm);
  if (state.own_gpu) state.on_gpus = ddl::make_comm(state.comm, state.costs);
  state.places = places_of(*state.comm, state.own_gpu);
}

Trial::~Trial() = default;

bool Trial::was_interrupted() const noexcept {
  return state_->interrupted;
}

json Trial::run(const std::function<bool()>& interrupted) {
  State& state = *state_;
  json rows = json::array();
  const auto problems = problems_of(state.options);
  for (const Problem& problem : problems) {
    for (json& row : state.measure_problem(problem)) rows.push_back(std::move(row));
    state.interrupted = state.agree_to_end(interrupted());
    if (state.interrupted) break;
  }
  if (rows.empty())
    throw BadRequest(str("--ways: ", joined(state.options.ways), "; none of them carries out what is asked for"));
  json result = state.head(problems.back());
  result["rows"] = std::move(rows);
  return state.comm->rank() == 0 ? result : json(nullptr);
}

}  // namespace spillway::tools
