#include "tools/cli/write_json.h"

#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

namespace spillway::tools {

void write_json(const nlohmann::json& value, const std::string& file) {
  std::ofstream out(file);
  out << value.dump(2) << "\n";
  out.flush();
  if (!out) throw std::system_error(errno ? errno : EIO, std::generic_category(), "cannot write '" + file + "'");
}

}  // namespace spillway::tools
