#include "cudnn/cudnn_graph.h"

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/dtype.h>

#include <map>
#include <utility>

#include "core/sizes.h"

namespace collage {
namespace cudnn {
namespace {

namespace ffi = tvm::ffi;

constexpr std::int64_t kAlignment = 16;
constexpr std::int64_t kAbsent = -1;
constexpr std::int64_t kMostRank = 1000;

template <typename T>
T Named(const std::map<std::string, T>& table, const std::string& name, const char* what) {
  auto found = table.find(name);
  if (found == table.end()) TVM_FFI_THROW(ValueError) << "cudnn kernel: no " << what << " " << name;
  return found->second;
}

std::string Text(const json::Object& object, const char* key) {
  return Get<ffi::String>(object, key);
}

bool Has(const json::Object& object, const char* key) { return object.count(ffi::String(key)) > 0; }

std::int64_t Int(const json::Object& object, const char* key, std::int64_t fallback) {
  return Has(object, key) ? Get<std::int64_t>(object, key) : fallback;
}

std::size_t Checked(std::int64_t number, const std::vector<Value>& all) {
  if (number < 0 || static_cast<std::size_t>(number) >= all.size()) {
    TVM_FFI_THROW(ValueError) << "cudnn kernel: there is no value " << number;
  }
  return static_cast<std::size_t>(number);
}

Value ReadValue(const json::Object& entry) {
  static const std::map<std::string, Role> kRoles = {
      {"input", Role::kInput},   {"constant", Role::kConstant}, {"output", Role::kOutput},
      {"buffer", Role::kBuffer}, {"virtual", Role::kVirtual},   {"number", Role::kNumber}};
  Value value{Named(kRoles, Text(entry, "role"), "role"),
              Text(entry, "dtype"),
              Integers(entry, "shape"),
              Integers(entry, "strides"),
              static_cast<std::size_t>(InRange(Int(entry, "place", 0), 0, kMostExtent,
                                               "cudnn kernel: a value's 'place'")),
              0,
              0,
              {}};
  if (Has(entry, "number")) value.number = static_cast<float>(Get<double>(entry, "number"));
  if (value.shape.empty() || value.shape.size() != value.strides.size()) {
    TVM_FFI_THROW(ValueError) << "cudnn kernel: a value with " << value.shape.size()
                              << " extents and " << value.strides.size() << " strides";
  }
  std::int64_t last = 0;
  for (std::size_t i = 0; i < value.shape.size(); ++i) {
    InRange(value.shape[i], 1, kMostExtent, "cudnn kernel: an extent of a value");
    InRange(value.strides[i], 0, kMostBytes, "cudnn kernel: a stride of a value");
    last = Plus(last, Times(value.shape[i] - 1, value.strides[i]));
  }
  value.type = ParseType(value.dtype);
  value.nbytes =
      BytesOf(Times(Plus(last, 1), (value.type.bits + 7) / 8), "cudnn kernel: the size of a value");
  return value;
}

void CheckCopy(const Value& from, const Value& to) {
  for (const Value* value : {&from, &to}) {
    if (value->role == Role::kVirtual || value->role == Role::kNumber) {
      TVM_FFI_THROW(ValueError) << "cudnn kernel: a copy of what is not in memory";
    }
    for (const std::vector<std::int64_t>* side : {&value->shape, &value->strides}) {
      for (std::int64_t number : *side) {
        InRange(number, 0, kMostExtent, "cudnn kernel: an extent or stride of a copy");
      }
    }
  }
  if (from.shape != to.shape || to.role == Role::kInput || to.role == Role::kConstant) {
    TVM_FFI_THROW(ValueError) << "cudnn kernel: a copy to where it does not fit";
  }
}

// Translates the operations of one graph to descriptors.
class Translator {
 public:
  Translator(const std::vector<Value>& all, OperationGraph* graph) : all_(all), graph_(graph) {}

  void Add(const json::Object& operation) {
    using Method = void (Translator::*)(const json::Object&);
    static const std::map<std::string, Method> kMethods = {
        {"convolution", &Translator::Convolution},
        {"matmul", &Translator::Matmul},
        {"pointwise", &Translator::Pointwise},
        {"reduction", &Translator::Reduction},
        {"norm", &Translator::Norm}};
    (this->*Named(kMethods, Text(operation, "op"), "operation"))(operation);
  }

