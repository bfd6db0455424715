#include "models/git_lfs.h"

#include "models/hub.h"
#include "runtime/base/cat.h"

namespace shoal {

Status check_no_lfs_pointer(std::string_view text, std::string_view what) {
  // https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md: the first line of every pointer.
  if (!text.starts_with("version https://git-lfs.github.com/spec/")) return {};
  return Status::error(
      Code::kInvalidArgument,
      cat(what,
          " is a Git LFS pointer and not the file itself, because the repository was cloned "
          "without Git LFS; in its directory run: git lfs install && git lfs pull; or download it "
          "again: ",
          download_line("OWNER/NAME", "DIR")));
}

}  // namespace shoal
