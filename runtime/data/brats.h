/// Cases on disk in the layout of the BraTS challenge.
#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/data/preprocess.h"

namespace spillway {

/// DIR/CASE/CASE_{flair,t1,t1ce,t2,seg}.nii.gz (or .nii), cases in lexicographic order. Every folder in DIR whose name
/// does not start with a dot is a case; plain files in DIR are ignored.
/// Batches: input [1, 4, D, H, W], target [1, 3, D, H, W]; see assemble_case().
class BratsFolder : public Dataset {
 public:
  /// Reads all headers, no voxels. `shape` is what cases are fitted to; all 0: the smallest multiples of 16 that hold
  /// every case. Throws BadRequest: no such folder or no case in it, a missing file (naming case and file), a file that
  /// read_nifti_header() refuses, scans of one case with different shapes (naming both), a shape that is not of
  /// multiples of 16 (naming the nearest).
  explicit BratsFolder(const std::filesystem::path& dir, const Shape3& shape = {0, 0, 0});

  int64_t size() const override { return static_cast<int64_t>(cases_.size()); }
  /// Throws BadRequest naming the file when its voxels cannot be used (see read_nifti, normalize_nonzero,
  /// overlapping_labels).
  Batch at(int64_t index) const override;
  std::string name(int64_t index) const override;
  int64_t case_bytes() const override;
  /// What every case is fitted to.
  const Shape3& shape() const noexcept { return shape_; }

 private:
  struct Case {
    std::string name;
    std::array<std::filesystem::path, 4> scans;  // in the order of kModalities
    std::filesystem::path labels;
    Shape3 shape{};
  };
  static Case find_case(const std::filesystem::path& folder);
  const Case& checked(int64_t index) const;

  std::vector<Case> cases_;
  Shape3 shape_;
};

}  // namespace spillway
