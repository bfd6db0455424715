#include "runtime/comm/single_communicator.h"

#include <algorithm>
#include <vector>

#include "runtime/comm/check_arguments.h"
#include "runtime/comm/tree_sum.h"

namespace shoal {
namespace {

class SingleCommunicator final : public Communicator {
 public:
  const char* name() const override { return "single"; }
  World world() const override { return {}; }

  Status all_reduce(const ReducePlan& plan, const float* own, float* out, size_t count) override {
    SHOAL_RETURN_IF_ERROR(check_plan(plan, world()));
    planes_.clear();
    for (int plane = 0; plane < plan.total_contributions(); ++plane)
      planes_.push_back(own + plane * count);
    tree_sum(plan.finish, planes_, out, count);
    return {};
  }

  Status gather(int root, std::span<const std::byte> mine, std::span<const size_t> sizes,
                std::byte* out) override {
    SHOAL_RETURN_IF_ERROR(check_gather(root, mine.size(), sizes, world()));
    if (mine.data() != out) std::copy(mine.begin(), mine.end(), out);
    return {};
  }

  Status barrier() override { return {}; }
  WaitState wait_state() const override { return {}; }

 private:
  std::vector<const float*> planes_;
};

}  // namespace

std::unique_ptr<Communicator> make_single_communicator() {
  return std::make_unique<SingleCommunicator>();
}

}  // namespace shoal
