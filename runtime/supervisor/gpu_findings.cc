#include "runtime/supervisor/gpu_findings.h"

#include <algorithm>

#include "runtime/base/json.h"
#include "runtime/transport/facts/fact_names.h"
#include "runtime/transport/rungs/gpu_checks.h"

namespace shoal {
namespace {

constexpr char kWhat[] = "GPU facts";
constexpr size_t kMostDevices = 1024;

std::string line_of(Json json) {
  return json_text(json) + "\n";
}

Status wrong(std::string_view what) {
  return Status::error(Code::kInvalidArgument, cat(kWhat, ": ", what));
}

/// A member that may be missing.
Status text_of(const Json& object, const char* key, std::string* text) {
  SHOAL_ASSIGN_OR_RETURN(std::optional<std::string> value, json_string(object, key, kWhat));
  *text = std::move(value).value_or("");
  return {};
}
template <typename Words>
Status words_of(const Json& object, const char* key, Words* words) {
  std::string text;
  SHOAL_RETURN_IF_ERROR(text_of(object, key, &text));
  return from_text(text, words) ? Status() : wrong(cat("an unknown ", key));
}
template <typename Number>
Status number_of(const Json& object, const char* key, Number* number) {
  SHOAL_ASSIGN_OR_RETURN(const std::optional<int64_t> value, json_int(object, key, kWhat));
  *number = static_cast<Number>(value.value_or(0));
  return {};
}

Status take_device(const Json& device, GpuFacts* facts) {
  if (!device.is_object()) return wrong("a device that is no object");
  GpuDevice& out = facts->devices.emplace_back();
  SHOAL_RETURN_IF_ERROR(text_of(device, "name", &out.name));
  SHOAL_RETURN_IF_ERROR(text_of(device, "pci_bus_id", &out.pci_bus_id));
  SHOAL_RETURN_IF_ERROR(text_of(device, "uuid", &out.uuid));
  SHOAL_RETURN_IF_ERROR(text_of(device, "compute_capability", &out.compute_capability));
  SHOAL_RETURN_IF_ERROR(number_of(device, "total_bytes", &out.bytes));
  out.why_unusable = why_no_code(facts->module_architectures, out.compute_capability);
  return {};
}

Status take_peers(const Json& rows, GpuFacts* facts) {
  facts->peers.clear();
  for (const Json& row : rows) {
    if (!row.is_array() || row.size() != rows.size()) return wrong("can_access_peer is no square");
    std::vector<bool>& out = facts->peers.emplace_back();
    for (const Json& cell : row) out.push_back(cell.is_boolean() && cell.get<bool>());
  }
  return {};
}

Status take_driver(const Json& driver, GpuFacts* facts) {
  const auto devices = driver.find("devices"), peers = driver.find("can_access_peer");
  SHOAL_RETURN_IF_ERROR(number_of(driver, "driver_version", &facts->cuda_driver));
  if (devices == driver.end() || !devices->is_array() || devices->size() > kMostDevices)
    return wrong("no devices");
  facts->devices.clear();
  for (const Json& device : *devices) SHOAL_RETURN_IF_ERROR(take_device(device, facts));
  return peers != driver.end() && peers->is_array() ? take_peers(*peers, facts) : Status();
}

Status take_module(const Json& module, GpuFacts* facts) {
  SHOAL_RETURN_IF_ERROR(text_of(module, "path", &facts->module_path));
  SHOAL_RETURN_IF_ERROR(text_of(module, "build_id", &facts->module_build_id));
  SHOAL_RETURN_IF_ERROR(text_of(module, "architectures", &facts->module_architectures));
  return number_of(module, "cuda_runtime", &facts->cuda_runtime);
}

Status take_cublas(const Json& cublas, GpuFacts* facts) {
  SHOAL_RETURN_IF_ERROR(text_of(cublas, "version", &facts->cublas_version));
  SHOAL_RETURN_IF_ERROR(text_of(cublas, "path", &facts->cublas_path));
  return text_of(cublas, "error", &facts->cublas_error);
}

Status take_nccl(const Json& nccl, GpuFacts* facts) {
  SHOAL_RETURN_IF_ERROR(number_of(nccl, "version", &facts->nccl_version));
  SHOAL_RETURN_IF_ERROR(text_of(nccl, "path", &facts->nccl_path));
  return text_of(nccl, "error", &facts->nccl_error);
}

Status take_memory(const Json& memory, GpuFacts* facts) {
  size_t device = 0;
  SHOAL_RETURN_IF_ERROR(number_of(memory, "device", &device));
  if (device >= facts->devices.size()) return wrong("memory of no device");
  return number_of(memory, "free_bytes", &facts->devices[device].free_bytes);
}

Status take_error(const Json& error, GpuFacts* facts) {
  SHOAL_RETURN_IF_ERROR(words_of(error, "at", &facts->error_at));
  return text_of(error, "words", &facts->error);
}

/// A later verdict for a pair overrides an earlier one.
Status take_peer(const Json& peer, GpuFacts* facts) {
  GpuPeerVerdict verdict;
  SHOAL_RETURN_IF_ERROR(number_of(peer, "from", &verdict.from));
  SHOAL_RETURN_IF_ERROR(number_of(peer, "to", &verdict.to));
  SHOAL_RETURN_IF_ERROR(words_of(peer, "verdict", &verdict));
  for (GpuPeerVerdict& known : facts->verdicts) {
    if (known.from != verdict.from || known.to != verdict.to) continue;
    known = std::move(verdict);
    return {};
  }
  facts->verdicts.push_back(std::move(verdict));
  return {};
}

}  // namespace

Status GpuFindings::take(std::string_view line) {
  SHOAL_ASSIGN_OR_RETURN(const Json json, parse_json(line, kWhat, {8, 100'000}));
  if (!json.is_object() || json.size() != 1) return wrong("not one finding");
  const std::string& kind = json.begin().key();
  const Json& value = *json.begin();
  if (kind == "doing" && value.is_string()) {
    doing = value.get<std::string>();
    return {};
  }
  if (kind == "done") {
    done = true;
    return {};
  }
  const std::pair<const char*, Status (*)(const Json&, GpuFacts*)> kinds[] = {
      {"module", take_module}, {"error", take_error}, {"driver", take_driver}, {"nccl", take_nccl},
      {"cublas", take_cublas}, {"peer", take_peer},   {"memory", take_memory},
  };
  for (const auto& [name, take_kind] : kinds) {
    if (kind == name && value.is_object()) return take_kind(value, facts);
  }
  return wrong(cat("an unknown finding, \"", kind.substr(0, 40), "\""));
}

std::string gpu_doing_line(std::string_view what) {
  return line_of({{"doing", what}});
}

std::string gpu_error_line(GpuErrorAt at, std::string_view words) {
  return line_of({{"error", {{"at", to_text(at)}, {"words", words}}}});
}

std::string gpu_module_line(const std::string& path, std::string_view build_id,
                            std::string_view architectures, int cuda_runtime) {
  return line_of({{"module",
                   {{"path", path},
                    {"build_id", build_id},
                    {"architectures", architectures},
                    {"cuda_runtime", cuda_runtime}}}});
}

std::string gpu_driver_line(std::string_view facts) {
  return cat("{\"driver\":", facts, "}\n");
}

std::string gpu_memory_line(int device, uint64_t free_bytes) {
  return line_of({{"memory", {{"device", device}, {"free_bytes", free_bytes}}}});
}

std::string gpu_nccl_line(int version, const std::string& path, std::string_view error) {
  return line_of({{"nccl", {{"version", version}, {"path", path}, {"error", error}}}});
}

std::string gpu_cublas_line(const std::string& version, const std::string& path,
                            std::string_view error) {
  return line_of({{"cublas", {{"version", version}, {"path", path}, {"error", error}}}});
}

std::string gpu_peer_line(const GpuPeerVerdict& verdict) {
  return line_of(
      {{"peer", {{"from", verdict.from}, {"to", verdict.to}, {"verdict", to_text(verdict)}}}});
}

std::string gpu_done_line() {
  return line_of({{"done", true}});
}

std::vector<std::pair<int, int>> gpu_pairs_to_try(const GpuFacts& facts) {
  const size_t devices = std::min(static_cast<size_t>(group_devices(facts)), facts.peers.size());
  std::vector<std::pair<int, int>> pairs;
  for (size_t from = 0; from < devices; ++from) {
    for (size_t to = 0; to < devices; ++to) {
      if (from != to && facts.peers[from][to])
        pairs.emplace_back(static_cast<int>(from), static_cast<int>(to));
    }
  }
  return pairs;
}

}  // namespace shoal
