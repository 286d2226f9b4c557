#include "runtime/io/nifti.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "tests/runtime/files.h"

namespace spillway {
using namespace runtime;
namespace {

const std::array<double, 3> kSpacing = {3, 2, 0.5};

class NiftiTest : public ScratchFolder {
 protected:
  /// Returns [2, 3, 4] with the values 0 … 23.
  static at::Tensor ramp() { return at::arange(24, at::kFloat).view({2, 3, 4}); }

  /// Writes the ramp as a plain .nii and hands its bytes to `change`.
  std::filesystem::path damaged(const std::function<void(std::string&)>& change, at::ScalarType dtype = at::kShort) {
    write_nifti(dir_ / "whole.nii", ramp(), kSpacing, dtype);
    auto bytes = read_file(dir_ / "whole.nii");
    change(bytes);
    write_file(dir_ / "damaged.nii", bytes);
    return dir_ / "damaged.nii";
  }

  template <class T>
  static void put(std::string& bytes, size_t offset, T value) {
    std::memcpy(bytes.data() + offset, &value, sizeof value);
  }
};

// Offsets of NIfTI-1's fields, from its standard.
constexpr size_t kDim = 40, kDatatype = 70, kBitpix = 72, kPixdim = 76, kVoxOffset = 108, kSlope = 112, kInter = 116,
                 kUnits = 123, kQformCode = 252, kQuaternion = 256, kSrow = 280, kMagic = 344, kData = 352;

}  // namespace

TEST_F(NiftiTest, GivesBackWhatWasWrittenInEveryDatatype) {
  for (auto dtype : {at::kByte, at::kChar, at::kShort, at::kInt, at::kFloat, at::kDouble})
    for (const char* name : {"v.nii", "v.nii.gz"}) {
      write_nifti(dir_ / name, ramp(), kSpacing, dtype);
      auto volume = read_nifti(dir_ / name);
      EXPECT_TRUE(at::equal(volume.voxels, ramp())) << at::toString(dtype) << " " << name;
      EXPECT_EQ(volume.spacing_mm, kSpacing);
      auto header = read_nifti_header(dir_ / name);
      EXPECT_EQ(header.shape, (Shape3{2, 3, 4}));
      EXPECT_EQ(header.spacing_mm, kSpacing);
      EXPECT_EQ(header.datatype, volume.datatype);
    }
  EXPECT_EQ(read_nifti_header(dir_ / "v.nii").datatype, "FLOAT64");
}

TEST_F(NiftiTest, KeepsFractionsAndNegativeValues) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  auto voxels = at::randn({5, 7, 9}, generator);
  write_nifti(dir_ / "v.nii.gz", voxels, kSpacing, at::kFloat);
  EXPECT_TRUE(at::equal(read_nifti(dir_ / "v.nii.gz").voxels, voxels));
}

TEST_F(NiftiTest, WritesStridedVoxelsInTheirOrderAndTheSameBytesTwice) {
  auto permuted = ramp().permute({2, 0, 1});
  write_nifti(dir_ / "a.nii.gz", permuted, kSpacing, at::kShort);
  write_nifti(dir_ / "b.nii.gz", permuted, kSpacing, at::kShort);
  EXPECT_TRUE(at::equal(read_nifti(dir_ / "a.nii.gz").voxels, permuted));
  EXPECT_EQ(read_file(dir_ / "a.nii.gz"), read_file(dir_ / "b.nii.gz"));
}

TEST_F(NiftiTest, PutsWidthFirstInTheFile) {
  write_nifti(dir_ / "v.nii", ramp(), kSpacing, at::kShort);
  const auto bytes = read_file(dir_ / "v.nii");
  int16_t dims[4], second;
  float pixdim[4];
  std::memcpy(dims, bytes.data() + kDim, sizeof dims);
  std::memcpy(pixdim, bytes.data() + kPixdim, sizeof pixdim);
  std::memcpy(&second, bytes.data() + kData + 2, 2);
  EXPECT_EQ(dims[1], 4);
  EXPECT_EQ(dims[3], 2);
  EXPECT_EQ(pixdim[1], 0.5f);
  EXPECT_EQ(pixdim[3], 3.0f);
  EXPECT_EQ(second, 1);
}

