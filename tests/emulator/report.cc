#include "tests/emulator/report.h"

#include <cstdio>
#include <cstring>
#include <mutex>

#include "tests/emulator/lanes.h"

namespace shoal::emulator {
namespace {

struct Kept {
  std::mutex mutex;
  std::string text;
};
Kept& kept() {
  static auto& one = *new Kept;  // threads of streams may outlive static objects
  return one;
}

const char* name_of(Fault fault) {
  switch (fault) {
    case Fault::kDivergentBarrier:
      return "divergent barrier";
    case Fault::kWrongMask:
      return "warp collective with a wrong mask";
    case Fault::kMisaligned:
      return "misaligned address";
    case Fault::kUnwritten:
      return "read of device memory that was never written";
    case Fault::kUnmapped:
      return "address that the device does not have";
    case Fault::kOutsideBlock:
      return "address outside of the block's memory";
    case Fault::kNoPeer:
      return "memory of a device that is out of reach";
    case Fault::kReadTooEarly:
      return "slot that is read too early";
    case Fault::kReusedTooEarly:
      return "slot that is reused too early";
    case Fault::kBeforeOthers:
      return "kernel that does not await earlier ones";
    case Fault::kPageable:
      return "copy of memory that is not pinned";
  }
  return "fault";
}

}  // namespace

std::string text_of(const Place& place) {
  const char* slash = std::strrchr(place.file, '/');
  return std::string(slash == nullptr ? place.file : slash + 1) + ":" + std::to_string(place.line);
}

void keep_report(Fault fault, const Place& place, const std::string& details) {
  const std::string where = place.line == 0 ? "" : " at " + text_of(place);
  const std::string text = name_of(fault) + where + (details.empty() ? "" : ": ") + details;
  std::fprintf(stderr, "emulated GPU: %s\n", text.c_str());
  const std::lock_guard<std::mutex> lock(kept().mutex);
  if (kept().text.empty()) kept().text = text;
}

void report(Fault fault, const Place& place, const std::string& details) {
  keep_report(fault, place, details);
  abandon_kernel();
}

std::string first_report() {
  const std::lock_guard<std::mutex> lock(kept().mutex);
  return kept().text;
}

}  // namespace shoal::emulator
