#include "models/tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "models/git_lfs.h"
#include "models/hub.h"
#include "models/tokenizer/added_tokens.h"
#include "models/tokenizer/bpe.h"
#include "models/tokenizer/normalizer.h"
#include "models/tokenizer/post_processor.h"
#include "models/tokenizer/pre_tokenizer.h"
#include "models/tokenizer/token_decoder.h"
#include "models/tokenizer/unicode.h"
#include "runtime/base/cat.h"
#include "runtime/base/json.h"

namespace shoal {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;
// The largest file known (262,000 pieces, 515,000 merges) has two million values.
constexpr JsonLimits kJsonLimits{.max_depth = 64, .max_values = 8'000'000};

}  // namespace

struct Tokenizer::Impl {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  AddedTokens added;
  PostProcessor post_processor;
  TokenDecoder decoder;

  /// Cuts the text at added tokens: first at those that are searched for in raw text, then the
  /// remaining pieces at those that are searched for in normalized text. `untrusted` may be null.
  Status cut(std::string_view text, const UntrustedText* untrusted, PieceList& list,
             WorkLimit& limit) const {
    std::vector<PieceList::Piece> raw;
    added.split(text, true, false, raw, untrusted);
    for (const PieceList::Piece& piece : raw) {
      if (piece.token >= 0) {
        list.pieces.push_back(piece);
      } else if (normalizer.empty()) {
        added.split(piece.text, piece.begins_input, true, list.pieces, untrusted);
      } else {
        SHOAL_RETURN_IF_ERROR(cut_normalized(piece, untrusted, list, limit));
      }
    }
    return {};
  }

  Status cut_normalized(const PieceList::Piece& piece, const UntrustedText* untrusted,
                        PieceList& list, WorkLimit& limit) const {
    NormalizedText normalized{std::string(piece.text), piece.begins_input};
    std::vector<ByteSpan> marks;
    if (untrusted != nullptr && added.has_normalized_special()) {
      const auto offset = static_cast<size_t>(piece.text.data() - untrusted->text.data());
      for (const ByteSpan& span : untrusted->overlapping(offset, offset + piece.text.size())) {
        marks.push_back({std::max(span.begin, offset) - offset,
                         std::min(span.end, offset + piece.text.size()) - offset});
      }
    }
    SHOAL_RETURN_IF_ERROR(marks.empty() ? normalizer.apply(normalized, limit)
                                        : normalizer.apply(normalized, marks, limit));
    const std::string& kept = list.buffers.emplace_back(std::move(normalized.text));
    const UntrustedText kept_marks{kept, marks};
    added.split(kept, normalized.begins_input, true, list.pieces,
                marks.empty() ? nullptr : &kept_marks);
    return {};
  }

  /// The spelling that decoding starts from; nullopt: the id is skipped entirely.
  std::optional<std::string_view> spelling(int32_t id, bool skip_special) const {
    if (const AddedToken* token = added.find(id)) {
      if (skip_special && token->skipped) return std::nullopt;
      return token->spelling;
    }
    const std::string_view piece = model.piece(id);
    return piece.data() == nullptr ? std::nullopt : std::optional(piece);
  }
};

Tokenizer::Tokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::string& model_dir_or_file) {
  std::error_code ignored;
  std::string path = model_dir_or_file;
  const bool exists = std::filesystem::exists(path, ignored);
  if (std::filesystem::is_directory(path, ignored)) path += "/tokenizer.json";
  const Result<std::string> text = read_file(path, kMaxFileBytes);
  if (!text.ok()) {
    return text.status().while_doing(
        cat("no tokenizer: ", path, " cannot be read; the model's directory needs a ",
            "Hugging Face tokenizer.json", exists ? "" : how_to_get_model(model_dir_or_file)));
  }
  return parse(*text, path);
}

