#pragma once
#include <string>
#include <string_view>

namespace shoal {

/// The line that downloads a model of the Hugging Face Hub, `name` (OWNER/NAME), to `folder`.
/// Without a revision it is the newest one.
std::string download_line(std::string_view name, std::string_view folder,
                          std::string_view revision = {});

/// For the end of the message about a model that is not there: "If you mean ..." on a line of its
/// own and below it the lines that download and serve it, if the name looks like one of the
/// Hugging Face Hub (OWNER/NAME), and what converts it, if it is a GGUF file. Otherwise empty.
std::string how_to_get_model(const std::string& model);

}  // namespace shoal
