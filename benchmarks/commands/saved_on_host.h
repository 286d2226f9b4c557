/// Methods to compare paging with: every tensor that autograd saves goes to host memory.
#pragma once

namespace spillway::tools {

/// How saved tensors travel between a GPU and pinned host memory.
enum class HostCopies {
  blocking,      ///< torch.autograd.graph.save_on_cpu(pin_memory=True): the host waits for each copy out
  non_blocking,  ///< copies like these in the GPU's own order, for which the host does not wait
  /// Copies on streams beside the operators. Reading a saved tensor starts the copy of the one that was saved before
  /// it, which backward most likely reads next. Parameters, and tensors below 64 KiB, stay on the GPU.
  one_ahead,
};

/// A scope in which tensors that autograd saves are copied to host memory. They are copied back when backward reads
/// them, or one ahead. The saved tensors stay there until the backward pass of the computation. On the CPU all ways
/// copy as `blocking` does. The first scope replaces the process's autograd engine. Thread: one at a time.
class SavedOnHost {
 public:
  explicit SavedOnHost(HostCopies copies);
  ~SavedOnHost();
  SavedOnHost(const SavedOnHost&) = delete;
  SavedOnHost& operator=(const SavedOnHost&) = delete;
};

}  // namespace spillway::tools
