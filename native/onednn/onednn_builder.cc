#include "onednn/onednn_builder.h"

#include <optional>
#include <set>

#include "onednn/onednn_analysis.h"
#include "onednn/onednn_packed_weights.h"

namespace collage::onednn {
namespace {

// A layout over a buffer.
struct Tensor {
  Desc desc;
  int buffer = -1;
  std::size_t offset = 0;  // bytes
};

struct Argument {
  int code;
  Tensor tensor;
};

struct Planned {
  std::string name;
  PrimitiveDesc primitive;
  std::vector<Argument> arguments;
};

class Builder {
 public:
  Builder(const Program& program, const Blob& blob, Layout layout, Type products)
      : api_(OneDnn::Get()), program_(program), blob_(blob), analysis_(Analyse(program)) {
    std::size_t count = program.values.size();
    tensors_.resize(count);
    copies_.resize(count);
    context_.layouts.resize(count);
    context_.preferred_layouts = analysis_.preferred_layouts;
    context_.fixed.assign(count, true);
    context_.layout = layout;
    context_.products = products;
    std::size_t weights = 0;
    for (const TensorView& tensor : blob.tensors()) {
      if (FindShared(tensor) == nullptr) weights += tensor.nbytes;
    }
    schedule_.weights = Pool(weights);
    for (std::size_t i = 0; products != dnnl_f32 && i < count; ++i) PreferType(products, i);
  }

  Schedule Build() {
    DefineInputs();
    for (const Step& step : program_.steps) {
      if (step.is_view()) {
        View(step);
      } else {
        Emit(step);
      }
    }
    WriteOutputs();
    return Finish();
  }

 private:
  // Sets the dtype of a preferred layout: float32 for arguments of the kernel, the products' factors inside.
  void PreferType(Type type, std::size_t value) {
    Desc preferred = context_.preferred_layouts[value];
    if (preferred == nullptr || analysis_.targets[value] >= 0) return;
    Dims strides = api_.StridesOf(preferred);
    context_.preferred_layouts[value] =
        strides.empty() ? nullptr : api_.Strided(api_.DimsOf(preferred), strides, type);
  }

  Desc Plain(int value) const {
    return api_.RowMajor(program_.values[value], api_.TypeOf(tensors_[value].desc));
  }

  void DefineInputs() {
    for (std::size_t i = 0; i < program_.inputs.size(); ++i) {
      int value = program_.inputs[i];
      Desc desc = api_.RowMajor(program_.values[value]);
      Define(value, {desc, buffers_.AddArgument(static_cast<int>(i)), 0});
    }
    for (std::size_t i = 0; i < program_.weights.size(); ++i) {
      int value = program_.weights[i];
      const TensorView& view = blob_.tensors()[i];
      Desc desc = api_.RowMajor(program_.values[value]);
      if (api_.SizeOf(desc) != view.nbytes) {
        TVM_FFI_THROW(ValueError) << "onednn: weight " << i << " has " << view.nbytes
                                  << " bytes, not " << api_.SizeOf(desc);
      }
      char* data = static_cast<char*>(const_cast<void*>(view.data));
      Define(value, {desc, buffers_.AddOwn(data), 0});
      context_.fixed[value] = false;
    }
  }

  void View(const Step& step) {
    int source = step.inputs[0];
    const Dims& dims = program_.values[step.output];
    Tensor tensor = tensors_[source];
    context_.fixed[step.output] = context_.fixed[source];
    if (step.op == "permute") {
      Dims permutation = step.dims("permutation");
      tensor.desc =
          api_.Permuted(tensor.desc, std::vector<int>(permutation.begin(), permutation.end()));
    } else if (step.op == "reshape") {
      Desc reshaped = api_.Reshaped(tensor.desc, dims);
      if (reshaped == nullptr) {
        tensor = Read(source, Plain(source), step.name);
        reshaped = api_.RowMajor(dims, api_.TypeOf(tensor.desc));
      }
      tensor.desc = reshaped;
    } else {
      tensor = Slice(step, source);
    }
    Define(step.output, tensor);
  }

