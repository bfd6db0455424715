// Runs Gloo's allreduce of 1 KiB, 64 KiB and 4 MiB over its TCP transport between two processes,
// which meet through a folder.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <gloo/allreduce.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

constexpr int kRanks = 2;

int all_reduce(int rank, const std::string& folder) {
  gloo::transport::tcp::attr attributes;
  attributes.iface = "lo";
  gloo::rendezvous::FileStore store(folder);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, kRanks);
  context->setTimeout(std::chrono::seconds(10));
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  context->connectFullMesh(store, device);
  int wrong = 0;
  for (const size_t count : {size_t{256}, size_t{16384}, size_t{1048576}}) {
    std::vector<float> mine(count, static_cast<float>(rank + 1)), sum(count);
    gloo::AllreduceOptions options(context);
    options.setInput(mine.data(), count);
    options.setOutput(sum.data(), count);
    options.setReduceFunction([](void* out, const void* a, const void* b, size_t n) {
      for (size_t i = 0; i < n; ++i) {
        static_cast<float*>(out)[i] =
            static_cast<const float*>(a)[i] + static_cast<const float*>(b)[i];
      }
    });
    gloo::allreduce(options);
    for (const float value : sum) wrong += value != 3;
  }
  std::printf("rank %d: %d wrong\n", rank, wrong);
  return wrong == 0 ? 0 : 1;
}

int guarded(int rank, const std::string& folder) {
  try {
    return all_reduce(rank, folder);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
}

}  // namespace

int main() {
  std::string folder = "/tmp/gloo-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) return 1;
  const pid_t child = fork();
  if (child == 0) {
    const int code = guarded(1, folder);
    std::fflush(nullptr);
    _exit(code);
  }
  const int mine = guarded(0, folder);
  int status = 0;
  waitpid(child, &status, 0);
  std::filesystem::remove_all(folder);
  return mine == 0 && status == 0 ? 0 : 1;
}
