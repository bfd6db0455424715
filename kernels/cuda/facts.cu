#include <cstdarg>
#include <cstdio>
#include <cuda_runtime.h>

#include "kernels/cuda/entries.h"

namespace shoal::cuda {
namespace {

/// Writes text into a buffer of fixed size. Text that does not fit is cut off.
class Text {
 public:
  Text(char* to, size_t bytes) : to_(to), left_(bytes) {
    if (bytes > 0) *to = '\0';
  }
  __attribute__((format(printf, 2, 3))) void add(const char* format, ...) {
    va_list values;
    va_start(values, format);
    const int length = std::vsnprintf(to_, left_, format, values);
    va_end(values);
    const size_t taken = length < 0                            ? 0
                         : static_cast<size_t>(length) < left_ ? static_cast<size_t>(length)
                                                               : left_;
    to_ += taken;
    left_ -= taken;
  }
  /// Adds the text inside a JSON string. Names are plain text; other characters are left out.
  void add_plain(const char* text) {
    for (; *text != '\0'; ++text) {
      if (*text >= ' ' && *text <= '~' && *text != '"' && *text != '\\') add("%c", *text);
    }
  }

 private:
  char* to_;
  size_t left_;
};

/// Writes it like nvidia-smi: GPU-8-4-4-4-12 hexadecimal digits.
void add_uuid(Text& text, const cudaUUID_t& uuid) {
  text.add("GPU");
  for (int i = 0; i < 16; ++i) {
    const bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    text.add("%s%02x", dash ? "-" : "",
             static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
  }
}

cudaError_t add_device(Text& text, int device) {
  cudaDeviceProp properties;
  if (const cudaError_t error = cudaGetDeviceProperties(&properties, device); error != cudaSuccess)
    return error;
  char bus[32] = "";
  if (const cudaError_t error = cudaDeviceGetPCIBusId(bus, sizeof bus, device);
      error != cudaSuccess)
    return error;
  text.add("%s{\"name\": \"", device == 0 ? "" : ", ");
  text.add_plain(properties.name);
  text.add("\", \"pci_bus_id\": \"%s\", \"uuid\": \"", bus);
  add_uuid(text, properties.uuid);
  text.add("\", \"compute_capability\": \"%d.%d\", \"total_bytes\": %zu}", properties.major,
           properties.minor, properties.totalGlobalMem);
  return cudaSuccess;
}

/// Adds row `from` of the matrix. A device does not count as its own peer.
cudaError_t add_peers(Text& text, int from, int devices) {
  text.add("%s[", from == 0 ? "" : ", ");
  for (int to = 0; to < devices; ++to) {
    int can = 0;
    if (from != to) {
      if (const cudaError_t error = cudaDeviceCanAccessPeer(&can, from, to); error != cudaSuccess)
        return error;
    }
    text.add("%s%s", to == 0 ? "" : ", ", can != 0 ? "true" : "false");
  }
  text.add("]");
  return cudaSuccess;
}

}  // namespace

int32_t facts(char* text, size_t text_bytes) {
  int devices = 0, driver = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess) return error;
  if (const cudaError_t error = cudaDriverGetVersion(&driver); error != cudaSuccess) return error;
  Text out(text, text_bytes);
  out.add("{\"driver_version\": %d, \"runtime_version\": %d, \"devices\": [", driver,
          CUDART_VERSION);
  for (int device = 0; device < devices; ++device) {
    if (const cudaError_t error = add_device(out, device); error != cudaSuccess) return error;
  }
  out.add("], \"can_access_peer\": [");
  for (int from = 0; from < devices; ++from) {
    if (const cudaError_t error = add_peers(out, from, devices); error != cudaSuccess) return error;
  }
  out.add("]}");
  return cudaSuccess;
}

}  // namespace shoal::cuda