TEST_F(NiftiTest, HonoursSlopeAndInterceptAndTakesASlopeOfZeroAsNone) {
  auto scaled = damaged([](std::string& bytes) {
    put(bytes, kSlope, 0.5f);
    put(bytes, kInter, -3.0f);
  });
  EXPECT_TRUE(at::equal(read_nifti(scaled).voxels, ramp() * 0.5 - 3));
  auto unscaled = damaged([](std::string& bytes) {
    put(bytes, kSlope, 0.0f);
    put(bytes, kInter, 7.0f);
  });
  EXPECT_TRUE(at::equal(read_nifti(unscaled).voxels, ramp()));
}

TEST_F(NiftiTest, ReadsUnsignedAndWideIntegers) {
  auto unsigned16 = damaged([](std::string& bytes) {
    put<int16_t>(bytes, kDatatype, 512);
    put<uint16_t>(bytes, kData, 65535);
  });
  EXPECT_EQ(read_nifti(unsigned16).voxels[0][0][0].item<float>(), 65535);
  auto unsigned32 = damaged(
      [](std::string& bytes) {
        put<int16_t>(bytes, kDatatype, 768);
        put<uint32_t>(bytes, kData, 4294967295u);
      },
      at::kInt);
  EXPECT_EQ(read_nifti(unsigned32).voxels[0][0][0].item<float>(), 4294967296.0f);
  for (int16_t datatype : {1024, 1280}) {
    auto wide = damaged(
        [&](std::string& bytes) {
          put<int16_t>(bytes, kDatatype, datatype);
          for (int64_t i = 0; i < 24; ++i) put<int64_t>(bytes, kData + 8 * static_cast<size_t>(i), i);
        },
        at::kDouble);
    EXPECT_TRUE(at::equal(read_nifti(wide).voxels, ramp())) << datatype;
  }
}

TEST_F(NiftiTest, ReadsTheOtherByteOrder) {
  auto path = damaged([](std::string& bytes) {
    auto swap = [&](size_t offset, size_t width, size_t count) {
      for (size_t i = 0; i < count; ++i)
        std::reverse(bytes.begin() + static_cast<int64_t>(offset + i * width),
                     bytes.begin() + static_cast<int64_t>(offset + (i + 1) * width));
    };
    swap(0, 4, 1);
    swap(kDim, 2, 8);
    swap(kDatatype, 2, 1);
    swap(kBitpix, 2, 1);
    swap(kPixdim, 4, 8);
    swap(kVoxOffset, 4, 1);
    swap(kSlope, 4, 2);
    swap(kData, 2, 24);
  });
  auto volume = read_nifti(path);
  EXPECT_TRUE(at::equal(volume.voxels, ramp()));
  EXPECT_EQ(volume.spacing_mm, kSpacing);
}

TEST_F(NiftiTest, ConvertsMetresAndMicronsToMillimetres) {
  auto path = damaged([](std::string& bytes) { put<char>(bytes, kUnits, 3); });
  EXPECT_NEAR(read_nifti_header(path).spacing_mm[0], 3e-3, 1e-9);
  path = damaged([](std::string& bytes) { put<char>(bytes, kUnits, 1); });
  EXPECT_NEAR(read_nifti_header(path).spacing_mm[2], 500, 1e-9);
}

TEST_F(NiftiTest, TakesAFourthDimensionOfOneAndRefusesMore) {
  auto set_dims = [](int16_t rank, int16_t fourth) {
    return [=](std::string& bytes) {
      put(bytes, kDim, rank);
      put(bytes, kDim + 8, fourth);
    };
  };
  EXPECT_TRUE(at::equal(read_nifti(damaged(set_dims(4, 1))).voxels, ramp()));
  expect_refusal([&] { read_nifti(damaged(set_dims(4, 2))); }, {"damaged.nii", "not a 3-D volume", "4x3x2x2"});
  expect_refusal([&] { read_nifti(damaged(set_dims(2, 1))); }, {"not a 3-D volume (2-D", "4x3"});
  expect_refusal([&] { read_nifti(damaged(set_dims(0, 1))); }, {"not a 3-D volume"});
  expect_refusal([&] { read_nifti(damaged([](std::string& b) { put<int16_t>(b, kDim + 4, -3); })); }, {"4x-3x2"});
}

