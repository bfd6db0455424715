#include "models/weights.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "models/weight_loader.h"
#include "models/weight_sum.h"

namespace shoal {
namespace {

int64_t packed_bytes(Dtype dtype, int64_t n, int64_t k) {
  const int64_t panels = (n + kPanelOutputs - 1) / kPanelOutputs;
  return panels * kPanelOutputs * (dtype == Dtype::kF32 ? k : (k + 1) / 2 * 2) *
         static_cast<int64_t>(dtype_bytes(dtype));
}

/// Packs what a rank reads, and keeps count of it.
class PackedStore {
 public:
  using Matrix = PackedMatrix;
  using Vector = std::vector<float>;
  using Table = TensorView;

  PackedStore(Dtype dtype, World world, ThreadPool& pool, const KernelTable& kernels,
              const LoadCallback& progress, int64_t total)
      : dtype_(dtype),
        world_(world),
        pool_(pool),
        progress_(progress),
        total_(total),
        sum_(pool, kernels) {}

  Result<PackedMatrix> make_matrix(int n, int k, std::vector<LeafStep> leaves) {
    return PackedMatrix::allocate(dtype_, n, k, std::move(leaves));
  }
  Result<std::vector<float>> make_vector(std::vector<float> values) {
    sum_.add(values.data(), values.size() * sizeof(float));
    return values;
  }
  /// The ranks share the sum of the rows, because each of them maps all of the table.
  Result<TensorView> make_table(const TensorView& embedding) {
    const int64_t row = embedding.shape[1] * static_cast<int64_t>(dtype_bytes(embedding.dtype));
    const int64_t begin = embedding.shape[0] * world_.rank / world_.size,
                  end = embedding.shape[0] * (world_.rank + 1) / world_.size;
    sum_.add(embedding.data + begin * row, static_cast<size_t>((end - begin) * row));
    return embedding;
  }
  bool share_rows(const TensorView&, Range, PackedMatrix*) { return false; }

  Status fill(PackedMatrix& out, int at, const TensorView& view, Range rows, Range columns) {
    // Each thread packs whole panels, so that no two threads write to the same panel. A strip of a
    // panel is summed once its last row is there, while it is in the processor's nearest cache.
    const int first = at / kPanelOutputs,
              panels = (at + rows.size() - 1) / kPanelOutputs + 1 - first;
    const auto strips = static_cast<size_t>(out.strips());
    const size_t part = sum_.add_parts(static_cast<size_t>(panels) * strips);
    pool_.split(panels, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<int>(begin); i < static_cast<int>(end); ++i) {
        const int panel = first + i, panel_end = (panel + 1) * kPanelOutputs;
        const int from = std::max(at, panel * kPanelOutputs),
                  to = std::min(at + rows.size(), panel_end);
        const int source = rows.begin + (from - at);
        const bool whole = from < to && to == std::min(panel_end, out.n());
        pack(out, from, view, {source, source + to - from}, columns, [&](int strip) {
          if (!whole) return;
          const std::span<const std::byte> bytes = out.strip(panel, strip);
          const size_t place = static_cast<size_t>(i) * strips + static_cast<size_t>(strip);
          sum_.set_part(part + place, bytes.data(), bytes.size());
        });
      }
    });
    done_ += static_cast<int64_t>(rows.size()) * columns.size() *
             static_cast<int64_t>(dtype_bytes(dtype_));
    if (progress_) progress_(std::min(done_, total_), total_);
    return {};
  }

  int64_t done() const { return done_; }
  uint64_t sum() const { return sum_.value(); }

