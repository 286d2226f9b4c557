/// Measurements of collectives by the ranks of one launch.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/allreduce/timing.h"
#include "ddl/comm/mpi.h"

namespace spillway::tools {

struct TrialOptions {
  std::vector<int64_t> sizes;                         ///< bytes; each is rounded down to whole elements
  std::vector<std::string> types{"float32"};          ///< types of the elements, as parse_element() takes them
  std::vector<std::string> ops{"sum"};                ///< reductions, as parse_reduction() takes them
  std::vector<std::string> collectives{"allreduce"};  ///< collectives, as parse_collective() takes them
  std::vector<std::string> ways;                      ///< names of the ways that are measured; empty: all
  std::string levels = "hosts";                       ///< levels, as --levels takes them
  std::string device = "cpu";                         ///< cpu; cuda, the GPU of each rank's place on its host; cuda:N
  TimingOptions timing;
  int64_t offset_bytes = 0;  ///< distance of vectors from aligned memory, whole elements
  bool keep_order = false;   ///< only plans that keep the order of sums
  double comm_timeout_seconds = 60;
};

/// Returns every collective, type, operation and size, in this order; operations only of collectives that reduce.
std::vector<Problem> problems_of(const TrialOptions& options);

class Trial {
 public:
  /// Calibrates the links. Collective over `world`. Throws CommError; DeviceError without a GPU, BadRequest for bad
  /// levels.
  Trial(ddl::MpiRuntime& mpi, std::shared_ptr<ddl::Communicator> world, const TrialOptions& options);
  ~Trial();

  /// Runs every way of every problem in turn, over all processes. Returns the measurements on rank 0, null elsewhere:
  ///   {world_size levels mpi device cards type op collective repeats timing: {warmup repeats average iterations
  ///   back_to_back_average} offset_bytes ranks: [{rank host pid device name bus_id}] costs: {…} rows: [{bytes count
  ///   collective type op root bound_seconds predicted_seconds plan chunk_bytes explanation by_level: […]
  ///   …measure()'s}]}
  /// `predicted_seconds` and the four fields after it are those of an allreduce by `levels`. On GPUs `cards` says how
  /// they communicate (on the CPU null), and `costs` are those of the way through the host. `bound_seconds` is null on
  /// GPUs, and for other collectives than the allreduce. `interrupted` is asked between problems. When it is true on
  /// any rank, all ranks end together, and was_interrupted() is true. Collective. Throws CommError; BadRequest when
  /// none of the chosen ways can carry out any problem.
  nlohmann::json run(const std::function<bool()>& interrupted);
  bool was_interrupted() const noexcept;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace spillway::tools
