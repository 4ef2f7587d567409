// Activations of the plug-in's own kernels, applied before a result is stored.
#ifndef COLLAGE_ACTIVATION_H_
#define COLLAGE_ACTIVATION_H_

#include <cstdint>

namespace collage {

enum class Activation : std::int64_t {
  kNone,
  kClamp,        // min(max(x, a), b)
  kLeakyRelu,    // x < 0 ? a * x : x
  kSigmoid,      // 1 / (1 + exp(-x))
  kSilu,         // x * sigmoid(x)
  kHardSigmoid,  // min(max(a * x + b, 0), 1)
  kHardSwish,    // x * hard_sigmoid(x)
  kLinear,       // a * x + b
};
constexpr std::int64_t kActivations = 8;

struct Function {
  Activation kind = Activation::kNone;
  float a = 0;
  float b = 0;
};

}  // namespace collage

#endif  // COLLAGE_ACTIVATION_H_
