#include "tests/emulator/memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/emulator/lanes.h"
#include "tests/emulator/settings.h"

namespace shoal::emulator {

thread_local constinit int running_device = -1;

namespace {

// The numbers of cudaError_t.
constexpr int32_t kOk = 0, kInvalidValue = 1, kOutOfMemory = 2, kInvalidHandle = 400,
                  kAlreadyRegistered = 712, kNotRegistered = 713;

/// Whatever is made of such bytes, in any type of the kernels, is NaN.
constexpr int kNanByte = 0xff;

struct Pieces {
  std::shared_mutex mutex;
  std::map<uintptr_t, Piece> by_begin;
  /// Grows with each piece that is released. A lane that remembers a piece sees by this that it
  /// must look the piece up again.
  std::atomic<uint64_t> released{0};
};
Pieces& pieces() {
  static auto& one = *new Pieces;  // threads of streams may outlive static objects
  return one;
}

uintptr_t number(const void* address) {
  return reinterpret_cast<uintptr_t>(address);
}

bool holds(const Piece& piece, const void* address, size_t bytes) {
  return number(address) >= number(piece.begin) &&
         number(address) + bytes <= number(piece.begin) + piece.bytes;
}

void keep(Piece piece) {
  const uintptr_t begin = number(piece.begin);
  const std::unique_lock<std::shared_mutex> lock(pieces().mutex);
  pieces().by_begin[begin] = std::move(piece);
}

/// Forgets the piece that begins there. kInvalidValue: there is none of one of the kinds.
int32_t take_out(void* memory, Kind kind, Kind or_kind, Piece* out) {
  const std::unique_lock<std::shared_mutex> lock(pieces().mutex);
  const auto found = pieces().by_begin.find(number(memory));
  if (found == pieces().by_begin.end()) return kInvalidValue;
  if (found->second.kind != kind && found->second.kind != or_kind) return kInvalidValue;
  *out = std::move(found->second);
  pieces().by_begin.erase(found);
  ++pieces().released;
  return kOk;
}

int32_t map_memory(int device, int fd, size_t bytes, Kind kind, void** memory) {
  void* mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) {
    ::close(fd);
    return kOutOfMemory;
  }
  Piece piece;
  piece.kind = kind;
  piece.device = device;
  piece.begin = static_cast<unsigned char*>(mapped);
  piece.bytes = bytes;
  piece.fd = fd;
  if (kind == Kind::kDevice) {
    piece.written = std::make_unique<std::atomic<uint64_t>[]>((bytes + 63) / 64);
    piece.traces = std::make_unique<Traces>(bytes);
  }
  keep(std::move(piece));
  *memory = mapped;
  return kOk;
}

struct Handle {
  pid_t pid;
  int fd;
  int device;
  size_t bytes;
};
static_assert(sizeof(Handle) <= 64);

/// Calls visit(word, mask) for the words of the piece's bits that stand for the bytes.
template <typename Visit>
void for_each_word(const Piece& piece, const void* address, size_t bytes, const Visit& visit) {
  size_t first = number(address) - number(piece.begin);
  const size_t last = first + bytes;
  while (first < last) {
    const size_t end = std::min(last, (first / 64 + 1) * 64);
    const uint64_t ones = end - first == 64 ? ~uint64_t{0} : (uint64_t{1} << (end - first)) - 1;
    visit(piece.written[first / 64], ones << (first % 64));
    first = end;
  }
}

bool is_peer(const Piece& piece) {
  return piece.device >= 0 && piece.device != running_device;
}

/// The piece that holds the bytes, or nullptr.
const Piece* piece_of_bytes(const void* address, size_t bytes) {
  // A kernel uses a few pieces by turns.
  constexpr unsigned kRemembered = 8;
  thread_local constinit const Piece* remembered[kRemembered] = {};
  thread_local constinit uint64_t released = 0;
  thread_local constinit unsigned next = 0;
  const uint64_t now = pieces().released.load(std::memory_order_acquire);
  if (released != now) std::fill_n(remembered, kRemembered, nullptr);
  released = now;
  for (const Piece* piece : remembered) {
    if (piece != nullptr && holds(*piece, address, bytes)) return piece;
  }
  const Piece* found = piece_of(address);
  if (found == nullptr || !holds(*found, address, bytes)) return nullptr;
  remembered[next++ % kRemembered] = found;
  return found;
}

/// The piece of an access by a lane, which must be in reach.
const Piece* reached_piece(const void* address, size_t bytes, const Place& place) {
  if (number(address) % bytes != 0)
    report(Fault::kMisaligned, place,
           std::to_string(bytes) + " bytes at an address that is " +
               std::to_string(number(address) % bytes) + " past a multiple");
  const Piece* found = piece_of_bytes(address, bytes);
  if (found == nullptr) report(Fault::kUnmapped, place, "");
  if (is_peer(*found) && !facts_of_launch().settings->peers) report(Fault::kNoPeer, place, "");
  return found;
}

}  // namespace

int32_t allocate_on_device(int device, size_t bytes, void** memory) {
  if (bytes > free_bytes(device)) return kOutOfMemory;
  const int fd = ::memfd_create("emulated-gpu", MFD_CLOEXEC);
  if (fd < 0) return kOutOfMemory;
  if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    ::close(fd);
    return kOutOfMemory;
  }
  const int32_t error = map_memory(device, fd, bytes, Kind::kDevice, memory);
  if (error != kOk) return error;
  std::memset(*memory, kNanByte, bytes);
  if (settings().fresh == Fresh::kNan) mark_written(*memory, bytes);
  return kOk;
}

