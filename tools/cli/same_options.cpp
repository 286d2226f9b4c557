#include "tools/cli/same_options.h"

#include <algorithm>
#include <initializer_list>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <string_view>

#include "core/error.h"
#include "ddl/comm/collectives.h"

namespace spillway::tools {
namespace {

using Given = std::map<std::string, std::string>;

constexpr std::string_view kFlag = "true";  ///< CLI11's value of a flag that is given

bool one_of(std::string_view name, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Returns the part of an option's value that ranks must agree on. Empty means none, as if the option were not given.
std::string agreed_part(const std::string& name, const std::string& value) {
  if (one_of(name, {"--json", "--report", "--plot", "--quiet", "--host-budget"})) return "";
  if (one_of(name, {"--data", "--disk", "--checkpoint", "--device"})) return "…";
  if (name == "--budget") return value == "none" ? "" : value.ends_with('%') ? "…%" : "…";
  return value;
}

Given given_to(const CLI::App& command) {
  Given given;
  for (const CLI::Option* option : command.get_options()) {
    std::string value;
    for (const std::string& result : option->results()) value += (value.empty() ? "" : ",") + result;
    if (option->count() > 0) value = agreed_part(option->get_name(), value);
    if (!value.empty()) given[option->get_name()] = value;
  }
  return given;
}

std::string text_of(const Given& given) {
  std::string text;
  for (const auto& [name, value] : given) text.append(name).append(1, '=').append(value).append(1, '\0');
  return text;
}

Given given_in(const std::string& text) {
  Given given;
  std::istringstream words(text);
  for (std::string word; std::getline(words, word, '\0');) {
    const size_t end = word.find('=');
    given[word.substr(0, end)] = word.substr(end + 1);
  }
  return given;
}

std::string of_rank_0(const std::string& own, ddl::Communicator& comm) {
  uint64_t size = own.size();
  ddl::broadcast(comm, std::as_writable_bytes(std::span(&size, 1)), 0);
  std::string text = own;
  text.resize(size);
  ddl::broadcast(comm, std::as_writable_bytes(std::span(text)), 0);
  return text;
}

std::string difference(const Given& first, const Given& own, int rank) {
  const auto value_in = [](const Given& given, const std::string& name) {
    const auto found = given.find(name);
    if (found == given.end()) return str("without ", name);
    return found->second == kFlag ? str("with ", name) : str("with ", name, " ", found->second);
  };
  Given all = own;
  all.insert(first.begin(), first.end());
  for (const auto& [name, unused] : all) {
    const std::string here = value_in(own, name), there = value_in(first, name);
    if (here != there) return str("rank ", rank, " was started ", here, ", and rank 0 ", there);
  }
  return "";
}

}  // namespace

void require_same_options(const CLI::App& command, ddl::Communicator& comm) {
  const Given own = given_to(command);
  const Given first = given_in(of_rank_0(text_of(own), comm));
  ddl::throw_on_all_ranks(comm, difference(first, own, comm.rank()));
}

}  // namespace spillway::tools
