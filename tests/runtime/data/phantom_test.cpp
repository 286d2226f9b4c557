#include "runtime/data/phantom.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "runtime/io/nifti.h"
#include "tests/runtime/files.h"

namespace spillway {
using namespace runtime;
namespace {

class PhantomTest : public ScratchFolder {};

double mean_where(const at::Tensor& scan, const at::Tensor& mask) {
  return scan.masked_select(mask).to(at::kDouble).mean().item<double>();
}

}  // namespace

TEST_F(PhantomTest, IsAHeadInAirWithAWholeTumourInside) {
  for (int64_t index = 0; index < 8; ++index) {
    auto phantom = make_phantom({48, 48, 48}, 1, index);
    EXPECT_EQ(phantom.scans.sizes(), at::IntArrayRef({4, 48, 48, 48}));
    EXPECT_EQ(phantom.scans.scalar_type(), at::kShort);
    EXPECT_EQ(phantom.labels.scalar_type(), at::kByte);
    auto head = phantom.scans[0].ne(0);
    const double filled = head.to(at::kDouble).mean().item<double>();
    EXPECT_GT(filled, 0.15);
    EXPECT_LT(filled, 0.45);
    for (int64_t m = 1; m < 4; ++m) EXPECT_TRUE(at::equal(phantom.scans[m].ne(0), head));
    EXPECT_FALSE(phantom.labels.ne(0).logical_and(head.logical_not()).any().item<bool>());
    for (int64_t label : {1, 2, 4}) EXPECT_GT(phantom.labels.eq(label).sum().item<int64_t>(), 50) << label;
    const double tumour = phantom.labels.ne(0).sum().item<double>() / head.sum().item<double>();
    EXPECT_GT(tumour, 0.02);
    EXPECT_LT(tumour, 0.35);
  }
}

TEST_F(PhantomTest, HasTheContrastsOfItsModalities) {
  auto phantom = make_phantom({64, 64, 64}, 2, 0);
  auto healthy = phantom.labels.eq(0).logical_and(phantom.scans[0].ne(0));
  auto oedema = phantom.labels.eq(2), rim = phantom.labels.eq(4), core = phantom.labels.eq(1);
  EXPECT_GT(mean_where(phantom.scans[0], oedema), 1.2 * mean_where(phantom.scans[0], healthy));
  EXPECT_LT(mean_where(phantom.scans[1], core), 0.8 * mean_where(phantom.scans[1], healthy));
  EXPECT_GT(mean_where(phantom.scans[2], rim), 1.2 * mean_where(phantom.scans[2], healthy));
  EXPECT_GT(mean_where(phantom.scans[3], oedema), 1.1 * mean_where(phantom.scans[3], healthy));
}

TEST_F(PhantomTest, IsTheSameForTheSameSeedAndCaseOnly) {
  auto a = make_phantom({32, 32, 32}, 7, 3), b = make_phantom({32, 32, 32}, 7, 3), c = make_phantom({32, 32, 32}, 8, 3);
  EXPECT_TRUE(at::equal(a.scans, b.scans));
  EXPECT_TRUE(at::equal(a.labels, b.labels));
  EXPECT_FALSE(at::equal(a.labels, c.labels));
}

TEST_F(PhantomTest, WritesTheBratsLayoutAndReportsProgress) {
  std::vector<int64_t> done;
  write_phantoms(dir_ / "new" / "set", 2, 16, 3, [&](int64_t i, int64_t of) {
    done.push_back(i);
    EXPECT_EQ(of, 2);
  });
  EXPECT_EQ(done, (std::vector<int64_t>{1, 2}));
  for (const char* kind : {"flair", "t1", "t1ce", "t2"})
    EXPECT_EQ(read_nifti_header(dir_ / "new/set/phantom_0002" / str("phantom_0002_", kind, ".nii.gz")).datatype,
              "INT16");
  auto seg = read_nifti(dir_ / "new/set/phantom_0001/phantom_0001_seg.nii.gz");
  EXPECT_EQ(seg.datatype, "UINT8");
  EXPECT_NEAR(seg.spacing_mm[0], 15, 1e-6);
  EXPECT_TRUE(at::equal(seg.voxels, make_phantom({16, 16, 16}, 3, 0).labels.to(at::kFloat)));
}

TEST_F(PhantomTest, WritesItsOwnFolderAgainButNoForeignOne) {
  write_phantoms(dir_, 2, 16, 3);
  write_phantoms(dir_, 2, 16, 4);
  expect_refusal([&] { write_phantoms(dir_, 1, 16, 3); }, {dir_.string(), "phantom_0002"});
  std::filesystem::create_directory(dir_ / "patient_7");
  expect_refusal([&] { write_phantoms(dir_, 2, 16, 3); }, {"patient_7", "empty folder"});
}

TEST_F(PhantomTest, RefusesAnUnwritableFolderAndBadNumbers) {
  write_file(dir_ / "file", "x");
  expect_refusal([&] { write_phantoms(dir_ / "file", 1, 16, 0); }, {"file"});
  expect_refusal([&] { write_phantoms(dir_ / "file" / "below", 1, 16, 0); }, {"below", "Not a directory"});
  expect_refusal([&] { write_phantoms(dir_ / "new", 0, 16, 0); }, {"cases is 0"});
  expect_refusal([&] { write_phantoms(dir_ / "new", 1, 4, 0); }, {"edge is 4"});
  EXPECT_FALSE(std::filesystem::exists(dir_ / "new"));
}

}  // namespace spillway
