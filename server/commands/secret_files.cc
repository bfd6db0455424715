#include "server/commands/secret_files.h"

#include <cstdlib>
#include <system_error>
#include <utility>

#include "runtime/base/log.h"

namespace shoal {

namespace {

constexpr char kKeyVariable[] = "SHOAL_API_KEY";

/// Says what came of a look at the files behind `what`.
template <typename Text>
void tell(const char* what, const typename Reread<Text>::Look& look) {
  if (look.replaced)
    log_info(cat(what, " have changed and are used from now on"),
             {{"event", "secrets_replaced"}, {"what", what}});
  if (!look.refused.ok())
    log_warning(
        cat(what, " have changed and cannot be used, so that those from before stay: ",
            explained(look.refused)),
        {{"event", "secrets_refused"}, {"what", what}, {"code", code_name(look.refused.code())}});
}

}  // namespace

Result<std::unique_ptr<SecretFiles>> SecretFiles::open(const AccessFlags& access,
                                                       const TlsFiles& tls,
                                                       std::chrono::milliseconds period) {
  std::unique_ptr<SecretFiles> files(new SecretFiles);
  SHOAL_RETURN_IF_ERROR(files->read_keys(access));
  if (tls.any()) SHOAL_RETURN_IF_ERROR(files->read_tls(tls));
  if (files->key_file_ || files->tls_files_) SHOAL_RETURN_IF_ERROR(files->start(period));
  return files;
}

Status SecretFiles::read_keys(const AccessFlags& access) {
  fixed_keys_ = access.api_keys;
  if (const char* value = std::getenv(kKeyVariable); value != nullptr && *value != '\0') {
    SHOAL_RETURN_IF_ERROR(check_api_key(value, kKeyVariable));
    fixed_keys_.emplace_back(value);
  }
  ::unsetenv(kKeyVariable);
  keys_ = std::make_shared<ApiKeys>(fixed_keys_);
  if (access.api_key_file.empty()) return {};
  const auto use = [this, path = access.api_key_file](const std::string& text) -> Status {
    SHOAL_ASSIGN_OR_RETURN(std::vector<std::string> keys, parse_api_keys(text, path));
    keys.insert(keys.end(), fixed_keys_.begin(), fixed_keys_.end());
    keys_->replace(std::move(keys));
    return {};
  };
  const Result<std::string> text = read_api_key_file(access.api_key_file);
  if (const Status used = text.ok() ? use(*text) : text.status(); !used.ok())
    return used.because_of(Code::kInvalidArgument,
                           "--api-key-file gives no keys; name a file with one on a line");
  key_file_.emplace(
      *text, [path = access.api_key_file] { return read_api_key_file(path); }, use);
  return {};
}

Status SecretFiles::read_tls(const TlsFiles& files) {
  SHOAL_ASSIGN_OR_RETURN(const TlsTexts texts, read_tls_files(files));
  SHOAL_ASSIGN_OR_RETURN(TlsMaterial first, make_tls_material(files, texts));
  if (!first.warning.empty()) log_warning(first.warning);
  identity_ = std::make_shared<TlsIdentity>(std::move(first));
  tls_files_.emplace(
      texts, [files] { return read_tls_files(files); },
      [this, files](const TlsTexts& changed) -> Status {
        SHOAL_ASSIGN_OR_RETURN(TlsMaterial next, make_tls_material(files, changed));
        log_info(cat("the new certificate is that of ", next.summary));
        if (!next.warning.empty()) log_warning(next.warning);
        identity_->replace(std::move(next));
        return {};
      });
  return {};
}

Status SecretFiles::start(std::chrono::milliseconds period) {
  try {
    thread_ = std::thread([this, period] { watch(period); });
  } catch (const std::system_error& failed) {
    return Status::error(Code::kResourceExhausted,
                         "a thread that looks at keys and certificates (ulimit -u, ulimit -v and "
                         "pids.max limit it)",
                         failed.code().value());
  }
  return {};
}

SecretFiles::~SecretFiles() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void SecretFiles::look_now() {
  {
    const std::lock_guard lock(mutex_);
    asked_ = true;
  }
  wake_.notify_all();
}

void SecretFiles::watch(std::chrono::milliseconds period) {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait_for(lock, period, [this] { return stop_ || asked_; });
    if (stop_) return;
    const bool asked = std::exchange(asked_, false);
    lock.unlock();
    look(asked);
    lock.lock();
  }
}

void SecretFiles::look(bool complete) {
  if (key_file_) tell<std::string>("the API keys", key_file_->look(complete));
  if (tls_files_) tell<TlsTexts>("the certificates", tls_files_->look(complete));
}

}  // namespace shoal
