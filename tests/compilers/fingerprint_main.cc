// Prints the fingerprint of every kernel set, one per line: "avx2 d7547a4939ef0fe2". Exit code 1:
// one differs from the expected one.
#include <cstdio>

#include "runtime/base/thread_pool.h"
#include "runtime/worker/arithmetic.h"

int main() {
  shoal::set_float_environment();
  bool right = true;
  for (const shoal::KernelTable* table : shoal::available_kernels()) {
    const auto here = shoal::compute_fingerprint(*table);
    std::printf("%s %s\n", table->name,
                here.ok() ? here->text().c_str() : here.status().to_string().c_str());
    right = right && here.ok() && *here == shoal::expected_fingerprint();
  }
  return right ? 0 : 1;
}
