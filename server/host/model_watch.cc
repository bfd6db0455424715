#include "server/host/model_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/base/log.h"

namespace shoal {
namespace {

constexpr auto kPause = std::chrono::seconds(2);
/// How many pieces of 64 KiB the fingerprints of all files cover together, about. They are read at
/// the start, which must not take noticeably longer for that.
constexpr size_t kChunks = 64;
constexpr size_t kChunksOfAFile = 2;

std::string listed(const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& path : paths) text += (text.empty() ? "" : ", ") + path;
  return text;
}

}  // namespace

Result<std::unique_ptr<ModelWatch>> ModelWatch::start(std::vector<WatchedFile> files) {
  const auto chunks =
      static_cast<int>(std::max(kChunks / std::max<size_t>(files.size(), 1), kChunksOfAFile));
  for (const WatchedFile& watched : files) {
    SHOAL_RETURN_IF_ERROR(watched.file->take_fingerprint(chunks));
  }
  return std::unique_ptr<ModelWatch>(new ModelWatch(std::move(files)));
}

ModelWatch::ModelWatch(std::vector<WatchedFile> files) {
  for (WatchedFile& file : files) entries_.push_back({std::move(file)});
  thread_ = std::thread([this] { run(); });
}

ModelWatch::~ModelWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void ModelWatch::run() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kPause, [this] { return stop_; })) {
    lock.unlock();
    look_at_files(false);
    lock.lock();
  }
}

Status ModelWatch::look() {
  look_at_files(true);
  return changed();
}

Status ModelWatch::changed() const {
  const std::lock_guard lock(mutex_);
  return changed_;
}

/// Warns of files that were replaced, once for each file. Anyone who replaces a model replaces many
/// files, so the warning waits until a look finds no more of them, unless it is due now.
void ModelWatch::look_at_files(bool now) {
  const std::lock_guard looking(look_mutex_);
  if (!changed().ok()) return;  // nothing that follows matters
  const size_t before = replaced_.size();
  for (Entry& entry : entries_) look_at(entry);
  if (replaced_.empty() || (replaced_.size() > before && !now)) return;
  log_warning(cat("files of the model were replaced: ", listed(replaced_),
                  "; the program keeps those that it has opened, and uses the new ones when it is "
                  "started again"));
  replaced_.clear();
}

void ModelWatch::look_at(Entry& entry) {
  const bool mapped = entry.watched.mapped;
  if (entry.reported && !mapped) return;
  HeldFile& file = *entry.watched.file;
  const HeldFile::Change change = file.look();
  if (change == HeldFile::Change::kTouched)
    log_info(cat(file.path(), " was touched, but its contents are the same"));
  const bool other_contents = change == HeldFile::Change::kContents;
  if (!entry.reported && (file.replaced() || (other_contents && !mapped))) {
    entry.reported = true;
    replaced_.push_back(file.path());
  }
  if (!other_contents || !mapped) return;
  const std::lock_guard lock(mutex_);
  if (!changed_.ok()) return;
  changed_ = Status::error(
      Code::kDataLoss,
      cat(file.path(), " was changed in place while the model was in use, so the model that was ",
          "loaded is gone; to replace a model, rename new files over the old ones"));
}

}  // namespace shoal
