#include "server/host/model_files.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "models/hub.h"
#include "models/tokenizer/unicode.h"
#include "models/weights.h"
#include "runtime/base/deadline.h"
#include "runtime/base/log.h"
#include "runtime/base/number_text.h"
#include "runtime/base/wait.h"
#include "server/host/hidden_home.h"

namespace shoal {
namespace {

/// A file that is being written may stay as it is for a while: its times change when a write
/// begins, its size when a part of it is done, and emptying a large file takes long.
constexpr int64_t kChangeShowsMs = 250;
constexpr int kLookMs = 5;
/// Files that have not been read by then are said to be slow.
constexpr double kSlowFilesS = 5;

/// The name of the model that a snapshot in the cache of Hugging Face's hub is of:
/// ".../models--HuggingFaceTB--SmolLM2-135M/snapshots/7e27bd9f" -> "HuggingFaceTB/SmolLM2-135M".
/// Empty: the path is none of such a snapshot.
std::string hub_name(const std::filesystem::path& path) {
  constexpr std::string_view kPrefix = "models--", kBetween = "--";
  if (path.parent_path().filename() != "snapshots") return "";
  const std::string folder = path.parent_path().parent_path().filename().string();
  if (!folder.starts_with(kPrefix)) return "";
  std::string name = folder.substr(kPrefix.size());
  // The hub allows no "--" in names, so this one was a slash.
  if (const size_t at = name.find(kBetween); at != std::string::npos)
    name.replace(at, kBetween.size(), "/");
  return name;
}

/// The name of the model's directory; "models/demo/", "." and ".." have one too. A snapshot in the
/// cache of the hub has the name of its model, because its directory is called by a hash. A
/// symbolic link keeps its own name, because that is what the user wrote. Other bytes are replaced
/// to give valid UTF-8, because a request can name the model only in UTF-8.
std::string model_name(const std::string& dir) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(dir, error).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  const std::string of_hub = hub_name(path);
  return to_valid_utf8(of_hub.empty() ? path.filename().string() : of_hub);
}

/// NOT_FOUND unless the directory is one.
Status check_directory(const std::string& dir) {
  std::error_code error;
  const auto found = std::filesystem::status(dir, error);
  if (found.type() == std::filesystem::file_type::directory) return {};
  const char* const why = std::filesystem::exists(found) ? " is not a directory"
                          : error == std::errc::permission_denied
                              ? " may not be looked at (a folder above it)"
                              : " does not exist";
  return Status::error(Code::kNotFound,
                       cat("MODEL ", dir.empty() ? "\"\"" : dir.substr(0, 400), why,
                           "; it must be a Hugging Face model directory (config.json, "
                           "tokenizer.json, model.safetensors)",
                           hidden_home(dir), how_to_get_model(dir)));
}

/// Those that the front reads whole.
Result<HeldFiles> small_files(const std::string& dir) {
  HeldFiles files;
  for (const char* name : {"config.json", "generation_config.json", "tokenizer.json",
                           "model.safetensors.index.json"}) {
    Result<HeldFile> file = HeldFile::open(cat(dir, "/", name));
    if (file.ok()) {
      files.push_back(std::make_shared<HeldFile>(std::move(file).value()));
    } else if (file.status().code() == Code::kUnavailable) {
      return file.status();
    }
    // Whoever needs a file that is missing or no file says so.
  }
  return files;
}

/// What a thread reads, which may never be there.
template <class T>
struct FileRead {
  std::mutex mutex;
  std::condition_variable over;
  std::optional<Result<T>> result;
  std::exception_ptr thrown;

  /// The thread's work.
  void run(const std::function<Result<T>()>& read) {
    try {
      Result<T> got = read();
      const std::lock_guard lock(mutex);
      result.emplace(std::move(got));
    } catch (...) {  // no memory is left
      const std::lock_guard lock(mutex);
      thrown = std::current_exception();
    }
    over.notify_all();
  }

