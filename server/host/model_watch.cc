#include "server/host/model_watch.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/number_text.h"
#include "runtime/base/wait.h"
#include "runtime/device/keep_for_process.h"

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

Status file_does_not_answer(const std::string& path, double seconds) {
  return Status::error(Code::kAborted,
                       cat(path, " does not answer: it has not been read after ",
                           with_digits(seconds, 3), " s; its file system may be gone"))
      .blamed_on(Fault::kModelChanged);
}

/// The looks of the thread, and what others wait for and find.
class ModelWatch::Looks {
 public:
  explicit Looks(std::vector<WatchedFile> files);

  /// The thread's work.
  void run();
  /// Ends it. False: it hangs at a file.
  bool stop();
  Status wait(Deadline deadline, const std::function<bool()>& given_up);
  Status compare(const std::vector<uint64_t>& sums);
  Status changed() const;

 private:
  struct Entry {
    WatchedFile watched;
    bool reported = false;  ///< as replaced
  };
  void remember_files();
  void look_at_files(bool asked);
  void look_at(Entry& entry, bool always);
  void begin(const HeldFile& file);
  bool loaded_once() const;
  void note_change(const std::string& what);

  // The thread's.
  std::vector<Entry> entries_;
  std::vector<std::string> replaced_;  // not named in a warning yet
  mutable std::mutex mutex_;           // guards the rest
  std::condition_variable wake_;
  uint64_t asked_ = 0, answered_ = 0;     // looks
  const std::string* reading_ = nullptr;  // the file that the look is at
  Status abandoned_;  // why nobody waits for this look any more; ok: somebody may
  Status changed_;
  std::vector<uint64_t> sums_;  // of what the first ranks loaded; empty until they have
  bool stop_ = false;
  bool ended_ = false;
};

Result<std::unique_ptr<ModelWatch>> ModelWatch::start(std::vector<WatchedFile> files,
                                                      Deadline deadline,
                                                      const std::function<bool()>& given_up) {
  std::unique_ptr<ModelWatch> watch(new ModelWatch(std::move(files)));
  SHOAL_RETURN_IF_ERROR(watch->look(deadline, given_up));
  return watch;
}

ModelWatch::ModelWatch(std::vector<WatchedFile> files)
    : looks_(std::make_unique<Looks>(std::move(files))),
      thread_([looks = looks_.get()] { looks->run(); }) {}

ModelWatch::~ModelWatch() {
  if (looks_->stop()) {
    thread_.join();
  } else {
    thread_.detach();
    keep_for_process(std::move(looks_));
  }
}

Status ModelWatch::look(Deadline deadline, const std::function<bool()>& given_up) {
  return looks_->wait(deadline, given_up);
}

Status ModelWatch::loaded(const std::vector<uint64_t>& sums, Deadline deadline,
                          const std::function<bool()>& given_up) {
  SHOAL_RETURN_IF_ERROR(looks_->wait(deadline, given_up));
  return looks_->compare(sums);
}

Status ModelWatch::changed() const {
  return looks_->changed();
}

ModelWatch::Looks::Looks(std::vector<WatchedFile> files) {
  for (WatchedFile& file : files) entries_.push_back({std::move(file)});
}

void ModelWatch::Looks::run() {
  std::unique_lock lock(mutex_);
  for (bool first = true;; first = false) {
    wake_.wait_for(lock, kPause, [this] { return stop_ || asked_ != answered_; });
    if (stop_) break;
    const uint64_t asked = asked_;
    const bool is_asked = asked != answered_;
    lock.unlock();
    first ? remember_files() : look_at_files(is_asked);
    lock.lock();
    reading_ = nullptr;
    abandoned_ = {};
    answered_ = asked;
    wake_.notify_all();
  }
  ended_ = true;
  wake_.notify_all();
}

bool ModelWatch::Looks::stop() {
  std::unique_lock lock(mutex_);
  stop_ = true;
  wake_.notify_all();
  return wait_until_ready(wake_, lock, Deadline::after_ms(kFilesAnswerMs),
                          [this] { return ended_; });
}

