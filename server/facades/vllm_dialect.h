#pragma once
#include <memory>

#include "server/grpc/dialect.h"

namespace shoal {

/// vllm.grpc.engine.VllmEngine/Generate. Its answers are token ids without text. What a client
/// leaves unset has the defaults of that protocol, not those of the model: a gateway asks for the
/// model's with GetModelInfo and fills them in itself.
std::unique_ptr<Dialect> make_vllm_dialect();

}  // namespace shoal
