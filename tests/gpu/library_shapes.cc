#include "tests/gpu/library_shapes.h"

#include "models/shard_plan.h"
#include "runtime/base/reduce_tree.h"

namespace shoal::gpu {

std::vector<ProductShape> products_of(const ModelShape& model) {
  const int head = model.hidden / model.heads;
  const int leaves = leaf_count(model.heads, DeviceKind::kCuda);
  return {{"qkv", (model.heads + 2 * model.kv_heads) * head, model.hidden, 1, 1, true},
          {"o", model.hidden, model.heads * head, leaves, model.heads, true},
          {"gate_up", 2 * model.intermediate, model.hidden, 1, 1, true},
          {"down", model.hidden, model.intermediate, leaves, model.intermediate / kMlpUnitColumns,
           true},
          {"lm_head", model.vocabulary, model.hidden, 1, 1, false}};
}

DeviceMatrix matrix_of(const ProductShape& shape) {
  DeviceMatrix matrix;
  matrix.outputs = shape.outputs;
  matrix.stride = shape.columns;
  const int unit = shape.columns / shape.units;
  const ReducePlan plan = make_reduce_plan(shape.leaves, shape.units, 1);
  for (const auto& step : plan.ranks[0].steps) {
    const Range units = leaf_units(step.leaf, shape.leaves, shape.units);
    const int begin = units.begin * unit;
    matrix.leaf[matrix.leaves++] = {begin, units.end * unit, begin, step.merges, step.contribution};
  }
  return matrix;
}

}  // namespace shoal::gpu