/// Waits for a look that begins now, or after the one that is under way.
Status ModelWatch::Looks::wait(Deadline deadline, const std::function<bool()>& given_up) {
  const RunningClock::time_point since = RunningClock::now();
  const Deadline shortest = Deadline::after_ms(kFilesAnswerMs);
  std::unique_lock lock(mutex_);
  const uint64_t mine = ++asked_;
  wake_.notify_all();
  while (answered_ < mine && changed_.ok() && abandoned_.ok()) {
    if (given_up && given_up()) {
      abandoned_ = Status::error(Code::kCancelled, "nobody waits for the model's files any more")
                       .blamed_on(Fault::kGivenUp);
    } else if (deadline.passed() && shortest.passed()) {
      abandoned_ = file_does_not_answer(reading_ != nullptr ? *reading_ : "a file of the model",
                                        seconds_since(since));
    } else {
      wake_.wait_for(lock, std::chrono::milliseconds(RunningClock::kLookMs));
    }
  }
  if (!changed_.ok() || answered_ >= mine) return changed_;
  return abandoned_;
}

/// The first call keeps the sums.
Status ModelWatch::Looks::compare(const std::vector<uint64_t>& sums) {
  const std::lock_guard lock(mutex_);
  if (sums_.empty()) sums_ = sums;
  if (sums != sums_) note_change(cat("the weights of ", which_differ(sums, sums_), " were"));
  return changed_;
}

Status ModelWatch::Looks::changed() const {
  const std::lock_guard lock(mutex_);
  return changed_;
}

/// The first look, which the later ones compare with.
void ModelWatch::Looks::remember_files() {
  const auto mapped = static_cast<size_t>(std::count_if(
      entries_.begin(), entries_.end(), [](const Entry& entry) { return entry.watched.mapped; }));
  const size_t chunks = std::max(kChunks / std::max<size_t>(mapped, 1), kChunksOfAFile);
  for (const auto& [watched, reported] : entries_) {
    begin(*watched.file);
    const Status taken =
        watched.file->take_fingerprint(static_cast<int>(watched.mapped ? chunks : kChunksOfAFile));
    if (taken.ok()) continue;
    const std::lock_guard lock(mutex_);
    changed_ = taken;
    return;
  }
}

/// Warns of files that were replaced, once for each file. Anyone who replaces a model replaces many
/// files, so the warning waits until a look finds no more of them, unless it is due now.
void ModelWatch::Looks::look_at_files(bool asked) {
  if (!changed().ok()) return;  // nothing that follows matters
  const size_t before = replaced_.size();
  for (Entry& entry : entries_) look_at(entry, asked && entry.watched.mapped);
  if (replaced_.empty() || (replaced_.size() > before && !asked)) return;
  log_warning(cat("files of the model were replaced: ", listed(replaced_),
                  "; the program keeps those that it has opened, and uses the new ones when it is "
                  "started again"),
              {{"event", "model_replaced"}, {"files", static_cast<int64_t>(replaced_.size())}});
  replaced_.clear();
}

void ModelWatch::Looks::look_at(Entry& entry, bool always) {
  const bool mapped = entry.watched.mapped;
  if (entry.reported && !mapped) return;
  HeldFile& file = *entry.watched.file;
  begin(file);
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

/// The look comes to this file.
void ModelWatch::Looks::begin(const HeldFile& file) {
  const std::lock_guard lock(mutex_);
  reading_ = &file.path();
}

bool ModelWatch::Looks::loaded_once() const {
  const std::lock_guard lock(mutex_);
  return !sums_.empty();
}

/// Call it with mutex_ held.
void ModelWatch::Looks::note_change(const std::string& what) {
  if (!changed_.ok()) return;
  changed_ = Status::error(
                 Code::kDataLoss,
                 cat(what, " changed in place while the model was in use, so the model that was ",
                     "loaded is gone; to replace a model, rename new files over the old ones"))
                 .blamed_on(Fault::kModelChanged);
}

}  // namespace shoal
