#include "server/host/model_fingerprint.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>
#include <unistd.h>
#include <utility>

namespace shoal {

namespace {

constexpr size_t kPiece = size_t{1} << 20;
constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15;

uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * kMultiplier;
  return hash ^ (hash >> 32);
}

uint64_t word_at(const char* bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

}  // namespace

/// Four lanes, because one alone would wait for its own multiplication.
uint64_t hash_bytes(uint64_t before, const char* bytes, size_t count) {
  uint64_t lanes[4] = {before, before + 1, before + 2, before + 3};
  size_t at = 0;
  for (; at + 32 <= count; at += 32)
    for (int lane = 0; lane < 4; ++lane)
      lanes[lane] = mix(lanes[lane], word_at(bytes + at + 8 * lane));
  char rest[32] = {};
  if (at < count) std::memcpy(rest, bytes + at, count - at);
  for (int lane = 0; lane < 4; ++lane) lanes[lane] = mix(lanes[lane], word_at(rest + 8 * lane));
  return mix(mix(mix(mix(lanes[0], lanes[1]), lanes[2]), lanes[3]), count);
}

ModelFingerprint::ModelFingerprint(const ModelFiles& files) : config_(files.config_json) {
  for (const WatchedFile& file : files.watched)
    if (file.mapped) files_.push_back(file);
  try {
    thread_ = std::thread([this] { read_weights(); });
  } catch (const std::system_error&) {
    read_weights();
  }
}

ModelFingerprint::~ModelFingerprint() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
}

void ModelFingerprint::read_weights() {
  std::string piece(kPiece, '\0');
  for (const WatchedFile& file : files_) {
    const uint64_t bytes = file.file->bytes();
    for (uint64_t at = 0; at < bytes && !stop_;) {
      const ssize_t got =
          ::pread(file.file->fd(), piece.data(), piece.size(), static_cast<off_t>(at));
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) {
        failure_ =
            Status::error(Code::kDataLoss, cat("read ", file.file->path()), got < 0 ? errno : 0);
        return;
      }
      hash_ = hash_bytes(hash_, piece.data(), static_cast<size_t>(got));
      at += static_cast<uint64_t>(got);
    }
  }
}

Result<std::string> ModelFingerprint::finish(const std::string& dtype,
                                             const std::string& arithmetic) {
  if (thread_.joinable()) thread_.join();
  files_.clear();
  SHOAL_RETURN_IF_ERROR(failure_);
  uint64_t hash = hash_;
  for (const std::string* text : {&config_, &dtype, &arithmetic})
    hash = hash_bytes(hash, text->data(), text->size());
  char text[24];
  std::snprintf(text, sizeof text, "fp_%016llx", static_cast<unsigned long long>(hash));
  return std::string(text);
}

}  // namespace shoal
