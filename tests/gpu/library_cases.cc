// Products by own kernels and by cuBLASLt, in turns in one run: how long each takes, and whether
// they agree. It prints from how many rows on the library is the faster one, as kCrossovers in
// models/library_products.cc wants it.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <span>
#include <string_view>

#include "bench/gpu/rank_processes.h"
#include "models/device_ops.h"
#include "models/library_products.h"
#include "tests/gpu/gpu_cases.h"
#include "tests/gpu/layer_problem.h"
#include "tests/gpu/library_shapes.h"
#include "tests/gpu/timing.h"

namespace shoal::gpu {
namespace {

constexpr int kSeconds = 280;  // for all of it

/// How much is measured.
struct Effort {
  std::vector<ModelShape> models;
  int most_rows;
  Turns turns;           ///< of each
  int64_t weight_bytes;  ///< of copies of a matrix, so that a device's cache does not hold them
};
Effort effort_of(const Options& options) {
  if (options.quick || options.stand_in) return {{kTinyModel}, 32, {2, 0}, 1};
  return {{std::begin(kModels), std::end(kModels)}, 2048, {9, 5e-3}, int64_t{256} << 20};
}

/// Those of one token and of few, and those for which the library's products are planned.
std::vector<int32_t> measured_rows(int most) {
  std::vector<int32_t> rows = {1, 8};
  for (const int32_t planned : row_buckets(1, most)) rows.push_back(planned);
  return rows;
}

struct Timing {
  int rows;
  double own_us, library_us;
};
using Timings = std::vector<Timing>;  // by rows, ascending

/// The least rows from which on the library is never the slower one; nullopt if it still is with
/// the most rows.
std::optional<int> crossover(const Timings& timings) {
  std::optional<int> from;
  for (auto at = timings.rbegin(); at != timings.rend() && at->library_us <= at->own_us; ++at)
    from = at->rows;
  return from;
}

/// Compares the results of own kernels with those of the library (its). Each is a sum of `columns`
/// products of numbers between -2 and 2. The two add in different orders, and a tensor core cuts
/// off low bits of what it adds, so two right results may differ by 1e-5 for each product. Returns
/// "", or the first value that differs by more.
std::string difference(const std::vector<float>& own, const std::vector<float>& its, int columns) {
  const double may_lose = 1e-5 * columns;
  for (size_t i = 0; i < own.size(); ++i) {
    if (!(std::abs(double{own[i]} - double{its[i]}) <= may_lose))
      return cat("value ", i, ": ", its[i], " of the library for ", own[i]);
  }
  return "";
}

/// One product on the device, which both compute, each into a result of its own.
class Rivals {
 public:
  Rivals(OneDevice& one, LibraryProducts& library, Dtype type, const Effort& effort)
      : one_(one), library_(library), type_(type), effort_(effort) {}

  Status prepare(const ProductShape& shape);
  /// Computes a product of `rows` rows once by own kernels and once by the library, and compares
  /// the first and the last rows of the two results. INTERNAL: they differ by more than rounding
  /// (difference()), or the library has no algorithm for this product.
  Status compare(int rows);
  Result<Timing> time(int rows);

 private:
  enum By { kOwn, kLibrary };
  Status enqueue(By by, int rows, int call);
  Status compare_rows(int from, int to);
  LibraryProducts::Call library_call(const DeviceMatrix& w, int rows) const;

