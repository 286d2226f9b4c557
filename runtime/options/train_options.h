/// The options of a training run.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/bytes.h"
#include "kfac/plan/options.h"
#include "runtime/io/shape3.h"
#include "runtime/options/lr_schedule.h"
#include "runtime/options/pipeline_options.h"
#include "runtime/passes/tensor_format.h"
#include "swap/gate/session_options.h"
#include "swap/windows/split_sizes.h"

namespace spillway {

/// A byte budget as the user requests it.
struct BudgetRequest {
  /// The kinds of request.
  enum class Kind : uint8_t { none, bytes, percent };
  Kind kind = Kind::none;
  int64_t bytes = 0;   ///< when kind is bytes
  double percent = 0;  ///< percentage of the unconstrained peak, when kind is percent

  /// Reads `none`, `50%`, or a size as parse_bytes does. Throws BadRequest naming `text` and the accepted forms.
  static BudgetRequest parse(std::string_view text);
};

/// The model. A size of 0 means the model's own default (model_info()).
struct ModelOptions {
  std::string name = "unet3d";         ///< one that model_info() knows
  int64_t filters = 0;                 ///< channels of the top level
  int64_t hidden = 0;                  ///< width of hidden layers
  int64_t layers = 0;                  ///< hidden layers
  int64_t classes = 0;                 ///< outputs
  Layout layout = Layout::contiguous;  ///< channels_last: for models with channels
};

/// The cases to train on. A number of 0 means the model's own default.
struct DataOptions {
  std::string source = "synthetic:96";  ///< a folder of NIfTI cases, or synthetic:N
  Shape3 shape = {0, 0, 0};             ///< shape that volumes are cropped and padded to; zeros: chosen by the data
  int64_t cases = 0;                    ///< synthetic cases
  int64_t batch = 0;                    ///< cases per rank and micro-batch
};

/// The device and the memory that training may use.
struct MemoryOptions {
  std::string device = "cpu";    ///< device whose memory is budgeted: cpu, cuda or cuda:N
  Engine engine = Engine::gate;  ///< unified needs a GPU
  BudgetRequest budget;          ///< device memory
  BudgetRequest host_budget;     ///< host memory for pages that left the device
  std::string disk;              ///< folder for pages that the host budget has no room for; empty: none
  /// Operators with larger tensors run in windows; kUnlimitedBytes: none, kSplitByDevice: the device's default.
  int64_t split_bytes = kSplitByDevice;