TEST_F(NiftiTest, RefusesWhatIsNoNiftiFile) {
  expect_refusal([&] { read_nifti(dir_ / "none.nii.gz"); }, {"none.nii.gz", "no such file"});
  std::filesystem::create_directory(dir_ / "folder.nii");
  expect_refusal([&] { read_nifti(dir_ / "folder.nii"); }, {"folder.nii", "not a file"});
  write_file(dir_ / "v.mha", "x");
  expect_refusal([&] { read_nifti(dir_ / "v.mha"); }, {"v.mha", ".nii.gz"});
  write_file(dir_ / "empty.nii", "");
  expect_refusal([&] { read_nifti(dir_ / "empty.nii"); }, {"empty.nii", "0 bytes"});
  write_file(dir_ / "text.nii.gz", std::string(1000, 'x'));
  expect_refusal([&] { read_nifti(dir_ / "text.nii.gz"); }, {"text.nii.gz", "not a NIfTI file"});
  expect_refusal([&] { read_nifti(damaged([](std::string& b) { put<char>(b, kMagic, 0); })); }, {"not a NIfTI file"});
  expect_refusal([&] { read_nifti(damaged([](std::string& b) { put<char>(b, kMagic + 1, 'i'); })); },
                 {".hdr/.img pair"});
  expect_refusal([&] { read_nifti(damaged([](std::string& b) { put<int32_t>(b, 0, 540); })); }, {"NIfTI-2"});
}

TEST_F(NiftiTest, RefusesEveryTruncationOfACompressedFile) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(2);
  write_nifti(dir_ / "whole.nii.gz", at::randn({8, 9, 10}, generator), kSpacing, at::kFloat);
  const auto bytes = read_file(dir_ / "whole.nii.gz");
  for (size_t kept = 0; kept < bytes.size(); kept += kept + 40 < bytes.size() ? 37 : 1) {
    write_file(dir_ / "cut.nii.gz", bytes.substr(0, kept));
    expect_refusal([&] { read_nifti(dir_ / "cut.nii.gz"); }, {"cut.nii.gz"});
  }
  write_file(dir_ / "cut.nii.gz", bytes.substr(0, bytes.size() / 2));
  expect_refusal([&] { read_nifti(dir_ / "cut.nii.gz"); }, {"truncated", "of 2880 bytes"});
  write_file(dir_ / "cut.nii.gz", bytes.substr(0, bytes.size() - 4));
  expect_refusal([&] { read_nifti(dir_ / "cut.nii.gz"); }, {"truncated"});
}

TEST_F(NiftiTest, RefusesAFlippedBitOfACompressedFile) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(2);
  write_nifti(dir_ / "v.nii.gz", at::randn({8, 9, 10}, generator), kSpacing, at::kFloat);
  auto bytes = read_file(dir_ / "v.nii.gz");
  bytes[bytes.size() / 2] ^= 1;
  write_file(dir_ / "v.nii.gz", bytes);
  expect_refusal([&] { read_nifti(dir_ / "v.nii.gz"); }, {"v.nii.gz", "damaged"});
}

TEST_F(NiftiTest, RefusesATruncatedPlainFileFromItsHeaderAlone) {
  auto path = damaged([](std::string& bytes) { bytes.pop_back(); });
  expect_refusal([&] { read_nifti_header(path); }, {"damaged.nii", "truncated", "400", "399"});
}

TEST_F(NiftiTest, RefusesAHeaderThatClaimsMoreThanTheFileCanHold) {
  auto path = damaged([](std::string& bytes) {
    for (size_t d = 1; d <= 3; ++d) put<int16_t>(bytes, kDim + 2 * d, 32767);
  });
  expect_refusal([&] { read_nifti(path); }, {"truncated"});
  expect_refusal([&] { read_nifti(damaged([](std::string& b) { put(b, kVoxOffset, 1e9f); })); }, {"truncated"});
}

TEST_F(NiftiTest, RefusesDatatypesThatAreNoNumbers) {
  for (auto [datatype, name] : {std::pair<int16_t, const char*>{128, "RGB24"},
                                {32, "COMPLEX64"},
                                {1, "BINARY"},
                                {1536, "FLOAT128"},
                                {999, "999"}}) {
    auto path = damaged([datatype = datatype](std::string& bytes) { put<int16_t>(bytes, kDatatype, datatype); });
    expect_refusal([&] { read_nifti_header(path); }, {"damaged.nii", "datatype", name});
  }
}

