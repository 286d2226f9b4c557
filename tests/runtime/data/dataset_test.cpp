#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include "runtime/data/brats.h"
#include "runtime/data/open_dataset.h"
#include "runtime/data/phantom.h"
#include "runtime/data/synthetic.h"
#include "runtime/io/nifti.h"
#include "tests/runtime/files.h"

namespace spillway {
using namespace runtime;
namespace {

bool equal(const Batch& a, const Batch& b) {
  return at::equal(a.input, b.input) && at::equal(a.target, b.target);
}

/// A dataset that counts how often cases are loaded.
class CountingDataset : public SyntheticVectors {
 public:
  explicit CountingDataset(int64_t& loads) : SyntheticVectors({.cases = 4}), loads_(loads) {}
  Batch at(int64_t index) const override {
    ++loads_;
    return SyntheticVectors::at(index);
  }

 private:
  int64_t& loads_;
};

class BratsFolderTest : public ScratchFolder {
 protected:
  std::filesystem::path file(const std::string& one, const std::string& kind, const char* ending = ".nii.gz") const {
    return dir_ / one / (one + "_" + kind + ending);
  }
  /// Writes a case whose scans rise along the width and whose labels are 0, 1, 2, 4, 0, ….
  void write_case(const std::string& one, const Shape3& shape, const char* ending = ".nii.gz") const {
    std::filesystem::create_directories(dir_ / one);
    auto scan = (at::arange(shape[2], at::kFloat) + 1).expand({shape[0], shape[1], shape[2]});
    auto labels = at::zeros({shape[0], shape[1], shape[2]});
    for (int64_t x : {1, 2, 4}) labels.select(2, x).fill_(x);
    for (auto kind : kModalities) write_nifti(file(one, std::string(kind), ending), scan, {1, 1, 1}, at::kShort);
    write_nifti(file(one, "seg", ending), labels, {1, 1, 1}, at::kByte);
  }
};

}  // namespace

TEST(SplitTest, HoldsOutTheLastTenthAndAtLeastOne) {
  EXPECT_EQ(split(2).train, (std::vector<int64_t>{0}));
  EXPECT_EQ(split(2).validation, (std::vector<int64_t>{1}));
  EXPECT_EQ(split(19).validation, (std::vector<int64_t>{18}));
  EXPECT_EQ(split(20).validation, (std::vector<int64_t>{18, 19}));
  EXPECT_EQ(split(20).train.size(), 18u);
  expect_refusal([] { split(1); }, {"1 case", "at least 2"});
}

TEST_F(BratsFolderTest, ReadsCompressedAndPlainCasesInOrder) {
  write_case("b", {16, 16, 16}, ".nii");
  write_case("a", {16, 16, 16});
  write_file(dir_ / "name_mapping.csv", "ignored");
  std::filesystem::create_directory(dir_ / ".hidden");
  BratsFolder data(dir_);
  ASSERT_EQ(data.size(), 2);
  EXPECT_EQ(data.name(0), "a");
  EXPECT_EQ(data.name(1), "b");
  auto batch = data.at(0);
  EXPECT_EQ(batch.input.sizes(), at::IntArrayRef({1, 4, 16, 16, 16}));
  EXPECT_EQ(batch.target.sizes(), at::IntArrayRef({1, 3, 16, 16, 16}));
  EXPECT_EQ(batch.target.scalar_type(), at::kFloat);
  EXPECT_EQ(data.case_bytes(), static_cast<int64_t>(batch.input.nbytes() + batch.target.nbytes()));
  EXPECT_TRUE(equal(batch, data.at(1)));
  EXPECT_TRUE(equal(batch, data.at(0)));
  EXPECT_THROW(data.at(2), c10::Error);
}

TEST_F(BratsFolderTest, ChoosesTheSmallestMultipleOf16ThatHoldsEveryCase) {
  write_case("a", {5, 33, 16});
  write_case("b", {17, 8, 6});
  BratsFolder data(dir_);
  EXPECT_EQ(data.shape(), (Shape3{32, 48, 16}));
  EXPECT_EQ(data.at(1).input.sizes(), at::IntArrayRef({1, 4, 32, 48, 16}));
  // The whole tumor is inside: three slices of 17 x 8 voxels.
  EXPECT_EQ(data.at(1).target[0][0].sum().item<double>(), 3 * 17 * 8);
  EXPECT_EQ(BratsFolder(dir_, {16, 16, 16}).at(0).input.sizes(), at::IntArrayRef({1, 4, 16, 16, 16}));
}

TEST_F(BratsFolderTest, NormalisesBeforeItCrops) {
  write_case("a", {16, 16, 64});
  auto input = BratsFolder(dir_, {16, 16, 16}).at(0).input;
  // The crop has voxels 25 … 40 of 1 … 64, standardized with the mean and deviation of all 64.
  EXPECT_NEAR(input[0][0][0][0][0].item<double>(), (25 - 32.5) / std::sqrt((64.0 * 64 - 1) / 12), 1e-5);
}

TEST_F(BratsFolderTest, RefusesAShapeThatTheNetworkCannotHalve) {
  write_case("a", {16, 16, 16});
  expect_refusal([&] { BratsFolder(dir_, {100, 96, 96}); }, {"100x96x96", "96x96x96", "16"});
}

TEST_F(BratsFolderTest, RefusesAnAbsentOrEmptyFolder) {
  expect_refusal([&] { BratsFolder(dir_ / "none"); }, {"none", "does not exist"});
  expect_refusal([&] { BratsFolder{dir_}; }, {dir_.string(), "no cases", "CASE_{flair"});
}

TEST_F(BratsFolderTest, NamesTheCaseAndTheFileThatIsMissing) {
  write_case("a", {16, 16, 16});
  write_case("b", {16, 16, 16});
  std::filesystem::remove(file("b", "t1ce"));
  expect_refusal([&] { BratsFolder{dir_}; }, {"case 'b'", "t1ce", "b_t1ce.nii.gz"});
}

TEST_F(BratsFolderTest, NamesBothScansWhoseShapesDiffer) {
  write_case("a", {16, 16, 16});
  write_nifti(file("a", "t2"), at::ones({16, 16, 15}), {1, 1, 1}, at::kShort);
  expect_refusal([&] { BratsFolder{dir_}; }, {"case 'a'", "a_flair.nii.gz", "16x16x16", "a_t2.nii.gz", "16x16x15"});
}

TEST_F(BratsFolderTest, NamesTheFileWithBadVoxelsWhenItIsLoaded) {
  write_case("a", {16, 16, 16});
  auto scan = at::ones({16, 16, 16});
  scan[3][4][5] = std::nan("");
  write_nifti(file("a", "t1"), scan, {1, 1, 1}, at::kFloat);
  BratsFolder data(dir_);
  expect_refusal([&] { data.at(0); }, {"a_t1.nii.gz", "1 of 4096", "NaN"});
  write_case("a", {16, 16, 16});
  write_nifti(file("a", "seg"), at::full({16, 16, 16}, 3.0), {1, 1, 1}, at::kByte);
  expect_refusal([&] { data.at(0); }, {"case 'a' seg", "label 3"});
}

TEST_F(BratsFolderTest, AFolderOfPhantomsEqualsTheSyntheticCasesBitForBit) {
  torch::manual_seed(11);
  write_phantoms(dir_ / "set", 2, 32, 5);
  BratsFolder folder(dir_ / "set");
  torch::manual_seed(12);
  SyntheticVolumes synthetic({.shape = {32, 32, 32}, .cases = 2, .seed = 5});
  ASSERT_EQ(folder.size(), 2);
  EXPECT_EQ(folder.shape(), (Shape3{32, 32, 32}));
  for (int64_t i = 0; i < 2; ++i) {
    EXPECT_EQ(folder.name(i), synthetic.name(i));
    EXPECT_TRUE(equal(folder.at(i), synthetic.at(i))) << i;
  }
}

TEST(SyntheticTest, CasesDependOnSeedAndIndexAlone) {
  SyntheticVolumes one({.shape = {32, 16, 48}, .cases = 3, .seed = 1}),
      again({.shape = {32, 16, 48}, .cases = 3, .seed = 1}), other({.shape = {32, 16, 48}, .cases = 3, .seed = 2});
  auto late = one.at(2);
  EXPECT_TRUE(equal(one.at(0), again.at(0)));
  EXPECT_TRUE(equal(late, again.at(2)));
  EXPECT_FALSE(equal(one.at(0), one.at(1)));
  EXPECT_FALSE(equal(one.at(0), other.at(0)));
  EXPECT_EQ(one.at(0).input.sizes(), at::IntArrayRef({1, 4, 32, 16, 48}));
  EXPECT_THROW(one.at(3), c10::Error);
}

TEST(SyntheticTest, DoesNotTouchTheGlobalGenerator) {
  torch::manual_seed(3);
  auto expected = at::rand({4});
  torch::manual_seed(3);
  SyntheticVolumes({.shape = {16, 16, 16}}).at(0);
  SyntheticVectors(SyntheticVectors::Options{}).at(0);
  EXPECT_TRUE(at::equal(at::rand({4}), expected));
}

TEST(SyntheticTest, VectorsGatherAroundTheirClass) {
  SyntheticVectors data({.features = 64, .classes = 3, .cases = 9, .seed = 4});
  auto batch = gather(data, {0, 3, 6, 1});
  EXPECT_EQ(batch.input.sizes(), at::IntArrayRef({4, 64}));
  EXPECT_TRUE(at::equal(batch.target, at::tensor({0, 0, 0, 1}, at::kLong)));
  auto distance = [&](int64_t a, int64_t b) { return (batch.input[a] - batch.input[b]).norm().item<double>(); };
  EXPECT_LT(distance(0, 1), distance(0, 3));
  EXPECT_LT(distance(1, 2), distance(1, 3));
  EXPECT_TRUE(at::equal(batch.input, gather(data, {0, 3, 6, 1}).input));
  EXPECT_EQ(data.case_bytes(), 64 * 4 + 8);
}

TEST(DatasetTest, TheCacheKeepsWhatFitsAndNoMore) {
  int64_t loads = 0;
  const int64_t bytes = CountingDataset(loads).case_bytes();
  auto data = cached(std::make_unique<CountingDataset>(loads), 2 * bytes + 1);
  for (int round = 0; round < 3; ++round)
    for (int64_t i = 0; i < 4; ++i) data->at(i);
  EXPECT_EQ(loads, 2 + 3 * 2);
  EXPECT_EQ(data->size(), 4);
  EXPECT_TRUE(equal(data->at(0), CountingDataset(loads).at(0)));
}

TEST_F(BratsFolderTest, OpensWhatTheCommandLineNames) {
  EXPECT_EQ(open_dataset("unet3d", "synthetic:32", {.cases = 3})->at(0).input.sizes(),
            at::IntArrayRef({1, 4, 32, 32, 32}));
  EXPECT_EQ(open_dataset("unet3d", "synthetic:32", {.shape = {16, 32, 48}})->at(0).input.sizes(),
            at::IntArrayRef({1, 4, 16, 32, 48}));
  EXPECT_EQ(open_dataset("mlp", "synthetic:20", {.classes = 4})->at(3).input.sizes(), at::IntArrayRef({1, 20}));
  write_case("a", {16, 16, 16});
  EXPECT_EQ(open_dataset("unet3d", dir_.string(), {.cache_bytes = 1 << 20})->size(), 1);
  expect_refusal([] { open_dataset("unet3d", "synthetic:40"); }, {"40x40x40", "48x48x48"});
  expect_refusal([] { open_dataset("unet3d", "synthetic:big"); }, {"big"});
  expect_refusal([] { open_dataset("unet3d", "synthetic:32", {.cases = -1}); }, {"cases is -1"});
  expect_refusal([&] { open_dataset("mlp", dir_.string()); }, {"mlp", "synthetic:N"});
  expect_refusal([] { open_dataset("vgg", "synthetic:32"); }, {"vgg", "unet3d, bp3d"});
}

TEST(DatasetTest, EveryModelHasDataOfItsOwnShape) {
  auto shapes = [](const char* model, const char* source, DatasetOptions options = {}) {
    const Batch batch = open_dataset(model, source, options)->at(0);
    return std::make_pair(batch.input.sizes().vec(), batch.target.sizes().vec());
  };
  using Shapes = std::pair<std::vector<int64_t>, std::vector<int64_t>>;
  EXPECT_EQ(shapes("bp3d", "synthetic:16"), Shapes({1, 1, 16, 16, 16}, {1, 16, 16, 16}));
  EXPECT_EQ(shapes("bp3d", "synthetic:16", {.shape = {8, 12, 16}}), Shapes({1, 1, 8, 12, 16}, {1, 8, 12, 16}));
  EXPECT_EQ(shapes("resnet50", "synthetic:40"), Shapes({1, 3, 40, 40}, {1}));
  EXPECT_EQ(shapes("bert-base", "synthetic:30"), Shapes({1, 30}, {1, 2, 4}));
  EXPECT_EQ(open_dataset("bert-base", "synthetic:30")->size(), 256);
  EXPECT_EQ(open_dataset("bert-base", "synthetic:30", {.cases = 7})->size(), 7);
}

TEST(DatasetTest, RefusesSizesShapesAndSourcesThatAreNotTheModels) {
  expect_refusal([] { open_dataset("bp3d", "synthetic:30"); }, {"30x30x30", "32x32x32"});
  expect_refusal([] { open_dataset("bp3d", "cases"); }, {"bp3d", "synthetic:N", "'cases'"});
  expect_refusal([] { open_dataset("resnet50", "synthetic:20"); }, {"resnet50", "20", "33"});
  expect_refusal([] { open_dataset("resnet50", "synthetic:64", {.shape = {64, 64, 64}}); }, {"resnet50", "64x64x64"});
  expect_refusal([] { open_dataset("bert-base", "synthetic:600"); }, {"bert-base", "600", "512"});
  expect_refusal([] { open_dataset("mlp", "synthetic:0"); }, {"synthetic:0"});
}

}  // namespace spillway
