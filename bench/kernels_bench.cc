#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <functional>
#include <random>
#include <string>
#include <string_view>
#include <time.h>
#include <vector>

#include "bench/onednn_gemm.h"
#include "kernels/kernel_table.h"
#include "runtime/base/aligned_buffer.h"
#include "runtime/base/thread_pool.h"
#include "server/commands/cache_size.h"
#include "server/commands/read_bandwidth.h"

// Compares the kernels with the limits of the machine, on one thread: decode with the read
// bandwidth measured in turn with it, prefill with oneDNN, and 16 leaves with one. The shapes are
// those of a Llama of 1.1 B parameters. It needs 4 GiB of memory.

namespace shoal {
namespace {

struct Shape {
  int n, k;
};
/// The instructions that oneDNN may use when a kernel set's prefill is compared with it: those of
/// the set. bf16 products are compared only where the set has instructions for them. Elsewhere
/// oneDNN has no such products, or emulates them.
struct Yardstick {
  std::string_view set;
  OnednnIsa isa;
  bool bf16;
};
constexpr Yardstick kYardsticks[] = {{"avx512-bf16", OnednnIsa::kAny, true},
                                     {"avx512", OnednnIsa::kAvx512, false},
                                     {"avx2", OnednnIsa::kAvx2, false},
                                     {"neon-bf16", OnednnIsa::kAny, true}};

Yardstick yardstick_of(const KernelTable& kernels) {
  for (const Yardstick& yardstick : kYardsticks) {
    if (yardstick.set == kernels.name) return yardstick;
  }
  return {kernels.name, OnednnIsa::kAny, false};
}

constexpr Shape kShapes[] = {{2048, 2048}, {5632, 2048}, {2048, 5632}, {32000, 2048}};
constexpr int kPrefillRows = 512;
// A measurement of memory reads at least this many bytes. It is more than the caches of any
// processor hold: the largest have 768 MiB.
constexpr int64_t kStreamBytes = int64_t{1} << 30;

/// CPU time of this thread, which does all the work except for reading memory (BestRead). Other
/// programs on the machine do not add to it.
double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

double seconds(const std::function<void()>& work) {
  const double begin = thread_seconds();
  work();
  return thread_seconds() - begin;
}

/// The shortest time of each function. The functions take turns, so that a slow phase of the
/// machine affects all of them alike.
std::vector<double> best_of(int rounds, const std::vector<std::function<void()>>& works) {
  std::vector<double> best(works.size(), 1e30);
  for (int round = 0; round < rounds; ++round) {
    for (size_t i = 0; i < works.size(); ++i) best[i] = std::min(best[i], seconds(works[i]));
  }
  return best;
}

/// The read bandwidth of `bench decode`: the best of several loops, and of all rounds.
class BestRead {
 public:
  explicit BestRead(ReadBandwidth& reads) : reads_(reads) {}
  void operator()() { bytes_per_s_ = std::max(bytes_per_s_, reads_.measure().bytes_per_s); }
  double gigabytes_per_s() const { return bytes_per_s_ / 1e9; }

 private:
  ReadBandwidth& reads_;
  double bytes_per_s_ = 0;
};

/// The steps of `leaves` leaves of the same size that are folded into one sum. The order of the
/// merges does not affect the kernels' speed.
std::vector<LeafStep> even_leaves(int leaves, int k) {
  std::vector<LeafStep> steps;
  for (int i = 0; i < leaves; ++i) {
    const int merges = __builtin_ctz(static_cast<unsigned>(i + 1));
    steps.push_back({k / leaves * i, k / leaves * (i + 1), merges, i + 1 == leaves ? 0 : -1});
  }
  return steps;
}

/// How many copies of a matrix of this many bytes have at least kStreamBytes together.
size_t copies_of(size_t bytes) {
  return (static_cast<size_t>(kStreamBytes) + bytes - 1) / bytes;
}

/// Random weights of one shape, and inputs for kPrefillRows rows. There are enough copies of the
/// weights to fill kStreamBytes together.
struct Workload {
  Shape shape{};
  Dtype dtype = Dtype::kF32;
  std::vector<PackedMatrix> copies;
  AlignedBuffer x, y, row_major;
  int64_t x_stride = 0;

  double bytes() const {
    return static_cast<double>(copies.size()) * static_cast<double>(copies.front().bytes());
  }
  double flops() const { return 2.0 * kPrefillRows * shape.n * shape.k; }

