// Convolutions with an epilogue, softmax and pooling by cuDNN. Blob: tensors are the weights of a
// convolution and its bias; header entries:
//   operation          "convolution", "softmax", "pooling"
//   dtype              "float32", "float16" or "bfloat16"; sums are in float32, without TF32
//   x, y               extents [batch, channels, spatial...]; of w too for a convolution
//   inputs             how many there are; the output follows
//   strides, pads      by spatial dimension, the same padding on both sides
// convolution:  w, dilations, group, activation ("none", "relu"), and
//               input, residual   which inputs they are; -1 for no residual
//               rank              which of the heuristic's proposals to take, 0 is its best
// pooling:      window, mode ("max", "average", "average_inside")
//
//   y = activation(x * w + bias + residual)
//
// What needs the device is made by the first call: descriptors, the copy of the constants, the workspace.
// Later calls allocate nothing, so they can be captured in a CUDA graph.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "cuda_runtime.h"
#include "cudnn_api.h"
#include "kernel.h"
#include "library.h"

namespace collage {
namespace {

constexpr char kKind[] = "cudnn";
constexpr float kOne = 1.0f, kZero = 0.0f;

class Library {
 public:
  static const Library& Get() {
    static const Library* library = new Library();
    return *library;
  }

  template <typename T>
  T Find(const char* symbol) const {
    return FindSymbolAs<T>(library_, kKind, symbol);
  }

  // Calls the function `symbol` of the interface's type T.
  template <typename T, typename... Args>
  void Call(const char* symbol, Args... args) const {
    int status = Find<T>(symbol)(args...);
    if (status == dnn::kSuccess) return;
    TVM_FFI_THROW(RuntimeError) << symbol << ": "
                                << Find<dnn::ErrorString>("cudnnGetErrorString")(status);
  }

  dnn::Handle handle() const { return handle_; }

 private:
  Library() : library_(OpenLibrary(kKind)) { Call<dnn::Create>("cudnnCreate", &handle_); }

  void* library_;
  dnn::Handle handle_ = nullptr;
};

// A descriptor, e.g. `kind` "Tensor", destroyed with what destroys its kind.
class Described {
 public:
  explicit Described(const char* kind) : kind_(kind) {
    Library::Get().Call<dnn::Create>(("cudnnCreate" + kind_ + "Descriptor").c_str(), &object_);
  }
  ~Described() {
    Library::Get().Find<dnn::Destroy>(("cudnnDestroy" + kind_ + "Descriptor").c_str())(object_);
  }
  Described(const Described&) = delete;
  Described& operator=(const Described&) = delete;

  dnn::Descriptor get() const { return object_; }

 private:
  std::string kind_;
  dnn::Descriptor object_ = nullptr;
};

using Object = std::unique_ptr<Described>;

int TypeOf(const std::string& name) {
  if (name == "float32") return dnn::kFloat;
  if (name == "float16") return dnn::kHalf;
  if (name == "bfloat16") return dnn::kBfloat16;
  TVM_FFI_THROW(ValueError) << "cudnn kernel: dtype " << name;
  TVM_FFI_UNREACHABLE();
}

class Cudnn : public Kernel {
 public:
  explicit Cudnn(const KernelSpec& spec)
      : blob_(spec.blob), operation_(blob_->GetString("operation", "")) {
    if (operation_ != "convolution" && operation_ != "softmax" && operation_ != "pooling") {
      TVM_FFI_THROW(ValueError) << "cudnn kernel: no operation '" << operation_ << "'";
    }
    type_ = TypeOf(blob_->GetString("dtype", ""));
    inputs_ = static_cast<int>(blob_->GetInt("inputs", 1));
    input_ = static_cast<int>(blob_->GetInt("input", 0));
    residual_ = static_cast<int>(blob_->GetInt("residual", -1));
    if (input_ < 0 || input_ >= inputs_ || residual_ >= inputs_) {
      TVM_FFI_THROW(ValueError) << "cudnn kernel: an operand is none of its " << inputs_ << " inputs";
    }
  }

  void Run(DLTensor* const* args, int count) override {
    if (count != inputs_ + 1) {
      TVM_FFI_THROW(ValueError) << "cudnn kernel: " << count << " tensors, not " << inputs_ + 1;
    }
    const DLTensor* output = args[inputs_];
    cuda::CheckOnDevice(output, kKind);
    const Library& library = Library::Get();
    library.Call<dnn::SetStream>("cudnnSetStream", library.handle(),
                                 cuda::CurrentStream(output->device));
    if (y_ == nullptr) Prepare();
    const void* x = DataOf(args[input_]);
    if (operation_ == "convolution") {
      Convolve(x, residual_ < 0 ? nullptr : DataOf(args[residual_]), DataOf(output));
    } else if (operation_ == "softmax") {
      library.Call<dnn::Softmax>("cudnnSoftmaxForward", library.handle(), dnn::kAccurate,
                                 dnn::kAcrossChannels, &kOne, x_->get(), x, &kZero, y_->get(),
                                 DataOf(output));
    } else {
      library.Call<dnn::Pool>("cudnnPoolingForward", library.handle(), how_->get(), &kOne,
                              x_->get(), x, &kZero, y_->get(), DataOf(output));
    }
  }

 private:
  std::vector<int> Ints(const char* key) const { return blob_->GetInts(key); }

