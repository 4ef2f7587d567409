// Softmax, pooling and batch normalisation by cuDNN's descriptor interface, which takes them channels-first; the
// graph interface (cudnn_graph_kernel.cc) does the rest, where the header has "graphs". Blob: tensors are the scale, bias, mean and variance
// (float32) of a batch normalisation; header entries:
//   operation          "softmax", "pooling", "batch_norm"
//   dtype              "float32", "float16" or "bfloat16"; sums are in float32
//   x, y               extents [batch, channels, spatial...]
// pooling:      window, mode ("max", "average", "average_inside"), strides, pads (the same on both sides)
// batch_norm:   epsilon
//
// The first call creates everything on the device: descriptors and the copy of the constants. Later calls allocate
// nothing, so they can be captured in a CUDA graph.
#include <memory>
#include <string>
#include <vector>

#include "cuda/cuda_runtime.h"
#include "cudnn/cudnn_plan.h"
#include "core/sizes.h"

namespace collage {
namespace cudnn {
namespace {

using vendor::Object;

constexpr float kOne = 1.0f, kZero = 0.0f;
constexpr std::size_t kStatistics = 4;
constexpr std::int64_t kLeastRank = 3, kMostRank = 8;  // CUDNN_DIM_MAX

class Cudnn : public Kernel {
 public:
  explicit Cudnn(const KernelSpec& spec)
      : blob_(spec.blob), operation_(blob_->GetString("operation", "")) {
    if (operation_ != "softmax" && operation_ != "pooling" && operation_ != "batch_norm") {
      TVM_FFI_THROW(ValueError) << "cudnn kernel: no operation '" << operation_ << "'";
    }
    if (operation_ == "batch_norm" && blob_->tensors().size() != kStatistics) {
      TVM_FFI_THROW(ValueError) << "cudnn kernel: scale, bias, mean and variance are not all there";
    }
    std::string dtype = blob_->GetString("dtype", "");
    type_ = vendor::TypeOf(dtype, kFloatTypes, kKind);
    for (const char* side : {"x", "y"}) expected_.push_back({Extents(side), ParseType(dtype)});
    if (operation_ == "pooling") CheckPooling();
    if (operation_ == "batch_norm") CheckStatistics();
    if (operation_ != "pooling" && Ints("x") != Ints("y")) {
      TVM_FFI_THROW(ValueError) << "cudnn kernel: 'x' and 'y' differ";
    }
  }

  bool OnDevice() const override { return true; }

  void Run(DLTensor* const* args, int count) override {
    CheckArguments(kKind, expected_, args, count);
    const DLTensor* output = args[1];
    const Library& library = Library::Get();
    std::unique_lock<std::mutex> held = library.HoldHandle();
    library.Call<dnn::SetStream>("cudnnSetStream", library.handle(),
                                 cuda::CurrentStream(output->device));
    if (y_ == nullptr) Prepare();
    const void* x = DataOf(args[0]);
    if (operation_ == "softmax") {
      library.Call<dnn::Softmax>("cudnnSoftmaxForward", library.handle(), dnn::kAccurate,
                                 dnn::kAcrossChannels, &kOne, x_.get(), x, &kZero, y_.get(),
                                 DataOf(output));
    } else if (operation_ == "pooling") {
      library.Call<dnn::Pool>("cudnnPoolingForward", library.handle(), how_.get(), &kOne, x_.get(),
                              x, &kZero, y_.get(), DataOf(output));
    } else {
      library.Call<dnn::Normalize>("cudnnBatchNormalizationForwardInference", library.handle(),
                                   dnn::kSpatial, &kOne, &kZero, x_.get(), x, y_.get(),
                                   DataOf(output), how_.get(), constants_[0].get(),
                                   constants_[1].get(), constants_[2].get(), constants_[3].get(),
                                   Get<double>(blob_->header(), "epsilon"));
    }
  }

