#include "server/shmtest/program.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <sys/stat.h>
#include <unistd.h>

namespace shoal::shmtest {
namespace {

bool executable(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) &&
         ::access(path.c_str(), X_OK) == 0;
}

bool has_slash(const std::string& name) {
  return name.find('/') != std::string::npos;
}

Status not_found(const std::string& name, int error) {
  const std::string what =
      cat("command not found: ", name, has_slash(name) ? "" : " (looked along PATH)");
  if (name.find(' ') != std::string::npos) {
    return Status::error(
        Code::kNotFound,
        cat(what, "; it is one word: leave out the quotes around it, or put sh -c before it"));
  }
  if (!has_slash(name) && ::access(name.c_str(), F_OK) == 0)
    return Status::error(Code::kNotFound, cat(what, "; did you mean ./", name, "?"));
  return Status::error(Code::kNotFound, what, error);
}

Status not_executable(const std::string& name) {
  struct stat info {};
  const bool folder = ::stat(name.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  return Status::error(
      Code::kPermissionDenied,
      cat("not a program that can be executed: ", name,
          folder ? " is a directory"
                 : "; it needs the permission (chmod +x), or its interpreter before it"));
}

}  // namespace

Status find_program(const std::string& name) {
  if (has_slash(name)) {
    if (executable(name)) return {};
    return ::access(name.c_str(), F_OK) != 0 ? not_found(name, errno) : not_executable(name);
  }
  const char* path = std::getenv("PATH");
  std::string_view rest = path == nullptr ? "/bin:/usr/bin" : path;
  while (true) {
    const size_t colon = rest.find(':');
    const std::string folder(rest.substr(0, colon));
    if (executable(cat(folder.empty() ? "." : folder, "/", name))) return {};
    if (colon == std::string_view::npos) break;
    rest.remove_prefix(colon + 1);
  }
  return not_found(name, 0);
}

std::string start_failure(const std::string& name, int error) {
  const bool there = error == ENOENT && find_program(name).ok();
  return cat(name, ": ", ::strerrordesc_np(error),
             there ? "; the program is there, but not its interpreter (#!) or loader" : "");
}

}  // namespace shoal::shmtest
