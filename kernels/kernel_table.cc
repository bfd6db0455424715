#include "kernels/kernel_table.h"

#include "kernels/kernel_set.h"

#if defined(SHOAL_ARM_KERNELS)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

SHOAL_DECLARE_KERNEL_SET(reference)
#if defined(SHOAL_X86_KERNELS)
SHOAL_DECLARE_KERNEL_SET(avx2)
SHOAL_DECLARE_KERNEL_SET(avx512)
SHOAL_DECLARE_KERNEL_SET(avx512_bf16)  // only its matmul is used
#elif defined(SHOAL_ARM_KERNELS)
SHOAL_DECLARE_KERNEL_SET(neon)
SHOAL_DECLARE_KERNEL_SET(neon_bf16)  // only its matmul is used
#endif

namespace shoal {
namespace {

struct Candidate {
  KernelTable table;
  bool (*runs_here)();
  const char* needs;
};

#define SHOAL_KERNEL_TABLE(NAME, SET, MATMUL_SET)                                            \
  KernelTable {                                                                              \
    NAME, SET::embed, SET::rms_norm, MATMUL_SET::matmul, SET::residual_add, SET::qkv,        \
        SET::attention, SET::silu_mul, SET::add, SET::argmax, SET::chunk_sums, SET::checksum \
  }

#if defined(SHOAL_X86_KERNELS)
// __builtin_cpu_supports also checks which registers the operating system saves (XCR0). Every
// processor with AVX2 has F16C, which is not checked because not all compilers know its name here.
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
bool has_avx512_bf16() {
  return has_avx512() && __builtin_cpu_supports("avx512bf16");
}
#endif

#if defined(SHOAL_ARM_KERNELS)
/// What the kernel says of this processor.
bool has_neon_bf16() {
  return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
}
#endif

/// In order of preference, best first.
const Candidate kCandidates[] = {
#if defined(SHOAL_X86_KERNELS)
    {SHOAL_KERNEL_TABLE("avx512-bf16", avx512, avx512_bf16), has_avx512_bf16,
     "AVX-512 F, BW, VL, DQ and BF16"},
    {SHOAL_KERNEL_TABLE("avx512", avx512, avx512), has_avx512, "AVX-512 F, BW, VL and DQ"},
    {SHOAL_KERNEL_TABLE("avx2", avx2, avx2), has_avx2, "AVX2, FMA and F16C"},
#elif defined(SHOAL_ARM_KERNELS)
    {SHOAL_KERNEL_TABLE("neon-bf16", neon, neon_bf16), has_neon_bf16, "FEAT_BF16"},
    {SHOAL_KERNEL_TABLE("neon", neon, neon), [] { return true; }, "NEON"},
#endif
    {SHOAL_KERNEL_TABLE("reference", reference, reference), [] { return true; }, "nothing"},
};

}  // namespace

std::vector<const KernelTable*> available_kernels() {
  std::vector<const KernelTable*> tables;
  for (const Candidate& candidate : kCandidates) {
    if (candidate.runs_here()) tables.push_back(&candidate.table);
  }
  return tables;
}

std::vector<const char*> built_in_kernels() {
  std::vector<const char*> names;
  for (const Candidate& candidate : kCandidates) names.push_back(candidate.table.name);
  return names;
}

Result<const KernelTable*> find_kernels(std::string_view name) {
  const std::vector<const KernelTable*> available = available_kernels();
  if (name == "auto") return available.front();
  std::string names;
  for (const KernelTable* table : available) {
    if (name == table->name) return table;
    names += cat(names.empty() ? "" : ", ", table->name);
  }
  for (const Candidate& candidate : kCandidates) {
    if (name != candidate.table.name) continue;
    return Status::error(Code::kFailedPrecondition,
                         cat("kernel set \"", name, "\" needs ", candidate.needs,
                             ", which this processor lacks; it runs: ", names));
  }
  return Status::error(Code::kInvalidArgument, cat("unknown kernel set \"", name,
                                                   "\"; this processor runs: auto, ", names));
}

}  // namespace shoal
