#pragma once
#include <memory>
#include <string_view>

#include "models/chat_template/lexer.h"
#include "models/chat_template/syntax_tree.h"

namespace shoal::jinja {

/// Parses a template (valid UTF-8). The error's byte is one of the normalized source.
Result<std::shared_ptr<const SyntaxTree>, SyntaxError> parse(std::string_view source);

}  // namespace shoal::jinja
