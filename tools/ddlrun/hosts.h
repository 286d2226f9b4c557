/// Hosts and how many ranks each may get, from what people write: `-H`, and hostfiles.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::ddlrun {

/// Variables and their values. Passed along, so that what reads it can be tested.
using Environment = std::map<std::string, std::string>;

struct Host {
  std::string name;
  int64_t slots = 1;  ///< ranks that may run there
  bool operator==(const Host&) const = default;
};

struct HostList {
  std::vector<Host> hosts = {};         ///< each name once, in order of first mention; add() keeps it so
  std::string source = {};              ///< where they come from, for people
  std::vector<std::string> notes = {};  ///< what people should know about it

  std::map<std::string, size_t> places = {};  ///< by name, the place in `hosts`

  /// Slots of a host that was mentioned before are added to it. Returns all that it has.
  int64_t add(const std::string& name, int64_t slots);
  int64_t slots() const;
};

inline constexpr int64_t kMostSlots = 100'000;
inline constexpr size_t kLongestHostName = 253;  ///< characters, as DNS has it

/// A whole number from `least` to kMostSlots; nothing when the text is anything else.
std::optional<int64_t> parse_count(std::string_view text, int64_t least = 1);

/// Letters, digits, dots, hyphens and underscores, not beginning with a hyphen: nothing that a launcher or a shell
/// would read as anything but a name. At most kLongestHostName of them.
bool is_host_name(std::string_view text);

/// `a:4,b:2,c`: without a number one slot. Throws BadRequest naming the part and what is allowed.
HostList parse_host_option(const std::string& text);

/// A line per host: `host`, `host:4`, or `host slots=4 max_slots=8`; `#` begins a comment; repeated hosts add up.
/// Throws BadRequest naming `file`, the line and what is allowed.
HostList parse_hostfile(const std::string& text, const std::string& file);

/// The whole file, or what comes through a pipe. Throws BadRequest naming it, when it cannot be read or is larger than
/// 64 MiB.
std::string read_file(const std::string& file);

/// The words of a text, parted by white space.
std::vector<std::string> words_of(std::string_view text);
/// The parts of a text between separators; one, empty, of an empty text.
std::vector<std::string> split(std::string_view text, char separator);
/// Everything in a line, with `, ` between.
std::string join(const std::vector<std::string>& parts, std::string_view separator = ", ");

}  // namespace spillway::ddlrun
