// cuBLASLt on the simulated GPU: products by loops, in column-major order as the library means them.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cublas/cublaslt_api.h"
#include "gpu.h"
#include "numbers.h"

using namespace simulated;  // NOLINT: the entry points below are C's
namespace lt = collage::lt;

namespace {

struct Descriptor {
  bool rounds = false;
  std::int32_t turned_a = 0, turned_b = 0;
  std::uint32_t epilogue = lt::kDefault;
  const void* bias = nullptr;
};

struct Layout {
  int type = 0;
  std::int64_t rows = 0, columns = 0, lead = 0, stride = 0;
  std::int32_t batch = 1;
};

struct Preference {
  std::uint64_t workspace = 0;
};

float Activated(float x, std::uint32_t epilogue) {
  if (epilogue & lt::kRelu) x = x > 0 ? x : 0;
  if (epilogue & lt::kGelu) {
    x = 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
  }
  return x;
}

Dtype Width(int type) {
  return type == lt::kFloat32   ? Dtype::kFloat
         : type == lt::kFloat16 ? Dtype::kHalf
                                : Dtype::kBfloat;
}

struct Operand {
  const void* data;
  Layout layout;
  bool turned;

  float At(std::int64_t batch, std::int64_t row, std::int64_t column) const {
    std::int64_t place = turned ? column + row * layout.lead : row + column * layout.lead;
    return Load(data, Width(layout.type), batch * layout.stride + place);
  }
};

// On tensor cores once; the ordinary ones, which do not round, take longer: they do it three times.
constexpr int kSlower = 3;

void Multiply(const Descriptor& how, float alpha, Operand a, Operand b, float beta, Operand c,
              void* output, Layout d) {
  std::int64_t depth = a.turned ? a.layout.rows : a.layout.columns;
  for (std::int64_t batch = 0; batch < d.batch; ++batch)
    for (std::int64_t column = 0; column < d.columns; ++column)
      for (std::int64_t row = 0; row < d.rows; ++row) {
        float sum = 0;
        for (std::int64_t k = 0; k < depth; ++k) {
          float left = a.At(batch, row, k), right = b.At(batch, k, column);
          sum += how.rounds ? RoundToTf32(left) * RoundToTf32(right) : left * right;
        }
        float value = alpha * sum;
        if (beta != 0) value += beta * c.At(batch, row, column);
        if (how.epilogue & lt::kBias) value += Load(how.bias, Width(d.type), row);
        Store(output, Width(d.type), batch * d.stride + row + column * d.lead,
              Activated(value, how.epilogue));
      }
}

template <typename T>
int Make(void** made, const T& value = T()) {
  *made = new T(value);
  return kSuccess;
}

}  // namespace

extern "C" {

int cublasLtCreate(void** handle) { return Make<int>(handle); }
std::size_t cublasLtGetVersion() { return 130000; }
const char* cublasLtGetStatusString(int status) { return status == 7 ? "invalid value" : "failed"; }

int cublasLtMatmulDescCreate(void** made, int compute, int scale) {
  Descriptor one;
  one.rounds = compute == lt::kCompute32FFastTf32 && IsTf32Allowed();
  bool known = compute == lt::kCompute32F || compute == lt::kCompute32FFastTf32;
  return known && scale == lt::kFloat32 ? Make(made, one) : 7;
}

int cublasLtMatmulDescDestroy(void* one) {
  delete static_cast<Descriptor*>(one);
  return kSuccess;
}

int cublasLtMatmulDescSetAttribute(void* of, int attribute, const void* value, std::size_t size) {
  auto* one = static_cast<Descriptor*>(of);
  void* to = attribute == lt::kTransA        ? static_cast<void*>(&one->turned_a)
             : attribute == lt::kTransB      ? static_cast<void*>(&one->turned_b)
             : attribute == lt::kEpilogue    ? static_cast<void*>(&one->epilogue)
             : attribute == lt::kBiasPointer ? static_cast<void*>(&one->bias)
                                             : nullptr;
  if (to == nullptr || size != (attribute == lt::kBiasPointer ? 8 : 4)) return 7;
  std::memcpy(to, value, size);
  return kSuccess;
}

int cublasLtMatrixLayoutCreate(void** made, int type, std::uint64_t rows, std::uint64_t columns,
                               std::int64_t lead) {
  Layout layout;
  layout.type = type;
  layout.rows = static_cast<std::int64_t>(rows);
  layout.columns = static_cast<std::int64_t>(columns);
  layout.lead = lead;
  return Make<Layout>(made, layout);
}

int cublasLtMatrixLayoutDestroy(void* one) {
  delete static_cast<Layout*>(one);
  return kSuccess;
}

int cublasLtMatrixLayoutSetAttribute(void* of, int attribute, const void* value, std::size_t size) {
  auto* one = static_cast<Layout*>(of);
  if (attribute == lt::kBatchCount && size == 4) {
    std::memcpy(&one->batch, value, size);
  } else if (attribute == lt::kBatchOffset && size == 8) {
    std::memcpy(&one->stride, value, size);
  } else {
    return 7;
  }
  return kSuccess;
}

int cublasLtMatmulPreferenceCreate(void** made) { return Make<Preference>(made); }

int cublasLtMatmulPreferenceDestroy(void* one) {
  delete static_cast<Preference*>(one);
  return kSuccess;
}

int cublasLtMatmulPreferenceSetAttribute(void*, int, const void*, std::size_t) { return kSuccess; }

int cublasLtMatmulAlgoGetHeuristic(void*, void*, void*, void*, void*, void*, void*, int requested,
                                   lt::Heuristic* found, int* count) {
  *count = requested < 4 ? requested : 4;
  for (int rank = 0; rank < *count; ++rank) {
    found[rank] = {};
    found[rank].workspace_size = 1024;
  }
  return kSuccess;
}

int cublasLtMatmul(void*, void* descriptor, const void* alpha, const void* a, void* a_layout,
                   const void* b, void* b_layout, const void* beta, const void* c, void* c_layout,
                   void* d, void* d_layout, const lt::Algorithm*, void* workspace, std::size_t,
                   void* stream) {
  Descriptor how = *static_cast<Descriptor*>(descriptor);
  for (const void* one :
       {a, b, c, static_cast<const void*>(d), static_cast<const void*>(workspace)}) {
    if (!IsDevice(one)) return Lose(kIllegalAddress);
  }
  if ((how.epilogue & lt::kBias) && !IsDevice(how.bias)) return Lose(kIllegalAddress);
  float scale = *static_cast<const float*>(alpha), kept = *static_cast<const float*>(beta);
  Operand left{a, *static_cast<Layout*>(a_layout), how.turned_a == lt::kOpT};
  Operand right{b, *static_cast<Layout*>(b_layout), how.turned_b == lt::kOpT};
  Operand summand{c, *static_cast<Layout*>(c_layout), false};
  Layout output = *static_cast<Layout*>(d_layout);
  const int times = how.rounds || output.type != lt::kFloat32 ? 1 : kSlower;
  return Enqueue(stream, how.rounds ? "cublasLtMatmul in TF32" : "cublasLtMatmul", [=] {
    for (int i = 0; i < times; ++i) Multiply(how, scale, left, right, kept, summand, d, output);
  });
}

}  // extern "C"
