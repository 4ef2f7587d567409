// The original model of a bundle in its framework, through the plug-in's `collage.open_original`
// (native/core/original_model.h describes settings and values).
#ifndef SERVE_BUNDLE_ORIGINAL_H_
#define SERVE_BUNDLE_ORIGINAL_H_

#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>

#include <map>
#include <string>
#include <vector>

#include "folder.h"
#include "manifest.h"

class OriginalModel {
 public:
  // Throws std::runtime_error for a model with a file of weights, or with values that are no tensors.
  OriginalModel(const Folder& folder, const FallbackInfo& fallback, int threads);

  // The outputs in the order of the manifest. Inputs with a default may be missing.
  std::vector<tvm::ffi::Tensor> Run(const std::map<std::string, tvm::ffi::Tensor>& inputs) const;

 private:
  const FallbackInfo& fallback_;
  Descriptor file_;
  tvm::ffi::Function model_;
};

#endif  // SERVE_BUNDLE_ORIGINAL_H_
