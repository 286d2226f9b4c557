#include "benchmarks/allreduce/host.h"

#include <algorithm>
#include <limits>

#include "benchmarks/allreduce/inputs.h"
#include "ddl/allreduce/allreduce.h"
#include "ddl/allreduce/explain.h"
#include "ddl/allreduce/owner_reduction.h"
#include "ddl/comm/collectives.h"

namespace spillway::tools {
namespace {

using ddl::Allreduce, ddl::Choice, ddl::Communicator, ddl::Costs, ddl::Levels, ddl::Plan;
using nlohmann::json;

/// Memory that begins at a known distance from the start of a page.
class PlacedMemory {
 public:
  PlacedMemory(int64_t bytes, int64_t offset) : storage_(bytes + offset + kPage) {
    void* begin = storage_.data();
    size_t room = storage_.size();
    std::align(kPage, storage_.size() - kPage, begin, room);
    bytes_ = {static_cast<std::byte*>(begin) + offset, static_cast<size_t>(bytes)};
  }
  PlacedMemory(const PlacedMemory&) = delete;
  PlacedMemory& operator=(const PlacedMemory&) = delete;
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  static constexpr size_t kPage = 4096;
  std::vector<std::byte> storage_;
  std::span<std::byte> bytes_;
};

/// Makes the plan in which all ranks send to their host's first rank, these ranks reduce around a ring, and send back.
Plan leader_plan(const Levels& levels) {
  std::vector<ddl::Algorithm> algorithms(levels.count(), ddl::Algorithm::ring);
  if (!algorithms.empty()) algorithms.front() = ddl::Algorithm::leader;
  return Plan(levels, algorithms);
}

json to_json(const ddl::Explanation& explanation) {
  json by_level = json::array();
  for (const auto& level : explanation.levels)
    by_level.push_back({{"algorithm", ddl::name_of(level.algorithm)},
                        {"sent_by_rank_bytes", level.traffic.sent_by_rank},
                        {"sent_by_group_bytes", level.traffic.sent_by_group},
                        {"least_bytes", level.least_bytes},
                        {"bound_seconds", level.bound_seconds.value_or(0)},
                        {"predicted_seconds", level.predicted_seconds.value_or(0)},
                        {"waited_seconds", level.waited_seconds.value_or(0)}});
  return {{"by_level", by_level}, {"explanation", ddl::describe(explanation)}};
}

class HostVectors final : public Vectors {
 public:
  HostVectors(ddl::MpiRuntime& mpi, Communicator& comm, const Costs& costs, const Problem& problem, bool keep_order)
      : mpi_(mpi),
        comm_(comm),
        costs_(costs),
        problem_(problem),
        keep_order_(keep_order),
        input_(problem.input(comm.rank(), comm.size())),
        in_memory_(input_.size() * element_bytes(), problem.offset_bytes),
        out_memory_(problem.bytes(), problem.offset_bytes),
        in_(in_memory_.bytes()),
        out_(out_memory_.bytes()),
        result_(out_) {
    contribute(in_memory_.bytes(), problem.element, owner(), input_.begin);
    for (int rank = 0; rank < comm.size(); ++rank)
      parts_.push_back(ddl::part_of({0, problem.count}, rank, comm.size()));
  }

  void spoil() override { std::fill(out_.begin(), out_.end(), std::byte{0xff}); }
  void refill() override {
    spoil();
    copy_input();
  }
  void wait() override {}
  std::span<const std::byte> result() override { return result_; }

  std::vector<Way> ways() override {
    switch (problem_.collective) {
      case Collective::reduce_scatter:
        return ways_of_reduce_scatter();
      case Collective::all_gather:
        return ways_of_all_gather();
      case Collective::broadcast:
        return ways_of_broadcast();
      default:
        return ways_of_allreduce();
    }
  }

 private:
  int64_t element_bytes() const { return ddl::element_bytes(problem_.element); }
  int owner() const { return problem_.collective == Collective::broadcast ? kRoot : comm_.rank(); }
  std::span<std::byte> of_out(ddl::Range elements) const {
    return out_.subspan(elements.begin * element_bytes(), elements.size() * element_bytes());
  }
  std::span<std::byte> own_part() const { return of_out(parts_[comm_.rank()]); }
  void copy_input() { std::copy(in_.begin(), in_.end(), of_out(input_).begin()); }

