// Tests of checkpoints from untrusted sources.
#include "runtime/io/tensor_header.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <limits>

#include "runtime/io/sha256.h"
#include "tests/runtime/files.h"

namespace spillway {
using namespace runtime;
namespace {

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

std::string entry(const std::string& type, const std::string& shape, int64_t begin, int64_t end) {
  return str(R"({"dtype": ")", type, R"(", "shape": )", shape, R"(, "data_offsets": [)", begin, ", ", end, "]}");
}

/// Expects that a header of one tensor, which 8 bytes follow, is refused.
void refused(const std::string& tensor, std::initializer_list<std::string> parts) {
  expect_refusal([&] { parse_tensor_header(R"({"w": )" + tensor + "}", 8); }, parts);
}

class TensorContentsTest : public ScratchFolder {
 protected:
  std::filesystem::path file() const { return dir_ / "c.safetensors"; }
  void write(uint64_t length, const std::string& rest) const {
    std::string bytes(sizeof length, '\0');
    std::memcpy(bytes.data(), &length, sizeof length);
    write_file(file(), bytes + rest);
  }
};

std::string digest_of(const std::string& bytes) {
  Sha256 sha;
  sha.add(bytes.data(), bytes.size());
  const auto digest = sha.finish();
  return {digest.begin(), digest.end()};
}

}  // namespace

TEST(TensorHeaderTest, SaysWhereTensorsAre) {
  const TensorHeader header =
      parse_tensor_header(str(R"({"__metadata__": {"who": "a"}, "b": )", entry("F32", "[2, 3]", 8, 32), R"(, "a": )",
                              entry("I64", "[]", 0, 8), R"(, "none": )", entry("U8", "[0, 9]", 8, 8), "}"),
                          32);
  EXPECT_EQ(header.metadata.at("who"), "a");
  EXPECT_EQ(header.places.at("b").sizes, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(header.places.at("b").offset, 8);
  EXPECT_EQ(header.places.at("b").index, 2u);
  EXPECT_EQ(header.places.at("none").index, 1u);
}

TEST(TensorHeaderTest, SizesThatAreNegativeHugeOrNoWholeNumbersAreRefused) {
  refused(entry("F32", "[-2]", 0, 8), {"a size is -2"});
  refused(entry("F32", "[-1, -2]", 0, 8), {"a size is -1"});
  refused(entry("F32", "[2.0]", 0, 8), {"a size is 2.0"});
  refused(entry("F32", "[1e300]", 0, 8), {"a size"});
  refused(entry("F32", "[true]", 0, 8), {"a size is true"});
  refused(entry("F32", "[NaN]", 0, 8), {"is no safetensors file"});
  refused(entry("F32", "[18446744073709551615]", 0, 8), {"a size"});
  refused(entry("F32", "[4611686018427387904]", 0, 0), {"a size"});        // 2^62 · 4 wraps to 0
  refused(entry("F32", "[2147483648, 2147483648, 2]", 0, 0), {"a size"});  // 2^31 · 2^31 · 2 · 4 wraps, too
  refused(entry("F32", "{}", 0, 8), {"the shape"});
  refused(entry("F32", str("[", std::string(400, '1'), "]"), 0, 8), {"is no safetensors file"});
  std::string many = "1";
  for (int i = 0; i < 64; ++i) many += ", 1";
  refused(entry("F32", "[" + many + "]", 0, 4), {"the shape"});
}

TEST(TensorHeaderTest, OffsetsThatLeadElsewhereAreRefused) {
  refused(entry("F32", "[2]", -8, 0), {"an offset is -8"});
  refused(entry("F32", "[2]", 8, 0), {"has 8 bytes from 8 to 0"});
  refused(entry("F32", "[2]", 0, 4), {"has 8 bytes from 0 to 4"});
  refused(entry("F32", "[2]", 8, 16), {"truncated"});
  refused(entry("F32", "[2]", kMax - 8, kMax), {"truncated"});
  refused(entry("F32", "[1]", 4, 8), {"a hole"});
  refused(entry("F32", "[1]", 0, 4), {"bytes too many"});
  expect_refusal(
      [] {
        parse_tensor_header(str(R"({"a": )", entry("U8", "[6]", 0, 6), R"(, "b": )", entry("U8", "[6]", 2, 8), "}"), 8);
      },
      {"tensors overlap"});
}

TEST(TensorHeaderTest, NamesThatComeTwiceAndDeepNestingAreRefused) {
  const std::string tensor = entry("U8", "[8]", 0, 8);
  expect_refusal([&] { parse_tensor_header(str(R"({"w": )", tensor, R"(, "w": )", tensor, "}"), 8); }, {"'w' twice"});
  const std::string deep(1 << 20, '[');
  expect_refusal([&] { parse_tensor_header(R"({"w": )" + deep, 8); }, {"deeper than 32"});
  expect_refusal([] { parse_tensor_header("[]", 0); }, {"is no safetensors file"});
  expect_refusal([] { parse_tensor_header(R"({"w": 7})", 0); }, {"is no safetensors file"});
  expect_refusal([] { parse_tensor_header(R"({"w": {}})", 0); }, {"has no dtype"});
  expect_refusal([] { parse_tensor_header(R"({"__metadata__": {"a": 7}})", 0); }, {"not all text"});
  refused(entry("Q7", "[8]", 0, 8), {"tensors of type Q7"});
}

TEST_F(TensorContentsTest, ALengthThatTheFileDoesNotHaveTakesNoMemory) {
  for (const uint64_t length : {uint64_t{3}, uint64_t{1} << 26, uint64_t{1} << 62, ~uint64_t{0}, ~uint64_t{7}}) {
    write(length, "{}");
    expect_refusal([&] { TensorContents{file()}; }, {"c.safetensors"});
  }
}

TEST_F(TensorContentsTest, ChecksumsThatAreNotLastAreRefused) {
  const std::string text =
      str(R"({"sha256": )", entry("U8", "[2, 32]", 0, 64), R"(, "w": )", entry("U8", "[8]", 64, 72), "}");
  write(text.size(), text + digest_of(text) + digest_of("12345678") + "12345678");
  expect_refusal([&] { TensorContents{file()}; }, {"has no checksums"});
}

TEST_F(TensorContentsTest, ChecksumsAreNoTensor) {
  const std::string text =
      str(R"({"sha256": )", entry("U8", "[2, 32]", 8, 72), R"(, "w": )", entry("U8", "[8]", 0, 8), "}");
  write(text.size(), text + "12345678" + digest_of(text) + digest_of("12345678"));
  const TensorContents contents(file());
  ASSERT_NE(contents.find("w"), nullptr);
  EXPECT_EQ(contents.find("sha256"), nullptr);
  std::string bytes(8, '\0');
  contents.read("w", *contents.find("w"), bytes.data());
  EXPECT_EQ(bytes, "12345678");
}

TEST_F(TensorContentsTest, LinksFoldersAndPipesAreRefused) {
  write_file(dir_ / "other", "x");
  std::filesystem::create_symlink(dir_ / "other", file());
  expect_refusal([&] { TensorContents{file()}; }, {"c.safetensors", "symbolic link"});
  std::filesystem::remove(file());
  std::filesystem::create_directory(file());
  expect_refusal([&] { TensorContents{file()}; }, {"is no file"});
  std::filesystem::remove(file());
  ASSERT_EQ(::mkfifo(file().c_str(), 0600), 0);
  expect_refusal([&] { TensorContents{file()}; }, {"is no file"});
}

}  // namespace spillway