Result<Tokenizer> Tokenizer::parse(std::string_view json, std::string_view what) {
  SHOAL_RETURN_IF_ERROR(check_no_lfs_pointer(json, what));
  SHOAL_ASSIGN_OR_RETURN(const Json root, parse_json(json, what, kJsonLimits));
  if (!root.is_object())
    return Status::error(Code::kInvalidArgument, cat(what, ": not a JSON object"));
  SHOAL_ASSIGN_OR_RETURN(const auto version, json_string(root, "version", what));
  if (version.value_or("1.0") != "1.0") {
    return Status::error(Code::kUnimplemented,
                         cat(what, ": version \"", version->substr(0, 40), "\" is not 1.0"));
  }
  // "truncation" and "padding" are ignored because they shape training batches. A server must see
  // the whole prompt, and it refuses a prompt that is too long.
  auto impl = std::make_shared<Impl>();
  SHOAL_ASSIGN_OR_RETURN(impl->model, BpeModel::parse(root, what));
  SHOAL_ASSIGN_OR_RETURN(impl->normalizer, Normalizer::parse(root, what));
  SHOAL_ASSIGN_OR_RETURN(impl->pre_tokenizer, PreTokenizer::parse(root, what));
  SHOAL_ASSIGN_OR_RETURN(impl->decoder, TokenDecoder::parse(root, what));
  SHOAL_ASSIGN_OR_RETURN(impl->added,
                         AddedTokens::parse(root, impl->model, impl->normalizer, what));
  const int32_t max_id = std::max(impl->model.max_id(), impl->added.max_id());
  SHOAL_ASSIGN_OR_RETURN(impl->post_processor, PostProcessor::parse(root, max_id, what));
  return Tokenizer(std::move(impl));
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, bool add_special,
                                               const EncodeBounds& bounds) const {
  return encode_valid(to_valid_utf8(text), nullptr, add_special, bounds);
}

Result<std::vector<int32_t>> Tokenizer::encode_marked(std::string_view text,
                                                      std::span<const ByteSpan> untrusted,
                                                      const EncodeBounds& bounds) const {
  if (to_valid_utf8(text) != text)
    return Status::error(Code::kInvalidArgument, "tokenizer: a rendered prompt is not UTF-8");
  if (!untrusted.empty() && untrusted.back().end > text.size())
    return Status::error(Code::kInvalidArgument, "tokenizer: a span is outside the prompt");
  const UntrustedText marked{text, untrusted};
  return encode_valid(text, untrusted.empty() ? nullptr : &marked, false, bounds);
}

Result<std::vector<int32_t>> Tokenizer::encode_valid(std::string_view text,
                                                     const UntrustedText* untrusted,
                                                     bool add_special,
                                                     const EncodeBounds& bounds) const {
  WorkLimit limit(bounds.max_ids, bounds.given_up);
  SHOAL_RETURN_IF_ERROR(limit.take_bytes(text.size()));
  PieceList list;
  SHOAL_RETURN_IF_ERROR(impl_->cut(text, untrusted, list, limit));
  SHOAL_RETURN_IF_ERROR(impl_->pre_tokenizer.apply(list, limit));
  std::vector<int32_t> ids;
  for (const PieceList::Piece& piece : list.pieces) {
    if (limit.is_enough(ids.size())) break;
    if (piece.token >= 0) {
      ids.push_back(piece.token);
    } else {
      SHOAL_RETURN_IF_ERROR(limit.check_given_up());
      SHOAL_RETURN_IF_ERROR(impl_->model.encode(piece.text, ids, limit));
    }
  }
  return impl_->post_processor.apply(std::move(ids), add_special);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  StreamDecoder decoder(*this, skip_special);
  std::string text;
  for (const int32_t id : ids) text += decoder.push(id);
  text += decoder.finish();
  return text;
}

int32_t Tokenizer::vocab_size() const {
  return std::max(impl_->model.max_id(), impl_->added.max_id()) + 1;
}

bool Tokenizer::is_special(int32_t id) const {
  const AddedToken* token = impl_->added.find(id);
  return token != nullptr && token->special;
}

std::string_view Tokenizer::piece(int32_t id) const {
  const AddedToken* token = impl_->added.find(id);
  return token != nullptr ? std::string_view(token->content) : impl_->model.piece(id);
}

struct StreamDecoder::State {
  std::shared_ptr<const Tokenizer::Impl> tokenizer;  // the chain points into it
  bool skip_special = false;
  DecodeChain chain;
};

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : state_(std::make_unique<State>(
          State{tokenizer.impl_, skip_special, tokenizer.impl_->decoder.start()})) {}
StreamDecoder::StreamDecoder(StreamDecoder&&) noexcept = default;
StreamDecoder::~StreamDecoder() = default;

std::string StreamDecoder::push(int32_t id) {
  const auto spelling = state_->tokenizer->spelling(id, state_->skip_special);
  if (!spelling) return {};
  state_->chain.push(*spelling);
  return state_->chain.take();
}

std::string StreamDecoder::finish() {
  state_->chain.finish();
  return state_->chain.take();
}

}  // namespace shoal
