/// A pointer of LibTorch's to memory that somebody else frees.
#pragma once
#include <c10/core/Allocator.h>

namespace spillway {

/// A DataPtr to memory that another DataPtr owns, under another deleter, which it never calls. Allocators recognize
/// their memory by its deleter. Lives shorter than the owner.
class BorrowedData {
 public:
  BorrowedData(const c10::DataPtr& owner, c10::DeleterFnPtr deleter)
      : data_(owner.get(), owner.get(), deleter, owner.device()) {}
  BorrowedData(const BorrowedData&) = delete;
  BorrowedData& operator=(const BorrowedData&) = delete;
  ~BorrowedData() { data_.release_context(); }

  const c10::DataPtr& pointer() const noexcept { return data_; }

 private:
  c10::DataPtr data_;
};

}  // namespace spillway
