/// A training run on disk: everything that its next step depends on, such that a resumed run equals an uninterrupted
/// one bit for bit.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ddl/torch/comm.h"
#include "runtime/options/train_options.h"

namespace spillway::runtime {

/// The position of a saved run.
struct RunPosition {
  int64_t step = 0;  ///< steps done since the very first
  /// Training cases that all ranks drew in these steps together, whatever the number of ranks.
  int64_t cases_drawn = 0;
  int64_t ranks = 0;  ///< ranks of the run that saved it; 0: unknown
};

/// One tensor of a run, equal on all ranks that hold it.
struct StateTensor {
  std::string name;
  at::ScalarType type;
  std::vector<int64_t> sizes;
  at::Tensor held;     ///< undefined on ranks that do not hold it
  int64_t holder = 0;  ///< a rank that holds it: 0 where that does

  StateTensor(std::string name, const at::Tensor& held)
      : name(std::move(name)), type(held.scalar_type()), sizes(held.sizes().vec()), held(held) {}
  StateTensor(std::string name, at::ScalarType type, std::vector<int64_t> sizes)
      : name(std::move(name)), type(type), sizes(std::move(sizes)) {}
};

/// Returns the tensor on rank 0, where it is in the host's memory if another rank holds it; what this rank holds
/// elsewhere. Collective over rank 0 and the holder. Throws CommError.
at::Tensor at_rank_0(const StateTensor& tensor, const ddl::Comm& comm);

/// Returns the one file of a folder that checkpoints are written to.
std::filesystem::path checkpoint_file(const std::filesystem::path& folder);

/// Makes the folder where there is none, and checks that files can be written in it. Throws std::system_error.
void prepare_checkpoint_folder(const std::filesystem::path& folder);

/// Returns the seed of a rank's generator at the start of a run. It differs on every rank, because dropout is each
/// rank's own.
uint64_t first_seed(const TrainOptions& options, int rank);

/// Writes `tensors` and every rank's generator on rank 0; the other ranks take part. The former checkpoint stays until
/// the new one is whole on the disk, for which every rank waits. Tensors are paged in one at a time. Collective. Throws
/// std::system_error (a full disk), ddl::CommError.
void write_checkpoint(const std::filesystem::path& folder, const TrainOptions& options, RunPosition position,
                      const std::vector<StateTensor>& tensors, const ddl::Comm& comm);

/// Returns the position that a run of these options continues from. Reads the header alone. Throws BadRequest naming
/// the file when there is none, or when it is foreign or truncated. Throws BadRequest also when the saved run differed,
/// naming the option and both values. These may differ: length, learning rate and its like, budgets, reports, the
/// numbers of ranks and micro-batches, and the cut of the model.
RunPosition checkpoint_position(const std::filesystem::path& folder, const TrainOptions& options);

/// The steps in which the run of a checkpoint renewed K-FAC's layers, where it had a plan of them.
struct SavedCurvature {
  std::vector<kfac::LayerCurvature> layers = {};  ///< KfacOptions::layer_curvature
  std::optional<int64_t> delay = std::nullopt;    ///< KfacOptions::curvature_delay; older files do not tell it
  std::set<std::string> with_next_inverse = {};   ///< layers that have a renewed inverse for later steps

  /// True for a plan of late refreshes, which a pipeline makes. Others are a user's.
  bool is_late() const { return delay ? *delay > 0 : !with_next_inverse.empty(); }
  /// True for a plan that is, or in an older file may be, one of late refreshes.
  bool may_be_late() const { return !layers.empty() && (!delay || *delay > 0); }
};

/// Returns the plan of K-FAC's curvature in the checkpoint of a folder. Throws BadRequest as checkpoint_position()
/// does.
SavedCurvature checkpoint_curvature(const std::filesystem::path& folder);

/// Renames the tensors of K-FAC's inverses to those for later steps, where the checkpoint has them: a run that renews
/// layers in other steps begins with the newest inverses.
void name_next_inverses(const std::filesystem::path& folder, std::vector<StateTensor>& tensors);

/// Overwrites the tensors in `tensors` that this rank holds, and its generator. A rank that the saved run did not have
/// seeds its generator by the options' seed, its rank and the position's step. Throws BadRequest as
/// checkpoint_position() does, or naming the tensor that is missing, has another shape, or is damaged.
void read_checkpoint(const std::filesystem::path& folder, const TrainOptions& options, RunPosition position,
                     const std::vector<StateTensor>& tensors, const ddl::Comm& comm);

}  // namespace spillway::runtime
