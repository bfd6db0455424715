#include "models/device_weights.h"

#include <algorithm>
#include <cstring>

#include "models/device_buffers.h"
#include "models/weight_loader.h"
#include "models/weight_sum.h"
#include "runtime/base/counted.h"
#include "runtime/comm/device/keep_for_process.h"

namespace shoal {
namespace {

/// In each row a leaf begins at a multiple of this many elements (ShoalLeaf::weights_at).
constexpr int64_t kLeafAlign = 64;
static_assert(kShoalMostLeaves == kMostDeviceLeaves);
constexpr size_t kStageBytes = size_t{8} << 20;

constexpr int64_t padded_leaf(int64_t columns) {
  return (columns + kLeafAlign - 1) / kLeafAlign * kLeafAlign;
}

constexpr int64_t bytes_of(Dtype dtype) {
  return static_cast<int64_t>(dtype_bytes(dtype));
}

/// Writes columns [begin, end) of a row of the checkpoint, whose type is `from`.
void convert(const std::byte* row, Dtype from, int64_t begin, int64_t end, Dtype to,
             std::byte* out) {
  if (from == to) {
    std::memcpy(out, row + begin * bytes_of(to), static_cast<size_t>((end - begin) * bytes_of(to)));
    return;
  }
  for (int64_t c = begin; c < end; ++c, out += bytes_of(to))
    store_element(element_as_float(row, from, c), to, out);
}

class DeviceStore {
 public:
  using Matrix = DeviceMatrix;
  using Vector = DeviceVector;
  using Table = Device::Memory;

  DeviceStore(const ModelConfig& config, Dtype dtype, Device& device, ThreadPool& pool,
              const KernelTable& kernels, const LoadCallback& progress, int64_t total)
      : config_(config),
        dtype_(dtype),
        device_(device),
        pool_(pool),
        progress_(progress),
        total_(total),
        sum_(pool, kernels) {}

  /// If the loading has failed, the device may still read a buffer, and freeing it would wait.
  ~DeviceStore() {
    for (Stage& stage : stages_) {
      if (stage.in_use) keep_for_process(std::move(stage.pinned));
    }
  }

  Status prepare() {
    SHOAL_ASSIGN_OR_RETURN(stream_, device_.make_stream());
    for (Stage& stage : stages_) {
      SHOAL_ASSIGN_OR_RETURN(stage.pinned, device_.allocate_pinned(kStageBytes));
      SHOAL_ASSIGN_OR_RETURN(stage.copied, device_.make_event());
    }
    return {};
  }

  Result<DeviceMatrix> make_matrix(int n, int k, const std::vector<LeafStep>& leaves) {
    DeviceMatrix matrix;
    matrix.outputs = n;
    matrix.leaves = static_cast<int32_t>(leaves.size());
    if (leaves.size() > kShoalMostLeaves) {
      return Status::error(Code::kInternal, cat("a product of ", leaves.size(), " leaves"));
    }
    for (size_t i = 0; i < leaves.size(); ++i) {
      const LeafStep& step = leaves[i];
      matrix.leaf[i] = {step.k_begin, step.k_end, matrix.stride, step.merges, step.contribution};
      matrix.stride += padded_leaf(step.k_end - step.k_begin);
    }
    SHOAL_ASSIGN_OR_RETURN(matrix.weights,
                           allocate(n * matrix.stride * element_, cat(n, " x ", k, " weights")));
    return matrix;
  }

  Status fill(DeviceMatrix& out, int at, const TensorView& view, Range rows, Range columns) {
    const int64_t row_bytes = out.stride * element_;
    auto* to = static_cast<std::byte*>(out.weights.get()) + at * row_bytes;
    return copy_rows(view, rows, to, row_bytes, [&](const std::byte* row, std::byte* staged) {
      std::memset(staged, 0, static_cast<size_t>(row_bytes));
      for (int i = 0; i < out.leaves; ++i) {
        const ShoalLeaf& leaf = out.leaf[i];
        convert(row, view.dtype, columns.begin + leaf.begin, columns.begin + leaf.end, dtype_,
                staged + leaf.weights_at * element_);
      }
    });
  }

