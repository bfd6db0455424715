#include "tests/conformance/communicator_checks.h"

#include <cstring>
#include <numeric>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

/// The bytes that `rank` sends in the gather with number `round`.
std::vector<std::byte> gather_bytes(int rank, size_t bytes, uint64_t round) {
  std::vector<std::byte> mine(bytes);
  Pattern pattern(round * 131 + static_cast<uint64_t>(rank));
  for (std::byte& b : mine) b = static_cast<std::byte>(pattern.next());
  return mine;
}

}  // namespace

std::string reduce_and_compare(Communicator& communicator, const TreeCase& tree) {
  std::vector<float> out(tree.count + 1, -7.0F);
  const float* own = tree.own[communicator.world().rank].data();
  const Status status = communicator.all_reduce(tree.plan, own, out.data(), tree.count);
  if (!status.ok()) return status.to_string();
  if (out[tree.count] != -7.0F) return cat("wrote behind ", tree.count, " floats");
  for (size_t i = 0; i < tree.count; ++i) {
    if (std::memcmp(&out[i], &tree.sum[i], sizeof(float)) == 0) continue;
    return cat("element ", i, " of ", tree.count, ": ", out[i], " for ", tree.sum[i]);
  }
  return "";
}

std::string gather_and_compare(Communicator& communicator, int root,
                               const std::vector<size_t>& sizes, uint64_t round) {
  const int rank = communicator.world().rank;
  std::vector<std::byte> out(std::accumulate(sizes.begin(), sizes.end(), size_t{1}));
  const Status status =
      communicator.gather(root, gather_bytes(rank, sizes[rank], round), sizes, out.data());
  if (!status.ok()) return status.to_string();
  // Once more, with the root's own bytes where they belong in the result.
  std::vector<std::byte> again(out.size());
  const size_t before = std::accumulate(sizes.begin(), sizes.begin() + root, size_t{0});
  std::vector<std::byte> mine = gather_bytes(rank, sizes[rank], round);
  std::byte* const place = rank == root ? again.data() + before : mine.data();
  std::copy(mine.begin(), mine.end(), place);
  const Status in_place = communicator.gather(root, {place, mine.size()}, sizes, again.data());
  if (!in_place.ok()) return in_place.to_string();
  if (rank != root) return "";
  if (again != out) return cat("gather ", round, " to ", root, " differs in place");
  std::vector<std::byte> expected;
  for (int r = 0; r < communicator.world().size; ++r) {
    const auto theirs = gather_bytes(r, sizes[r], round);
    expected.insert(expected.end(), theirs.begin(), theirs.end());
  }
  expected.push_back(std::byte{0});  // the guard byte behind the result
  return out == expected ? "" : cat("gather ", round, " to ", root, " differs");
}

}  // namespace shoal
