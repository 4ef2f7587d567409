// The program in the header of a "onednn" blob (written by collage/backends/cpu/onednn/program.py):
//
//   values   [[dim, ...], ...]  float32 tensors, numbered by position
//   inputs, outputs             numbers of values, in the order of the kernel's arguments
//   weights                     numbers of the values of the blob's tensors, in order
//   steps    [{"op", "in": [value, ...], "out": value, "post": [...], attributes...}, ...]
//
// A step is one oneDNN primitive ("convolution", "matmul", ...), or a view without data movement ("reshape",
// "permute", "slice"). "post" lists its post-ops: {"eltwise": algorithm, "alpha", "beta"} or
// {"binary": algorithm, "value": operand}.
#ifndef COLLAGE_ONEDNN_PROGRAM_H_
#define COLLAGE_ONEDNN_PROGRAM_H_

#include <string>
#include <utility>
#include <vector>

#include "core/blob.h"
#include "onednn/onednn_api.h"

namespace collage::onednn {

struct PostOp {
  dnnl_alg_kind_t algorithm = dnnl_alg_kind_undef;
  float alpha = 0;
  float beta = 0;
  int value = -1;  // second operand of a binary algorithm; -1 for an element-wise one
};

struct Step {
  int position = 0;
  std::string name;  // number and operator, for errors
  std::string op;
  std::vector<int> inputs;
  int output = -1;
  PostOp main{};  // of "eltwise" and "binary"
  std::vector<PostOp> post_ops;
  json::Object attributes;

  bool is_view() const { return op == "reshape" || op == "permute" || op == "slice"; }
  dnnl_alg_kind_t algorithm() const;
  Dims dims(const char* key) const;
  dnnl_dim_t integer(const char* key) const;
  float number(const char* key) const;
};

struct Program {
  std::vector<Dims> values;
  std::vector<int> inputs, outputs, weights;
  std::vector<Step> steps;

  // Throws a ffi ValueError for an invalid header.
  static Program Parse(const Blob& blob);
};

// Throws a ffi ValueError for numbers or shapes outside of oneDNN's domain, and for values with two producers
// (onednn_checks.cc).
void CheckProgram(const Program& program);

// The chosen primitive of a step, with its arguments.
struct PrimitiveChoice {
  PrimitiveDesc primitive;
  std::vector<std::pair<int, int>> reads;  // (DNNL_ARG_*, value)
};

// Layout of activations in convolutions.
enum class Layout { kAny, kBlocked, kChannelsLast, kPlain };

// Throws a ffi ValueError for another name than "f32" and "bf16".
Type ParseType(const std::string& name);

// Throws a ffi ValueError for another name than "any", "blocked" and "plain".
Layout ParseLayout(const std::string& name);

// Layouts of a step's operands and results.
struct LayoutContext {
  std::vector<Desc> layouts;  // per value: its layout in memory; null before its step
  std::vector<bool> fixed;    // per value: not a weight, so every call pays for a reorder
  std::vector<Desc>
      preferred_layouts;  // per value: the preferred layout of its only reader, or null
  Layout layout = Layout::kAny;
  Type products = dnnl_f32;  // dtype of the factors and results of products
};

// Number of layouts for the operands of `step`: best first, the last one plain.
int Attempts(const Step& step);

// The primitive of `step` in layout number `attempt`, with its first `post_op_count` post-ops. `primitive` is
// null if oneDNN has none.
PrimitiveChoice ChoosePrimitive(const Program& program, const Step& step,
                                const LayoutContext& context, int attempt,
                                std::size_t post_op_count);

}  // namespace collage::onednn

#endif  // COLLAGE_ONEDNN_PROGRAM_H_
