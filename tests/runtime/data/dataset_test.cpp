#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/utils.h>

#include <cstring>
#include <map>

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
  /// Writes a volume with an sform: a row of it for x, y and z each. Without rows the file tells no place.
  void write_placed(const std::filesystem::path& path, const at::Tensor& voxels, at::ScalarType dtype,
                    const std::vector<std::array<float, 4>>& rows) const {
    constexpr size_t kQformCode = 252, kSformCode = 254, kSrow = 280;  // offsets of NIfTI-1's fields
    write_nifti(path, voxels, {1, 1, 1}, dtype);
    auto bytes = read_file(path);
    const int16_t qform = 0, sform = rows.empty() ? 0 : 1;
    std::memcpy(bytes.data() + kQformCode, &qform, sizeof qform);
    std::memcpy(bytes.data() + kSformCode, &sform, sizeof sform);
    if (!rows.empty()) std::memcpy(bytes.data() + kSrow, rows.data(), rows.size() * sizeof rows[0]);
    write_file(path, bytes);
  }
  /// Writes a plain case of random scans and labels, none of which is symmetric, in the place that kPlace tells.
  void write_placed_case(const std::string& one) {
    std::filesystem::create_directories(dir_ / one);
    auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
    for (auto kind : kModalities) {
      scans_[std::string(kind)] = at::randint(1, 1000, {6, 8, 10}, generator);
      write_placed(file(one, std::string(kind), ".nii"), scans_[std::string(kind)], at::kShort, kPlace);
    }
    labels_ = at::randint(0, 3, {6, 8, 10}, generator);
    write_placed(file(one, "seg", ".nii"), labels_, at::kByte, kPlace);
  }

  // From right to left, from front to back, and upward.
  const std::vector<std::array<float, 4>> kPlace = {{-1, 0, 0, 15}, {0, -1, 0, 20}, {0, 0, 1, -7}};
  std::map<std::string, at::Tensor> scans_;
  at::Tensor labels_;
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

TEST_F(BratsFolderTest, TurnsFilesThatAreStoredAlongOtherAxesOntoTheirCasesFrame) {
  write_placed_case("a");
  const Batch expected = BratsFolder(dir_).at(0);
  EXPECT_EQ(BratsFolder(dir_).remark(), "");
  // From left to right, so that the first voxel of a row is the last of a stored one.
  write_placed(file("a", "seg", ".nii"), labels_.flip({2}), at::kByte, {{1, 0, 0, 15 - 9}, kPlace[1], kPlace[2]});
  EXPECT_TRUE(equal(BratsFolder(dir_).at(0), expected));
  // Slices from front to back: stored as [H, D, W].
  write_placed(file("a", "t2", ".nii"), scans_["t2"].permute({1, 0, 2}).flip({1}), at::kShort,
               {{-1, 0, 0, 15}, {0, 0, -1, 20}, {0, -1, 0, -7 + 5}});
  const BratsFolder turned(dir_);
  EXPECT_TRUE(equal(turned.at(0), expected));
  EXPECT_NE(turned.remark().find("a_t2.nii, a_seg.nii"), std::string::npos) << turned.remark();
}

TEST_F(BratsFolderTest, AcceptsPlacesThatDifferByRounding) {
  write_placed_case("a");
  const Batch expected = BratsFolder(dir_).at(0);
  write_placed(file("a", "t1", ".nii"), scans_["t1"], at::kShort,
               {{-1.0001f, 0, 1e-5f, 15.01f}, {0, -1, 0, 20}, {0, 0, 1, -7.001f}});
  EXPECT_TRUE(equal(BratsFolder(dir_).at(0), expected));
  EXPECT_EQ(BratsFolder(dir_).remark(), "");
}

