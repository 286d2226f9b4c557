/// Synthetic heads with a tumour, for when there are no patients at hand.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "runtime/io/shape3.h"

namespace spillway {

/// One skull-stripped head.
struct Phantom {
  at::Tensor scans;   ///< [4, D, H, W] int16 in the order of kModalities; 0 outside the head, ≥ 1 inside
  at::Tensor labels;  ///< [D, H, W] uint8: 0, 1 core (necrosis), 2 oedema, 4 enhancing rim
};

/// Head `index` of `seed`: an ellipsoid with a folded cortex, white matter and two ventricles; a tumour of nested,
/// warped ellipsoids somewhere inside; the contrasts of FLAIR, T1, T1ce and T2; then partial volume, a smooth bias
/// field, noise and a gain of its own for each scan. No single threshold finds a label: ventricles are as bright as
/// oedema in T2, and vessels as bright as the enhancing rim in T1ce. The same arguments give the same voxels on the
/// same processor type, whatever was drawn before. Cost: about 0.5 s at 96³. Throws BadRequest when an extent is
/// below 8.
Phantom make_phantom(const Shape3& shape, uint64_t seed, int64_t index);

/// `phantom_0001` for index 0.
std::string phantom_name(int64_t index);

/// Called after each case is written: how many are done, of how many.
using PhantomProgress = std::function<void(int64_t done, int64_t cases)>;

/// Writes DIR/phantom_0001/phantom_0001_{flair,t1,t1ce,t2}.nii.gz (int16) and _seg.nii.gz (uint8), `cases` times with
/// `edge`³ voxels (240 mm / edge apart), as BratsFolder reads them. DIR is made when it does not exist. What is in it
/// stays: phantoms of this run's names are written again, and with anything else in DIR the call is refused, so that
/// no patient's folder is mixed with them.
/// Throws BadRequest for cases < 1, a foreign or unwritable DIR; std::system_error when writing fails (a full disk).
void write_phantoms(const std::filesystem::path& dir, int64_t cases, int64_t edge, uint64_t seed,
                    const PhantomProgress& progress = {});

}  // namespace spillway
