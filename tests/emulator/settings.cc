#include "tests/emulator/settings.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <sstream>
#include <unistd.h>

namespace shoal::emulator {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& value) {
  std::fprintf(stderr, "emulated GPU: %s=%s has no meaning; tests/emulator/settings.h has a list\n",
               name.c_str(), value.c_str());
  std::_Exit(70);
}

std::string text(const char* name, const char* otherwise) {
  const char* value = std::getenv((std::string("EMULATED_GPU_") + name).c_str());
  return value == nullptr ? otherwise : value;
}

/// The value, or the one that the file of this path holds when a process first asks.
std::string kept(const std::string& written) {
  std::string value = written;
  if (written.starts_with('/')) std::getline(std::ifstream(written) >> std::ws, value);
  return value;
}

int64_t number(const char* name, const std::string& written) {
  const std::string value = kept(written);
  char* end = nullptr;
  const int64_t read = std::strtoll(value.c_str(), &end, 10);
  if (value.empty() || *end != '\0') refuse(name, value);
  return read;
}

/// One of the words, which stand for 0, 1, ...
template <typename Enum>
Enum word(const char* name, const char* first, const char* second, const char* third = "") {
  const std::string value = text(name, first);
  if (value == first) return static_cast<Enum>(0);
  if (value == second) return static_cast<Enum>(1);
  if (value == third) return static_cast<Enum>(2);
  refuse(name, value);
}

Pair pair(const char* name) {
  const std::string value = text(name, "");
  if (value.empty()) return {};
  const size_t dash = value.find('-');
  if (dash == std::string::npos) refuse(name, value);
  const auto device = [&](const std::string& part) {
    return part == "*" ? -1 : static_cast<int>(number(name, part));
  };
  return {device(value.substr(0, dash)), device(value.substr(dash + 1))};
}

/// NAME:N[:D]
PlannedError planned_of(const std::string& value) {
  PlannedError planned;
  std::istringstream parts(value);
  std::string error, device;
  std::getline(parts, planned.function, ':');
  if (!std::getline(parts, error, ':')) refuse("FAIL", value);
  planned.error = static_cast<int>(number("FAIL", error));
  if (std::getline(parts, device)) planned.device = static_cast<int>(number("FAIL", device));
  return planned;
}

/// The device's part of a list, whose last part is that of all others too.
std::string part_of(const std::string& list, int device) {
  std::istringstream parts(list);
  std::string one, last;
  for (int i = 0; i <= device && std::getline(parts, one, ','); ++i) last = one;
  return last;
}

Capability capability(int device) {
  const std::string last = part_of(text("CAPABILITY", "9.0"), device);
  Capability found;
  if (std::sscanf(last.c_str(), "%d.%d", &found.major, &found.minor) != 2)
    refuse("CAPABILITY", last);
  return found;
}

/// Each device has a number at most.
std::vector<int> numbers(int devices) {
  const std::string value = kept(text("NUMBERS", "all"));
  std::vector<int> found;
  if (value == "all") {
    for (int device = 0; device < devices; ++device) found.push_back(device);
  } else if (value != "none") {
    std::istringstream list(value);
    for (std::string one; std::getline(list, one, ',');) {
      const auto device = static_cast<int>(number("NUMBERS", one));
      if (device < 0 || device >= devices || std::count(found.begin(), found.end(), device) > 0)
        refuse("NUMBERS", value);
      found.push_back(device);
    }
    if (found.empty()) refuse("NUMBERS", value);
  }
  return found;
}

TensorCore tensor_core(int device, const Capability& of_device) {
  const std::string which = part_of(text("TENSOR_CORE", "own"), device);
  if (which == "sm80") return tensor_core_of(8);
  if (which == "sm90") return tensor_core_of(9);
  TensorCore core = tensor_core_of(of_device.major);
  if (which == "other") {
    --core.fraction_bits;
  } else if (which != "own") {
    refuse("TENSOR_CORE", which);
  }
  return core;
}

