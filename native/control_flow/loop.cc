// Loop and Scan with a partitioned body. Header entries:
//   arguments  number of inputs of the kernel
//   trips      value of the largest number of turns; absent: no limit
//   condition  value that allows the first turn; absent: allowed
//   states     initial value of each carried value
//   slices     Scan's inputs: {value, axis, backwards}; a turn gets one slice of each
//   is_loop    1: the body's inputs begin with iteration and condition, its results with the condition
//   iteration, truth  shapes of the iteration number and of the condition, [] or [1]
//   bodies     the body, see body.h
//   rows       {dtype, shape, axis, backwards}: one turn's part of each stacked result
//   outputs    position of each output among the carried values and the stacked results
//   allocates  1: called with inputs only; returns its outputs, whose number of rows depends on data
//   images     numbers of the tensors with executables
// As in ONNX Runtime, zero turns return the initial values and stacked results without rows.
#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "control_flow/body.h"
#include "core/kernel.h"
#include "core/sizes.h"

namespace collage::control_flow {
namespace {

namespace ffi = tvm::ffi;

constexpr DLDataType kInt64 = {kDLInt, 64, 1};
constexpr DLDataType kBool = {kDLBool, 8, 1};

// An axis of a tensor that turns go along: `outer` blocks, each of `length` parts of `inner` bytes.
struct Axis {
  std::int64_t outer = 1, length = 0;
  std::size_t inner = 0;

  static Axis Of(const std::int64_t* shape, int ndim, int axis, DLDataType dtype) {
    Axis result;
    std::int64_t elements = 1;
    for (int i = 0; i < axis; ++i) result.outer = Times(result.outer, shape[i]);
    for (int i = axis + 1; i < ndim; ++i) elements = Times(elements, shape[i]);
    result.length = shape[axis];
    result.inner = BytesOf(Times(elements, dtype.bits * dtype.lanes / 8), "a slice");
    return result;
  }

  // Copies part `turn` between the whole tensor and a dense slice.
  void Gather(const char* whole, std::int64_t turn, char* slice) const {
    for (std::int64_t block = 0; block < outer && inner > 0; ++block) {
      std::memcpy(slice + static_cast<std::size_t>(block) * inner, whole + Offset(block, turn),
                  inner);
    }
  }
  void Scatter(const char* slice, std::int64_t turn, char* whole) const {
    for (std::int64_t block = 0; block < outer && inner > 0; ++block) {
      std::memcpy(whole + Offset(block, turn), slice + static_cast<std::size_t>(block) * inner,
                  inner);
    }
  }

 private:
  std::size_t Offset(std::int64_t block, std::int64_t turn) const {
    return static_cast<std::size_t>(block * length + turn) * inner;
  }
};

struct Slice {
  Value value;
  int axis;
  bool backwards;
};

struct Row {
  DLDataType dtype;
  std::vector<std::int64_t> shape;  // of one turn's part
  int axis;                         // of the stacked result
  bool backwards;

  std::vector<std::int64_t> Stacked(std::int64_t turns) const {
    std::vector<std::int64_t> stacked = shape;
    stacked.insert(stacked.begin() + axis, turns);
    return stacked;
  }
};

std::vector<std::int64_t> OneNumber(const Blob& blob, const char* key) {
  std::vector<int> sizes = blob.GetSizes(key);
  if (sizes.size() > 1 || (sizes.size() == 1 && sizes[0] != 1)) {
    TVM_FFI_THROW(ValueError) << "loop kernel: '" << key << "' is no shape of one number";
  }
  return {sizes.begin(), sizes.end()};
}

int ReadAxis(const json::Object& entry, std::size_t most) {
  return static_cast<int>(InRange(Get<std::int64_t>(entry, "axis"), 0,
                                  static_cast<std::int64_t>(most), "loop kernel: 'axis'"));
}

class Loop : public Kernel {
 public:
  explicit Loop(const KernelSpec& spec) : constants_(ReadConstants(*spec.blob)) {
    const Blob& blob = *spec.blob;
    const json::Object& header = blob.header();
    arguments_ = static_cast<std::size_t>(
        InRange(blob.GetInt("arguments", 0), 0, kMostExtent, "loop kernel: 'arguments'"));
    is_loop_ = blob.GetInt("is_loop", 0) != 0;
    allocates_ = blob.GetInt("allocates", 0) != 0;
    iteration_ = OneNumber(blob, "iteration");
    truth_ = OneNumber(blob, "truth");
    if (header.count("trips") != 0) trips_ = Read(header, "trips");
    if (header.count("condition") != 0) condition_ = Read(header, "condition");
    for (const ffi::Any& entry : Get<json::Array>(header, "states")) {
      states_.push_back(Read(As<json::Object>(entry, "states"), "value"));
    }
    ReadSlices(header);
    ReadRows(header);
    ReadBody(blob);
    std::size_t all = states_.size() + rows_.size();
    for (int output : blob.GetSizes("outputs")) {
      InRange(output, 0, static_cast<std::int64_t>(all) - 1, "loop kernel: 'outputs'");
      outputs_.push_back(static_cast<std::size_t>(output));
    }
  }

