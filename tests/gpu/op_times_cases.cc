// How long each op of a model's step takes on the device, and what that is beside the rates of its
// memory and its tensor cores: what to look at when a step takes longer than its products. The ops
// are those that models/cuda_layers.cc enqueues for one rank with bfloat16 weights. Each runs many
// times in a row. Products have several copies of their weights, but what the others read stays the
// same, so that a device's cache may hold it, and they may take longer in a step. What a call takes
// of the host is shown too. Where it is nearly all of the time, the device waits for the host, and
// the op itself takes less.
#include <cmath>
#include <cstdio>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "bench/gpu/rank_processes.h"
#include "models/device_buffers.h"
#include "models/device_ops.h"
#include "tests/gpu/gpu_cases.h"
#include "tests/gpu/layer_problem.h"
#include "tests/gpu/library_shapes.h"
#include "tests/gpu/paged_problem.h"
#include "tests/gpu/timing.h"

namespace shoal::gpu {
namespace {

constexpr int kSeconds = 280;  // for all of it

/// A step of sequences that have equally many rows, of which the last one is at position
/// context - 1.
struct StepKind {
  const char* name;
  int sequences, rows, context;
  int all_rows() const { return sequences * rows; }
};
constexpr StepKind kSteps[] = {
    {"decode of 1", 1, 1, 512}, {"decode of 32", 32, 1, 512}, {"prefill of 2048", 1, 2048, 2048}};
constexpr StepKind kTinyStep{"tiny", 2, 3, 70};

/// One op of a step, and the least that it moves and computes.
struct Op {
  const char* name;
  int of_layer;  ///< how often a layer has it; 0: only the step has it, once
  double bytes;  ///< read or written
  double flops;  ///< of products
  Work enqueue;
};

/// The ops of a step, with memory of random numbers.
class StepOps {
 public:
  StepOps(OneDevice& one, const ModelShape& model, const StepKind& step, int64_t weight_bytes)
      : one_(one), bench_(one), model_(model), step_(step), weight_bytes_(weight_bytes) {}

  /// Makes the ops, in the order in which a step runs them.
  Result<std::vector<Op>> prepare();

 private:
  static constexpr int32_t kType = kShoalBf16;
  int head_dim() const { return model_.hidden / model_.heads; }
  double rows() const { return step_.all_rows(); }
  Result<void*> random(Dtype type, int64_t count);
  Result<void*> results(int64_t bytes);

  Status add_embed();
  Status add_norm();
  Status add_product(const ProductShape& shape);
  Status add_qkv();
  Status add_attention();
  Status add_silu_mul();
  Status add_add_norm(const ProductShape& product);
  Status add_argmax();
  /// An op of the module that is always called with the same arguments.
  template <class Args>
  void add(const char* name, int of_layer, double bytes, double flops,
           int32_t (*op)(const Args*, void*), const Args& args);

