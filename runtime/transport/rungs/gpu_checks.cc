#include "runtime/transport/rungs/gpu_checks.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <span>
#include <vector>

#include "runtime/base/counted.h"
#include "runtime/comm/device/nccl_api.h"
#include "runtime/device/tensor_core_class.h"
#include "runtime/transport/facts/fact_files.h"
#include "runtime/transport/facts/fact_names.h"

namespace shoal {
namespace {

using Outcome = GpuPeerVerdict::Outcome;

/// "13.0" for 13000.
std::string cuda_version(int version) {
  return cat(version / 1000, ".", version % 1000 / 10);
}

int number_of(std::string_view text) {
  int number = 0;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

/// As numbers, so that 580.105.08 is above 580.65.06.
std::vector<int> numbers_of(std::string_view version) {
  std::vector<int> numbers;
  for (const std::string_view part : parts_of(version, '.')) numbers.push_back(number_of(part));
  return numbers;
}

/// If the driver's library answers, its answer counts, because a compatibility package runs a newer
/// CUDA over an older kernel module.
bool too_old(const GpuFacts& facts) {
  if (facts.cuda_driver > 0) return facts.cuda_driver / 1000 < facts.cuda_runtime / 1000;
  const std::string_view oldest = oldest_driver(facts.cuda_runtime);
  return !facts.driver_version.empty() && !oldest.empty() &&
         numbers_of(facts.driver_version) < numbers_of(oldest);
}

Status driver_refusal(const GpuFacts& facts) {
  const std::string_view oldest = oldest_driver(facts.cuda_runtime);
  const std::string advice = oldest.empty() ? std::string("install a driver that knows this CUDA")
                                            : cat("install driver ", oldest, " or newer");
  const std::string words = facts.error.empty() ? "" : cat(": ", facts.error);
  const std::string needs =
      cat("the CUDA module is built with CUDA ", cuda_version(facts.cuda_runtime));
  const bool insufficient = facts.error.find("InsufficientDriver") != std::string::npos;
  if (too_old(facts)) {
    const std::string knows = facts.cuda_driver > 0 ? cat(", which knows CUDA up to ",
                                                          cuda_version(facts.cuda_driver), ",")
                                                    : "";
    return Status::error(Code::kFailedPrecondition,
                         cat("the NVIDIA driver ", facts.driver_version, knows, " is too old",
                             words, "; ", needs, ": ", advice, " on the machine itself"));
  }
  if (insufficient && facts.driver_version.empty()) {
    return Status::error(Code::kFailedPrecondition,
                         cat("no NVIDIA driver is here; ", needs, ": ", advice,
                             " on the host, and give a container the GPUs"));
  }
  if (insufficient) {
    return Status::error(
        Code::kFailedPrecondition,
        cat("the kernel has NVIDIA driver ", facts.driver_version, ", its libcuda.so.1 is not here",
            words,
            "; give the container the GPUs with NVIDIA_DRIVER_CAPABILITIES=compute,utility"));
  }
  return Status::error(
      Code::kFailedPrecondition,
      cat("no usable CUDA device", words,
          "; nvidia-smi lists what the driver has, and CUDA_VISIBLE_DEVICES may hide some"));
}

GpuName name_of(const GpuFacts& facts, int number) {
  const auto at = static_cast<size_t>(number);
  if (at >= facts.devices.size()) return {number};
  return {number, facts.devices[at].uuid, facts.devices[at].name};
}

/// "GPU 0 (GPU-8f0c..., NVIDIA H100 80GB HBM3) of compute capability 9.0".
std::string text_with_capability(const GpuFacts& facts, size_t at) {
  return cat(to_text(name_of(facts, static_cast<int>(at))), " of compute capability ",
             facts.devices[at].compute_capability);
}

/// Checks that there are enough devices, and that each one of the group runs the module's code.
Status check_group(const GpuFacts& facts) {
  const int wanted = group_devices(facts), there = static_cast<int>(facts.devices.size());
  if (wanted > there) {
    const int per_gpu = (facts.ranks + there - 1) / there;
    return Status::error(
        Code::kFailedPrecondition,
        cat(counted(facts.ranks, "rank"), " with --ranks-per-gpu ", facts.ranks_per_gpu,
            facts.ranks == 1 ? " needs " : " need ", counted(wanted, "GPU"), ", ", there,
            there == 1 ? " is" : " are", " here; lower -tp to ", there * facts.ranks_per_gpu,
            ", or for a test only --ranks-per-gpu ", per_gpu));
  }
  for (int i = 0; i < wanted; ++i) {
    const GpuDevice& device = facts.devices[static_cast<size_t>(i)];
    if (device.why_unusable.empty()) continue;
    return Status::error(
        Code::kFailedPrecondition,
        cat(to_text(name_of(facts, i)), " at ", device.pci_bus_id, ": ", device.why_unusable,
            "; CUDA_VISIBLE_DEVICES can leave it out, and --device cpu does without GPUs"));
  }
  return {};
}

/// The class of tensor cores that is published for a compute capability: those of 8.0 to 8.9 sum in
/// one way, those of 9.0 to 12.0 in another (docs/decisions/gpu.md). Later ones are taken for these
/// until their results decide. kUnknown if the capability is.
TensorCoreClass published_class(const GpuDevice& device) {
  const int major = number_of(device.compute_capability);
  if (major == 0) return TensorCoreClass::kUnknown;
  return major < 9 ? TensorCoreClass::kSm80 : TensorCoreClass::kSm90;
}

std::span<const GpuDevice> devices_of_group(const GpuFacts& facts) {
  const auto wanted = static_cast<size_t>(std::max(group_devices(facts), 0));
  return std::span(facts.devices).first(std::min(wanted, facts.devices.size()));
}

/// What a device finds in the module. kVirtual: only code that its driver has to compile.
enum class GpuCode { kNone, kVirtual, kReal };

GpuCode code_for(std::string_view architectures, std::string_view compute_capability) {
  const std::vector<int> capability = numbers_of(compute_capability);
  // Not known: CUDA decides when the first kernel starts.
  if (capability.size() != 2) return GpuCode::kReal;
  const int major = capability[0], device = 10 * major + capability[1];
  GpuCode best = GpuCode::kNone;
  for (const std::string_view word : parts_of(architectures, ' ')) {
    const size_t digits = std::min(word.find_first_not_of("0123456789"), word.size());
    const int code = number_of(word.substr(0, digits));
    const bool exact = digits < word.size() &&
                       std::isalpha(static_cast<unsigned char>(word[digits]));  // "90a-real"
    if (digits == 0 || code > device || (exact && code != device)) continue;
    if (!word.ends_with("-virtual") && code / 10 == major) return GpuCode::kReal;
    if (!word.ends_with("-real")) best = GpuCode::kVirtual;
  }
  return best;
}

Status verdict_refusal(const GpuFacts& facts, const GpuPeerVerdict& verdict, const char* advice) {
  Code code = Code::kFailedPrecondition;
  if (verdict.outcome == Outcome::kHung) code = Code::kDeadlineExceeded;
  if (verdict.outcome == Outcome::kCorrupt) code = Code::kDataLoss;
  return Status::error(
      code, cat("a pattern pushed and pulled between ", to_text(name_of(facts, verdict.from)),
                " and ", to_text(name_of(facts, verdict.to)), ": ", to_text(verdict), advice));
}

}  // namespace

int group_devices(const GpuFacts& facts) {
  if (facts.ranks <= 0) return static_cast<int>(facts.devices.size());
  return (facts.ranks + facts.ranks_per_gpu - 1) / facts.ranks_per_gpu;
}

std::vector<GpuName> group_gpus(const GpuFacts& facts) {
  std::vector<GpuName> gpus;
  if (group_devices(facts) > static_cast<int>(facts.devices.size())) return gpus;
  for (int i = 0; i < group_devices(facts); ++i) gpus.push_back(name_of(facts, i));
  return gpus;
}

std::string_view oldest_driver(int cuda_runtime) {
  switch (cuda_runtime / 1000) {  // "CUDA Toolkit and Minimum Required Driver Version" of the CUDA
                                  // release notes, Linux
    case 11:
      return "450.80.02";
    case 12:
      return "525.60.13";
    case 13:
      return "580.65.06";
    default:
      return "";
  }
}

Status check_devices(const GpuFacts& facts) {
  if (!facts.asked)
    return Status::error(Code::kFailedPrecondition,
                         "nobody has looked for CUDA devices (--device cuda)");
  if (facts.error_at == GpuErrorAt::kFind) {
    return Status::error(
        Code::kNotFound,
        cat(facts.error,
            "; put libshoal_cuda.so beside the program, or name it with --cuda-module"));
  }
  if (facts.error_at == GpuErrorAt::kLoad) {
    return Status::error(Code::kFailedPrecondition,
                         cat(facts.error, "; --device cpu needs no module"));
  }
  if (facts.error_at == GpuErrorAt::kProbe) {
    return Status::error(
        Code::kDeadlineExceeded,
        cat(facts.error, "; dmesg may say more (Xid), and --device cpu does without"));
  }
  if (!facts.error.empty() || facts.devices.empty() || too_old(facts)) return driver_refusal(facts);
  return check_group(facts);
}

Status check_same_arithmetic(const GpuFacts& facts) {
  const std::span<const GpuDevice> devices = devices_of_group(facts);
  for (size_t i = 1; i < devices.size(); ++i) {
    if (published_class(devices[i]) == published_class(devices[0])) continue;
    return Status::error(
        Code::kFailedPrecondition,
        cat("the tensor cores of ", text_with_capability(facts, 0), " and ",
            text_with_capability(facts, i),
            " are published to sum differently, so that results would depend on the rank; choose "
            "GPUs of one kind with CUDA_VISIBLE_DEVICES, or accept it with --reproducible=off"));
  }
  return {};
}

Status check_nccl(const GpuFacts& facts) {
  SHOAL_RETURN_IF_ERROR(check_devices(facts));
  if (facts.nccl_version == 0) {
    return Status::error(Code::kFailedPrecondition,
                         facts.nccl_error.empty() ? "NCCL was not found" : facts.nccl_error);
  }
  if (facts.nccl_version < kNcclFloor) {
    return Status::error(Code::kFailedPrecondition,
                         cat("NCCL ", nccl_version_text(facts.nccl_version), " (", facts.nccl_path,
                             ") is too old: ", nccl_version_text(kNcclFloor),
                             " or newer is wanted; name one with --nccl-library"));
  }
  return {};
}

Status check_peers(const GpuFacts& facts) {
  SHOAL_RETURN_IF_ERROR(check_devices(facts));
  // Report a pair that failed before the pairs that were not tried because of it.
  for (const GpuPeerVerdict& verdict : facts.verdicts) {
    if (verdict.outcome == Outcome::kOk || verdict.outcome == Outcome::kNotTried) continue;
    return verdict_refusal(
        facts, verdict,
        "; peer access is not used: look at IOMMU and ACS, which must be off for it");
  }
  const int devices = group_devices(facts);
  for (int from = 0; from < devices; ++from) {
    for (int to = 0; to < devices; ++to) {
      if (from == to) continue;
      const auto row = static_cast<size_t>(from), column = static_cast<size_t>(to);
      if (row >= facts.peers.size() || column >= facts.peers[row].size() ||
          !facts.peers[row][column]) {
        return Status::error(
            Code::kFailedPrecondition,
            cat("the driver does not let ", to_text(name_of(facts, from)), " reach the memory of ",
                to_text(name_of(facts, to)), " (nvidia-smi topo -p2p r shows all pairs)"));
      }
      const auto tried =
          std::find_if(facts.verdicts.begin(), facts.verdicts.end(), [&](const GpuPeerVerdict& v) {
            return v.from == from && v.to == to && v.outcome == Outcome::kOk;
          });
      if (tried != facts.verdicts.end()) continue;
      return verdict_refusal(facts, {from, to, Outcome::kNotTried},
                             "; peer access is used only where it was proven");
    }
  }
  return {};
}

std::string why_no_code(std::string_view architectures, std::string_view compute_capability) {
  if (code_for(architectures, compute_capability) != GpuCode::kNone) return "";
  return cat("compute capability ", compute_capability, " has no code in the module, compiled for ",
             architectures);
}

std::string shown_architectures(std::string_view architectures) {
  std::string real;
  int least_virtual = 0;
  const auto capability = [](int code) { return cat(code / 10, '.', code % 10); };
  for (const std::string_view word : parts_of(architectures, ' ')) {
    const size_t digits = std::min(word.find_first_not_of("0123456789"), word.size());
    const std::string_view kind = word.substr(digits);
    const int code = number_of(word.substr(0, digits));
    if (code == 0 || (kind != "-real" && kind != "-virtual")) return std::string(architectures);
    if (kind == "-real")
      real += cat(real.empty() ? "" : ", ", capability(code));
    else if (least_virtual == 0 || code < least_virtual)
      least_virtual = code;
  }
  if (least_virtual == 0) return cat(real.empty() ? "" : "compute capability ", real);
  if (real.empty()) return cat("compute capability ", capability(least_virtual), " and later");
  return cat("compute capability ", real, ", and others from ", capability(least_virtual), " on");
}

std::string devices_to_compile_for(const GpuFacts& facts) {
  const std::span<const GpuDevice> devices = devices_of_group(facts);
  std::string text;
  for (size_t i = 0; i < devices.size(); ++i) {
    const std::string& capability = devices[i].compute_capability;
    if (code_for(facts.module_architectures, capability) != GpuCode::kVirtual) continue;
    text += cat(text.empty() ? "" : ", ", text_with_capability(facts, i));
  }
  return text;
}

}  // namespace shoal
