// The way of inputs through a bundle, chosen as collage.runtime.dispatch does: a function of these shapes, else one of
// larger shapes where only padded axes differ, else the original model.
#ifndef SERVE_BUNDLE_WAYS_H_
#define SERVE_BUNDLE_WAYS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "manifest.h"

using Shape = std::vector<std::int64_t>;
using Shapes = std::map<std::string, Shape>;  // by name of the input

struct Way {
  const FunctionInfo* function = nullptr;  // null: the original model
  bool is_padded = false;
  std::map<std::string, double> fills;                               // by name of the input
  std::map<std::string, std::map<std::size_t, std::int64_t>> crops;  // extents by output and axis
};

// Throws std::runtime_error with the shapes of the functions where no way takes these.
Way ChooseWay(const Manifest& manifest, const Shapes& shapes);

// "1,3,8" as a shape; throws std::runtime_error for another text.
Shape ParseShape(const std::string& text);

#endif  // SERVE_BUNDLE_WAYS_H_