 private:
  std::vector<int> Ints(const char* key) const {
    std::vector<std::int64_t> found = Integers(blob_->header(), key);
    return {found.begin(), found.end()};
  }

  // The number of elements of a side, of which a batch and channels are needed.
  std::int64_t Extents(const char* side) const {
    std::vector<std::int64_t> shape = Integers(blob_->header(), side);
    std::string what = std::string("cudnn kernel: an extent of '") + side + "'";
    InRange(static_cast<std::int64_t>(shape.size()), kLeastRank, kMostRank,
            std::string("cudnn kernel: the rank of '") + side + "'");
    // cuDNN counts strides in `int`.
    return InRange(ElementsOf(shape, 1, what), 1, kMostExtent,
                   std::string("cudnn kernel: the size of '") + side + "'");
  }

  void CheckPooling() const {
    std::size_t spatial = Ints("x").size() - 2;
    for (const char* key : {"window", "strides", "pads"}) {
      std::vector<std::int64_t> sides = Integers(blob_->header(), key);
      std::string what = std::string("cudnn kernel: '") + key + "'";
      if (sides.size() != spatial) {
        TVM_FFI_THROW(ValueError) << what << " has " << sides.size() << " numbers, not " << spatial;
      }
      std::int64_t least = std::string(key) == "pads" ? 0 : 1;
      for (std::int64_t one : sides) InRange(one, least, kMostExtent, what);
    }
    if (Ints("y").size() != Ints("x").size()) {
      TVM_FFI_THROW(ValueError) << "cudnn kernel: 'x' and 'y' differ in rank";
    }
  }

  void CheckStatistics() const {
    Get<double>(blob_->header(), "epsilon");
    std::int64_t channels = Integers(blob_->header(), "x")[1];
    for (const TensorView& tensor : blob_->tensors()) {
      if (!tensor.is_float32() || ElementsOf(tensor.shape, 0, "") != channels) {
        TVM_FFI_THROW(ValueError) << "cudnn kernel: the blob's tensors do not fit its header";
      }
    }
  }

  Object Contiguous(const std::vector<int>& extents, int type) const {
    std::vector<int> strides(extents.size(), 1);
    for (std::size_t i = extents.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * extents[i];
    return DescribeTensor(type, extents, strides);
  }

  void Prepare() {
    std::vector<int> extents = Ints("x");
    x_ = Contiguous(extents, type_);
    if (operation_ == "pooling") PreparePooling();
    if (operation_ == "batch_norm") {
      std::vector<int> per_channel(extents.size(), 1);
      per_channel[1] = extents[1];
      how_ = Contiguous(per_channel, dnn::kFloat);
      if (constants_.empty()) constants_ = cuda::Upload(blob_->tensors());
    }
    y_ = Contiguous(Ints("y"), type_);
  }

  void PreparePooling() {
    std::string name = blob_->GetString("mode", "max");
    int mode = name == "max"       ? dnn::kMax
               : name == "average" ? dnn::kAverageAll
                                   : dnn::kAverageInside;
    std::vector<int> window = Ints("window");
    how_ = Describe("Pooling");
    Library::Get().Call<dnn::SetPooling>("cudnnSetPoolingNdDescriptor", how_.get(), mode,
                                         dnn::kPropagateNan, static_cast<int>(window.size()),
                                         window.data(), Ints("pads").data(),
                                         Ints("strides").data());
  }

  std::shared_ptr<const Blob> blob_;
  std::string operation_;
  int type_ = 0;
  std::vector<Argument> expected_;
  Object x_, y_, how_;
  std::vector<cuda::Memory> constants_;
};

const RegisterKernel kRegistered(kKind, [](const KernelSpec& spec) {
  if (spec.blob->header().count(tvm::ffi::String("graphs")) > 0) return MakeGraphKernel(spec);
  return std::unique_ptr<Kernel>(new Cudnn(spec));
});

}  // namespace
}  // namespace cudnn
}  // namespace collage
