#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "models/held_file.h"
#include "runtime/base/deadline.h"
#include "runtime/base/status.h"

namespace shoal {

/// A file of the model that is in use.
struct WatchedFile {
  std::shared_ptr<HeldFile> file;
  /// Ranks read it as long as they run, and again when they are started again. Otherwise the front
  /// has read all of it at the start, so that a later change of it changes nothing.
  bool mapped = false;
};

/// Files that are there answer in this time, also on a busy machine. No look has less, and at its
/// end no thread that reads them is waited for longer.
inline constexpr int64_t kFilesAnswerMs = 2'000;

/// ABORTED (Fault::kModelChanged), with the file: a read of this file began, and has not returned
/// after this many seconds.
Status file_does_not_answer(const std::string& path, double seconds);

/// Looks every two seconds, on a thread of its own, whether the files of the model are still what
/// was loaded.
///
/// A file that was replaced (another one has its name now) changes nothing, because the old one
/// stays open. One warning names all such files. A mapped file whose contents were changed in place
/// means that the model that answers is no longer the one that was loaded, and so do ranks that
/// have loaded other weights. Such an error has Fault::kModelChanged. A write that leaves the parts
/// that are compared as they were is the same until the first ranks have loaded, because nothing
/// else tells then whether they have loaded one version of the file. Afterwards it is only logged.
///
/// No function of it reads the files on the caller's thread, because a read of a file whose file
/// system is gone does not end. If the thread hangs there, it is left behind with all that it uses.
/// All functions may be called from any thread.
class ModelWatch {
 public:
  /// Remembers the files as they are now. DATA_LOSS: one of them cannot be read, or was changed
  /// since it was opened. The other errors, and when they come, are those of look().
  static Result<std::unique_ptr<ModelWatch>> start(std::vector<WatchedFile> files,
                                                   Deadline deadline,
                                                   const std::function<bool()>& given_up = {});
  ~ModelWatch();

  /// Looks now, and compares parts of the mapped files whatever their times say. DATA_LOSS, with
  /// the file: it was changed in place. From then on every call of this and of changed() returns
  /// the same.
  ///
  /// ABORTED, with the file (Fault::kModelChanged): it does not answer by the deadline. However
  /// near that is, the look has two seconds, because what it finds may be why there was no time.
  /// CANCELLED (Fault::kGivenUp): given_up, which is asked several times a second and must not
  /// block, has returned true. After either, nobody else waits for the same look.
  Status look(Deadline deadline, const std::function<bool()>& given_up = {});

  /// Ranks have loaded weights with these checksums, by rank. Looks, too. The first call keeps the
  /// sums. The errors are those of look(), and DATA_LOSS: these are not the sums of the first call.
  Status loaded(const std::vector<uint64_t>& sums, Deadline deadline,
                const std::function<bool()>& given_up = {});

  /// What the latest look has found. Never waits for a file.
  Status changed() const;

 private:
  class Looks;
  explicit ModelWatch(std::vector<WatchedFile> files);

  std::unique_ptr<Looks> looks_;  // what the thread works with
  std::thread thread_;
};

}  // namespace shoal
