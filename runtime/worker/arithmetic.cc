#include "runtime/worker/arithmetic.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <vector>

#include "models/rope.h"
#include "runtime/base/archive.h"
#include "runtime/base/reduce_tree.h"
#include "runtime/comm/tree_sum.h"
#include "runtime/worker/sampler.h"

namespace shoal {
namespace {

/// FNV-1a (Fowler, Noll, Vo) with 64 bits, over 32-bit words instead of bytes.
class Hash {
 public:
  void add(uint32_t word) { state_ = (state_ ^ word) * 0x100000001b3; }
  void add(float value) { add(std::bit_cast<uint32_t>(value)); }
  void add(const std::vector<float>& values) {
    for (const float value : values) add(value);
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0xcbf29ce484222325;
};

/// Numbers that are the same on every machine: a linear congruential generator (Knuth's MMIX).
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed) {}
  uint32_t next() {
    state_ = state_ * 6364136223846793005 + 1442695040888963407;
    return static_cast<uint32_t>(state_ >> 32);
  }
  /// In [-scale, scale). Every 61st is subnormal, because flushing those is part of the contract.
  std::vector<float> floats(int64_t count, float scale = 1) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) {
      const uint32_t bits = next();
      const float unit = static_cast<float>(bits >> 8) * 0x1p-23f - 1.0f;
      value = bits % 61 == 0 ? std::bit_cast<float>((bits >> 9) | (bits << 31)) : unit * scale;
    }
    return values;
  }

 private:
  uint64_t state_;
};

/// The values as elements of dtype.
std::vector<std::byte> rounded(const std::vector<float>& values, Dtype dtype) {
  std::vector<std::byte> bytes(values.size() * dtype_bytes(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == Dtype::kF32) {
      std::memcpy(&bytes[4 * i], &values[i], 4);
    } else {
      const uint16_t bits =
          dtype == Dtype::kBf16 ? float_to_bf16(values[i]) : float_to_f16(values[i]);
      std::memcpy(&bytes[2 * i], &bits, 2);
    }
  }
  return bytes;
}

constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kF16, Dtype::kBf16};

void embed_part(const KernelTable& kernels, Hash& hash) {
  constexpr int kHidden = 37;
  for (const Dtype dtype : kDtypes) {
    const std::vector<std::byte> table = rounded(Numbers(1).floats(5 * kHidden), dtype);
    const int32_t ids[] = {4, 0, 2};
    std::vector<float> out(3 * kHidden);
    kernels.embed({table.data(), dtype, ids, kHidden, out.data()}, 0, 3);
    hash.add(out);
  }
}

void rms_norm_part(const KernelTable& kernels, Hash& hash) {
  constexpr int kRows = 2, kCols = 333, kStride = 352;
  Numbers numbers(2);
  const std::vector<float> x = numbers.floats(kRows * kCols, 3), weight = numbers.floats(kCols, 2);
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    std::vector<float> out(kRows * kStride);  // of bf16 only the first half is used
    kernels.rms_norm({x.data(), weight.data(), 1e-5f, kCols, out.data(), dtype, kStride}, 0, kRows);
    hash.add(out);
  }
}

/// These numbers of rows use every block of rows that a kernel has, and the way of many rows
/// (kernels/cpu/product.h, kManyRows); 150 outputs have a panel of less than 64.
/// scale: of weights and inputs.
Status matmul_part(const KernelTable& kernels, Dtype dtype, float scale, Hash& hash) {
  constexpr int kRows = 49, kOutputs = 150, kInputs = 75;
  Numbers numbers(3);
  SHOAL_ASSIGN_OR_RETURN(
      PackedMatrix w,
      PackedMatrix::allocate(dtype, kOutputs, kInputs,
                             {{0, 16, 0, -1}, {16, 30, 1, 0}, {30, 62, 0, -1}, {62, 75, 1, 1}}));
  const std::vector<std::byte> weights = rounded(numbers.floats(kOutputs * kInputs, scale), dtype);
  w.pack_rows(0, kOutputs, weights.data(), kInputs);
  const int64_t stride = activation_stride(kInputs);
  std::vector<float> x(static_cast<size_t>(kRows * stride));
  for (int row = 0; row < kRows; ++row)
    std::ranges::copy(numbers.floats(kInputs, scale), x.begin() + row * stride);
  const std::vector<std::byte> inputs = rounded(x, activation_dtype(dtype));
  std::vector<float> y(2 * kRows * kOutputs);
  const MatmulArgs args{&w, inputs.data(), stride, y.data(), kOutputs, kRows * kOutputs};
  // For many rows, only the last panels are computed, because the reference takes long for them.
  const struct {
    int rows, first_panel;
  } parts[] = {{1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 0}, {6, 0}, {7, 0}, {12, 1}, {kRows, 2}};
  for (const auto& part : parts) {
    kernels.matmul(args, 0, part.rows, part.first_panel, w.panels());
    hash.add(y);
  }
  return {};
}

