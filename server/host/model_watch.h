#pragma once
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "models/held_file.h"
#include "runtime/base/status.h"

namespace shoal {

/// A file of the model that is in use.
struct WatchedFile {
  std::shared_ptr<HeldFile> file;
  /// Ranks read it as long as they run, and again when they are started again. Otherwise the front
  /// has read all of it at the start, so that a later change of it changes nothing.
  bool mapped = false;
};

/// Looks every two seconds, on a thread of its own, whether the files of the model are still what
/// was loaded.
///
/// A file that was replaced (another one has its name now) changes nothing, because the old one
/// stays open. One warning names all such files. A mapped file whose contents were changed in place
/// means that the model that answers is no longer the one that was loaded, and so do ranks that
/// have loaded other weights. Such an error has Fault::kModelChanged. A write that leaves the parts
/// that are compared as they were is the same until the first ranks have loaded, because nothing
/// else tells then whether they have loaded one version of the file. Afterwards it is only logged.
/// All functions may be called from any thread.
class ModelWatch {
 public:
  /// Remembers the files as they are now. DATA_LOSS: one of them cannot be read.
  static Result<std::unique_ptr<ModelWatch>> start(std::vector<WatchedFile> files);
  ~ModelWatch();

  /// Looks now, and compares parts of the mapped files whatever their times say. DATA_LOSS, with
  /// the file: it was changed in place. From then on every call of this and of changed() returns
  /// the same.
  Status look();

  /// Ranks have loaded weights with these checksums, by rank. Looks, too. The first call keeps the
  /// sums. DATA_LOSS, as look(): a file was changed, or these are not those of the first call.
  Status loaded(const std::vector<uint64_t>& sums);

  /// What the latest look has found. Never waits for a file.
  Status changed() const;

 private:
  explicit ModelWatch(std::vector<WatchedFile> files);
  void run();
  void look_at_files(bool asked);

  struct Entry {
    WatchedFile watched;
    bool reported = false;  ///< as replaced
  };
  void look_at(Entry& entry, bool always);
  bool loaded_once() const;
  void note_change(const std::string& what);

  std::mutex look_mutex_;  // held while files are read; guards entries_ and replaced_
  std::vector<Entry> entries_;
  std::vector<std::string> replaced_;  // not named in a warning yet
  mutable std::mutex mutex_;           // guards the rest; may be locked after look_mutex_
  std::condition_variable wake_;
  Status changed_;
  std::vector<uint64_t> sums_;  // of what the first ranks loaded; empty until they have
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace shoal
