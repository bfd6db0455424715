#pragma once
#include "kernels/kernel_set.h"

// The kernel set that is being compiled: SHOAL_ISA is avx2, avx512, avx512_bf16, neon
// or neon_bf16 (kernels/CMakeLists.txt).
SHOAL_DECLARE_KERNEL_SET(SHOAL_ISA)
