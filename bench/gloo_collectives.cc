// Times Gloo's all-reduce between two processes on this machine in the same way as `shoal bench
// collectives` times its transports: calls back to back, each rank bound to a CPU. Prints one JSON
// object with the default algorithm (a ring) and the fastest that Gloo has for two ranks
// (halving-doubling, synchronous, polling), from 64 B to 16 MiB.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/barrier.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <memory>
#include <sched.h>
#include <string>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kBytes[] = {64, 1024, 8192, 65536, 262144, 1 << 20, 4 << 20, 16 << 20};

void bind_to(int index) {
  cpu_set_t all, one;
  sched_getaffinity(0, sizeof all, &all);
  CPU_ZERO(&one);
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all) && seen++ == index) CPU_SET(cpu, &one);
  }
  if (CPU_COUNT(&one) == 1) sched_setaffinity(0, sizeof one, &one);
}

std::shared_ptr<gloo::rendezvous::Context> connect(int rank, const std::string& directory,
                                                   bool polling) {
  gloo::transport::tcp::attr attributes("127.0.0.1");
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
  gloo::rendezvous::FileStore store(directory);
  context->connectFullMesh(store, device);
  if (polling) context->getPair(1 - rank)->setSync(true, true);
  return context;
}

/// The number of repeats depends only on the size, so that both ranks agree. It is small for large
/// messages, on which the ring stalls for 40 ms and more.
template <typename Reduce>
double median_us(size_t bytes, const Reduce& reduce) {
  for (int i = 0; i < 5; ++i) reduce();
  const int repeats = bytes <= 8192 ? 1000 : bytes <= 262144 ? 50 : 10;
  std::vector<double> times;
  auto before = Clock::now();
  for (int i = 0; i < repeats; ++i) {
    reduce();
    const auto after = Clock::now();
    times.push_back(std::chrono::duration<double, std::micro>(after - before).count());
    before = after;
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[static_cast<size_t>(repeats / 2)];
}

void check(const std::vector<float>& sum, float expected) {
  if (sum.front() == expected && sum.back() == expected) return;
  std::fprintf(stderr, "gloo_collectives: wrong sum %g\n", static_cast<double>(sum.front()));
  std::_Exit(1);
}

double ring(const std::shared_ptr<gloo::rendezvous::Context>& context, size_t bytes) {
  std::vector<float> in(bytes / sizeof(float), 1), out(in.size());
  gloo::AllreduceOptions options(context);
  options.setInput(in.data(), in.size());
  options.setOutput(out.data(), out.size());
  options.setReduceFunction(
      static_cast<void (*)(void*, const void*, const void*, size_t)>(&gloo::sum<float>));
  const double us = median_us(bytes, [&] { gloo::allreduce(options); });
  check(out, 2);
  return us;
}

double halving_doubling(const std::shared_ptr<gloo::rendezvous::Context>& context, size_t bytes) {
  std::vector<float> data(bytes / sizeof(float), 1);
  gloo::AllreduceHalvingDoubling<float> algorithm(context, {data.data()},
                                                  static_cast<int>(data.size()));
  std::fill(data.begin(), data.end(), 1.0F);
  algorithm.run();
  check(data, 2);
  return median_us(bytes, [&] {
    data[0] = 1;  // the other values may grow, because adding floats takes the same time until they
                  // are infinite
    algorithm.run();
  });
}

void run_rank(int rank, const std::string& directory) {
  bind_to(rank);
  std::vector<std::string> objects;
  const auto add = [&](const char* algorithm, size_t bytes, double us) {
    char text[160];
    std::snprintf(text, sizeof text, R"({"transport":"%s","tp":2,"bytes":%zu,"median_us":%.3f})",
                  algorithm, bytes, us);
    objects.emplace_back(text);
  };
  {
    const auto context = connect(rank, directory + "/ring", false);
    for (const size_t bytes : kBytes) {
      add("gloo ring", bytes, ring(context, bytes));
      if (rank == 0) std::fprintf(stderr, "%s\n", objects.back().c_str());
    }
  }
  {
    const auto context = connect(rank, directory + "/hd", true);
    for (const size_t bytes : kBytes) add("gloo polling", bytes, halving_doubling(context, bytes));
  }
  if (rank != 0) return;
  std::string list;
  for (const std::string& object : objects) list += (list.empty() ? "" : ",") + object;
  std::printf("{\"bench\":\"collectives\",\"all_reduce\":[%s]}\n", list.c_str());
}

}  // namespace

int main() {
  char directory[] = "/tmp/gloo-bench-XXXXXX";
  if (mkdtemp(directory) == nullptr) return 1;
  const std::string root = directory;
  if (std::system(("mkdir " + root + "/ring " + root + "/hd").c_str()) != 0) return 1;
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    run_rank(1, root);
    std::_Exit(0);
  }
  run_rank(0, root);
  int status = 0;
  waitpid(child, &status, 0);
  if (std::system(("rm -r " + root).c_str()) != 0) return 1;
  return status;
}
