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
T Named(const std::map<std::string, T>& known, const std::string& name, const char* what) {
  auto found = known.find(name);
  if (found == known.end()) TVM_FFI_THROW(ValueError) << "cudnn kernel: no " << what << " " << name;
  return found->second;
}

std::string Text(const json::Object& object, const char* key) {
  return Get<ffi::String>(object, key);
}

bool Has(const json::Object& object, const char* key) { return object.count(ffi::String(key)) > 0; }

std::int64_t Int(const json::Object& object, const char* key, std::int64_t otherwise) {
  return Has(object, key) ? Get<std::int64_t>(object, key) : otherwise;
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
  Value made{Named(kRoles, Text(entry, "role"), "role"),
             Text(entry, "dtype"),
             Integers(entry, "shape"),
             Integers(entry, "strides"),
             static_cast<std::size_t>(InRange(Int(entry, "place", 0), 0, kMostExtent,
                                              "cudnn kernel: a value's 'place'")),
             0,
             0,
             {}};
  if (Has(entry, "number")) made.number = static_cast<float>(Get<double>(entry, "number"));
  if (made.shape.empty() || made.shape.size() != made.strides.size()) {
    TVM_FFI_THROW(ValueError) << "cudnn kernel: a value with " << made.shape.size()
                              << " extents and " << made.strides.size() << " strides";
  }
  std::int64_t last = 0;
  for (std::size_t i = 0; i < made.shape.size(); ++i) {
    InRange(made.shape[i], 1, kMostExtent, "cudnn kernel: an extent of a value");
    InRange(made.strides[i], 0, kMostBytes, "cudnn kernel: a stride of a value");
    last = Plus(last, Times(made.shape[i] - 1, made.strides[i]));
  }
  made.type = ParseType(made.dtype);
  made.nbytes =
      BytesOf(Times(Plus(last, 1), (made.type.bits + 7) / 8), "cudnn kernel: the size of a value");
  return made;
}

void CheckCopy(const Value& from, const Value& to) {
  for (const Value* one : {&from, &to}) {
    if (one->role == Role::kVirtual || one->role == Role::kNumber) {
      TVM_FFI_THROW(ValueError) << "cudnn kernel: a copy of what is not in memory";
    }
    for (const std::vector<std::int64_t>* side : {&one->shape, &one->strides}) {
      for (std::int64_t number : *side) {
        InRange(number, 0, kMostExtent, "cudnn kernel: an extent or stride of a copy");
      }
    }
  }
  if (from.shape != to.shape || to.role == Role::kInput || to.role == Role::kConstant) {
    TVM_FFI_THROW(ValueError) << "cudnn kernel: a copy to where it does not fit";
  }
}

