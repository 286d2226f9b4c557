/// The parts of a page around its content.
#pragma once
#include <string>
#include <string_view>

namespace spillway::report {

/// Returns a page up to its content, in HTML that is well-formed XML too. `title` is not yet escaped; `css` is added to
/// the style sheet.
std::string open_page(std::string_view title, std::string_view css = "");
/// Returns the rest of a page whose recorded step is in trace.json beside it.
std::string close_page();

}  // namespace spillway::report
