/// Synthetic heads with a tumor, for use when no patient data is available.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>

#include "runtime/io/shape3.h"

namespace spillway::runtime {

/// One skull-stripped head.
struct Phantom {
  at::Tensor scans;   ///< [4, D, H, W] int16 in the order of kModalities; 0 outside the head, ≥ 1 inside
  at::Tensor labels;  ///< [D, H, W] uint8: 0, 1 core (necrosis), 2 edema, 4 enhancing rim
};

/// Makes head `index` of `seed`: an ellipsoid with a folded cortex, white matter and two ventricles. A tumor of nested,
/// warped ellipsoids lies somewhere inside. The contrasts are those of FLAIR, T1, T1ce and T2. Partial volume, a smooth
/// bias field, noise and a separate gain for each scan are then applied. No single threshold finds a label: ventricles
/// are as bright as edema in T2, and vessels as bright as the enhancing rim in T1ce. The same arguments give the same
/// voxels on the same processor type, regardless of earlier random draws. Cost: about 0.5 s at 96³. Throws BadRequest
/// when an extent is below 8.
Phantom make_phantom(const Shape3& shape, uint64_t seed, int64_t index);

/// Returns the name of case `index`: `phantom_0001` for index 0.
std::string phantom_name(int64_t index);

/// A callback that runs after each case is written, with the number of cases done and the number of all cases.
using PhantomProgress = std::function<void(int64_t done, int64_t cases)>;

/// Writes DIR/phantom_0001/phantom_0001_{flair,t1,t1ce,t2}.nii.gz (int16) and _seg.nii.gz (uint8), as BratsFolder reads
/// them. It writes `cases` of these, with `edge`³ voxels that are 240 mm / edge apart. DIR is made when it does not
/// exist. Existing content of DIR is not deleted; phantoms with this run's names are written again. The call is refused
/// when DIR holds anything else, so that no patient's folder is mixed with phantoms.
/// Throws BadRequest for cases < 1, a foreign or unwritable DIR; std::system_error when writing fails (a full disk).
void write_phantoms(const std::filesystem::path& dir, int64_t cases, int64_t edge, uint64_t seed,
                    const PhantomProgress& progress = {});

}  // namespace spillway::runtime