 private:
  /// Calls packed(strip) for each strip of the panel once the rows are in it.
  template <typename Packed>
  void pack(PackedMatrix& out, int at, const TensorView& view, Range rows, Range columns,
            const Packed& packed) const {
    const int64_t stride = view.shape[1];
    const auto bytes = static_cast<int64_t>(dtype_bytes(view.dtype));
    const std::byte* source = view.data + (rows.begin * stride + columns.begin) * bytes;
    if (view.dtype == dtype_) {
      for (int strip = 0; strip < out.strips(); ++strip) {
        out.pack_strip(strip, at, rows.size(), source, stride);
        packed(strip);
      }
      return;
    }
    std::vector<std::byte> row(static_cast<size_t>(columns.size()) * dtype_bytes(dtype_));
    for (int r = 0; r < rows.size(); ++r, source += stride * bytes) {
      for (int64_t c = 0; c < columns.size(); ++c) {
        store_element(element_as_float(source, view.dtype, c), dtype_,
                      row.data() + c * static_cast<int64_t>(dtype_bytes(dtype_)));
      }
      out.pack_rows(at + r, 1, row.data(), columns.size());
    }
    for (int strip = 0; strip < out.strips(); ++strip) packed(strip);
  }

  const Dtype dtype_;
  const World world_;
  ThreadPool& pool_;
  const LoadCallback& progress_;
  const int64_t total_;
  int64_t done_ = 0;
  WeightSum sum_;
};

using PackedWeights = WeightsOf<PackedMatrix, std::vector<float>, TensorView>;

}  // namespace

float element_as_float(const std::byte* data, Dtype dtype, int64_t index) {
  if (dtype == Dtype::kF32) {
    float value;
    std::memcpy(&value, data + index * 4, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, data + index * 2, 2);
  return dtype == Dtype::kBf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

void store_element(float value, Dtype dtype, std::byte* out) {
  if (dtype == Dtype::kF32) {
    std::memcpy(out, &value, 4);
    return;
  }
  const uint16_t bits = dtype == Dtype::kBf16 ? float_to_bf16(value) : float_to_f16(value);
  std::memcpy(out, &bits, 2);
}

Result<Dtype> resolve_dtype(const Checkpoint& checkpoint, std::optional<Dtype> asked) {
  const Result<TensorView> found =
      checkpoint.tensor("model.layers.0.self_attn.q_proj.weight", {-1, -1});
  if (found.status().code() == Code::kUnimplemented) return found.status();
  // The checkpoint exists, so a missing tensor is damage, not "not found".
  if (!found.ok())
    return found.status().because_of(Code::kInvalidArgument, "find out the weights' type");
  const TensorView& view = *found;
  if (!asked || *asked == view.dtype) return view.dtype;
  if (*asked != Dtype::kF32 && view.dtype != Dtype::kF32) {
    return Status::error(Code::kFailedPrecondition,
                         cat("--dtype ", dtype_name(*asked), ": the checkpoint is ",
                             dtype_name(view.dtype), ", which ", dtype_name(*asked),
                             " cannot hold; use auto, ", dtype_name(view.dtype), " or float32"));
  }
  return *asked;
}

Result<Weights> load_weights(const Checkpoint& checkpoint, const ModelConfig& config,
                             const ShardPlan& plan, Dtype dtype, ThreadPool& pool,
                             const KernelTable& kernels, const LoadCallback& progress) {
  const int64_t total = packed_weight_bytes(config, plan, dtype);
  PackedStore store(dtype, plan.world, pool, kernels, progress, total);
  Weights weights;
  SHOAL_ASSIGN_OR_RETURN(static_cast<PackedWeights&>(weights),
                         WeightLoader<PackedStore>(checkpoint, config, plan, store).load());
  weights.dtype = dtype;
  weights.packed_bytes = store.done();
  weights.sum = store.sum();
  if (progress) progress(total, total);  // the padding of the panels was never read
  return weights;
}

int64_t packed_weight_bytes(const ModelConfig& config, const ShardPlan& plan, Dtype dtype) {
  const int64_t d = config.head_dim, hidden = config.hidden_size, mlp = plan.mlp_columns.size();
  const int64_t q = plan.q_heads.size() * d, kv = plan.kv_heads.size() * d;
  const int64_t layer = packed_bytes(dtype, q + 2 * kv, hidden) + packed_bytes(dtype, hidden, q) +
                        packed_bytes(dtype, 2 * mlp, hidden) + packed_bytes(dtype, hidden, mlp);
  return config.num_hidden_layers * layer + packed_bytes(dtype, plan.vocab.size(), hidden);
}

}  // namespace shoal
