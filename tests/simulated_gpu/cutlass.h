// CUTLASS's templates on the simulated GPU, as far as generated code names them: products and convolutions by
// loops, from the same arguments. The declarations are as strict as what they stand for: test_compile.py
// compiles the same sources with the real ones.
#ifndef SIMULATED_CUTLASS_H_
#define SIMULATED_CUTLASS_H_

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

namespace cutlass {

enum class Status { kSuccess, kErrorMisalignedOperand, kErrorInvalidProblem };

inline const char* cutlassGetStatusString(Status status) {
  return status == Status::kSuccess               ? "Success"
         : status == Status::kErrorInvalidProblem ? "Error Invalid Problem"
                                                  : "Error Misaligned Operand";
}

using half_t = half;
using bfloat16_t = nv_bfloat16;

namespace arch {
struct OpClassSimt {};
struct OpClassTensorOp {};
struct OpMultiplyAdd {};
struct Sm80 {};
}  // namespace arch

namespace layout {
struct RowMajor {
  static std::int64_t At(std::int64_t row, std::int64_t column, std::int64_t lead) {
    return row * lead + column;
  }
};
struct ColumnMajor {
  static std::int64_t At(std::int64_t row, std::int64_t column, std::int64_t lead) {
    return row + column * lead;
  }
};
struct TensorNHWC {
  struct TensorCoord {
    int n, h, w, c;
  };
  struct Stride {  // of a pixel, a row, an image
    std::int64_t pixel, row, image;
    Stride(std::int64_t pixel, std::int64_t row, std::int64_t image)
        : pixel(pixel), row(row), image(image) {}
    explicit Stride(std::int64_t all) : Stride(all, all, all) {}
  };
  Stride stride;
  TensorNHWC(Stride stride) : stride(stride) {}  // NOLINT: as CUTLASS's, not explicit
  static TensorNHWC packed(const TensorCoord& extent) {
    std::int64_t pixel = extent.c, row = pixel * extent.w;
    return TensorNHWC(Stride(pixel, row, row * extent.h));
  }
  std::int64_t At(std::int64_t n, std::int64_t h, std::int64_t w, std::int64_t c) const {
    return n * stride.image + h * stride.row + w * stride.pixel + c;
  }
};
}  // namespace layout

template <typename T, typename Layout>
struct TensorRef {
  T* data;
  Layout layout;
};

namespace epilogue::thread {

template <typename T>
struct Identity {
  T operator()(T x) const { return x; }
};
template <typename T>
struct ReLu {
  T operator()(T x) const { return x > 0 ? x : 0; }
};
template <typename T>
struct GELU {
  T operator()(T x) const { return 0.5f * x * (1 + std::erf(x * 0.70710678f)); }
};
template <typename T>
struct GELU_taylor {
  T operator()(T x) const {
    return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
  }
};
template <typename T>
struct Sigmoid {
  T operator()(T x) const { return 1 / (1 + std::exp(-x)); }
};
template <typename T>
struct SiLu {
  T operator()(T x) const { return x / (1 + std::exp(-x)); }
};
template <typename T>
struct Tanh {
  T operator()(T x) const { return std::tanh(x); }
};

template <template <typename> class Activation, typename Output, int count, typename Accumulator,
          typename Compute>
struct LinearCombinationGeneric {
  static constexpr int kCount = count;
  struct Params {
    Compute alpha, beta;
  };
  // `source` is asked for only where it counts: it may be no number.
  static Output Of(const Params& how, Accumulator sum, const std::function<Output()>& source) {
    Compute value = how.alpha * sum;
    if (how.beta != 0) value += how.beta * static_cast<Compute>(source());
    return Output(Activation<Compute>()(value));
  }
};

}  // namespace epilogue::thread

// float32 on tensor cores is rounded to TF32; sums are in float32 everywhere.
template <typename T, typename Class>
float Factor(T value) {
  constexpr bool rounds = std::is_same_v<T, float> && std::is_same_v<Class, arch::OpClassTensorOp>;
  return rounds ? simulated::RoundToTf32(value) : static_cast<float>(value);
}

inline Status Enqueued(void* stream, const std::string& name, const std::vector<const void*>& used,
                       simulated::Work work) {
  for (const void* one : used) {
    if (!simulated::IsDevice(one)) simulated::Lose(simulated::kIllegalAddress);
  }
  int error = simulated::Enqueue(stream, name.c_str(), std::move(work));
  return error == simulated::kSuccess ? Status::kSuccess : Status::kErrorInvalidProblem;
}

template <typename T, typename Class>
std::string Cores() {
  bool rounds = std::is_same_v<T, float> && std::is_same_v<Class, arch::OpClassTensorOp>;
  return rounds ? " in TF32" : "";
}

namespace gemm {

template <int m, int n, int k>
struct GemmShape {
  static constexpr int kM = m, kN = n, kK = k;
};

struct GemmCoord {
  int m, n, k;
};

enum class GemmUniversalMode { kGemm, kBatched };

namespace threadblock {
template <int n>
struct GemmIdentityThreadblockSwizzle {};
}  // namespace threadblock

namespace device {

template <typename ElementA, typename LayoutA, typename ElementB, typename LayoutB,
          typename ElementC, typename LayoutC, typename Accumulator, typename Class, typename Arch,
          typename Block, typename Warp, typename Instruction, typename Epilogue, typename Swizzle,
          int stages, int align_a, int align_b>
class GemmUniversal {
 public:
  struct Arguments {
    GemmUniversalMode mode;
    GemmCoord extents;
    int batch;
    typename Epilogue::Params epilogue;
    const void *a, *b, *c;
    void* d;
    std::int64_t stride_a, stride_b, stride_c, stride_d, lead_a, lead_b, lead_c, lead_d;
  };

