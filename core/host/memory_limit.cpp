#include "core/host/memory_limit.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace spillway {
namespace {

namespace fs = std::filesystem;

/// A mounted hierarchy of cgroups that may limit memory.
struct Hierarchy {
  bool is_v2 = false;
  fs::path top;          ///< the cgroup at the mount point, as /proc/self/cgroup names cgroups
  fs::path mount_point;  ///< the folder that this process sees it in
};

/// Returns the whole number that `text` begins with; nothing where there is none, as in `max`, or it is too large.
std::optional<int64_t> leading_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && value >= 0 ? std::optional(value) : std::nullopt;
}

/// Returns the number that follows the word `key` at the beginning of a line of `file`.
std::optional<int64_t> number_after(const fs::path& file, std::string_view key) {
  std::ifstream in(file);
  for (std::string word, value, line; in >> word >> value; std::getline(in, line))
    if (word == key) return leading_number(value);
  return std::nullopt;
}

std::optional<int64_t> number_of(const fs::path& file) {
  std::ifstream in(file);
  std::string text;
  return in >> text ? leading_number(text) : std::nullopt;
}

/// Returns true when `list`, words between commas, has the word `memory`.
bool names_memory(const std::string& list) {
  return ("," + list + ",").find(",memory,") != std::string::npos;
}

/// Reads /proc/self/mountinfo: `36 35 98:0 /top /mount/point options … - type source options`.
std::vector<Hierarchy> hierarchies_of(const fs::path& root) {
  std::vector<Hierarchy> found;
  std::ifstream in(root / "proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream front(line.substr(0, dash)), back(line.substr(dash + 3));
    std::string skipped, top, mount_point, type, options;
    front >> skipped >> skipped >> skipped >> top >> mount_point;
    back >> type >> skipped >> options;
    if (type == "cgroup2" || (type == "cgroup" && names_memory(options)))
      found.push_back({type == "cgroup2", top, mount_point});
  }
  return found;
}

/// Returns this process's cgroup in a hierarchy, from /proc/self/cgroup: `0::/path`, or `4:cpu,memory:/path`.
std::optional<fs::path> own_cgroup(const fs::path& root, bool is_v2) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (is_v2 ? controllers.empty() && line.starts_with("0:") : names_memory(controllers))
      return fs::path(line.substr(second + 1));
  }
  return std::nullopt;
}

/// Returns the path of `cgroup` below the mount point; empty where the mount does not show it. Both names are relative
/// to the cgroup namespace, so a cgroup outside it begins with `/..`.
fs::path below_mount(const fs::path& cgroup, const fs::path& top) {
  const fs::path below = cgroup.lexically_relative(top);
  return below.empty() || *below.begin() == ".." || below == "." ? fs::path() : below;
}

class SmallestLimit {
 public:
  SmallestLimit(const fs::path& root, int64_t machine_bytes)
      : root_(root), limit_{machine_bytes, "the machine's memory"} {}

  /// Looks at every cgroup from the process's own up to the mount point.
  void look_at(const Hierarchy& hierarchy) {
    const auto own = own_cgroup(root_, hierarchy.is_v2);
    if (!own) return;
    fs::path below = below_mount(*own, hierarchy.top);
    for (;; below = below.parent_path()) {
      const fs::path folder = hierarchy.mount_point / below;
      hierarchy.is_v2 ? look_at_v2(folder) : look_at_v1(folder);
      if (below.empty()) return;
      const fs::path parent = root_ / (hierarchy.mount_point / below.parent_path()).relative_path();
      // In version 1, a cgroup limits those below it only where it says so.
      if (!hierarchy.is_v2 && number_of(parent / "memory.use_hierarchy") == 0) return;
    }
  }

  const MemoryLimit& limit() const { return limit_; }

 private:
  void look_at_v2(const fs::path& folder) {
    for (const char* name : {"memory.max", "memory.high"}) keep(number_of(seen(folder / name)), folder / name);
  }

  void look_at_v1(const fs::path& folder) {
    keep(number_of(seen(folder / "memory.limit_in_bytes")), folder / "memory.limit_in_bytes");
    // The kernel's own minimum also covers cgroups that the mount does not show.
    keep(number_after(seen(folder / "memory.stat"), "hierarchical_memory_limit"), folder / "memory.stat");
  }

  fs::path seen(const fs::path& file) const { return root_ / file.relative_path(); }

  void keep(const std::optional<int64_t>& bytes, const fs::path& file) {
    if (bytes && *bytes < limit_.bytes) limit_ = {*bytes, file.string()};
  }

  const fs::path& root_;
  MemoryLimit limit_;
};

}  // namespace

MemoryLimit host_memory_limit(const fs::path& root) {
  const auto kilobytes = number_after(root / "proc/meminfo", "MemTotal:");
  const int64_t machine = kilobytes ? *kilobytes * 1024 : ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGE_SIZE);
  SmallestLimit smallest(root, machine);
  for (const Hierarchy& hierarchy : hierarchies_of(root)) smallest.look_at(hierarchy);
  return smallest.limit();
}

MemoryLimit share_for_pages(const MemoryLimit& limit, bool pinned, int ranks) {
  const int64_t parts = int64_t{pinned ? 2 : 1} * std::max(1, ranks);
  return parts == 1 ? limit : MemoryLimit{limit.bytes / parts, str("1/", parts, " of ", limit.source)};
}

}  // namespace spillway
