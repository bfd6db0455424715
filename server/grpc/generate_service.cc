#include <algorithm>
#include <charconv>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>
#include <map>
#include <utility>

#include "server/grpc/grpc_status.h"
#include "server/grpc/openengine_dialect.h"
#include "server/grpc/services.h"

#include "openengine/v1/services.grpc.pb.h"

namespace shoal {

namespace wire = openengine::v1;

namespace {

using Metadata = std::multimap<grpc::string_ref, grpc::string_ref>;

template <typename Integer>
bool is_integer(std::string_view text, Integer* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

bool is_printable_ascii(std::string_view text) {
  for (const char c : text)
    if (c < 0x20 || c > 0x7E) return false;
  return !text.empty();
}

constexpr char kPriorityKey[] = "openengine-priority";

/// Checks the openengine-* keys, which may have at most one value each, in the right form.
Status check_metadata(const Metadata& metadata) {
  for (auto entry = metadata.begin(); entry != metadata.end(); ++entry) {
    const std::string_view key(entry->first.data(), entry->first.size());
    const std::string_view value(entry->second.data(), entry->second.size());
    if (!key.starts_with("openengine-")) continue;
    const auto refuse = [&](const char* what) {
      return Status::error(Code::kInvalidArgument, cat("metadata ", key, " ", what));
    };
    if (metadata.count(entry->first) > 1) return refuse("must be given once");
    uint32_t dp_rank = 0;
    int32_t priority = 0;
    if (key == "openengine-routing-key" && !is_printable_ascii(value))
      return refuse("must be non-empty ASCII");
    if (key == kPriorityKey && !is_integer(value, &priority))
      return refuse("must be a decimal int32");
    if (key == "openengine-target-dp-rank") {
      if (!is_integer(value, &dp_rank)) return refuse("must be a decimal uint32");
      if (dp_rank != 0) return refuse("must be 0: this server has one data-parallel rank");
    }
  }
  return {};
}

/// The priority of a call whose metadata was checked, as in GenerationRequest: lower goes first. On
/// the wire higher goes first.
int64_t priority_of(const Metadata& metadata) {
  const auto entry = metadata.find(kPriorityKey);
  int32_t priority = 0;
  if (entry != metadata.end())
    (void)is_integer(std::string_view(entry->second.data(), entry->second.size()), &priority);
  return std::min<int64_t>(-int64_t{priority}, INT32_MAX);
}

class GenerateService final : public WithByteMethods<wire::Inference::CallbackService> {
 public:
  explicit GenerateService(ServiceParts parts)
      : parts_(std::move(parts)), dialect_(make_openengine_dialect()) {
    constexpr int kGenerate = 0;
    stream_bytes(kGenerate,
                 [this](grpc::CallbackServerContext* context) { return generate(context); });
  }

 private:
  GenerateStream::Reactor* generate(grpc::CallbackServerContext* context) const {
    if (const grpc::Status refusal = check_call(*context, parts_); !refusal.ok())
      return refuse_call(refusal);
    if (const Status wrong = check_metadata(context->client_metadata()); !wrong.ok())
      return refuse_call(to_grpc_status(wrong, {.reason = "INVALID_METADATA"}));
    return start_call(parts_, dialect_, context, priority_of(context->client_metadata()));
  }

  const ServiceParts parts_;
  const std::shared_ptr<const Dialect> dialect_;
};

}  // namespace

std::unique_ptr<grpc::Service> make_generate_service(const ServiceParts& parts) {
  return std::make_unique<GenerateService>(parts);
}

}  // namespace shoal
