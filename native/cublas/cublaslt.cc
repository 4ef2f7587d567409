// Matrix products by cuBLASLt: D = activation(alpha A B + bias + residual), all row-major on the device.
// cuBLASLt is column-major, so it is asked for the transposed product: a row-major matrix is its own
// transpose there. Blob: tensors are the constants; header entries:
//   dtype                        "float32", "float16" or "bfloat16"; sums are in float32
//   compute                      "tf32": factors in float32 are rounded to TF32; else they are not
//   m, n, k, batch               extents
//   left_stride, right_stride, residual_stride   between matrices of the batch; 0: the same one
//   left_transposed, right_transposed
//   left, right, bias, residual  operands: an input, or inputs + the number of a constant, or -1
//   inputs                       how many there are; the output follows
//   alpha (text), activation ("none", "relu", "gelu")
//   rank                         which of the heuristic's proposals to take, 0 is its best
//   workspace                    bytes that an algorithm may use
//
// The first call creates everything on the device: plans, the copy of the constants, the workspace. Later
// calls allocate nothing, so they can be captured in a CUDA graph.
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "cublas/cublaslt_api.h"
#include "cuda/cuda_runtime.h"
#include "core/kernel.h"
#include "core/sizes.h"
#include "core/vendor.h"

namespace collage {
namespace {

constexpr char kLt[] = "cublaslt";
constexpr std::uint32_t kLeastAlignment = 16;
constexpr std::int64_t kMostRank = 1000;

class Library : public vendor::Api {
 public:
  static const Library& Get() {
    static const Library* library = new Library();
    return *library;
  }

  void Check(int status, const char* what) const {
    if (status == lt::kSuccess) return;
    TVM_FFI_THROW(RuntimeError) << "cuBLASLt, " << what << ": "
                                << Find<lt::StatusString>("cublasLtGetStatusString")(status);
  }

  lt::Handle handle() const { return handle_; }
  lt::Matmul matmul() const { return matmul_; }

 private:
  Library() : Api(kLt) {
    matmul_ = Find<lt::Matmul>("cublasLtMatmul");
    Check(Find<lt::Create>("cublasLtCreate")(&handle_), "initialisation");
  }

  lt::Handle handle_ = nullptr;
  lt::Matmul matmul_ = nullptr;
};

using vendor::Object;

Object Own(void* object, const char* destroy) {
  return Object(object, {Library::Get().Find<lt::Destroy>(destroy)});
}

template <typename T>
void Set(const Object& object, const char* setter, int attribute, const T& value) {
  auto set = Library::Get().Find<lt::SetAttribute>(setter);
  Library::Get().Check(set(object.get(), attribute, &value, sizeof(value)), setter);
}

class CublasLt : public Kernel {
 public:
  explicit CublasLt(const KernelSpec& spec) : blob_(spec.blob) {
    type_ = vendor::TypeOf(blob_->GetString("dtype", ""),
                           {lt::kFloat32, lt::kFloat16, lt::kBfloat16}, kLt);
    dtype_ = ParseType(blob_->GetString("dtype", ""));
    inputs_ = InRange(Int("inputs"), 0, kMostExtent, "cublaslt kernel: 'inputs'");
    alpha_ = ReadAlpha(blob_->GetString("alpha", "1"));
    InRange(Int("rank"), 0, kMostRank, "cublaslt kernel: 'rank'");
    BytesOf(Int("workspace"), "cublaslt kernel: 'workspace'");
    for (const char* name : {"left", "right", "bias", "residual"}) {
      operands_.push_back(blob_->GetInt(name, -1));
      std::int64_t count = inputs_ + static_cast<std::int64_t>(blob_->tensors().size());
      bool needed = operands_.size() <= kBiasPlace;
      if (operands_.back() >= count || operands_.back() < (needed ? 0 : -1)) {
        TVM_FFI_THROW(ValueError) << "cublaslt kernel: no operand " << operands_.back();
      }
    }
    CountElements();
  }

  bool OnDevice() const override { return true; }