  void multiply(const KernelTable& kernels, const PackedMatrix& w, int rows) const {
    const MatmulArgs args{.w = &w,
                          .x = x.as<>(),
                          .x_stride = x_stride,
                          .y = y.as<float>(),
                          .y_stride = shape.n,
                          .plane_stride = int64_t{rows} * shape.n};
    kernels.matmul(args, 0, rows, 0, w.panels());
  }
  void decode(const KernelTable& kernels) const {
    for (const PackedMatrix& w : copies) multiply(kernels, w, 1);
  }
};

void fill(const AlignedBuffer& buffer, Dtype dtype, int64_t count) {
  std::mt19937 engine(1);
  for (int64_t i = 0; i < count; ++i) {
    const float value = static_cast<float>(engine() >> 8) * 0x1p-24f - 0.5f;
    if (dtype == Dtype::kF32) {
      buffer.as<float>()[i] = value;
    } else {
      buffer.as<uint16_t>()[i] = dtype == Dtype::kBf16 ? float_to_bf16(value) : float_to_f16(value);
    }
  }
}

/// Row-major weights for oneDNN.
Result<AlignedBuffer> weights_of(Shape shape, bool bf16) {
  const int64_t elements = int64_t{shape.n} * shape.k;
  const Dtype dtype = bf16 ? Dtype::kBf16 : Dtype::kF32;
  SHOAL_ASSIGN_OR_RETURN(
      AlignedBuffer weights,
      AlignedBuffer::allocate(static_cast<size_t>(elements) * dtype_bytes(dtype)));
  fill(weights, dtype, elements);
  return weights;
}

Result<Workload> make_workload(Shape shape, Dtype dtype, int leaves) {
  Workload work;
  work.shape = shape;
  work.dtype = dtype;
  work.x_stride = activation_stride(shape.k);
  const int64_t elements = int64_t{shape.n} * shape.k;
  const Dtype x_dtype = activation_dtype(dtype);
  SHOAL_ASSIGN_OR_RETURN(
      work.row_major, AlignedBuffer::allocate(static_cast<size_t>(elements) * dtype_bytes(dtype)));
  SHOAL_ASSIGN_OR_RETURN(work.x,
                         AlignedBuffer::allocate(static_cast<size_t>(kPrefillRows * work.x_stride) *
                                                 dtype_bytes(x_dtype)));
  SHOAL_ASSIGN_OR_RETURN(
      work.y, AlignedBuffer::allocate(static_cast<size_t>(kPrefillRows * shape.n) * sizeof(float)));
  fill(work.row_major, dtype, elements);
  fill(work.x, x_dtype, kPrefillRows * work.x_stride);
  for (size_t i = copies_of(work.row_major.bytes()); i > 0; --i) {
    SHOAL_ASSIGN_OR_RETURN(PackedMatrix w, PackedMatrix::allocate(dtype, shape.n, shape.k,
                                                                  even_leaves(leaves, shape.k)));
    w.pack_rows(0, shape.n, work.row_major.as<>(), shape.k);
    work.copies.push_back(std::move(w));
  }
  return work;
}

struct Report {
  bool json = false;
  bool first = true;

