/// A method to compare paging with: every tensor that autograd saves goes to host memory.
#pragma once

namespace spillway::tools {

/// A scope in which tensors that autograd saves are copied to host memory (pinned, for those of a GPU). They are copied
/// back when they are read: torch.autograd.graph.save_on_cpu in C++. The saved tensors stay there until the backward
/// pass of the computation. The copies do not overlap with anything. The first scope replaces the process's autograd
/// engine. Thread: one at a time.
class SavedOnHost {
 public:
  SavedOnHost();
  ~SavedOnHost();
  SavedOnHost(const SavedOnHost&) = delete;
  SavedOnHost& operator=(const SavedOnHost&) = delete;
};

}  // namespace spillway::tools
