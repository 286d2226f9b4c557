#include "runtime/pictures/page_frame.h"

#include "core/category.h"
#include "core/error.h"
#include "core/program.h"
#include "runtime/pictures/style.h"
#include "runtime/pictures/text.h"

namespace spillway::report {

std::string open_page(std::string_view title, std::string_view css) {
  std::string out = str(
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\"/>\n",
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>Spillway: ", escape(title),
      "</title>\n<style>", kStyle);
  for (size_t c = 0; c < kCategoryCount; ++c) {
    const std::string_view category = name(static_cast<Category>(c));
    out += str(".c-", category, " { fill: var(--", category, "); background: var(--", category, "); }\n");
  }
  return str(out, css, "</style>\n</head>\n<body>\n<main>\n");
}

std::string close_page() {
  return str("<footer>Spillway ", kVersion, ". 1 GiB is 2<sup>30</sup> bytes. trace.json, beside this page, opens in ",
             "Perfetto and chrome://tracing.</footer>\n</main>\n</body>\n</html>\n");
}

}  // namespace spillway::report