  Tensor Slice(const Step& step, int source) {
    Tensor tensor = tensors_[source];
    if (api_.StridesOf(tensor.desc).empty()) {
      tensor = Read(source, Plain(source), step.name);
    }
    Type type = api_.TypeOf(tensor.desc);
    std::size_t bytes = type == dnnl_f32 ? 4 : 2;
    Dims strides = api_.StridesOf(tensor.desc), starts = step.dims("starts");
    Dims steps = step.dims("steps");
    for (std::size_t i = 0; i < starts.size(); ++i) {
      tensor.offset += static_cast<std::size_t>(starts[i] * strides[i]) * bytes;
      strides[i] *= steps[i];
    }
    tensor.desc = api_.Strided(program_.values[step.output], strides, type);
    return tensor;
  }

  void Define(int value, const Tensor& tensor) {
    tensors_[value] = tensor;
    context_.layouts[value] = tensor.desc;
  }

  void Emit(const Step& step) {
    for (int value : step.inputs) CheckDefined(step, value);
    for (const PostOp& post_op : step.post_ops) {
      if (post_op.value >= 0) CheckDefined(step, post_op.value);
    }
    std::size_t post_op_count = step.post_ops.size();
    PrimitiveChoice choice = BestPrimitive(step, &post_op_count);
    if (post_op_count == step.post_ops.size()) {
      Plan(step, choice, post_op_count, step.output);
      return;
    }
    EmitRemainder(step, choice, post_op_count);
  }

  // Post-ops without a fast implementation run on the result as separate steps.
  void EmitRemainder(const Step& step, const PrimitiveChoice& choice, std::size_t post_op_count) {
    Plan(step, choice, post_op_count, step.output);
    Step remainder = step;
    const PostOp& first = step.post_ops[post_op_count];
    remainder.name += first.value < 0 ? ", then eltwise" : ", then binary";
    remainder.op = first.value < 0 ? "eltwise" : "binary";
    remainder.inputs = {step.output};
    if (first.value >= 0) remainder.inputs.push_back(first.value);
    remainder.main = first;
    remainder.post_ops.assign(
        step.post_ops.begin() + static_cast<std::ptrdiff_t>(post_op_count) + 1,
        step.post_ops.end());
    Emit(remainder);
  }

  // oneDNN 3.2's simple resampling looks up a post-op's operand by the element's position in memory instead of its
  // position in row-major order, and works on one element at a time.
  static bool IsSimple(const std::string& implementation) {
    return implementation.rfind("simple", 0) == 0;
  }

  // The first fast implementation with all post-ops, else with as many as possible, else the reference
  // implementation.
  PrimitiveChoice BestPrimitive(const Step& step, std::size_t* post_op_count) {
    PrimitiveChoice reference;
    for (std::size_t count = step.post_ops.size() + 1; count-- > 0;) {
      for (int attempt = 0; attempt < Attempts(step); ++attempt) {
        PrimitiveChoice choice = ChoosePrimitive(program_, step, context_, attempt, count);
        if (choice.primitive == nullptr) continue;
        std::string implementation = api_.ImplementationOf(choice.primitive);
        if (count > 0 && IsSimple(implementation)) continue;
        if (implementation.rfind("ref", 0) != 0) {
          *post_op_count = count;
          return choice;
        }
        if (reference.primitive == nullptr) {
          reference = choice;
          *post_op_count = count;
        }
      }
    }
    if (reference.primitive == nullptr) api_.Check(dnnl_unimplemented, step.name);
    return reference;
  }

  void CheckDefined(const Step& step, int value) const {
    if (tensors_[value].desc == nullptr) {
      TVM_FFI_THROW(ValueError) << "onednn: " << step.name << " reads value " << value
                                << " before it is made";
    }
  }

  void Plan(const Step& step, const PrimitiveChoice& choice, std::size_t post_op_count,
            int output) {
    Planned planned{
        step.name + " " + api_.ImplementationOf(choice.primitive), choice.primitive, {}};
    for (auto [code, value] : choice.reads) {
      Desc layout = api_.ArgumentOf(choice.primitive, code);
      planned.arguments.push_back({code, Read(value, layout, step.name)});
    }
    Desc result_layout = api_.ArgumentOf(choice.primitive, DNNL_ARG_DST);
    bool complete = post_op_count == step.post_ops.size();
    Tensor result{result_layout, NewBuffer(output, result_layout, complete), 0};
    const Tensor& source = planned.arguments[0].tensor;
    if (buffers_[result.buffer].in_arena() && MayOverwrite(step, source, result_layout))
      result = source;
    planned.arguments.push_back({DNNL_ARG_DST, result});
    AddScratchpad(&planned);
    Define(output, result);
    copies_[output].clear();
    Push(std::move(planned));
  }

