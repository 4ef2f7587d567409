// The program in the header of a "onednn" blob (written by collage/backends/cpu/onednn/program.py):
//
//   values   [[dim, ...], ...]  float32 tensors, numbered
//   inputs, outputs             their numbers, in the order of the kernel's arguments
//   weights                     numbers of the values that the blob's tensors hold, in order
//   steps    [{"op", "in": [value, ...], "out": value, "post": [...], attributes...}, ...]
//
// A step is one oneDNN primitive ("convolution", "matmul", ...), or a view that moves nothing
// ("reshape", "permute", "slice"). "post" lists what happens to the result before it is written:
// {"eltwise": algorithm, "alpha", "beta"} or {"binary": algorithm, "value": operand}.
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
  std::vector<PostOp> post;
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

  // Throws a ffi ValueError that says what is wrong with the header.
  static Program Parse(const Blob& blob);
};

// Throws a ffi ValueError where numbers or shapes are not such as oneDNN may be given, or a value is made
// twice (onednn_checks.cc).
void CheckProgram(const Program& program);

// A primitive and which value it reads as which argument.
struct Recipe {
  PrimitiveDesc primitive;
  std::vector<std::pair<int, int>> reads;  // (DNNL_ARG_*, value)
};

// How convolutions lay out activations.
enum class Layout { kAny, kBlocked, kChannelsLast, kPlain };

// Throws a ffi ValueError for another name than "f32" and "bf16".
Type ParseType(const std::string& name);

// Throws a ffi ValueError for another name than "any", "blocked" and "plain".
Layout ParseLayout(const std::string& name);

// What a step may know about the values around it.
struct Surroundings {
  std::vector<Desc> layouts;  // per value: how it lies in memory; null while not made
  std::vector<bool> fixed;    // per value: not a weight, so a reorder is paid at every call
  std::vector<Desc> wishes;   // per value: the layout that its only reader likes best, or null
  Layout layout = Layout::kAny;
  Type products = dnnl_f32;  // what convolutions and matrix products multiply, and hand on
};

// Number of ways to lay out the operands of `step`, best first, the last always plain.
int Attempts(const Step& step);

// The primitive of `step` in one of these ways, with the first `posts` of its post-operations.
// `primitive` is null when oneDNN has none.
Recipe MakeRecipe(const Program& program, const Step& step, const Surroundings& around, int attempt,
                  std::size_t posts);

}  // namespace collage::onednn

#endif  // COLLAGE_ONEDNN_PROGRAM_H_
