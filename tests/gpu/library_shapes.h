#pragma once
#include <vector>

#include "models/device_weights.h"

namespace shoal::gpu {

struct ModelShape {
  const char* name;
  int hidden, heads, kv_heads, intermediate, vocabulary, layers;
};
/// As in bench/make_random_model.py.
constexpr ModelShape kModels[] = {{"tinyllama-1.1b", 2048, 32, 4, 5632, 32000, 22},
                                  {"llama3-8b", 4096, 32, 8, 14336, 128256, 32}};
/// For the emulated device. Each leaf is still a whole number of 64 columns, without which the
/// library gets no product.
constexpr ModelShape kTinyModel{"tiny", 128, 2, 1, 128, 72, 2};

/// A product of a whole model on one device.
struct ProductShape {
  const char* name;
  int outputs, columns;
  int leaves, units;  ///< of its columns
  bool of_layer;      ///< or once in a step, for only some of the rows
};
std::vector<ProductShape> products_of(const ModelShape& model);

/// The matrix without its weights.
DeviceMatrix matrix_of(const ProductShape& shape);

}  // namespace shoal::gpu
