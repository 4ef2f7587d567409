#include "onednn/onednn_program.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>

#include <cmath>
#include <limits>
#include <map>

namespace collage::onednn {
namespace {

namespace ffi = tvm::ffi;

dnnl_alg_kind_t Algorithm(const std::string& name) {
  static const std::map<std::string, dnnl_alg_kind_t> kAlgorithms = {
      {"relu", dnnl_eltwise_relu},
      {"tanh", dnnl_eltwise_tanh},
      {"elu", dnnl_eltwise_elu},
      {"square", dnnl_eltwise_square},
      {"abs", dnnl_eltwise_abs},
      {"sqrt", dnnl_eltwise_sqrt},
      {"linear", dnnl_eltwise_linear},
      {"soft_relu", dnnl_eltwise_soft_relu},
      {"hardsigmoid", dnnl_eltwise_hardsigmoid},
      {"logistic", dnnl_eltwise_logistic},
      {"exp", dnnl_eltwise_exp},
      {"gelu_tanh", dnnl_eltwise_gelu_tanh},
      {"swish", dnnl_eltwise_swish},
      {"log", dnnl_eltwise_log},
      {"clip", dnnl_eltwise_clip},
      {"pow", dnnl_eltwise_pow},
      {"gelu_erf", dnnl_eltwise_gelu_erf},
      {"round", dnnl_eltwise_round},
      {"mish", dnnl_eltwise_mish},
      {"hardswish", dnnl_eltwise_hardswish},
      {"add", dnnl_binary_add},
      {"mul", dnnl_binary_mul},
      {"max", dnnl_binary_max},
      {"min", dnnl_binary_min},
      {"div", dnnl_binary_div},
      {"sub", dnnl_binary_sub},
      {"pooling_max", dnnl_pooling_max},
      {"pooling_avg_include_padding", dnnl_pooling_avg_include_padding},
      {"pooling_avg_exclude_padding", dnnl_pooling_avg_exclude_padding},
      {"reduction_max", dnnl_reduction_max},
      {"reduction_min", dnnl_reduction_min},
      {"reduction_sum", dnnl_reduction_sum},
      {"reduction_mul", dnnl_reduction_mul},
      {"reduction_mean", dnnl_reduction_mean},
      {"resampling_nearest", dnnl_resampling_nearest},
      {"resampling_linear", dnnl_resampling_linear},
      {"softmax_accurate", dnnl_softmax_accurate},
      {"softmax_log", dnnl_softmax_log},
  };
  auto found = kAlgorithms.find(name);
  if (found == kAlgorithms.end()) TVM_FFI_THROW(ValueError) << "onednn: no algorithm " << name;
  return found->second;
}

float Number(const json::Object& object, const char* key) {
  return static_cast<float>(Get<double>(object, key));
}

int Checked(std::int64_t value, std::size_t count) {
  if (value < 0 || static_cast<std::size_t>(value) >= count) {
    TVM_FFI_THROW(ValueError) << "onednn: there is no value " << value;
  }
  return static_cast<int>(value);
}

std::vector<int> Numbers(const json::Object& object, const char* key, std::size_t count) {
  std::vector<int> found;
  for (std::int64_t one : Integers(object, key)) found.push_back(Checked(one, count));
  return found;
}

// JSON has no infinity: a bound at float's end stands for none.
float Bound(float bound) {
  constexpr float kEnd = std::numeric_limits<float>::max();
  if (std::abs(bound) < kEnd) return bound;
  return std::copysign(std::numeric_limits<float>::infinity(), bound);
}

PostOp ParseEltwise(dnnl_alg_kind_t algorithm, const json::Object& entry) {
  PostOp post_op;
  post_op.algorithm = algorithm;
  post_op.alpha = Number(entry, "alpha");
  post_op.beta = Number(entry, "beta");
  if (algorithm == dnnl_eltwise_clip) {
    post_op.alpha = Bound(post_op.alpha);
    post_op.beta = Bound(post_op.beta);
  }
  return post_op;
}

PostOp ParsePostOp(const json::Object& entry, std::size_t count) {
  PostOp post_op;
  if (entry.count(ffi::String("binary"))) {
    post_op.algorithm = Algorithm(Get<ffi::String>(entry, "binary"));
    post_op.value = Checked(Get<std::int64_t>(entry, "value"), count);
    return post_op;
  }
  return ParseEltwise(Algorithm(Get<ffi::String>(entry, "eltwise")), entry);
}

Step ParseStep(const json::Object& entry, std::size_t number, std::size_t count) {
  Step step;
  step.op = Get<ffi::String>(entry, "op");
  step.position = static_cast<int>(number);
  step.name = "step " + std::to_string(number) + " (" + step.op + ")";
  step.inputs = Numbers(entry, "in", count);
  step.output = Checked(Get<std::int64_t>(entry, "out"), count);
  for (const ffi::Any& post_op : Get<json::Array>(entry, "post")) {
    step.post_ops.push_back(ParsePostOp(As<json::Object>(post_op, "post"), count));
  }
  step.attributes = entry;
  if (step.op == "eltwise") step.main = ParseEltwise(step.algorithm(), entry);
  if (step.op == "binary") step.main.algorithm = step.algorithm();
  return step;
}

}  // namespace

dnnl_alg_kind_t Step::algorithm() const {
  return Algorithm(Get<ffi::String>(attributes, "algorithm"));
}

Dims Step::dims(const char* key) const { return Integers(attributes, key); }

dnnl_dim_t Step::integer(const char* key) const { return Get<std::int64_t>(attributes, key); }

float Step::number(const char* key) const { return Number(attributes, key); }

Type ParseType(const std::string& name) {
  if (name == "f32") return dnnl_f32;
  if (name == "bf16") return dnnl_bf16;
  TVM_FFI_THROW(ValueError) << "onednn: products cannot multiply " << name;
  TVM_FFI_UNREACHABLE();
}

Layout ParseLayout(const std::string& name) {
  if (name == "any") return Layout::kAny;
  if (name == "blocked") return Layout::kBlocked;
  if (name == "plain") return Layout::kPlain;
  TVM_FFI_THROW(ValueError) << "onednn: no layout " << name;
  TVM_FFI_UNREACHABLE();
}

Program Program::Parse(const Blob& blob) {
  Program program;
  const json::Object& header = blob.header();
  for (const ffi::Any& one : Get<json::Array>(header, "values")) {
    Dims dims;
    for (const ffi::Any& extent : As<json::Array>(one, "values")) {
      dims.push_back(As<std::int64_t>(extent, "values"));
    }
    program.values.push_back(std::move(dims));
  }
  std::size_t count = program.values.size();
  program.inputs = Numbers(header, "inputs", count);
  program.outputs = Numbers(header, "outputs", count);
  program.weights = Numbers(header, "weights", count);
  if (program.weights.size() != blob.tensors().size()) {
    TVM_FFI_THROW(ValueError) << "onednn: " << program.weights.size() << " weights, but "
                              << blob.tensors().size() << " tensors in the blob";
  }
  for (const TensorView& tensor : blob.tensors()) {
    if (!tensor.is_float32()) TVM_FFI_THROW(ValueError) << "onednn: a weight is not float32";
  }
  json::Array steps = Get<json::Array>(header, "steps");
  for (std::size_t i = 0; i < steps.size(); ++i) {
    program.steps.push_back(
        ParseStep(As<json::Object>(steps[static_cast<std::int64_t>(i)], "steps"), i, count));
  }
  CheckProgram(program);
  return program;
}

}  // namespace collage::onednn
