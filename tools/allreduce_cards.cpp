#include "tools/allreduce_cards.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>

#include <stdexcept>

#include "core/error.h"
#include "ddl/card_operators.h"
#include "ddl/tensors.h"
#include "tools/allreduce_values.h"

namespace spillway::tools {
namespace {

at::ScalarType type_of(ddl::Element element) {
  for (const auto type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong})
    if (ddl::element_of(at::empty({0}, at::TensorOptions(type)), "bench allreduce") == element) return type;
  throw std::logic_error("an element of no known type");
}

class CardVectors final : public Vectors {
 public:
  CardVectors(const ddl::Comm& comm, ddl::Cards& cards, c10::Device card, const Problem& problem)
      : comm_(comm),
        cards_(cards),
        staged_(*comm->communicator, []() -> ddl::DeviceNetwork* { throw std::runtime_error("this is asked for"); }),
        problem_(problem),
        levels_(ddl::goes_by_network(problem.element, problem.reduction) ? cards.levels(card) : nullptr),
        out_(at::empty({problem.count}, at::TensorOptions(type_of(problem.element)).device(card))),
        in_(at::empty_like(out_)) {
    auto values = contribution(problem.element, comm->communicator->rank(), problem.count);
    in_.copy_(at::from_blob(values.data(), in_.sizes(), in_.scalar_type()));
  }

  void spoil() override { out_.view(at::kByte).fill_(0xff); }
  void refill() override { out_.copy_(in_); }
  void wait() override { ddl::recorded(out_.device()).wait(); }
  std::span<const std::byte> result() override {
    on_host_ = out_.cpu();
    return ddl::bytes_of(on_host_);
  }

  std::vector<Way> ways() override {
    std::vector<Way> ways{operator_over("levels", cards_)};
    const bool sums_16_bits = ddl::partial_bytes(problem_.element) != ddl::element_bytes(problem_.element);
    if (levels_ && !sums_16_bits && problem_.reduction != ddl::Reduction::average)
      ways.push_back({.name = "nccl", .reduce = [this](bool in_place) {
                        levels_->all_reduce((in_place ? out_ : in_).data_ptr(), out_.data_ptr(), problem_.count,
                                            problem_.element, problem_.reduction);
                      }});
    if (levels_) ways.push_back(operator_over("staged", staged_));
    return ways;
  }

 private:
  Way operator_over(std::string name, ddl::Cards& cards) {
    return {.name = std::move(name), .reduce = [this, &cards](bool in_place) {
              if (!in_place) refill();
              ddl::allreduce_on_cards(out_, comm_, cards, problem_.reduction);
            }};
  }

  const ddl::Comm comm_;
  ddl::Cards& cards_;
  ddl::Cards staged_;
  const Problem problem_;
  ddl::DeviceLevels* const levels_;  ///< null: staged
  const at::Tensor out_, in_;
  at::Tensor on_host_;
};

}  // namespace

std::string decision(ddl::Cards& cards, c10::Device card, const Problem& problem) {
  (void)cards.levels(card);
  if (ddl::goes_by_network(problem.element, problem.reduction)) return cards.decision();
  return str("staged on the host: the ", ddl::name_of(problem.reduction), " of ", ddl::name_of(problem.element),
             " is the CPU's");
}

std::unique_ptr<Vectors> vectors_on_card(const ddl::Comm& comm, ddl::Cards& cards, c10::Device card,
                                         const Problem& problem) {
  return std::make_unique<CardVectors>(comm, cards, card, problem);
}

}  // namespace spillway::tools