int32_t release_on_device(void* memory) {
  Piece piece;
  if (const int32_t error = take_out(memory, Kind::kDevice, Kind::kImported, &piece); error != kOk)
    return error;
  ::munmap(memory, piece.bytes);
  ::close(piece.fd);
  forget_flags(memory, piece.bytes);
  return kOk;
}

int32_t allocate_pinned_memory(size_t bytes, void** memory) {
  *memory = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (*memory == nullptr) return kOutOfMemory;
  Piece piece;
  piece.kind = Kind::kPinned;
  piece.begin = static_cast<unsigned char*>(*memory);
  piece.bytes = bytes;
  keep(std::move(piece));
  return kOk;
}

int32_t release_pinned_memory(void* memory) {
  Piece piece;
  const int32_t error = take_out(memory, Kind::kPinned, Kind::kPinned, &piece);
  if (error == kOk) std::free(memory);
  return error;
}

int32_t register_memory(void* memory, size_t bytes) {
  if (piece_of(memory) != nullptr) return kAlreadyRegistered;
  Piece piece;
  piece.kind = Kind::kRegistered;
  piece.begin = static_cast<unsigned char*>(memory);
  piece.bytes = bytes;
  keep(std::move(piece));
  return kOk;
}

int32_t unregister_memory(void* memory) {
  Piece piece;
  return take_out(memory, Kind::kRegistered, Kind::kRegistered, &piece) == kOk ? kOk
                                                                               : kNotRegistered;
}

size_t free_bytes(int device) {
  size_t taken = settings().taken;
  const std::shared_lock<std::shared_mutex> lock(pieces().mutex);
  for (const auto& [begin, piece] : pieces().by_begin) {
    if (piece.kind == Kind::kDevice && piece.device == device) taken += piece.bytes;
  }
  const size_t all = settings().bytes;
  return taken < all ? all - taken : 0;
}

int32_t export_piece(void* memory, unsigned char handle[64]) {
  const Piece* piece = piece_of(memory);
  if (piece == nullptr || piece->kind != Kind::kDevice) return kInvalidValue;
  const Handle mine{::getpid(), piece->fd, piece->device, piece->bytes};
  std::memset(handle, 0, 64);
  std::memcpy(handle, &mine, sizeof mine);
  return kOk;
}

int32_t import_piece(const unsigned char handle[64], void** memory) {
  Handle theirs{};
  std::memcpy(&theirs, handle, sizeof theirs);
  if (theirs.pid == ::getpid()) return kInvalidHandle;
  const std::string path =
      "/proc/" + std::to_string(theirs.pid) + "/fd/" + std::to_string(theirs.fd);
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return kInvalidHandle;
  return map_memory(theirs.device, fd, theirs.bytes, Kind::kImported, memory);
}

const Piece* piece_of(const void* address) {
  const std::shared_lock<std::shared_mutex> lock(pieces().mutex);
  auto after = pieces().by_begin.upper_bound(number(address));
  if (after == pieces().by_begin.begin()) return nullptr;
  const Piece& piece = std::prev(after)->second;
  return holds(piece, address, 1) ? &piece : nullptr;
}

bool fits(const void* address, size_t bytes) {
  const Piece* piece = piece_of(address);
  return piece == nullptr || holds(*piece, address, bytes);
}

void mark_written(const void* address, size_t bytes) {
  const Piece* piece = piece_of(address);
  if (piece == nullptr || piece->kind != Kind::kDevice) return;
  for_each_word(*piece, address, bytes, [](std::atomic<uint64_t>& word, uint64_t ones) {
    if ((word.load(std::memory_order_relaxed) & ones) != ones)
      word.fetch_or(ones, std::memory_order_relaxed);
  });
}

void check_read(const void* address, size_t bytes, const Place& place) {
  const Piece* piece = reached_piece(address, bytes, place);
  if (piece->kind != Kind::kDevice) return;
  bool all = true;
  for_each_word(*piece, address, bytes, [&](std::atomic<uint64_t>& word, uint64_t ones) {
    all = all && (word.load(std::memory_order_relaxed) & ones) == ones;
  });
  if (!all)
    report(Fault::kUnwritten, place,
           "byte " + std::to_string(number(address) - number(piece->begin)) + " of " +
               std::to_string(piece->bytes));
  if (piece->traces->has_begun())
    piece->traces->read(number(address) - number(piece->begin), bytes, place);
}

bool check_write(const void* address, size_t bytes, const Place& place) {
  const Piece* piece = reached_piece(address, bytes, place);
  if (is_peer(*piece)) {
    const Settings& now = *facts_of_launch().settings;
    while (now.peer_hang.has(running_device, piece->device)) let_others_run();
    if (now.peer_wrong.has(running_device, piece->device)) return false;
  }
  if (piece->kind == Kind::kDevice) {
    for_each_word(*piece, address, bytes, [](std::atomic<uint64_t>& word, uint64_t ones) {
      if ((word.load(std::memory_order_relaxed) & ones) != ones)
        word.fetch_or(ones, std::memory_order_relaxed);
    });
    if (piece->traces->has_begun())
      piece->traces->write(number(address) - number(piece->begin), bytes, place);
  }
  return true;
}

void tell_by_flag(const uint64_t* flag) {
  if (!kFlagsAreFollowed || acting == nullptr) return;
  acting->tell(flag);
  const Piece* piece = piece_of_bytes(flag, sizeof *flag);
  if (piece != nullptr && piece->kind == Kind::kDevice) piece->traces->begin();
}

void look_at_flag(const uint64_t* flag, uint64_t value) {
  if (kFlagsAreFollowed && acting != nullptr) acting->look(flag, value);
}

}  // namespace shoal::emulator
