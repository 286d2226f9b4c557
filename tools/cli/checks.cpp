#include "tools/cli/checks.h"

#include <vector>

namespace spillway::tools {
namespace {

/// Names the first option among the arguments that no command took, or else the first of them.
std::string unexpected(const CLI::App& app, const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments)
    if (argument.starts_with('-')) return "unknown option: " + argument;
  const auto all = [](const CLI::App*) { return true; };
  if (!app.get_subcommands().empty() || app.get_subcommands(all).empty())
    return "unknown argument: " + arguments.front();
  std::string allowed;
  for (const CLI::App* command : app.get_subcommands(all))
    allowed += (allowed.empty() ? "" : ", ") + command->get_name();
  return "unknown command: " + arguments.front() + "; allowed: " + allowed;
}

}  // namespace

void refuse_empty_values(CLI::App& app) {
  const CLI::Validator not_empty(
      [](std::string& text) { return text.empty() ? "'' is empty; allowed is a value, or to leave the flag out" : ""; },
      "");
  for (CLI::Option* option : app.get_options(nullptr))
    if (option->get_items_expected_max() != 0) option->transform(not_empty);  // ahead of other checks
  for (CLI::App* command : app.get_subcommands([](CLI::App*) { return true; })) refuse_empty_values(*command);
}

std::string failure_text(const CLI::App& app, const CLI::Error& error, const std::string& program) {
  const std::vector<std::string> arguments = app.remaining(/*recurse=*/true);
  const int code = error.get_exit_code();
  // CLI11 misses a command before it looks at the arguments that it did not understand.
  const bool unknown =
      code == static_cast<int>(CLI::ExitCodes::ExtrasError) || code == static_cast<int>(CLI::ExitCodes::RequiredError);
  const std::string text = unknown && !arguments.empty() ? unexpected(app, arguments) : error.what();
  return program + ": " + text + " (see --help)\n";
}

}  // namespace spillway::tools