/// Products of usual size, and some next to 2^-126. Products of bf16 are exact in float32 except
/// there, so that only there a fused addition differs from a rounded product and a sum.
Status matmul_parts(const KernelTable& kernels, Dtype dtype, Hash& hash) {
  SHOAL_RETURN_IF_ERROR(matmul_part(kernels, dtype, 1, hash));
  if (dtype == Dtype::kF16) return {};  // it has no weights of this size
  return matmul_part(kernels, dtype, 0x1p-62f, hash);
}

void residual_add_part(const KernelTable& kernels, Hash& hash) {
  constexpr int kCols = 77;
  Numbers numbers(4);
  std::vector<float> residual = numbers.floats(2 * kCols);
  const std::vector<float> sum = numbers.floats(2 * kCols, 0x1p-120f), bias = numbers.floats(kCols);
  kernels.residual_add({residual.data(), sum.data(), nullptr, kCols}, 0, 2);
  kernels.residual_add({residual.data(), sum.data(), bias.data(), kCols}, 0, 2);
  hash.add(residual);
}

/// With and without a window, to float32 and to bf16 (of whose memory only the first half is used):
/// some rows at once, and then one row alone, as in decoding.
void attention_of_last_rows(const KernelTable& kernels, AttentionArgs args, Hash& hash) {
  constexpr int kFirstRow = 63;
  const int rows = args.sequence.rows;
  for (const int window : {0, 9}) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
      args.window = window;
      args.out_dtype = dtype;
      std::vector<float> out(static_cast<size_t>(rows * args.out_stride));
      args.out = out.data();
      kernels.attention(args, kFirstRow, rows - 1, 0, args.cache.kv_heads);
      for (int kv_head = 0; kv_head < args.cache.kv_heads; ++kv_head)
        kernels.attention(args, rows - 1, rows, kv_head, kv_head + 1);
      hash.add(out);
    }
  }
}

/// Keys and values of 70 tokens are written, and the last rows look at them, with and without a
/// window: whole chunks, parts of chunks and masked lanes.
void attention_parts(const KernelTable& kernels, Hash& qkv_hash, Hash& hash) {
  constexpr int kDim = 20, kHeads = 3, kKvHeads = 2, kTokens = 70;
  constexpr int kColumns = (kHeads + 2 * kKvHeads) * kDim, kBlocks = 5;
  Numbers numbers(5);
  const std::vector<float> q_norm = numbers.floats(kDim, 2), bias = numbers.floats(kColumns),
                           cos = numbers.floats(kTokens * kDim / 2),
                           sin = numbers.floats(kTokens * kDim / 2);
  const std::vector<float> products = numbers.floats(kTokens * kColumns, 3);
  const int32_t table[kBlocks] = {3, 0, 4, 1, 2}, head_begin[] = {0, 2, 3};
  for (const Dtype dtype : kDtypes) {
    std::vector<float> x = products;
    KvLayer cache{nullptr, dtype, kKvHeads, kDim};
    std::vector<float> memory(static_cast<size_t>(kBlocks * kKvHeads * cache.tile_elements()));
    cache.data = memory.data();
    const SequenceRows sequence{table, 0, 0, kTokens};
    kernels.qkv({x.data(), kColumns, kHeads, bias.data(), q_norm.data(), nullptr, 1e-6f, cos.data(),
                 sin.data(), cache},
                sequence, 0, kTokens);
    qkv_hash.add(x);
    qkv_hash.add(memory);
    const AttentionArgs args{.q = x.data(),
                             .q_stride = kColumns,
                             .heads = kHeads,
                             .head_begin = head_begin,
                             .cache = cache,
                             .sequence = sequence,
                             .scale = 0.22f,
                             .out_stride = kHeads * kDim};
    attention_of_last_rows(kernels, args, hash);
  }
}

void silu_mul_part(const KernelTable& kernels, Hash& hash) {
  constexpr int kCols = 77, kStride = 96;
  Numbers numbers(6);
  const std::vector<float> gate_up = numbers.floats(4 * kCols, 100),
                           bias = numbers.floats(2 * kCols);
  for (const float* added : {static_cast<const float*>(nullptr), bias.data()}) {
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {  // of bf16 only the first half is used
      std::vector<float> out(2 * kStride);
      kernels.silu_mul({gate_up.data(), added, kCols, out.data(), dtype, kStride}, 0, 2);
      hash.add(out);
    }
  }
}

