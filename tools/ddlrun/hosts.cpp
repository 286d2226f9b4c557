#include "tools/ddlrun/hosts.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "core/error.h"
#include "core/host/text_file.h"
#include "core/parse_number.h"

namespace spillway::ddlrun {
namespace {

/// One line of a hostfile.
class Line {
 public:
  Line(const std::string& file, int64_t number) : file_(file), number_(number) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw BadRequest(str("[hosts] ", file_, ":", number_, ": ", what,
                         "; allowed: host, host:N or host slots=N max_slots=M, N from 1 to ", kMaxSlots));
  }

  int64_t count(std::string_view text) const {
    const auto number = parse_count(text);
    if (!number) refuse(str("'", text, "' slots"));
    return *number;
  }

 private:
  const std::string& file_;
  int64_t number_;
};

/// Returns a line with `slots = 4` written as `slots=4`, and without a comment.
std::string tidied(std::string line) {
  line = line.substr(0, line.find('#'));
  for (size_t at = line.find('='); at != std::string::npos; at = line.find('=', at + 1)) {
    while (at > 0 && std::isspace(static_cast<unsigned char>(line[at - 1]))) line.erase(--at, 1);
    while (at + 1 < line.size() && std::isspace(static_cast<unsigned char>(line[at + 1]))) line.erase(at + 1, 1);
  }
  return line;
}

struct Entry {
  Host host;
  int64_t most = kMaxSlots;
};

Entry parse_entry(const std::vector<std::string>& words, const Line& line) {
  Entry entry;
  entry.host.name = words.front();
  bool counted = false;
  if (const size_t colon = entry.host.name.find(':'); colon != std::string::npos) {
    entry.host.slots = line.count(std::string_view(entry.host.name).substr(colon + 1));
    entry.host.name.resize(colon);
    counted = true;
  }
  if (!is_host_name(entry.host.name)) line.refuse(str("'", entry.host.name, "' is no host's name"));
  for (size_t i = 1; i < words.size(); ++i) {
    const size_t equals = std::min(words[i].find('='), words[i].size());
    std::string key = words[i].substr(0, equals);
    std::replace(key.begin(), key.end(), '-', '_');
    const auto value = [&] {
      return line.count(std::string_view(words[i]).substr(std::min(equals + 1, words[i].size())));
    };
    if (key == "max_slots") {
      entry.most = value();
    } else if (key == "slots" && !counted) {
      entry.host.slots = value();
      counted = true;
    } else {
      line.refuse(str("'", words[i], "'"));
    }
  }
  return entry;
}

}  // namespace

int64_t HostList::add(const std::string& name, int64_t slots) {
  const auto [place, fresh] = places.emplace(name, hosts.size());
  if (fresh) hosts.push_back({name, 0});
  return hosts[place->second].slots += slots;
}

int64_t HostList::slots() const {
  int64_t sum = 0;
  for (const Host& host : hosts) sum += host.slots;
  return sum;
}

std::optional<int64_t> parse_count(std::string_view text, int64_t least) {
  const auto number = parse_number<int64_t>(text);
  return number >= least && number <= kMaxSlots ? number : std::nullopt;
}

bool is_host_name(std::string_view text) {
  return !text.empty() && text.size() <= kMaxHostName && text.front() != '-' &&
         std::all_of(text.begin(), text.end(),
                     [](unsigned char c) { return c < 128 && (std::isalnum(c) || c == '.' || c == '-' || c == '_'); });
}

HostList parse_host_option(const std::string& text) {
  HostList list{.source = "-H"};
  for (const std::string& part : split(text, ',')) {
    const size_t colon = std::min(part.find(':'), part.size());
    const std::string name = part.substr(0, colon);
    const auto slots = colon == part.size() ? 1 : parse_count(std::string_view(part).substr(colon + 1));
    if (!is_host_name(name) || !slots)
      throw BadRequest(str("[hosts] -H has '", part,
                           "'; allowed: host or host:slots, with commas between, slots from 1 to ", kMaxSlots));
    list.add(name, *slots);
  }
  return list;
}

HostList parse_hostfile(const std::string& text, const std::string& file) {
  HostList list{.source = "hostfile " + file};
  std::map<std::string, int64_t> most;
  std::istringstream lines(text);
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    const Line place(file, ++number);
    const auto words = words_of(tidied(line));
    if (words.empty()) continue;
    const Entry entry = parse_entry(words, place);
    const int64_t slots = list.add(entry.host.name, entry.host.slots);
    int64_t& allowed = most.emplace(entry.host.name, kMaxSlots).first->second;
    allowed = std::min(allowed, entry.most);
    if (slots > allowed) place.refuse(str(entry.host.name, " has ", slots, " slots, and at most ", allowed));
  }
  if (list.hosts.empty())
    throw BadRequest(str("[hosts] ", file, " names no host; allowed: a line per host, as in host:4"));
  return list;
}

std::string read_file(const std::string& file) {
  try {
    return read_text_file(file);
  } catch (const BadRequest& error) {
    throw BadRequest(str("[hosts] cannot read '", file, "': ", error.what()));
  }
}

std::vector<std::string> words_of(std::string_view text) {
  std::istringstream stream{std::string(text)};
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  std::string text;
  for (const std::string& part : parts) {
    if (!text.empty()) text += separator;
    text += part;
  }
  return text;
}

}  // namespace spillway::ddlrun
