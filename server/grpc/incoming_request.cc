#include "server/grpc/incoming_request.h"

#include <algorithm>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <map>
#include <utility>

#include "models/tokenizer/unicode.h"
#include "server/grpc/grpc_status.h"

namespace shoal {

namespace wire = openengine::v1;

namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

/// protobuf refuses messages that are nested deeper than this.
constexpr int kMaxDepth = 100;
/// Each message takes some 50 bytes of memory and may be two bytes long on the wire.
constexpr int kMaxMessages = 65'536;
/// The most token ids of a request that comes before the model is loaded.
constexpr size_t kUnknownModelIds = size_t{1} << 20;

/// Walks over a message on the wire without making objects of it. It stops at the first thing that
/// is wrong.
class WireWalk {
 public:
  /// max_ids: the most numbers in one list. in_text: look into texts too, which takes a copy of
  /// each.
  WireWalk(size_t max_ids, bool in_text) : max_ids_(max_ids), in_text_(in_text) {}

  WireRefusal check(grpc::ByteBuffer* bytes) {
    grpc::ProtoBufferReader reader(bytes);
    CodedInputStream in(&reader);
    if (!walk(&in, wire::GenerateRequest::descriptor(), "", 0) && refusal_.ok())
      refusal_ = refuse_field("", "the request is not a GenerateRequest of openengine.v1");
    return std::move(refusal_);
  }

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
        if (count > max_ids_) {
          refusal_ = refuse_field(name(path, *field, ""),
                                  cat(" has more than ", max_ids_, " entries, the model length"));
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

  const size_t max_ids_;
  const bool in_text_;
  int messages_ = 0;
  WireRefusal refusal_;
};

grpc::Status to_status(const WireRefusal& refusal) {
  return to_grpc_status(refusal.status, {.reason = "INVALID_REQUEST", .field = refusal.field});
}

/// Parses the bytes. If that fails, they are walked over once more to find out why.
Result<wire::GenerateRequest, WireRefusal> parse(grpc::ByteBuffer* bytes, size_t max_ids) {
  SHOAL_RETURN_IF_ERROR(WireWalk(max_ids, false).check(bytes));
  wire::GenerateRequest request;
  {
    grpc::ProtoBufferReader reader(bytes);
    if (request.ParseFromZeroCopyStream(&reader)) return request;
  }
  SHOAL_RETURN_IF_ERROR(WireWalk(max_ids, true).check(bytes));
  return refuse_field("", "the request is not a GenerateRequest of openengine.v1");
}

}  // namespace

Result<IncomingRequest, grpc::Status> read_incoming(const ServingState& state,
                                                    grpc::ByteBuffer* bytes) {
  const ServedModel* model = state.view().model;
  Result<wire::GenerateRequest, WireRefusal> parsed =
      parse(bytes, model != nullptr ? static_cast<size_t>(model->max_model_len) : kUnknownModelIds);
  bytes->Clear();
  if (!parsed.ok()) return to_status(parsed.error());
  wire::GenerateRequest message = std::move(parsed).value();
  if (const Status status = state.check_model(message.model()); !status.ok())
    return to_grpc_status(status, {.reason = "MODEL_NOT_FOUND"});
  IncomingRequest incoming;
  incoming.id = message.request_id().empty() ? make_uuid() : message.request_id();
  incoming.detail = token_detail(message);
  Result<GenerationRequest, WireRefusal> read = read_generate_request(std::move(message));
  if (!read.ok()) return to_status(read.error());
  incoming.request = std::move(read).value();
  return incoming;
}

}  // namespace shoal
