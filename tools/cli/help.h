/// The help of a program: lines for the terminal, and tables for the pages in docs/cli.
#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace spillway::tools {

/// One flag as its help shows it.
struct FlagHelp {
  std::string group;          ///< heading under which it stands
  std::string usage;          ///< its names and its value: `-n,--ranks N`
  std::string meaning;        ///< one line, with the allowed range
  std::string default_value;  ///< empty: none
};

/// Returns the flags of `command` in their order, without hidden ones and --help.
std::vector<FlagHelp> flags_of(const CLI::App& command);

/// Prints each flag as one line: names and value, meaning, allowed range, [default].
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }
  std::string make_usage(const CLI::App* app, std::string name) const override;
  std::string make_option_opts(const CLI::Option* option) const override;
  std::string make_option_desc(const CLI::Option* option) const override;
};

/// Returns, for each command of `app` that has none below it, its summary, its example, and a table of each group of
/// flags. Each command's text is between `<!-- help: NAME -->` and `<!-- end of help -->`; scripts/cli-docs puts it
/// into the page that has this comment.
std::string markdown_help(const CLI::App& app);

/// True when the arguments ask for markdown_help(): `--markdown-help` alone, which --help does not list.
bool asks_for_markdown_help(int argc, char** argv);

}  // namespace spillway::tools
