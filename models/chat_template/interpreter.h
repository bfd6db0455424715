#pragma once
#include "models/chat_template/run.h"
#include "models/chat_template/syntax_tree.h"

namespace shoal::jinja {

/// Renders a template. After a failure of `run` the text is not used.
Text interpret(Run& run, const SyntaxTree& tree, const DictObject& variables);

}  // namespace shoal::jinja
