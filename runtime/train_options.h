/// What a training run is asked to do.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/bytes.h"
#include "kfac/options.h"
#include "runtime/shape3.h"

namespace spillway {

/// A byte budget as people ask for it.
struct BudgetRequest {
  enum class Kind : uint8_t { none, bytes, percent };
  Kind kind = Kind::none;
  int64_t bytes = 0;   ///< when kind is bytes
  double percent = 0;  ///< of the unconstrained peak, when kind is percent

  /// Reads `none`, `50%`, or a size as parse_bytes does. Throws BadRequest naming `text` and the accepted forms.
  static BudgetRequest parse(std::string_view text);
};

struct TrainOptions {
  std::string model = "unet3d";       ///< unet3d or mlp
  std::string data = "synthetic:96";  ///< a folder of NIfTI cases, or synthetic:N
  Shape3 shape = {0, 0, 0};           ///< what volumes are cropped and padded to; zeros: chosen by the data
  int64_t batch = 1;                  ///< cases per rank and step, ≥ 1
  int64_t filters = 16;               ///< channels of the top level of unet3d, ≥ 1
  int64_t steps = 10;                 ///< ≥ 1; ignored when epochs > 0
  int64_t epochs = 0;                 ///< passes over the training cases; 0: use `steps`
  BudgetRequest budget;
  BudgetRequest host_budget;  ///< of host memory for pages that left the device
  std::string disk;           ///< directory for pages that the host budget has no room for; empty: none

  std::string optimizer = "adam";  ///< adam or sgd
  double lr = 5e-4;                ///< > 0
  double momentum = 0.9;           ///< of sgd, in [0, 1)
  double weight_decay = 0;         ///< ≥ 0

  bool use_kfac = false;
  kfac::KfacOptions kfac;
  bool choose_grad_worker_frac = true;  ///< let the budget decide; off: kfac.grad_worker_frac stands

  uint64_t seed = 0;
  bool deterministic = false;  ///< deterministic algorithms only
  int64_t validate_every = 0;  ///< steps between measurements on the held-out cases; 0: at the start and the end

  /// Throws BadRequest naming the field, its value and the allowed range.
  void validate() const;
};

}  // namespace spillway
