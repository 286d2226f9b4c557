#include "core/host/machine_xml.h"

#include <algorithm>
#include <cctype>
#include <map>

#include "core/error.h"
#include "core/parse_number.h"

namespace spillway {
namespace {

constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
constexpr std::string_view kBlanks = " \t\r\n";
constexpr int kMaxObjects = 1024;  // objects in a matrix of distances

using Attributes = std::map<std::string_view, std::string_view>;

class Scanner {
 public:
  explicit Scanner(std::string_view xml) : all_(xml), rest_(xml) {}

  void check() {
    if (rest_.find('\0') != std::string_view::npos) refuse();
    for (const std::string_view line :
         {"<?xml version=\"1.0\" encoding=\"UTF-8\"?>", "<?xml version=\"1.0\"?>",
          "<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">", "<!DOCTYPE topology SYSTEM \"hwloc.dtd\">"}) {
      (void)skip(line);
      skip_blanks();
    }
    if (!rest_.starts_with("<topology")) refuse();
    while (skip_text()) check_tag();
  }

 private:
  [[noreturn]] void refuse() const {
    throw BadRequest(str("it is not as lstopo writes it, from byte ", all_.size() - rest_.size(), " on"));
  }

  bool skip(std::string_view what) {
    if (!rest_.starts_with(what)) return false;
    rest_.remove_prefix(what.size());
    return true;
  }

  void skip_blanks() { rest_.remove_prefix(std::min(rest_.find_first_not_of(kBlanks), rest_.size())); }

  /// Skips to the next tag. Returns false at the end.
  bool skip_text() {
    rest_.remove_prefix(std::min(rest_.find('<'), rest_.size()));
    return !rest_.empty();
  }

  std::string_view take_name() {
    const std::string_view name = rest_.substr(0, rest_.find_first_not_of(kLetters));
    if (name.empty()) refuse();
    rest_.remove_prefix(name.size());
    return name;
  }

  void check_tag() {
    if (!skip("<")) refuse();
    const bool closing = skip("/");
    const bool object = take_name() == "object";
    Attributes attributes;
    for (skip_blanks(); !skip(">"); skip_blanks()) {
      if (skip("/>")) break;
      if (closing || !attributes.insert(take_attribute()).second) refuse();
    }
    if (const auto count = attributes.find("nbobjs"); count != attributes.end())
      check_number(count->second, kMaxObjects);
    if (object && !closing) check_object(attributes);
  }

  Attributes::value_type take_attribute() {
    const std::string_view name = take_name();
    if (!skip("=\"")) refuse();
    const std::string_view value = rest_.substr(0, rest_.find_first_of("\"<"));
    rest_.remove_prefix(value.size());
    if (!skip("\"")) refuse();
    return {name, value};
  }

  void check_object(const Attributes& attributes) const {
    const auto type = attributes.find("type");
    if (type == attributes.end() || type->second.find_first_not_of(kLetters) != std::string_view::npos) refuse();
    if (!is_cpu_or_node(type->second)) return;
    const auto number = attributes.find("os_index");
    if (number == attributes.end()) refuse();
    check_number(number->second, kMaxCpus - 1);
  }

  /// Returns true when hwloc reads `type` as a CPU or node: it accepts any word that begins with `pu` or `n`, in
  /// letters of any case.
  static bool is_cpu_or_node(std::string_view type) {
    const auto letter = [type](size_t at) { return at < type.size() ? std::tolower(type[at]) : 0; };
    return letter(0) == 'n' || (letter(0) == 'p' && letter(1) == 'u');
  }

  void check_number(std::string_view value, int most) const {
    const int number = parse_number<int>(value).value_or(-1);
    if (number < 0 || number > most) refuse();
  }

  std::string_view all_, rest_;
};

}  // namespace

void check_machine_xml(std::string_view xml) {
  Scanner(xml).check();
}

}  // namespace spillway
