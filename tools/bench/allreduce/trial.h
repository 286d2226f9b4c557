/// Measurements of collectives by the ranks of one launch.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ddl/comm/mpi.h"
#include "tools/bench/allreduce/timing.h"

namespace spillway::tools {

struct TrialOptions {
  std::vector<int64_t> sizes;                         ///< bytes; of each as many as are whole elements
  std::vector<std::string> types{"float32"};          ///< of the elements, as element_named() takes them
  std::vector<std::string> ops{"sum"};                ///< as reduction_named() takes them
  std::vector<std::string> collectives{"allreduce"};  ///< as collective_named() takes them
  std::vector<std::string> ways;                      ///< names of those that are measured; empty: all
  std::string levels = "hosts";                       ///< as --levels takes them
  std::string device = "cpu";                         ///< cpu; cuda, the card of each rank's place on its host; cuda:N
  TimingOptions timing;
  int64_t offset_bytes = 0;  ///< of vectors, whole elements, from where memory is aligned
  bool keep_order = false;   ///< only plans that do
  double comm_timeout_seconds = 60;
};

/// Every collective, type, operation and size, in this order; operations only of collectives that reduce.
std::vector<Problem> problems_of(const TrialOptions& options);

class Trial {
 public:
  /// Calibrates. Collective over `world`. Throws CommError; DeviceError without a card, BadRequest for bad levels.
  Trial(ddl::MpiRuntime& mpi, std::shared_ptr<ddl::Communicator> world, const TrialOptions& options);
  ~Trial();

  /// Runs every way of every problem in turn, over all processes. Rank 0 gets what was measured, the others null:
  ///   {world_size levels mpi device cards type op collective repeats timing: {warmup repeats average iterations
  ///   back_to_back_average} offset_bytes ranks: [{rank host pid device name bus_id}] costs: {…} rows: [{bytes count
  ///   collective type op root bound_seconds predicted_seconds plan chunk_bytes explanation by_level: […]
  ///   …measure()'s}]}
  /// `predicted_seconds` and the four after it are those of an allreduce by `levels`. On cards `cards` says how they
  /// talk (on the CPU null), `bound_seconds` is null, and `costs` are those of the way through the host; other
  /// collectives than the allreduce have no bound either. `interrupted` is asked between problems; when it says so on
  /// any rank, all end together: was_interrupted(). Collective. Throws CommError; BadRequest when none of the ways is
  /// one of any problem.
  nlohmann::json run(const std::function<bool()>& interrupted);
  bool was_interrupted() const noexcept;

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace spillway::tools
