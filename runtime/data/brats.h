/// Cases on disk in the layout of the BraTS challenge.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/data/preprocess.h"

namespace spillway::runtime {

/// A folder of cases: DIR/CASE/CASE_{flair,t1,t1ce,t2,seg}.nii.gz (or .nii), in lexicographic order. Every folder in
/// DIR whose name does not start with a dot is a case; plain files in DIR are ignored.
/// The frame of a case is that of its first file that tells a place in space, in the order flair, t1, t1ce, t2, seg.
/// Files of the case with other axes (mirrored, or in another order) are turned onto it, which is exact. A file that
/// tells no place is taken as it is stored. Cases are not turned onto each other.
/// Batches: input [1, 4, D, H, W], target [1, 3, D, H, W]; see assemble_case().
class BratsFolder : public Dataset {
 public:
  /// Reads all headers and no voxels. Cases are fitted to `shape`; all 0 means the smallest multiples of 16 that hold
  /// every case. Throws BadRequest for a missing folder, a folder without cases, a missing file (naming case and file),
  /// or a file that read_nifti_header() refuses. It also throws for files of one case with different shapes, or that no
  /// turn brings onto each other within kMaxOffsetVoxels: another place, spacing or oblique axes (naming both). A shape
  /// that is not of multiples of 16 is refused, too (naming the nearest).
  explicit BratsFolder(const std::filesystem::path& dir, const Shape3& shape = {0, 0, 0});

  int64_t size() const override { return std::ssize(cases_); }
  /// Returns case `index`. Throws BadRequest naming the file when its voxels cannot be used (see read_nifti(),
  /// normalize_nonzero(), overlapping_labels()).
  Batch at(int64_t index) const override;
  std::string name(int64_t index) const override;
  int64_t case_bytes() const override;
  std::string remark() const override;
  /// Returns the shape that every case is fitted to.
  const Shape3& shape() const noexcept { return shape_; }

 private:
  struct Case {
    std::string name;
    std::array<std::filesystem::path, 5> files;  // scans in the order of kModalities, then the labels
    Shape3 shape{};
  };
  Case find_case(const std::filesystem::path& folder);
  const Case& checked(int64_t index) const;

  std::vector<Case> cases_;
  std::vector<std::string> turned_,
      unplaced_;  // names of files that are turned, and that are taken for lack of a place
  Shape3 shape_;
};

}  // namespace spillway::runtime