// Describes the operations of one graph.
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
    std::vector<dnn::Descriptor> found;
    found.reserve(operations_.size());
    for (const Described* one : operations_) found.push_back(one->get());
    return found;
  }

  std::vector<std::size_t> InMemory() const {
    std::vector<std::size_t> found;
    for (const auto& [number, tensor] : tensors_) {
      if (all_[number].role != Role::kVirtual) found.push_back(number);
    }
    return found;
  }

 private:
  Described& Make(dnn::Kind kind) { return graph_->parts.emplace_back(kind); }

  Described& Operation(dnn::Kind kind) {
    operations_.push_back(&Make(kind));
    return *operations_.back();
  }

  // The tensor of a value, described when it is first met.
  const Described& Tensor(std::int64_t number) {
    const std::size_t place = Checked(number, all_);
    const Described*& known = tensors_[place];
    if (known != nullptr) return *known;
    const Value& value = all_[place];
    Described& made = Make(dnn::kTensor);
    known = &made;
    made.Set(dnn::kTensorType, dnn::kDataTypeType, vendor::TypeOf(value.dtype, kFloatTypes, kKind));
    made.Set(dnn::kTensorDims, dnn::kInt64Type, value.shape);
    made.Set(dnn::kTensorStrides, dnn::kInt64Type, value.strides);
    made.Set(dnn::kTensorId, dnn::kInt64Type, number + 1);
    made.Set(dnn::kTensorAlignment, dnn::kInt64Type, kAlignment);
    made.Set(dnn::kTensorVirtual, dnn::kBoolType, value.role == Role::kVirtual);
    if (value.role == Role::kNumber) made.Set(dnn::kTensorByValue, dnn::kBoolType, true);
    made.Finalize();
    return made;
  }

  void Convolution(const json::Object& entry) {
    Described& how = Make(dnn::kConvolutionHow);
    std::vector<std::int64_t> strides = Integers(entry, "strides");
    how.Set(dnn::kConvolutionPrecision, dnn::kDataTypeType, dnn::kFloat);
    how.Set(dnn::kConvolutionMode, dnn::kConvolutionModeType, dnn::kCrossCorrelation);
    how.Set(dnn::kSpatialDims, dnn::kInt64Type, static_cast<std::int64_t>(strides.size()));
    how.Set(dnn::kPrePads, dnn::kInt64Type, Integers(entry, "pads_before"));
    how.Set(dnn::kPostPads, dnn::kInt64Type, Integers(entry, "pads_after"));
    how.Set(dnn::kStrides, dnn::kInt64Type, strides);
    how.Set(dnn::kDilations, dnn::kInt64Type, Integers(entry, "dilations"));
    how.Finalize();
    Described& operation = Operation(dnn::kConvolution);
    operation.Set(dnn::kConvolutionDescriptor, how);
    operation.Set(dnn::kConvolutionAlpha, dnn::kFloatType, 1.0f);
    operation.Set(dnn::kConvolutionBeta, dnn::kFloatType, 0.0f);
    Finish(entry,
           {{dnn::kConvolutionX, "x"}, {dnn::kConvolutionW, "w"}, {dnn::kConvolutionY, "y"}});
  }

  void Matmul(const json::Object& entry) {
    Described& how = Make(dnn::kMatmulHow);
    how.Set(dnn::kMatmulPrecision, dnn::kDataTypeType, dnn::kFloat);
    how.Finalize();
    Operation(dnn::kMatmul).Set(dnn::kMatmulDescriptor, how);
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
    Described& how = Make(dnn::kPointwiseHow);
    const dnn::Pointwise mode = Named(kModes, Text(entry, "mode"), "pointwise mode");
    how.Set(dnn::kPointwiseMode, dnn::kPointwiseModeType, mode);
    how.Set(dnn::kPointwisePrecision, dnn::kDataTypeType, dnn::kFloat);
    Parameter(how, entry, "upper", dnn::kReluUpper);
    Parameter(how, entry, "alpha", dnn::kEluAlpha);
    Parameter(how, entry, "beta",
              mode == dnn::kSwishForward ? dnn::kSwishBeta : dnn::kSoftplusBeta);
    how.Finalize();
    Operation(dnn::kPointwise).Set(dnn::kPointwiseDescriptor, how);
    Finish(entry, {{dnn::kPointwiseX, "x"}, {dnn::kPointwiseB, "b"}, {dnn::kPointwiseY, "y"}});
  }

  static void Parameter(Described& how, const json::Object& entry, const char* key,
                        dnn::Attribute attribute) {
    if (Has(entry, key)) how.Set(attribute, dnn::kDoubleType, Get<double>(entry, key));
  }

  void Reduction(const json::Object& entry) {
    static const std::map<std::string, dnn::Reduction> kModes = {{"sum", dnn::kReduceAdd},
                                                                 {"max", dnn::kReduceMax}};
    Described& how = Make(dnn::kReductionHow);
    how.Set(dnn::kReductionMode, dnn::kReductionModeType,
            Named(kModes, Text(entry, "mode"), "reduction"));
    how.Set(dnn::kReductionPrecision, dnn::kDataTypeType, dnn::kFloat);
    how.Finalize();
    Operation(dnn::kReduction).Set(dnn::kReductionDescriptor, how);
    Finish(entry, {{dnn::kReductionX, "x"}, {dnn::kReductionY, "y"}});
  }

  void Norm(const json::Object& entry) {
    static const std::map<std::string, dnn::Norm> kModes = {
        {"layer", dnn::kLayerNorm}, {"instance", dnn::kInstanceNorm}, {"rms", dnn::kRmsNorm}};
    Described& operation = Operation(dnn::kNorm);
    operation.Set(dnn::kNormMode, dnn::kNormModeType, Named(kModes, Text(entry, "mode"), "norm"));
    operation.Set(dnn::kNormPhase, dnn::kNormPhaseType, dnn::kInference);
    Finish(entry, {{dnn::kNormX, "x"},
                   {dnn::kNormScale, "scale"},
                   {dnn::kNormBias, "bias"},
                   {dnn::kNormEpsilon, "epsilon"},
                   {dnn::kNormY, "y"}});
  }

  // Sets those values that the last operation has.
  void Finish(const json::Object& entry,
              const std::vector<std::pair<dnn::Attribute, const char*>>& operands) {
    Described& operation = *operations_.back();
    for (const auto& [attribute, key] : operands) {
      std::int64_t number = Int(entry, key, kAbsent);
      if (number != kAbsent) operation.Set(attribute, Tensor(number));
    }
    operation.Finalize();
  }

  const std::vector<Value>& all_;
  OperationGraph* graph_;
  std::map<std::size_t, const Described*> tensors_;  // by value
  std::vector<Described*> operations_;               // in order
};

}  // namespace

