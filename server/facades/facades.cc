#include "server/facades/facades.h"

#include "server/facades/infer_service.h"
#include "server/facades/vllm_service.h"

namespace shoal {

std::vector<GrpcFacade> all_facades() {
  return {{kInferService, &make_infer_service}, {kVllmService, &make_vllm_service}};
}

}  // namespace shoal