  std::vector<dnn::Descriptor> Operations() const {
    std::vector<dnn::Descriptor> operations;
    operations.reserve(operations_.size());
    for (const GraphDescriptor* operation : operations_) operations.push_back(operation->get());
    return operations;
  }

  std::vector<std::size_t> InMemory() const {
    std::vector<std::size_t> numbers;
    for (const auto& [number, tensor] : tensors_) {
      if (all_[number].role != Role::kVirtual) numbers.push_back(number);
    }
    return numbers;
  }

 private:
  GraphDescriptor& Make(dnn::Kind kind) { return graph_->parts.emplace_back(kind); }

  GraphDescriptor& Operation(dnn::Kind kind) {
    operations_.push_back(&Make(kind));
    return *operations_.back();
  }

  // The tensor of a value; its descriptor is created at the first use.
  const GraphDescriptor& Tensor(std::int64_t number) {
    const std::size_t place = Checked(number, all_);
    const GraphDescriptor*& tensor = tensors_[place];
    if (tensor != nullptr) return *tensor;
    const Value& value = all_[place];
    GraphDescriptor& descriptor = Make(dnn::kTensor);
    tensor = &descriptor;
    descriptor.Set(dnn::kTensorType, dnn::kDataTypeType,
                   vendor::TypeOf(value.dtype, kFloatTypes, kKind));
    descriptor.Set(dnn::kTensorDims, dnn::kInt64Type, value.shape);
    descriptor.Set(dnn::kTensorStrides, dnn::kInt64Type, value.strides);
    descriptor.Set(dnn::kTensorId, dnn::kInt64Type, number + 1);
    descriptor.Set(dnn::kTensorAlignment, dnn::kInt64Type, kAlignment);
    descriptor.Set(dnn::kTensorVirtual, dnn::kBoolType, value.role == Role::kVirtual);
    if (value.role == Role::kNumber) descriptor.Set(dnn::kTensorByValue, dnn::kBoolType, true);
    descriptor.Finalize();
    return descriptor;
  }

  void Convolution(const json::Object& entry) {
    GraphDescriptor& descriptor = Make(dnn::kConvolutionDescriptor);
    std::vector<std::int64_t> strides = Integers(entry, "strides");
    descriptor.Set(dnn::kConvolutionPrecision, dnn::kDataTypeType, dnn::kFloat);
    descriptor.Set(dnn::kConvolutionMode, dnn::kConvolutionModeType, dnn::kCrossCorrelation);
    descriptor.Set(dnn::kSpatialDims, dnn::kInt64Type, static_cast<std::int64_t>(strides.size()));
    descriptor.Set(dnn::kPrePads, dnn::kInt64Type, Integers(entry, "pads_before"));
    descriptor.Set(dnn::kPostPads, dnn::kInt64Type, Integers(entry, "pads_after"));
    descriptor.Set(dnn::kStrides, dnn::kInt64Type, strides);
    descriptor.Set(dnn::kDilations, dnn::kInt64Type, Integers(entry, "dilations"));
    descriptor.Finalize();
    GraphDescriptor& operation = Operation(dnn::kConvolution);
    operation.Set(dnn::kOperationConvolutionDescriptor, descriptor);
    operation.Set(dnn::kConvolutionAlpha, dnn::kFloatType, 1.0f);
    operation.Set(dnn::kConvolutionBeta, dnn::kFloatType, 0.0f);
    Finish(entry,
           {{dnn::kConvolutionX, "x"}, {dnn::kConvolutionW, "w"}, {dnn::kConvolutionY, "y"}});
  }

  void Matmul(const json::Object& entry) {
    GraphDescriptor& descriptor = Make(dnn::kMatmulDescriptor);
    descriptor.Set(dnn::kMatmulPrecision, dnn::kDataTypeType, dnn::kFloat);
    descriptor.Finalize();
    Operation(dnn::kMatmul).Set(dnn::kOperationMatmulDescriptor, descriptor);
    Finish(entry, {{dnn::kMatmulA, "a"}, {dnn::kMatmulB, "b"}, {dnn::kMatmulC, "y"}});
  }