TEST_F(NiftiTest, RefusesMembersWithoutAnEndWhereverTheVoxelsAre) {
  const auto voxels = at::zeros({8, 9, 10});
  write_nifti(dir_ / "zeros.nii.gz", voxels, kSpacing, at::kFloat);
  const auto member = read_file(dir_ / "zeros.nii.gz");  // all voxels, and a second member behind them
  for (size_t kept = 2; kept < member.size(); ++kept) {
    write_file(dir_ / "cut.nii.gz", member + member.substr(0, kept));
    expect_refusal([&] { read_nifti(dir_ / "cut.nii.gz"); }, {"cut.nii.gz", "truncated"});
  }
  write_file(dir_ / "two.nii.gz", member + member);
  EXPECT_TRUE(at::equal(read_nifti(dir_ / "two.nii.gz").voxels, voxels));
}

TEST_F(NiftiTest, TellsThePlaceByTheSformThenTheQformThenNotAtAll) {
  const auto put_codes = [](std::string& bytes, int16_t qform, int16_t sform) {
    put(bytes, kQformCode, qform);
    put(bytes, kQformCode + 2, sform);
    // Half a turn about the depth: b = c = 0, d = 1; and its offsets.
    const float qform_numbers[] = {0, 0, 1, 15, 20, -7};
    std::memcpy(bytes.data() + kQuaternion, qform_numbers, sizeof qform_numbers);
    const float sform_numbers[] = {0.5f, 0, 0, 1, 0, 2, 0, 2, 0, 0, -3, 3};
    std::memcpy(bytes.data() + kSrow, sform_numbers, sizeof sform_numbers);
  };
  using Rows = std::array<std::array<double, 4>, 3>;
  const auto place = [&](int16_t qform, int16_t sform, char units = 2) {
    return read_nifti_header(damaged([&](std::string& bytes) {
             put_codes(bytes, qform, sform);
             put<char>(bytes, kUnits, units);
           }))
        .placement;
  };
  EXPECT_EQ(place(1, 1).rows, (Rows{{{0.5, 0, 0, 1}, {0, 2, 0, 2}, {0, 0, -3, 3}}}));
  EXPECT_EQ(place(1, 0).rows, (Rows{{{-0.5, 0, 0, 15}, {0, -2, 0, 20}, {0, 0, 3, -7}}}));
  EXPECT_EQ(place(0, 0).rows, (Rows{{{0.5, 0, 0, 0}, {0, 2, 0, 0}, {0, 0, 3, 0}}}));
  EXPECT_TRUE(place(0, 2).is_told && place(3, 0).is_told);
  EXPECT_FALSE(place(0, 0).is_told);
  EXPECT_EQ(place(0, 1, 1).rows[1][3], 2000);  // meters
  const auto without_sform = read_nifti_header(damaged([&](std::string& bytes) {
                               put_codes(bytes, 1, 1);
                               std::memset(bytes.data() + kSrow, 0, 48);
                             })).placement;
  EXPECT_EQ(without_sform.rows[0][3], 15) << "zeros are no place, so the qform's counts";
}

TEST_F(NiftiTest, TellsAValueAsTheFileHasIt) {
  const auto of = [&](at::ScalarType dtype, const std::function<void(std::string&)>& change) {
    return read_stored_value(damaged(change, dtype), 5);
  };
  const auto nothing = [](std::string&) {};
  EXPECT_EQ(of(at::kByte, nothing), "5");
  EXPECT_EQ(of(at::kFloat, [](std::string& bytes) { put(bytes, kData + 20, 1.0000001f); }), "1.0000001");
  EXPECT_EQ(of(at::kDouble, [](std::string& bytes) { put(bytes, kData + 40, 2.9999999999); }), "2.9999999999");
  EXPECT_EQ(of(at::kInt, [](std::string& bytes) { put<int32_t>(bytes, kData + 20, -2147483647); }), "-2147483647");
  EXPECT_EQ(of(at::kShort, [](std::string& bytes) { put(bytes, kSlope, 0.5f); }),
            "2.5 (5 in the file, times scl_slope 0.5)");
  EXPECT_EQ(of(at::kShort, [](std::string& bytes) { put(bytes, kInter, 0.25f); }),
            "5.25 (5 in the file, times scl_slope 1 plus scl_inter 0.25)");
  expect_refusal([&] { (void)read_stored_value(dir_ / "damaged.nii", 24); }, {"damaged.nii", "voxel 24"});
}

