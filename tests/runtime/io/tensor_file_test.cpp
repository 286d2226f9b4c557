#include "runtime/io/tensor_file.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/device/cpu_device.h"
#include "swap/session.h"
#include "tests/runtime/files.h"

namespace spillway {
using namespace runtime;
namespace {

class TensorFileTest : public ScratchFolder {
 protected:
  std::filesystem::path file() const { return dir_ / "some.safetensors"; }
  void write(const std::vector<std::pair<std::string, at::Tensor>>& tensors) const {
    std::vector<TensorEntry> entries;
    for (const auto& [name, tensor] : tensors) entries.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
    TensorFileWriter writer(file(), entries, {{"who", "a test"}});
    for (const auto& [name, tensor] : tensors) writer.write(tensor);
    writer.commit();
  }
};

}  // namespace

TEST_F(TensorFileTest, GivesBackEveryTypeShapeAndLayout) {
  at::manual_seed(1);
  const std::vector<std::pair<std::string, at::Tensor>> tensors{
      {"float", at::randn({3, 5})},
      {"double", at::randn({7}, at::kDouble)},
      {"bf16", at::randn({2, 2}).to(at::kBFloat16)},
      {"half", at::randn({3}).to(at::kHalf)},
      {"long", at::arange(4)},
      {"byte", at::arange(3).to(at::kByte)},
      {"bool", at::tensor({1, 0}).to(at::kBool)},
      {"scalar", at::full({}, 2.5)},
      {"empty", at::zeros({0, 3})},
      {"transposed", at::randn({4, 6}).t()},
      {"channels last", at::randn({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)}};
  write(tensors);
  TensorFileReader reader(file());
  EXPECT_EQ(reader.metadata().at("who"), "a test");
  for (const auto& [name, tensor] : tensors) {
    at::Tensor back = at::empty_like(tensor);
    if (name == "long") back = at::zeros({2, 4}, at::kLong).select(0, 1);
    reader.read(name, back);
    EXPECT_TRUE(at::equal(back, tensor)) << name;
    EXPECT_EQ(back.strides(), at::empty_like(tensor).strides()) << name;
  }
}

TEST_F(TensorFileTest, IsWhatOthersCallSafetensors) {
  write({{"weight", at::tensor({1.f, 2.f})}, {"steps", at::tensor({7}, at::kLong)}});
  const std::string bytes = read_file(file());
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  EXPECT_EQ(header["weight"]["dtype"], "F32");
  EXPECT_EQ(header["weight"]["shape"], std::vector<int>({2}));
  EXPECT_EQ(header["weight"]["data_offsets"], std::vector<int>({0, 8}));
  EXPECT_EQ(header["steps"]["data_offsets"], std::vector<int>({8, 16}));
  float second = 0;
  std::memcpy(&second, bytes.data() + 8 + length + 4, 4);
  EXPECT_EQ(second, 2);
}

TEST_F(TensorFileTest, NamesWhatIsMissingOrOfAnotherShape) {
  write({{"weight", at::ones({2, 3})}});
  TensorFileReader reader(file());
  expect_refusal([&] { reader.read("bias", at::ones({2})); }, {"some.safetensors", "has no 'bias'"});
  expect_refusal([&] { reader.read("weight", at::ones({3, 2})); }, {"weight", "[2, 3]", "[3, 2]"});
  expect_refusal([&] { reader.read("weight", at::ones({2, 3}, at::kDouble)); }, {"F32", "F64"});
  expect_refusal([&] { TensorFileReader(dir_ / "none"); }, {"there is no", "none"});
}

TEST_F(TensorFileTest, RefusesWhatIsCutShortAtAnyByte) {
  write({{"weight", at::ones({5})}, {"bias", at::ones({2})}});
  const std::string whole = read_file(file());
  for (size_t length = 0; length < whole.size(); ++length) {
    write_file(file(), whole.substr(0, length));
    EXPECT_THROW(TensorFileReader{file()}, BadRequest) << length << " of " << whole.size();
  }
  write_file(file(), whole + "x");
  expect_refusal([&] { TensorFileReader{file()}; }, {"bytes too many"});
}

TEST_F(TensorFileTest, FindsEveryDamagedByte) {
  write({{"weight", at::ones({5})}, {"bias", at::ones({2})}});
  const std::string whole = read_file(file());
  at::Tensor weight = at::empty({5}), bias = at::empty({2});
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    write_file(file(), damaged);
    auto read_all = [&] {
      TensorFileReader reader(file());
      reader.read("weight", weight);
      reader.read("bias", bias);
    };
    EXPECT_THROW(read_all(), BadRequest) << at << " of " << whole.size();
  }
}

TEST_F(TensorFileTest, TheFormerFileStaysUntilTheNewOneIsWhole) {
  write({{"weight", at::ones({2})}});
  const std::string former = read_file(file());
  {
    TensorFileWriter writer(file(), {{"weight", at::kFloat, {2}}, {"bias", at::kFloat, {1}}}, {});
    writer.write(at::zeros({2}));
    EXPECT_THROW(writer.write(at::zeros({2})), c10::Error);
    EXPECT_THROW(writer.commit(), c10::Error);
  }
  EXPECT_EQ(read_file(file()), former);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 1);
}

TEST_F(TensorFileTest, AFullDiskIsAnErrorThatLeavesTheFormerFile) {
  write({{"weight", at::ones({2})}});
  const std::string former = read_file(file());
  struct rlimit limit {};
  ::getrlimit(RLIMIT_FSIZE, &limit);
  auto* handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit little { 4096, limit.rlim_max };
  ::setrlimit(RLIMIT_FSIZE, &little);
  EXPECT_THROW(write({{"weight", at::ones({1 << 14})}}), std::system_error);
  ::setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(read_file(file()), former);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_), {}), 1);
}

TEST_F(TensorFileTest, PagesInOneTensorAtATime) {
  CpuDevice::instance();
  constexpr int64_t kEach = 1 << 20;
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  Session session({.budget_bytes = 3 * kEach, .small_page_bytes = 0});
  for (int i = 0; i < 8; ++i) tensors.emplace_back(std::to_string(i), at::full({kEach / 4}, i));
  write(tensors);
  for (auto& [name, tensor] : tensors) tensor.zero_();
  {
    TensorFileReader reader(file());
    for (auto& [name, tensor] : tensors) reader.read(name, tensor);
  }
  for (auto& [name, tensor] : tensors) EXPECT_TRUE(tensor.eq(std::stoi(name)).all().item<bool>()) << name;
  EXPECT_LE(session.stats().peak_bytes, 3 * kEach);
}

}  // namespace spillway
