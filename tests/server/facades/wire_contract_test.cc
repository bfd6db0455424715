// Messages as the real stubs of other engines' APIs encode them (make_golden.py), read and written
// with ours: equal bytes mean equal numbers and types, and no field may be unknown.

#include <fstream>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message.h>
#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>
#include <iterator>
#include <memory>
#include <set>
#include <string>

#include "runtime/base/json.h"

#include "kserve/inference.pb.h"
#include "vllm/engine.pb.h"

namespace shoal {
namespace {

using google::protobuf::Message;

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

/// Serialized as the golden bytes were: a map's entries in the order of their keys.
std::string serialize(const Message& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    EXPECT_TRUE(message.SerializeToCodedStream(&coded));
  }
  return bytes;
}

bool has_unknown_fields(const Message& message) {
  const google::protobuf::Reflection* reflection = message.GetReflection();
  if (!reflection->GetUnknownFields(message).empty()) return true;
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection->ListFields(message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      if (has_unknown_fields(reflection->GetMessage(message, field))) return true;
      continue;
    }
    for (int i = 0; i < reflection->FieldSize(message, field); ++i)
      if (has_unknown_fields(reflection->GetRepeatedMessage(message, field, i))) return true;
  }
  return false;
}

TEST(WireContract, TheBytesOfTheRealStubsAreOurs) {
  // So that the linker keeps the descriptors of both.
  ASSERT_NE(inference::ModelInferRequest::descriptor(), nullptr);
  ASSERT_NE(vllm::grpc::engine::GenerateRequest::descriptor(), nullptr);
  const Result<std::string> text = read_file(SHOAL_TEST_DATA "/grpc_golden.json", 1 << 20);
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  const Result<Json> golden = parse_json(*text, "grpc_golden.json");
  ASSERT_TRUE(golden.ok() && golden->size() > 30);
  std::set<std::string> seen;
  for (const Json& entry : *golden) {
    const std::string type = entry[0].get<std::string>();
    SCOPED_TRACE(type);
    const auto* descriptor =
        google::protobuf::DescriptorPool::generated_pool()->FindMessageTypeByName(type);
    ASSERT_NE(descriptor, nullptr);
    const std::unique_ptr<Message> message(
        google::protobuf::MessageFactory::generated_factory()->GetPrototype(descriptor)->New());
    const std::string bytes = from_hex(entry[1].get<std::string>());
    ASSERT_TRUE(message->ParseFromString(bytes));
    EXPECT_FALSE(has_unknown_fields(*message)) << message->DebugString();
    EXPECT_EQ(serialize(*message), bytes) << message->DebugString();
    seen.insert(type);
  }
  // The types that carry requests and answers must be among them.
  for (const char* type : {"vllm.grpc.engine.GenerateRequest", "vllm.grpc.engine.GenerateResponse",
                           "smg.grpc.common.GetTokenizerChunk", "inference.ModelInferRequest",
                           "inference.ModelStreamInferResponse"})
    EXPECT_TRUE(seen.contains(type)) << type;
}

}  // namespace
}  // namespace shoal
