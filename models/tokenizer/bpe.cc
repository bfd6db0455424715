#include "models/tokenizer/bpe.h"

#include <algorithm>
#include <cstdio>
#include <queue>
#include <utility>

#include "models/tokenizer/unicode.h"
#include "runtime/base/cat.h"

namespace shoal {
namespace {

constexpr std::string_view kWordSpace = "\xE2\x96\x81";  // U+2581, SentencePiece's space

/// The byte at which the next word after byte `from` begins. A word begins at a space that does not
/// follow another space. If no word follows, the result is the length of the text.
size_t next_word(std::string_view text, size_t from) {
  for (size_t at = text.find(kWordSpace, from + 1); at != std::string_view::npos;
       at = text.find(kWordSpace, at + 1)) {
    if (!text.substr(0, at).ends_with(kWordSpace)) return at;
  }
  return text.size();
}

std::string quoted(std::string_view text) {
  return Json(std::string(text.substr(0, 64))).dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace

Result<BpeModel> BpeModel::parse(const Json& tokenizer, std::string_view what) {
  const auto model = tokenizer.find("model");
  if (model == tokenizer.end() || !model->is_object()) {
    return Status::error(Code::kInvalidArgument, cat(what, ": the object \"model\" is missing"));
  }
  const std::string where = cat(what, ": model");
  BpeModel bpe;
  SHOAL_RETURN_IF_ERROR(bpe.parse_options(*model, where));
  SHOAL_RETURN_IF_ERROR(bpe.parse_vocabulary(*model, where));
  SHOAL_RETURN_IF_ERROR(bpe.parse_merges(*model, where));
  return bpe;
}

Status BpeModel::parse_options(const Json& model, std::string_view what) {
  SHOAL_ASSIGN_OR_RETURN(const auto type, json_string(model, "type", what));
  if (type.value_or("BPE") != "BPE") {
    return Status::error(Code::kUnimplemented,
                         cat(what, " type ", quoted(*type),
                             " is not supported, only \"BPE\"; convert the tokenizer to BPE"));
  }
  SHOAL_ASSIGN_OR_RETURN(const auto dropout, json_double(model, "dropout", what));
  if (dropout.value_or(0.0) != 0.0) {
    return Status::error(Code::kUnimplemented,
                         cat(what, ": dropout ", *dropout,
                             " makes encoding random and is not supported; set it to null"));
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    SHOAL_ASSIGN_OR_RETURN(const auto affix, json_string(model, key, what));
    if (!affix.value_or("").empty()) {
      return Status::error(Code::kUnimplemented,
                           cat(what, ": ", key, " ", quoted(*affix), " is not supported"));
    }
  }
  SHOAL_ASSIGN_OR_RETURN(const auto unk, json_string(model, "unk_token", what));
  has_unk_ = unk.has_value();
  unk_token_ = unk.value_or("");
  SHOAL_ASSIGN_OR_RETURN(const auto fuse_unk, json_bool(model, "fuse_unk", what));
  SHOAL_ASSIGN_OR_RETURN(const auto byte_fallback, json_bool(model, "byte_fallback", what));
  SHOAL_ASSIGN_OR_RETURN(const auto ignore_merges, json_bool(model, "ignore_merges", what));
  fuse_unk_ = fuse_unk.value_or(false);
  byte_fallback_ = byte_fallback.value_or(false);
  ignore_merges_ = ignore_merges.value_or(false);
  return {};
}

Status BpeModel::parse_vocabulary(const Json& model, std::string_view what) {
  const auto vocab = model.find("vocab");
  if (vocab == model.end() || !vocab->is_object()) {
    return Status::error(Code::kInvalidArgument,
                         cat(what, ": \"vocab\" must be an object of piece: id"));
  }
  vocabulary_.reserve(vocab->size());
  int64_t max_id = -1;
  for (const auto& [piece, id] : vocab->items()) {
    if (!id.is_number_integer() || id < 0 || id > kMaxId) {
      return Status::error(Code::kInvalidArgument, cat(what, ": the id of ", quoted(piece),
                                                       " must be an integer from 0 to ", kMaxId,
                                                       ", not ", id.dump().substr(0, 40)));
    }
    if (piece.size() > kMaxPieceBytes) {
      return Status::error(Code::kInvalidArgument,
                           cat(what, ": the piece of id ", id.get<int64_t>(), " has ", piece.size(),
                               " B; at most ", kMaxPieceBytes));
    }
    max_id = std::max(max_id, id.get<int64_t>());
    vocabulary_.emplace(piece, id.get<int32_t>());
  }
  pieces_.resize(static_cast<size_t>(max_id + 1));
  return index_vocabulary(what);
}

/// Fills in pieces_ by id, and the ids of the pieces that have a meaning of their own.
Status BpeModel::index_vocabulary(std::string_view what) {
  for (const auto& [piece, id] : vocabulary_) {
    std::string_view& slot = pieces_[static_cast<size_t>(id)];
    if (slot.data() != nullptr) {
      return Status::error(Code::kInvalidArgument, cat(what, ": ", quoted(slot), " and ",
                                                       quoted(piece), " both have id ", id));
    }
    slot = piece;
  }
  unk_id_ = has_unk_ ? find(unk_token_).value_or(-1) : -1;
  if (byte_fallback_) {
    for (int byte = 0; byte < 256; ++byte) {
      char name[8];
      std::snprintf(name, sizeof(name), "<0x%02X>", static_cast<unsigned>(byte));
      byte_ids_.push_back(find(name).value_or(-1));
    }
  }
  spaces_begin_words_ = spaces_begin_words();
  return {};
}

/// True if no merge can join a space to a character before it. A merge gives an entry of the
/// vocabulary that spells both of its sides, so it is enough that no entry has a space behind
/// something else. Two things are spelled unlike the text that they stand for: bytes, which end in
/// ">", and the unknown token. A space that is not itself an entry could become either of them, and
/// a character that is left out altogether would make its neighbours meet.
bool BpeModel::spaces_begin_words() const {
  const bool all_bytes = byte_fallback_ && std::all_of(byte_ids_.begin(), byte_ids_.end(),
                                                       [](int32_t id) { return id >= 0; });
  if (!find(kWordSpace) || !(has_unk_ || all_bytes)) return false;
  if (unk_id_ >= 0 && (unk_token_.empty() || unk_token_.ends_with(kWordSpace))) return false;
  return std::all_of(pieces_.begin(), pieces_.end(),
                     [](std::string_view piece) { return next_word(piece, 0) >= piece.size(); });
}

size_t BpeModel::part_end(std::string_view piece, size_t begin) const {
  return spaces_begin_words_ ? next_word(piece, begin) : piece.size();
}

Status BpeModel::parse_merges(const Json& model, std::string_view what) {
  const auto merges = model.find("merges");
  if (merges == model.end() || !merges->is_array()) {
    return Status::error(Code::kInvalidArgument, cat(what, ": \"merges\" must be a list"));
  }
  merges_.reserve(merges->size());
  size_t rank = 0;
  const bool strings = !merges->empty() && merges->front().is_string();
  for (const Json& merge : *merges) {
    const std::string where = cat(what, ": merge ", rank);
    if (strings != merge.is_string()) {
      return Status::error(Code::kInvalidArgument, cat(where, ": all merges must have one form"));
    }
    if (strings) {
      const std::string_view text = merge.get_ref<const std::string&>();
      if (text.starts_with("#version")) continue;  // the first line of merges.txt
      const size_t space = text.find(' ');
      if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos) {
        return Status::error(Code::kInvalidArgument,
                             cat(where, " ", quoted(text), " must be two pieces and one space"));
      }
      SHOAL_RETURN_IF_ERROR(add_merge(text.substr(0, space), text.substr(space + 1), rank, where));
    } else {
      if (!merge.is_array() || merge.size() != 2 || !merge[0].is_string() ||
          !merge[1].is_string()) {
        return Status::error(Code::kInvalidArgument,
                             cat(where, " must be \"a b\" or [\"a\", \"b\"]"));
      }
      SHOAL_RETURN_IF_ERROR(add_merge(merge[0].get_ref<const std::string&>(),
                                      merge[1].get_ref<const std::string&>(), rank, where));
    }
    ++rank;
  }
  return {};
}

Status BpeModel::add_merge(std::string_view left, std::string_view right, size_t rank,
                           std::string_view what) {
  const auto missing = [&](std::string_view piece) {
    return Status::error(Code::kInvalidArgument,
                         cat(what, " of ", quoted(left), " and ", quoted(right), ": ",
                             quoted(piece), " is not in the vocabulary"));
  };
  const auto left_id = find(left);
  if (!left_id) return missing(left);
  const auto right_id = find(right);
  if (!right_id) return missing(right);
  const std::string joined = std::string(left) + std::string(right);
  const auto id = find(joined);
  if (!id) return missing(joined);
  // If a pair occurs twice, the last rank counts, as in Hugging Face's map.
  merges_[pair_key(*left_id, *right_id)] = {static_cast<uint32_t>(rank), *id};
  return {};
}

std::optional<int32_t> BpeModel::find(std::string_view piece) const {
  const auto found = vocabulary_.find(piece);
  return found == vocabulary_.end() ? std::nullopt : std::optional(found->second);
}

std::string_view BpeModel::piece(int32_t id) const {
  return id >= 0 && id <= max_id() ? pieces_[static_cast<size_t>(id)] : std::string_view();
}

struct BpeModel::Candidate {
  uint32_t rank;
  int32_t at;
  int32_t id;
  bool operator<(const Candidate& other) const {  // the heap's top is its largest element: the
                                                  // candidate to merge next
    return rank != other.rank ? rank > other.rank : at > other.at;
  }
};

Status BpeModel::encode(std::string_view piece, std::vector<int32_t>& ids,
                        const WorkLimit& limit) const {
  if (ignore_merges_) {
    if (const auto id = find(piece)) {
      ids.push_back(*id);
      return {};
    }
  }
  return for_each_part(piece, [&](std::string_view part) {
    return limit.is_enough(ids.size()) ? Status() : encode_part(part, ids, limit);
  });
}

Status BpeModel::encode_part(std::string_view part, std::vector<int32_t>& ids,
                             const WorkLimit& limit) const {
  SHOAL_RETURN_IF_ERROR(limit.check_bytes(part.size() * (sizeof(Symbol) + 2 * sizeof(Candidate))));
  std::vector<Symbol> symbols;
  SHOAL_RETURN_IF_ERROR(to_symbols(part, symbols));
  SHOAL_RETURN_IF_ERROR(merge_all(symbols, limit));
  for (const Symbol& symbol : symbols) {
    if (symbol.id >= 0) ids.push_back(symbol.id);
  }
  return {};
}

Status BpeModel::to_symbols(std::string_view part, std::vector<Symbol>& symbols) const {
  symbols.reserve(part.size());
  // An unknown character is held back until a known one follows, so that unknown ones can fuse.
  // Characters spelled in bytes do not release it, so their ids come before its id. Hugging Face
  // does the same.
  bool unknown_held = false;
  const auto release = [&] {
    if (unknown_held) symbols.push_back({unk_id_, -1, -1});
    unknown_held = false;
  };
  for (size_t at = 0; at < part.size();) {
    const std::string_view character = part.substr(at, code_point_at(part, at).bytes);
    at += character.size();
    if (const auto id = find(character)) {
      release();
      symbols.push_back({*id, -1, -1});
      continue;
    }
    if (byte_fallback_ && append_bytes(character, symbols)) continue;
    if (!has_unk_) continue;
    if (unk_id_ < 0) {
      return Status::error(
          Code::kFailedPrecondition,
          cat("tokenizer: the character ", quoted(character),
              " is not in the vocabulary, and neither is the unk_token ", quoted(unk_token_)));
    }
    if (!fuse_unk_) release();
    unknown_held = true;
  }
  release();
  const auto count = static_cast<int32_t>(symbols.size());
  for (int32_t i = 0; i < count; ++i) {
    symbols[static_cast<size_t>(i)].previous = i - 1;
    symbols[static_cast<size_t>(i)].next = i + 1 < count ? i + 1 : -1;
  }
  return {};
}

bool BpeModel::append_bytes(std::string_view character, std::vector<Symbol>& symbols) const {
  const auto id_of = [&](char c) { return byte_ids_[static_cast<uint8_t>(c)]; };
  if (std::any_of(character.begin(), character.end(), [&](char c) { return id_of(c) < 0; }))
    return false;
  for (const char c : character) symbols.push_back({id_of(c), -1, -1});
  return true;
}

const BpeModel::Merge* BpeModel::find_merge(int32_t left, int32_t right) const {
  const auto found = merges_.find(pair_key(left, right));
  return found == merges_.end() ? nullptr : &found->second;
}

/// Merges the pair of lowest rank, the leftmost first, until none is left. Candidates are kept in a
/// heap. If the symbols of a candidate have changed in the meantime, this is noticed when it
/// reaches the top.
Status BpeModel::merge_all(std::vector<Symbol>& symbols, const WorkLimit& limit) const {
  constexpr size_t kMergesPerLook = 4096;
  const auto symbol = [&](int32_t i) -> Symbol& { return symbols[static_cast<size_t>(i)]; };
  std::vector<Candidate> candidates;
  candidates.reserve(symbols.size());
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols.size()); ++i) {
    if (const Merge* merge = find_merge(symbol(i).id, symbol(i + 1).id))
      candidates.push_back({merge->rank, i, merge->id});
  }
  std::priority_queue<Candidate> heap(std::less<Candidate>(), std::move(candidates));
  for (size_t done = 1; !heap.empty(); ++done) {
    if (done % kMergesPerLook == 0) SHOAL_RETURN_IF_ERROR(limit.check_given_up());
    const Candidate top = heap.top();
    heap.pop();
    Symbol& left = symbol(top.at);
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbol(left.next);
    const Merge* current = find_merge(left.id, right.id);
    if (current == nullptr || current->id != top.id) continue;

    left.id = top.id;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) symbol(left.next).previous = top.at;
    if (left.previous >= 0) {
      if (const Merge* merge = find_merge(symbol(left.previous).id, left.id)) {
        heap.push({merge->rank, left.previous, merge->id});
      }
    }
    if (left.next >= 0) {
      if (const Merge* merge = find_merge(left.id, symbol(left.next).id))
        heap.push({merge->rank, top.at, merge->id});
    }
  }
  return {};
}

}  // namespace shoal
