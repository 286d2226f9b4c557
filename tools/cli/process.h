/// The start of child processes, and the pipes to them.
#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace spillway::tools {

/// A file descriptor that its destructor closes. -1: none.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() { close(); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  void close();
  void set(int number) { number_ = number; }
  int number() const { return number_; }
  /// Returns the number, which the caller then closes.
  int release();

 private:
  int number_;
};

/// A pipe whose ends no child inherits unless it is given them. Throws std::system_error.
struct Pipe {
  Descriptor from, to;
  Pipe();
};

/// The descriptors that a child gets as its input, output and errors; -1: those of this process.
struct Streams {
  int in = -1, out = -1, err = -1;
};

/// Returns pointers to `words` and a null behind them, as exec() takes them. `words` must outlive the result.
std::vector<char*> arguments_of(std::vector<std::string>& words);

/// Starts the program `file` and returns the child's number, for waitpid(). `words` are its arguments, its name
/// included. The child gets `signal_at_our_end` when this process ends; 0: nothing. It exits with 127 where `file`
/// cannot run. Throws std::system_error when there can be no child.
pid_t start_process(const std::string& file, std::vector<std::string> words, const Streams& streams,
                    int signal_at_our_end = 0);

}  // namespace spillway::tools