  static Status can_implement(const Arguments& one) {
    bool fits = one.lead_a % align_a == 0 && one.lead_b % align_b == 0 &&
                one.lead_c % Epilogue::kCount == 0 && one.lead_d % Epilogue::kCount == 0 &&
                one.extents.n % Epilogue::kCount == 0;
    return fits ? Status::kSuccess : Status::kErrorMisalignedOperand;
  }
  static std::size_t get_workspace_size(const Arguments&) { return 0; }
  Status initialize(const Arguments& one, void*, void*) {
    arguments_.assign(1, one);
    return Status::kSuccess;
  }
  Status operator()(void* stream) {
    Arguments one = arguments_.at(0);
    return Enqueued(stream, "cutlass gemm" + Cores<ElementA, Class>(), {one.a, one.b, one.c, one.d},
                    [one] { Compute(one); });
  }

 private:
  static void Compute(const Arguments& one) {
    auto* a = static_cast<const ElementA*>(one.a);
    auto* b = static_cast<const ElementB*>(one.b);
    auto* c = static_cast<const ElementC*>(one.c);
    auto* d = static_cast<ElementC*>(one.d);
    for (int batch = 0; batch < one.batch; ++batch)
      for (int m = 0; m < one.extents.m; ++m)
        for (int n = 0; n < one.extents.n; ++n) {
          float sum = 0;
          for (int k = 0; k < one.extents.k; ++k) {
            sum +=
                Factor<ElementA, Class>(a[batch * one.stride_a + LayoutA::At(m, k, one.lead_a)]) *
                Factor<ElementB, Class>(b[batch * one.stride_b + LayoutB::At(k, n, one.lead_b)]);
          }
          d[batch * one.stride_d + LayoutC::At(m, n, one.lead_d)] =
              Epilogue::Of(one.epilogue, sum,
                           [&] { return c[batch * one.stride_c + LayoutC::At(m, n, one.lead_c)]; });
        }
  }