  void Run(DLTensor* const* args, int count) override {
    if (count != inputs_ + 1) {
      TVM_FFI_THROW(ValueError) << "cublaslt kernel: " << count << " tensors, not " << inputs_ + 1;
    }
    CheckOperands(args);
    const DLTensor* output = args[inputs_];
    if (descriptor_ == nullptr) Prepare();
    void* bias = Pointer(args, kBiasPlace);
    if (bias != nullptr) Describe(lt::kBiasPointer, bias);
    void* residual = Pointer(args, kResidualPlace);
    const float beta = residual == nullptr ? 0.0f : 1.0f;
    lt::Stream stream = cuda::CurrentStream(output->device);
    const Library& library = Library::Get();
    library.Check(
        library.matmul()(library.handle(), descriptor_.get(), &alpha_, Pointer(args, kRightPlace),
                         right_.get(), Pointer(args, kLeftPlace), left_.get(), &beta,
                         residual == nullptr ? DataOf(output) : residual, summand_.get(),
                         DataOf(output), output_.get(), &chosen_.algorithm, workspace_.get(),
                         chosen_.workspace_size, stream),
        "the product");
  }

 private:
  enum Place { kLeftPlace, kRightPlace, kBiasPlace, kResidualPlace };

  std::int64_t Int(const char* name) const { return blob_->GetInt(name, 0); }

  static float ReadAlpha(const std::string& text) {
    char* end = nullptr;
    float alpha = std::strtof(text.c_str(), &end);
    if (text.empty() || end != text.c_str() + text.size()) {
      TVM_FFI_THROW(ValueError) << "cublaslt kernel: 'alpha' is '" << text << "', no number";
    }
    return alpha;
  }

  // How many numbers each operand has at least, and the output.
  void CountElements() {
    auto extent = [&](const char* name) {
      return InRange(Int(name), 1, kMostExtent, std::string("cublaslt kernel: '") + name + "'");
    };
    std::int64_t m = extent("m"), n = extent("n"), k = extent("k");
    std::int64_t matrices = InRange(Int("batch"), 0, kMostExtent, "cublaslt kernel: 'batch'");
    if (matrices == 0) matrices = 1;
    auto all = [&](std::int64_t matrix, std::int64_t stride) {
      InRange(stride, 0, kMostBytes, "cublaslt kernel: a stride");
      return Plus(matrix, Times(matrices - 1, stride));
    };
    least_ = {all(Times(m, k), Int("left_stride")), all(Times(k, n), Int("right_stride")), n,
              all(Times(m, n), Int("residual_stride"))};
    output_elements_ = Times(matrices, m, n);
    for (std::size_t place = 0; place < operands_.size(); ++place) {
      if (operands_[place] < inputs_) continue;
      const TensorView& tensor = blob_->tensors()[Index(operands_[place] - inputs_)];
      if (!IsSame(tensor.dtype, dtype_) || ElementsOf(tensor.shape, 0, "") < least_[place]) {
        TVM_FFI_THROW(ValueError) << "cublaslt kernel: the blob's tensors do not fit its header";
      }
    }
  }

  void CheckOperands(DLTensor* const* args) const {
    for (std::size_t place = 0; place < operands_.size(); ++place) {
      std::int64_t number = operands_[place];
      if (number < 0 || number >= inputs_) continue;
      const DLTensor& tensor = *args[number];
      if (!IsSame(tensor.dtype, dtype_) || CountOf(tensor) < least_[place])
        RefuseArgument(kLt, Index(number), {least_[place], dtype_}, tensor);
    }
    Argument output{output_elements_, dtype_};
    if (!output.Fits(*args[inputs_])) RefuseArgument(kLt, Index(inputs_), output, *args[inputs_]);
  }

  static std::size_t Index(std::int64_t number) { return static_cast<std::size_t>(number); }

  void* Pointer(DLTensor* const* args, Place place) const {
    std::int64_t number = operands_[place];
    if (number < 0) return nullptr;
    return number < inputs_ ? DataOf(args[number]) : constants_[number - inputs_].get();
  }

  template <typename T>
  void Describe(int attribute, const T& value) {
    Set(descriptor_, "cublasLtMatmulDescSetAttribute", attribute, value);
  }

  // A column-major matrix, or a batch of them.
  Object MakeLayout(std::int64_t rows, std::int64_t columns, std::int64_t stride) const {
    const Library& library = Library::Get();
    lt::Layout layout = nullptr;
    auto create = library.Find<lt::LayoutCreate>("cublasLtMatrixLayoutCreate");
    library.Check(create(&layout, type_, rows, columns, rows), "a layout");
    Object object = Own(layout, "cublasLtMatrixLayoutDestroy");
    if (auto batch = static_cast<std::int32_t>(Int("batch")); batch > 1) {
      Set(object, "cublasLtMatrixLayoutSetAttribute", lt::kBatchCount, batch);
      Set(object, "cublasLtMatrixLayoutSetAttribute", lt::kBatchOffset, stride);
    }
    return object;
  }

