// Feeds any bytes to the safetensors header parser. What it accepts must lie inside the file and
// multiply out.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "models/safetensors.h"

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
    require(view.elements() >= 0);  // under UBSan: no overflow, in any order
  }
  return 0;
}
