#include "models/device_weights.h"

#include <algorithm>
#include <cstring>

#include "models/device_buffers.h"
#include "models/weight_loader.h"
#include "models/weight_sum.h"
#include "runtime/base/counted.h"
#include "runtime/base/quantity.h"
#include "runtime/device/keep_for_process.h"

namespace shoal {
namespace {

/// In each row a leaf begins at a multiple of this many elements (ShoalLeaf::weights_at).
constexpr int64_t kLeafAlign = 64;
static_assert(kShoalMostLeaves == kMostDeviceLeaves);
constexpr size_t kStageBytes = size_t{8} << 20;
/// Each matrix and vector begins at a multiple of this, as if it were an allocation of its own.
constexpr int64_t kPartAlign = 256;

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

/// A WeightLoader's store that gives each part its place in one piece of memory. Without memory it
/// only counts the bytes.
class WeightPlaces {
 public:
  using Matrix = DeviceMatrix;
  using Vector = DeviceVector;
  using Table = Device::Memory;

  WeightPlaces(const ModelConfig& config, Dtype dtype, Device::Memory memory)
      : config_(config), dtype_(dtype), memory_(std::move(memory)) {}

  Result<DeviceMatrix> make_matrix(int n, int, const std::vector<LeafStep>& leaves) {
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
    matrix.weights = place(n * matrix.stride * element_);
    return matrix;
  }
  Status fill(DeviceMatrix&, int, const TensorView&, Range, Range) { return {}; }

  Result<DeviceVector> make_vector(const std::vector<float>& values) {
    return DeviceVector{place(static_cast<int64_t>(values.size() * sizeof(float)))};
  }
  Result<Device::Memory> make_table(const TensorView&) {
    return place(int64_t{config_.vocab_size} * config_.hidden_size * element_);
  }

  /// A row of the table is a row of weights if it needs no padding.
  bool share_rows(const Device::Memory& table, Range rows, DeviceMatrix* out) {
    const int64_t hidden = config_.hidden_size;
    if (padded_leaf(hidden) != hidden) return false;
    out->outputs = rows.size();
    out->leaves = 1;
    out->leaf[0] = {0, config_.hidden_size, 0, 0, 0};
    out->stride = hidden;
    out->weights = part_of(table, rows.begin * hidden * element_);
    return true;
  }

  int64_t bytes() const { return bytes_; }

 protected:
  static Device::Memory part_of(const Device::Memory& memory, int64_t at) {
    if (memory == nullptr) return nullptr;
    return Device::Memory(memory, static_cast<std::byte*>(memory.get()) + at);
  }
  Device::Memory place(int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += (bytes + kPartAlign - 1) / kPartAlign * kPartAlign;
    return part_of(memory_, at);
  }

  const ModelConfig& config_;
  const Dtype dtype_;
  const int64_t element_ = bytes_of(dtype_);

 private:
  const Device::Memory memory_;
  int64_t bytes_ = 0;
};

/// The store that also copies each part to its place.
class DeviceStore : public WeightPlaces {
 public:
  DeviceStore(const ModelConfig& config, Dtype dtype, Device& device, Device::Memory memory,
              ThreadPool& pool, const KernelTable& kernels, const LoadCallback& progress,
              int64_t total)
      : WeightPlaces(config, dtype, std::move(memory)),
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
    SHOAL_ASSIGN_OR_RETURN(DeviceVector vector, WeightPlaces::make_vector(values));
    SHOAL_ASSIGN_OR_RETURN(Stage* const stage, next_stage());
    std::memcpy(stage->pinned.get(), values.data(), bytes);
    sum_.add(stage->pinned.get(), bytes);
    SHOAL_RETURN_IF_ERROR(send(*stage, vector.values.get(), bytes));
    done_ += static_cast<int64_t>(bytes);
    return vector;
  }

  Result<Device::Memory> make_table(const TensorView& embedding) {
    const int64_t row_bytes = config_.hidden_size * element_;
    SHOAL_ASSIGN_OR_RETURN(Device::Memory table, WeightPlaces::make_table(embedding));
    SHOAL_RETURN_IF_ERROR(
        copy_rows(embedding, {0, config_.vocab_size}, static_cast<std::byte*>(table.get()),
                  row_bytes, [&](const std::byte* row, std::byte* staged) {
                    convert(row, embedding.dtype, 0, config_.hidden_size, dtype_, staged);
                  }));
    return table;
  }

  /// Waits until everything has been copied.
  Status finish() {
    for (Stage& stage : stages_) SHOAL_RETURN_IF_ERROR(wait(stage));
    return {};
  }

  uint64_t sum() const { return sum_.value(); }

 private:
  struct Stage {
    Device::Memory pinned;
    Device::Event copied;
    bool in_use = false;
  };

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

  Device& device_;
  ThreadPool& pool_;
  const LoadCallback& progress_;
  const int64_t total_;
  int64_t done_ = 0;
  WeightSum sum_;
  Device::Stream stream_;
  Stage stages_[2];
};

}  // namespace

Result<DeviceWeights> load_device_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                                          const ShardPlan& plan, Dtype dtype, Device& device,
                                          ThreadPool& pool, const KernelTable& kernels,
                                          const LoadCallback& progress) {
  SHOAL_ASSIGN_OR_RETURN(const int64_t total, device_weight_bytes(config, plan, dtype));
  Result<Device::Memory> memory = device.allocate_raw(static_cast<size_t>(total));
  if (!memory.ok()) {
    return memory.status().while_doing(
        cat("allocate this rank's weights, ", bytes_text(total),
            "; if the GPU is full, use more ranks, or end what else uses it"));
  }
  DeviceStore store(config, dtype, device, std::move(memory).value(), pool, kernels, progress,
                    total);
  SHOAL_RETURN_IF_ERROR(store.prepare());
  DeviceWeights weights;
  SHOAL_ASSIGN_OR_RETURN(
      (static_cast<WeightsOf<DeviceMatrix, DeviceVector, Device::Memory>&>(weights)),
      WeightLoader<DeviceStore>(checkpoint, config, plan, store).load());
  SHOAL_RETURN_IF_ERROR(store.finish());
  weights.dtype = dtype;
  weights.bytes = store.bytes();
  weights.sum = store.sum();
  if (progress) progress(total, total);  // biases and norms travel without being counted
  return weights;
}

Result<int64_t> device_weight_bytes(const ModelConfig& config, const ShardPlan& plan, Dtype dtype) {
  WeightPlaces places(config, dtype, nullptr);
  const ShapesOnly shapes;
  SHOAL_RETURN_IF_ERROR(
      (WeightLoader<WeightPlaces, ShapesOnly>(shapes, config, plan, places).load().status()));
  return places.bytes();
}

}  // namespace shoal