  bool Allocates() const override { return allocates_; }

  void Run(DLTensor* const* args, int count) override {
    if (static_cast<std::size_t>(count) != arguments_ + outputs_.size()) {
      TVM_FFI_THROW(ValueError) << "loop kernel: expected " << arguments_ + outputs_.size()
                                << " tensors, got " << count;
    }
    Turns turns = Compute(args);
    for (std::size_t i = 0; i < outputs_.size(); ++i)
      Write(turns, outputs_[i], *args[arguments_ + i]);
  }

  Tensors RunAllocating(DLTensor* const* inputs, int count) override {
    if (static_cast<std::size_t>(count) != arguments_) {
      TVM_FFI_THROW(ValueError) << "loop kernel: expected " << arguments_ << " tensors, got "
                                << count;
    }
    Turns turns = Compute(inputs);
    Tensors results;
    for (std::size_t output : outputs_) {
      results.push_back(NewOutput(turns, output));
      Write(turns, output, *results.back().GetDLTensorPtr());
    }
    return results;
  }

 private:
  // The carried values after the last turn, and the stacked results' parts by turn.
  struct Turns {
    Tensors states;
    std::vector<Tensors> rows;
    std::int64_t count = 0;
  };

  Value Read(const json::Object& entry, const char* key) const {
    return ReadValue(entry, key, arguments_, constants_.size());
  }

  void ReadSlices(const json::Object& header) {
    for (const ffi::Any& any : Get<json::Array>(header, "slices")) {
      json::Object entry = As<json::Object>(any, "slices");
      slices_.push_back(
          {Read(entry, "value"), ReadAxis(entry, 64), Get<std::int64_t>(entry, "backwards") != 0});
    }
    if (slices_.empty() != is_loop_) {
      TVM_FFI_THROW(ValueError) << "loop kernel: a Scan has slices, and a Loop has none";
    }
  }

  void ReadRows(const json::Object& header) {
    for (const ffi::Any& any : Get<json::Array>(header, "rows")) {
      json::Object entry = As<json::Object>(any, "rows");
      std::vector<std::int64_t> shape = Integers(entry, "shape");
      ElementsOf(shape, 0, "loop kernel: an extent of a row's 'shape'");
      rows_.push_back({ParseType(Get<ffi::String>(entry, "dtype")), shape,
                       ReadAxis(entry, shape.size()), Get<std::int64_t>(entry, "backwards") != 0});
    }
  }

  void ReadBody(const Blob& blob) {
    std::size_t own = (is_loop_ ? 2 : 0) + states_.size() + slices_.size();
    json::Array bodies = Get<json::Array>(blob.header(), "bodies");
    if (bodies.size() != 1) TVM_FFI_THROW(ValueError) << "loop kernel: not one body";
    body_ = std::make_unique<Body>(blob, As<json::Object>(bodies[0], "bodies"),
                                   Counts{arguments_, constants_.size(), own});
    std::size_t results = (is_loop_ ? 1 : 0) + states_.size() + rows_.size();
    if (body_->results() != results) {
      TVM_FFI_THROW(ValueError) << "loop kernel: the body has " << body_->results()
                                << " results, not " << results;
    }
  }

  Turns Compute(DLTensor* const* args) const {
    Tensors arguments;
    for (std::size_t i = 0; i < arguments_; ++i) arguments.push_back(Borrow(*args[i]));
    Turns turns;
    for (const Value& state : states_) {
      turns.states.push_back(Select(state, arguments, constants_));
    }
    turns.rows.resize(rows_.size());
    std::optional<std::int64_t> trips = TripsOf(arguments);
    bool goes_on = true;
    if (condition_) {
      const ffi::Tensor& condition = Select(*condition_, arguments, constants_);
      goes_on = TruthOf(*condition.GetDLTensorPtr(), "the condition");
    }
    while (goes_on && (!trips || turns.count < *trips)) {
      Tensors own = OwnInputs(turns, goes_on, arguments, trips.value_or(0));
      goes_on = Advance(&turns, body_->Call(own, arguments, constants_));
    }
    return turns;
  }

