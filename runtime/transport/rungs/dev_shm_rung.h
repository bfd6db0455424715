#pragma once
#include "runtime/base/page_size.h"
#include "runtime/comm/slots/shm_communicator.h"
#include "runtime/transport/rungs/rungs.h"
#include "runtime/transport/rungs/slot_pool.h"

namespace shoal {

/// A rung whose pool of slots is an unnamed file in /dev/shm. T, which derives from it, has kName.
template <typename T, size_t SlotBytes>
struct DevShmRung {
  static ShmNeed need(const RungContext& context) {
    return {T::kName, {slot_pool(context, SlotBytes, 1)}, {}};
  }

  /// check_budget decides whether there is room, and whether a file can be made at all.
  static Status probe(const RungContext& context) {
    return check_file_size(need(context).dev_shm_bytes(), context.facts);
  }

  static Result<TransportSetup> prepare(const RungContext& context) {
    TransportSetup setup;
    setup.rung = T::kName;
    SHOAL_ASSIGN_OR_RETURN(
        setup.shm,
        ShmSegment::create(whole_pages(shm_communicator_bytes(context.world_size, SlotBytes)),
                           context.facts.dev_shm.path));
    return setup;
  }

  static Result<std::unique_ptr<Communicator>> open(OpenArgs args) {
    return open_slot_pool(std::move(args), T::kName);
  }
};

}  // namespace shoal
