#pragma once
#include <memory>

#include "server/grpc/dialect.h"

namespace shoal {

/// openengine.v1.Inference/Generate: each step is sent at once, and an error of a request that was
/// taken is an event of the stream.
std::unique_ptr<Dialect> make_openengine_dialect();

}  // namespace shoal