void add_part(const KernelTable& kernels, Hash& hash) {
  Numbers numbers(7);
  std::vector<float> sum = numbers.floats(100);
  const std::vector<float> other = numbers.floats(100, 0x1p-12f);
  kernels.add(sum.data(), other.data(), 100);
  hash.add(sum);
}

/// The sum of the ranks' planes, as every communicator computes it.
void tree_sum_part(Hash& hash) {
  constexpr size_t kCount = 77;
  const ReducePlan plan = make_reduce_plan(9, 9, 3);
  Numbers numbers(9);
  std::vector<std::vector<float>> values;
  std::vector<const float*> planes;
  for (size_t i = 0; i < plan.finish.merges.size(); ++i)
    planes.push_back(values.emplace_back(numbers.floats(kCount, 0x1p-4f)).data());
  std::vector<float> out(kCount);
  tree_sum(plan.finish, planes, out.data(), kCount);
  hash.add(out);
}

constexpr int64_t kVocab = 700;

std::vector<float> logits(int round) {
  std::vector<float> row = Numbers(8 + static_cast<uint64_t>(round)).floats(kVocab, 12);
  row[static_cast<size_t>(100 + round)] = row[400] = 12.5f;  // of equal ones the first counts
  return row;
}

void vocabulary_parts(const KernelTable& kernels, Hash& argmax, Hash& sums) {
  const std::vector<float> row = logits(0);
  for (const int64_t cols : {kVocab, int64_t{90}, int64_t{1}}) {
    const ArgmaxResult best = kernels.argmax(row.data(), cols);
    argmax.add(best.value);
    argmax.add(static_cast<uint32_t>(best.column));
    ChunkSum chunks[kVocab / kVocabChunk + 1] = {};
    kernels.chunk_sums(row.data(), cols, chunks);
    for (const ChunkSum& chunk : chunks) {
      sums.add(chunk.max);
      sums.add(chunk.sum);
    }
  }
}

/// Hashes checksums of several numbers of bytes. XXH3 has code of its own for 0, 1 to 3, 4 to 8, 9
/// to 16, 17 to 128, 129 to 240 and more bytes, and reads more than that in blocks of 1 KiB. So
/// each way is taken once, and the last twice: with less than a block, and with several blocks.
void checksum_part(const KernelTable& kernels, Hash& hash) {
  Numbers numbers(10);
  std::vector<uint32_t> words(1250);
  for (uint32_t& word : words) word = numbers.next();
  for (const size_t bytes : {0, 3, 8, 16, 100, 200, 1000, 5000}) {
    const uint64_t sum = kernels.checksum(words.data(), bytes);
    hash.add(static_cast<uint32_t>(sum));
    hash.add(static_cast<uint32_t>(sum >> 32));
  }
}

void rotary_part(Hash& hash) {
  RopeConfig rope;
  rope.factor = 8;
  rope.original_max_position_embeddings = 8192;
  for (const auto type : {RopeConfig::Type::kDefault, RopeConfig::Type::kLinear,
                          RopeConfig::Type::kLlama3, RopeConfig::Type::kYarn}) {
    rope.type = type;
    float factor = 0;
    const std::vector<float> frequencies = rope_inv_freq(rope, 128, 65536, &factor);
    hash.add(frequencies);
    for (const int position : {1, 77, 4095, 65'535, 1'000'003, 10'000'000}) {
      std::vector<float> cos(frequencies.size()), sin(frequencies.size());
      rope_angles(frequencies, factor, position, cos.data(), sin.data());
      hash.add(cos);
      hash.add(sin);
    }
  }
}

void sampler_part(const KernelTable& kernels, Hash& hash) {
  SamplerMemory memory(kVocab);
  std::vector<SamplingParams> ways(6);
  ways[1].temperature = 0;
  ways[2].top_k = 20;
  ways[3].top_p = 0.8f;
  ways[4].min_p = 0.01f;
  ways[5] = {.temperature = 1.7f,
             .top_p = 0.97f,
             .repetition_penalty = 1.3f,
             .presence_penalty = 0.5f,
             .frequency_penalty = 0.25f};
  const int32_t history[] = {101, 400, 3, 400, 5};
  for (int round = 0; round < 4; ++round) {
    const std::vector<float> row = logits(round);
    for (SamplingParams& way : ways) {
      way.seed = static_cast<uint64_t>(round);
      way.logprobs = 2;
      const SampledToken token = sample_token(row, way, history, 2, 1000 + round, kernels, memory);
      hash.add(static_cast<uint32_t>(token.token_id));
      hash.add(token.logprob);
      for (const TokenLogprob& other : token.top) hash.add(other.logprob);
    }
  }
}

/// This rank's part `part` against the build's and the other ranks'.
std::string difference(const KernelTable& kernels, const std::vector<ArithmeticFingerprint>& ranks,
                       size_t rank, size_t part) {
  const auto hex = [](uint64_t value) {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
    return std::string(text);
  };
  std::string others;
  for (size_t other = 0; other < ranks.size(); ++other) {
    if (other != rank) others += cat(", rank ", other, " has ", hex(ranks[other].parts[part]));
  }
  return cat(
      "this rank computes wrongly, so that its answers would be wrong: ", kArithmeticParts[part],
      " (kernel set ", kernels.name, ") gives ", hex(ranks[rank].parts[part]),
      ", but this version of Shoal must give ", hex(expected_fingerprint().parts[part]), others,
      ". Either the processor (or its emulator) computes wrongly, or the program was not "
      "built as CMakeLists.txt says. Try another machine or another --cpu-kernels");
}

}  // namespace

