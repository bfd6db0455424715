#include "models/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include "models/config_reader.h"
#include "models/git_lfs.h"
#include "runtime/base/json.h"

namespace shoal {
namespace {

// The same limit as in the reference implementation; a real header of 100 000 tensors has 15 MB.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;
constexpr size_t kMaxTensors = 1'000'000;
constexpr size_t kMaxDims = 16;
constexpr size_t kMaxSkippedDepth = 64;
constexpr size_t kMaxShards = 10'000;
constexpr uint64_t kMaxElements = std::numeric_limits<int64_t>::max();

struct DtypeBits {
  std::string_view name;
  uint64_t bits;
};
constexpr auto kDtypes = std::to_array<DtypeBits>({
    {"BOOL", 8},    {"U8", 8},   {"I8", 8},   {"F8_E4M3", 8}, {"F8_E5M2", 8},
    {"F8_E8M0", 8}, {"U16", 16}, {"I16", 16}, {"F16", 16},    {"BF16", 16},
    {"U32", 32},    {"I32", 32}, {"F32", 32}, {"U64", 64},    {"I64", 64},
    {"F64", 64},    {"C64", 64}, {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6},
});

/// Reads the header's JSON as a stream. A large header then needs memory only for its tensors, and
/// a name that occurs twice is detected (a document tree would silently keep the last one).
class HeaderReader {
 public:
  bool null() { return scalar("null"); }
  bool boolean(bool) { return scalar("a boolean"); }
  bool number_integer(int64_t) { return scalar("a negative number"); }
  bool number_float(double, const std::string&) {
    return scalar("a number that is not an integer below 2^64");
  }
  bool binary(Json::binary_t&) { return scalar("binary data"); }

  bool number_unsigned(uint64_t number) {
    if (place_ == Place::kShape) {
      if (number > kMaxElements) return stop(cat("dimension ", number, " is larger than 2^63-1"));
      if (tensor_.shape.size() == kMaxDims)
        return stop(cat("shape has more than ", kMaxDims, " dimensions"));
      tensor_.shape.push_back(static_cast<int64_t>(number));
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (offsets_seen_ == 2) return stop("data_offsets has more than 2 numbers");
      (offsets_seen_++ == 0 ? tensor_.begin : tensor_.end) = number;
      return true;
    }
    return scalar("a number");
  }

  bool string(std::string& text) {
    if (place_ != Place::kTensor || key_ != "dtype") return scalar("a string");
    tensor_.dtype = text.substr(0, 32);  // the longest real one has 7 letters
    return true;
  }

  bool key(std::string& name) {
    if (place_ == Place::kTop) {
      tensor_ = TensorEntry{.name = name, .dtype = {}, .shape = {}};
      offsets_seen_ = 0;
      has_shape_ = has_offsets_ = false;
    } else if (place_ == Place::kTensor) {
      key_ = name.substr(0, 32);
    }
    return true;
  }

  bool start_object(size_t) {
    if (place_ == Place::kDocument) {
      place_ = Place::kTop;
      return true;
    }
    if (place_ == Place::kTop && tensor_.name == "__metadata__") {
      if (has_metadata_) return stop("comes twice");
      has_metadata_ = true;
      return skip();
    }
    if (place_ == Place::kTop) {
      if (tensors_.size() == kMaxTensors) return stop(cat("more than ", kMaxTensors, " tensors"));
      place_ = Place::kTensor;
      return true;
    }
    return place_ == Place::kSkipped || unknown_key() ? skip()
                                                      : stop(cat("an object ", misplaced()));
  }

  bool start_array(size_t) {
    if (place_ == Place::kTensor && key_ == "shape") {
      if (std::exchange(has_shape_, true)) return stop("shape comes twice");
      place_ = Place::kShape;
      return true;
    }
    if (place_ == Place::kTensor && key_ == "data_offsets") {
      if (std::exchange(has_offsets_, true)) return stop("data_offsets comes twice");
      place_ = Place::kOffsets;
      return true;
    }
    return place_ == Place::kSkipped || unknown_key() ? skip()
                                                      : stop(cat("an array ", misplaced()));
  }

  bool end_object() {
    if (place_ == Place::kSkipped) return unskip();
    if (place_ == Place::kTensor) {
      place_ = Place::kTop;
      if (tensor_.dtype.empty() || !has_shape_ || offsets_seen_ != 2) {
        return stop("dtype, shape or data_offsets (two numbers) is missing");
      }
      tensors_.push_back(std::move(tensor_));
    }
    return true;
  }

  bool end_array() {
    if (place_ == Place::kSkipped) return unskip();
    place_ = Place::kTensor;
    return true;
  }

  template <typename Exception>
  bool parse_error(size_t position, const std::string&, const Exception&) {
    return stop_at_byte(position);
  }

  const std::string& reason() const { return reason_; }
  std::vector<TensorEntry> take() { return std::move(tensors_); }

