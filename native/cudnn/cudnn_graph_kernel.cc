// A region by cuDNN's graph interface. The blob is that of cudnn_graph.h; further header entries:
//   inputs, outputs   how many there are
//   exact             1: float32 stays float32
//   tf32              1: float32 is rounded to TF32 where tensor cores multiply it
//   workspace         bytes that a plan may use
//
// The first call creates everything on the device: plans, the copy of the constants, buffers and the workspace. Later
// calls allocate nothing there, so they can be captured in a CUDA graph.
//
//   collage.cudnn_proposals(blob, device, most)   cuDNN's proposals for a blob's graphs on a described GPU, without the GPU:
//       for each graph a list of "engine workspace notes...", best first. `device` is the JSON of cuDNN's device
//       properties.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cuda/cuda_runtime.h"
#include "cudnn/cudnn_plan.h"
#include "core/sizes.h"

namespace collage {
namespace cudnn {
namespace {

namespace ffi = tvm::ffi;

constexpr std::int64_t kWorkspace = 32 << 20;
constexpr float kOne = 1.0f, kZero = 0.0f;

Limits LimitsOf(const Blob& blob) {
  Rounding rounding = blob.GetInt("tf32", 0) != 0    ? Rounding::kTf32
                      : blob.GetInt("exact", 1) != 0 ? Rounding::kNone
                                                     : Rounding::kFree;
  return {rounding, blob.GetInt("workspace", kWorkspace)};
}

// An executable step: a plan with the arguments of its last call, since these seldom change; or, for a copy, the
// descriptors of both sides.
struct Stage {
  Step step;
  std::unique_ptr<Plan> plan;
  std::vector<void*> pointers;
  std::unique_ptr<GraphDescriptor> pack;
  vendor::Object from, to;
};

vendor::Object DescribeValue(const Value& value) {
  return DescribeTensor(vendor::TypeOf(value.dtype, kFloatTypes, kKind),
                        {value.shape.begin(), value.shape.end()},
                        {value.strides.begin(), value.strides.end()});
}

class CudnnGraph : public Kernel {
 public:
  explicit CudnnGraph(const KernelSpec& spec) : blob_(spec.blob), values_(ReadValues(*blob_)) {
    inputs_ = static_cast<std::size_t>(
        InRange(blob_->GetInt("inputs", 1), 0, kMostExtent, "cudnn kernel: 'inputs'"));
    count_ = inputs_ + static_cast<std::size_t>(InRange(blob_->GetInt("outputs", 1), 1, kMostExtent,
                                                        "cudnn kernel: 'outputs'"));
    BytesOf(LimitsOf(*blob_).workspace, "cudnn kernel: 'workspace'");
    for (const Value& value : values_) {
      std::size_t end = value.role == Role::kInput ? inputs_ : count_ - inputs_;
      bool argument = value.role == Role::kInput || value.role == Role::kOutput;
      if (argument && value.place >= end) {
        TVM_FFI_THROW(ValueError) << kKind << " kernel: there is no argument " << value.place;
      }
    }
  }

  bool OnDevice() const override { return true; }

  void Run(DLTensor* const* args, int count) override {
    if (count < 0 || static_cast<std::size_t>(count) != count_) {
      TVM_FFI_THROW(ValueError) << kKind << " kernel: " << count << " tensors, not " << count_;
    }
    const DLTensor* output = args[inputs_];
    CheckValues(args);
    const Library& library = Library::Get();
    std::unique_lock<std::mutex> held = library.HoldHandle();
    library.Call<dnn::SetStream>("cudnnSetStream", library.handle(),
                                 cuda::CurrentStream(output->device));
    if (stages_.empty()) Prepare();
    for (Stage& stage : stages_) {
      if (stage.plan != nullptr) {
        Bind(args, &stage);
        library.Call<dnn::BackendExecute>("cudnnBackendExecute", library.handle(),
                                          stage.plan->descriptor.get(), stage.pack->get());
      } else {
        library.Call<dnn::Transform>("cudnnTransformTensor", library.handle(), &kOne,
                                     stage.from.get(), Pointer(stage.step.from, args), &kZero,
                                     stage.to.get(), Pointer(stage.step.to, args));
      }
    }
  }

 private:
  // That each argument holds what its values say; two values may be one argument, seen in two ways.
  void CheckValues(DLTensor* const* args) const {
    for (const Value& value : values_) {
      if (value.role != Role::kInput && value.role != Role::kOutput) continue;
      std::size_t position = value.place + (value.role == Role::kOutput ? inputs_ : 0);
      const DLTensor& tensor = *args[position];
      std::int64_t nbytes = CountOf(tensor) * ((tensor.dtype.bits + 7) / 8);
      if (nbytes >= static_cast<std::int64_t>(value.nbytes) && IsSame(tensor.dtype, value.type))
        continue;
      RefuseArgument(
          kKind, position,
          {static_cast<std::int64_t>(value.nbytes) / ((value.type.bits + 7) / 8), value.type},
          tensor);
    }
  }

