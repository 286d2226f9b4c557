/// Hosts and the number of ranks that each may get, as users write them: `-H`, and hostfiles.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace spillway::ddlrun {

/// Variables and their values. They are passed as an argument, so that the code that reads them can be tested.
using Environment = std::map<std::string, std::string>;

struct Host {
  std::string name;
  int64_t slots = 1;  ///< ranks that may run there
  bool operator==(const Host&) const = default;
};

struct HostList {
  std::vector<Host> hosts = {};         ///< each name once, in order of first mention; add() keeps this
  std::string source = {};              ///< the hosts' origin, as text for the user
  std::vector<std::string> notes = {};  ///< remarks for the user

  std::map<std::string, size_t> places = {};  ///< index in `hosts` by name

  /// Adds slots of a host. They are added to those of a host that was mentioned before. Returns all slots of this host.
  int64_t add(const std::string& name, int64_t slots);
  int64_t slots() const;
};

inline constexpr int64_t kMaxSlots = 100'000;
inline constexpr size_t kMaxHostName = 253;  ///< characters; the limit of DNS

/// Returns the whole number from `least` to kMaxSlots that the text is; nothing for any other text.
std::optional<int64_t> parse_count(std::string_view text, int64_t least = 1);

/// True when `text` has only letters, digits, dots, hyphens and underscores, at most kMaxHostName of them, and does not
/// begin with a hyphen. A launcher or a shell can read such a text only as a name.
bool is_host_name(std::string_view text);

/// Parses `a:4,b:2,c`; a host without a number has one slot. Throws BadRequest naming the part and the allowed form.
HostList parse_host_option(const std::string& text);

/// Parses a text with a line per host: `host`, `host:4`, or `host slots=4 max_slots=8`. `#` begins a comment; the slots
/// of repeated hosts add up. Throws BadRequest naming `file`, the line and the allowed forms.
HostList parse_hostfile(const std::string& text, const std::string& file);

/// Returns the text of a file as read_text_file() does. Throws BadRequest naming it when it cannot be read or is larger
/// than 64 MiB.
std::string read_file(const std::string& file);

/// Returns the words of a text, parted by white space.
std::vector<std::string> words_of(std::string_view text);
/// Returns the parts of a text between separators; an empty text has one part, which is empty.
std::vector<std::string> split(std::string_view text, char separator);
/// Joins the parts to one text, with `separator` between them.
std::string join(const std::vector<std::string>& parts, std::string_view separator = ", ");

}  // namespace spillway::ddlrun
