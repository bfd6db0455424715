#pragma once
#include <cstdint>
#include <vector>

#include "models/tokenizer/component.h"

namespace shoal {

/// The "post_processor" of tokenizer.json for one text: TemplateProcessing, BertProcessing,
/// RobertaProcessing, ByteLevel (which moves offsets only) and Sequences of them. Immutable,
/// thread-safe.
class PostProcessor {
 public:
  /// INVALID_ARGUMENT (damaged, or an id above max_id) or UNIMPLEMENTED (by name).
  static Result<PostProcessor> parse(const Json& tokenizer, int32_t max_id, std::string_view what);

  /// The text's ids with the template's around them; those only with add_special.
  std::vector<int32_t> apply(std::vector<int32_t> ids, bool add_special) const;

 private:
  struct Part {
    bool is_text = false;
    std::vector<int32_t> ids;  // of a special token
  };
  Status parse_template(const Component& component, int32_t max_id);
  Status parse_cls_sep(const Component& component, int32_t max_id);

  bool present_ = false;  // without a template the text is the whole
  std::vector<Part> parts_;
};

}  // namespace shoal
