#include "runtime/transport/self_test.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/counted.h"
#include "runtime/base/deadline.h"
#include "runtime/comm/device/device_collective.h"
#include "runtime/comm/tree_sum.h"

namespace shoal {
namespace {

// Around a cache line, a slot of 4 KiB, several of those, a slot of 256 KiB and more than two of
// those. None is so small that what an earlier round has left could be the same by chance.
constexpr size_t kLineBytes[] = {60, 64, 68};
constexpr size_t kSmallSlotBytes[] = {4092, 4096, 4100, 12'292, 40'004};
constexpr size_t kLargeSlotBytes[] = {256 * 1024, 540'676};
constexpr size_t kLatencyBytes = 8 * 1024;
constexpr size_t kBandwidthBytes = 1024 * 1024;
// How often each size is repeated in a row, so that both slots are filled again with other bits.
constexpr int kSmallRepeats = 3;
// What is timed is timed in rounds. On a busy machine most of them are slowed down by others, so
// that the best one says what the transport can do.
constexpr int kRounds = 5;
constexpr int kLatencyRepeats = 7;
constexpr int kBandwidthRepeats = 1;
/// Rounds that differ by more than this say more about the machine than about the transport.
constexpr double kNoisy = 2;

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// The bits of a float that are random: its sign and its mantissa.
constexpr uint32_t kAllBits = 0x807fffffu;
/// Only the upper 18 bits of the mantissa are random. A sum of up to 32 such floats is a multiple
/// of 2^-18 below 64, so it needs no rounding in any order.
constexpr uint32_t kBitsOfExactSums = 0x807fffe0u;

/// Makes the floats of one plane in one round: either sign, magnitudes in [1, 2), the bits of
/// the mask random. The magnitudes are so close to each other that no wrong part can vanish in the
/// rounding of the sum, and yet with kAllBits the order of the sum shows in its bits.
void fill_plane(float* to, size_t count, uint64_t key, uint32_t mask) {
  const uint32_t seed = static_cast<uint32_t>(mix(key));
  const uint32_t odd = static_cast<uint32_t>(mix(key) >> 32) | 1;
  for (size_t i = 0; i < count; ++i) {
    uint32_t x = static_cast<uint32_t>(i) * odd + seed;
    x = (x ^ (x >> 15)) * 0x85ebca6bu;
    x ^= x >> 13;
    const uint32_t bits = 0x3f800000u | (x & mask);
    std::memcpy(to + i, &bits, sizeof bits);
  }
}

// In `even` every rank brings one plane. `uneven` has more leaves than ranks, and usually not a
// multiple: ranks bring one, two or three planes. In `sparse` only half of the leaves hold
// anything, so that half of the ranks bring none.

ReducePlan even_plan(int world_size) {
  return make_reduce_plan(world_size, world_size, world_size);
}

ReducePlan uneven_plan(int world_size) {
  return make_reduce_plan(world_size + 3, world_size + 3, world_size);
}

ReducePlan sparse_plan(int world_size) {
  return make_reduce_plan(world_size, (world_size + 1) / 2, world_size);
}

/// The floats of all planes of the sum that has most of them.
size_t most_plane_floats(int world_size) {
  const auto even = static_cast<size_t>(even_plan(world_size).total_contributions());
  const auto uneven = static_cast<size_t>(uneven_plan(world_size).total_contributions());
  return std::max(even * kBandwidthBytes, uneven * kLargeSlotBytes[0]) / sizeof(float);
}

/// Whether the communicator's sums have the bits of the plan's tree.
bool sums_by_plan(Communicator& communicator) {
  const DeviceCollective* const devices = communicator.on_devices();
  return devices == nullptr || devices->sums_by_plan();
}

class SelfTest {
 public:
  SelfTest(Communicator& communicator, uint64_t seed, const std::function<Status()>& moved)
      : communicator_(communicator),
        world_(communicator.world()),
        seed_(mix(seed + 1)),
        mask_(sums_by_plan(communicator) ? kAllBits : kBitsOfExactSums),
        moved_(moved) {
    // A vector that grows holds both copies for a while.
    planes_.reserve(most_plane_floats(world_.size));
    expected_.reserve(kBandwidthBytes / sizeof(float));
    out_.reserve(kBandwidthBytes / sizeof(float));
  }

  Status gathers();
  Status sums();
  Result<BestRound> timed_sums(size_t bytes, int repeats);

 private:
  /// The seed of plane `plane` of `rank` in the round.
  uint64_t key(uint64_t round, int rank, int plane) const {
    return seed_ + round * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(rank) * 0x632be59bd9b4e019u +
           static_cast<uint64_t>(plane) * 0xd1b54a32d192ed03u;
  }
  Status gather(int root, size_t bytes);
  Result<double> sum(const ReducePlan& plan, size_t count, bool timed = false);
  void expect(const ReducePlan& plan, size_t count);
  Status wrong_sum(const ReducePlan& plan, size_t count, size_t at) const;
  std::string blame(const ReducePlan& plan, size_t at) const;
  float value(uint64_t round, int rank, int plane, size_t at) const;

  Communicator& communicator_;
  const World world_;
  const uint64_t seed_;
  const uint32_t mask_;  // the bits of the floats that are random
  const std::function<Status()>& moved_;
  uint64_t round_ = 0;
  std::vector<float> planes_;  // of all ranks, one after the other
  std::vector<float> expected_;
  std::vector<float> out_;
};

/// Gathers every rank's bytes at one root. Doing so with every root covers every pair in both
/// directions.
Status SelfTest::gather(int root, size_t bytes) {
  ++round_;
  std::vector<size_t> sizes;
  size_t total = 0;
  for (int rank = 0; rank < world_.size; ++rank) {
    sizes.push_back(bytes +
                    static_cast<size_t>(rank) * 8);  // uneven, so that a shifted part shows too
    total += sizes.back();
  }
  const auto part = [&](int rank) {
    std::vector<float> floats(sizes[rank] / sizeof(float));
    fill_plane(floats.data(), floats.size(), key(round_, rank, 0), mask_);
    return floats;
  };
  const std::vector<float> mine = part(world_.rank);
  std::vector<float> gathered(total / sizeof(float));
  SHOAL_RETURN_IF_ERROR(communicator_.gather(root, std::as_bytes(std::span(mine)), sizes,
                                             reinterpret_cast<std::byte*>(gathered.data())));
  if (moved_) SHOAL_RETURN_IF_ERROR(moved_());
  if (world_.rank != root) return {};
  const float* got = gathered.data();
  for (int rank = 0; rank < world_.size; ++rank) {
    const std::vector<float> theirs = part(rank);
    for (size_t i = 0; i < theirs.size(); ++i) {
      if (std::memcmp(&got[i], &theirs[i], sizeof(float)) == 0) continue;
      return Status::error(
          Code::kDataLoss,
          cat("self-test of ", communicator_.name(), ", gather of ", bytes, " bytes to rank ", root,
              ": the part of rank ", rank, " is wrong from element ", i, " of ", theirs.size(),
              " on: ", std::hexfloat, got[i], " for ", theirs[i]));
    }
    got += theirs.size();
  }
  return {};
}

Status SelfTest::gathers() {
  for (int root = 0; root < world_.size; ++root) {
    for (const size_t bytes : {size_t{64}, size_t{4104}})
      SHOAL_RETURN_IF_ERROR(gather(root, bytes));
  }
  return gather(static_cast<int>(seed_ % static_cast<uint64_t>(world_.size)), 300'000);
}

/// Makes all ranks' planes of the round, and the sum that is expected.
void SelfTest::expect(const ReducePlan& plan, size_t count) {
  planes_.resize(static_cast<size_t>(plan.total_contributions()) * count);
  expected_.resize(count);
  std::vector<const float*> planes;
  float* to = planes_.data();
  for (int rank = 0; rank < world_.size; ++rank) {
    for (int plane = 0; plane < plan.contributions[rank]; ++plane, to += count) {
      fill_plane(to, count, key(round_, rank, plane), mask_);
      planes.push_back(to);
    }
  }
  tree_sum(plan.finish, planes, expected_.data(), count);
}

/// Runs one all_reduce, checks it and returns how long it took, in microseconds. timed: a barrier
/// lets the ranks begin together.
Result<double> SelfTest::sum(const ReducePlan& plan, size_t count, bool timed) {
  ++round_;
  expect(plan, count);
  const float* own = planes_.data();
  for (int rank = 0; rank < world_.rank; ++rank)
    own += static_cast<size_t>(plan.contributions[rank]) * count;
  out_.assign(count, 0.0F);
  if (timed) SHOAL_RETURN_IF_ERROR(communicator_.barrier());
  const auto before = Clock::now();
  SHOAL_RETURN_IF_ERROR(communicator_.all_reduce(plan, own, out_.data(), count));
  const double us = seconds_since(before) * 1e6;
  if (moved_) SHOAL_RETURN_IF_ERROR(moved_());
  if (std::memcmp(out_.data(), expected_.data(), count * sizeof(float)) == 0) return us;
  size_t at = 0;
  while (std::memcmp(&out_[at], &expected_[at], sizeof(float)) == 0) ++at;
  return wrong_sum(plan, count, at);
}

Status SelfTest::wrong_sum(const ReducePlan& plan, size_t count, size_t at) const {
  return Status::error(Code::kDataLoss,
                       cat("self-test of ", communicator_.name(), ", all_reduce of ", count,
                           " floats on rank ", world_.rank, ": wrong from element ", at, " on: ",
                           std::hexfloat, out_[at], " for ", expected_[at], blame(plan, at)));
}

float SelfTest::value(uint64_t round, int rank, int plane, size_t at) const {
  std::vector<float> floats(at + 1);
  fill_plane(floats.data(), floats.size(), key(round, rank, plane), mask_);
  return floats[at];
}

/// Names the rank whose stale or swapped data would produce the wrong sum, if one can be
/// identified: its data of one or two rounds before, or another rank's data in its place.
std::string SelfTest::blame(const ReducePlan& plan, size_t at) const {
  const auto explains_element = [&](int rank, uint64_t round, int source, size_t i) {
    std::vector<float> values;
    std::vector<const float*> planes;
    values.reserve(static_cast<size_t>(plan.total_contributions()));
    for (int r = 0; r < world_.size; ++r) {
      for (int plane = 0; plane < plan.contributions[r]; ++plane) {
        values.push_back(r == rank ? value(round, source, plane, i) : value(round_, r, plane, i));
        planes.push_back(&values.back());
      }
    }
    float sum = 0;
    tree_sum(plan.finish, planes, &sum, 1);
    return std::memcmp(&sum, &out_[i], sizeof sum) == 0;
  };
  const auto explains = [&](int rank, uint64_t round,
                            int source) {  // three elements: one may agree by chance
    for (size_t i = at; i < std::min(at + 3, out_.size()); ++i) {
      if (!explains_element(rank, round, source, i)) return false;
    }
    return plan.contributions[rank] > 0;
  };
  for (int rank = 0; rank < world_.size; ++rank) {
    for (uint64_t back = 1; back <= 2 && back < round_; ++back) {
      if (explains(rank, round_ - back, rank)) {
        return cat("; the part of rank ", rank, " is what it was ", counted(back, "round"),
                   " before");
      }
    }
    for (int source = 0; source < world_.size; ++source) {
      if (source != rank && explains(rank, round_, source)) {
        return cat("; in the place of rank ", rank, " stands the part of rank ", source);
      }
    }
  }
  if (world_.size == 2)
    return cat("; rank ", 1 - world_.rank, "'s part is wrong, or what rank ", world_.rank,
               " made of it");
  return "; whose part is wrong cannot be told from the sum";
}

Status SelfTest::sums() {
  const ReducePlan even = even_plan(world_.size), uneven = uneven_plan(world_.size),
                   sparse = sparse_plan(world_.size);
  for (const ReducePlan* plan : {&even, &uneven, &sparse}) {
    for (const std::span<const size_t> sizes :
         {std::span<const size_t>(kLineBytes), {kSmallSlotBytes}}) {
      for (const size_t bytes : sizes) {
        for (int repeat = 0; repeat < kSmallRepeats; ++repeat) {
          SHOAL_RETURN_IF_ERROR(sum(*plan, bytes / sizeof(float)).status());
        }
      }
    }
  }
  for (const size_t bytes : kLargeSlotBytes)
    SHOAL_RETURN_IF_ERROR(sum(even, bytes / sizeof(float)).status());
  return sum(uneven, kLargeSlotBytes[0] / sizeof(float)).status();
}

/// The time of checked all_reduces: the median of each round, and of these the best.
Result<BestRound> SelfTest::timed_sums(size_t bytes, int repeats) {
  const ReducePlan plan = even_plan(world_.size);
  std::vector<double> rounds_us;
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> times_us;
    for (int i = 0; i < repeats; ++i) {
      SHOAL_ASSIGN_OR_RETURN(const double us, sum(plan, bytes / sizeof(float), true));
      times_us.push_back(us);
    }
    std::sort(times_us.begin(), times_us.end());
    rounds_us.push_back(times_us[times_us.size() / 2]);
  }
  return best_round(rounds_us);
}

}  // namespace

BestRound best_round(std::span<const double> rounds_us) {
  const auto [best, worst] = std::minmax_element(rounds_us.begin(), rounds_us.end());
  return {*best, *worst > kNoisy * *best};
}

int64_t self_test_bytes(int world_size) {
  constexpr size_t kExpectedAndActual = 2 * kBandwidthBytes;
  return static_cast<int64_t>(most_plane_floats(world_size) * sizeof(float) + kExpectedAndActual);
}

Result<SelfTestFigures> self_test(Communicator& communicator, uint64_t seed,
                                  const std::function<Status()>& moved) {
  const auto start = Clock::now();
  SelfTest test(communicator, seed, moved);
  SHOAL_RETURN_IF_ERROR(communicator.barrier());
  SHOAL_RETURN_IF_ERROR(test.gathers());
  SHOAL_RETURN_IF_ERROR(test.sums());
  SelfTestFigures figures;
  SHOAL_ASSIGN_OR_RETURN(const auto small, test.timed_sums(kLatencyBytes, kLatencyRepeats));
  SHOAL_ASSIGN_OR_RETURN(const auto large, test.timed_sums(kBandwidthBytes, kBandwidthRepeats));
  figures.latency_us = small.us;
  figures.bytes_per_s = static_cast<double>(kBandwidthBytes) / std::max(large.us, 1e-3) * 1e6;
  figures.noisy = small.noisy || large.noisy;
  figures.seconds = seconds_since(start);
  return figures;
}

}  // namespace shoal