  Result<DeviceVector> make_vector(const std::vector<float>& values) {
    const size_t bytes = values.size() * sizeof(float);
    if (bytes > kStageBytes)
      return Status::error(Code::kInternal, cat("a vector of ", counted(values.size(), "value")));
    DeviceVector vector;
    SHOAL_ASSIGN_OR_RETURN(vector.values, allocate(static_cast<int64_t>(bytes), "a vector"));
    SHOAL_ASSIGN_OR_RETURN(Stage* const stage, next_stage());
    std::memcpy(stage->pinned.get(), values.data(), bytes);
    sum_.add(stage->pinned.get(), bytes);
    SHOAL_RETURN_IF_ERROR(send(*stage, vector.values.get(), bytes));
    done_ += static_cast<int64_t>(bytes);
    return vector;
  }

  Result<Device::Memory> make_table(const TensorView& embedding) {
    const int64_t row_bytes = config_.hidden_size * element_;
    SHOAL_ASSIGN_OR_RETURN(Device::Memory table,
                           allocate(config_.vocab_size * row_bytes, "the embedding table"));
    SHOAL_RETURN_IF_ERROR(
        copy_rows(embedding, {0, config_.vocab_size}, static_cast<std::byte*>(table.get()),
                  row_bytes, [&](const std::byte* row, std::byte* staged) {
                    convert(row, embedding.dtype, 0, config_.hidden_size, dtype_, staged);
                  }));
    return table;
  }

  /// A row of the table is a row of weights if it needs no padding.
  bool share_rows(const Device::Memory& table, Range rows, DeviceMatrix* out) {
    const int64_t hidden = config_.hidden_size;
    if (padded_leaf(hidden) != hidden) return false;
    out->outputs = rows.size();
    out->leaves = 1;
    out->leaf[0] = {0, config_.hidden_size, 0, 0, 0};
    out->stride = hidden;
    out->weights = Device::Memory(
        table, static_cast<std::byte*>(table.get()) + rows.begin * hidden * element_);
    return true;
  }

  /// Waits until everything has been copied.
  Status finish() {
    for (Stage& stage : stages_) SHOAL_RETURN_IF_ERROR(wait(stage));
    return {};
  }

  int64_t taken() const { return taken_; }
  uint64_t sum() const { return sum_.value(); }

 private:
  struct Stage {
    Device::Memory pinned;
    Device::Event copied;
    bool in_use = false;
  };

  Result<Device::Memory> allocate(int64_t bytes, const std::string& what) {
    Result<Device::Memory> memory = device_.allocate(static_cast<size_t>(bytes));
    if (!memory.ok()) {
      return memory.status().while_doing(cat("allocate ", what, " after ", taken_, " of ", total_,
                                             " B of this rank's weights; if the GPU is full, use "
                                             "more ranks, or end what else uses it"));
    }
    taken_ += bytes;
    return memory;
  }

  /// Copies rows of the checkpoint to the device. convert_row(row, staged) writes one of them as
  /// row_bytes bytes.
  template <typename ConvertRow>
  Status copy_rows(const TensorView& view, Range rows, std::byte* to, int64_t row_bytes,
                   const ConvertRow& convert_row) {
    if (row_bytes > static_cast<int64_t>(kStageBytes))
      return Status::error(Code::kInternal, cat("a row of ", row_bytes, " B of weights"));
    const int64_t source_bytes = view.shape[1] * static_cast<int64_t>(dtype_bytes(view.dtype));
    const int64_t most = static_cast<int64_t>(kStageBytes) / std::max<int64_t>(row_bytes, 1);
    for (int64_t from = rows.begin; from < rows.end; from += most) {
      const int64_t count = std::min<int64_t>(most, rows.end - from);
      SHOAL_ASSIGN_OR_RETURN(Stage* const stage, next_stage());
      auto* const staged = static_cast<std::byte*>(stage->pinned.get());
      pool_.split(count, [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
          convert_row(view.data + (from + row) * source_bytes, staged + row * row_bytes);
      });
      sum_.add(staged, static_cast<size_t>(count * row_bytes));
      SHOAL_RETURN_IF_ERROR(send(*stage, to + (from - rows.begin) * row_bytes,
                                 static_cast<size_t>(count * row_bytes)));
      done_ += count * row_bytes;
      if (progress_) progress_(std::min(done_, total_), total_);
    }
    return {};
  }

