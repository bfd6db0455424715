#include "server/host/model_watch.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "runtime/base/log.h"

namespace shoal {
namespace {

constexpr auto kPause = std::chrono::seconds(2);
/// How many pieces of 64 KiB the fingerprints of all mapped files cover together, about. They are
/// read at every start, which must not take noticeably longer for that.
constexpr size_t kChunks = 64;
constexpr size_t kChunksOfAFile = 2;

std::string listed(const std::vector<std::string>& paths) {
  std::string text;
  for (const std::string& path : paths) text += (text.empty() ? "" : ", ") + path;
  return text;
}

/// The ranks whose sums differ, for example "rank 0, rank 2".
std::string which_differ(const std::vector<uint64_t>& sums, const std::vector<uint64_t>& first) {
  std::string ranks;
  for (size_t rank = 0; rank < std::max(sums.size(), first.size()); ++rank) {
    if (rank >= sums.size() || rank >= first.size() || sums[rank] != first[rank])
      ranks += cat(ranks.empty() ? "rank " : ", rank ", rank);
  }
  return ranks;
}

}  // namespace

Result<std::unique_ptr<ModelWatch>> ModelWatch::start(std::vector<WatchedFile> files) {
  const auto mapped = static_cast<size_t>(std::count_if(
      files.begin(), files.end(), [](const WatchedFile& file) { return file.mapped; }));
  const size_t chunks = std::max(kChunks / std::max<size_t>(mapped, 1), kChunksOfAFile);
  for (const WatchedFile& watched : files) {
    SHOAL_RETURN_IF_ERROR(
        watched.file->take_fingerprint(static_cast<int>(watched.mapped ? chunks : kChunksOfAFile)));
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

Status ModelWatch::loaded(const std::vector<uint64_t>& sums) {
  look_at_files(true);
  const std::lock_guard lock(mutex_);
  if (sums_.empty()) sums_ = sums;
  if (sums != sums_) note_change(cat("the weights of ", which_differ(sums, sums_), " were"));
  return changed_;
}

Status ModelWatch::changed() const {
  const std::lock_guard lock(mutex_);
  return changed_;
}

/// Warns of files that were replaced, once for each file. Anyone who replaces a model replaces many
/// files, so the warning waits until a look finds no more of them, unless it is due now.
void ModelWatch::look_at_files(bool asked) {
  const std::lock_guard looking(look_mutex_);
  if (!changed().ok()) return;  // nothing that follows matters
  const size_t before = replaced_.size();
  for (Entry& entry : entries_) look_at(entry, asked && entry.watched.mapped);
  if (replaced_.empty() || (replaced_.size() > before && !asked)) return;
  log_warning(cat("files of the model were replaced: ", listed(replaced_),
                  "; the program keeps those that it has opened, and uses the new ones when it is "
                  "started again"));
  replaced_.clear();
}

void ModelWatch::look_at(Entry& entry, bool always) {
  const bool mapped = entry.watched.mapped;
  if (entry.reported && !mapped) return;
  HeldFile& file = *entry.watched.file;
  const HeldFile::Change change = file.look(always);
  const bool other_contents = change == HeldFile::Change::kContents ||
                              (change == HeldFile::Change::kWritten && mapped && !loaded_once());
  if (!other_contents && change != HeldFile::Change::kNone)
    log_warning(cat(file.path(), " was touched; the parts of it that were compared are the same"));
  if (!entry.reported && (file.replaced() || (other_contents && !mapped))) {
    entry.reported = true;
    replaced_.push_back(file.path());
  }
  if (!other_contents || !mapped) return;
  const std::lock_guard lock(mutex_);
  note_change(cat(file.path(), " was"));
}

bool ModelWatch::loaded_once() const {
  const std::lock_guard lock(mutex_);
  return !sums_.empty();
}

/// Call it with mutex_ held.
void ModelWatch::note_change(const std::string& what) {
  if (!changed_.ok()) return;
  changed_ = Status::error(
                 Code::kDataLoss,
                 cat(what, " changed in place while the model was in use, so the model that was ",
                     "loaded is gone; to replace a model, rename new files over the old ones"))
                 .blamed_on(Fault::kModelChanged);
}

}  // namespace shoal
