#pragma once
#include <cstdint>
#include <vector>

#include "models/tokenizer/component.h"

namespace shoal {

/// The "post_processor" of tokenizer.json for one text: TemplateProcessing, BertProcessing,
/// RobertaProcessing, ByteLevel (which changes only offsets) and Sequences of them. Immutable,
/// thread-safe.
class PostProcessor {
 public:
  /// INVALID_ARGUMENT (damaged, or an id above max_id) or UNIMPLEMENTED (names what is not
  /// supported).
  static Result<PostProcessor> parse(const Json& tokenizer, int32_t max_id, std::string_view what);

  /// Returns the text's ids, with the template's special tokens around them if add_special is set.
  std::vector<int32_t> apply(std::vector<int32_t> ids, bool add_special) const;

 private:
  struct Part {
    bool is_text = false;
    std::vector<int32_t> ids;  // of a special token
  };
  Status parse_template(const Component& component, int32_t max_id);
  Status parse_cls_sep(const Component& component, int32_t max_id);

  bool present_ = false;  // without a template the ids stay as they are
  std::vector<Part> parts_;
};

}  // namespace shoal
