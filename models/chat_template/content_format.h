#pragma once
#include "models/chat_template/syntax_tree.h"

namespace shoal::jinja {

/// What a template expects as the content of a message.
struct ContentFormat {
  bool iterates = false;      ///< it loops over the content, so that it takes a list of parts
  bool tests_string = false;  ///< it asks whether something is a string, so that it takes both
};

/// Finds out as vLLM does: loops over the `content` of what loops over `messages`, or over
/// variables that these are assigned to.
ContentFormat find_content_format(const SyntaxTree& tree);

}  // namespace shoal::jinja
