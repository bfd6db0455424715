#pragma once
#include <string>
#include <vector>

#include "models/generation_config.h"
#include "models/model_config.h"
#include "models/safetensors.h"
#include "models/tokenizer.h"
#include "runtime/base/status.h"
#include "server/cli/flags.h"
#include "server/host/model_watch.h"

namespace shoal {

/// MODEL's files, opened and checked as far as the front needs them. The tokenizer is not included,
/// because not every command needs one.
struct ModelFiles {
  std::string name;  ///< MODEL's last path component, or its name in the cache of the hub
  std::string dir;
  std::string config_json;  ///< the text that `config` was parsed from
  ModelConfig config;
  GenerationConfig generation;
  Checkpoint checkpoint;
  std::vector<WatchedFile> watched;  ///< all of them, open
  /// By when whatever else is read of the model must have answered.
  Deadline start_by = Deadline::infinite();
};

/// NOT_FOUND, INVALID_ARGUMENT (damaged), UNIMPLEMENTED, or UNAVAILABLE (no descriptors are left
/// for all of them); RESOURCE_EXHAUSTED (Fault::kShortage): no address space is left; DATA_LOSS
/// (Fault::kModelChanged): what makes no sense is being written. Callers report these errors as
/// Stage::kModel.
Result<ModelFiles> open_model(const std::string& dir);

/// Opens flags.model as a start does that begins now: ABORTED (Fault::kModelChanged) if the files
/// do not answer in the time of --startup-timeout (read_in_time.h). The other errors are those
/// above.
Result<ModelFiles> open_model(const EngineFlags& flags);

/// The tokenizer of an open model. Its errors are those of Tokenizer::load() and of open_model().
Result<Tokenizer> load_tokenizer(const ModelFiles& model);

/// What is wrong with these files: the error, or, if one of them is not what it was when it was
/// opened, DATA_LOSS (Fault::kModelChanged) because of the error. An error waits for a quarter of a
/// second for such a change.
Status unless_changed(const HeldFiles& files, Status error);

}  // namespace shoal