  // Takes a turn's results; tells whether the condition allows another turn.
  bool Advance(Turns* turns, const Tensors& results) const {
    std::size_t next = is_loop_ ? 1 : 0;
    for (ffi::Tensor& state : turns->states) state = results[next++];
    for (Tensors& rows : turns->rows) rows.push_back(results[next++]);
    ++turns->count;
    return !is_loop_ || TruthOf(*results[0].GetDLTensorPtr(), "the body's condition");
  }

  // The largest number of turns; a Scan has as many as its inputs have slices.
  std::optional<std::int64_t> TripsOf(const Tensors& arguments) const {
    if (trips_) {
      return IntegerOf(*Select(*trips_, arguments, constants_).GetDLTensorPtr(),
                       "the number of turns");
    }
    std::optional<std::int64_t> trips;
    for (const Slice& slice : slices_) {
      const DLTensor& whole = *Select(slice.value, arguments, constants_).GetDLTensorPtr();
      if (slice.axis >= whole.ndim || (trips && *trips != whole.shape[slice.axis])) {
        TVM_FFI_THROW(ValueError) << "loop kernel: the Scan's inputs have different lengths";
      }
      trips = whole.shape[slice.axis];
    }
    return trips;
  }

  // The body's inputs of the next turn, in memory of their own: the body may return them.
  Tensors OwnInputs(const Turns& turns, bool goes_on, const Tensors& arguments,
                    std::int64_t trips) const {
    Tensors own;
    own.reserve(2 + turns.states.size() + slices_.size());
    if (is_loop_) {
      own.push_back(CopyOf(&turns.count, iteration_, kInt64));
      own.push_back(CopyOf(&goes_on, truth_, kBool));
    }
    own.insert(own.end(), turns.states.begin(), turns.states.end());
    for (const Slice& slice : slices_) {
      const DLTensor& whole = *Select(slice.value, arguments, constants_).GetDLTensorPtr();
      Axis axis = Axis::Of(whole.shape, whole.ndim, slice.axis, whole.dtype);
      std::vector<std::int64_t> shape(whole.shape, whole.shape + whole.ndim);
      shape.erase(shape.begin() + slice.axis);
      ffi::Tensor part = Allocate(shape, whole.dtype);
      axis.Gather(static_cast<const char*>(DataOf(&whole)),
                  slice.backwards ? trips - 1 - turns.count : turns.count,
                  static_cast<char*>(part.data_ptr()));
      own.push_back(part);
    }
    return own;
  }

  ffi::Tensor NewOutput(const Turns& turns, std::size_t output) const {
    if (output >= states_.size()) {
      const Row& row = rows_[output - states_.size()];
      return Allocate(row.Stacked(turns.count), row.dtype);
    }
    const ffi::Tensor& state = turns.states[output];
    return Allocate({state.shape().begin(), state.shape().end()}, state.dtype());
  }

  void Write(const Turns& turns, std::size_t output, const DLTensor& to) const {
    if (output < states_.size()) {
      CopyInto(turns.states[output], to);
      return;
    }
    const Row& row = rows_[output - states_.size()];
    const Tensors& parts = turns.rows[output - states_.size()];
    std::vector<std::int64_t> shape = row.Stacked(turns.count);
    if (!IsSame(to.dtype, row.dtype) ||
        !std::equal(shape.begin(), shape.end(), to.shape, to.shape + to.ndim)) {
      TVM_FFI_THROW(ValueError) << "loop kernel: the loop ended after " << turns.count
                                << " turns, which is not the number of rows of its output";
    }
    Axis axis = Axis::Of(to.shape, to.ndim, row.axis, to.dtype);
    std::int64_t elements = ElementsOf(row.shape, 0, "a row");
    for (std::int64_t turn = 0; turn < turns.count; ++turn) {
      const DLTensor& part = *parts[static_cast<std::size_t>(turn)].GetDLTensorPtr();
      if (!IsSame(part.dtype, row.dtype) || CountOf(part) != elements) {
        TVM_FFI_THROW(ValueError) << "loop kernel: a row has " << CountOf(part) << " numbers, not "
                                  << elements;
      }
      axis.Scatter(static_cast<const char*>(DataOf(&part)),
                   row.backwards ? turns.count - 1 - turn : turn, static_cast<char*>(DataOf(&to)));
    }
  }

  const Tensors constants_;
  std::size_t arguments_ = 0;
  bool is_loop_ = false, allocates_ = false;
  std::vector<std::int64_t> iteration_, truth_;
  std::optional<Value> trips_, condition_;
  std::vector<Value> states_;
  std::vector<Slice> slices_;
  std::vector<Row> rows_;
  std::vector<std::size_t> outputs_;
  std::unique_ptr<Body> body_;
};

const RegisterKernel kRegistered("loop", [](const KernelSpec& spec) {
  return std::unique_ptr<Kernel>(new Loop(spec));
});

}  // namespace
}  // namespace collage::control_flow
