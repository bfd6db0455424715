#include "runtime/transport/needs/nccl_user_settings.h"

#include <algorithm>
#include <fstream>
#include <pwd.h>
#include <string_view>
#include <unistd.h>

#include "runtime/base/cat.h"
#include "runtime/transport/needs/nccl_settings.h"

extern char** environ;

namespace shoal {
namespace {

constexpr std::string_view kPrefix = "NCCL_";
constexpr const char* kEnvironment = "the environment";

/// Later sources do not overwrite earlier ones.
void add(NcclUserSetting setting, std::map<std::string, NcclUserSetting>* all) {
  std::string name = setting.name;
  all->try_emplace(std::move(name), std::move(setting));
}

/// Each line is NAME=VALUE. NCCL keeps blanks as they are, so that "NCCL_X = 1" would set a
/// variable that nobody reads.
void add_file(const std::string& path, std::map<std::string, NcclUserSetting>* all, Status* error) {
  std::ifstream file(path);
  int number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const size_t equals = line.find('=');
    if (equals == std::string::npos || !line.starts_with(kPrefix)) continue;
    const std::string name = line.substr(0, equals), source = cat(path, ":", number);
    if (name.find_first_of(" \t") != std::string::npos) {
      if (error->ok()) {
        *error = Status::error(
            Code::kInvalidArgument,
            cat(source, ": \"", line, "\": NCCL reads NAME=VALUE without blanks around the ="));
      }
      continue;
    }
    add({name, line.substr(equals + 1), source}, all);
  }
}

/// Checks one setting at a time, so that the message has the right source. nccl_need checks their
/// combination.
Status check(const NcclUserSetting& setting) {
  const Result<NcclSettings> read = nccl_settings({{setting.name, setting.value}});
  return read.ok() ? Status()
                   : read.status().while_doing(cat("read ", setting.name, " of ", setting.source));
}

std::string home_directory() {
  const passwd* user = ::getpwuid(::getuid());
  return user == nullptr || user->pw_dir == nullptr ? "" : user->pw_dir;
}

}  // namespace

const NcclUserSetting* NcclUserSettings::find(const std::string& name) const {
  const auto it = std::find_if(list.begin(), list.end(),
                               [&](const NcclUserSetting& s) { return s.name == name; });
  return it == list.end() ? nullptr : &*it;
}

std::map<std::string, std::string> NcclUserSettings::values() const {
  std::map<std::string, std::string> all;
  for (const NcclUserSetting& setting : list) all[setting.name] = setting.value;
  return all;
}

NcclUserSettings collect_nccl_settings(const std::map<std::string, std::string>& environment,
                                       const std::vector<std::string>& files) {
  std::map<std::string, NcclUserSetting> all;
  NcclUserSettings result;
  for (const auto& [name, value] : environment) {
    if (name.starts_with(kPrefix)) add({name, value, kEnvironment}, &all);
  }
  for (const std::string& path : files) add_file(path, &all, &result.error);
  for (auto& [name, setting] : all) {
    if (result.error.ok()) result.error = check(setting);
    result.list.push_back(std::move(setting));
  }
  return result;
}

NcclUserSettings read_nccl_user_settings() {
  std::map<std::string, std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equals = text.find('=');
    if (text.starts_with(kPrefix) && equals != std::string_view::npos)
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  std::vector<std::string> files;
  const auto own = environment.find("NCCL_CONF_FILE");
  if (own != environment.end() && !own->second.empty()) {
    files.push_back(own->second);
  } else if (const std::string home = home_directory(); !home.empty()) {
    files.push_back(home + "/.nccl.conf");
  }
  files.emplace_back("/etc/nccl.conf");
  return collect_nccl_settings(environment, files);
}

}  // namespace shoal