  void line(const std::string& what, double value, const char* unit, double other, const char* of) {
    const double fraction = other > 0 ? value / other : 0;
    if (json) {
      std::printf(
          "%s\n  {\"what\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", \"beside\": %.4g, \"of\": \"%s\"}",
          first ? "[" : ",", what.c_str(), value, unit, other, of);
    } else if (other > 0) {
      std::printf("%-38s %9.1f %-8s %5.1f %% of %s (%.1f)\n", what.c_str(), value, unit,
                  100 * fraction, of, other);
    } else {
      std::printf("%-38s %9.1f %s\n", what.c_str(), value, unit);
    }
    first = false;
    std::fflush(stdout);
  }
  void end() const {
    if (json) std::printf("\n]\n");
  }
};

Status bench_shape(const KernelTable& kernels, Shape shape, Dtype dtype, ReadBandwidth& reads,
                   int rounds, Report* report) {
  const std::string name = cat(shape.n, "x", shape.k, " ", dtype_name(dtype));
  SHOAL_ASSIGN_OR_RETURN(const Workload work, make_workload(shape, dtype, 1));
  BestRead read(reads);
  const std::vector<double> decode =
      best_of(rounds, {[&] { read(); }, [&] { work.decode(kernels); }});
  report->line(cat("decode ", name), work.bytes() / decode[1] / 1e9, "GB/s", read.gigabytes_per_s(),
               "read bandwidth");

  const bool bf16 = dtype == Dtype::kBf16 && yardstick_of(kernels).bf16;
  SHOAL_ASSIGN_OR_RETURN(const AlignedBuffer weights, weights_of(shape, bf16));
  OnednnGemm yardstick(kPrefillRows, shape.n, shape.k, bf16, weights.as<>());
  const std::vector<double> prefill = best_of(
      std::max(3, rounds / 2), {[&] { work.multiply(kernels, work.copies.front(), kPrefillRows); },
                                [&] { yardstick.run(); }});
  report->line(cat("prefill of 512, ", name), work.flops() / prefill[0] / 1e9, "GFLOP/s",
               yardstick.available() ? work.flops() / prefill[1] / 1e9 : 0,
               bf16 ? "oneDNN bf16" : "oneDNN float32");

  SHOAL_ASSIGN_OR_RETURN(const Workload leafy, make_workload(shape, dtype, 16));
  const std::vector<double> leaves =
      best_of(rounds, {[&] { work.decode(kernels); }, [&] { leafy.decode(kernels); },
                       [&] { work.multiply(kernels, work.copies.front(), kPrefillRows); },
                       [&] { leafy.multiply(kernels, leafy.copies.front(), kPrefillRows); }});
  report->line(cat("decode, 16 leaves, ", name), leafy.bytes() / leaves[1] / 1e9, "GB/s",
               work.bytes() / leaves[0] / 1e9, "one leaf");
  report->line(cat("prefill, 16 leaves, ", name), work.flops() / leaves[3] / 1e9, "GFLOP/s",
               work.flops() / leaves[2] / 1e9, "one leaf");
  return {};
}

/// So many numbers: 0, step, 2 step and so on.
std::vector<int32_t> multiples(int step, int count) {
  std::vector<int32_t> numbers;
  for (int i = 0; i < count; ++i) numbers.push_back(i * step);
  return numbers;
}

/// Measures attention with 32 heads of 64 on 4 kv heads: for the last tokens of sequences of
/// kContext, which read their caches once, and for a prompt of kPrefillRows tokens.
Status bench_attention(const KernelTable& kernels, ReadBandwidth& reads, int rounds,
                       Report* report) {
  constexpr int kContext = 32768, kHeads = 32, kKvHeads = 4, kHeadDim = 64;
  KvLayer cache{.data = nullptr, .dtype = Dtype::kBf16, .kv_heads = kKvHeads, .head_dim = kHeadDim};
  const int64_t elements = cache.tile_elements() * kKvHeads * (kContext / kBlockTokens);
  const size_t bytes = static_cast<size_t>(elements) * 2, sequences = copies_of(bytes);
  SHOAL_ASSIGN_OR_RETURN(const AlignedBuffer memory, AlignedBuffer::allocate(sequences * bytes));
  fill(memory, cache.dtype, static_cast<int64_t>(sequences) * elements);
  const std::vector<int32_t> table = multiples(1, kContext / kBlockTokens),
                             head_begin = multiples(kHeads / kKvHeads, kKvHeads + 1);
  std::vector<float> q(kPrefillRows * kHeads * kHeadDim, 0.1f), out(q.size());
  const auto attend = [&](size_t sequence, int first_position, int rows) {
    cache.data = memory.as<>() + sequence * bytes;
    kernels.attention(
        {.q = q.data(),
         .q_stride = kHeads * kHeadDim,
         .heads = kHeads,
         .head_begin = head_begin.data(),
         .cache = cache,
         .sequence = {.block_table = table.data(), .first_position = first_position, .rows = rows},
         .scale = 0.125f,
         .out = out.data(),
         .out_stride = kHeads * kHeadDim},
        0, rows, 0, kKvHeads);
  };
  const auto last_tokens = [&] {
    for (size_t sequence = 0; sequence < sequences; ++sequence) attend(sequence, kContext - 1, 1);
  };
  BestRead read(reads);
  const auto prompt = [&] { attend(0, 0, kPrefillRows); };
  const std::vector<double> times = best_of(rounds, {[&] { read(); }, last_tokens, prompt});
  report->line(cat("attention, a token after ", kContext),
               static_cast<double>(memory.bytes()) / times[1] / 1e9, "GB/s", read.gigabytes_per_s(),
               "read bandwidth");
  const double pairs = kPrefillRows * (kPrefillRows + 1) / 2.0;
  report->line(cat("attention, ", kPrefillRows, " tokens"),
               4.0 * pairs * kHeads * kHeadDim / times[2] / 1e9, "GFLOP/s", 0, "");
  return {};
}

Status run(const std::string& set, Dtype dtype, int rounds, bool json) {
  SHOAL_ASSIGN_OR_RETURN(const KernelTable* kernels, find_kernels(set));
  SHOAL_ASSIGN_OR_RETURN(ReadBandwidth reads,
                         ReadBandwidth::create(1, {}, static_cast<size_t>(cache_bytes())));
  set_float_environment();
  OnednnGemm::limit(yardstick_of(*kernels).isa);
  if (!json) std::printf("kernels %s, one thread, best of %d\n", kernels->name, rounds);
  Report report{.json = json};
  for (Shape shape : kShapes) {
    SHOAL_RETURN_IF_ERROR(bench_shape(*kernels, shape, dtype, reads, rounds, &report));
  }
  SHOAL_RETURN_IF_ERROR(bench_attention(*kernels, reads, rounds, &report));
  report.end();
  return {};
}

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  CLI::App app("Kernels beside what the machine gives, on one thread");
  std::string set = "auto", dtype = "bfloat16";
  int rounds = 10;
  bool json = false;
  app.add_option("--cpu-kernels", set, "the set, or auto")->capture_default_str();
  app.add_option("--dtype", dtype, "of the weights")
      ->capture_default_str()
      ->check(CLI::IsMember({"bfloat16", "float16", "float32"}));
  app.add_option("--rounds", rounds, "the best of so many")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_flag("--json", json, "one JSON array in place of the table");
  CLI11_PARSE(app, argc, argv);
  const shoal::Status status = shoal::run(set, *shoal::parse_dtype(dtype), rounds, json);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.to_string().c_str());
  return 1;
}
