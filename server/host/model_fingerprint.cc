#include "server/host/model_fingerprint.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <system_error>
#include <unistd.h>
#include <utility>
#include <vector>

#include "runtime/base/deadline.h"
#include "runtime/base/wait.h"
#include "runtime/device/keep_for_process.h"

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

/// The thread's work, and how far it is.
class ModelFingerprint::Reading {
 public:
  explicit Reading(const ModelFiles& files);

  void run();
  /// Waits for the hash.
  Result<uint64_t> hash(double answer_s);
  /// Nobody wants the hash any more. False: the thread hangs at a file.
  bool stop();

 private:
  Status read(const HeldFile& file);

  // The thread's until done_.
  std::vector<std::shared_ptr<HeldFile>> files_;
  uint64_t hash_ = 0;
  Status failure_;
  std::atomic<bool> stop_ = false;
  std::mutex mutex_;  // guards the rest
  std::condition_variable moved_;
  uint64_t pieces_ = 0;                   // that have been begun
  const std::string* reading_ = nullptr;  // the file that the next one is of
  bool done_ = false;
};

ModelFingerprint::ModelFingerprint(const ModelFiles& files)
    : reading_(std::make_unique<Reading>(files)), config_(files.config_json) {
  Reading* const reading = reading_.get();
  try {
    thread_ = std::thread([reading] { reading->run(); });
  } catch (const std::system_error&) {
    reading->run();
  }
}

ModelFingerprint::~ModelFingerprint() {
  const bool ended = reading_->stop();
  if (!thread_.joinable()) return;
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
    keep_for_process(std::move(reading_));
  }
}

ModelFingerprint::Reading::Reading(const ModelFiles& files) {
  for (const WatchedFile& file : files.watched)
    if (file.mapped) files_.push_back(file.file);
}

void ModelFingerprint::Reading::run() {
  for (const std::shared_ptr<HeldFile>& file : files_)
    if (failure_.ok()) failure_ = read(*file);
  const std::lock_guard lock(mutex_);
  done_ = true;
  files_.clear();
  moved_.notify_all();
}

Status ModelFingerprint::Reading::read(const HeldFile& file) {
  std::string piece(kPiece, '\0');
  for (uint64_t at = 0; at < file.bytes() && !stop_;) {
    {
      const std::lock_guard lock(mutex_);
      ++pieces_;
      reading_ = &file.path();
      moved_.notify_all();
    }
    const ssize_t got = ::pread(file.fd(), piece.data(), piece.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0)
      return Status::error(Code::kDataLoss, cat("read ", file.path()), got < 0 ? errno : 0);
    hash_ = hash_bytes(hash_, piece.data(), static_cast<size_t>(got));
    at += static_cast<uint64_t>(got);
  }
  return {};
}

Result<uint64_t> ModelFingerprint::Reading::hash(double answer_s) {
  answer_s = std::max(answer_s, 1e-3 * kFilesAnswerMs);
  std::unique_lock lock(mutex_);
  while (!done_) {
    const auto has_moved = [this, pieces = pieces_] { return done_ || pieces_ != pieces; };
    if (!wait_until_ready(moved_, lock, Deadline::after_s(answer_s), has_moved))
      return file_does_not_answer(reading_ != nullptr ? *reading_ : "a file of the model",
                                  answer_s);
  }
  if (!failure_.ok()) return failure_;
  return hash_;
}

bool ModelFingerprint::Reading::stop() {
  stop_ = true;
  std::unique_lock lock(mutex_);
  return wait_until_ready(moved_, lock, Deadline::after_ms(kFilesAnswerMs),
                          [this] { return done_; });
}

Result<std::string> ModelFingerprint::finish(const std::string& dtype,
                                             const std::string& arithmetic, double answer_s) {
  SHOAL_ASSIGN_OR_RETURN(uint64_t hash, reading_->hash(answer_s));
  if (thread_.joinable()) thread_.join();
  for (const std::string* text : {&config_, &dtype, &arithmetic})
    hash = hash_bytes(hash, text->data(), text->size());
  char text[24];
  std::snprintf(text, sizeof text, "fp_%016llx", static_cast<unsigned long long>(hash));
  return std::string(text);
}

}  // namespace shoal