  // A contiguous tensor.
  Object Tensor(const std::vector<int>& extents) const {
    std::vector<int> strides(extents.size(), 1);
    for (std::size_t i = extents.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * extents[i];
    Object made(new Described("Tensor"));
    Library::Get().Call<dnn::SetTensor>("cudnnSetTensorNdDescriptor", made->get(), type_,
                                        static_cast<int>(extents.size()), extents.data(),
                                        strides.data());
    return made;
  }

  void Prepare() {
    x_ = Tensor(Ints("x"));
    if (operation_ == "convolution") PrepareConvolution();
    if (operation_ == "pooling") PreparePooling();
    y_ = Tensor(Ints("y"));
    if (operation_ == "convolution") Choose();
  }

  void PreparePooling() {
    std::string name = blob_->GetString("mode", "max");
    int mode = name == "max"       ? dnn::kMax
               : name == "average" ? dnn::kAverageAll
                                   : dnn::kAverageInside;
    std::vector<int> window = Ints("window");
    how_.reset(new Described("Pooling"));
    Library::Get().Call<dnn::SetPooling>(
        "cudnnSetPoolingNdDescriptor", how_->get(), mode, dnn::kPropagateNan,
        static_cast<int>(window.size()), window.data(), Ints("pads").data(),
        Ints("strides").data());
  }

  void PrepareConvolution() {
    const Library& library = Library::Get();
    std::vector<int> w = Ints("w"), pads = Ints("pads"), per_channel(w.size(), 1);
    if (constants_.empty()) constants_ = cuda::Upload(blob_->tensors());
    if (constants_.size() != 2) TVM_FFI_THROW(ValueError) << "cudnn kernel: no weights, or no bias";
    w_.reset(new Described("Filter"));
    library.Call<dnn::SetFilter>("cudnnSetFilterNdDescriptor", w_->get(), type_, dnn::kNchw,
                                 static_cast<int>(w.size()), w.data());
    how_.reset(new Described("Convolution"));
    library.Call<dnn::SetConvolution>("cudnnSetConvolutionNdDescriptor", how_->get(),
                                      static_cast<int>(pads.size()), pads.data(),
                                      Ints("strides").data(), Ints("dilations").data(),
                                      dnn::kCrossCorrelation, dnn::kFloat);
    library.Call<dnn::SetInt>("cudnnSetConvolutionGroupCount", how_->get(),
                              static_cast<int>(blob_->GetInt("group", 1)));
    library.Call<dnn::SetInt>("cudnnSetConvolutionMathType", how_->get(), MathOf());
    per_channel[1] = w[0];
    bias_ = Tensor(per_channel);
    activation_.reset(new Described("Activation"));
    library.Call<dnn::SetActivation>("cudnnSetActivationDescriptor", activation_->get(),
                                     IsRelu() ? dnn::kRelu : dnn::kIdentity, dnn::kPropagateNan,
                                     0.0);
  }

  bool IsRelu() const { return blob_->GetString("activation", "none") == "relu"; }

  int MathOf() const { return type_ == dnn::kFloat ? dnn::kFullPrecision : dnn::kTensorCores; }

  // Takes the proposal of the given rank; each algorithm counts once, and float32 goes without tensor
  // cores, whose TF32 has 10 bits. Without an activation, cuDNN fuses the bias with one algorithm only.
  void Choose() {
    const Library& library = Library::Get();
    const auto rank = static_cast<std::size_t>(blob_->GetInt("rank", 0));
    std::vector<int> usable;
    std::vector<dnn::Proposal> found(dnn::kAlgorithms);
    int count = 0;
    library.Call<dnn::Propose>("cudnnGetConvolutionForwardAlgorithm_v7", library.handle(),
                               x_->get(), w_->get(), how_->get(), y_->get(), dnn::kAlgorithms,
                               &count, found.data());
    for (int i = 0; i < count; ++i) {
      const dnn::Proposal& one = found[i];
      bool fits = IsRelu() || one.algorithm == dnn::kPrecomputed;
      bool exact = type_ != dnn::kFloat || one.math == dnn::kDefaultMath ||
                   one.math == dnn::kFullPrecision;
      bool met = std::find(usable.begin(), usable.end(), one.algorithm) != usable.end();
      if (one.status == dnn::kSuccess && fits && exact && !met) usable.push_back(one.algorithm);
    }
    if (usable.size() <= rank) {
      y_.reset();
      TVM_FFI_THROW(RuntimeError) << "cuDNN proposes " << usable.size()
                                  << " algorithms, so there is none of rank " << rank;
    }
    algorithm_ = usable[rank];
    library.Call<dnn::WorkspaceSize>("cudnnGetConvolutionForwardWorkspaceSize", library.handle(),
                                     x_->get(), w_->get(), how_->get(), y_->get(), algorithm_,
                                     &workspace_size_);
    if (workspace_size_ > 0) workspace_ = cuda::Allocate(workspace_size_);
  }

  void Convolve(const void* x, const void* residual, void* y) const {
    const Library& library = Library::Get();
    library.Call<dnn::ConvolveFused>(
        "cudnnConvolutionBiasActivationForward", library.handle(), &kOne, x_->get(), x, w_->get(),
        constants_[0].get(), how_->get(), algorithm_, workspace_.get(), workspace_size_,
        residual == nullptr ? &kZero : &kOne, y_->get(), residual == nullptr ? y : residual,
        bias_->get(), constants_[1].get(), activation_->get(), y_->get(), y);
  }

  std::shared_ptr<const Blob> blob_;
  std::string operation_;
  int type_ = 0, inputs_ = 1, input_ = 0, residual_ = -1, algorithm_ = 0;
  Object x_, y_, w_, bias_, how_, activation_;
  std::size_t workspace_size_ = 0;
  cuda::Memory workspace_;
  std::vector<cuda::Memory> constants_;
};

const RegisterKernel kRegistered(kKind, [](const KernelSpec& spec) {
  return std::unique_ptr<Kernel>(new Cudnn(spec));
});

}  // namespace
}  // namespace collage
