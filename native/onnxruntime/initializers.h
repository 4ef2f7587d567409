// The large initializers of a serialised ONNX model, without a parser of protobuf.
#ifndef COLLAGE_INITIALIZERS_H_
#define COLLAGE_INITIALIZERS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace collage {

// An initializer with its data inside the model.
struct Initializer {
  std::string name;
  int element = 0;  // ONNXTensorElementDataType, the number of the ONNX type
  std::vector<std::int64_t> shape;
  std::string_view data;
};

// The initializers of the main graph whose numbers are raw bytes. Empty if the bytes are damaged: ONNX Runtime says
// what is wrong with them.
std::vector<Initializer> ReadInitializers(std::string_view model);

}  // namespace collage

#endif  // COLLAGE_INITIALIZERS_H_
