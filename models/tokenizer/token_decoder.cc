#include "models/tokenizer/token_decoder.h"

#include <algorithm>
#include <utility>

#include "models/tokenizer/decode_stages.h"
#include "runtime/base/cat.h"

namespace shoal {
namespace {

/// How many times longer a Replace can make a text. The product over the whole decoder is bounded,
/// because 64 steps of a -> aa would give 2^64 bytes for one token.
size_t growth_of(const Pattern& pattern, size_t content_bytes) {
  const size_t literal = pattern.literal().size();
  if (literal == 0) return 1 + content_bytes;  // a regex may match at every character
  return std::max<size_t>(1, (content_bytes + literal - 1) / literal);
}
constexpr size_t kMaxGrowth = 256;

Result<int64_t> count_field(const Component& component, const char* key) {
  constexpr int64_t kMaxCount = 1 << 20;
  SHOAL_ASSIGN_OR_RETURN(const auto value, json_int(*component.json, key, component.what));
  if (value && *value >= 0 && *value <= kMaxCount) return *value;
  return Status::error(Code::kInvalidArgument, cat(component.what, ": \"", key,
                                                   "\" must be an integer from 0 to ", kMaxCount));
}

}  // namespace

Result<TokenDecoder> TokenDecoder::parse(const Json& tokenizer, std::string_view what) {
  SHOAL_ASSIGN_OR_RETURN(const auto components,
                         flatten_components(tokenizer, "decoder", "decoders", what));
  TokenDecoder decoder;
  size_t growth = 1;
  for (const Component& component : components) {
    SHOAL_ASSIGN_OR_RETURN(auto step, parse_step(component));
    if (step.kind == Kind::kReplace) {
      growth *= growth_of(step.pattern, step.content.size());
      if (growth > kMaxGrowth) {
        return Status::error(Code::kUnimplemented,
                             cat(component.what, " can make a text more than ", kMaxGrowth,
                                 " times longer; that is not supported"));
      }
    }
    decoder.steps_.push_back(std::move(step));
  }
  // An empty Sequence passes the pieces on unchanged, which a single Fuse does too. No step at all
  // would join them with spaces.
  if (const auto found = tokenizer.find("decoder");
      decoder.steps_.empty() && found != tokenizer.end() && !found->is_null()) {
    decoder.steps_.push_back({Kind::kFuse, {}, {}, 0, 0, false});
  }
  return decoder;
}

Result<TokenDecoder::Step> TokenDecoder::parse_step(const Component& component) {
  Step step{};
  if (component.type == "ByteLevel") {
    step.kind = Kind::kByteLevel;
  } else if (component.type == "ByteFallback") {
    step.kind = Kind::kByteFallback;
  } else if (component.type == "Fuse") {
    step.kind = Kind::kFuse;
  } else if (component.type == "Replace") {
    step.kind = Kind::kReplace;
    SHOAL_ASSIGN_OR_RETURN(step.pattern, Pattern::parse(component));
    SHOAL_ASSIGN_OR_RETURN(step.content, required_string(component, "content"));
  } else if (component.type == "Strip") {
    step.kind = Kind::kStrip;
    SHOAL_ASSIGN_OR_RETURN(step.content, required_character(component, "content"));
    SHOAL_ASSIGN_OR_RETURN(step.start, count_field(component, "start"));
    SHOAL_ASSIGN_OR_RETURN(step.stop, count_field(component, "stop"));
  } else if (component.type == "Metaspace") {
    step.kind = Kind::kMetaspace;
    SHOAL_ASSIGN_OR_RETURN(step.content, required_character(component, "replacement"));
    SHOAL_ASSIGN_OR_RETURN(const auto scheme,
                           json_string(*component.json, "prepend_scheme", component.what));
    SHOAL_ASSIGN_OR_RETURN(const bool prefix, bool_or(component, "add_prefix_space", true));
    step.drop_first = prefix && scheme.value_or("always") != "never";
  } else {
    return unsupported_component(component);
  }
  return step;
}

DecodeChain TokenDecoder::start() const {
  DecodeChain chain;
  const auto add = [&](auto stage) { chain.stages_.push_back(std::move(stage)); };
  const auto next = [&]() -> DecodeStage& { return *chain.stages_.back(); };
  add(std::make_unique<CollectStage>(*chain.out_));
  if (steps_.empty()) add(std::make_unique<JoinStage>(next()));
  for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
    switch (step->kind) {
      case Kind::kByteLevel:
        add(std::make_unique<ByteLevelStage>(next()));
        break;
      case Kind::kReplace:
        add(std::make_unique<ReplaceStage>(step->pattern, step->content, next()));
        break;
      case Kind::kByteFallback:
        add(std::make_unique<ByteFallbackStage>(next()));
        break;
      case Kind::kFuse:
        add(std::make_unique<FuseStage>(next()));
        break;
      case Kind::kStrip:
        add(std::make_unique<StripStage>(step->content, step->start, step->stop, next()));
        break;
      case Kind::kMetaspace:
        add(std::make_unique<MetaspaceStage>(step->content, step->drop_first, next()));
        break;
    }
  }
  return chain;
}

}  // namespace shoal
