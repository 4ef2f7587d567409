// A complete model, unchanged, in a framework: it takes inputs of every shape that the framework takes.
//
// A kernel has static shapes and belongs to an executable; an original model stands beside the executable, for the
// inputs that no function takes. A value of a model is one of
//
//   a tensor                             on the host, contiguous
//   ["strings", shape, [bytes, ...]]     a tensor of text in UTF-8
//   ["sequence", [value, ...]]
//   ["map", keys, values]                two tensors of one dimension
//   null                                 no value: an input with a default, an empty optional output
//
// A type that DLPack does not have (float8) is passed as integers of the same size.
//
//   collage.open_original(framework, settings, model, weights_folder) -> function
//
// `settings` is a blob without tensors (blob.h); its entries are those of the framework's kernel. `model` is a path of
// the ONNX file; `weights_folder` is the folder of its external data, or "". The function takes the values of
// the inputs in the order of the entry `input_names`, and returns an array with those of the outputs.
#ifndef COLLAGE_ORIGINAL_MODEL_H_
#define COLLAGE_ORIGINAL_MODEL_H_

#include <tvm/ffi/any.h>
#include <tvm/ffi/container/array.h>

#include <memory>
#include <string>
#include <string_view>

#include "core/kernel.h"

namespace collage {

using ModelValue = tvm::ffi::Any;
using ModelValues = tvm::ffi::Array<tvm::ffi::Any>;

constexpr char kStrings[] = "strings";
constexpr char kSequence[] = "sequence";
constexpr char kMap[] = "map";

// The source of a model: the bytes of its ONNX file, and the folder of its external data or "".
struct ModelSource {
  std::string_view bytes;
  std::string weights_folder;
};

class OriginalModel {
 public:
  virtual ~OriginalModel() = default;

  // Calls never overlap on one model. Throws a ffi error where the framework refuses the inputs.
  virtual ModelValues Run(const ModelValues& inputs) = 0;
};

// `source` is valid during the call only.
using OpenModel = std::unique_ptr<OriginalModel> (*)(const KernelSpec& settings,
                                                     const ModelSource& source);

// Registers `open` for a framework while the plug-in is loaded.
struct RegisterFramework {
  RegisterFramework(const char* name, OpenModel open);
};

// `value` as a tensor of the host; a ffi TypeError that names the input otherwise.
tvm::ffi::Tensor TensorOf(const ModelValue& value, const std::string& input);

}  // namespace collage

#endif  // COLLAGE_ORIGINAL_MODEL_H_