  void Pointwise(const json::Object& entry) {
    static const std::map<std::string, dnn::Pointwise> kModes = {
        {"add", dnn::kAdd},
        {"mul", dnn::kMul},
        {"sub", dnn::kSub},
        {"div", dnn::kDiv},
        {"exp", dnn::kExp},
        {"log", dnn::kLog},
        {"relu", dnn::kReluForward},
        {"tanh", dnn::kTanhForward},
        {"sigmoid", dnn::kSigmoidForward},
        {"elu", dnn::kEluForward},
        {"gelu_erf", dnn::kGeluForward},
        {"gelu_tanh", dnn::kGeluTanhForward},
        {"softplus", dnn::kSoftplusForward},
        {"swish", dnn::kSwishForward}};
    GraphDescriptor& descriptor = Make(dnn::kPointwiseDescriptor);
    const dnn::Pointwise mode = Named(kModes, Text(entry, "mode"), "pointwise mode");
    descriptor.Set(dnn::kPointwiseMode, dnn::kPointwiseModeType, mode);
    descriptor.Set(dnn::kPointwisePrecision, dnn::kDataTypeType, dnn::kFloat);
    Parameter(descriptor, entry, "upper", dnn::kReluUpper);
    Parameter(descriptor, entry, "alpha", dnn::kEluAlpha);
    Parameter(descriptor, entry, "beta",
              mode == dnn::kSwishForward ? dnn::kSwishBeta : dnn::kSoftplusBeta);
    descriptor.Finalize();
    Operation(dnn::kPointwise).Set(dnn::kOperationPointwiseDescriptor, descriptor);
    Finish(entry, {{dnn::kPointwiseX, "x"}, {dnn::kPointwiseB, "b"}, {dnn::kPointwiseY, "y"}});
  }

  static void Parameter(GraphDescriptor& descriptor, const json::Object& entry, const char* key,
                        dnn::Attribute attribute) {
    if (Has(entry, key)) descriptor.Set(attribute, dnn::kDoubleType, Get<double>(entry, key));
  }

  void Reduction(const json::Object& entry) {
    static const std::map<std::string, dnn::Reduction> kModes = {{"sum", dnn::kReduceAdd},
                                                                 {"max", dnn::kReduceMax}};
    GraphDescriptor& descriptor = Make(dnn::kReductionDescriptor);
    descriptor.Set(dnn::kReductionMode, dnn::kReductionModeType,
                   Named(kModes, Text(entry, "mode"), "reduction"));
    descriptor.Set(dnn::kReductionPrecision, dnn::kDataTypeType, dnn::kFloat);
    descriptor.Finalize();
    Operation(dnn::kReduction).Set(dnn::kOperationReductionDescriptor, descriptor);
    Finish(entry, {{dnn::kReductionX, "x"}, {dnn::kReductionY, "y"}});
  }

  void Norm(const json::Object& entry) {
    static const std::map<std::string, dnn::Norm> kModes = {
        {"layer", dnn::kLayerNorm}, {"instance", dnn::kInstanceNorm}, {"rms", dnn::kRmsNorm}};
    GraphDescriptor& operation = Operation(dnn::kNorm);
    operation.Set(dnn::kNormMode, dnn::kNormModeType, Named(kModes, Text(entry, "mode"), "norm"));
    operation.Set(dnn::kNormPhase, dnn::kNormPhaseType, dnn::kInference);
    Finish(entry, {{dnn::kNormX, "x"},
                   {dnn::kNormScale, "scale"},
                   {dnn::kNormBias, "bias"},
                   {dnn::kNormEpsilon, "epsilon"},
                   {dnn::kNormY, "y"}});
  }

  // Sets the operands of the last operation.
  void Finish(const json::Object& entry,
              const std::vector<std::pair<dnn::Attribute, const char*>>& operands) {
    GraphDescriptor& operation = *operations_.back();
    for (const auto& [attribute, key] : operands) {
      std::int64_t number = Int(entry, key, kAbsent);
      if (number != kAbsent) operation.Set(attribute, Tensor(number));
    }
    operation.Finalize();
  }

