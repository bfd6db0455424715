#pragma once
#include <list>
#include <string>
#include <vector>

#include "models/model_config.h"
#include "models/safetensors.h"
#include "runtime/worker/model_work.h"

namespace shoal {

/// What a front sends to the ranks of a model directory. Its files stay open until the test ends.
/// The directory must have a readable model.
inline ModelStart model_start(const std::string& model_dir) {
  static std::list<Checkpoint> open;
  ModelStart start;
  start.config_path = model_dir + "/config.json";
  start.config_json = read_model_config(model_dir).value();
  open.push_back(Checkpoint::open(model_dir).value());
  start.checkpoint = open.back().layout();
  return start;
}

/// The descriptors that its ranks inherit.
inline std::vector<int> work_fds(const ModelStart& start) {
  std::vector<int> fds;
  for (const CheckpointLayout::File& file : start.checkpoint.files) fds.push_back(file.fd);
  return fds;
}

}  // namespace shoal
