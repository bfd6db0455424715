#include "server/commands/collectives_bench.h"

#include <algorithm>
#include <cstdio>

#include "runtime/base/cat.h"
#include "runtime/base/number_text.h"
#include "server/commands/bare_exchange.h"

namespace shoal {
namespace {

constexpr size_t kMaxMovedBytes = size_t{4} << 30;
constexpr int kMinRepeats = 100;

/// The plan for a group of any size in which each rank has one leaf.
ReducePlan one_each(int world_size) {
  return make_reduce_plan(world_size, world_size, world_size);
}

Result<CollectiveTiming> time_size(Communicator& communicator, size_t bytes, int repeats) {
  const size_t count = bytes / sizeof(float);
  const ReducePlan plan = one_each(communicator.world().size);
  const std::vector<float> own(count, 1.0F);
  std::vector<float> sum(count);
  std::vector<double> times_us;
  times_us.reserve(static_cast<size_t>(repeats));
  for (int i = 0; i < repeats / 10; ++i) {
    SHOAL_RETURN_IF_ERROR(communicator.all_reduce(plan, own.data(), sum.data(), count));
  }
  SHOAL_RETURN_IF_ERROR(communicator.barrier());
  auto before = Clock::now();
  for (int i = 0; i < repeats; ++i) {
    SHOAL_RETURN_IF_ERROR(communicator.all_reduce(plan, own.data(), sum.data(), count));
    const auto after = Clock::now();
    times_us.push_back(std::chrono::duration<double, std::micro>(after - before).count());
    before = after;
  }
  if (count > 0 && sum.back() != static_cast<float>(communicator.world().size)) {
    return Status::error(Code::kInternal, cat("all_reduce of ", bytes, " bytes gave ", sum.back()));
  }
  std::sort(times_us.begin(), times_us.end());
  const size_t p99 = times_us.size() * 99 / 100;
  return CollectiveTiming{communicator.name(), communicator.world().size, bytes,
                          times_us[times_us.size() / 2], times_us[p99]};
}

std::string row_text(CollectiveRow row, int world_size, bool json) {
  std::sort(row.medians_us.begin(), row.medians_us.end());
  char text[256];
  std::snprintf(
      text, sizeof text,
      json
          ? "{\"transport\":\"%s\",\"tp\":%d,\"bytes\":%zu,\"median_us\":%.3f,\"best_us\":%.3f,\"p99_us\":%.3f}"
          : "all_reduce %-8s %2d ranks %8zu B  median %8.2f us  best round %8.2f us  its p99 %8.2f us\n",
      row.transport.c_str(), world_size, row.bytes, row.medians_us[row.medians_us.size() / 2],
      row.medians_us.front(), row.p99_us);
  return text;
}

}  // namespace

Result<std::vector<CollectiveTiming>> time_collectives(Communicator& communicator,
                                                       std::span<const size_t> sizes_bytes,
                                                       int repeats) {
  std::vector<CollectiveTiming> timings;
  for (const size_t bytes : sizes_bytes) {
    if (bytes % sizeof(float) != 0 || repeats < 1) {
      return Status::error(Code::kInvalidArgument,
                           cat("timing ", repeats, " all_reduces of ", bytes, " bytes"));
    }
    const size_t affordable =
        std::max<size_t>(kMinRepeats, kMaxMovedBytes / std::max<size_t>(bytes, 1));
    const int times = static_cast<int>(std::min<size_t>(static_cast<size_t>(repeats), affordable));
    SHOAL_ASSIGN_OR_RETURN(const CollectiveTiming timing, time_size(communicator, bytes, times));
    timings.push_back(timing);
  }
  return timings;
}

std::string collectives_report(const std::vector<CollectiveRow>& rows, const MachineLoad& load,
                               int world_size, bool json) {
  std::string text;
  for (const CollectiveRow& row : rows)
    text += cat(json && !text.empty() ? "," : "", row_text(row, world_size, json));
  if (json)
    return cat("{\"bench\":\"collectives\",\"load_average\":", with_decimals(load.average, 2),
               ",\"all_reduce\":[", text, "]}\n");
  const bool has_bare = std::any_of(rows.begin(), rows.end(), [](const CollectiveRow& row) {
    return row.transport == kBareExchange;
  });
  return cat("collectives: ", load.text(), "\n", text,
             has_bare
                 ? "bare: no transport but a yardstick: a loop over shared memory that copies, "
                   "sets a flag and adds, without deadline, sleep or check\n"
                 : "");
}

}  // namespace shoal
