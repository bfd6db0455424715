"""Checks that cuda_rules.py finds what the emulated device cannot run, and nothing else."""
import unittest

import cuda_rules

MACHINE = """
__device__ inline float from_f16(uint16_t bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;"
      : "=f"(value) : "h"(bits));
  return value;
}
__device__ inline unsigned char* block_memory() {
  return nullptr;
}
"""
TWIN = """
inline float from_f16(uint16_t bits) {
  return widened(bits);
}
inline unsigned char* block_memory() {
  return memory;
}
"""


class CudaRules(unittest.TestCase):
    def found(self, line: str, path: str = "kernels/cuda/a.cu") -> int:
        return len(cuda_rules.check_source(path, line))

    def test_what_a_kernel_may_not_say(self):
        for line in ("kernel<<<1, 32>>>(args);", "cudaLaunchKernel(f, grid, block, p, 0, s);",
                     "__shared__ float x[32];", 'asm volatile("bar.sync 0;");',
                     "cudaLaunchCooperativeKernel(f, grid, block, p, 0, s);", "cuLaunchKernel(f);",
                     "#include <cuda_bf16.h>", '#include "cuda_fp16.h"', "#include <cooperative_groups.h>",
                     "auto tile = cooperative_groups::this_grid();", "#include <cmath>", '#include "math.h"',
                     "x = expf(y);", "x = std::sqrt(y);", "x = ::logf(y);", "x = fma(a, b, c);",
                     "x = fmaxf(a, b);", "x = std::fmin(a, b);", "x = fabsf(a);", "if (isnan(a)) return;",
                     "x = __builtin_fmaf(a, b, c);",
                     "x = __expf(y);", "x = rsqrtf(y);", "x = __fdividef(a, b);"):
            self.assertEqual(self.found(line), 1, line)

    def test_what_it_may_say(self):
        for line in ("launch(kernel, 4, 32, args, stream);", "unsigned char* x = block_memory();",
                     "x = __fmaf_rn(a, b, c);", "x = __fsqrt_rn(y);", "x = exponential(y);",
                     "// expf(x) is an approximation, and __shared__ memory is the machine's",
                     "value.round(3);", "#include <cstdint>", "x = greater(a, b);", "n = std::max(rows, 1);",
                     "x = -__builtin_huge_valf();"):
            self.assertEqual(self.found(line), 0, line)

    def test_the_machine_may_use_instructions_but_no_math_library(self):
        self.assertEqual(self.found('asm("cvt");', cuda_rules.MACHINE), 0)
        self.assertEqual(self.found("x = expf(y);", cuda_rules.MACHINE), 1)

    def test_both_machines_have_the_same_functions_in_one_order(self):
        self.assertEqual(cuda_rules.functions(MACHINE), ["from_f16", "block_memory"])
        self.assertEqual(cuda_rules.check_machines(MACHINE, TWIN), [])
        halves = TWIN.split("inline unsigned")
        swapped = "inline unsigned" + halves[1] + halves[0]
        self.assertIn("block_memory stands where", cuda_rules.check_machines(MACHINE, swapped)[0])
        self.assertIn("nothing stands where", cuda_rules.check_machines(MACHINE, halves[0])[0])
        more = TWIN + "inline void more() {\n}\n"
        self.assertIn("more is not in", cuda_rules.check_machines(MACHINE, more)[0])

    def test_instructions_are_counted_by_lines(self):
        self.assertEqual(cuda_rules.asm_lines(MACHINE), 2)
        self.assertIn("202 lines of asm", cuda_rules.check_machines(MACHINE * 101, TWIN)[0])


if __name__ == "__main__":
    unittest.main()