  // Whether the result may overwrite the first operand: it must have no later reader.
  bool MayOverwrite(const Step& step, const Tensor& source, const Desc& result) const {
    static const std::set<std::string> kInPlace = {"eltwise", "binary", "softmax",
                                                   "layer_normalization"};
    int value = step.inputs[0];
    if (kInPlace.count(step.op) == 0 || !buffers_[source.buffer].in_arena()) return false;
    if (!api_.Same(source.desc, result)) return false;
    for (std::size_t i = 1; i < step.inputs.size(); ++i) {
      if (analysis_.roots[step.inputs[i]] == analysis_.roots[value]) return false;
    }
    for (const PostOp& post_op : step.post_ops) {
      if (post_op.value >= 0 && analysis_.roots[post_op.value] == analysis_.roots[value])
        return false;
    }
    return value == step.output || analysis_.last_reads[analysis_.roots[value]] <= step.position;
  }

  void AddScratchpad(Planned* planned) {
    Desc desc = api_.ArgumentOf(planned->primitive, DNNL_ARG_SCRATCHPAD);
    if (desc == nullptr || api_.SizeOf(desc) == 0) return;
    planned->arguments.push_back({DNNL_ARG_SCRATCHPAD, {desc, ArenaBuffer(desc), 0}});
  }

  // `value` in `layout`: its own memory, an earlier reordered copy, or a new one.
  Tensor Read(int value, const Desc& layout, const std::string& name) {
    const Tensor& current = tensors_[value];
    if (current.desc == nullptr)
      TVM_FFI_THROW(ValueError) << "onednn: " << name << " reads too early";
    bool in_place = context_.fixed[value] && api_.Same(current.desc, layout);
    if (in_place) return {layout, current.buffer, current.offset};
    for (const Tensor& copy : copies_[value]) {
      if (api_.Same(copy.desc, layout)) return {layout, copy.buffer, copy.offset};
    }
    Tensor copy{layout, -1, 0};
    if (context_.fixed[value]) {
      copy.buffer = ArenaBuffer(layout);
      Push(Reorder(name + ", reorder", current, copy));
    } else {
      copy.buffer = Pack(name, current, layout);
    }
    copies_[value].push_back(copy);
    return copy;
  }

  Planned Reorder(const std::string& name, const Tensor& from, const Tensor& to) {
    dnnl_primitive_attr_t attributes = nullptr;
    api_.Check(api_.dnnl_primitive_attr_create(&attributes), name);
    Attributes guard(attributes, api_.dnnl_primitive_attr_destroy);
    api_.Check(api_.dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user),
               name);
    dnnl_primitive_desc_t descriptor = nullptr;
    api_.Check(api_.dnnl_reorder_primitive_desc_create(&descriptor, from.desc.get(), api_.engine(),
                                                       to.desc.get(), api_.engine(), attributes),
               name);
    Planned planned{name, api_.Own(descriptor), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}};
    AddScratchpad(&planned);
    return planned;
  }

  const SharedWeight* FindShared(const TensorView& tensor) const {
    return blob_.FindShared({static_cast<const char*>(tensor.data), tensor.nbytes});
  }

  // The packing of a weight that other functions' kernels have too; none for one of this kernel only.
  std::optional<Packing> SharedPacking(const Tensor& from, const Desc& layout) const {
    for (const TensorView& tensor : blob_.tensors()) {
      if (tensor.data != buffers_[from.buffer].own) continue;
      const SharedWeight* weight = FindShared(tensor);
      if (weight != nullptr) return Packing{*weight, from.offset, from.desc, layout};
    }
    return std::nullopt;
  }

  // Reorders a weight at build time, into separate memory.
  int Pack(const std::string& name, const Tensor& from, const Desc& layout) {
    std::optional<Packing> packing = SharedPacking(from, layout);
    if (!packing) {
      int number = buffers_.AddOwn(schedule_.weights.Take(api_.SizeOf(layout)));
      Fill(name, from, {layout, number, 0});
      return number;
    }
    std::shared_ptr<char> memory = FindPacked(api_, *packing);
    bool is_filled = memory != nullptr;
    if (!is_filled) memory = AllocatePacked(api_, *packing);
    int number = buffers_.AddOwn(memory.get());
    if (!is_filled) {
      Fill(name, from, {layout, number, 0});
      KeepPacked(*packing, memory);
    }
    schedule_.shared_weights.push_back(std::move(memory));
    return number;
  }