TEST_F(BratsFolderTest, NamesBothFilesThatLieDifferentlyInSpace) {
  write_placed_case("a");
  const auto refuse = [&](const std::vector<std::array<float, 4>>& rows, std::initializer_list<std::string> parts) {
    write_placed(file("a", "t2", ".nii"), scans_["t2"], at::kShort, rows);
    const std::string message = refusal([&] { BratsFolder{dir_}; });
    EXPECT_EQ(message.find('\n'), std::string::npos);
    expect_refusal([&] { BratsFolder{dir_}; }, {"case 'a'", "a_flair.nii", "a_t2.nii", "resample"});
    expect_refusal([&] { BratsFolder{dir_}; }, parts);
  };
  refuse({{-1, 0, 0, 25}, kPlace[1], kPlace[2]}, {"10 voxels apart", "(15, 20, -7)", "(25, 20, -7)"});
  refuse({{-1, 0, 0, 15.5}, kPlace[1], kPlace[2]}, {"0.5 voxels apart"});
  refuse({{1, 0, 0, 15}, kPlace[1], kPlace[2]}, {"L P S", "R P S"});  // mirrored, and elsewhere
  refuse({{-2, 0, 0, 15}, kPlace[1], kPlace[2]}, {"voxels of 1x1x1 mm", "voxels of 2x1x1 mm"});
  refuse({{-0.9f, 0.4f, 0, 15}, {-0.4f, -0.9f, 0, 20}, kPlace[2]}, {"voxels apart"});
}

TEST_F(BratsFolderTest, NamesTheFileThatWasReplacedByOneFromElsewhere) {
  write_placed_case("a");
  const BratsFolder data(dir_);
  write_placed(file("a", "seg", ".nii"), labels_, at::kByte, {{-1, 0, 0, 25}, kPlace[1], kPlace[2]});
  expect_refusal([&] { data.at(0); }, {"a_flair.nii", "a_seg.nii", "10 voxels apart"});
}

TEST_F(BratsFolderTest, TakesFilesThatTellNoPlaceAsTheyAreStoredAndSaysSo) {
  write_placed_case("a");
  const Batch expected = BratsFolder(dir_).at(0);
  write_placed(file("a", "flair", ".nii"), scans_["flair"], at::kShort, {});
  write_placed(file("a", "seg", ".nii"), labels_.flip({2}), at::kByte, {{1, 0, 0, 15 - 9}, kPlace[1], kPlace[2]});
  const BratsFolder mixed(dir_);
  EXPECT_TRUE(equal(mixed.at(0), expected)) << "t1 is the first that tells a place, so labels are turned onto it";
  EXPECT_NE(mixed.remark().find("as they are stored: a_flair.nii"), std::string::npos) << mixed.remark();
  write_placed(file("a", "seg", ".nii"), labels_, at::kByte, {});
  for (auto kind : kModalities)
    write_placed(file("a", std::string(kind), ".nii"), scans_[std::string(kind)], at::kShort, {});
  EXPECT_TRUE(equal(BratsFolder(dir_).at(0), expected));
  EXPECT_EQ(BratsFolder(dir_).remark(), "") << "no file tells a place, so none differs";
  auto bytes = read_file(file("a", "seg", ".nii"));
  const float wide = 2;
  std::memcpy(bytes.data() + 80, &wide, sizeof wide);  // pixdim[1]
  write_file(file("a", "seg", ".nii"), bytes);
  expect_refusal([&] { BratsFolder{dir_}; }, {"a_flair.nii", "a_seg.nii", "voxels of 2x1x1 mm"});
}

TEST_F(BratsFolderTest, TakesLabelsThatRoundingMovedAndTellsOthersAsTheFileHasThem) {
  write_case("a", {16, 16, 16});
  const BratsFolder data(dir_);
  const Batch expected = data.at(0);
  const auto labels = read_nifti(file("a", "seg")).voxels;
  write_nifti(file("a", "seg"), labels * (1 + 1.2e-7), {1, 1, 1}, at::kFloat);
  EXPECT_FALSE(at::equal(read_nifti(file("a", "seg")).voxels, labels));
  EXPECT_TRUE(equal(data.at(0), expected));
  for (const auto& [value, text] : {std::pair{1.5, "1.5"},
                                    {-1.0, "-1"},
                                    {3.0, "3"},
                                    {1.001, "1.001"},
                                    {2.9999999, "2.9999999"},
                                    {16777217.0, "16777217"}}) {
    auto odd = labels.to(at::kDouble);
    odd[3][4][5] = value;
    write_nifti(file("a", "seg"), odd, {1, 1, 1}, at::kDouble);
    expect_refusal([&] { data.at(0); },
                   {"case 'a' seg: label ", str("label ", text, " is none of 0, 1, 2, 4"), "a_seg.nii.gz"});
  }
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
