#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/base/status.h"

// Turns values into bytes and back, for two processes of the same build on the same machine.
// Numbers therefore keep the machine's byte order, and no version is written. The reader accepts
// arbitrary bytes all the same, because a bug must end in an error that names it and not in a crash
// somewhere else.
//
// A struct is archived by one function next to it, which names its fields once for both directions:
//
//   template <typename Archive>
//   void fields(Archive& archive, Point& point) {
//     archive(point.x, point.y);
//   }
//
// A field may be a bool, a number, an enum, a string of any bytes, a Status, such a struct, or a
// vector, an optional or a variant of these.

namespace shoal {

template <typename T>
concept ArchivedNumber = std::is_arithmetic_v<T> || std::is_enum_v<T>;

template <typename T>
inline constexpr bool kIsVector = false;
template <typename T>
inline constexpr bool kIsVector<std::vector<T>> = true;
template <typename T>
inline constexpr bool kIsOptional = false;
template <typename T>
inline constexpr bool kIsOptional<std::optional<T>> = true;
template <typename T>
inline constexpr bool kIsVariant = false;
template <typename... T>
inline constexpr bool kIsVariant<std::variant<T...>> = true;

/// The index of T among a variant's alternatives.
template <typename T, typename Variant, size_t index = 0>
constexpr size_t alternative_index() {
  if constexpr (std::is_same_v<T, std::variant_alternative_t<index, Variant>>) {
    return index;
  } else {
    return alternative_index<T, Variant, index + 1>();
  }
}

/// Appends values to a string of bytes.
class ArchiveWriter {
 public:
  template <typename... T>
  void operator()(const T&... values) {
    (put(values), ...);
  }

  std::string take() { return std::move(bytes_); }

 private:
  void append(const void* data, size_t size) {
    bytes_.append(static_cast<const char*>(data), size);
  }
  void put_size(size_t size) { put(static_cast<uint64_t>(size)); }

  template <typename T>
  void put(const T& value) {
    if constexpr (ArchivedNumber<T>) {
      append(&value, sizeof value);
    } else if constexpr (std::is_same_v<T, std::string>) {
      put_size(value.size());
      bytes_ += value;
    } else if constexpr (std::is_same_v<T, Status>) {
      put(value.causes());
    } else if constexpr (kIsVector<T>) {
      put_vector(value);
    } else if constexpr (kIsOptional<T>) {
      put(value.has_value());
      if (value) put(*value);
    } else if constexpr (kIsVariant<T>) {
      put_size(value.index());
      std::visit([this](const auto& alternative) { this->put(alternative); }, value);
    } else {
      // fields() serves both directions and so takes a mutable value, which a writer only reads.
      fields(*this, const_cast<T&>(value));
    }
  }

  template <typename T>
  void put_vector(const std::vector<T>& values) {
    static_assert(!std::is_same_v<T, bool>,
                  "a vector of bools has no elements that could be named");
    put_size(values.size());
    if constexpr (ArchivedNumber<T>) {
      append(values.data(), values.size() * sizeof(T));
    } else {
      for (const T& value : values) put(value);
    }
  }

  std::string bytes_;
};

/// Reads values from arbitrary bytes. After the first value that the bytes do not hold nothing more
/// is read, and the values from there on must not be used. Memory is allocated only for elements
/// for which there are bytes.
class ArchiveReader {
 public:
  explicit ArchiveReader(std::string_view bytes) : bytes_(bytes) {}

  template <typename... T>
  void operator()(T&... values) {
    (get(values), ...);
  }

  /// True if every value was there and no byte is left over.
  bool complete() const { return !failed_ && bytes_.empty(); }

 private:
  /// The next `size` bytes, or nullptr if there are fewer.
  const char* next(size_t size) {
    if (failed_ || size > bytes_.size()) {
      failed_ = true;
      return nullptr;
    }
    const char* const data = bytes_.data();
    bytes_.remove_prefix(size);
    return data;
  }

  /// How many elements follow, each of which takes at least `least` bytes; 0 if there are not
  /// enough bytes for them.
  size_t size_of(size_t least) {
    uint64_t size = 0;
    get(size);
    if (size > bytes_.size() / least) failed_ = true;
    return failed_ ? 0 : static_cast<size_t>(size);
  }

  template <typename T>
  void get(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      uint8_t byte = 0;
      get(byte);
      if (byte > 1) failed_ = true;
      if (!failed_) value = byte == 1;
    } else if constexpr (ArchivedNumber<T>) {
      if (const char* data = next(sizeof value)) std::memcpy(&value, data, sizeof value);
    } else if constexpr (std::is_same_v<T, std::string>) {
      const size_t size = size_of(1);
      if (const char* data = next(size)) value.assign(data, size);
    } else if constexpr (std::is_same_v<T, Status>) {
      std::vector<Cause> causes;
      get(causes);
      value = Status(std::move(causes));
    } else if constexpr (kIsVector<T>) {
      get_vector(value);
    } else if constexpr (kIsOptional<T>) {
      bool there = false;
      get(there);
      value.reset();
      if (there) get(value.emplace());
    } else if constexpr (kIsVariant<T>) {
      get_variant(value, std::make_index_sequence<std::variant_size_v<T>>());
    } else {
      if (!failed_) fields(*this, value);
    }
  }

  template <typename T>
  void get_vector(std::vector<T>& values) {
    static_assert(ArchivedNumber<T> || !std::is_empty_v<T>, "an element takes at least one byte");
    const size_t size = size_of(ArchivedNumber<T> ? sizeof(T) : 1);
    values.clear();
    if constexpr (ArchivedNumber<T>) {
      values.resize(size);
      const char* data = next(size * sizeof(T));
      if (data != nullptr && size > 0) std::memcpy(values.data(), data, size * sizeof(T));
    } else {
      for (size_t i = 0; i < size && !failed_; ++i) get(values.emplace_back());
    }
  }

  template <typename Variant, size_t... index>
  void get_variant(Variant& value, std::index_sequence<index...>) {
    uint64_t chosen = 0;
    get(chosen);
    if (chosen >= sizeof...(index)) failed_ = true;
    if (failed_) return;
    ((chosen == index ? get(value.template emplace<index>()) : void()), ...);
  }

  std::string_view bytes_;
  bool failed_ = false;
};

template <typename T>
std::string encode(const T& value) {
  ArchiveWriter archive;
  archive(value);
  return archive.take();
}

/// The same bytes as encode(Variant(alternative)), without the copy.
template <typename Variant, typename T>
std::string encode_as(const T& alternative) {
  ArchiveWriter archive;
  archive(static_cast<uint64_t>(alternative_index<T, Variant>()), alternative);
  return archive.take();
}

/// The value from which encode() made these bytes. INTERNAL: they are not exactly one value. `what`
/// names it in the error, for example "step plan".
template <typename T>
Result<T> decode(std::string_view bytes, const char* what) {
  T value;
  ArchiveReader archive(bytes);
  archive(value);
  if (!archive.complete())
    return Status::error(Code::kInternal, cat(bytes.size(), " bytes that are not one ", what));
  return value;
}

template <typename Archive>
void fields(Archive& archive, Cause& cause) {
  archive(cause.code, cause.rank, cause.where, cause.what, cause.os_error, cause.fault);
}

}  // namespace shoal