  std::vector<Way> ways_of_allreduce() {
    std::vector<Way> ways{by_levels()};
    if (mpi_reduces())
      ways.push_back({.name = "mpi", .reduce = [this](bool in_place) {
                        mpi_.allreduce(in_place ? out_ : in_, out_, problem_.element, problem_.reduction);
                      }});
    ways.push_back(by("ring", std::make_shared<Allreduce>(comm_, Plan(Levels(comm_.size()), ddl::Algorithm::ring))));
    ways.push_back(by("leader", std::make_shared<Allreduce>(comm_, leader_plan(comm_.levels()))));
    return ways;
  }

  std::vector<Way> ways_of_reduce_scatter() {
    const auto home = owner_reduction();
    const auto scratch = std::make_shared<std::vector<std::byte>>(home->reduce_scratch_bytes());
    std::vector<Way> ways{{.name = "levels", .reduce = [this, home, scratch](bool in_place) {
                             if (!in_place) copy_input();
                             home->reduce(out_, problem_.reduction, *scratch);
                             result_ = own_part();
                           }}};
    if (mpi_reduces() && in_ints())
      ways.push_back({.name = "mpi", .reduce = [this, counts = counts()](bool in_place) {
                        result_ = in_place ? out_.first(own_part().size()) : own_part();
                        mpi_.reduce_scatter(in_place ? out_ : in_, result_, counts, problem_.element,
                                            problem_.reduction);
                      }});
    return ways;
  }

  std::vector<Way> ways_of_all_gather() {
    const auto home = owner_reduction();
    std::vector<Way> ways{{.name = "levels", .reduce = [this, home](bool in_place) {
                             if (!in_place) copy_input();
                             home->gather(out_);
                           }}};
    if (in_ints())
      ways.push_back({.name = "mpi", .reduce = [this, counts = counts()](bool in_place) {
                        mpi_.all_gather(in_place ? own_part() : in_, out_, counts, problem_.element);
                      }});
    return ways;
  }

  std::vector<Way> ways_of_broadcast() {
    return {{.name = "tree",
             .reduce =
                 [this](bool in_place) {
                   if (!in_place) copy_input();
                   ddl::broadcast(comm_, out_, kRoot);
                 }},
            {.name = "mpi", .reduce = [this](bool in_place) {
               if (!in_place) copy_input();
               mpi_.broadcast(out_, kRoot);
             }}};
  }

  bool mpi_reduces() const { return ddl::MpiRuntime::reduces(problem_.element, problem_.reduction); }
  /// True when the counts fit int, because MPI counts elements, and where they begin, in int.
  bool in_ints() const { return problem_.count <= std::numeric_limits<int>::max(); }
  std::vector<int> counts() const {
    std::vector<int> counts;
    for (const ddl::Range& part : parts_) counts.push_back(part.size());
    return counts;
  }

  Choice choice() const { return ddl::choose(comm_.levels(), problem_.bytes(), costs_, keep_order_); }

  std::shared_ptr<ddl::OwnerReduction> owner_reduction() const {
    return std::make_shared<ddl::OwnerReduction>(comm_, problem_.count, problem_.element,
                                                 ddl::equal_parts(problem_.count, comm_.size()),
                                                 choice().options.segment_bytes);
  }

  Way by(std::string name, const std::shared_ptr<Allreduce>& allreduce) {
    return {.name = std::move(name), .reduce = [this, allreduce](bool in_place) {
              allreduce->reduce({in_place ? out_ : in_, out_, problem_.element}, problem_.reduction);
            }};
  }

  Way by_levels() {
    const Choice best = choice();
    const auto allreduce = std::make_shared<Allreduce>(comm_, best.plan, best.options);
    Way way = by("levels", allreduce);
    way.more = {{"plan", best.plan.name()},
                {"chunk_bytes", best.options.chunk_bytes},
                {"predicted_seconds", ddl::predict_seconds(best, problem_.count, problem_.element, costs_)}};
    way.explain = [this, best, allreduce] {
      return to_json(ddl::explain(best, problem_.count, problem_.element, costs_, allreduce->totals()));
    };
    return way;
  }

  ddl::MpiRuntime& mpi_;
  Communicator& comm_;
  const Costs& costs_;
  const Problem problem_;
  const bool keep_order_;
  const ddl::Range input_;
  const PlacedMemory in_memory_, out_memory_;
  const std::span<const std::byte> in_;  ///< the elements of input_
  const std::span<std::byte> out_;       ///< the whole vector
  std::span<std::byte> result_;          ///< the result of the last call
  std::vector<ddl::Range> parts_;
};

}  // namespace

std::unique_ptr<Vectors> vectors_on_host(ddl::MpiRuntime& mpi, Communicator& comm, const Costs& costs,
                                         const Problem& problem, bool keep_order) {
  return std::make_unique<HostVectors>(mpi, comm, costs, problem, keep_order);
}

}  // namespace spillway::tools
