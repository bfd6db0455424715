// Feeds arbitrary bytes to the parser of safetensors headers. Every tensor that it accepts must be
// inside the file, and its size must be the product of its dimensions.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "models/safetensors.h"
#include "models/safetensors_header.h"

namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const auto tensors = shoal::parse_safetensors_header(file, size, "model.safetensors");
  if (!tensors.ok()) return 0;
  for (const shoal::TensorEntry& tensor : *tensors) {
    require(tensor.begin <= tensor.end && tensor.end <= size);
    shoal::TensorView view;
    view.shape = tensor.shape;
    require(view.elements() >= 0);  // UBSan checks that the product does not overflow, in any order
  }
  return 0;
}
