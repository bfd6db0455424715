#include "models/safetensors.h"

#include <cerrno>
#include <filesystem>
#include <optional>
#include <sys/mman.h>
#include <sys/stat.h>
#include <utility>

#include "models/quantization.h"
#include "runtime/base/json.h"
#include "runtime/base/process_limit.h"
#include "runtime/base/shell_word.h"

namespace shoal {
namespace {

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr size_t kMaxIndexBytes = 100'000'000;

/// A whole regular file, mapped read-only and shared, so that the page cache holds its bytes once
/// for any number of ranks.
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path, HeldFiles* opened) {
    SHOAL_ASSIGN_OR_RETURN(HeldFile found, HeldFile::open(path));
    const auto held = std::make_shared<HeldFile>(std::move(found));
    if (opened != nullptr) opened->push_back(held);
    if (held->bytes() == 0) return Status::error(Code::kInvalidArgument, cat(path, " is empty"));
    SHOAL_ASSIGN_OR_RETURN(MappedFile file, map({path, held->fd(), held->bytes()}));
    file.held_ = held;
    return file;
  }
  static Result<MappedFile> map(const CheckpointLayout::File& from) {
    MappedFile file;
    file.path_ = from.path;
    file.bytes_ = from.bytes;
    void* data = ::mmap(nullptr, file.bytes_, PROT_READ, MAP_SHARED, from.fd, 0);
    if (data == MAP_FAILED) {
      const int error = errno;
      return Status::error(Code::kResourceExhausted,
                           cat("map ", file.bytes_, " B of ", from.path, address_space_limit()),
                           error)
          .blamed_on(Fault::kShortage);
    }
    (void)::madvise(data, file.bytes_, MADV_DONTDUMP);  // the file has them
    file.data_ = static_cast<const std::byte*>(data);
    return file;
  }
  MappedFile(MappedFile&& other) noexcept
      : path_(std::move(other.path_)),
        held_(std::move(other.held_)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile() {
    if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), bytes_);
  }

  const std::string& path() const { return path_; }
  const std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }
  const std::shared_ptr<HeldFile>& held() const { return held_; }
  /// Reads the list of tensors in the file's header. Call it only on the result of open(), because
  /// the result of map() has no held file to read from.
  Result<std::vector<TensorEntry>> header() const {
    SHOAL_ASSIGN_OR_RETURN(const std::string first, held_->head(kSafetensorsLengthBytes));
    SHOAL_ASSIGN_OR_RETURN(const std::string head, held_->head(safetensors_head_bytes(first)));
    return parse_safetensors_header(head, bytes_, path_);
  }

 private:
  MappedFile() = default;
  std::string path_;
  std::shared_ptr<HeldFile> held_;  // empty if the file was opened elsewhere
  const std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

bool exists(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (const int64_t dim : shape) {
    if (text.size() > 1) text += ", ";
    text += dim < 0 ? "*" : std::to_string(dim);
  }
  return text + "]";
}

bool fits(const std::vector<int64_t>& shape, const std::vector<int64_t>& wanted) {
  if (shape.size() != wanted.size()) return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (wanted[i] >= 0 && shape[i] != wanted[i]) return false;
  }
  return true;
}

/// The error of a directory without safetensors. A pickled model is there, but is not supported.
Status no_safetensors(const std::string& dir) {
  const std::string what = cat("no ", kSingleFile, " and no ", kIndexFile, " in ", dir);
  if (!exists(cat(dir, "/pytorch_model.bin")) && !exists(cat(dir, "/pytorch_model.bin.index.json")))
    return Status::error(Code::kNotFound,
                         cat(what, "; give the directory of a Hugging Face checkpoint"));
  // Many systems let pip install nothing outside a virtual environment. Without torch_dtype,
  // transformers 4 make everything float32; version 5 knows it too.
  return Status::error(
      Code::kUnimplemented,
      cat(what,
          "; it has a pytorch_model.bin, which may run code when it is loaded, also to convert it. "
          "Look for a safetensors version first; if there is none and you trust where it comes from, "
          "convert it once:\n  python3 -m venv venv && venv/bin/pip install torch transformers && "
          "venv/bin/python -c 'import sys; from transformers import AutoModelForCausalLM as M; "
          "d = sys.argv[1]; M.from_pretrained(d, torch_dtype=\"auto\").save_pretrained(d)' ",
          shell_word(dir)));
}

}  // namespace

