#include "server/facades/infer_tensors.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "models/tokenizer/unicode.h"
#include "runtime/base/counted.h"

namespace shoal {

namespace {

WireRefusal refuse_tensor(std::string_view name, std::string_view what) {
  return refuse_field(cat("inputs[", to_valid_utf8(name), "]"), what);
}

uint64_t little_endian(const std::string& bytes, size_t at, int size) {
  uint64_t value = 0;
  for (int i = 0; i < size; ++i)
    value |= uint64_t{static_cast<unsigned char>(bytes[at + static_cast<size_t>(i)])} << (8 * i);
  return value;
}

void put_u32(uint32_t value, std::string* out) {
  for (int i = 0; i < 4; ++i) out->push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}

std::string* add_output(std::string_view name, const char* datatype, int64_t elements,
                        inference::ModelInferResponse* response) {
  inference::ModelInferResponse::InferOutputTensor* output = response->add_outputs();
  output->set_name(std::string(name));
  output->set_datatype(datatype);
  output->add_shape(elements);
  return response->add_raw_output_contents();
}

}  // namespace

int InferTensors::find(std::string_view name) const {
  for (int i = 0; i < request_.inputs_size(); ++i)
    if (request_.inputs(i).name() == name) return i;
  return -1;
}

const std::string* InferTensors::raw(int index) const {
  return request_.raw_input_contents_size() > 0 ? &request_.raw_input_contents(index) : nullptr;
}

WireRefusal InferTensors::check_names(const std::vector<std::string_view>& known) const {
  if (request_.raw_input_contents_size() > 0 &&
      request_.raw_input_contents_size() != request_.inputs_size())
    return refuse_field(
        "raw_input_contents",
        cat(" has ", counted(request_.raw_input_contents_size(), "entry", "entries"), " for ",
            counted(request_.inputs_size(), "input")));
  for (int i = 0; i < request_.inputs_size(); ++i) {
    const std::string& name = request_.inputs(i).name();
    if (std::find(known.begin(), known.end(), name) == known.end())
      return refuse_tensor(name, " is not an input of this model: ModelMetadata lists them");
    if (find(name) != i) return refuse_tensor(name, " is given twice");
  }
  return {};
}

Result<int64_t, WireRefusal> InferTensors::elements(const Tensor& tensor) {
  constexpr int64_t kMost = int64_t{1} << 31;
  int64_t count = 1;
  for (const int64_t size : tensor.shape()) {
    if (size < 0 || size > kMost || count * size > kMost)
      return refuse_tensor(tensor.name(), cat(" has a dimension of ", size));
    count *= size;
  }
  return count;
}

WireRefusal InferTensors::check_one(int index, std::string_view datatype) const {
  const Tensor& tensor = request_.inputs(index);
  if (tensor.datatype() != datatype)
    return refuse_tensor(tensor.name(), cat(" must be ", datatype, ", not ", tensor.datatype()));
  SHOAL_ASSIGN_OR_RETURN(const int64_t count, elements(tensor));
  if (count == 1) return {};
  return refuse_tensor(tensor.name(), cat(" must have one element, not ", count,
                                          ": send one request for each prompt"));
}

Result<std::optional<std::string>, WireRefusal> InferTensors::text(std::string_view name) const {
  const int index = find(name);
  if (index < 0) return std::optional<std::string>();
  SHOAL_RETURN_IF_ERROR(check_one(index, "BYTES"));
  constexpr size_t kLength = 4;
  std::string value;
  if (const std::string* bytes = raw(index)) {
    if (bytes->size() < kLength || little_endian(*bytes, 0, kLength) != bytes->size() - kLength)
      return refuse_tensor(name,
                           ": its raw contents must be a length in four bytes and as many "
                           "bytes");
    value = bytes->substr(kLength);
  } else {
    const inference::InferTensorContents& contents = request_.inputs(index).contents();
    if (contents.bytes_contents_size() != 1)
      return refuse_tensor(name, " must have one entry in bytes_contents");
    value = contents.bytes_contents(0);
  }
  if (to_valid_utf8(value) != value) return refuse_tensor(name, " is not valid UTF-8");
  return std::optional<std::string>(std::move(value));
}

Result<std::optional<bool>, WireRefusal> InferTensors::flag(std::string_view name) const {
  const int index = find(name);
  if (index < 0) return std::optional<bool>();
  SHOAL_RETURN_IF_ERROR(check_one(index, "BOOL"));
  if (const std::string* bytes = raw(index)) {
    if (bytes->size() != 1) return refuse_tensor(name, ": its raw contents must be one byte");
    return std::optional<bool>(bytes->front() != 0);
  }
  const inference::InferTensorContents& contents = request_.inputs(index).contents();
  if (contents.bool_contents_size() != 1)
    return refuse_tensor(name, " must have one entry in bool_contents");
  return std::optional<bool>(contents.bool_contents(0));
}

Result<std::optional<std::vector<int64_t>>, WireRefusal> InferTensors::numbers(
    std::string_view name) const {
  const int index = find(name);
  if (index < 0) return std::optional<std::vector<int64_t>>();
  const Tensor& tensor = request_.inputs(index);
  const std::string& type = tensor.datatype();
  if (type != "INT32" && type != "UINT32" && type != "INT64")
    return refuse_tensor(name, cat(" must be INT32, UINT32 or INT64, not ", type));
  SHOAL_ASSIGN_OR_RETURN(const int64_t count, elements(tensor));
  std::vector<int64_t> values;
  if (const std::string* bytes = raw(index)) {
    const int size = type == "INT64" ? 8 : 4;
    for (size_t at = 0; at + static_cast<size_t>(size) <= bytes->size();
         at += static_cast<size_t>(size)) {
      const uint64_t value = little_endian(*bytes, at, size);
      values.push_back(type == "INT32" ? static_cast<int32_t>(value) : static_cast<int64_t>(value));
    }
    if (bytes->size() % static_cast<size_t>(size) != 0) values.clear();
  } else {
    const inference::InferTensorContents& contents = tensor.contents();
    if (type == "INT32")
      values.assign(contents.int_contents().begin(), contents.int_contents().end());
    else if (type == "UINT32")
      values.assign(contents.uint_contents().begin(), contents.uint_contents().end());
    else
      values.assign(contents.int64_contents().begin(), contents.int64_contents().end());
  }
  if (static_cast<int64_t>(values.size()) != count)
    return refuse_tensor(name, cat(" must have ", counted(count, "value"), ", as its shape says"));
  return std::optional(std::move(values));
}

void add_bytes_output(std::string_view name, std::string_view value,
                      inference::ModelInferResponse* response) {
  std::string* raw = add_output(name, "BYTES", 1, response);
  put_u32(static_cast<uint32_t>(value.size()), raw);
  raw->append(value);
}

void add_uint32_output(std::string_view name, uint32_t value,
                       inference::ModelInferResponse* response) {
  put_u32(value, add_output(name, "UINT32", 1, response));
}

void add_fp32_output(std::string_view name, float value, inference::ModelInferResponse* response) {
  put_u32(std::bit_cast<uint32_t>(value), add_output(name, "FP32", 1, response));
}

void add_int32_output(std::string_view name, const std::vector<int32_t>& values,
                      inference::ModelInferResponse* response) {
  std::string* raw = add_output(name, "INT32", static_cast<int64_t>(values.size()), response);
  for (const int32_t value : values) put_u32(static_cast<uint32_t>(value), raw);
}

}  // namespace shoal
