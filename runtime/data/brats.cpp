#include "runtime/data/brats.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <system_error>

#include "core/error.h"
#include "runtime/io/nifti.h"

namespace spillway::runtime {
namespace {

using Path = std::filesystem::path;

constexpr const char* kLayout = "CASE/CASE_{flair,t1,t1ce,t2,seg}.nii.gz";

Path find_file(const Path& folder, std::string_view kind) {
  const auto stem = str(folder.filename().string(), "_", kind);
  for (const char* ending : {".nii.gz", ".nii"})
    if (auto path = folder / (stem + ending); std::filesystem::exists(path)) return path;
  throw BadRequest(str("case '", folder.filename().string(), "' has no ", kind, ": neither ", stem, ".nii.gz nor ",
                       stem, ".nii is in '", folder.string(), "'"));
}

std::vector<Path> case_folders(const Path& dir) {
  if (!std::filesystem::is_directory(dir)) throw BadRequest(str("data folder '", dir.string(), "' does not exist"));
  std::vector<Path> folders;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(dir, error))
    if (entry.is_directory() && !entry.path().filename().string().starts_with(".")) folders.push_back(entry.path());
  if (error) throw BadRequest(str("data folder '", dir.string(), "' cannot be read: ", error.message()));
  if (folders.empty()) throw BadRequest(str("data folder '", dir.string(), "' has no cases; expected ", kLayout));
  std::sort(folders.begin(), folders.end());
  return folders;
}

}  // namespace

BratsFolder::Case BratsFolder::find_case(const Path& folder) {
  Case found;
  found.name = folder.filename().string();
  for (size_t m = 0; m < kModalities.size(); ++m) found.scans[m] = find_file(folder, kModalities[m]);
  found.labels = find_file(folder, "seg");
  found.shape = read_nifti_header(found.scans[0]).shape;
  auto check = [&](const Path& path) {
    const Shape3 shape = read_nifti_header(path).shape;
    if (shape != found.shape)
      throw BadRequest(str("case '", found.name, "': ", found.scans[0].filename().string(), " is ",
                           format_shape(found.shape), " but ", path.filename().string(), " is ", format_shape(shape)));
  };
  for (const auto& scan : found.scans) check(scan);
  check(found.labels);
  return found;
}

BratsFolder::BratsFolder(const Path& dir, const Shape3& shape) : shape_(shape) {
  const bool chosen = shape != Shape3{};
  if (chosen) check_multiple(str("data folder '", dir.string(), "'"), shape, kShapeMultiple);
  Shape3 largest{};
  for (const auto& folder : case_folders(dir)) {
    cases_.push_back(find_case(folder));
    for (size_t d = 0; d < 3; ++d) largest[d] = std::max(largest[d], cases_.back().shape[d]);
  }
  if (!chosen) shape_ = round_up_shape(largest, kShapeMultiple);
}

const BratsFolder::Case& BratsFolder::checked(int64_t index) const {
  TORCH_CHECK(index >= 0 && index < size(), "BratsFolder: case ", index, " is outside 0 … ", size() - 1);
  return cases_[index];
}

std::string BratsFolder::name(int64_t index) const {
  return checked(index).name;
}

int64_t BratsFolder::case_bytes() const {
  return static_cast<int64_t>((kModalities.size() + kTumourLabels.size()) * sizeof(float)) * voxel_count(shape_);
}

Batch BratsFolder::at(int64_t index) const {
  const Case& one = checked(index);
  std::array<at::Tensor, 4> scans;
  for (size_t m = 0; m < scans.size(); ++m) scans[m] = read_nifti(one.scans[m]).voxels;
  return assemble_case(scans, read_nifti(one.labels).voxels, shape_, str("case '", one.name, "'"));
}

}  // namespace spillway::runtime
