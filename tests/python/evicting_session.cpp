// A Session for tests of operators: everything leaves the device after every operator, however small.
#include <torch/csrc/utils/pybind.h>

#include <memory>
#include <optional>

#include "swap/session.h"
#include "tests/support/checking_observers.h"

namespace {

class EvictingSession {
 public:
  EvictingSession()
      : session_(std::in_place,
                 spillway::SessionOptions{.min_page_bytes = 1,
                                          .split_bytes = spillway::kUnlimitedBytes,
                                          .observer = std::make_shared<spillway::testing::EvictEverything>()}) {}
  void close() { session_.reset(); }
  int64_t page_outs() const { return session_->stats().pager.page_outs; }

 private:
  std::optional<spillway::Session> session_;
};

}  // namespace

PYBIND11_MODULE(evicting_session, module) {
  pybind11::class_<EvictingSession>(module, "EvictingSession")
      .def(pybind11::init())
      .def("close", &EvictingSession::close)
      .def("page_outs", &EvictingSession::page_outs);
}
