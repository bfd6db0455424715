#include "server/host/model_files.h"

#include <chrono>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "models/hub.h"
#include "models/tokenizer/unicode.h"
#include "models/weights.h"
#include "runtime/base/deadline.h"
#include "server/host/hidden_home.h"
#include "server/host/read_in_time.h"

namespace shoal {
namespace {

/// A file that is being written may stay as it is for a while: its times change when a write
/// begins, its size when a part of it is done, and emptying a large file takes long.
constexpr int64_t kChangeShowsMs = 250;
constexpr int kLookMs = 5;

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
                    std::move(watched),     Deadline::infinite()};
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
  const bool shortage = model.status().fault() == Fault::kShortage;
  if (code == Code::kUnimplemented || code == Code::kUnavailable || shortage) return model.status();
  return unless_changed(held, model.status());
}

Result<ModelFiles> open_model(const EngineFlags& flags) {
  const Deadline start_by = Deadline::after_s(flags.transport.startup_timeout_s);
  SHOAL_ASSIGN_OR_RETURN(ModelFiles files,
                         read_in_time<ModelFiles>(cat("MODEL ", flags.model), start_by,
                                                  [dir = flags.model] { return open_model(dir); }));
  files.start_by = start_by;
  return files;
}

Result<Tokenizer> load_tokenizer(const ModelFiles& model) {
  return read_in_time<Tokenizer>(
      cat("the tokenizer of MODEL ", model.dir), model.start_by,
      [dir = model.dir, watched = model.watched] { return read_tokenizer(dir, watched); });
}

}  // namespace shoal