  /// The buffer that has not been used for longer, once its copy is done.
  Result<Stage*> next_stage() {
    std::swap(stages_[0], stages_[1]);
    SHOAL_RETURN_IF_ERROR(wait(stages_[0]));
    return &stages_[0];
  }
  Status send(Stage& stage, void* to, size_t bytes) {
    SHOAL_RETURN_IF_ERROR(device_.copy(to, stage.pinned.get(), bytes, stream_.get()));
    stage.in_use = true;
    return device_.record(stage.copied.get(), stream_.get());
  }
  /// The start's own deadline, which the front keeps, ends a wait for a device that hangs.
  Status wait(Stage& stage) {
    if (!stage.in_use) return {};
    SHOAL_RETURN_IF_ERROR(device_.wait(stage.copied.get(), Deadline::infinite(), {}));
    stage.in_use = false;
    return {};
  }

  const ModelConfig& config_;
  const Dtype dtype_;
  const int64_t element_ = bytes_of(dtype_);
  Device& device_;
  ThreadPool& pool_;
  const LoadCallback& progress_;
  const int64_t total_;
  int64_t done_ = 0;
  int64_t taken_ = 0;
  WeightSum sum_;
  Device::Stream stream_;
  Stage stages_[2];
};

/// The elements of a row of a row-parallel product, whose leaves have `unit` columns for each unit.
int64_t leaf_row_elements(const RankFold& fold, int leaves, int units, int unit, int columns) {
  int64_t elements = 0;
  for (const RankFold::Step& step : fold.steps) {
    const Range own = leaf_units(step.leaf, leaves, units);
    elements += padded_leaf(std::min(own.end * unit, columns) - own.begin * unit);
  }
  return elements;
}

}  // namespace

ShoalProduct product_with(const DeviceMatrix& w, Dtype dtype) {
  ShoalProduct args{};
  args.type = device_type(dtype);
  args.outputs = w.outputs;
  args.leaves = w.leaves;
  std::copy_n(w.leaf, w.leaves, args.leaf);
  args.weights = w.weights.get();
  args.weight_stride = w.stride;
  return args;
}

Result<DeviceWeights> load_device_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                                          const ShardPlan& plan, Dtype dtype, Device& device,
                                          ThreadPool& pool, const KernelTable& kernels,
                                          const LoadCallback& progress) {
  const int64_t total = device_weight_bytes(config, plan, dtype);
  DeviceStore store(config, dtype, device, pool, kernels, progress, total);
  SHOAL_RETURN_IF_ERROR(store.prepare());
  DeviceWeights weights;
  SHOAL_ASSIGN_OR_RETURN(
      (static_cast<WeightsOf<DeviceMatrix, DeviceVector, Device::Memory>&>(weights)),
      WeightLoader<DeviceStore>(checkpoint, config, plan, store).load());
  SHOAL_RETURN_IF_ERROR(store.finish());
  weights.dtype = dtype;
  weights.bytes = store.taken();
  weights.sum = store.sum();
  if (progress) progress(total, total);  // biases and norms travel without being counted
  return weights;
}

int64_t device_weight_bytes(const ModelConfig& config, const ShardPlan& plan, Dtype dtype) {
  const auto rank = static_cast<size_t>(plan.world.rank);
  const int64_t d = config.head_dim, hidden = config.hidden_size, mlp = plan.mlp_columns.size();
  const int64_t row = padded_leaf(hidden);
  const int64_t o =
      leaf_row_elements(plan.attention_reduce.ranks[rank], plan.leaves, config.num_attention_heads,
                        config.head_dim, config.num_attention_heads * config.head_dim);
  const int64_t down =
      leaf_row_elements(plan.mlp_reduce.ranks[rank], plan.leaves,
                        (config.intermediate_size + kMlpUnitColumns - 1) / kMlpUnitColumns,
                        kMlpUnitColumns, config.intermediate_size);
  const int64_t qkv = (plan.q_heads.size() + 2 * plan.kv_heads.size()) * d;
  const int64_t layer = (qkv + 2 * mlp) * row + hidden * (o + down);
  const bool shared = config.tie_word_embeddings && padded_leaf(hidden) == hidden;
  const int64_t elements = config.num_hidden_layers * layer + config.vocab_size * hidden +
                           (shared ? 0 : plan.vocab.size() * row);
  const int64_t biases = (config.qkv_bias ? qkv : 0) + (config.o_bias ? hidden : 0) +
                         (config.mlp_bias ? 2 * mlp + hidden : 0);
  const int64_t norms = 2 * hidden + (config.qk_norm ? 2 * d : 0);
  const int64_t floats = config.num_hidden_layers * (biases + norms) + hidden;
  return elements * bytes_of(dtype) + floats * int64_t{sizeof(float)};
}

}  // namespace shoal
