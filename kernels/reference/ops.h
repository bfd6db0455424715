#pragma once
#include "kernels/kernel_set.h"

// Implements the contracts of kernel_table.h as plain loops.
SHOAL_DECLARE_KERNEL_SET(reference)
