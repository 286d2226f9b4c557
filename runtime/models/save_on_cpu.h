/// What others do for the same end, to be compared with: every tensor that autograd saves goes to host memory.
#pragma once

namespace spillway {

/// While it lives, and until the backward pass of what was computed meanwhile, tensors that autograd saves are copied
/// to host memory (pinned, for those of a card) and back when they are read: torch.autograd.graph.save_on_cpu in C++.
/// The copies do not overlap with anything. Replaces the process's autograd engine at the first use. Thread: one at a
/// time.
class SavedOnHost {
 public:
  SavedOnHost();
  ~SavedOnHost();
  SavedOnHost(const SavedOnHost&) = delete;
  SavedOnHost& operator=(const SavedOnHost&) = delete;
};

}  // namespace spillway