Described::Described(dnn::Kind kind) {
  const Library& library = Library::Get();
  void* made = nullptr;
  auto destroy = library.Find<dnn::Destroy>("cudnnBackendDestroyDescriptor");
  library.Call<dnn::BackendCreate>("cudnnBackendCreateDescriptor", static_cast<int>(kind), &made);
  object_ = vendor::Object(made, {destroy});
}

void Described::Finalize() {
  Library::Get().Call<dnn::BackendFinalize>("cudnnBackendFinalize", get());
}

void Described::SetRaw(dnn::Attribute attribute, dnn::Type type, std::int64_t count,
                       const void* elements) {
  Library::Get().Call<dnn::BackendSet>("cudnnBackendSetAttribute", get(),
                                       static_cast<int>(attribute), static_cast<int>(type), count,
                                       elements);
}

void Described::ReadRaw(dnn::Attribute attribute, dnn::Type type, std::int64_t most,
                        std::int64_t* count, void* elements) const {
  Library::Get().Call<dnn::BackendGet>("cudnnBackendGetAttribute", get(),
                                       static_cast<int>(attribute), static_cast<int>(type), most,
                                       count, elements);
}

void Described::Fill(dnn::Attribute attribute, std::vector<dnn::Descriptor>* made) const {
  std::int64_t count = 0;
  ReadRaw(attribute, dnn::kDescriptorType, static_cast<std::int64_t>(made->size()), &count,
          made->data());
  if (static_cast<std::size_t>(count) < made->size()) made->resize(static_cast<std::size_t>(count));
}

std::int64_t Described::Count(dnn::Attribute attribute, dnn::Type type) const {
  std::int64_t count = 0;
  ReadRaw(attribute, type, 0, &count, nullptr);
  return count;
}

std::vector<Value> ReadValues(const Blob& blob) {
  std::vector<Value> found;
  for (const ffi::Any& one : Get<json::Array>(blob.header(), "values")) {
    found.push_back(ReadValue(As<json::Object>(one, "values")));
    const Value& value = found.back();
    if (value.role != Role::kConstant) continue;
    if (value.place >= blob.tensors().size() || blob.tensors()[value.place].nbytes < value.nbytes) {
      TVM_FFI_THROW(ValueError) << "cudnn kernel: no tensor " << value.place << " of "
                                << value.nbytes << " bytes in the blob";
    }
  }
  return found;
}

OperationGraph::OperationGraph(const json::Object& entry, const std::vector<Value>& all,
                               dnn::Handle handle)
    : whole(dnn::kOperationGraph),
      rank(InRange(Int(entry, "rank", 0), 0, kMostRank, "cudnn kernel: a graph's 'rank'")) {
  Translator translator(all, this);
  for (const ffi::Any& one : Get<json::Array>(entry, "operations")) {
    translator.Add(As<json::Object>(one, "operations"));
  }
  values = translator.InMemory();
  if (handle != nullptr) whole.Set(dnn::kGraphHandle, dnn::kHandleType, handle);
  whole.Set(dnn::kGraphOperations, dnn::kDescriptorType, translator.Operations());
  whole.Finalize();
}

std::vector<Step> ReadSteps(const Blob& blob, const std::vector<Value>& values,
                            dnn::Handle handle) {
  std::vector<Step> found;
  for (const ffi::Any& one : Get<json::Array>(blob.header(), "graphs")) {
    json::Object entry = As<json::Object>(one, "graphs");
    if (Has(entry, "operations")) {
      found.push_back({std::make_unique<OperationGraph>(entry, values, handle), 0, 0});
    } else {
      found.push_back({nullptr, Checked(Int(entry, "from", kAbsent), values),
                       Checked(Int(entry, "to", kAbsent), values)});
      CheckCopy(values[found.back().from], values[found.back().to]);
    }
  }
  return found;
}

}  // namespace cudnn
}  // namespace collage
