// Shared weights in oneDNN's layouts: kernels of several functions that ask for one layout read one memory.
#ifndef COLLAGE_ONEDNN_PACKED_WEIGHTS_H_
#define COLLAGE_ONEDNN_PACKED_WEIGHTS_H_

#include <cstddef>
#include <memory>

#include "core/shared_weights.h"
#include "onednn/onednn_api.h"

namespace collage::onednn {

// A packing: what it reads of a weight, and the layout of its result.
struct Packing {
  SharedWeight weight;
  std::size_t offset;  // bytes into the weight
  Desc source;
  Desc layout;
};

// The memory that a kernel has filled for an equal packing; null if there is none.
std::shared_ptr<char> FindPacked(const OneDnn& api, const Packing& packing);

// New memory for the packing's result. `KeepPacked` announces it when it is filled.
std::shared_ptr<char> AllocatePacked(const OneDnn& api, const Packing& packing);
void KeepPacked(const Packing& packing, const std::shared_ptr<char>& memory);

}  // namespace collage::onednn

#endif  // COLLAGE_ONEDNN_PACKED_WEIGHTS_H_
