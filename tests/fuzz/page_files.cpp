#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <map>
#include <regex>

#include "core/page_file.h"
#include "tests/fuzz/support.h"
#include "tests/fuzz/targets.h"

namespace spillway::fuzz {
namespace {

enum class Kind { file, link, folder, pipe };

/// The name in the folder: inputs call this host `h`.
std::string real_name(std::string name) {
  constexpr std::string_view kSuffix = "@h.pages";
  if (name.ends_with(kSuffix)) name.replace(name.size() - kSuffix.size(), 2, "@" + page_file_host());
  return name;
}

/// Lines, each a kind's letter and a name. Makes what can be made.
std::map<std::string, Kind> make_entries(std::string_view input, const std::filesystem::path& folder,
                                         const std::filesystem::path& outside) {
  std::map<std::string, Kind> entries;
  for (int i = 0; i < 8 && !input.empty(); ++i) {
    const size_t length = std::min(input.find('\n'), input.size());
    std::string_view name = input.substr(0, length);
    input.remove_prefix(std::min(length + 1, input.size()));
    const auto kind = static_cast<Kind>(take_byte(name) % 4);
    const std::string path =
        (folder / "x").string().substr(0, folder.string().size() + 1) + real_name(std::string(name));
    if (name.empty() || name.find_first_of(std::string_view("/\0", 2)) != std::string_view::npos) continue;
    const int failed = kind == Kind::file     ? ::close(::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0600))
                       : kind == Kind::link   ? ::symlink(outside.c_str(), path.c_str())
                       : kind == Kind::folder ? ::mkdir(path.c_str(), 0700)
                                              : ::mkfifo(path.c_str(), 0600);
    if (!failed) entries.emplace(name, kind);
  }
  return entries;
}

bool is_ours(const std::string& name) {
  static const std::regex ours(R"(spillway-[0-9]+-[0-9]+(-[0-9]+)?@h\.pages)");
  return std::regex_match(name, ours);
}

}  // namespace

void page_files(std::string_view input) {
  const std::string whole(input);
  require(is_page_file_name(whole, "h") == is_ours(whole), "a name is a run's or is not");
  static const auto outside = scratch_file("outside", "somebody's");
  static const auto folder = scratch_folder() / "pages";
  std::filesystem::create_directory(folder);
  const auto entries = make_entries(input, folder, outside);
  int64_t stale = 0;
  for (const auto& [name, kind] : entries) stale += kind == Kind::file && is_ours(name);
  require(remove_stale_page_files(folder) == stale, "files of runs go");
  for (const auto& [name, kind] : entries) {
    const bool there = std::filesystem::exists(std::filesystem::symlink_status(folder / real_name(name)));
    require(there != (kind == Kind::file && is_ours(name)), "everything else stays");
  }
  require(std::filesystem::file_size(outside) == 10, "what links lead to stays");
  std::filesystem::remove_all(folder);
}

}  // namespace spillway::fuzz
