// LibTorch's CUDA allocator with a budget in front of it.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>

#include "core/device/borrowed_data.h"
#include "core/device/cuda_library.h"

namespace spillway::cuda {
namespace {

using namespace c10::cuda::CUDACachingAllocator;
using c10::DeviceIndex;
using c10::MempoolId_t;

/// An allocator that asks `tensors` for memory of one GPU before the native allocator is called, holding none of its
/// locks. All other calls go to the native allocator.
class BudgetAllocator final : public CUDAAllocator {
 public:
  BudgetAllocator(int index, CUDAAllocator* native, TensorMemory& tensors)
      : index_(static_cast<DeviceIndex>(index)), native_(native), tensors_(tensors) {}

  c10::DataPtr allocate(size_t bytes) override { return here() ? tensors_.allocate(bytes) : native_->allocate(bytes); }
  /// There is none: a deleter that takes a data pointer could not tell which memory is counted.
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { native_->copy_data(to, from, bytes); }
  void* raw_alloc(size_t bytes) override {
    return here() && bytes > 0 ? tensors_.allocate_raw(bytes) : native_->raw_alloc(bytes);
  }
  /// Asks the native allocator, because the memory is for a stream of the caller's, which the pager does not know.
  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    return native_->raw_alloc_with_stream(bytes, stream);
  }
  void raw_delete(void* data) override {
    if (!tensors_.release_raw(data)) native_->raw_delete(data);
  }
  /// Records the stream under the native allocator's own deleter, because it recognizes its memory by that deleter.
  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    if (data.get_deleter() != tensors_.deleter()) return native_->recordStream(data, stream);
    TORCH_CHECK(!tensors_.is_managed(data), "[cuda] a tensor of the unified engine is used on one stream; it cannot ",
                "be recorded for another");
    native_->recordStream(BorrowedData(data, native_->raw_deleter()).pointer(), stream);
  }

  bool initialized() override { return native_->initialized(); }
  void emptyCache(MempoolId_t pool) override { native_->emptyCache(pool); }
  DeviceStats getDeviceStats(DeviceIndex device) override { return native_->getDeviceStats(device); }
  void resetAccumulatedStats(DeviceIndex device) override { native_->resetAccumulatedStats(device); }
  void resetPeakStats(DeviceIndex device) override { native_->resetPeakStats(device); }
  std::pair<size_t, size_t> getMemoryInfo(DeviceIndex device) override { return native_->getMemoryInfo(device); }
  void init(int count) override { native_->init(count); }
  double getMemoryFraction(DeviceIndex device) override { return native_->getMemoryFraction(device); }
  void setMemoryFraction(double fraction, DeviceIndex device) override { native_->setMemoryFraction(fraction, device); }
  std::vector<StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    return native_->getExpandableSegmentSizes(device);
  }
  void enable(bool value) override { native_->enable(value); }
  bool isEnabled() const override { return native_->isEnabled(); }
  void cacheInfo(DeviceIndex device, size_t* largest) override { native_->cacheInfo(device, largest); }
  void* getBaseAllocation(void* data, size_t* size) override { return native_->getBaseAllocation(data, size); }
  SnapshotInfo snapshot(MempoolId_t pool, bool traces) override { return native_->snapshot(pool, traces); }
  void beginAllocateToPool(DeviceIndex device, MempoolId_t pool, std::function<bool(cudaStream_t)> filter) override {
    native_->beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(DeviceIndex device, MempoolId_t pool) override { native_->endAllocateToPool(device, pool); }
  void releasePool(DeviceIndex device, MempoolId_t pool) override { native_->releasePool(device, pool); }
  int getPoolUseCount(DeviceIndex device, MempoolId_t pool) override { return native_->getPoolUseCount(device, pool); }
  void createOrIncrefPool(DeviceIndex device, MempoolId_t pool, std::shared_ptr<CUDAAllocator> allocator) override {
    native_->createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(DeviceIndex device, MempoolId_t pool, bool use) override { native_->setUseOnOOM(device, pool, use); }
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override { native_->setNoSplit(device, pool); }
  bool checkPoolLiveAllocations(DeviceIndex device, MempoolId_t pool, const std::unordered_set<void*>& live) override {
    return native_->checkPoolLiveAllocations(device, pool, live);
  }
  ShareableHandle shareIpcHandle(void* data) override { return native_->shareIpcHandle(data); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return native_->getIpcDevPtr(std::move(handle)); }
  bool isHistoryEnabled() override { return native_->isHistoryEnabled(); }
  void recordHistory(bool enabled, CreateContextFn recorder, size_t entries, RecordContext when, bool clear,
                     const std::vector<std::string>& skip) override {
    native_->recordHistory(enabled, recorder, entries, when, clear, skip);
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& notes) override {
    native_->recordAnnotation(notes);
  }
  void pushCompileContext(std::string& context) override { native_->pushCompileContext(context); }
  void popCompileContext() override { native_->popCompileContext(); }
  void setUserMetadata(const std::string& metadata) override { native_->setUserMetadata(metadata); }
  std::string getUserMetadata() override { return native_->getUserMetadata(); }
  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override {
    native_->attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
    native_->attachAllocatorTraceTracker(std::move(tracker));
  }
  void enablePeerAccess(DeviceIndex device, DeviceIndex to) override { native_->enablePeerAccess(device, to); }
  cudaError_t memcpyAsync(void* to, int to_device, const void* from, int from_device, size_t bytes, cudaStream_t stream,
                          bool peers) override {
    return native_->memcpyAsync(to, to_device, from, from_device, bytes, stream, peers);
  }
  std::shared_ptr<AllocatorState> getCheckpointState(DeviceIndex device, MempoolId_t pool) override {
    return native_->getCheckpointState(device, pool);
  }
  CheckpointDelta setCheckpointPoolState(DeviceIndex device, std::shared_ptr<AllocatorState> state) override {
    return native_->setCheckpointPoolState(device, std::move(state));
  }
  std::string name() override { return native_->name(); }

 private:
  bool here() const { return c10::cuda::current_device() == index_; }

  const DeviceIndex index_;
  CUDAAllocator* const native_;
  TensorMemory& tensors_;
};

}  // namespace

WrappedAllocator wrap_allocator(int index, TensorMemory& tensors) {
  CUDAAllocator* native = get();
  auto* wrapper = new BudgetAllocator(index, native, tensors);
  allocator.store(wrapper);
  c10::SetAllocator(c10::kCUDA, wrapper, /*priority=*/255);
  return {native, wrapper};
}

}  // namespace spillway::cuda
