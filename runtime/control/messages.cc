#include "runtime/control/messages.h"

namespace shoal {

Result<FrontMessage> decode_front_message(std::string_view frame) {
  return decode<FrontMessage>(frame, "control message to a rank");
}

Result<RankMessage> decode_rank_message(std::string_view frame) {
  SHOAL_ASSIGN_OR_RETURN(RankMessage message,
                         decode<RankMessage>(frame, "control message from a rank"));
  auto* failure = std::get_if<RankFailure>(&message);
  if (failure != nullptr && failure->status.ok()) {
    return Status::error(Code::kInternal, "a rank says that it has failed, and gives no reason");
  }
  const auto* begun = std::get_if<PhaseBegun>(&message);
  if (begun != nullptr && (begun->phase < Phase::kOpen || begun->phase > Phase::kWarmUp)) {
    return Status::error(Code::kInternal,
                         cat("a rank says that it is in phase ", static_cast<int>(begun->phase)));
  }
  if (failure != nullptr && (failure->fault < Fault::kOwn || failure->fault > Fault::kPolicy)) {
    return Status::error(Code::kInternal,
                         cat("a rank blames fault ", static_cast<int>(failure->fault)));
  }
  return message;
}

}  // namespace shoal
