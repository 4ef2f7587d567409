#include "ways.h"

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace {

constexpr std::int64_t kMaxExtent = std::int64_t{1} << 31;

const PaddedAxis* FindAxis(const Manifest& manifest, const std::string& input, std::size_t axis) {
  for (const PaddedAxis& padded : manifest.padding) {
    if (padded.input == input && padded.axis == axis) return &padded;
  }
  return nullptr;
}

bool IsExact(const FunctionInfo& function, const Shapes& shapes) {
  return std::all_of(function.inputs.begin(), function.inputs.end(),
                     [&](const TensorInfo& input) { return shapes.at(input.name) == input.shape; });
}

bool FitsPadded(const Manifest& manifest, const FunctionInfo& function, const Shapes& shapes) {
  for (const TensorInfo& input : function.inputs) {
    const Shape& shape = shapes.at(input.name);
    if (shape.size() != input.shape.size()) return false;
    for (std::size_t axis = 0; axis < shape.size(); ++axis) {
      if (shape[axis] == input.shape[axis]) continue;
      bool is_shorter = shape[axis] > 0 && shape[axis] < input.shape[axis];
      if (!is_shorter || FindAxis(manifest, input.name, axis) == nullptr) return false;
    }
  }
  return true;
}

// Number of elements of all inputs; a manifest's shapes are bounded, so doubles hold it.
double Elements(const FunctionInfo& function) {
  double total = 0;
  for (const TensorInfo& input : function.inputs) {
    double elements = 1;
    for (std::int64_t extent : input.shape) elements *= static_cast<double>(extent);
    total += elements;
  }
  return total;
}

Way PaddedWay(const Manifest& manifest, const FunctionInfo& function, const Shapes& shapes) {
  Way way{&function, true, {}, {}};
  for (const PaddedAxis& axis : manifest.padding) {
    auto shape = shapes.find(axis.input);
    if (shape == shapes.end() || axis.axis >= shape->second.size()) {
      throw std::runtime_error("the manifest pads an axis that input " + axis.input + " lacks");
    }
    way.fills[axis.input] = axis.value;
    std::int64_t extent = shape->second[axis.axis];
    for (const Crop& crop : axis.crops) {
      way.crops[crop.output][crop.axis] = (extent + crop.divisor - 1) / crop.divisor + crop.offset;
    }
  }
  return way;
}

std::string Text(const Shape& shape) {
  std::string text;
  for (std::int64_t extent : shape) text += (text.empty() ? "" : ",") + std::to_string(extent);
  return text;
}

}  // namespace

Way ChooseWay(const Manifest& manifest, const Shapes& shapes) {
  const FunctionInfo* smallest = nullptr;
  std::string compiled;
  for (const FunctionInfo& function : manifest.functions) {
    if (IsExact(function, shapes)) return {&function, false, {}, {}};
    bool fits = FitsPadded(manifest, function, shapes);
    if (fits && (smallest == nullptr || Elements(function) < Elements(*smallest))) {
      smallest = &function;
    }
    for (const TensorInfo& input : function.inputs) {
      compiled += " " + input.name + "=" + Text(input.shape);
    }
  }
  if (smallest != nullptr) return PaddedWay(manifest, *smallest, shapes);
  if (manifest.fallback.has_value()) return {};
  throw std::runtime_error("the bundle has no fallback and takes the shapes" + compiled);
}

Shape ParseShape(const std::string& text) {
  Shape shape;
  for (std::size_t place = 0; place < text.size();) {
    std::size_t end = std::min(text.find(',', place), text.size());
    std::string digits = text.substr(place, end - place);
    bool is_number = !digits.empty() && digits.size() <= 10 &&
                     digits.find_first_not_of("0123456789") == std::string::npos;
    if (!is_number || std::stoll(digits) > kMaxExtent) {
      throw std::runtime_error("'" + text + "' is no shape; write it as 1,3,8");
    }
    shape.push_back(std::stoll(digits));
    place = end + 1;
  }
  return shape;
}
