#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <regex>

#include "swap/tiers/page_file.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace spillway::fuzz {
using namespace swap;
namespace {

enum class Kind { file, link, folder, pipe };

/// Returns the name in the folder for a name of the input. Inputs may call this host `h`.
std::string real_name(std::string name) {
  constexpr std::string_view kSuffix = "@h.pages";
  if (name.ends_with(kSuffix)) name.replace(name.size() - kSuffix.size(), 2, str("@", page_file_host()));
  return name;
}

/// Makes the entries that `input` lists, so far as they can be made. Each line is the letter of a kind and a name.
/// Returns the entries by their names in the folder.
std::map<std::string, Kind> make_entries(std::string_view input, const std::filesystem::path& folder,
                                         const std::filesystem::path& outside) {
  std::map<std::string, Kind> entries;
  for (int i = 0; i < 8 && !input.empty(); ++i) {
    const size_t length = std::min(input.find('\n'), input.size());
    std::string_view name = input.substr(0, length);
    input.remove_prefix(std::min(length + 1, input.size()));
    const auto kind = static_cast<Kind>(take_byte(name) % 4);
    if (name.empty() || name.find_first_of(std::string_view("/\0", 2)) != std::string_view::npos) continue;
    const std::string there = real_name(std::string(name));
    const std::string path = folder.string() + "/" + there;
    const int failed = kind == Kind::file     ? ::close(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600))
                       : kind == Kind::link   ? ::symlink(outside.c_str(), path.c_str())
                       : kind == Kind::folder ? ::mkdir(path.c_str(), 0700)
                                              : ::mkfifo(path.c_str(), 0600);
    if (!failed) entries.emplace(there, kind);
  }
  return entries;
}

bool is_page_file_of(const std::string& host, const std::string& name) {
  static const std::regex begin("spillway-[0-9]+-[0-9]+(-[0-9]+)?");
  const std::string end = str("@", host, ".pages");
  return name.ends_with(end) && std::regex_match(name.substr(0, name.size() - end.size()), begin);
}

}  // namespace

void page_files(std::string_view input) {
  const std::string whole(input);
  require(is_page_file_name(whole, "h") == is_page_file_of("h", whole), "a name is a run's or is not");
  static const auto outside = scratch_file("outside", "somebody's");
  static const auto folder = scratch_folder() / "pages";
  std::filesystem::create_directory(folder);
  const auto entries = make_entries(input, folder, outside);
  const auto is_stale = [](const std::string& name, Kind kind) {
    return kind == Kind::file && is_page_file_of(page_file_host(), name);
  };
  int64_t stale = 0;
  for (const auto& [name, kind] : entries) stale += is_stale(name, kind);
  require(remove_stale_page_files(folder) == stale, "files of runs go");
  for (const auto& [name, kind] : entries) {
    const bool there = std::filesystem::exists(std::filesystem::symlink_status(folder / name));
    require(there != is_stale(name, kind), "everything else stays");
  }
  require(std::filesystem::file_size(outside) == 10, "what links lead to stays");
  std::filesystem::remove_all(folder);
}

}  // namespace spillway::fuzz