  OneDevice& one_;
  LibraryProducts& library_;
  const Dtype type_;
  const Effort& effort_;
  int columns_ = 0;
  std::vector<DeviceMatrix> weights_;  // copies, which take turns
  Device::Memory x_, y_[2], scratch_;
  int64_t scratch_floats_ = 0;
};

Status Rivals::prepare(const ProductShape& shape) {
  columns_ = shape.columns;
  const DeviceMatrix matrix = matrix_of(shape);
  const int64_t elements = int64_t{shape.outputs} * shape.columns;
  const int64_t bytes = elements * static_cast<int64_t>(dtype_bytes(type_));
  for (int64_t held = 0; held < effort_.weight_bytes; held += bytes) {
    weights_.push_back(matrix);
    SHOAL_ASSIGN_OR_RETURN(weights_.back().weights, random_elements(one_, type_, elements, 1));
  }
  const int rows = effort_.most_rows;
  SHOAL_ASSIGN_OR_RETURN(
      x_, random_elements(one_, activation_dtype(type_), int64_t{rows} * columns_, 2));
  for (Device::Memory& y : y_) {
    SHOAL_ASSIGN_OR_RETURN(y, one_.device->allocate(area(rows, shape.outputs) * sizeof(float)));
  }
  scratch_floats_ = shoal_product_scratch_floats(shape.outputs, rows, matrix.leaves);
  if (scratch_floats_ > 0) {
    SHOAL_ASSIGN_OR_RETURN(
        scratch_, one_.device->allocate_raw(static_cast<size_t>(scratch_floats_) * sizeof(float)));
  }
  return library_.plan(weights_.front(), type_, columns_, rows);
}

LibraryProducts::Call Rivals::library_call(const DeviceMatrix& w, int rows) const {
  return {&w, x_.get(), columns_, rows, effort_.most_rows, static_cast<float*>(y_[kLibrary].get())};
}

Status Rivals::enqueue(By by, int rows, int call) {
  const DeviceMatrix& w = weights_[static_cast<size_t>(call) % weights_.size()];
  if (by == kLibrary) return library_.multiply(library_call(w, rows), one_.stream.get());
  const std::span<float> scratch(static_cast<float*>(scratch_.get()),
                                 static_cast<size_t>(scratch_floats_));
  const ShoalProduct args = product_args(w, type_, scratch, x_.get(), columns_, rows,
                                         static_cast<float*>(y_[kOwn].get()));
  return one_.device->enqueue(one_.device->module().product, args, one_.stream.get(), "product");
}

Status Rivals::compare(int rows) {
  if (!library_.computes(library_call(weights_.front(), rows)))
    return Status::error(Code::kInternal, cat("the library has no algorithm for rows: ", rows));
  SHOAL_RETURN_IF_ERROR(enqueue(kOwn, rows, 0));
  SHOAL_RETURN_IF_ERROR(enqueue(kLibrary, rows, 0));
  SHOAL_RETURN_IF_ERROR(one_.finish());
  // The first rows and the last ones.
  constexpr int kMostCompared = 1 << 20;
  const int some = std::clamp(kMostCompared / weights_.front().outputs, 1, rows);
  SHOAL_RETURN_IF_ERROR(compare_rows(0, some));
  return compare_rows(std::max(some, rows - some), rows);
}

Status Rivals::compare_rows(int from, int to) {
  if (from >= to) return {};
  const auto outputs = static_cast<size_t>(weights_.front().outputs);
  std::vector<float> results[2];
  for (const By by : {kOwn, kLibrary}) {
    results[by].resize(static_cast<size_t>(to - from) * outputs);
    const auto* const y = static_cast<const float*>(y_[by].get());
    SHOAL_RETURN_IF_ERROR(one_.get(results[by].data(), y + static_cast<size_t>(from) * outputs,
                                   results[by].size() * sizeof(float)));
  }
  const std::string wrong = difference(results[kOwn], results[kLibrary], columns_);
  if (wrong.empty()) return {};
  return Status::error(Code::kInternal, cat("from row ", from, " on, ", wrong));
}

Result<Timing> Rivals::time(int rows) {
  const auto by = [&](By who) -> Work {
    return [this, who, rows](int call) { return enqueue(who, rows, call); };
  };
  SHOAL_ASSIGN_OR_RETURN(const std::vector<CallTime> times,
                         time_calls(one_, {by(kOwn), by(kLibrary)}, effort_.turns));
  return Timing{rows, times[kOwn].device_us, times[kLibrary].device_us};
}

void print_row(const ModelShape& model, const char* product, const Timing& timing) {
  std::printf("| %s | %s | %d | %.1f | %.1f | %.2f |\n", model.name, product, timing.rows,
              timing.own_us, timing.library_us, timing.own_us / timing.library_us);
}

std::string text_of(std::optional<int> from) {
  return from.has_value() ? std::to_string(*from) : "never";
}

/// A model, product by product and then a layer's four together. Returns from how many rows on the
/// library is faster in a layer, which is what a step consists of.
Result<std::optional<int>> measure_model(const ModelShape& model, OneDevice& one,
                                         LibraryProducts& library, Dtype type,
                                         const Effort& effort) {
  const std::vector<int32_t> all_rows = measured_rows(effort.most_rows);
  Timings layer;
  for (const int32_t rows : all_rows) layer.push_back({rows, 0, 0});
  std::string faster;
  for (const ProductShape& shape : products_of(model)) {
    Rivals rivals(one, library, type, effort);
    SHOAL_RETURN_IF_ERROR(rivals.prepare(shape));
    Timings timings;
    for (Timing& sum : layer) {
      if (const Status agree = rivals.compare(sum.rows); !agree.ok())
        return agree.while_doing(cat(model.name, ", ", shape.name, ", rows ", sum.rows));
      SHOAL_ASSIGN_OR_RETURN(const Timing timing, rivals.time(sum.rows));
      print_row(model, shape.name, timing);
      timings.push_back(timing);
      if (!shape.of_layer) continue;
      sum.own_us += timing.own_us;
      sum.library_us += timing.library_us;
    }
    faster += cat(shape.name, " ", text_of(crossover(timings)), ", ");
  }
  for (const Timing& sum : layer) print_row(model, "layer", sum);
  std::puts(cat("The library is faster, ", model.name, ", from rows: ", faster, "layer ",
                text_of(crossover(layer)))
                .c_str());
  return crossover(layer);
}

/// The name of the device, from what the module says of it.
std::string device_name_of(const ShoalCudaModule& module) {
  char text[64 * 1024];
  if (module.facts(text, sizeof text) != 0) return "a device";
  constexpr std::string_view kName = "\"name\": \"";
  const std::string_view facts = text;
  const size_t at = facts.find(kName);
  if (at == std::string_view::npos) return "a device";
  const std::string_view rest = facts.substr(at + kName.size());
  return std::string(rest.substr(0, rest.find('"')));
}

/// The greater of two crossovers; nullopt if one of them is.
std::optional<int> later(std::optional<int> a, std::optional<int> b) {
  return a && b ? std::optional<int>(std::max(*a, *b)) : std::nullopt;
}

/// The row of kCrossovers for this device.
std::string row_to_enter(int capability, std::optional<int> from, int64_t workspace_bytes) {
  // With fewer rows, some products must stay unfolded, and the library cannot do that.
  const int most_unfolded = kShoalMostUnfoldedRows + 1;
  return from ? cat("{", capability, ", ", std::max(*from, most_unfolded), ", ",
                    workspace_bytes >> 20, " * kMiB}")
              : "none, because own kernels are faster with the most rows";
}

/// All models in both types, which share a row of the table. Prints that row last.
Status measure(const Options& options, OneDevice& one) {
  const Effort effort = effort_of(options);
  int32_t major = 0, minor = 0;
  const ShoalCudaModule& module = one.device->module();
  SHOAL_RETURN_IF_ERROR(
      one.device->check(module.capability(0, &major, &minor), "compute capability"));
  SHOAL_ASSIGN_OR_RETURN(const CublasApi api, open_cublas(options.cublas_library));
  ProductLibrary library = product_library_for({cat(major, ".", minor)}, options.cublas_library,
                                               cublas_version_text(api.version));
  library.least_rows = 1;  // so that it is tried where it loses too
  const std::string where =
      cat(device_name_of(module), ", sm_", major, minor, ", cuBLASLt ", library.version);
  std::optional<int> from = 1;
  for (const Dtype type : {Dtype::kBf16, Dtype::kF32}) {
    SHOAL_ASSIGN_OR_RETURN(const auto products, LibraryProducts::open(library, *one.device));
    std::puts(cat(where, ", ", dtype_name(type), ", medians, turns: ", effort.turns.count,
                  "\n\n"
                  "| model | product | rows | own us | library us | own / library |\n"
                  "|---|---|--:|--:|--:|--:|")
                  .c_str());
    for (const ModelShape& model : effort.models) {
      SHOAL_ASSIGN_OR_RETURN(const std::optional<int> faster,
                             measure_model(model, one, *products, type, effort));
      from = later(from, faster);
    }
  }
  const std::string row = row_to_enter(major * 10 + minor, from, library.workspace_bytes);
  std::printf("Row to enter in kCrossovers of models/library_products.cc: %s  // %s\n", row.c_str(),
              where.c_str());
  return {};
}

std::string library_beside_own_kernels(const Options& options) {
  return on_device(options, [&](OneDevice& one) -> std::string {
    const Status status = measure(options, one);
    std::fflush(stdout);  // this process ends without it
    return status.ok() ? "" : status.to_string();
  });
}

/// What the others print and fail by, for numbers that are known.
std::string verdicts_are_right() {
  const Timings mixed = {{16, 2, 1}, {32, 1, 2}, {64, 2, 2}, {128, 3, 1}};
  if (crossover(mixed) != 64) return cat("crossover from rows ", text_of(crossover(mixed)));
  if (crossover({{16, 2, 1}, {32, 1, 2}})) return "a library that loses in the end wins";
  if (crossover({{16, 2, 1}, {32, 2, 1}}) != 16) return "a library that always wins does not";
  if (later(64, 16) != 64 || later(64, std::nullopt)) return "the later one is not taken";
  const std::string row = row_to_enter(90, 160, 32 << 20);
  if (row != "{90, 160, 32 * kMiB}") return cat("enters ", row);
  if (row_to_enter(86, 1, 4 << 20) != cat("{86, ", kShoalMostUnfoldedRows + 1, ", 4 * kMiB}"))
    return "enters rows for which products are left unfolded";
  if (row_to_enter(86, std::nullopt, 1).front() == '{')
    return "enters a row for a library that loses";
  const std::vector<float> sums = {3, -40, 0.5f};
  if (const std::string wrong = difference(sums, {3.0001f, -40.0001f, 0.5f}, 128); !wrong.empty())
    return cat("rounding counts as a difference: ", wrong);
  if (difference(sums, {3, -40, 0.51f}, 128).empty()) return "a difference is not seen";
  if (difference(sums, {3, std::nanf(""), 0.5f}, 128).empty()) return "NaN is not seen";
  return "";
}

/// Runs body in a process of its own, if there is a library.
std::string with_library(const Options& options, const std::function<std::string()>& body) {
  if (options.cublas_library.empty())
    return cat(kSkip, "no libcublasLt is given (--cublas-library)");
  return run_apart(kSeconds, [&]() -> std::string {
    const auto api = open_cublas(options.cublas_library);
    return api.ok() ? body() : cat(kSkip, api.status().message());
  });
}

}  // namespace

void add_library_cases(const Options& options, std::vector<Case>& cases) {
  const auto add = [&](const std::string& name, const std::function<std::string()>& body) {
    cases.push_back({name, [options, body] { return with_library(options, body); }});
  };
  add("library/verdicts", [] { return verdicts_are_right(); });
  add("library/beside-own", [=] { return library_beside_own_kernels(options); });
}

}  // namespace shoal::gpu
