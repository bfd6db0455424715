#include "runtime/worker/test_kernels.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstdlib>
#include <iterator>

namespace shoal {
namespace {

const KernelTable* right_table;

/// Changes the least bit, which no tolerance would notice.
void spoil(float& value) {
  value = std::bit_cast<float>(std::bit_cast<uint32_t>(value) ^ 1);
}

/// A kernel's name, and how a table gets a wrong version of it.
struct WrongKernel {
  std::string_view name;
  void (*put)(KernelTable&);
};

const WrongKernel kWrongKernels[] = {
    {"embed",
     [](KernelTable& table) {
       table.embed = [](const EmbedArgs& args, int64_t begin, int64_t end) {
         right_table->embed(args, begin, end);
         spoil(args.out[begin * args.hidden]);
       };
     }},
    {"rms_norm",
     [](KernelTable& table) {
       table.rms_norm = [](const RmsNormArgs& args, int64_t begin, int64_t end) {
         right_table->rms_norm(args, begin, end);
         *static_cast<unsigned char*>(args.out) ^= 1;
       };
     }},
    {"matmul",
     [](KernelTable& table) {
       table.matmul = [](const MatmulArgs& args, int64_t row_begin, int64_t row_end,
                         int panel_begin, int panel_end) {
         right_table->matmul(args, row_begin, row_end, panel_begin, panel_end);
         spoil(args.y[row_begin * args.y_stride + panel_begin * int64_t{kPanelOutputs}]);
       };
     }},
    {"residual_add",
     [](KernelTable& table) {
       table.residual_add = [](const ResidualAddArgs& args, int64_t begin, int64_t end) {
         right_table->residual_add(args, begin, end);
         spoil(args.residual[begin * args.cols]);
       };
     }},
    {"qkv",
     [](KernelTable& table) {
       table.qkv = [](const QkvArgs& args, const SequenceRows& sequence, int begin, int end) {
         right_table->qkv(args, sequence, begin, end);
         spoil(args.qkv[(sequence.row_begin + begin) * args.qkv_stride]);
       };
     }},
    {"attention",
     [](KernelTable& table) {
       table.attention = [](const AttentionArgs& args, int row_begin, int row_end,
                            int kv_head_begin, int kv_head_end) {
         right_table->attention(args, row_begin, row_end, kv_head_begin, kv_head_end);
         const int64_t row = args.sequence.row_begin + row_begin;
         const int64_t element =
             row * args.out_stride + args.head_begin[kv_head_begin] * args.cache.head_dim;
         static_cast<unsigned char*>(
             args.out)[element * static_cast<int64_t>(dtype_bytes(args.out_dtype))] ^= 1;
       };
     }},
    {"silu_mul",
     [](KernelTable& table) {
       table.silu_mul = [](const SiluMulArgs& args, int64_t begin, int64_t end) {
         right_table->silu_mul(args, begin, end);
         *static_cast<unsigned char*>(args.out) ^= 1;
       };
     }},
    {"add",
     [](KernelTable& table) {
       table.add = [](float* sum, const float* b, int64_t count) {
         right_table->add(sum, b, count);
         spoil(*sum);
       };
     }},
    {"argmax",
     [](KernelTable& table) {
       table.argmax = [](const float* logits, int64_t cols) {
         ArgmaxResult result = right_table->argmax(logits, cols);
         spoil(result.value);
         return result;
       };
     }},
    {"chunk_sums",
     [](KernelTable& table) {
       table.chunk_sums = [](const float* logits, int64_t cols, ChunkSum* sums) {
         right_table->chunk_sums(logits, cols, sums);
         spoil(sums->sum);
       };
     }},
    {"checksum",
     [](KernelTable& table) {
       table.checksum = [](const void* data, size_t bytes) {
         return right_table->checksum(data, bytes) ^ 1;
       };
     }},
};
static_assert(sizeof(KernelTable) == (std::size(kWrongKernels) + 1) * sizeof(void*),
              "every kernel of the table, which has a name too, has a wrong version here");

/// Entry `index` of a list that commas separate, counted from the start again at its end.
std::string_view entry(std::string_view list, size_t index) {
  std::vector<std::string_view> entries;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t end = std::min(list.find(',', begin), list.size());
    entries.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return entries[index % entries.size()];
}

}  // namespace

std::vector<std::string_view> kernel_names() {
  std::vector<std::string_view> names;
  for (const WrongKernel& kernel : kWrongKernels) names.push_back(kernel.name);
  return names;
}

Result<const KernelTable*> with_wrong_kernel(const KernelTable& right, std::string_view kernel) {
  static KernelTable wrong;
  for (const WrongKernel& candidate : kWrongKernels) {
    if (candidate.name != kernel) continue;
    right_table = &right;
    wrong = right;
    candidate.put(wrong);
    return &wrong;
  }
  return Status::error(Code::kInvalidArgument, cat("SHOAL_TEST_WRONG_KERNEL: no kernel ", kernel));
}

Result<const KernelTable*> kernels_of_rank(std::string_view name, const RankStart& place) {
  const char* const sets = std::getenv("SHOAL_TEST_KERNEL_SETS");
  if (sets != nullptr) name = entry(sets, static_cast<size_t>(place.rank + place.start_number));
  SHOAL_ASSIGN_OR_RETURN(const KernelTable* kernels, find_kernels(name));
  const char* const wrong = std::getenv("SHOAL_TEST_WRONG_KERNEL");
  if (wrong == nullptr) return kernels;
  const std::string_view text = wrong;
  const size_t colon = text.find(':');
  const std::string_view whose = text.substr(0, colon);
  int32_t rank = -1;
  const auto read = std::from_chars(whose.data(), whose.data() + whose.size(), rank);
  const bool is_rank = read.ec == std::errc() && read.ptr == whose.data() + whose.size() &&
                       rank >= 0 && rank < place.world_size;
  if (colon == std::string_view::npos || (whose != "all" && !is_rank)) {
    return Status::error(Code::kInvalidArgument,
                         cat("SHOAL_TEST_WRONG_KERNEL is RANK:KERNEL or all:KERNEL, not ", text));
  }
  if (whose == "all" || rank == place.rank)
    return with_wrong_kernel(*kernels, text.substr(colon + 1));
  return kernels;
}

}  // namespace shoal
