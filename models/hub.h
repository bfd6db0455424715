#pragma once
#include <string>

namespace shoal {

/// For the message about a model that is not there: "; if you mean ..." and below it the line that
/// downloads and serves it, if the name looks like one of the Hugging Face Hub (OWNER/NAME), and
/// the line that converts it, if it is a GGUF file. Otherwise empty.
std::string how_to_get_model(const std::string& model);

}  // namespace shoal
