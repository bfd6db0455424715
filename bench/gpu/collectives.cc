// How long an all_reduce between devices takes, by rung and size:
//   gpu_collectives --module PATH [--nccl-library PATH] [--ranks 2,4] [--seconds 1]
//                   [--rungs cuda-ipc,tcp]
// The data stays in device memory, and every rank has one contribution. "call" is the median time
// of a call that the host waits for; "stream" is the time per call if many are enqueued without a
// wait. Prints a table with machine and date.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <sstream>
#include <string>
#include <vector>

#include "bench/gpu/device_group.h"
#include "runtime/base/cat.h"
#include "runtime/device/module_loader.h"

namespace shoal::gpu {
namespace {

constexpr size_t kSizes[] = {8 << 10,   16 << 10,  32 << 10,  64 << 10,
                             128 << 10, 256 << 10, 512 << 10, 1 << 20};
constexpr int kMostCalls = 2000;

struct Settings {
  std::string module;
  std::string nccl_library;
  std::vector<std::string> rungs{std::begin(kRungs), std::end(kRungs)};
  std::vector<int> ranks = {2, 4};
  double seconds = 1;  ///< approximate time of each measurement
};

struct Timing {
  double call_us = 0;
  double stream_us = 0;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

/// What the module says about the devices, or "" if there is none. A separate process asks, because
/// a process that has used CUDA cannot use it in its children.
std::string facts(const std::string& path) {
  return run_apart(60, [&]() -> std::string {
    const Result<const ShoalCudaModule*> module = load_cuda_module(path);
    char text[64 * 1024];
    if (!module.ok() || (*module)->facts(text, sizeof text) != 0) return "";
    return text;
  });
}

/// One rank's part in measuring one size.
class Clocked {
 public:
  Clocked(RankDevice& rank, size_t bytes) : rank_(rank), count_(bytes / sizeof(float)) {
    const int size = rank.collective->world().size;
    plan_ = make_reduce_plan(size, size, size);
  }
  Status open() {
    SHOAL_ASSIGN_OR_RETURN(stream_, rank_.device->make_stream());
    SHOAL_ASSIGN_OR_RETURN(event_, rank_.device->make_event());
    SHOAL_ASSIGN_OR_RETURN(own_, rank_.device->allocate(count_ * sizeof(float)));
    SHOAL_ASSIGN_OR_RETURN(out_, rank_.device->allocate(count_ * sizeof(float)));
    return {};
  }
  Status enqueue() {
    return rank_.collective->enqueue_all_reduce(plan_, static_cast<const float*>(own_.get()),
                                                static_cast<float*>(out_.get()), count_,
                                                stream_.get(), Deadline::after_ms(60'000));
  }
  Status finish() {
    SHOAL_RETURN_IF_ERROR(rank_.device->record(event_.get(), stream_.get()));
    SHOAL_RETURN_IF_ERROR(rank_.device->wait(event_.get(), Deadline::after_ms(60'000), {}));
    return rank_.collective->check();
  }
  /// All ranks must make the same number of calls, so they agree on `calls` before.
  Result<Timing> time(int calls) {
    std::vector<double> each;
    for (int i = 0; i < calls; ++i) {
      const auto began = Clock::now();
      SHOAL_RETURN_IF_ERROR(enqueue());
      SHOAL_RETURN_IF_ERROR(finish());
      each.push_back(seconds_since(began) * 1e6);
    }
    const auto began = Clock::now();
    for (int i = 0; i < calls; ++i) SHOAL_RETURN_IF_ERROR(enqueue());
    SHOAL_RETURN_IF_ERROR(finish());
    std::nth_element(each.begin(), each.begin() + calls / 2, each.end());
    return Timing{each[static_cast<size_t>(calls / 2)], seconds_since(began) * 1e6 / calls};
  }

 private:
  RankDevice& rank_;
  const size_t count_;
  ReducePlan plan_;
  Device::Stream stream_;
  Device::Event event_;
  Device::Memory own_, out_;
};

/// Returns this rank's results, one line for each size: bytes, call, stream.
Result<std::string> measure(GroupSetup& setup, const RankPlace& place, double seconds) {
  SHOAL_ASSIGN_OR_RETURN(RankDevice rank, open_rank(setup, place));
  std::ostringstream lines;
  for (const size_t bytes : kSizes) {
    Clocked clocked(rank, bytes);
    SHOAL_RETURN_IF_ERROR(clocked.open());
    SHOAL_ASSIGN_OR_RETURN(const Timing warm, clocked.time(5));
    // All ranks use the number of calls that rank 0 has computed.
    const int mine =
        std::clamp(static_cast<int>(seconds * 0.5e6 / std::max(warm.call_us, 1.0)), 10, kMostCalls);
    SHOAL_ASSIGN_OR_RETURN(const std::vector<std::string> calls,
                           place.exchange(std::to_string(mine)));
    SHOAL_ASSIGN_OR_RETURN(const Timing timing, clocked.time(std::atoi(calls[0].c_str())));
    lines << bytes << ' ' << timing.call_us << ' ' << timing.stream_us << '\n';
  }
  return lines.str();
}

void print_row(const char* rung, int ranks, const std::string& lines) {
  std::printf("| %-10s | %5d |", rung, ranks);
  std::istringstream stream(lines);
  size_t bytes = 0;
  for (Timing timing; stream >> bytes >> timing.call_us >> timing.stream_us;) {
    std::printf(" %.1f / %.1f |", timing.call_us, timing.stream_us);
  }
  std::printf("\n");
  std::fflush(stdout);
}

/// Measures and prints one row. Returns false if a rank failed; a rung that is skipped is not a
/// failure.
bool bench_rung(const Settings& settings, const std::string& rung, int ranks, int devices) {
  constexpr const char* kError = "error: ";
  GroupSetup setup;
  setup.rung = rung;
  setup.module = settings.module;
  setup.nccl_library = settings.nccl_library;
  setup.ranks_per_gpu = (ranks + devices - 1) / devices;
  setup.timeout_ms = 60'000;
  if (const std::string reason = why_not(setup, ranks); !reason.empty()) {
    std::printf("| %-10s | %5d | skipped: %s\n", rung.c_str(), ranks, reason.c_str());
    return true;
  }
  if (const Status status = prepare(setup, ranks); !status.ok()) {
    std::printf("| %-10s | %5d | %s\n", rung.c_str(), ranks, status.to_string().c_str());
    return false;
  }
  const std::vector<std::string> reports =
      run_ranks(ranks, 280, [&](const RankPlace& place) -> std::string {
        const Result<std::string> lines = measure(setup, place, settings.seconds);
        if (!lines.ok()) return kError + lines.status().to_string();
        return place.world.rank == 0 ? *lines : "";
      });
  bool good = true;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (rank == 0 && reports[0].find(kError) == std::string::npos && !reports[0].empty()) continue;
    if (rank > 0 && reports[rank].empty()) continue;
    std::printf("| %-10s | %5d | rank %zu: %s\n", rung.c_str(), ranks, rank, reports[rank].c_str());
    good = false;
  }
  if (good) print_row(rung.c_str(), ranks, reports[0]);
  return good;
}

int bench(const Settings& settings) {
  const std::string machine = facts(settings.module);
  int devices = 0;
  for (size_t at = 0; (at = machine.find("\"pci_bus_id\"", at)) != std::string::npos; ++at)
    ++devices;
  if (devices == 0) {
    std::printf("gpu_collectives: SKIPPED, NOTHING WAS MEASURED: no device\n");
    return 77;
  }
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
  std::printf(
      "%s\n%s\n%d device(s): more ranks than devices share one, which is a test arrangement.\n\n",
      date, machine.c_str(), devices);
  std::printf("All_reduce in us, call / stream:\n\n| rung       | ranks |");
  for (const size_t bytes : kSizes) std::printf(" %zu KiB |", bytes >> 10);
  std::printf("\n|---|--:|");
  for (size_t i = 0; i < std::size(kSizes); ++i) std::printf("--:|");
  std::printf("\n");
  bool good = true;
  for (const std::string& rung : settings.rungs) {
    for (const int ranks : settings.ranks)
      good = bench_rung(settings, rung, ranks, devices) && good;
  }
  return good ? 0 : 1;
}

}  // namespace
}  // namespace shoal::gpu

int main(int argc, char** argv) {
  using namespace shoal::gpu;  // NOLINT: the whole program is this
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const std::string value = argv[i + 1];
    if (flag == "--module") settings.module = value;
    if (flag == "--nccl-library") settings.nccl_library = value;
    if (flag == "--seconds") settings.seconds = std::atof(value.c_str());
    if (flag == "--rungs") settings.rungs = split(value);
    if (flag == "--ranks") {
      settings.ranks.clear();
      for (const std::string& ranks : split(value))
        settings.ranks.push_back(std::atoi(ranks.c_str()));
    }
  }
  if (settings.module.empty() || argc % 2 == 0) {
    std::fprintf(
        stderr,
        "gpu_collectives --module PATH [--nccl-library PATH] [--ranks 2,4] [--seconds 1] [--rungs A,B]\n");
    return 64;
  }
  return bench(settings);
}
