#include "server/intake/refusals.h"

namespace shoal::refusals {

RefusedRequest no_room(size_t budget_bytes) {
  return refuse(NotTaken::kNoMemory,
                cat("the requests that are being served take all of the ", budget_bytes >> 20,
                    " MiB that requests may take; try again soon"));
}

RefusedRequest no_room_for_answer(size_t budget_bytes) {
  return refuse(NotTaken::kNoMemory,
                cat("answers that are kept until they are whole may take ", budget_bytes >> 20,
                    " MiB, and what is left of that is too little for this one: ask for a "
                    "stream, or for fewer tokens, or try again soon"));
}

RefusedRequest too_many() {
  return refuse(NotTaken::kQueueFull,
                "too many requests wait to be read or tokenized; try again soon");
}

RefusedRequest evicted_for_another() {
  return refuse(NotTaken::kShareExceeded,
                "this client had more than half of the places in which requests wait to be "
                "read or tokenized, and another client needs one, so that its latest "
                "requests are refused");
}

RefusedRequest too_slow(int milliseconds) {
  return refuse(NotTaken::kQueueFull, cat("the request did not arrive within ", milliseconds,
                                          " ms while others waited for its place; try again soon"));
}

RefusedRequest stopped(int milliseconds) {
  return refuse(NotTaken::kQueueFull,
                cat("hardly anything of the request came for ", milliseconds,
                    " ms while another client waited for its place; try again soon"));
}

RefusedRequest id_in_use(const std::string& id) {
  return refuse(
      NotTaken::kIdInUse,
      cat("request_id \"", id, "\" is running: choose another, or leave it empty to get one"));
}

}  // namespace shoal::refusals
