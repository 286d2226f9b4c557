/// A rendezvous between processes.
#pragma once
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "ddl/sockets/socket_transport.h"

namespace spillway::ddl::testing {

/// A rendezvous of files.
class FileTexts final : public Rendezvous {
 public:
  explicit FileTexts(std::filesystem::path folder) : folder_(std::move(folder)) {
    std::filesystem::create_directories(folder_ / "spillway");
  }
  void set(const std::string& key, const std::string& value) override {
    std::ofstream(folder_ / (key + ".part")) << value;
    std::filesystem::rename(folder_ / (key + ".part"), folder_ / key);
  }
  std::optional<std::string> find(const std::string& key) override {
    std::stringstream text;
    text << std::ifstream(folder_ / key).rdbuf();
    return text.str().empty() ? std::nullopt : std::optional(text.str());
  }
  /// Waits until a key was set, and returns its text.
  std::string await(const std::string& key) {
    for (int i = 0; i < 4000 && !find(key); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return find(key).value();
  }

 private:
  const std::filesystem::path folder_;
};

}  // namespace spillway::ddl::testing