uint64_t ArithmeticFingerprint::value() const {
  Hash hash;
  for (const uint64_t part : parts) {
    hash.add(static_cast<uint32_t>(part));
    hash.add(static_cast<uint32_t>(part >> 32));
  }
  return hash.value();
}

std::string ArithmeticFingerprint::text() const {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value()));
  return text;
}

Result<ArithmeticFingerprint> compute_fingerprint(const KernelTable& kernels) {
  std::array<Hash, kArithmeticParts.size()> hashes;
  size_t next = 0;
  embed_part(kernels, hashes[next++]);
  rms_norm_part(kernels, hashes[next++]);
  for (const Dtype dtype : kDtypes)
    SHOAL_RETURN_IF_ERROR(matmul_parts(kernels, dtype, hashes[next++]));
  residual_add_part(kernels, hashes[next++]);
  attention_parts(kernels, hashes[next], hashes[next + 1]);
  next += 2;
  silu_mul_part(kernels, hashes[next++]);
  add_part(kernels, hashes[next++]);
  vocabulary_parts(kernels, hashes[next], hashes[next + 1]);
  next += 2;
  checksum_part(kernels, hashes[next++]);
  tree_sum_part(hashes[next++]);
  rotary_part(hashes[next++]);
  sampler_part(kernels, hashes[next++]);
  ArithmeticFingerprint fingerprint;
  std::ranges::transform(hashes, fingerprint.parts.begin(), &Hash::value);
  return fingerprint;
}

const ArithmeticFingerprint& expected_fingerprint() {
  static constexpr ArithmeticFingerprint kExpected{
      {0x5fba1be0b9cc1a7f, 0x8b3f2f8ce96e1f30, 0x7d789637f31f6d77, 0xe639f730ec008ccd,
       0x1ae5f2356b936d2e, 0x9c1cbe4c6bd81481, 0x33e3d6810c9f96e3, 0x3a161a3b30d1b4fc,
       0x066579fb37178576, 0x1cca19c94f48cdb7, 0xd0dac715d5060246, 0xc54cf58453455def,
       0x6bdd8b24799fd239, 0xfd070d416e44c63b, 0xfbb9e888328546cf, 0xb7d8a16f5c3dfe04}};
  return kExpected;
}

Status check_arithmetic(const KernelTable& kernels, RankContext& context) {
  SHOAL_ASSIGN_OR_RETURN(const ArithmeticFingerprint mine, compute_fingerprint(kernels));
  SHOAL_ASSIGN_OR_RETURN(const std::vector<std::string> parts, context.exchange(encode(mine)));
  const ArithmeticFingerprint& expected = expected_fingerprint();
  if (mine == expected) return {};
  std::vector<ArithmeticFingerprint> ranks;
  for (const std::string& part : parts) {
    SHOAL_ASSIGN_OR_RETURN(ranks.emplace_back(),
                           decode<ArithmeticFingerprint>(part, "a rank's fingerprint"));
  }
  const auto part = std::ranges::mismatch(mine.parts, expected.parts).in1 - mine.parts.begin();
  return Status::error(Code::kInternal,
                       difference(kernels, ranks, static_cast<size_t>(context.start().rank),
                                  static_cast<size_t>(part)));
}

}  // namespace shoal
