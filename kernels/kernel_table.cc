#include "kernels/kernel_table.h"

#include "kernels/reference/ops.h"

namespace shoal {
namespace {

constexpr KernelTable kReference = {"reference",          reference::embed,        reference::rms_norm,
                                    reference::matmul,    reference::residual_add, reference::qkv,
                                    reference::attention, reference::silu_mul,     reference::add,
                                    reference::argmax,    reference::chunk_sums};

}  // namespace

std::vector<const KernelTable*> available_kernels() {
  return {&kReference};
}

Result<const KernelTable*> find_kernels(std::string_view name) {
  std::string known;
  for (const KernelTable* table : available_kernels()) {
    if (name == "auto" || name == table->name) return table;
    known += cat(known.empty() ? "" : ", ", table->name);
  }
  return Status::error(Code::kInvalidArgument, cat("unknown kernel set \"", name, "\"; this processor runs: ", known));
}

}  // namespace shoal
