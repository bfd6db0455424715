#pragma once
#include <string>

namespace shoal::emulator {

/// A line of a kernel's source.
struct Place {
  const char* file = "";
  int line = 0;
};
std::string text_of(const Place& place);  ///< "product.cu:69"

/// What a kernel did wrong. The device fails with cudaErrorLaunchFailure, as a real one does after
/// an illegal access, and stays failed until the process ends.
enum class Fault {
  kDivergentBarrier,  ///< the lanes of a block wait at different barriers, or some have ended
  kWrongMask,         ///< a lane uses a warp collective whose mask does not contain it
  kMisaligned,        ///< an access whose address is no multiple of its size
  kUnwritten,         ///< device memory is read before anything was written there
  kUnmapped,          ///< an address that is neither device memory nor mapped host memory
  kOutsideBlock,      ///< an address that is not inside the memory of the lane's block
  kNoPeer,            ///< memory of a device that this one does not reach
  kReadTooEarly,      ///< what another rank's kernel has written is read before its flag was seen
  kReusedTooEarly,    ///< and what it reads is written before it has said that it has read it
  kBeforeOthers,      ///< a kernel that is started early does not wait for those before it
  kPageable,          ///< an asynchronous copy of memory that is not pinned
};

/// Keeps the first report of the process, prints it, and ends the calling lane's kernel: it does
/// not return to the lane.
[[noreturn]] void report(Fault fault, const Place& place, const std::string& details);
/// The first report, e.g. "divergent barrier at product.cu:69: ...". Empty: there is none.
std::string first_report();

/// Keeps a report without ending a lane, for the scheduler and for calls of the host. These have no
/// line of a kernel.
void keep_report(Fault fault, const Place& place, const std::string& details);

}  // namespace shoal::emulator