  void Fill(const std::string& name, const Tensor& from, const Tensor& to) {
    Planned planned = Reorder(name + ", packing", from, to);
    Bytes scratch;
    std::vector<Memory> memories;
    std::vector<dnnl_exec_arg_t> arguments;
    for (const Argument& argument : planned.arguments) {
      const Tensor& tensor = argument.tensor;
      char* data = buffers_[tensor.buffer].own;
      if (data == nullptr) {
        scratch = Allocate(api_.SizeOf(tensor.desc));
        data = scratch.get();
      }
      memories.push_back(api_.MakeMemory(tensor.desc, data + tensor.offset));
      arguments.push_back({argument.code, memories.back().get()});
    }
    Primitive primitive = api_.MakePrimitive(planned.primitive, planned.name);
    dnnl_stream_t stream = nullptr;
    api_.Check(api_.dnnl_stream_create(&stream, api_.engine(), dnnl_stream_default_flags), name);
    std::shared_ptr<dnnl_stream> guard(stream, api_.dnnl_stream_destroy);
    api_.Check(api_.dnnl_primitive_execute(primitive.get(), stream,
                                           static_cast<int>(arguments.size()), arguments.data()),
               planned.name);
  }

  void WriteOutputs() {
    for (std::size_t i = 0; i < program_.outputs.size(); ++i) {
      int value = program_.outputs[i], argument = static_cast<int>(program_.inputs.size() + i);
      Desc plain = api_.RowMajor(program_.values[value]);
      const Tensor& current = tensors_[value];
      if (current.desc == nullptr)
        TVM_FFI_THROW(ValueError) << "onednn: output " << i << " is not made";
      if (buffers_[current.buffer].argument == argument && api_.Same(current.desc, plain)) continue;
      Tensor output{plain, buffers_.AddArgument(argument), 0};
      Push(Reorder("output " + std::to_string(i), current, output));
    }
  }

  // The kernel's output if the layout fits, else memory in the arena.
  int NewBuffer(int value, const Desc& desc, bool complete) {
    bool direct = complete && analysis_.targets[value] >= 0 &&
                  api_.Same(desc, context_.preferred_layouts[value]);
    return direct ? buffers_.AddArgument(analysis_.targets[value]) : ArenaBuffer(desc);
  }

  int ArenaBuffer(const Desc& desc) {
    return buffers_.AddToArena(api_.SizeOf(desc), static_cast<int>(planned_.size()));
  }

  void Push(Planned planned) {
    for (const Argument& argument : planned.arguments) {
      buffers_.Use(argument.tensor.buffer, static_cast<int>(planned_.size()));
    }
    planned_.push_back(std::move(planned));
  }

  Schedule Finish() {
    schedule_.arena = Allocate(buffers_.Place());
    char* arena = schedule_.arena.get();
    schedule_.bindings.resize(program_.inputs.size() + program_.outputs.size());
    for (const Planned& planned : planned_) {
      Call call{planned.name, api_.MakePrimitive(planned.primitive, planned.name), {}};
      for (const Argument& argument : planned.arguments) {
        call.arguments.push_back({argument.code, Place(argument.tensor, arena).get()});
      }
      schedule_.calls.push_back(std::move(call));
    }
    return std::move(schedule_);
  }

  Memory Place(const Tensor& tensor, char* arena) {
    const Buffer& buffer = buffers_[tensor.buffer];
    char* start = buffer.own != nullptr ? buffer.own : arena + buffer.place;
    void* data = buffer.argument < 0 ? start + tensor.offset : nullptr;
    Memory memory = api_.MakeMemory(tensor.desc, data);
    if (buffer.argument < 0) {
      schedule_.memories.push_back(memory);
    } else {
      schedule_.bindings[buffer.argument].push_back({memory, tensor.offset});
    }
    return memory;
  }

  const OneDnn& api_;
  const Program& program_;
  const Blob& blob_;
  const Analysis analysis_;
  LayoutContext context_;
  std::vector<Tensor> tensors_;              // per value
  std::vector<std::vector<Tensor>> copies_;  // per value: in other layouts
  Buffers buffers_;
  std::vector<Planned> planned_;
  Schedule schedule_;
};

}  // namespace

Schedule Build(const Program& program, const Blob& blob, Layout layout, Type products) {
  return Builder(program, blob, layout, products).Build();
}

}  // namespace collage::onednn