 private:
  enum class Place { kDocument, kTop, kTensor, kShape, kOffsets, kSkipped };

  /// Other keys of a tensor are ignored, as in the reference implementation.
  bool unknown_key() const {
    return place_ == Place::kTensor && key_ != "dtype" && key_ != "shape" && key_ != "data_offsets";
  }
  bool scalar(std::string_view kind) {
    return place_ == Place::kSkipped || unknown_key() || stop(cat(kind, " ", misplaced()));
  }
  std::string misplaced() const {
    switch (place_) {
      case Place::kDocument:
        return "where the header's object should be";
      case Place::kTop:
        return "where {dtype, shape, data_offsets} should be";
      case Place::kTensor:
        return cat("as ", key_);
      case Place::kShape:
        return "in shape";
      case Place::kOffsets:
        return "in data_offsets";
      case Place::kSkipped:
        break;
    }
    return "";
  }
  bool skip() {
    if (skipped_depth_ == 0) {
      after_skip_ = place_;
      place_ = Place::kSkipped;
    }
    return ++skipped_depth_ <= kMaxSkippedDepth ||
           stop(cat("nested deeper than ", kMaxSkippedDepth));
  }
  bool unskip() {
    if (--skipped_depth_ == 0) place_ = after_skip_;
    return true;
  }
  bool stop(std::string_view why) {
    reason_ = place_ == Place::kDocument ? std::string(why)
                                         : cat("tensor ", in_quotes(tensor_.name), ": ", why);
    return false;
  }
  bool stop_at_byte(size_t position) {
    reason_ = cat("not JSON at byte ", position, " of the header");
    return false;
  }

