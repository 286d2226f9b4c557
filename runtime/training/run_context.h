/// What the runs of a request share: its options, the data and the ranks.
#pragma once
#include <c10/core/Device.h>

#include <cstdint>
#include <memory>

#include "ddl/torch/comm.h"
#include "runtime/data/dataset.h"
#include "runtime/options/run_position.h"
#include "runtime/options/train_options.h"

namespace spillway {

struct TaskOptions;

/// What several runs share. `comm` is null in a world of one.
struct RunContext {
  TrainOptions options;
  std::shared_ptr<const Dataset> data;
  Split split;
  ddl::Comm comm = {};
  RunPosition start = {};  ///< of the checkpoint that the run goes on from; with `resume` alone
  int rank() const { return ddl::rank_of(comm); }
  int world() const { return ddl::size_of(comm); }
};

/// Where the tensors of a run with these options are.
c10::Device options_device(const TrainOptions& options);

/// The model's options for these training options (with_model_defaults) and this data.
TaskOptions task_options(const TrainOptions& options, const Dataset& data);

/// The training cases that all ranks draw in a step together.
int64_t cases_per_step(const RunContext& context);

/// The steps of this run, rounded up, that draw as many cases.
int64_t steps_for(const RunContext& context, int64_t cases);

/// The steps that see every case at least once.
int64_t steps_per_epoch(const RunContext& context);

/// The largest of all ranks' values. Collective.
int64_t max_over_ranks(const ddl::Comm& comm, int64_t value);

/// Returns the step that the run ends after, counted from the very first. Throws BadRequest where nothing is left.
int64_t last_step(const RunContext& context);

/// Opens the data of `options` and puts what several runs share together; with Placement::measured rank 0 measures.
/// Collective. Throws BadRequest.
RunContext make_context(const TrainOptions& options, ddl::Comm comm);

}  // namespace spillway