int64_t TensorView::elements() const {
  int64_t count = 1;
  for (const int64_t dim : shape) count *= dim;
  return count;
}

struct Checkpoint::Impl {
  struct Placed {
    TensorEntry entry;
    size_t file = 0;
  };
  std::string dir;
  std::vector<MappedFile> files;
  std::map<std::string, Placed> tensors;

  Status add_single_file(HeldFiles* opened);
  Status add_shards(HeldFiles* opened);
};

Checkpoint::Checkpoint() : impl_(std::make_unique<Impl>()) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Status Checkpoint::Impl::add_single_file(HeldFiles* opened) {
  SHOAL_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(cat(dir, "/", kSingleFile), opened));
  SHOAL_ASSIGN_OR_RETURN(std::vector<TensorEntry> entries, file.header());
  for (TensorEntry& entry : entries) {
    std::string name = entry.name;
    tensors.emplace(std::move(name), Placed{std::move(entry), 0});
  }
  files.push_back(std::move(file));
  return {};
}

Status Checkpoint::Impl::add_shards(HeldFiles* opened) {
  const std::string index_path = cat(dir, "/", kIndexFile);
  SHOAL_ASSIGN_OR_RETURN(const std::string text, read_file(index_path, kMaxIndexBytes));
  SHOAL_ASSIGN_OR_RETURN(const auto shard_of, parse_safetensors_index(text, index_path));
  std::map<std::string, std::vector<const std::string*>> tensors_of;
  for (const auto& [tensor, shard] : shard_of) tensors_of[shard].push_back(&tensor);
  for (const auto& [shard, wanted] : tensors_of) {
    Result<MappedFile> file = MappedFile::open(cat(dir, "/", shard), opened);
    // The index exists, so a missing shard is a damaged checkpoint, not "not found".
    if (!file.ok()) {
      return file.status().because_of(Code::kInvalidArgument,
                                      cat("open shard ", shard, ", which ", index_path, " names"));
    }
    SHOAL_ASSIGN_OR_RETURN(std::vector<TensorEntry> entries, file->header());
    std::map<std::string_view, TensorEntry*> by_name;
    for (TensorEntry& entry : entries) by_name.emplace(entry.name, &entry);
    for (const std::string* name : wanted) {
      const auto it = by_name.find(*name);
      if (it == by_name.end()) {
        return Status::error(
            Code::kInvalidArgument,
            cat("tensor \"", *name, "\" is not in ", file->path(), ", where ", index_path,
                " says it is; if the download is not complete, download it again"));
      }
      tensors.emplace(*name, Placed{*it->second, files.size()});
    }
    files.push_back(std::move(*file));
  }
  return {};
}

Result<Checkpoint> Checkpoint::open(const std::string& model_dir, HeldFiles* opened) {
  Checkpoint checkpoint;
  Impl& impl = *checkpoint.impl_;
  impl.dir = model_dir;
  // The single file is tried first, as in transformers.
  if (exists(cat(model_dir, "/", kSingleFile))) {
    SHOAL_RETURN_IF_ERROR(impl.add_single_file(opened));
  } else if (exists(cat(model_dir, "/", kIndexFile))) {
    SHOAL_RETURN_IF_ERROR(impl.add_shards(opened));
  } else {
    return no_safetensors(model_dir);
  }
  return checkpoint;
}

