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

/// The files of one case: scans and labels.
constexpr size_t kFiles = kModalities.size() + 1;
using Files = std::array<Path, kFiles>;

/// The frame of a case, and how each of its files is turned onto it.
struct Frame {
  Shape3 shape{};
  std::array<Turn, kFiles> turns;
};

/// Finds the frame of a case. Throws BadRequest naming both files where one does not lie on it.
Frame frame_of(const std::string& name, const Files& files, const std::array<PlacedShape, kFiles>& volumes) {
  const auto is_placed = [](const PlacedShape& volume) { return volume.placement.is_told; };
  const auto placed = std::find_if(volumes.begin(), volumes.end(), is_placed);
  const size_t first = placed == volumes.end() ? 0 : placed - volumes.begin();
  const auto refuse = [&](size_t file, const std::string& frame, const std::string& own, const std::string& advice) {
    throw BadRequest(str("case '", name, "': ", files[first].filename().string(), " ", frame, " but ",
                         files[file].filename().string(), " ", own, advice));
  };
  Frame frame{volumes[first].shape, {}};
  for (size_t i = 0; i < kFiles; ++i) {
    const auto turn = turn_onto(volumes[first], volumes[i]);
    const Shape3 shape = turned_shape(volumes[i].shape, turn.value_or(Turn{}));
    if (shape != frame.shape) refuse(i, str("is ", format_shape(frame.shape)), str("is ", format_shape(shape)), "");
    const double offset = turn ? offset_voxels(volumes[first], volumes[i], *turn) : 0;
    if (!turn || offset > kMaxOffsetVoxels)
      refuse(i, str("has ", describe(volumes[first].placement)), str("has ", describe(volumes[i].placement)),
             str(turn ? str(": voxels lie ", offset, " voxels apart") : ": no axes match",
                 "; resample them to one frame"));
    frame.turns[i] = turn.value();
  }
  return frame;
}

at::Tensor turned(const at::Tensor& voxels, const Turn& turn) {
  if (turn == Turn{}) return voxels;
  std::vector<int64_t> backward;
  for (int64_t d = 0; d < 3; ++d)
    if (turn.flipped[d]) backward.push_back(d);
  return voxels.permute(turn.from).flip(backward).contiguous();
}

/// Refuses labels that are none, with the first one's value in the file.
void check_labels(const at::Tensor& labels, const std::string& name, const Path& file) {
  if (const auto unknown = first_unknown_label(labels))
    throw BadRequest(str("case '", name, "' seg: label ", read_stored_value(file, *unknown),
                         " is none of 0, 1, 2, 4 in '", file.string(), "'"));
}

/// Lists the first names of many.
std::string list(const std::vector<std::string>& names) {
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) text += str(i ? ", " : "", names[i]);
  return names.size() > kShown ? str(text, " and ", names.size() - kShown, " more") : text;
}

}  // namespace

BratsFolder::Case BratsFolder::find_case(const Path& folder) {
  Case found;
  found.name = folder.filename().string();
  for (size_t m = 0; m < kModalities.size(); ++m) found.files[m] = find_file(folder, kModalities[m]);
  found.files.back() = find_file(folder, "seg");
  std::array<PlacedShape, kFiles> volumes;
  for (size_t i = 0; i < kFiles; ++i) {
    const NiftiHeader header = read_nifti_header(found.files[i]);
    volumes[i] = {header.shape, header.placement};
  }
  const Frame frame = frame_of(found.name, found.files, volumes);
  found.shape = frame.shape;
  const bool any_placed =
      std::any_of(volumes.begin(), volumes.end(), [](const PlacedShape& v) { return v.placement.is_told; });
  for (size_t i = 0; i < kFiles; ++i) {
    const std::string file = found.files[i].filename().string();
    if (frame.turns[i] != Turn{}) turned_.push_back(file);
    if (any_placed && !volumes[i].placement.is_told) unplaced_.push_back(file);
  }
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

std::string BratsFolder::remark() const {
  std::string text;
  if (!turned_.empty())
    text = str("files that are stored along other axes than their case's first are turned onto it: ", list(turned_));
  if (!unplaced_.empty())
    text += str(text.empty() ? "" : "; ",
                "files that tell no place in space are taken as they are stored: ", list(unplaced_));
  return text;
}

Batch BratsFolder::at(int64_t index) const {
  const Case& one = checked(index);
  std::array<at::Tensor, kFiles> voxels;
  std::array<PlacedShape, kFiles> volumes;
  for (size_t i = 0; i < kFiles; ++i) {
    Volume volume = read_nifti(one.files[i]);
    voxels[i] = std::move(volume.voxels);
    volumes[i] = {{voxels[i].size(0), voxels[i].size(1), voxels[i].size(2)}, volume.placement};
  }
  check_labels(voxels.back(), one.name, one.files.back());
  const Frame frame = frame_of(one.name, one.files, volumes);  // again, because files may have been replaced
  for (size_t i = 0; i < kFiles; ++i) voxels[i] = turned(voxels[i], frame.turns[i]);
  return assemble_case({voxels[0], voxels[1], voxels[2], voxels[3]}, voxels.back(), shape_,
                       str("case '", one.name, "'"));
}

}  // namespace spillway::runtime