Settings read_settings() {
  Settings s;
  s.devices = static_cast<int>(number("DEVICES", text("DEVICES", "8")));
  s.numbers = numbers(s.devices);
  s.peers = word<int>("PEERS", "none", "all") == 1;
  s.driver = static_cast<int>(number("DRIVER", text("DRIVER", "13000")));
  s.bytes = static_cast<size_t>(number("BYTES", text("BYTES", "1073741824")));
  s.taken = static_cast<size_t>(number("TAKEN", text("TAKEN", "0")));
  s.fresh = word<Fresh>("FRESH", "unwritten", "nan");
  const std::string fail = text("FAIL", "");
  if (fail.starts_with('/')) {
    s.breaks = fail;
  } else if (!fail.empty()) {
    s.fails = planned_of(fail);
  }
  s.peer_wrong = pair("PEER_WRONG");
  s.peer_hang = pair("PEER_HANG");
  s.tried = number("TRIED", text("TRIED", "0"));
  s.hang = text("HANG", "");
  s.leave_out = text("LEAVE_OUT", "");
  s.compiles = text("COMPILES", "");
  s.launched = text("LAUNCHED", "");
  const std::string order = text("ORDER", "forward");
  s.order = order == "forward"   ? Order::kForward
            : order == "reverse" ? Order::kReverse
                                 : Order::kRandom;
  if (s.order == Order::kRandom) s.seed = static_cast<uint64_t>(number("ORDER", order));
  s.skip_barrier = text("SKIP_BARRIER", "");
  if (!s.skip_barrier.empty()) {
    const size_t colon = s.skip_barrier.find(':');
    if (colon == std::string::npos) refuse("SKIP_BARRIER", s.skip_barrier);
    s.skip_line = static_cast<int>(number("SKIP_BARRIER", s.skip_barrier.substr(colon + 1)));
  }
  s.copies = word<Copies>("COPIES", "early", "late");
  s.streams = word<Streams>("STREAMS", "threads", "at-once", "when-waited-for");
  for (int device = 0; device < s.devices; ++device) {
    s.capabilities.push_back(capability(device));
    s.tensor_cores.push_back(tensor_core(device, s.capabilities.back()));
  }
  return s;
}

/// All variables of the environment that are the emulator's.
std::string variables() {
  std::string all;
  for (char** one = environ; *one != nullptr; ++one) {
    if (**one == 'E' && std::strncmp(*one, "EMULATED_GPU_", 13) == 0) (all += *one) += '\n';
  }
  return all;
}

}  // namespace

const Settings& settings() {
  struct Read {
    std::mutex mutex;
    std::map<std::string, Settings> by_variables;
  };
  static auto& read = *new Read;  // threads of streams may outlive static objects
  const std::string now = variables();
  const std::lock_guard<std::mutex> lock(read.mutex);
  auto found = read.by_variables.find(now);
  if (found == read.by_variables.end())
    found = read.by_variables.emplace(now, read_settings()).first;
  return found->second;
}

bool holds_number(const std::string& path, int device) {
  if (path.empty()) return false;
  std::ifstream file(path);
  for (int found = -1; file >> found;) {
    if (found == device) return true;
  }
  return false;
}

int planned_error(const char* function, int device) {
  struct Broken {
    std::mutex mutex;
    std::string path;  // of the file that was found
    int error = 0;
  };
  static auto& broken = *new Broken;
  const auto is_meant = [&](const PlannedError& one) {
    return one.function == function && (one.device < 0 || one.device == device);
  };
  const Settings& now = settings();
  if (now.breaks.empty()) return is_meant(now.fails) ? now.fails.error : 0;
  const std::lock_guard<std::mutex> lock(broken.mutex);
  if (broken.path == now.breaks) return broken.error;
  std::string line;
  if (!std::getline(std::ifstream(now.breaks), line)) return 0;
  const PlannedError found = planned_of(line);
  if (!is_meant(found)) return 0;
  std::remove(now.breaks.c_str());
  broken.path = now.breaks;
  broken.error = found.error;
  return found.error;
}

}  // namespace shoal::emulator
