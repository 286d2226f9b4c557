/// A scratch folder and checks of refusals, for the tests of this folder.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "core/error.h"

namespace spillway {

/// A folder that lives as long as the test.
class ScratchFolder : public testing::Test {
 protected:
  void SetUp() override {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    dir_ = std::filesystem::temp_directory_path() /
           str("spillway-", getpid(), "-", test->test_suite_name(), "-", test->name());
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::filesystem::path dir_;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_file(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Returns the message of the BadRequest that `call` must throw.
inline std::string refusal(const std::function<void()>& call) {
  try {
    call();
  } catch (const BadRequest& error) {
    return error.what();
  }
  ADD_FAILURE() << "no BadRequest was thrown";
  return "";
}

/// Expects that `call` is refused with a message holding each of `parts`.
inline void expect_refusal(const std::function<void()>& call, std::initializer_list<std::string> parts) {
  const auto message = refusal(call);
  for (const auto& part : parts) EXPECT_NE(message.find(part), std::string::npos) << "'" << part << "' in: " << message;
}

}  // namespace spillway