  OneDevice& one_;
  Bench bench_;
  const ModelShape& model_;
  const StepKind& step_;
  const int64_t weight_bytes_;
  std::vector<Device::Memory> memory_;
  std::vector<Op> ops_;
  ShoalStepRows rows_{};
  ShoalKvLayer cache_{};
};

Result<void*> StepOps::random(Dtype type, int64_t count) {
  SHOAL_ASSIGN_OR_RETURN(Device::Memory memory,
                         random_elements(one_, type, count, memory_.size() + 1));
  memory_.push_back(std::move(memory));
  return memory_.back().get();
}

Result<void*> StepOps::results(int64_t bytes) {
  SHOAL_ASSIGN_OR_RETURN(Device::Memory memory,
                         one_.device->allocate_raw(static_cast<size_t>(bytes)));
  memory_.push_back(std::move(memory));
  return memory_.back().get();
}

template <class Args>
void StepOps::add(const char* name, int of_layer, double bytes, double flops,
                  int32_t (*op)(const Args*, void*), const Args& args) {
  ops_.push_back({name, of_layer, bytes, flops, [this, name, op, args](int /*call*/) {
                    return one_.device->enqueue(op, args, one_.stream.get(), name);
                  }});
}

Result<std::vector<Op>> StepOps::prepare() {
  const std::vector<Stretch> stretches(static_cast<size_t>(step_.sequences),
                                       {step_.context - step_.rows, step_.rows});
  const PagedStep paged = make_step(stretches, 5);
  rows_ = put_step(bench_, paged);
  if (!bench_.ok()) return Status::error(Code::kInternal, bench_.wrong());
  cache_ = {nullptr, kType, model_.kv_heads, head_dim()};
  SHOAL_ASSIGN_OR_RETURN(
      cache_.data, random(Dtype::kBf16, static_cast<int64_t>(
                                            cache_elements(paged, model_.kv_heads, head_dim()))));
  const std::vector<ProductShape> products = products_of(model_);
  SHOAL_RETURN_IF_ERROR(add_embed());
  SHOAL_RETURN_IF_ERROR(add_norm());
  for (const ProductShape& product : products) {
    const std::string_view name = product.name;
    SHOAL_RETURN_IF_ERROR(add_product(product));
    if (name == "qkv") SHOAL_RETURN_IF_ERROR(add_qkv());
    if (name == "qkv") SHOAL_RETURN_IF_ERROR(add_attention());
    if (name == "o") SHOAL_RETURN_IF_ERROR(add_add_norm(product));
    if (name == "gate_up") SHOAL_RETURN_IF_ERROR(add_silu_mul());
  }
  SHOAL_RETURN_IF_ERROR(add_argmax());
  return std::move(ops_);
}

Status StepOps::add_embed() {
  ShoalEmbed args{};
  args.type = kType;
  args.rows = step_.all_rows();
  args.hidden = model_.hidden;
  args.vocabulary = model_.vocabulary;
  std::vector<int32_t> ids;
  for (int row = 0; row < args.rows; ++row) ids.push_back(row * 7 % args.vocabulary);
  args.ids = bench_.put(ids);
  if (!bench_.ok()) return Status::error(Code::kInternal, bench_.wrong());
  SHOAL_ASSIGN_OR_RETURN(args.table,
                         random(Dtype::kBf16, int64_t{model_.vocabulary} * model_.hidden));
  SHOAL_ASSIGN_OR_RETURN(void* const out, results(int64_t{args.rows} * args.hidden * 4));
  args.out = static_cast<float*>(out);
  add("embed", 0, rows() * args.hidden * 6, 0, bench_.module().embed, args);
  return {};
}

/// The norm before the first layer. The one before the logits has fewer rows.
Status StepOps::add_norm() {
  ShoalRmsNorm args{};
  args.type = kType;
  args.rows = step_.all_rows();
  args.cols = model_.hidden;
  args.eps = 1e-5f;
  args.out_stride = model_.hidden;
  SHOAL_ASSIGN_OR_RETURN(void* const x, random(Dtype::kF32, int64_t{args.rows} * args.cols));
  SHOAL_ASSIGN_OR_RETURN(void* const weight, random(Dtype::kF32, args.cols));
  SHOAL_ASSIGN_OR_RETURN(args.out, results(int64_t{args.rows} * args.cols * 2));
  args.x = static_cast<float*>(x);
  args.weight = static_cast<float*>(weight);
  add("rms_norm", 0, rows() * args.cols * 6, 0, bench_.module().rms_norm, args);
  return {};
}

/// With several copies of the weights, which take turns, so that no cache of the device holds them.
/// Few rows leave their leaves unfolded in scratch.
Status StepOps::add_product(const ProductShape& shape) {
  const int count = shape.of_layer ? step_.all_rows() : step_.sequences;
  const int64_t elements = int64_t{shape.outputs} * shape.columns;
  const bool unfolded = shape.leaves > 1 && count <= kShoalMostUnfoldedRows;
  auto matrices = std::make_shared<std::vector<DeviceMatrix>>();
  for (int64_t held = 0; held < weight_bytes_; held += elements * 2) {
    matrices->push_back(matrix_of(shape));
    SHOAL_ASSIGN_OR_RETURN(matrices->back().weights,
                           random_elements(one_, Dtype::kBf16, elements, 1));
  }
  SHOAL_ASSIGN_OR_RETURN(void* const x, random(Dtype::kBf16, int64_t{count} * shape.columns));
  SHOAL_ASSIGN_OR_RETURN(void* const y, results(int64_t{count} * shape.outputs * 4));
  const int64_t floats = shoal_product_scratch_floats(shape.outputs, count, shape.leaves);
  void* scratch = nullptr;
  if (floats > 0) {
    SHOAL_ASSIGN_OR_RETURN(scratch, results(floats * 4));
  }
  const std::span<float> room(static_cast<float*>(scratch), static_cast<size_t>(floats));
  auto* const out = unfolded ? nullptr : static_cast<float*>(y);
  const int planes = unfolded ? shape.leaves : 1;
  const double bytes = 2.0 * static_cast<double>(elements) +
                       count * (2.0 * shape.columns + 4.0 * shape.outputs * planes);
  ops_.push_back(
      {shape.name, shape.of_layer ? 1 : 0, bytes, 2.0 * count * static_cast<double>(elements),
       [this, matrices, x, count, room, out, columns = shape.columns](int call) {
         const DeviceMatrix& w = (*matrices)[static_cast<size_t>(call) % matrices->size()];
         const ShoalProduct args = product_args(w, Dtype::kBf16, room, x, columns, count, out);
         return one_.device->enqueue(bench_.module().product, args, one_.stream.get(), "product");
       }});
  return {};
}

Status StepOps::add_qkv() {
  ShoalQkv args{};
  const int d = head_dim(), heads = model_.heads + 2 * model_.kv_heads;
  args.step = rows_;
  args.cache = cache_;
  args.heads = model_.heads;
  args.positions = step_.context;
  args.qkv_stride = int64_t{heads} * d;
  args.q_stride = int64_t{model_.heads} * row_elements(d);
  const int64_t angles = int64_t{step_.context} * d / 2;
  SHOAL_ASSIGN_OR_RETURN(void* const qkv, random(Dtype::kF32, step_.all_rows() * args.qkv_stride));
  SHOAL_ASSIGN_OR_RETURN(void* const cos, random(Dtype::kF32, angles));
  SHOAL_ASSIGN_OR_RETURN(void* const sin, random(Dtype::kF32, angles));
  SHOAL_ASSIGN_OR_RETURN(args.q, results(step_.all_rows() * args.q_stride * 2));
  args.qkv = static_cast<float*>(qkv);
  args.cos = static_cast<float*>(cos);
  args.sin = static_cast<float*>(sin);
  add("rotate q, k, v", 1, rows() * heads * d * 6, 0, bench_.module().qkv, args);
  return {};
}

/// As CudaLayers::attend() divides it.
Status StepOps::add_attention() {
  ShoalAttention args{};
  const int d = head_dim(), count = step_.all_rows();
  args.step = rows_;
  args.cache = cache_;
  args.heads = model_.heads;
  for (int i = 0; i <= model_.kv_heads; ++i)
    args.head_begin[i] = i * (model_.heads / model_.kv_heads);
  args.scale = 1 / std::sqrt(static_cast<float>(d));
  args.q_stride = args.out_stride = int64_t{model_.heads} * row_elements(d);
  SHOAL_ASSIGN_OR_RETURN(void* const q, random(Dtype::kBf16, count * args.q_stride));
  SHOAL_ASSIGN_OR_RETURN(args.out, results(count * args.out_stride * 2));
  args.q = q;
  const int chunks = (step_.context + kShoalChunkTokens - 1) / kShoalChunkTokens;
  if (count <= kMostSplitAttentionRows && chunks > 1) {
    args.split_chunks = chunks;
    args.scratch_floats = bench_.module().attention_scratch_floats(count, args.heads, d, chunks);
    SHOAL_ASSIGN_OR_RETURN(void* const scratch, results(args.scratch_floats * 4));
    args.scratch = static_cast<float*>(scratch);
  }
  const double keys = 1.0 * step_.sequences * step_.context;  // and as many values
  const double seen = rows() * (step_.context - (step_.rows - 1) / 2.0);
  add("attention", 1, 4.0 * (keys * model_.kv_heads + rows() * model_.heads) * d,
      4.0 * seen * model_.heads * d, bench_.module().attention, args);
  return {};
}

Status StepOps::add_silu_mul() {
  ShoalSiluMul args{};
  args.type = kType;
  args.rows = step_.all_rows();
  args.cols = model_.intermediate;
  args.out_stride = model_.intermediate;
  SHOAL_ASSIGN_OR_RETURN(void* const from, random(Dtype::kF32, int64_t{args.rows} * 2 * args.cols));
  SHOAL_ASSIGN_OR_RETURN(args.out, results(int64_t{args.rows} * args.cols * 2));
  args.gate_up = static_cast<float*>(from);
  add("silu_mul", 1, rows() * args.cols * 10, 0, bench_.module().silu_mul, args);
  return {};
}

/// Folds the leaves that the product has left, or adds its sum.
Status StepOps::add_add_norm(const ProductShape& product) {
  ShoalAddNorm args{};
  args.type = kType;
  args.rows = step_.all_rows();
  args.cols = model_.hidden;
  args.eps = 1e-5f;
  args.out_stride = model_.hidden;
  args.leaves = 1;
  if (args.rows <= kShoalMostUnfoldedRows) {
    const DeviceMatrix matrix = matrix_of(product);
    args.leaves = matrix.leaves;
    for (int i = 0; i < matrix.leaves; ++i) args.merges[i] = matrix.leaf[i].merges;
  }
  const int64_t count = int64_t{args.rows} * args.cols;
  SHOAL_ASSIGN_OR_RETURN(void* const sums, random(Dtype::kF32, args.leaves * count));
  SHOAL_ASSIGN_OR_RETURN(void* const residual, random(Dtype::kF32, count));
  SHOAL_ASSIGN_OR_RETURN(void* const weight, random(Dtype::kF32, args.cols));
  SHOAL_ASSIGN_OR_RETURN(args.out, results(count * 2));
  args.sums = static_cast<float*>(sums);
  args.residual = static_cast<float*>(residual);
  args.weight = static_cast<float*>(weight);
  add("add_norm", 2, rows() * args.cols * (4.0 * args.leaves + 10), 0, bench_.module().add_norm,
      args);
  return {};
}

Status StepOps::add_argmax() {
  ShoalArgmax args{};
  args.rows = step_.sequences;
  args.cols = model_.vocabulary;
  args.stride = model_.vocabulary;
  SHOAL_ASSIGN_OR_RETURN(void* const logits, random(Dtype::kF32, int64_t{args.rows} * args.cols));
  SHOAL_ASSIGN_OR_RETURN(void* const parts, results(int64_t{args.rows} * kShoalArgmaxParts *
                                                    static_cast<int64_t>(sizeof(ShoalBest))));
  SHOAL_ASSIGN_OR_RETURN(void* const best,
                         results(int64_t{args.rows} * static_cast<int64_t>(sizeof(ShoalBest))));
  args.logits = static_cast<float*>(logits);
  args.scratch = static_cast<ShoalBest*>(parts);
  args.best = static_cast<ShoalBest*>(best);
  add("argmax", 0, 4.0 * args.rows * args.cols, 0, bench_.module().argmax, args);
  return {};
}

Status measure_step(OneDevice& one, const ModelShape& model, const StepKind& step,
                    int64_t weight_bytes, const Turns& turns) {
  StepOps of_step(one, model, step, weight_bytes);
  SHOAL_ASSIGN_OR_RETURN(const std::vector<Op> ops, of_step.prepare());
  std::vector<Work> works;
  for (const Op& op : ops) works.push_back(op.enqueue);
  SHOAL_ASSIGN_OR_RETURN(const std::vector<CallTime> times, time_calls(one, works, turns));
  double device_us = 0, enqueue_us = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    const Op& op = ops[i];
    const CallTime& time = times[i];
    const int count = op.of_layer == 0 ? 1 : op.of_layer * model.layers;
    device_us += count * time.device_us;
    enqueue_us += count * time.enqueue_us;
    std::printf("| %s | %s | %s | %d | %.1f | %.1f | %.0f | %.1f |\n", model.name, step.name,
                op.name, count, time.device_us, time.enqueue_us, op.bytes / time.device_us / 1e3,
                op.flops / time.device_us / 1e6);
  }
  std::printf("| %s | %s | all of them | | %.1f | %.1f | | |\n", model.name, step.name, device_us,
              enqueue_us);
  return {};
}

std::string ops_of_steps(const Options& options) {
  return on_device(options, [&](OneDevice& one) -> std::string {
    const bool quick = options.quick || options.stand_in;
    const Turns turns = quick ? Turns{1, 0} : Turns{5, 5e-3};
    const int64_t weight_bytes = quick ? 1 : int64_t{256} << 20;
    std::puts(
        "The ops of a step, bfloat16, each many times in a row\n\n"
        "| model | step | op | times | us of one | us of the host | GB/s | TFLOP/s |\n"
        "|---|---|---|--:|--:|--:|--:|--:|");
    std::vector<ModelShape> models{std::begin(kModels), std::end(kModels)};
    std::vector<StepKind> steps{std::begin(kSteps), std::end(kSteps)};
    if (quick) models = {kTinyModel}, steps = {kTinyStep};
    for (const ModelShape& model : models) {
      for (const StepKind& step : steps) {
        const Status status = measure_step(one, model, step, weight_bytes, turns);
        if (status.code() == Code::kResourceExhausted) {
          std::printf("| %s | %s | does not fit | | | | | |\n", model.name, step.name);
          continue;
        }
        SHOAL_EXPECT_OK(status);
      }
    }
    std::fflush(stdout);  // this process ends without it
    return "";
  });
}

}  // namespace

void add_op_times_cases(const Options& options, std::vector<Case>& cases) {
  cases.push_back({"times/ops", [options] {
                     return run_apart(kSeconds, [&] { return ops_of_steps(options); });
                   }});
}

}  // namespace shoal::gpu