  std::vector<Arguments> arguments_;
};

}  // namespace device
}  // namespace gemm

namespace conv {

enum class Mode { kCrossCorrelation, kConvolution };
enum class IteratorAlgorithm { kAnalytic, kOptimized };
enum class StrideSupport { kStrided, kUnity };

struct Conv2dProblemSize {
  Conv2dProblemSize(int N, int H, int W, int C, int K, int R, int S, int P, int Q, int pad_h,
                    int pad_w, int stride_h, int stride_w, int dilation_h, int dilation_w,
                    Mode mode)
      : N(N),
        H(H),
        W(W),
        C(C),
        K(K),
        R(R),
        S(S),
        P(P),
        Q(Q),
        pad_h(pad_h),
        pad_w(pad_w),
        stride_h(stride_h),
        stride_w(stride_w),
        dilation_h(dilation_h),
        dilation_w(dilation_w),
        mode(mode) {}
  int N, H, W, C, K, R, S, P, Q, pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w;
  Mode mode;
};

namespace kernel {

template <typename A, typename LayoutA, typename B, typename LayoutB, typename C, typename LayoutC,
          typename Accumulator, typename Class, typename Arch, typename Block, typename Warp,
          typename Instruction, typename EpilogueOp, typename Swizzle, int stages, typename Math,
          IteratorAlgorithm algorithm, StrideSupport strides, int align_a, int align_b>
struct DefaultConv2dFprop {
  struct Kernel {
    using Element = A;
    using Operator = Class;
    using Epilogue = EpilogueOp;
    static constexpr int kAlignA = align_a, kAlignB = align_b;
    static constexpr bool kKeepsBits = algorithm == IteratorAlgorithm::kOptimized;
  };
};

}  // namespace kernel

namespace device {

template <typename Kernel>
class ImplicitGemmConvolution {
 public:
  using Element = typename Kernel::Element;
  using Epilogue = typename Kernel::Epilogue;
  using Class = typename Kernel::Operator;
  using Tensor = TensorRef<Element, layout::TensorNHWC>;

  struct Arguments {
    Conv2dProblemSize problem;
    Tensor x, weights, source, result;
    typename Epilogue::Params epilogue;
  };

  static Status can_implement(const Arguments& one) {
    const Conv2dProblemSize& p = one.problem;
    if (p.C % Kernel::kAlignA != 0 || p.C % Kernel::kAlignB != 0 || p.K % Epilogue::kCount != 0) {
      return Status::kErrorMisalignedOperand;
    }
    bool fits = !Kernel::kKeepsBits || (p.R <= 32 && p.S <= 32);
    return fits ? Status::kSuccess : Status::kErrorInvalidProblem;
  }
  static std::size_t get_workspace_size(const Arguments&) { return 0; }
  Status initialize(const Arguments& one, void*, void*) {
    arguments_.assign(1, one);
    return Status::kSuccess;
  }
  Status operator()(void* stream) {
    Arguments one = arguments_.at(0);
    return Enqueued(stream, "cutlass convolution" + Cores<Element, Class>(),
                    {one.x.data, one.weights.data, one.source.data, one.result.data},
                    [one] { Compute(one); });
  }

 private:
  static float Sum(const Arguments& one, int n, int p, int q, int k) {
    const Conv2dProblemSize& size = one.problem;
    bool mirrored = size.mode == Mode::kConvolution;
    float sum = 0;
    for (int r = 0; r < size.R; ++r)
      for (int s = 0; s < size.S; ++s) {
        int h = p * size.stride_h - size.pad_h + (mirrored ? size.R - 1 - r : r) * size.dilation_h;
        int w = q * size.stride_w - size.pad_w + (mirrored ? size.S - 1 - s : s) * size.dilation_w;
        if (h < 0 || h >= size.H || w < 0 || w >= size.W) continue;
        for (int c = 0; c < size.C; ++c) {
          sum += Factor<Element, Class>(one.x.data[one.x.layout.At(n, h, w, c)]) *
                 Factor<Element, Class>(one.weights.data[one.weights.layout.At(k, r, s, c)]);
        }
      }
    return sum;
  }

  static void Compute(const Arguments& one) {
    const Conv2dProblemSize& size = one.problem;
    for (int n = 0; n < size.N; ++n)
      for (int p = 0; p < size.P; ++p)
        for (int q = 0; q < size.Q; ++q)
          for (int k = 0; k < size.K; ++k) {
            one.result.data[one.result.layout.At(n, p, q, k)] =
                Epilogue::Of(one.epilogue, Sum(one, n, p, q, k),
                             [&] { return one.source.data[one.source.layout.At(n, p, q, k)]; });
          }
  }

  std::vector<Arguments> arguments_;
};

}  // namespace device
}  // namespace conv
}  // namespace cutlass

#endif  // SIMULATED_CUTLASS_H_