  /// Returns true for the unified engine, because it also runs operators that do not fit.
  bool may_exceed_budget() const { return engine == Engine::unified; }
  int64_t split_in_use() const { return split_bytes_on(device != "cpu", split_bytes); }
};

/// The optimizers that training can use.
enum class OptimizerKind : uint8_t { sgd, adam, adamw, lamb, muon, soap };

/// Reads `sgd`, `adam`, `adamw`, `lamb`, `muon`, `soap`. Throws BadRequest naming the value and these names.
OptimizerKind parse_optimizer(std::string_view name);
bool is_optimizer(std::string_view name);   ///< true when parse_optimizer() can read it
std::string_view name(OptimizerKind kind);  ///< the name that parse_optimizer() reads

/// True for the optimizers of matrices, which leave the rest of the parameters to another one.
bool is_of_matrices(OptimizerKind kind);
/// Returns the default learning rate of `--optimizer`.
double default_lr(OptimizerKind kind);
/// Returns the default of `--weight-decay`.
double default_weight_decay(OptimizerKind kind);

/// An optimizer beside the main one, for the parameters that the main one does not serve.
struct RestOptimizer {
  OptimizerKind kind = OptimizerKind::adam;  ///< sgd, adam, adamw or lamb
  double lr = 5e-4;                          ///< > 0
};

/// The optimizer and its steps.
struct OptimizerOptions {
  OptimizerKind kind = OptimizerKind::adam;
  double lr = 5e-4;         ///< > 0
  double momentum = 0.9;    ///< momentum of sgd, in [0, 1)
  bool nesterov = false;    ///< Nesterov momentum, for sgd with momentum
  double weight_decay = 0;  ///< ≥ 0, of all parameters
  /// For the parameters that K-FAC leaves alone; for those of muon and soap that are no matrices, embeddings or the
  /// output layer. When empty, `kind` serves all parameters, which muon and soap cannot. Schedules of lr apply to both.
  std::optional<RestOptimizer> rest;
  int64_t warmup = 0;           ///< steps over which lr rises to its value, ≥ 0
  std::vector<Decay> lr_decay;  ///< factors of lr, and the epochs from which they apply
  double clip_norm = 0;         ///< maximum 2-norm over all gradients together; 0: any. Not with K-FAC
  int64_t accumulate = 1;       ///< micro-batches per step, whose gradients are averaged, ≥ 1
};

/// Options of loss scaling under `amp = fp16`.
struct LossScaling {
  static constexpr double kMaxScale = 0x1p127;  ///< float32's largest power of two
  double initial = 65536;                       ///< 1 to kMaxScale; powers of two scale without rounding
  int64_t growth_interval = 2000;               ///< steps without an overflow after which the scale doubles, ≥ 1

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate() const;
};

/// The number format of forward and loss.
struct PrecisionOptions {
  Amp amp = Amp::off;
  LossScaling loss_scaling;  ///< used with fp16
};

/// The memory for gradients being sent, of a run with a budget: the budget is not meant for copies of gradients.
inline constexpr int64_t kGradientBufferWithABudget = int64_t{16} << 20;

/// The exchange of gradients between ranks.
struct GradientExchangeOptions {
  bool overlap = true;       ///< gradients are sent while backward runs
  int64_t bucket_bytes = 0;  ///< bytes that are sent together, with overlap; 0: automatic
  int64_t buffer_bytes = 0;  ///< maximum memory for gradients being sent; 0: for all of them, or as a budget asks for
};

/// Preconditioning by K-FAC.
struct KfacTrainingOptions {
  bool enabled = false;
  kfac::KfacOptions preconditioner;
  /// Largest work of K-FAC, as a share of that of a first-order step, (0, 1]: plan_curvature() then chooses
  /// layer_curvature. A run that goes on from a checkpoint keeps the checkpoint's choice.
  std::optional<double> time_share;
  std::vector<Decay> damping_decay;     ///< factors of the damping, and the epochs from which they apply
  int64_t damping_adaptation = 0;       ///< steps between adaptations of the damping to the loss; 0: none
  std::vector<Decay> interval_decay;    ///< factors of both intervals, and their epochs; intervals must stay ≥ 1
  bool choose_grad_worker_frac = true;  ///< let the budget decide; off: the preconditioner's grad_worker_frac is used
};

/// Where checkpoints are kept, and when they are written.
struct CheckpointOptions {
  std::string folder;   ///< empty: no checkpoint is written
  int64_t every = 0;    ///< steps between checkpoints; 0: one at the end, and when interrupted
  bool resume = false;  ///< go on from the checkpoint in the folder
};

/// The options of a training run; each field has the default of its flag.
struct TrainOptions {
  ModelOptions model;
  DataOptions data;
  MemoryOptions memory;
  OptimizerOptions optimizer;
  PrecisionOptions precision;
  GradientExchangeOptions gradients;
  PipelineOptions pipeline;
  KfacTrainingOptions kfac;
  CheckpointOptions checkpoint;

  int64_t steps = 10;          ///< ≥ 1; ignored when epochs > 0
  int64_t epochs = 0;          ///< passes over the training cases; 0: use `steps`
  int64_t validate_every = 0;  ///< steps between measurements on the held-out cases; 0: at the start and the end
  uint64_t seed = 0;
  bool deterministic = false;  ///< deterministic algorithms only

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate() const;
};

/// Returns `options` with the model's own defaults for the fields that were left at 0. Throws BadRequest for an unknown
/// model.
TrainOptions with_model_defaults(TrainOptions options);

}  // namespace spillway
