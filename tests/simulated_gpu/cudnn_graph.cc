// Descriptors of the simulated cuDNN: attributes are taken and read with the types and at the times that the real
// library wants, and a graph must be one.
#include "cudnn_graph.h"

#include <algorithm>
#include <memory>
#include <set>

#include "gpu.h"

using namespace simulated;  // NOLINT: the entry points below are C's

namespace simulated {

void* CurrentStream();  // of the handle, cudnn.cc

namespace {

struct Rule {
  int type;
  bool required;
  bool many;
  int kind = -1;  // of the descriptor that it is
};

constexpr int kTensorRef = dnn::kTensor;

const std::map<int, std::map<int, Rule>>& Rules() {
  using namespace dnn;  // NOLINT: the table is all names of it
  static const Rule kTensorInput{kDescriptorType, true, false, kTensorRef};
  static const Rule kTensorOption{kDescriptorType, false, false, kTensorRef};
  static const Rule kPrecision{kDataTypeType, true, false};
  static const Rule kLongs{kInt64Type, true, true};
  static const std::map<int, std::map<int, Rule>> kRules = {
      {dnn::kTensor,
       {{kTensorType, kPrecision},
        {kTensorDims, kLongs},
        {kTensorStrides, kLongs},
        {kTensorId, {kInt64Type, true, false}},
        {kTensorAlignment, {kInt64Type, true, false}},
        {kTensorVirtual, {kBoolType, false, false}},
        {kTensorByValue, {kBoolType, false, false}}}},
      {kConvolutionDescriptor,
       {{kConvolutionPrecision, kPrecision},
        {kConvolutionMode, {kConvolutionModeType, true, false}},
        {kSpatialDims, {kInt64Type, true, false}},
        {kPrePads, kLongs},
        {kPostPads, kLongs},
        {kStrides, kLongs},
        {kDilations, kLongs}}},
      {kConvolution,
       {{kOperationConvolutionDescriptor, {kDescriptorType, true, false, kConvolutionDescriptor}},
        {kConvolutionAlpha, {kFloatType, true, false}},
        {kConvolutionBeta, {kFloatType, true, false}},
        {kConvolutionX, kTensorInput},
        {kConvolutionW, kTensorInput},
        {kConvolutionY, kTensorInput}}},
      {kMatmulDescriptor, {{kMatmulPrecision, kPrecision}}},
      {kMatmul,
       {{kOperationMatmulDescriptor, {kDescriptorType, true, false, kMatmulDescriptor}},
        {kMatmulA, kTensorInput},
        {kMatmulB, kTensorInput},
        {kMatmulC, kTensorInput}}},
      {kPointwiseDescriptor,
       {{kPointwiseMode, {kPointwiseModeType, true, false}},
        {kPointwisePrecision, kPrecision},
        {kReluUpper, {kDoubleType, false, false}},
        {kEluAlpha, {kDoubleType, false, false}},
        {kSoftplusBeta, {kDoubleType, false, false}},
        {kSwishBeta, {kDoubleType, false, false}}}},
      {kPointwise,
       {{kOperationPointwiseDescriptor, {kDescriptorType, true, false, kPointwiseDescriptor}},
        {kPointwiseX, kTensorInput},
        {kPointwiseB, kTensorOption},
        {kPointwiseY, kTensorInput}}},
      {kReductionDescriptor,
       {{kReductionMode, {kReductionModeType, true, false}}, {kReductionPrecision, kPrecision}}},
      {kReduction,
       {{kOperationReductionDescriptor, {kDescriptorType, true, false, kReductionDescriptor}},
        {kReductionX, kTensorInput},
        {kReductionY, kTensorInput}}},
      {kNorm,
       {{kNormMode, {kNormModeType, true, false}},
        {kNormPhase, {kNormPhaseType, true, false}},
        {kNormX, kTensorInput},
        {kNormScale, kTensorInput},
        {kNormBias, kTensorOption},
        {kNormEpsilon, kTensorInput},
        {kNormY, kTensorInput}}},
      {kOperationGraph,
       {{kGraphHandle, {kHandleType, true, false}},
        {kGraphOperations, {kDescriptorType, true, true}}}},
      {kHeuristics,
       {{kHeuristicsGraph, {kDescriptorType, true, false, kOperationGraph}},
        {kHeuristicsMode, {kHeuristicModeType, true, false}}}},
      {kPlan,
       {{kPlanHandle, {kHandleType, true, false}},
        {kPlanConfig, {kDescriptorType, true, false, kEngineConfig}}}},
      {kVariantPack,
       {{kPackIds, kLongs},
        {kPackPointers, {kPointerType, true, true}},
        {kPackWorkspace, {kPointerType, true, false}}}},
      {kEngine, {}},
      {kEngineConfig, {}}};
  return kRules;
}

std::size_t SizeOf(int type) {
  switch (type) {
    case dnn::kBoolType:
      return sizeof(bool);
    case dnn::kInt64Type:
    case dnn::kDoubleType:
    case dnn::kPointerType:
    case dnn::kHandleType:
    case dnn::kDescriptorType:
      return 8;
    case dnn::kCharType:
      return 1;
    default:
      return 4;
  }
}

int CheckTensor(const Descriptor& one) {
  const Longs dims = one.dims(), strides = one.strides();
  if (dims.empty() || dims.size() > 8 || dims.size() != strides.size()) return kShapeMismatch;
  for (std::int64_t extent : dims)
    if (extent < 1) return kBadParam;
  for (std::int64_t stride : strides)
    if (stride < 1) return kBadParam;
  if (one.type() != dnn::kFloat && one.type() != dnn::kHalf && one.type() != dnn::kBfloat16)
    return kBadParam;
  return one.is_virtual() && one.by_value() ? kBadParam : 0;
}

// Every virtual tensor is made once, before it is read; an id is one tensor's.
int CheckGraph(const Descriptor& graph) {
  std::map<std::int64_t, const Descriptor*> known;
  std::set<std::int64_t> made;
  for (const Descriptor* operation : OperationsOf(graph)) {
    if (!operation->finalized) return kNotFinalized;
    const Ports& ports = PortsOf(operation->kind);
    for (int attribute : ports.reads) {
      const Descriptor* tensor = operation->Get(attribute);
      if (tensor == nullptr) continue;
      if (known.emplace(tensor->id(), tensor).first->second != tensor) return kDuplicated;
      if (tensor->is_virtual() && made.count(tensor->id()) == 0) return kBadParam;
    }
    const Descriptor* result = operation->Get(ports.writes);
    if (known.emplace(result->id(), result).first->second != result) return kDuplicated;
    if (result->by_value() || !made.insert(result->id()).second) return kBadParam;
  }
  return 0;
}

int CheckPack(const Descriptor& pack) {
  Longs ids = pack.All<std::int64_t>(dnn::kPackIds);
  std::set<std::int64_t> different(ids.begin(), ids.end());
  if (different.size() != ids.size()) return kDuplicated;
  return ids.size() == pack.All<void*>(dnn::kPackPointers).size() ? 0 : kSizeInsufficient;
}

int CheckFinal(const Descriptor& one) {
  switch (one.kind) {
    case dnn::kTensor:
      return CheckTensor(one);
    case dnn::kConvolution:
    case dnn::kMatmul:
    case dnn::kPointwise:
    case dnn::kReduction:
    case dnn::kNorm:
      return CheckOperation(one);
    case dnn::kOperationGraph:
      return CheckGraph(one);
    case dnn::kVariantPack:
      return CheckPack(one);
    default:
      return 0;
  }
}

// The results of the heuristics, the engine of a configuration: filled into descriptors that the caller made.
int FillConfigs(const Descriptor& heuristics, std::int64_t most, std::int64_t* count, void* to) {
  const bool usual = heuristics.One<int>(dnn::kHeuristicsMode) == dnn::kModeA;
  std::vector<Proposal> found;
  if (usual) found = Propose(*heuristics.Get(dnn::kHeuristicsGraph));
  *count = static_cast<std::int64_t>(found.size());
  if (most == 0) return 0;
  auto** given = static_cast<Descriptor**>(to);
  *count = std::min(*count, most);
  for (std::int64_t i = 0; i < *count; ++i) {
    const Proposal& one = found[static_cast<std::size_t>(i)];
    if (given[i]->kind != dnn::kEngineConfig) return kWrongKind;
    given[i]->engine = one.engine;
    given[i]->note = one.note;
    given[i]->workspace = one.workspace;
    given[i]->attributes = heuristics.attributes;  // the graph
    given[i]->finalized = true;
  }
  return 0;
}

int FillEngine(const Descriptor& config, std::int64_t most, std::int64_t* count, void* to) {
  auto** given = static_cast<Descriptor**>(to);
  if (most != 1 || given[0]->kind != dnn::kEngine) return kWrongKind;
  given[0]->engine = config.engine;
  given[0]->note = config.note;
  given[0]->finalized = true;
  *count = 1;
  return 0;
}

int Give(std::int64_t value, std::int64_t most, std::int64_t* count, void* to) {
  if (most < 1) return kSizeInsufficient;
  *static_cast<std::int64_t*>(to) = value;
  *count = 1;
  return 0;
}

}  // namespace

const Ports& PortsOf(int kind) {
  static const std::map<int, Ports> kPorts = {
      {dnn::kConvolution, {{dnn::kConvolutionX, dnn::kConvolutionW}, dnn::kConvolutionY}},
      {dnn::kMatmul, {{dnn::kMatmulA, dnn::kMatmulB}, dnn::kMatmulC}},
      {dnn::kPointwise, {{dnn::kPointwiseX, dnn::kPointwiseB}, dnn::kPointwiseY}},
      {dnn::kReduction, {{dnn::kReductionX}, dnn::kReductionY}},
      {dnn::kNorm,
       {{dnn::kNormX, dnn::kNormScale, dnn::kNormBias, dnn::kNormEpsilon}, dnn::kNormY}}};
  return kPorts.at(kind);
}

std::vector<const Descriptor*> OperationsOf(const Descriptor& graph) {
  std::vector<const Descriptor*> found;
  for (void* one : graph.All<void*>(dnn::kGraphOperations)) found.push_back(&Of(one));
  return found;
}

}  // namespace simulated