  /// False: it is not over by the deadline.
  bool wait(Deadline deadline) {
    std::unique_lock lock(mutex);
    return wait_until_ready(over, lock, deadline, [this] { return result || thrown; });
  }
};

/// Reads files of flags.model on a thread of its own, if there can be one.
template <class T>
Result<T> read_in_time(const EngineFlags& flags, const std::function<Result<T>()>& read) {
  const auto reading = std::make_shared<FileRead<T>>();
  std::thread thread;
  try {
    thread = std::thread([reading, read] { reading->run(read); });
  } catch (const std::system_error&) {
    return read();
  }
  const double answer_s = std::max(flags.transport.startup_timeout_s, 1e-3 * kFilesAnswerMs);
  const Deadline deadline = Deadline::after_s(answer_s);
  bool over = reading->wait(Deadline::after_s(std::min(answer_s, kSlowFilesS)));
  if (!over && !deadline.passed()) {
    log_warning(cat("MODEL ", flags.model, " has not been read after ", with_digits(kSlowFilesS, 3),
                    " s; --startup-timeout ends that after ", with_digits(answer_s, 3), " s"));
    over = reading->wait(deadline);
  }
  if (!over) {
    thread.detach();
    return file_does_not_answer(cat("MODEL ", flags.model), answer_s);
  }
  thread.join();
  if (reading->thrown) std::rethrow_exception(reading->thrown);
  return std::move(*reading->result);
}

/// held: the small files; it gets those of the checkpoint.
Result<ModelFiles> read_model(const std::string& dir, HeldFiles* held) {
  const HeldFiles small = *held;
  SHOAL_ASSIGN_OR_RETURN(std::string config_json, read_model_config(dir));
  SHOAL_ASSIGN_OR_RETURN(ModelConfig config,
                         parse_model_config(config_json, cat(dir, "/config.json")));
  SHOAL_ASSIGN_OR_RETURN(GenerationConfig generation, load_generation_config(dir));
  SHOAL_ASSIGN_OR_RETURN(Checkpoint checkpoint, Checkpoint::open(dir, held));
  // What fails here is quantised or damaged, so plan_engine can only fail because of --dtype.
  const Status type = resolve_dtype(checkpoint, std::nullopt).status();
  if (type.code() == Code::kUnimplemented) return type;
  if (!type.ok())
    return type.because_of(Code::kInvalidArgument, cat(dir, " holds no whole safetensors model"));
  std::vector<WatchedFile> watched;
  for (const std::shared_ptr<HeldFile>& file : checkpoint.files()) watched.push_back({file, true});
  for (const std::shared_ptr<HeldFile>& file : small) watched.push_back({file, false});
  return ModelFiles{model_name(dir),        dir,
                    std::move(config_json), std::move(config),
                    std::move(generation),  std::move(checkpoint),
                    std::move(watched)};
}

/// watched: the model's files as they were when they were opened.
Result<Tokenizer> read_tokenizer(const std::string& dir, const std::vector<WatchedFile>& watched) {
  Result<Tokenizer> tokenizer = Tokenizer::load(dir);
  if (tokenizer.ok()) return tokenizer;
  HeldFiles files;
  for (const WatchedFile& file : watched) files.push_back(file.file);
  return unless_changed(files, tokenizer.status());
}

}  // namespace

Status unless_changed(const HeldFiles& files, Status error) {
  if (error.ok()) return error;
  const Deadline shows = Deadline::after_ms(kChangeShowsMs);
  for (;;) {
    const bool last = shows.passed();
    for (const std::shared_ptr<HeldFile>& file : files) {
      if (!file->written()) continue;
      return error
          .because_of(Code::kDataLoss, cat(file->path(),
                                           " was changed in place while it was opened; start again "
                                           "once it is whole"))
          .blamed_on(Fault::kModelChanged);
    }
    if (last) return error;
    std::this_thread::sleep_for(std::chrono::milliseconds(shows.remaining_ms(kLookMs)));
  }
}

Result<ModelFiles> open_model(const std::string& dir) {
  SHOAL_RETURN_IF_ERROR(check_directory(dir));
  // Before they are read, so that a change shows.
  SHOAL_ASSIGN_OR_RETURN(HeldFiles held, small_files(dir));
  Result<ModelFiles> model = read_model(dir, &held);
  if (model.ok()) return model;
  // What this program cannot do, and a file that cannot be had, are no half of a file.
  const Code code = model.status().code();
  if (code == Code::kUnimplemented || code == Code::kUnavailable) return model.status();
  return unless_changed(held, model.status());
}

Result<ModelFiles> open_model(const EngineFlags& flags) {
  return read_in_time<ModelFiles>(flags, [dir = flags.model] { return open_model(dir); });
}

Result<Tokenizer> load_tokenizer(const ModelFiles& model) {
  return read_tokenizer(model.dir, model.watched);
}

Result<Tokenizer> load_tokenizer(const ModelFiles& model, const EngineFlags& flags) {
  return read_in_time<Tokenizer>(
      flags, [dir = model.dir, watched = model.watched] { return read_tokenizer(dir, watched); });
}

}  // namespace shoal
