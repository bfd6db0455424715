#include "server/commands/npy.h"

#include <cerrno>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "runtime/base/counted.h"
#include "server/cli/command_io.h"

namespace shoal {
namespace {

/// The magic bytes, version 1.0, the header length, then a Python dictionary, padded so that the
/// data starts at a multiple of 64.
std::string npy_header(int64_t rows, int64_t columns) {
  std::string dictionary =
      cat("{'descr': '<f4', 'fortran_order': False, 'shape': (", rows, ", ", columns, "), }");
  constexpr size_t kPrefix = 10, kAlign = 64;
  const size_t total = (kPrefix + dictionary.size() + 1 + kAlign - 1) / kAlign * kAlign;
  dictionary.resize(total - kPrefix - 1, ' ');
  std::string header("\x93NUMPY\x01\x00", 8);
  // The length is below 256 for any two numbers, so its high byte is 0.
  header += static_cast<char>(dictionary.size() + 1);
  header += '\0';
  return header + dictionary + '\n';
}

}  // namespace

NpyWriter::NpyWriter(std::string path, Fd fd, bool created)
    : path_(std::move(path)), fd_(std::move(fd)), created_(created) {}

NpyWriter::NpyWriter(NpyWriter&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::move(other.fd_)),
      created_(std::exchange(other.created_, false)),
      remaining_(other.remaining_) {}

NpyWriter::~NpyWriter() {
  if (created_) ::unlink(path_.c_str());
}

Result<NpyWriter> NpyWriter::open(const std::string& path) {
  const int flags = O_WRONLY | O_CREAT | O_CLOEXEC;
  bool created = true;
  Fd fd(::open(path.c_str(), flags | O_EXCL, 0666));
  if (!fd.valid() && errno == EEXIST) {
    created = false;
    fd.reset(::open(path.c_str(), flags, 0666));
  }
  if (!fd.valid())
    return Status::error(Code::kInvalidArgument, cat("the output ", path, " cannot be opened"),
                         errno);
  return NpyWriter(path, std::move(fd), created);
}

Status NpyWriter::begin(int64_t rows, int64_t columns) {
  struct stat info {};
  if (::fstat(fd_.get(), &info) == 0 && S_ISREG(info.st_mode) && ::ftruncate(fd_.get(), 0) != 0) {
    return Status::error(Code::kDataLoss, cat("empty ", path_), errno);
  }
  remaining_ = rows * columns;
  return write_all(fd_.get(), npy_header(rows, columns), path_);
}

Status NpyWriter::append(std::span<const float> values) {
  remaining_ -= static_cast<int64_t>(values.size());
  return write_all(fd_.get(), {reinterpret_cast<const char*>(values.data()), values.size_bytes()},
                   path_);
}

Status NpyWriter::finish() {
  if (remaining_ != 0)
    return Status::error(Code::kInternal,
                         cat(path_, " is ", counted(remaining_, "value"), " short"));
  if (::close(fd_.release()) != 0)
    return Status::error(Code::kDataLoss, cat("close ", path_), errno);
  created_ = false;
  return {};
}

}  // namespace shoal
