// From a program to a list of calls: chooses layouts, inserts reorders, packs weights, and lays out
// the arena (arena.h).
//
// An intermediate value keeps the layout that its producer chose. It is reordered only when a
// reader wants another one, once per layout; weights are reordered here, never in a call. A step
// whose best implementation would be oneDNN's reference one is tried with plain operands, then with
// fewer post-operations; those left over become steps of their own.
//
// Products may multiply bfloat16 (and sum in float32). What they read is reordered to it where it is
// not already, and results stay in it until they leave the kernel; other steps compute in what they
// are given.
#ifndef COLLAGE_ONEDNN_BUILDER_H_
#define COLLAGE_ONEDNN_BUILDER_H_

#include <memory>
#include <string>
#include <vector>

#include "core/blob.h"
#include "onednn/onednn_api.h"
#include "core/arena.h"
#include "onednn/onednn_program.h"

namespace collage::onednn {

struct Call {
  std::string name;
  Primitive primitive;
  std::vector<dnnl_exec_arg_t> arguments;
};

// A memory that follows an argument of the kernel, `offset` bytes into it.
struct Binding {
  Memory memory;
  std::size_t offset;
};

struct Schedule {
  std::vector<Call> calls;
  std::vector<std::vector<Binding>> bindings;         // per argument: inputs, then outputs
  std::vector<Memory> memories;                       // all others
  Pool weights;                                       // packed
  std::vector<std::shared_ptr<char>> shared_weights;  // packed, with kernels of other functions
  Bytes arena;
};

// Throws a ffi RuntimeError that names the step when oneDNN refuses one.
Schedule Build(const Program& program, const Blob& blob, Layout layout, Type products);

}  // namespace collage::onednn

#endif  // COLLAGE_ONEDNN_BUILDER_H_