extern "C" {

int cudnnBackendCreateDescriptor(int kind, void** made) {
  if (Rules().count(kind) == 0) return kNotSupported;
  auto* one = new Descriptor();
  one->kind = kind;
  *made = one;
  return 0;
}

int cudnnBackendDestroyDescriptor(void* one) {
  delete static_cast<Descriptor*>(one);
  return 0;
}

int cudnnBackendSetAttribute(void* one, int attribute, int type, std::int64_t count,
                             const void* elements) {
  Descriptor& self = Of(one);
  if (self.finalized) return kNotFinalized;
  auto rule = Rules().at(self.kind).find(attribute);
  if (rule == Rules().at(self.kind).end()) return kBadParam;
  if (rule->second.type != type) return kWrongType;
  if (count < 1 || (count > 1 && !rule->second.many)) return kSizeInsufficient;
  const auto* bytes = static_cast<const char*>(elements);
  if (type == dnn::kDescriptorType) {
    for (std::int64_t i = 0; i < count; ++i) {
      const Descriptor& other = Of(static_cast<void* const*>(elements)[i]);
      if (!other.finalized) return kNotFinalized;
      if (rule->second.kind >= 0 && other.kind != rule->second.kind) return kWrongKind;
    }
  }
  const std::size_t size = SizeOf(type) * static_cast<std::size_t>(count);
  self.attributes[attribute] = {type, count, std::vector<char>(bytes, bytes + size)};
  return 0;
}

int cudnnBackendFinalize(void* one) {
  Descriptor& self = Of(one);
  for (const auto& [attribute, rule] : Rules().at(self.kind)) {
    if (rule.required && !self.Has(attribute)) return kBadParam;
  }
  if (int status = CheckFinal(self)) return status;
  if (self.kind == dnn::kPlan) self.workspace = self.Get(dnn::kPlanConfig)->workspace;
  self.finalized = true;
  return 0;
}

int cudnnBackendGetAttribute(void* one, int attribute, int, std::int64_t most, std::int64_t* count,
                             void* to) {
  const Descriptor& self = Of(one);
  if (!self.finalized) return kNotFinalized;
  if (attribute == dnn::kHeuristicsResults) return FillConfigs(self, most, count, to);
  if (attribute == dnn::kConfigEngine) return FillEngine(self, most, count, to);
  if (attribute == dnn::kEngineIndex) return Give(self.engine, most, count, to);
  if (attribute == dnn::kPlanWorkspace) return Give(self.workspace, most, count, to);
  if (attribute != dnn::kEngineNotes) return kBadParam;
  *count = self.note < 0 ? 0 : 1;
  if (self.note >= 0 && most > 0) *static_cast<int*>(to) = self.note;
  return 0;
}

int cudnnBackendExecute(void*, void* plan, void* pack) {
  const Descriptor& config = *Of(plan).Get(dnn::kPlanConfig);
  const Descriptor& graph = *config.Get(dnn::kHeuristicsGraph);
  if (!Of(plan).finalized || !Of(pack).finalized) return kNotFinalized;
  Longs ids = Of(pack).All<std::int64_t>(dnn::kPackIds);
  std::vector<void*> given = Of(pack).All<void*>(dnn::kPackPointers);
  std::map<std::int64_t, void*> pointers;
  for (std::size_t i = 0; i < ids.size(); ++i) pointers[ids[i]] = given[i];
  bool fine = Of(plan).workspace == 0 || IsDevice(Of(pack).One<void*>(dnn::kPackWorkspace));
  // What tensor cores multiply in 16 bits has no more bits than TF32: it stays what it is.
  const bool rounds = config.note == dnn::kNoteTensorCore && IsTf32Allowed();
  std::string name = "cudnnGraph";
  for (const Descriptor* operation : OperationsOf(graph)) {
    if (operation->kind == dnn::kConvolution) {
      bool rounded = rounds && operation->Get(dnn::kConvolutionX)->type() == dnn::kFloat;
      name = rounded ? "cudnnConvolution in TF32" : "cudnnConvolution";
    }
    if (operation->kind == dnn::kMatmul) name = "cudnnAttention";
    if (operation->kind == dnn::kNorm) name = "cudnnNorm";
    std::vector<int> ports = PortsOf(operation->kind).reads;
    ports.push_back(PortsOf(operation->kind).writes);
    for (int port : ports) {
      const Descriptor* tensor = operation->Get(port);
      if (tensor == nullptr || tensor->is_virtual()) continue;
      if (pointers.count(tensor->id()) == 0) return kBadParam;
      if (!tensor->by_value()) fine = fine && IsDevice(pointers[tensor->id()]);
    }
  }
  if (!fine) return Lose(kIllegalAddress);
  // Numbers by value are read now, the memory of the device when the graph runs.
  std::map<std::int64_t, float> numbers;
  for (const Descriptor* operation : OperationsOf(graph)) {
    for (int port : PortsOf(operation->kind).reads) {
      const Descriptor* tensor = operation->Get(port);
      if (tensor != nullptr && tensor->by_value()) {
        numbers[tensor->id()] = Load(pointers[tensor->id()], WidthOf(tensor->type()), 0);
      }
    }
  }
  auto kept = std::make_shared<std::map<std::int64_t, float>>(numbers);
  Descriptor copy = graph;  // the operations outlive their plan
  return Enqueue(CurrentStream(), name.c_str(), [=]() mutable {
    for (auto& [id, number] : *kept) pointers[id] = &number;
    Compute(copy, pointers, rounds);
  });
}

}  // extern "C"
