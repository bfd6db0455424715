#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/grpc/wire_message.h"

#include "kserve/inference.pb.h"

namespace shoal {

/// The tensors of a ModelInferRequest. A tensor's values are in its contents or, if the request has
/// raw contents, there: little-endian, and a string as its length in four bytes followed by its
/// bytes. Every method refuses, with the tensor's name as the field, a type or a shape that does
/// not fit, and values that do not fill the shape.
class InferTensors {
 public:
  explicit InferTensors(const inference::ModelInferRequest& request) : request_(request) {}

  /// Refuses a name that is not among these, a name that is given twice, and raw contents whose
  /// number differs from that of the tensors.
  WireRefusal check_names(const std::vector<std::string_view>& known) const;

  /// BYTES of one element, which must be UTF-8; nullopt if there is no such tensor.
  Result<std::optional<std::string>, WireRefusal> text(std::string_view name) const;
  /// BOOL of one element.
  Result<std::optional<bool>, WireRefusal> flag(std::string_view name) const;
  /// INT32, UINT32 or INT64 of any number of elements.
  Result<std::optional<std::vector<int64_t>>, WireRefusal> numbers(std::string_view name) const;

 private:
  using Tensor = inference::ModelInferRequest::InferInputTensor;
  /// The tensor's place in the request; -1 if it is not there.
  int find(std::string_view name) const;
  /// Its raw contents; nullptr if the request has none.
  const std::string* raw(int index) const;
  static Result<int64_t, WireRefusal> elements(const Tensor& tensor);
  WireRefusal check_one(int index, std::string_view datatype) const;

  const inference::ModelInferRequest& request_;
};

/// Adds a tensor of one dimension to the response, with raw contents.
void add_bytes_output(std::string_view name, std::string_view value,
                      inference::ModelInferResponse* response);
void add_uint32_output(std::string_view name, uint32_t value,
                       inference::ModelInferResponse* response);
void add_fp32_output(std::string_view name, float value, inference::ModelInferResponse* response);
void add_int32_output(std::string_view name, const std::vector<int32_t>& values,
                      inference::ModelInferResponse* response);

}  // namespace shoal
