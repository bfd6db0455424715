// Attention has the bits of its definition, in every way to divide it and in every step.
#include <algorithm>
#include <cmath>
#include <limits>

#include "bench/gpu/rank_processes.h"
#include "runtime/base/thread_pool.h"
#include "tests/breadth.h"
#include "tests/gpu/attention_problem.h"
#include "tests/gpu/gpu_cases.h"
#include "tests/gpu/lane_orders.h"

namespace shoal::gpu {
namespace {

constexpr int kSeconds = 400;

/// Groups of one, of several, of more than a block's pairs, and of none; every number of head_dim
/// fragments that a shape has, and windows within a chunk, of a whole one, and of more.
const Heads kHeads[] = {
    {{0, 2, 4}, 64, 0}, {{0, 3, 7}, 16, 0},   {{0, 66}, 16, 0},   {{0, 0, 3}, 80, 5},
    {{0, 4}, 128, 0},   {{0, 1, 2}, 128, 64}, {{0, 1}, 256, 100}, {{0, 5, 6}, 192, 0},
    {{0, 3, 4}, 8, 0},  {{0, 2}, 90, 70},
};
/// Sequences that are short, that end at and behind a chunk's end, and whose rows begin within one.
const std::vector<Stretch> kStretches = {{0, 17}, {60, 10}, {130, 1}, {63, 1}, {124, 9}};
constexpr int kPositions = 144;

int sequences_of(const std::vector<Stretch>& stretches) {
  return static_cast<int>(stretches.size());
}

/// Compares a step in every way with what it must be.
std::string every_way(OneDevice& one, const Heads& heads, const Tokens& tokens,
                      const PagedStep& step, const std::vector<float>& expected) {
  for (int way = 0; way < one.device->module().attention_ways(); ++way) {
    const Attended got = attend(one, heads, tokens, step, way);
    const std::string wrong =
        got.wrong.empty() ? first_difference(got.out, expected, out_stride_of(heads)) : got.wrong;
    if (!wrong.empty()) return cat(heads.text(), ", way ", way, ": ", wrong);
  }
  return "";
}

/// All ways give the bits of a plain loop over the type's arithmetic, which is near the truth.
std::string ways_have_the_models_bits(const Options& options, OneDevice& one, Dtype type) {
  const emulator::TensorCore core = emulator::tensor_core_of(options.compute_major);
  uint64_t seed = 1;
  for (Heads heads : kHeads) {
    heads.type = type;
    const float sharpness = seed % 3 == 0 ? 8.0f : 1.0f;
    const Tokens tokens =
        make_tokens(heads, sequences_of(kStretches), kPositions, ++seed, sharpness);
    const PagedStep step = make_step(kStretches, seed, true);
    const std::vector<float> expected = expected_step(core, heads, tokens, step);
    std::string wrong = every_way(one, heads, tokens, step, expected);
    for (size_t i = 0; wrong.empty() && i < kStretches.size(); ++i) {
      const auto row = static_cast<size_t>(step.first_row[i] + step.row_count[i] - 1);
      wrong = compare_with_double(heads, tokens, static_cast<int>(i), step.position[row],
                                  &expected[row * static_cast<size_t>(out_stride_of(heads))]);
    }
    if (!wrong.empty()) return wrong;
  }
  return "";
}

/// The rows of one sequence's positions [0, positions), computed in steps that begin at `begins`.
Attended in_steps(OneDevice& one, const Heads& heads, const Tokens& tokens, int positions,
                  const std::vector<int>& begins, uint64_t seed) {
  Attended all;
  for (size_t i = 0; i < begins.size() && all.wrong.empty(); ++i) {
    const int end = i + 1 < begins.size() ? begins[i + 1] : positions;
    const PagedStep step = make_step({{begins[i], end - begins[i]}}, seed == 0 ? 0 : seed + i);
    const bool one_row = end - begins[i] == 1;
    Attended part = attend(one, heads, tokens, step, one_row ? -2 : -1);
    all.wrong = part.wrong;
    all.out.insert(all.out.end(), part.out.begin(), part.out.end());
  }
  return all;
}

/// A prompt in one step, in several, and token by token, with any block table.
std::string steps_have_the_same_bits(OneDevice& one, Dtype type) {
  for (Heads heads : {kHeads[3], kHeads[6], kHeads[0], kHeads[5]}) {
    heads.type = type;
    // The other types have one shape for every head_dim.
    if (type != Dtype::kBf16 && heads.head_dim != kHeads[3].head_dim) continue;
    constexpr int kRows = 85;
    const Tokens tokens = make_tokens(heads, 1, kRows, 31);
    const Attended whole = in_steps(one, heads, tokens, kRows, {0}, 0);
    std::vector<int> singles = {0};
    for (int row = 17; row < kRows; ++row) singles.push_back(row);
    const std::vector<std::vector<int>> cuts = {{0}, {0, 64}, {0, 1, 33, 80}, singles};
    for (size_t i = 0; i < cuts.size(); ++i) {
      const Attended parts = in_steps(one, heads, tokens, kRows, cuts[i], 40 + i);
      for (const std::string& wrong : {whole.wrong, parts.wrong}) {
        if (!wrong.empty()) return wrong;
      }
      const std::string wrong = first_difference(parts.out, whole.out, out_stride_of(heads));
      if (!wrong.empty()) return cat(heads.text(), ", cut ", i, ": ", wrong);
    }
  }
  return "";
}

/// One row alone, and the same row among others of its sequence and of other sequences.
std::string a_row_keeps_its_bits(OneDevice& one, Dtype type) {
  for (Heads heads : {kHeads[1], kHeads[2], kHeads[4]}) {
    heads.type = type;
    const Tokens tokens = make_tokens(heads, sequences_of(kStretches), kPositions, 51);
    const PagedStep many = make_step(kStretches, 52, true);
    const Attended among = attend(one, heads, tokens, many, -1);
    if (!among.wrong.empty()) return among.wrong;
    const auto stride = static_cast<size_t>(out_stride_of(heads));
    for (const int of_sequence : {1, 4}) {
      const auto row = static_cast<size_t>(many.first_row[of_sequence] + 5);
      std::vector<Stretch> alone(kStretches.size(), Stretch{0, 1});
      alone[of_sequence] = {many.position[row], 1};
      const PagedStep step = make_step(alone, 53);
      const auto at = static_cast<size_t>(step.first_row[of_sequence]);
      for (const int way : {-1, -2}) {
        const Attended got = attend(one, heads, tokens, step, way);
        if (!got.wrong.empty()) return got.wrong;
        const std::vector<float> mine(&got.out[at * stride], &got.out[at * stride] + stride);
        const float* theirs = &among.out[row * stride];
        const std::string wrong = first_difference(mine, {theirs, theirs + stride}, stride);
        if (!wrong.empty()) return cat(heads.text(), ", sequence ", of_sequence, ": ", wrong);
      }
    }
  }
  return "";
}

/// The heads of a device, cut over several at any place, also within the group of a kv head.
std::string groups_have_the_same_bits(OneDevice& one) {
  for (const Heads& heads : {kHeads[1], kHeads[2], kHeads[7]}) {
    const Tokens tokens = make_tokens(heads, sequences_of(kStretches), kPositions, 61);
    const PagedStep step = make_step(kStretches, 62);
    const Attended whole = attend(one, heads, tokens, step, -1);
    const int count = heads.count();
    for (const int cut : {1, count / 2, count - 1}) {
      for (const Range range : {Range{0, cut}, Range{cut, count}}) {
        const Share share = share_of(heads, tokens, range.begin, range.end);
        const Attended part = attend(one, share.heads, share.tokens, step, cut % 2 == 0 ? -1 : -2);
        for (const std::string& wrong : {whole.wrong, part.wrong}) {
          if (!wrong.empty()) return wrong;
        }
        std::vector<float> theirs;
        for (int row = 0; row < step.rows(); ++row) {
          const float* from = &whole.out[static_cast<size_t>(row * out_stride_of(heads))];
          theirs.insert(theirs.end(), from + range.begin * heads.head_dim,
                        from + range.end * heads.head_dim);
          theirs.resize(theirs.size() + out_stride_of(share.heads) - share.heads.columns(), 0);
        }
        const std::string wrong = first_difference(part.out, theirs, out_stride_of(share.heads));
        if (!wrong.empty()) return cat(heads.text(), ", heads from ", range.begin, ": ", wrong);
      }
    }
  }
  return "";
}

/// A step that is computed again and again, and what it must give.
struct KnownStep {
  Heads heads;
  Tokens tokens;
  PagedStep step;
  std::vector<float> expected;
};
KnownStep known_step(const emulator::TensorCore& core, const Heads& heads,
                     const std::vector<Stretch>& stretches) {
  KnownStep known{heads,
                  make_tokens(heads, sequences_of(stretches), kPositions, 71),
                  make_step(stretches, 72, true),
                  {}};
  known.expected = expected_step(core, heads, known.tokens, known.step);
  return known;
}

/// The emulated device's lanes take turns in other orders, and its copies come at other times, but
/// no bit changes. Where breadth must be quick, most orders get a small step, which has two chunks
/// too.
std::string schedules_change_no_bit(const Options& options, OneDevice& one, Dtype type) {
  if (!options.stand_in) return cat(kSkip, "a device has its own schedule");
  const emulator::TensorCore core = emulator::tensor_core_of(options.compute_major);
  const KnownStep usual = known_step(core, {{0, 2, 7}, 80, 70, type}, {{0, 9}, {127, 4}});
  const KnownStep small = known_step(core, {{0, 2}, 16, 0, type}, {{62, 4}});
  const int seeds_with_usual = !quick_breadth() ? kAllSeeds : type == Dtype::kBf16 ? 8 : 3;
  return in_lane_orders(kAllSeeds, [&](int order) -> std::string {
    const KnownStep& known = order < seeds_with_usual ? usual : small;
    for (int way = 0; way < one.device->module().attention_ways(); ++way) {
      const char* const copies = let_copies_come((order + way) % 2 != 0);
      const Attended got = attend(one, known.heads, known.tokens, known.step, way);
      const std::string wrong =
          got.wrong.empty() ? first_difference(got.out, known.expected, out_stride_of(known.heads))
                            : got.wrong;
      if (!wrong.empty()) return cat(copies, ", way ", way, ": ", wrong);
    }
    return "";
  });
}

/// The arguments of a launch hold nothing that changes from step to step.
std::string arguments_can_be_replayed(OneDevice& one) {
  const Heads heads{{0, 2, 4}, 64, 0};
  const Tokens tokens = make_tokens(heads, 3, kPositions, 91);
  std::vector<PagedStep> steps;
  for (const int at : {0, 15, 63, 64, 90}) {
    // The shape is that of the longest step. In some steps a sequence has no row.
    PagedStep step = make_step({{at, 1}, {at / 2 + 1, 1}, {95, 1}}, 92 + at);
    if (at % 2 == 1) step.sequence[1] = -1;
    steps.push_back(step);
  }
  const std::vector<Attended> again = attend_again(one, heads, tokens, steps);
  for (size_t i = 0; i < steps.size(); ++i) {
    const Attended fresh = attend(one, heads, tokens, steps[i], -1);
    for (const std::string& wrong : {fresh.wrong, again[i].wrong}) {
      if (!wrong.empty()) return cat("step ", i, ": ", wrong);
    }
    const std::string wrong = first_difference(again[i].out, fresh.out, out_stride_of(heads));
    if (!wrong.empty()) return cat("step ", i, ": ", wrong);
  }
  return "";
}

/// Arguments that make no sense are refused before anything is launched.
std::string nonsense_is_refused(OneDevice& one) {
  Bench bench(one);
  auto* const memory = bench.poisoned<uint16_t>(1 << 16);
  auto* const words = bench.put(std::vector<int32_t>(64, 0));
  if (!bench.ok()) return bench.wrong();
  ShoalAttention good{};
  good.step = {1, 1, words, words, words, bench.put(std::vector<int32_t>{1}), words, 1};
  good.cache = {bench.put(std::vector<uint16_t>(1 << 13)), kShoalBf16, 1, 64};
  good.heads = good.head_begin[1] = 1;
  good.scale = 1;
  good.q = good.cache.data;
  good.q_stride = good.out_stride = 64;
  good.out = memory;
  std::string wrong;
  const auto refused = [&](const char* what, const auto& change) {
    ShoalAttention args = good;
    change(args);
    const int32_t error = bench.module().attention(&args, bench.stream());
    if (error != 1) wrong += cat(what, ": ", bench.module().error_text(error), "; ");
  };
  refused("rows", [](ShoalAttention& a) { a.step.rows = -1; });
  refused("no table", [](ShoalAttention& a) { a.step.block_table = nullptr; });
  refused("an odd head_dim", [](ShoalAttention& a) { a.cache.head_dim = 63; });
  refused("a large head_dim", [](ShoalAttention& a) { a.cache.head_dim = 272; });
  const auto moved = [](const void* from) {
    return const_cast<std::byte*>(static_cast<const std::byte*>(from) + 2);
  };
  refused("an unknown type", [](ShoalAttention& a) { a.cache.type = kShoalTypes; });
  refused("an unaligned cache", [&](ShoalAttention& a) { a.cache.data = moved(a.cache.data); });
  refused("heads that nothing reads", [](ShoalAttention& a) { a.heads = 2; });
  refused("heads backwards", [](ShoalAttention& a) { a.head_begin[0] = 1; });
  refused("an unaligned q", [&](ShoalAttention& a) { a.q = moved(a.q); });
  refused("an odd stride", [](ShoalAttention& a) { a.q_stride = 65; });
  refused("narrow rows", [](ShoalAttention& a) { a.out_stride = 63; });
  refused("no scratch", [](ShoalAttention& a) { a.split_chunks = 1; });
  refused("a window", [](ShoalAttention& a) { a.window = -1; });
  bench.finish(bench.module().attention(&good, bench.stream()), "attention");
  return wrong + bench.wrong();
}

/// A row that sees more chunks than there is room for becomes NaN, and no other.
std::string too_many_chunks_become_nan(OneDevice& one) {
  const Heads heads{{0, 2}, 32, 0};
  const Tokens tokens = make_tokens(heads, 1, 130, 81);
  const PagedStep step = make_step({{125, 5}}, 82);
  const Attended right = attend(one, heads, tokens, step, -1);
  const Attended shorter = attend_with_room(one, heads, tokens, step, 2);
  for (const std::string& wrong : {right.wrong, shorter.wrong}) {
    if (!wrong.empty()) return wrong;
  }
  for (size_t i = 0; i < right.out.size(); ++i) {
    const auto row = i / static_cast<size_t>(out_stride_of(heads));
    const bool is_padding = static_cast<int64_t>(i) % out_stride_of(heads) >= heads.columns();
    const bool too_long = step.position[row] >= 128 && !is_padding;
    const bool good = too_long ? is_nan_of(shorter.out[i]) : shorter.out[i] == right.out[i];
    if (!good) return cat("row ", row, ", value ", i);
  }
  return "";
}

/// The rows of one block may see more chunks together than any of them does.
std::string windows_need_little_room(OneDevice& one) {
  const Heads heads{{0, 2}, 32, 64};
  const Tokens tokens = make_tokens(heads, 1, 140, 83);
  const PagedStep step = make_step({{120, 16}}, 84);
  const Attended right = attend(one, heads, tokens, step, -1);
  const Attended tight = attend_with_room(one, heads, tokens, step, 2);
  for (const std::string& wrong : {right.wrong, tight.wrong}) {
    if (!wrong.empty()) return wrong;
  }
  return first_difference(tight.out, right.out, out_stride_of(heads));
}

/// Several chunks of which every row sees all keys, behind the first one.
std::string whole_chunks_fold(const Options& options, OneDevice& one) {
  const emulator::TensorCore core = emulator::tensor_core_of(options.compute_major);
  for (const int window : {0, 200}) {
    const Heads heads{{0, 3}, 64, window};
    const Tokens tokens = make_tokens(heads, 1, 276, 97);
    const PagedStep step = make_step({{256, 20}}, 98);
    const std::string wrong =
        every_way(one, heads, tokens, step, expected_step(core, heads, tokens, step));
    if (!wrong.empty()) return wrong;
  }
  return "";
}

/// Rows whose positions have no place in the block table are idle.
std::string a_table_may_end_early(const Options& options, OneDevice& one) {
  const emulator::TensorCore core = emulator::tensor_core_of(options.compute_major);
  const Heads heads{{0, 2, 3}, 32, 0};
  const Tokens tokens = make_tokens(heads, 2, 40, 85);
  PagedStep step = make_step({{10, 12}, {3, 1}}, 0);
  step.block_table = {0, 2};
  step.table_stride = 1;
  return every_way(one, heads, tokens, step, expected_step(core, heads, tokens, step));
}

/// Values that are all the same come out as they are, because the sum of the weights takes them as
/// the products do. All keys but one have the same weight, so that all round to the same side.
std::string weights_add_up(OneDevice& one, Dtype type) {
  // Below a power of two, because there bfloat16 is finest and cannot hide what is wrong.
  constexpr float kValue = 2 - 0x1p-7f;
  const float may_lose = type == Dtype::kBf16 ? 0 : 1e-5f;
  const Heads heads{{0, 2}, 16, 0, type};
  constexpr int kRows = 90;
  Tokens tokens = make_tokens(heads, 1, kRows, 95);
  std::fill(tokens.v.begin(), tokens.v.end(), kValue);
  for (size_t i = heads.head_dim; i < tokens.k.size(); ++i)
    tokens.k[i] = -tokens.k[i % heads.head_dim];
  const PagedStep step = make_step({{0, kRows}}, 96);
  for (int way = 0; way < one.device->module().attention_ways(); ++way) {
    const Attended got = attend(one, heads, tokens, step, way);
    if (!got.wrong.empty()) return got.wrong;
    for (size_t i = 0; i < got.out.size(); ++i) {
      const auto column = static_cast<int64_t>(i) % out_stride_of(heads);
      if (column < heads.columns() && !(std::abs(got.out[i] - kValue) <= may_lose))
        return cat("way ", way, ", row ", i / out_stride_of(heads), ": ", got.out[i]);
    }
  }
  return "";
}

/// More chunks than the fold's threads.
std::string long_sequences_fold(OneDevice& one) {
  const Heads heads{{0, 1}, 16, 0};
  constexpr int kLong = 128 * 64 * 2 + 200;
  const Tokens tokens = make_tokens(heads, 1, kLong, 86, 4);
  const PagedStep step = make_step({{kLong - 1, 1}}, 87);
  const Attended whole = attend(one, heads, tokens, step, -1);
  if (!whole.wrong.empty()) return whole.wrong;
  const std::string wrong = in_lane_orders(quick_breadth() ? 2 : kAllSeeds, [&](int) {
    const Attended split = attend(one, heads, tokens, step, -2);
    return split.wrong.empty() ? first_difference(split.out, whole.out, out_stride_of(heads))
                               : split.wrong;
  });
  return wrong.empty() ? compare_with_double(heads, tokens, 0, kLong - 1, whole.out.data()) : wrong;
}

}  // namespace

void add_attention_cases(const Options& options, std::vector<Case>& cases) {
  const auto add = [&](const std::string& name,
                       const std::function<std::string(OneDevice&)>& body) {
    cases.push_back(
        {name, [=] { return run_apart(kSeconds, [=] { return on_device(options, body); }); }});
  };
  for (const Dtype type : kComputedTypes) {
    add("layer/attention-model" + suffix_of(type),
        [=](OneDevice& one) { return ways_have_the_models_bits(options, one, type); });
    add("layer/attention-steps" + suffix_of(type),
        [=](OneDevice& one) { return steps_have_the_same_bits(one, type); });
    add("layer/attention-rows" + suffix_of(type),
        [=](OneDevice& one) { return a_row_keeps_its_bits(one, type); });
    add("layer/attention-sums" + suffix_of(type),
        [=](OneDevice& one) { return weights_add_up(one, type); });
    add("layer/attention-schedules" + suffix_of(type),
        [=](OneDevice& one) { return schedules_change_no_bit(options, one, type); });
  }
  add("layer/attention-groups", groups_have_the_same_bits);
  add("layer/attention-room", too_many_chunks_become_nan);
  add("layer/attention-windows", windows_need_little_room);
  add("layer/attention-tables",
      [=](OneDevice& one) { return a_table_may_end_early(options, one); });
  add("layer/attention-chunks", [=](OneDevice& one) { return whole_chunks_fold(options, one); });
  add("layer/attention-long", long_sequences_fold);
  add("layer/attention-replay", arguments_can_be_replayed);
  add("layer/attention-refusals", nonsense_is_refused);
}

}  // namespace shoal::gpu
