#include "tests/gpu/paged_problem.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "tests/conformance/tree_cases.h"

namespace shoal::gpu {
namespace {

void add_idle_row(PagedStep& step, int32_t sequence, int32_t position) {
  step.sequence.push_back(sequence);
  step.position.push_back(position);
}

}  // namespace

PagedStep make_step(const std::vector<Stretch>& stretches, uint64_t seed, bool idle_rows) {
  PagedStep step;
  for (const Stretch& stretch : stretches) {
    const int blocks = (stretch.first_position + stretch.rows - 1) / kBlockTokens + 1;
    step.table_stride = std::max(step.table_stride, blocks);
  }
  const auto sequences = static_cast<int>(stretches.size());
  step.blocks = sequences * step.table_stride;
  step.block_table.resize(static_cast<size_t>(step.blocks));
  std::iota(step.block_table.begin(), step.block_table.end(), 0);
  Pattern pattern(seed);
  for (size_t i = step.block_table.size(); seed != 0 && i > 1; --i)
    std::swap(step.block_table[i - 1], step.block_table[pattern.below(i)]);
  for (int i = 0; i < sequences; ++i) {
    if (idle_rows) add_idle_row(step, i % 2 == 0 ? -1 : sequences, 0);
    const Stretch& stretch = stretches[static_cast<size_t>(i)];
    step.first_row.push_back(step.rows());
    step.row_count.push_back(stretch.rows);
    for (int row = 0; row < stretch.rows; ++row) {
      step.sequence.push_back(i);
      step.position.push_back(stretch.first_position + row);
    }
  }
  if (idle_rows) {
    add_idle_row(step, 0, -1);
    add_idle_row(step, 0, step.table_stride * kBlockTokens);
    add_idle_row(step, std::numeric_limits<int32_t>::min(), 3);
  }
  return step;
}

ShoalStepRows put_step(Bench& bench, const PagedStep& step) {
  return {step.rows(),
          static_cast<int32_t>(step.first_row.size()),
          bench.put(step.position),
          bench.put(step.sequence),
          bench.put(step.first_row),
          bench.put(step.row_count),
          bench.put(step.block_table),
          step.table_stride};
}

size_t place_in_cache(const PagedStep& step, int sequence, int position, int kv_head, bool value,
                      int kv_heads, int head_dim) {
  const auto tile = static_cast<size_t>(step.block_of(sequence, position) * kv_heads + kv_head);
  const auto token = static_cast<size_t>(position % kBlockTokens + (value ? kBlockTokens : 0));
  return (tile * 2 * kBlockTokens + token) * static_cast<size_t>(row_elements(head_dim));
}

}  // namespace shoal::gpu
