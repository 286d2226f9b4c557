#include "core/json_text.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"

namespace spillway {
namespace {

using nlohmann::json;

constexpr int kDeepest = 32;
constexpr size_t kShown = 80;  // bytes of an untrusted text that a message shows

/// Checks each part of a text while it is parsed.
class Strictness {
 public:
  bool operator()(int depth, json::parse_event_t event, const json& part) {
    if (depth > kDeepest) throw BadRequest(str("JSON that nests values deeper than ", kDeepest, " levels"));
    if (event == json::parse_event_t::object_start) names_.emplace_back();
    if (event == json::parse_event_t::object_end) names_.pop_back();
    if (event != json::parse_event_t::key) return true;
    const auto& name = part.get_ref<const std::string&>();
    if (!names_.back().insert(name).second)
      throw BadRequest(str("JSON with an object that has '", name.substr(0, kShown), "' twice"));
    return true;
  }

 private:
  std::vector<std::set<std::string>> names_;  // names seen in each open object
};

}  // namespace

json parse_json(std::string_view text) {
  try {
    Strictness strictness;
    return json::parse(
        text, [&](int depth, json::parse_event_t event, json& part) { return strictness(depth, event, part); });
  } catch (const json::exception& error) {
    throw BadRequest(error.what());
  }
}

int64_t whole_number(const json& value, std::string_view what, int64_t least, int64_t most) {
  const bool wraps = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  if (value.is_number_integer() && !wraps)
    if (const auto number = value.get<int64_t>(); number >= least && number <= most) return number;
  throw BadRequest(str(what, " is ", value.is_structured() ? value.type_name() : value.dump().substr(0, kShown),
                       "; allowed: a whole number from ", least, " to ", most));
}

std::string json_text(const json& value, int indent) {
  return value.dump(indent, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

std::string utf8_of(std::string_view text) {
  return json::parse(json_text(text)).get<std::string>();
}

}  // namespace spillway