  void Prepare() {
    dnn::Handle handle = Library::Get().handle();
    std::vector<Stage> stages;
    std::int64_t workspace = 0;
    for (Step& step : ReadSteps(*blob_, values_, handle)) {
      Stage stage;
      if (step.graph == nullptr) {
        stage.from = DescribeValue(values_[step.from]);
        stage.to = DescribeValue(values_[step.to]);
      } else {
        stage.plan = std::make_unique<Plan>(Chosen(*step.graph, handle));
        workspace = std::max(workspace, stage.plan->workspace);
      }
      stage.step = std::move(step);
      stages.push_back(std::move(stage));
    }
    if (constants_.empty()) constants_ = cuda::Upload(blob_->tensors());
    buffers_.resize(values_.size());
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (values_[i].role == Role::kBuffer) buffers_[i] = cuda::Allocate(values_[i].nbytes);
    }
    if (workspace > 0) workspace_ = cuda::Allocate(static_cast<std::size_t>(workspace));
    stages_ = std::move(stages);
  }

  Plan Chosen(const OperationGraph& graph, dnn::Handle handle) const {
    auto rank = static_cast<std::size_t>(graph.rank);
    std::vector<Plan> plans = UsablePlans(graph, {handle, nullptr}, LimitsOf(*blob_), rank + 1);
    if (plans.size() <= rank) {
      TVM_FFI_THROW(RuntimeError) << "cuDNN proposes " << plans.size()
                                  << " usable engines, so there is none of rank " << rank;
    }
    return std::move(plans[rank]);
  }

  void* Pointer(std::size_t number, DLTensor* const* args) {
    Value& value = values_[number];
    switch (value.role) {
      case Role::kInput:
        return DataOf(args[value.place]);
      case Role::kOutput:
        return DataOf(args[inputs_ + value.place]);
      case Role::kConstant:
        return constants_[value.place].get();
      case Role::kBuffer:
        return buffers_[number].get();
      default:
        return &value.number;
    }
  }

  void Bind(DLTensor* const* args, Stage* stage) {
    std::vector<void*> pointers;
    std::vector<std::int64_t> ids;
    for (std::size_t number : stage->step.graph->values) {
      pointers.push_back(Pointer(number, args));
      ids.push_back(static_cast<std::int64_t>(number) + 1);
    }
    if (stage->pack != nullptr && stage->pointers == pointers) return;
    auto pack = std::make_unique<GraphDescriptor>(dnn::kVariantPack);
    pack->Set(dnn::kPackIds, dnn::kInt64Type, ids);
    pack->Set(dnn::kPackPointers, dnn::kPointerType, pointers);
    pack->Set(dnn::kPackWorkspace, dnn::kPointerType, workspace_.get());
    pack->Finalize();
    stage->pack = std::move(pack);
    stage->pointers = std::move(pointers);
  }

  std::shared_ptr<const Blob> blob_;
  std::vector<Value> values_;
  std::size_t inputs_ = 0, count_ = 0;
  std::vector<Stage> stages_;
  std::vector<cuda::Memory> constants_, buffers_;
  cuda::Memory workspace_;
};

ffi::Array<ffi::Array<ffi::String>> ProposalsFor(const ffi::Bytes& bytes,
                                                 const ffi::String& properties, std::int64_t most) {
  InRange(most, 1, kMostExtent, "the number of proposals");
  std::shared_ptr<const Blob> blob = Blob::Parse({bytes.data(), bytes.size()});
  GraphDescriptor device(dnn::kDevice);
  device.Set(dnn::kDeviceJson, dnn::kCharType,
             std::vector<char>(properties.data(), properties.data() + properties.size()));
  device.Finalize();
  ffi::Array<ffi::Array<ffi::String>> proposals;
  for (const Step& step : ReadSteps(*blob, ReadValues(*blob), nullptr)) {
    if (step.graph == nullptr) continue;
    ffi::Array<ffi::String> lines;
    for (const Plan& plan : UsablePlans(*step.graph, {nullptr, &device}, LimitsOf(*blob),
                                        static_cast<std::size_t>(most))) {
      std::string line = std::to_string(plan.engine) + " " + std::to_string(plan.workspace);
      for (int note : plan.notes) line += " " + std::to_string(note);
      lines.push_back(line);
    }
    proposals.push_back(lines);
  }
  return proposals;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  tvm::ffi::reflection::GlobalDef().def("collage.cudnn_proposals", ProposalsFor);
}

}  // namespace

std::unique_ptr<Kernel> MakeGraphKernel(const KernelSpec& spec) {
  return std::unique_ptr<Kernel>(new CudnnGraph(spec));
}

}  // namespace cudnn
}  // namespace collage
