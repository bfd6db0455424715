#pragma once
#include <memory>
#include <string>
#include <vector>

#include "server/intake/intake.h"

namespace shoal {

/// An intake whose calls submit nothing.
class LoneIntake : public Intake {
 public:
  explicit LoneIntake(const Options& options)
      : Intake(options, std::make_shared<ServingState>(std::vector<std::string>{"model"})) {}
};

}  // namespace shoal