Result<Checkpoint> Checkpoint::map(const CheckpointLayout& layout) {
  Checkpoint checkpoint;
  Impl& impl = *checkpoint.impl_;
  for (const CheckpointLayout::File& file : layout.files) {
    struct stat info {};
    if (::fstat(file.fd, &info) != 0)
      return Status::error(Code::kInternal, cat("stat descriptor ", file.fd, " of ", file.path),
                           errno);
    // Beyond the end of a file, mapped memory is a SIGBUS.
    if (static_cast<uint64_t>(info.st_size) != file.bytes) {
      return Status::error(Code::kDataLoss,
                           cat(file.path, " has ", info.st_size, " B, and had ", file.bytes,
                               " B when it was opened; it was changed while it was in use"));
    }
    SHOAL_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::map(file));
    impl.files.push_back(std::move(mapped));
  }
  for (const CheckpointLayout::Tensor& tensor : layout.tensors) {
    if (tensor.file >= impl.files.size() || tensor.entry.end > impl.files[tensor.file].bytes()) {
      return Status::error(Code::kInternal, cat("tensor \"", tensor.entry.name,
                                                "\" is in no file of the checkpoint"));
    }
    impl.tensors.emplace(tensor.entry.name, Impl::Placed{tensor.entry, tensor.file});
  }
  if (!layout.files.empty())
    impl.dir = std::filesystem::path(layout.files.front().path).parent_path().string();
  return checkpoint;
}

CheckpointLayout Checkpoint::layout() const {
  CheckpointLayout layout;
  for (const MappedFile& file : impl_->files) {
    layout.files.push_back({file.path(), file.held() ? file.held()->fd() : -1, file.bytes()});
  }
  for (const auto& [name, placed] : impl_->tensors) {
    layout.tensors.push_back({placed.entry, static_cast<uint32_t>(placed.file)});
  }
  return layout;
}

HeldFiles Checkpoint::files() const {
  HeldFiles files;
  for (const MappedFile& file : impl_->files) {
    if (file.held()) files.push_back(file.held());
  }
  return files;
}

bool Checkpoint::has(const std::string& name) const {
  return impl_->tensors.contains(name);
}

Result<TensorView> Checkpoint::tensor(const std::string& name,
                                      const std::vector<int64_t>& shape) const {
  const auto it = impl_->tensors.find(name);
  if (it == impl_->tensors.end()) {
    return Status::error(Code::kNotFound,
                         cat("no tensor \"", name, "\" in the checkpoint ", impl_->dir));
  }
  const TensorEntry& entry = it->second.entry;
  const MappedFile& file = impl_->files[it->second.file];
  const std::optional<Dtype> dtype = parse_dtype(entry.dtype);
  if (!dtype) {
    return Status::error(
        Code::kUnimplemented,
        cat("tensor \"", name, "\" in ", file.path(), " has dtype ", entry.dtype, "; ",
            is_quantized_dtype(entry.dtype)
                ? quantized_not_supported(quantization_method_beside(impl_->dir))
                : "supported are F32, F16 and BF16"));
  }
  if (!fits(entry.shape, shape)) {
    return Status::error(Code::kInvalidArgument,
                         cat("tensor \"", name, "\" in ", file.path(), " has shape ",
                             shape_text(entry.shape), "; config.json asks for ", shape_text(shape),
                             ": config.json and the weights do not belong together; download both "
                             "again"));
  }
  return TensorView{*dtype, entry.shape, file.data() + entry.begin};
}

std::vector<std::string> Checkpoint::names() const {
  std::vector<std::string> names;
  names.reserve(impl_->tensors.size());
  for (const auto& [name, placed] : impl_->tensors) names.push_back(name);
  return names;
}

uint64_t Checkpoint::total_bytes() const {
  uint64_t bytes = 0;
  for (const auto& [name, placed] : impl_->tensors) bytes += placed.entry.end - placed.entry.begin;
  return bytes;
}

}  // namespace shoal
