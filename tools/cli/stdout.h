/// The end of what a program prints.
#pragma once

namespace spillway::tools {

/// Returns the exit code of a program that ends with `code`. It is kFailure in place of kOk when not all of stdout
/// could be written, as on a full disk. A line on stderr then says so, under `program`'s name.
int close_stdout(int code, const char* program);

}  // namespace spillway::tools