TEST_F(NiftiTest, RefusesNanAndInfiniteVoxelsAndCountsThem) {
  auto voxels = ramp();
  voxels[0][1][2] = std::nan("");
  voxels[1][0][0] = std::numeric_limits<float>::infinity();
  write_nifti(dir_ / "v.nii.gz", voxels, kSpacing, at::kFloat);
  expect_refusal([&] { read_nifti(dir_ / "v.nii.gz"); },
                 {"v.nii.gz", "2 of 24 voxels are NaN or infinite", "the first is nan"});
  auto large = damaged([](std::string& bytes) { put(bytes, kData + 8, 1e300); }, at::kDouble);
  expect_refusal([&] { read_nifti(large); }, {"1 of 24 voxels", "infinite as float32", "the first is 1e+300"});
}

TEST_F(NiftiTest, RefusesToWriteWhatTheFileCannotHold) {
  expect_refusal([&] { write_nifti(dir_ / "v.nii", ramp() * 20, kSpacing, at::kByte); }, {"11 of 24", "Byte"});
  expect_refusal([&] { write_nifti(dir_ / "v.nii", ramp() - 1, kSpacing, at::kByte); }, {"1 of 24"});
  expect_refusal([&] { write_nifti(dir_ / "v.nii", ramp() / 0.0, kSpacing, at::kShort); }, {"24 of 24"});
  expect_refusal([&] { write_nifti(dir_ / "v.nii", ramp()[0], kSpacing, at::kShort); }, {"[D, H, W]"});
  expect_refusal([&] { write_nifti(dir_ / "v.nii", ramp(), {1, 0, 1}, at::kShort); }, {"spacing"});
  expect_refusal([&] { write_nifti(dir_ / "v.nii", ramp(), kSpacing, at::kHalf); }, {"Half"});
  expect_refusal([&] { write_nifti(dir_ / "v.img", ramp(), kSpacing, at::kShort); }, {".nii.gz"});
  EXPECT_TRUE(std::filesystem::is_empty(dir_));
}

TEST_F(NiftiTest, SaysWhyAFileCannotBeWritten) {
  expect_refusal([&] { write_nifti(dir_ / "none" / "v.nii", ramp(), kSpacing, at::kShort); },
                 {"none/v.nii", "No such file or directory"});
}

TEST_F(NiftiTest, LeavesTheFormerFileWhenTheDiskIsFull) {
  struct rlimit before {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  struct rlimit little = before;
  little.rlim_cur = 100;
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  for (const char* name : {"v.nii", "v.nii.gz"}) {
    write_file(dir_ / name, "former");
    ::setrlimit(RLIMIT_FSIZE, &little);
    try {
      write_nifti(dir_ / name, at::rand({9, 9, 9}), kSpacing, at::kFloat);
      ADD_FAILURE() << "a full disk went unnoticed";
    } catch (const std::system_error& error) {
      EXPECT_EQ(error.code(), std::errc::file_too_large);
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
    ::setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_EQ(read_file(dir_ / name), "former");
    EXPECT_FALSE(std::filesystem::exists(dir_ / (std::string(name) + ".part")));
  }
  std::signal(SIGXFSZ, handler);
}

TEST_F(NiftiTest, NeverWritesThroughALink) {
  write_file(dir_ / "victim", "precious");
  for (const char* name : {"v.nii", "v.nii.gz"}) {
    std::filesystem::create_symlink(dir_ / "victim", dir_ / name);
    write_nifti(dir_ / name, ramp(), kSpacing, at::kShort);
    EXPECT_FALSE(std::filesystem::is_symlink(dir_ / name));
    EXPECT_TRUE(at::equal(read_nifti(dir_ / name).voxels, ramp()));
  }
  EXPECT_EQ(read_file(dir_ / "victim"), "precious");
}

}  // namespace spillway
