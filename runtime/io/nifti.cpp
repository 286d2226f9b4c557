#include "runtime/io/nifti.h"

#include <ATen/ATen.h>

namespace spillway::runtime {

Volume read_nifti(const std::filesystem::path& path) {
  at::Tensor voxels;
  const NiftiHeader header = read_nifti_into(path, [&](const NiftiHeader& h) {
    voxels = at::empty({h.shape[0], h.shape[1], h.shape[2]}, at::kFloat);
    return voxels.mutable_data_ptr<float>();
  });
  return {std::move(voxels), header.spacing_mm, header.datatype, header.placement};
}

}  // namespace spillway::runtime
