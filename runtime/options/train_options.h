/// The options of a training run.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/bytes.h"
#include "kfac/plan/options.h"
#include "runtime/io/shape3.h"
#include "runtime/options/loss_scaling.h"
#include "runtime/options/lr_schedule.h"
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

/// The options of a training run; each field has the default of its flag.
struct TrainOptions {
  std::string model = "unet3d";       ///< one that model_info() knows
  std::string data = "synthetic:96";  ///< a folder of NIfTI cases, or synthetic:N
  Shape3 shape = {0, 0, 0};           ///< shape that volumes are cropped and padded to; zeros: chosen by the data
  int64_t cases = 0;                  ///< synthetic cases; 0, also in batch to classes: the model's own default
  int64_t batch = 0;                  ///< cases per rank and micro-batch
  int64_t filters = 0;                ///< channels of the top level
  int64_t hidden = 0;                 ///< width of hidden layers
  int64_t layers = 0;                 ///< hidden layers
  int64_t classes = 0;                ///< outputs
  int64_t steps = 10;                 ///< ≥ 1; ignored when epochs > 0
  int64_t epochs = 0;                 ///< passes over the training cases; 0: use `steps`
  std::string device = "cpu";         ///< device whose memory is budgeted: cpu, cuda or cuda:N
  std::string engine = "gate";        ///< how tensors move: gate, or unified (CUDA's Unified Memory, on a GPU)
  BudgetRequest budget;
  BudgetRequest host_budget;                 ///< host memory for pages that left the device
  std::string disk;                          ///< directory for pages that the host budget has no room for; empty: none
  int64_t split_bytes = kDefaultSplitBytes;  ///< operators with larger tensors run in windows; kUnlimitedBytes: none

  std::string optimizer = "adam";            ///< sgd, adam, adamw or lamb
  double lr = 5e-4;                          ///< > 0
  double momentum = 0.9;                     ///< momentum of sgd, in [0, 1)
  bool nesterov = false;                     ///< Nesterov momentum, for sgd with momentum
  double weight_decay = 0;                   ///< ≥ 0
  int64_t warmup = 0;                        ///< steps over which lr rises to its value, ≥ 0
  std::vector<Decay> lr_decay;               ///< factors of lr, and the epochs from which they apply
  double clip_norm = 0;                      ///< maximum 2-norm over all gradients together; 0: any. Not with K-FAC
  int64_t accumulate = 1;                    ///< micro-batches per step, whose gradients are averaged, ≥ 1
  std::string amp = "off";                   ///< off, bf16 or fp16: forward and loss under autocast
  LossScaling loss_scaling;                  ///< used with fp16
  std::string memory_format = "contiguous";  ///< or channels_last, for models with channels

  /// True when gradients are sent between ranks while backward runs. They are sent in buckets of gradient_bucket_bytes
  /// (0: as the links suggest).
  bool overlap_gradients = true;
  int64_t gradient_bucket_bytes = 0;
  /// Most memory for gradients that are being sent. 0: enough for all of them, or 16 MiB with a budget.
  int64_t gradient_buffer_bytes = 0;

  bool use_kfac = false;
  kfac::KfacOptions kfac;
  std::vector<Decay> damping_decay;   ///< factors of K-FAC's damping, and the epochs from which they apply
  int64_t damping_adaptation = 0;     ///< steps between adaptations of K-FAC's damping to the loss; 0: none
  std::vector<Decay> interval_decay;  ///< factors of both K-FAC intervals, and their epochs; intervals must stay ≥ 1
  bool choose_grad_worker_frac = true;  ///< let the budget decide; off: kfac.grad_worker_frac is used

  uint64_t seed = 0;
  bool deterministic = false;  ///< deterministic algorithms only
  int64_t validate_every = 0;  ///< steps between measurements on the held-out cases; 0: at the start and the end

  std::string checkpoint;        ///< folder for the checkpoint; empty: none is written
  int64_t checkpoint_every = 0;  ///< steps between checkpoints; 0: one at the end, and when interrupted
  bool resume = false;           ///< go on from the checkpoint in that folder

  /// Returns true for the unified engine, because it also runs operators that do not fit.
  bool may_exceed_budget() const { return engine == "unified"; }
  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate() const;
};

/// Returns `options` with the model's own defaults for the fields that were left at 0. Throws BadRequest for an unknown
/// model.
TrainOptions with_model_defaults(TrainOptions options);

}  // namespace spillway
