#include "server/host/hidden_home.h"

#include <filesystem>
#include <system_error>

#include "runtime/base/cat.h"

namespace shoal {
namespace {

/// False also if the folder may not be read.
bool shows_anything(std::string_view folder) {
  std::error_code error;
  const std::filesystem::directory_iterator entries(folder, error);
  return !error && entries != std::filesystem::directory_iterator();
}

}  // namespace

std::string hidden_home(const std::string& model, std::span<const std::string_view> homes) {
  std::error_code error;
  const std::string path = std::filesystem::absolute(model, error).lexically_normal().string();
  for (const std::string_view home : homes) {
    if (!path.starts_with(cat(home, "/")) || shows_anything(home)) continue;
    return cat("; nothing in ", home, " can be seen from here: if this is a service of systemd, ",
               "ProtectHome= in its unit hides it, so keep the model elsewhere or change that");
  }
  return "";
}

}  // namespace shoal
