// The checks that need a device, in one program without a test framework, so that it builds on a
// bare machine:
//   gpu_test --module PATH [--nccl-library PATH] [--cublas-library PATH] [--ranks 2,4]
//            [--only TEXT[,TEXT]] [--quick] [--any-room] [--list] [--stand-in]
// Cases whose names contain a TEXT of --only are run, but none that contains the rest of a -TEXT.
// With GTEST_FAIL_FAST=1 the first one that fails is the last one, as in programs of GoogleTest.
// Exit code 0: all cases that could be tried passed; 1: one failed, or no case has such a name; 77:
// there is no device or every case was skipped, so nothing was checked.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>

#include "bench/gpu/rank_processes.h"
#include "runtime/base/cat.h"
#include "runtime/base/deadline.h"
#include "runtime/device/module_loader.h"
#include "tests/gpu/gpu_cases.h"

namespace shoal::gpu {
namespace {

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    if (comma > at) parts.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return parts;
}

/// The devices that the module shows, as found by a child process; otherwise the reason why there
/// are none.
struct Found {
  int devices = 0;
  std::string words;
  int compute_major = 0;  ///< of the first device
};
Found find_devices(const std::string& path) {
  const std::string facts = run_apart(60, [&]() -> std::string {
    const Result<const ShoalCudaModule*> module = load_cuda_module(path);
    if (!module.ok()) return module.status().to_string();
    char text[64 * 1024];
    const int32_t error = (*module)->facts(text, sizeof text);
    return error == 0 ? text : (*module)->error_text(error);
  });
  Found found{0, facts};
  constexpr std::string_view kCapability = "\"compute_capability\": \"";
  if (const size_t at = facts.find(kCapability); at != std::string::npos)
    found.compute_major = std::atoi(facts.c_str() + at + kCapability.size());
  for (size_t at = 0; (at = facts.find("\"pci_bus_id\"", at)) != std::string::npos; ++at)
    ++found.devices;
  return found;
}

bool chosen(const std::string& name, const std::vector<std::string>& only) {
  bool any = only.empty();
  for (const std::string& text : only) {
    const bool leaves_out = text.starts_with('-');
    if (name.find(leaves_out ? text.substr(1) : text) == std::string::npos) continue;
    if (leaves_out) return false;
    any = true;
  }
  return any;
}

/// Whether nobody wants to know more than that something fails.
bool fails_fast() {
  const char* const value = std::getenv("GTEST_FAIL_FAST");
  return value != nullptr && std::string_view(value) != "0";
}

int run_cases(const std::vector<Case>& cases, const std::vector<std::string>& only) {
  int passed = 0, failed = 0, skipped = 0;
  const bool fast = fails_fast();
  for (const Case& one : cases) {
    if (fast && failed > 0) break;
    if (!chosen(one.name, only)) continue;
    const auto began = Clock::now();
    const std::string wrong = one.run();
    const bool skip = std::string_view(wrong).substr(0, std::strlen(kSkip)) == kSkip;
    ++(wrong.empty() ? passed : skip ? skipped : failed);
    std::printf("%s  %-36s %6.1f s  %s\n",
                wrong.empty() ? "ok  "
                : skip        ? "SKIP"
                              : "FAIL",
                one.name.c_str(), seconds_since(began), wrong.c_str());
    std::fflush(stdout);
  }
  std::printf("%d passed, %d failed, %d skipped%s\n", passed, failed, skipped,
              fast && failed > 0 ? ", and GTEST_FAIL_FAST leaves out the others" : "");
  if (failed > 0 || passed + skipped == 0) return 1;
  return passed == 0 ? 77 : 0;
}

}  // namespace
}  // namespace shoal::gpu

int main(int argc, char** argv) {
  using namespace shoal::gpu;  // NOLINT: the whole program uses this namespace
  Options options;
  std::vector<std::string> only;
  bool list = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    const bool has_value = i + 1 < argc;
    if (flag == "--quick") {
      options.quick = true;
    } else if (flag == "--any-room") {
      options.any_room = true;
    } else if (flag == "--stand-in") {
      options.stand_in = true;
    } else if (flag == "--list") {
      list = true;
    } else if (flag == "--module" && has_value) {
      options.module = argv[++i];
    } else if (flag == "--nccl-library" && has_value) {
      options.nccl_library = argv[++i];
    } else if (flag == "--cublas-library" && has_value) {
      options.cublas_library = argv[++i];
    } else if (flag == "--only" && has_value) {
      only = split(argv[++i]);
    } else if (flag == "--ranks" && has_value) {
      options.ranks.clear();
      for (const std::string& ranks : split(argv[++i]))
        options.ranks.push_back(std::atoi(ranks.c_str()));
    } else {
      std::fprintf(stderr, "gpu_test: unknown or incomplete argument %s\n", flag.c_str());
      return 64;
    }
  }
  const Found found = find_devices(options.module);
  if (found.devices == 0 && !list) {
    std::printf("gpu_test: SKIPPED, NOTHING WAS TESTED: no device: %s\n", found.words.c_str());
    return 77;
  }
  std::printf("%s\n", found.words.c_str());
  std::fflush(stdout);  // or a case that prints would do it once more
  options.devices = std::max(found.devices, 1);
  options.compute_major = found.compute_major;
  // Streams that share a hardware queue wait for each other, so that ranks in threads would never
  // meet.
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);

  std::vector<Case> cases;
  add_table_cases(options, cases);
  add_tree_sum_cases(options, cases);
  add_arith_cases(options, cases);
  add_product_cases(options, cases);
  add_library_cases(options, cases);
  add_layer_cases(options, cases);
  add_add_norm_cases(options, cases);
  add_qkv_cases(options, cases);
  add_attention_cases(options, cases);
  add_op_times_cases(options, cases);
  add_push_cases(options, cases);
  add_collective_cases(options, cases);
  if (!list) return run_cases(cases, only);
  for (const Case& one : cases) std::printf("%s\n", one.name.c_str());
  return 0;
}
