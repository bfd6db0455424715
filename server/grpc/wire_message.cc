#include "server/grpc/wire_message.h"

#include <algorithm>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/message.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <map>
#include <utility>

#include "models/tokenizer/unicode.h"
#include "runtime/base/counted.h"
#include "server/grpc/grpc_status.h"

namespace shoal {

namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

/// protobuf refuses messages that are nested deeper than this.
constexpr int kMaxDepth = 100;
/// Each message takes some 50 bytes of memory and may be two bytes long on the wire.
constexpr int kMaxMessages = 65'536;
/// Walks over a message on the wire without making objects of it. It stops at the first thing that
/// is wrong.
class WireWalk {
 public:
  /// in_text: look into texts too, which takes a copy of each.
  WireWalk(const WireBounds& bounds, bool in_text) : bounds_(bounds), in_text_(in_text) {}

  /// Returns false if something is wrong.
  bool check(grpc::ByteBuffer* bytes, const Descriptor* type) {
    grpc::ProtoBufferReader reader(bytes);
    CodedInputStream in(&reader);
    return walk(&in, type, "", 0);
  }
  /// If it is ok after check() has returned false, the bytes are no such message.
  const WireRefusal& refusal() const { return refusal_; }

 private:
  /// Returns false if something is wrong. If refusal_ is still ok then, the bytes are no message.
  bool walk(CodedInputStream* in, const Descriptor* type, const std::string& path, int depth) {
    std::map<int, size_t> seen;
    while (const uint32_t tag = in->ReadTag()) {
      const FieldDescriptor* field =
          type->FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
      const bool has_length =
          WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
      const bool is_text = field != nullptr && field->type() == FieldDescriptor::TYPE_STRING;
      const bool is_message = field != nullptr && field->type() == FieldDescriptor::TYPE_MESSAGE;
      if (has_length && (is_message || (is_text && in_text_))) {
        const size_t index = seen[field->number()]++;
        if (!enter(in, *field, index, path, depth)) return false;
      } else if (field != nullptr && field->is_packable()) {
        size_t& count = seen[field->number()];
        if (!skip_numbers(in, tag, &count)) return false;
        if (count > bounds_.max_ids) {
          refusal_ =
              refuse_field(name(path, *field, ""),
                           cat(" has more than ", counted(bounds_.max_ids, "entry", "entries"),
                               ", the model length"));
          return false;
        }
      } else if (!WireFormatLite::SkipField(in, tag)) {
        return false;
      }
    }
    return in->ConsumedEntireMessage();
  }

  static std::string name(const std::string& path, const FieldDescriptor& field,
                          const std::string& index) {
    return cat(path, path.empty() ? "" : ".", field.name(), index);
  }

  /// Skips an entry of a list of numbers, or a packed list of them, and adds their count.
  static bool skip_numbers(CodedInputStream* in, uint32_t tag, size_t* count) {
    if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      ++*count;
      return WireFormatLite::SkipField(in, tag);
    }
    uint32_t length = 0;
    if (!in->ReadVarint32(&length)) return false;
    const void* data = nullptr;
    for (int size = 0; length > 0; length -= static_cast<uint32_t>(size)) {
      if (!in->GetDirectBufferPointer(&data, &size)) return false;
      size = static_cast<int>(std::min<int64_t>(size, length));
      const auto* bytes = static_cast<const uint8_t*>(data);
      // The last byte of each number, and no other one, is less than 0x80.
      *count += static_cast<size_t>(
          std::count_if(bytes, bytes + size, [](uint8_t byte) { return byte < 0x80; }));
      if (!in->Skip(size)) return false;
    }
    return true;
  }

  bool enter(CodedInputStream* in, const FieldDescriptor& field, size_t index,
             const std::string& path, int depth) {
    uint32_t length = 0;
    if (!in->ReadVarint32(&length)) return false;
    const auto own_name = [&] {
      return name(path, field, field.is_repeated() ? cat("[", index, "]") : std::string());
    };
    if (field.type() == FieldDescriptor::TYPE_STRING) {
      std::string text;
      if (!in->ReadString(&text, static_cast<int>(length))) return false;
      if (to_valid_utf8(text) == text) return true;
      refusal_ = refuse_field(own_name(), " is not valid UTF-8");
      return false;
    }
    if (++messages_ > kMaxMessages || depth == kMaxDepth) {
      refusal_ = refuse_field(path.empty() ? std::string(field.name()) : path,
                              cat(" has too many parts: a request may have ", kMaxMessages,
                                  " messages inside of it, nested ", kMaxDepth, " deep"));
      return false;
    }
    const CodedInputStream::Limit limit = in->PushLimit(static_cast<int>(length));
    if (!walk(in, field.message_type(), in_text_ ? own_name() : name(path, field, ""), depth + 1))
      return false;
    in->PopLimit(limit);
    return true;
  }

  const WireBounds bounds_;
  const bool in_text_;
  int messages_ = 0;
  WireRefusal refusal_;
};

/// The most token ids of a request that comes before the model is loaded.
constexpr size_t kUnknownModelIds = size_t{1} << 20;

}  // namespace

WireRefusal refuse_field(std::string field, std::string_view what) {
  Status status = Status::error(Code::kInvalidArgument, cat(field, what));
  return {std::move(status), std::move(field)};
}

grpc::Status to_grpc_status(const WireRefusal& refusal) {
  return to_grpc_status(refusal.status, {.reason = "INVALID_REQUEST", .field = refusal.field});
}

WireBounds wire_bounds(const ServingState& state) {
  const ServedModel* model = state.view().model;
  return {model != nullptr ? static_cast<size_t>(model->max_model_len) : kUnknownModelIds};
}

WireRefusal parse_message(grpc::ByteBuffer* bytes, const WireBounds& bounds,
                          google::protobuf::Message* message) {
  WireWalk walk(bounds, false);
  bool good = walk.check(bytes, message->GetDescriptor());
  WireRefusal refusal = walk.refusal();
  if (good) {
    grpc::ProtoBufferReader reader(bytes);
    good = message->ParseFromZeroCopyStream(&reader);
    if (!good) {
      // The walk did not look into texts, so that one of them may be why.
      WireWalk through_text(bounds, true);
      (void)through_text.check(bytes, message->GetDescriptor());
      refusal = through_text.refusal();
    }
  }
  bytes->Clear();
  if (good || !refusal.ok()) return refusal;
  const google::protobuf::Descriptor* type = message->GetDescriptor();
  return refuse_field("",
                      cat("the request is not a ", type->name(), " of ", type->file()->package()));
}

}  // namespace shoal