  void Prepare() {
    const Library& library = Library::Get();
    if (constants_.empty()) constants_ = cuda::Upload(blob_->tensors());
    std::int64_t m = Int("m"), n = Int("n"), k = Int("k");
    bool left_turned = Int("left_transposed") != 0, right_turned = Int("right_transposed") != 0;
    left_ =
        left_turned ? MakeLayout(m, k, Int("left_stride")) : MakeLayout(k, m, Int("left_stride"));
    right_ = right_turned ? MakeLayout(k, n, Int("right_stride"))
                          : MakeLayout(n, k, Int("right_stride"));
    summand_ = MakeLayout(n, m, operands_[kResidualPlace] < 0 ? m * n : Int("residual_stride"));
    output_ = MakeLayout(n, m, m * n);
    lt::Descriptor descriptor = nullptr;
    auto create = library.Find<lt::DescriptorCreate>("cublasLtMatmulDescCreate");
    bool rounds = blob_->GetString("compute", "") == "tf32";
    int compute = rounds ? lt::kCompute32FFastTf32 : lt::kCompute32F;
    library.Check(create(&descriptor, compute, lt::kFloat32), "a descriptor");
    descriptor_ = Own(descriptor, "cublasLtMatmulDescDestroy");
    Describe(lt::kTransA, right_turned ? lt::kOpT : lt::kOpN);
    Describe(lt::kTransB, left_turned ? lt::kOpT : lt::kOpN);
    Describe(lt::kEpilogue, EpilogueOf());
    Choose();
  }

  std::uint32_t EpilogueOf() const {
    std::string name = blob_->GetString("activation", "none");
    std::uint32_t activation = name == "relu" ? lt::kRelu : name == "gelu" ? lt::kGelu : 0;
    std::uint32_t bias = operands_[kBiasPlace] < 0 ? 0 : lt::kBias;
    return (activation | bias) == 0 ? lt::kDefault : (activation | bias);
  }

  // Takes the proposal of the given rank; a bias pointer is not needed for proposals.
  void Choose() {
    const Library& library = Library::Get();
    lt::Preference preference = nullptr;
    library.Check(library.Find<lt::PreferenceCreate>("cublasLtMatmulPreferenceCreate")(&preference),
                  "a preference");
    Object owner = Own(preference, "cublasLtMatmulPreferenceDestroy");
    const auto workspace = static_cast<std::uint64_t>(Int("workspace"));
    const char* setter = "cublasLtMatmulPreferenceSetAttribute";
    Set(owner, setter, lt::kMaxWorkspace, workspace);
    for (int which = lt::kAlignmentA; which <= lt::kAlignmentD; ++which) {
      Set(owner, setter, which, kLeastAlignment);
    }
    const int rank = static_cast<int>(Int("rank"));
    std::vector<lt::Heuristic> proposals(rank + 1);
    int count = 0;
    library.Check(
        library.Find<lt::GetHeuristic>("cublasLtMatmulAlgoGetHeuristic")(
            library.handle(), descriptor_.get(), right_.get(), left_.get(), summand_.get(),
            output_.get(), preference, rank + 1, proposals.data(), &count),
        "the heuristic");
    if (count <= rank) {
      descriptor_.reset();
      TVM_FFI_THROW(RuntimeError) << "cuBLASLt's heuristic proposes " << count
                                  << " algorithms, so there is none of rank " << rank;
    }
    chosen_ = proposals[rank];
    if (chosen_.workspace_size > 0) workspace_ = cuda::Allocate(chosen_.workspace_size);
  }

  std::shared_ptr<const Blob> blob_;
  int type_ = 0;
  DLDataType dtype_{};
  std::int64_t inputs_ = 0, output_elements_ = 0;
  std::vector<std::int64_t> least_;  // elements, by operand
  float alpha_ = 1.0f;
  std::vector<std::int64_t> operands_;
  Object descriptor_, left_, right_, summand_, output_;
  lt::Heuristic chosen_ = {};
  cuda::Memory workspace_;
  std::vector<cuda::Memory> constants_;
};

const RegisterKernel kRegistered("cublaslt", [](const KernelSpec& spec) {
  return std::unique_ptr<Kernel>(new CublasLt(spec));
});

}  // namespace
}  // namespace collage
