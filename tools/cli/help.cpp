#include "tools/cli/help.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/error.h"

namespace spillway::tools {
namespace {

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_max() != 0;
}

/// Returns the parts of CLI11's type name: the name of the value, and behind a colon the range of its check.
std::pair<std::string, std::string> value_and_range(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t colon = type.find(':');
  if (colon == std::string::npos) return {type, ""};
  return {type.substr(0, colon), type.substr(colon + 1)};
}

std::string meaning_of(const CLI::Option& option) {
  std::string text = option.get_description();
  if (!takes_value(option)) return text;
  if (const std::string range = value_and_range(option).second; !range.empty()) text += str("; ", range);
  return text;
}

FlagHelp help_of(const CLI::Option& option) {
  FlagHelp help{.group = option.get_group(),
                .usage = option.get_name(false, true),
                .meaning = meaning_of(option),
                .default_value = "off"};
  if (!takes_value(option)) return help;
  help.usage += str(" ", value_and_range(option).first);
  help.default_value = option.get_default_str();
  if (help.default_value.starts_with('[')) {  // CLI11's form of a list
    help.default_value = help.default_value.substr(1, help.default_value.size() - 2);
    std::replace(help.default_value.begin(), help.default_value.end(), ' ', ',');
  }
  if (option.get_required()) help.default_value = "required";
  return help;
}

std::string cell(const std::string& text) {
  std::string escaped;
  for (const char letter : text) escaped += letter == '|' ? "\\|" : std::string(1, letter);
  return escaped;
}

std::string markdown_of(const CLI::App& command, const std::string& name) {
  std::string text = str("<!-- help: ", name, " -->\n", command.get_description(), ".\n\n");
  constexpr std::string_view kExample = "Example: ";
  const std::string example = command.get_footer();
  if (example.starts_with(kExample)) text += str("    ", example.substr(kExample.size()), "\n");
  std::string group;
  for (const FlagHelp& flag : flags_of(command)) {
    if (flag.group != group) text += str("\n## ", flag.group, "\n\n| flag | meaning | default |\n|---|---|---|\n");
    group = flag.group;
    text += str("| `", flag.usage, "` | ", cell(flag.meaning), " | ", cell(flag.default_value), " |\n");
  }
  return text + "<!-- end of help -->\n";
}

std::string markdown_below(const CLI::App& app, const std::string& name) {
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  if (commands.empty()) return markdown_of(app, name);
  std::string text;
  for (const CLI::App* command : commands) text += markdown_below(*command, str(name, " ", command->get_name()));
  return text;
}

}  // namespace

std::vector<FlagHelp> flags_of(const CLI::App& command) {
  std::vector<FlagHelp> flags;
  for (const std::string& group : command.get_groups())
    for (const CLI::Option* option : command.get_options())
      if (!group.empty() && option->get_group() == group && option != command.get_help_ptr() &&
          option != command.get_version_ptr())
        flags.push_back(help_of(*option));
  return flags;
}

std::string HelpFormatter::make_usage(const CLI::App* app, std::string name) const {
  std::string text = Formatter::make_usage(app, std::move(name));
  if (app->get_prefix_command()) text.insert(text.find_last_not_of('\n') + 1, " PROGRAM ARGUMENTS…");
  return text;
}

std::string HelpFormatter::make_option_opts(const CLI::Option* option) const {
  return takes_value(*option) ? str(" ", value_and_range(*option).first) : "";
}

std::string HelpFormatter::make_option_desc(const CLI::Option* option) const {
  const FlagHelp help = help_of(*option);
  if (!takes_value(*option) || help.default_value.empty()) return help.meaning;
  return str(help.meaning, " [", help.default_value, "]");
}

std::string markdown_help(const CLI::App& app) {
  return markdown_below(app, app.get_name());
}

bool asks_for_markdown_help(int argc, char** argv) {
  return argc == 2 && std::string_view(argv[1]) == "--markdown-help";
}

}  // namespace spillway::tools