  const std::vector<Value>& all_;
  OperationGraph* graph_;
  std::map<std::size_t, const GraphDescriptor*> tensors_;  // by value
  std::vector<GraphDescriptor*> operations_;               // in order
};

}  // namespace

GraphDescriptor::GraphDescriptor(dnn::Kind kind) {
  const Library& library = Library::Get();
  void* created = nullptr;
  auto destroy = library.Find<dnn::Destroy>("cudnnBackendDestroyDescriptor");
  library.Call<dnn::BackendCreate>("cudnnBackendCreateDescriptor", static_cast<int>(kind),
                                   &created);
  object_ = vendor::Object(created, {destroy});
}

void GraphDescriptor::Finalize() {
  Library::Get().Call<dnn::BackendFinalize>("cudnnBackendFinalize", get());
}

void GraphDescriptor::SetRaw(dnn::Attribute attribute, dnn::Type type, std::int64_t count,
                             const void* elements) {
  Library::Get().Call<dnn::BackendSet>("cudnnBackendSetAttribute", get(),
                                       static_cast<int>(attribute), static_cast<int>(type), count,
                                       elements);
}

void GraphDescriptor::ReadRaw(dnn::Attribute attribute, dnn::Type type, std::int64_t limit,
                              std::int64_t* count, void* elements) const {
  Library::Get().Call<dnn::BackendGet>("cudnnBackendGetAttribute", get(),
                                       static_cast<int>(attribute), static_cast<int>(type), limit,
                                       count, elements);
}

void GraphDescriptor::Fill(dnn::Attribute attribute,
                           std::vector<dnn::Descriptor>* descriptors) const {
  std::int64_t count = 0;
  ReadRaw(attribute, dnn::kDescriptorType, static_cast<std::int64_t>(descriptors->size()), &count,
          descriptors->data());
  if (static_cast<std::size_t>(count) < descriptors->size()) {
    descriptors->resize(static_cast<std::size_t>(count));
  }
}

std::int64_t GraphDescriptor::Count(dnn::Attribute attribute, dnn::Type type) const {
  std::int64_t count = 0;
  ReadRaw(attribute, type, 0, &count, nullptr);
  return count;
}

std::vector<Value> ReadValues(const Blob& blob) {
  std::vector<Value> values;
  for (const ffi::Any& entry : Get<json::Array>(blob.header(), "values")) {
    values.push_back(ReadValue(As<json::Object>(entry, "values")));
    const Value& value = values.back();
    if (value.role != Role::kConstant) continue;
    if (value.place >= blob.tensors().size() || blob.tensors()[value.place].nbytes < value.nbytes) {
      TVM_FFI_THROW(ValueError) << "cudnn kernel: no tensor " << value.place << " of "
                                << value.nbytes << " bytes in the blob";
    }
  }
  return values;
}

OperationGraph::OperationGraph(const json::Object& entry, const std::vector<Value>& all,
                               dnn::Handle handle)
    : descriptor(dnn::kOperationGraph),
      rank(InRange(Int(entry, "rank", 0), 0, kMostRank, "cudnn kernel: a graph's 'rank'")) {
  Translator translator(all, this);
  for (const ffi::Any& operation : Get<json::Array>(entry, "operations")) {
    translator.Add(As<json::Object>(operation, "operations"));
  }
  values = translator.InMemory();
  if (handle != nullptr) descriptor.Set(dnn::kGraphHandle, dnn::kHandleType, handle);
  descriptor.Set(dnn::kGraphOperations, dnn::kDescriptorType, translator.Operations());
  descriptor.Finalize();
}

std::vector<Step> ReadSteps(const Blob& blob, const std::vector<Value>& values,
                            dnn::Handle handle) {
  std::vector<Step> steps;
  for (const ffi::Any& graph : Get<json::Array>(blob.header(), "graphs")) {
    json::Object entry = As<json::Object>(graph, "graphs");
    if (Has(entry, "operations")) {
      steps.push_back({std::make_unique<OperationGraph>(entry, values, handle), 0, 0});
    } else {
      steps.push_back({nullptr, Checked(Int(entry, "from", kAbsent), values),
                       Checked(Int(entry, "to", kAbsent), values)});
      CheckCopy(values[steps.back().from], values[steps.back().to]);
    }
  }
  return steps;
}

}  // namespace cudnn
}  // namespace collage