  Place place_ = Place::kDocument;
  Place after_skip_ = Place::kDocument;
  size_t skipped_depth_ = 0;
  std::string key_;
  TensorEntry tensor_;
  size_t offsets_seen_ = 0;
  bool has_shape_ = false;
  bool has_offsets_ = false;
  bool has_metadata_ = false;
  std::vector<TensorEntry> tensors_;
  std::string reason_;
};

Status bad(std::string_view what, const std::string& why) {
  return Status::error(Code::kInvalidArgument, cat(what, ": ", why));
}
Status bad_tensor(std::string_view what, const TensorEntry& tensor, const std::string& why) {
  return bad(what, cat("tensor ", in_quotes(tensor.name), ": ", why));
}

/// The bits of the whole tensor, or nullopt if they, or the product of its non-zero dimensions, do
/// not fit. Zero dimensions are left out of the product, so that multiplying the dimensions in any
/// order cannot overflow later.
std::optional<uint64_t> size_in_bits(const TensorEntry& tensor, uint64_t element_bits) {
  uint64_t elements = 1;
  bool empty = false;
  for (const int64_t dim : tensor.shape) {
    const auto size = static_cast<uint64_t>(dim);
    if (size == 0) {
      empty = true;
    } else if (elements > kMaxElements / size) {
      return std::nullopt;
    } else {
      elements *= size;
    }
  }
  if (elements > kMaxElements / element_bits) return std::nullopt;
  return empty ? 0 : elements * element_bits;
}

/// Checks one tensor and makes its offsets absolute.
Status check_tensor(TensorEntry& tensor, uint64_t data_start, uint64_t data_bytes,
                    std::string_view what) {
  const auto* dtype =
      std::find_if(kDtypes.begin(), kDtypes.end(), [&](auto& d) { return d.name == tensor.dtype; });
  if (dtype == kDtypes.end())
    return bad_tensor(what, tensor, cat("unknown dtype ", in_quotes(tensor.dtype)));
  const std::optional<uint64_t> bits = size_in_bits(tensor, dtype->bits);
  if (!bits) return bad_tensor(what, tensor, "the product of its dimensions does not fit 63 bits");
  const std::string offsets = cat("data_offsets [", tensor.begin, ", ", tensor.end, ")");
  if (tensor.begin > tensor.end)
    return bad_tensor(what, tensor, cat(offsets, " end before they begin"));
  if (tensor.end > data_bytes) {
    return bad(what, cat("the file ends too early: ", offsets, " of tensor ",
                         in_quotes(tensor.name), " lie outside its ", data_bytes,
                         " B of data, unless its header is wrong; download it again"));
  }
  if (*bits % 8 != 0 || *bits / 8 != tensor.end - tensor.begin) {
    return bad_tensor(what, tensor,
                      cat("has ", tensor.end - tensor.begin,
                          " B of data, its shape and dtype need ", *bits / 8, " B"));
  }
  tensor.begin += data_start;
  tensor.end += data_start;
  return {};
}

/// Refuses tensors that share bytes: such a header is damaged or forged.
Status check_overlap(const std::vector<TensorEntry>& tensors, std::string_view what) {
  std::vector<const TensorEntry*> by_place;
  for (const TensorEntry& tensor : tensors) {
    if (tensor.begin < tensor.end) by_place.push_back(&tensor);
  }
  std::sort(by_place.begin(), by_place.end(), [](auto* a, auto* b) { return a->begin < b->begin; });
  for (size_t i = 1; i < by_place.size(); ++i) {
    if (by_place[i]->begin < by_place[i - 1]->end) {
      return bad_tensor(what, *by_place[i],
                        cat("its bytes overlap those of ", in_quotes(by_place[i - 1]->name)));
    }
  }
  return {};
}

/// The length of a header, from the first bytes of its file.
uint64_t length_in(std::string_view first) {
  uint64_t length = 0;  // little-endian
  for (size_t i = kSafetensorsLengthBytes; i-- > 0;)
    length = length << 8 | static_cast<unsigned char>(first[i]);
  return length;
}

}  // namespace

uint64_t safetensors_head_bytes(std::string_view first) {
  // What is too long is no header, and its beginning tells what it is instead.
  constexpr uint64_t kBeginning = 4096;
  if (first.size() < kSafetensorsLengthBytes) return kSafetensorsLengthBytes;
  const uint64_t length = length_in(first);
  return kSafetensorsLengthBytes + (length > kMaxHeaderBytes ? kBeginning : length);
}

Result<std::vector<TensorEntry>> parse_safetensors_header(std::string_view head,
                                                          uint64_t file_bytes,
                                                          std::string_view what) {
  if (file_bytes < kSafetensorsLengthBytes || head.size() < kSafetensorsLengthBytes) {
    return bad(what, cat("has ", file_bytes, " B, too short for a safetensors file"));
  }
  SHOAL_RETURN_IF_ERROR(check_no_lfs_pointer(head, what));
  const uint64_t length = length_in(head);
  if (length > kMaxHeaderBytes) {
    return bad(what, cat("header length ", length, " B is above ", kMaxHeaderBytes,
                         " B: not a safetensors file?"));
  }
  if (length > file_bytes - kSafetensorsLengthBytes ||
      length > head.size() - kSafetensorsLengthBytes) {
    return bad(what, cat("the header of ", length, " B ends after the file's ", file_bytes,
                         " B; is it truncated?"));
  }
  const std::string_view text = head.substr(kSafetensorsLengthBytes, length);
  if (!text.starts_with('{'))
    return bad(what, "the header does not start with '{': not a safetensors file?");

  HeaderReader reader;
  if (!Json::sax_parse(text.begin(), text.end(), &reader)) return bad(what, reader.reason());
  std::vector<TensorEntry> tensors = reader.take();
  std::sort(tensors.begin(), tensors.end(), [](auto& a, auto& b) { return a.name < b.name; });
  for (size_t i = 1; i < tensors.size(); ++i) {
    if (tensors[i].name == tensors[i - 1].name) return bad_tensor(what, tensors[i], "comes twice");
  }
  const uint64_t data_start = kSafetensorsLengthBytes + length;
  for (TensorEntry& tensor : tensors) {
    SHOAL_RETURN_IF_ERROR(check_tensor(tensor, data_start, file_bytes - data_start, what));
  }
  SHOAL_RETURN_IF_ERROR(check_overlap(tensors, what));
  return tensors;
}

Result<std::map<std::string, std::string>> parse_safetensors_index(std::string_view text,
                                                                   std::string_view what) {
  SHOAL_RETURN_IF_ERROR(check_no_lfs_pointer(text, what));
  SHOAL_ASSIGN_OR_RETURN(const Json index,
                         parse_json(text, what, {.max_depth = 16, .max_values = 4 * kMaxTensors}));
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object() || map->empty()) {
    return bad(what, "has no object \"weight_map\" of tensor names and files");
  }
  if (map->size() > kMaxTensors)
    return bad(what, cat("weight_map names more than ", kMaxTensors, " tensors"));
  std::map<std::string, std::string> files_of_tensors;
  std::map<std::string, int> shards;
  for (const auto& [tensor, value] : map->items()) {
    if (!value.is_string())
      return bad(what, cat("weight_map: the file of ", in_quotes(tensor), " is not a string"));
    const auto& file = value.get_ref<const std::string&>();
    // A shard must be in the directory of its index, because with a path a downloaded model could
    // read any file of this machine.
    if (file.empty() || file.size() > 255 || file == "." || file == ".." ||
        file.find_first_of(std::string_view("/\\\0", 3)) != std::string::npos) {
      return bad(what, cat("weight_map: the file of ", in_quotes(tensor), " is ", in_quotes(file),
                           ", not the plain name of a file in the same directory"));
    }
    files_of_tensors.emplace(tensor, file);
    shards.emplace(file, 0);
    if (shards.size() > kMaxShards)
      return bad(what, cat("weight_map names more than ", kMaxShards, " files"));
  }
  return files_of_tensors;
}

}  // namespace shoal
