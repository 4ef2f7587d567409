#include "onednn_builder.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace collage::onednn {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr std::size_t kPage = 4096;

Bytes Allocate(std::size_t size) {
  std::size_t rounded = (size / kPage + 1) * kPage;
  auto* memory = static_cast<char*>(std::aligned_alloc(kPage, rounded));
  if (memory == nullptr) TVM_FFI_THROW(RuntimeError) << "onednn: no memory for " << size;
  return Bytes(memory);
}

// Where bytes lie: in an argument of the kernel, in memory of their own (weights), or in the arena.
struct Buffer {
  std::size_t size = 0;
  int argument = -1;
  char* own = nullptr;
  int first = 0, last = -1;  // calls that use it, when it is in the arena
  std::size_t place = 0;

  bool in_arena() const { return argument < 0 && own == nullptr; }
};

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
  Builder(const Program& program, const Blob& blob, Layout layout)
      : api_(OneDnn::Get()), program_(program), blob_(blob) {
    std::size_t count = program.values.size();
    tensors_.resize(count);
    copies_.resize(count);
    targets_.assign(count, -1);
    around_.layouts.resize(count);
    around_.wishes.resize(count);
    around_.fixed.assign(count, true);
    around_.layout = layout;
  }

  Schedule Build() {
    DefineInputs();
    FindWishes();
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
  void DefineInputs() {
    for (std::size_t i = 0; i < program_.inputs.size(); ++i) {
      int value = program_.inputs[i];
      Desc desc = api_.RowMajor(program_.values[value]);
      Define(value, {desc, ArgumentBuffer(static_cast<int>(i), api_.SizeOf(desc)), 0});
    }
    for (std::size_t i = 0; i < program_.weights.size(); ++i) {
      int value = program_.weights[i];
      const TensorView& view = blob_.tensors()[i];
      Desc desc = api_.RowMajor(program_.values[value]);
      if (api_.SizeOf(desc) != view.nbytes) {
        TVM_FFI_THROW(ValueError) << "onednn: weight " << i << " has " << view.nbytes
                                  << " bytes, not " << api_.SizeOf(desc);
      }
      Buffer buffer;
      buffer.own = static_cast<char*>(const_cast<void*>(view.data));
      buffers_.push_back(buffer);
      Define(value, {desc, static_cast<int>(buffers_.size()) - 1, 0});
      around_.fixed[value] = false;
    }
  }

  // Outputs are plain. What is read by one view only should lie so that the view is plain, or lies
  // as its own reader wishes; it may then be written straight to the output.
  void FindWishes() {
    std::vector<int> readers(program_.values.size(), 0);
    for (const Step& step : program_.steps) {
      for (int value : step.inputs) ++readers[value];
      for (const PostOp& post : step.post) {
        if (post.value >= 0) ++readers[post.value];
      }
    }
    for (std::size_t i = 0; i < program_.outputs.size(); ++i) {
      int value = program_.outputs[i];
      targets_[value] = static_cast<int>(program_.inputs.size() + i);
      around_.wishes[value] = api_.RowMajor(program_.values[value]);
    }
    for (auto step = program_.steps.rbegin(); step != program_.steps.rend(); ++step) {
      if (!step->is_view() || step->op == "slice") continue;
      int source = step->inputs[0];
      if (readers[source] != 1 || targets_[source] >= 0) continue;
      Desc after = around_.wishes[step->output];
      if (after == nullptr) after = api_.RowMajor(program_.values[step->output]);
      around_.wishes[source] = Undone(*step, after);
      if (around_.wishes[source] != nullptr) targets_[source] = targets_[step->output];
    }
  }

  // The layout of a view's source that gives the view the layout `after`.
  Desc Undone(const Step& step, const Desc& after) const {
    if (step.op == "reshape") return api_.Reshaped(after, program_.values[step.inputs[0]]);
    Dims permutation = step.dims("permutation");
    std::vector<int> inverse(permutation.size());
    for (std::size_t i = 0; i < inverse.size(); ++i) {
      inverse[static_cast<std::size_t>(permutation[i])] = static_cast<int>(i);
    }
    return api_.Permuted(after, inverse);
  }

  void View(const Step& step) {
    int source = step.inputs[0];
    const Dims& dims = program_.values[step.output];
    Tensor tensor = tensors_[source];
    around_.fixed[step.output] = around_.fixed[source];
    if (step.op == "permute") {
      Dims permutation = step.dims("permutation");
      tensor.desc =
          api_.Permuted(tensor.desc, std::vector<int>(permutation.begin(), permutation.end()));
    } else if (step.op == "reshape") {
      Desc reshaped = api_.Reshaped(tensor.desc, dims);
      if (reshaped == nullptr) {
        tensor = Read(source, api_.RowMajor(program_.values[source]), step.name);
        reshaped = api_.RowMajor(dims);
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
      tensor = Read(source, api_.RowMajor(program_.values[source]), step.name);
    }
    Dims strides = api_.StridesOf(tensor.desc), starts = step.dims("starts");
    for (std::size_t i = 0; i < starts.size(); ++i) {
      tensor.offset += static_cast<std::size_t>(starts[i] * strides[i]) * sizeof(float);
    }
    tensor.desc = api_.Strided(program_.values[step.output], strides);
    return tensor;
  }

  void Define(int value, const Tensor& tensor) {
    tensors_[value] = tensor;
    around_.layouts[value] = tensor.desc;
  }

  void Emit(const Step& step) {
    for (int value : step.inputs) CheckDefined(step, value);
    for (const PostOp& post : step.post) {
      if (post.value >= 0) CheckDefined(step, post.value);
    }
    std::size_t posts = step.post.size();
    Recipe recipe = BestRecipe(step, &posts);
    if (posts == step.post.size()) {
      Plan(step, recipe, posts, step.output);
      return;
    }
    EmitRest(step, recipe, posts);
  }

  // Post-operations that no fast implementation takes run on the result as steps of their own.
  void EmitRest(const Step& step, const Recipe& recipe, std::size_t posts) {
    Plan(step, recipe, posts, step.output);
    Step rest = step;
    const PostOp& first = step.post[posts];
    rest.name += first.value < 0 ? ", then eltwise" : ", then binary";
    rest.op = first.value < 0 ? "eltwise" : "binary";
    rest.inputs = {step.output};
    if (first.value >= 0) rest.inputs.push_back(first.value);
    rest.main = first;
    rest.post.assign(step.post.begin() + static_cast<std::ptrdiff_t>(posts) + 1, step.post.end());
    Emit(rest);
  }

  // The first way that is fast with all post-operations, else with as many as possible; a way with
  // the reference implementation when there is no other.
  Recipe BestRecipe(const Step& step, std::size_t* posts) {
    Recipe reference;
    for (std::size_t count = step.post.size() + 1; count-- > 0;) {
      for (int attempt = 0; attempt < Attempts(step); ++attempt) {
        Recipe recipe = MakeRecipe(program_, step, around_, attempt, count);
        if (recipe.primitive == nullptr) continue;
        if (api_.ImplementationOf(recipe.primitive).rfind("ref", 0) != 0) {
          *posts = count;
          return recipe;
        }
        if (reference.primitive == nullptr) {
          reference = recipe;
          *posts = count;
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

  void Plan(const Step& step, const Recipe& recipe, std::size_t posts, int output) {
    Planned planned{step.name + " " + api_.ImplementationOf(recipe.primitive), recipe.primitive,
                    {}};
    for (auto [code, value] : recipe.reads) {
      Desc wanted = api_.ArgumentOf(recipe.primitive, code);
      planned.arguments.push_back({code, Read(value, wanted, step.name)});
    }
    Desc made = api_.ArgumentOf(recipe.primitive, DNNL_ARG_DST);
    bool complete = posts == step.post.size();
    Tensor result{made, NewBuffer(output, made, complete), 0};
    planned.arguments.push_back({DNNL_ARG_DST, result});
    AddScratchpad(&planned);
    Define(output, result);
    copies_[output].clear();
    Push(std::move(planned));
  }

  void AddScratchpad(Planned* planned) {
    Desc desc = api_.ArgumentOf(planned->primitive, DNNL_ARG_SCRATCHPAD);
    if (desc == nullptr || api_.SizeOf(desc) == 0) return;
    planned->arguments.push_back({DNNL_ARG_SCRATCHPAD, {desc, ArenaBuffer(api_.SizeOf(desc)), 0}});
  }

  // `value` in the layout `wanted`: as it lies, a reordered copy made before, or a new one.
  Tensor Read(int value, const Desc& wanted, const std::string& name) {
    const Tensor& found = tensors_[value];
    if (found.desc == nullptr) TVM_FFI_THROW(ValueError) << "onednn: " << name << " reads too early";
    bool in_place = around_.fixed[value] && api_.Same(found.desc, wanted);
    if (in_place) return {wanted, found.buffer, found.offset};
    for (const Tensor& copy : copies_[value]) {
      if (api_.Same(copy.desc, wanted)) return {wanted, copy.buffer, copy.offset};
    }
    Tensor copy{wanted, -1, 0};
    if (around_.fixed[value]) {
      copy.buffer = ArenaBuffer(api_.SizeOf(wanted));
      Push(Reorder(name + ", reorder", found, copy));
    } else {
      copy.buffer = Pack(name, found, wanted);
    }
    copies_[value].push_back(copy);
    return copy;
  }

  Planned Reorder(const std::string& name, const Tensor& from, const Tensor& to) {
    dnnl_primitive_attr_t attributes = nullptr;
    api_.Check(api_.dnnl_primitive_attr_create(&attributes), name);
    Attributes guard(attributes, api_.dnnl_primitive_attr_destroy);
    api_.Check(
        api_.dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user), name);
    dnnl_primitive_desc_t made = nullptr;
    api_.Check(
        api_.dnnl_reorder_primitive_desc_create(&made, from.desc.get(), api_.engine(),
                                                to.desc.get(), api_.engine(), attributes),
        name);
    Planned planned{name, api_.Own(made), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}};
    AddScratchpad(&planned);
    return planned;
  }

  // Reorders a weight now, into memory of its own.
  int Pack(const std::string& name, const Tensor& from, const Desc& wanted) {
    Buffer buffer;
    schedule_.owned.push_back(Allocate(api_.SizeOf(wanted)));
    buffer.own = schedule_.owned.back().get();
    buffers_.push_back(buffer);
    int number = static_cast<int>(buffers_.size()) - 1;
    Planned planned = Reorder(name + ", packing", from, {wanted, number, 0});
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
    return number;
  }

  void WriteOutputs() {
    for (std::size_t i = 0; i < program_.outputs.size(); ++i) {
      int value = program_.outputs[i], argument = static_cast<int>(program_.inputs.size() + i);
      Desc plain = api_.RowMajor(program_.values[value]);
      const Tensor& found = tensors_[value];
      if (found.desc == nullptr) TVM_FFI_THROW(ValueError) << "onednn: output " << i << " is not made";
      if (buffers_[found.buffer].argument == argument && api_.Same(found.desc, plain)) continue;
      Tensor output{plain, ArgumentBuffer(argument, api_.SizeOf(plain)), 0};
      Push(Reorder("output " + std::to_string(i), found, output));
    }
  }

  // Straight in the kernel's output where the layout is right.
  int NewBuffer(int value, const Desc& desc, bool complete) {
    bool direct = complete && targets_[value] >= 0 && api_.Same(desc, around_.wishes[value]);
    return direct ? ArgumentBuffer(targets_[value], api_.SizeOf(desc))
                  : ArenaBuffer(api_.SizeOf(desc));
  }

  int ArgumentBuffer(int argument, std::size_t size) {
    Buffer buffer;
    buffer.size = size;
    buffer.argument = argument;
    buffers_.push_back(buffer);
    return static_cast<int>(buffers_.size()) - 1;
  }

  int ArenaBuffer(std::size_t size) {
    Buffer buffer;
    buffer.size = (size + kAlignment - 1) / kAlignment * kAlignment;
    buffer.first = static_cast<int>(planned_.size());
    buffers_.push_back(buffer);
    return static_cast<int>(buffers_.size()) - 1;
  }

  void Push(Planned planned) {
    for (const Argument& argument : planned.arguments) {
      Buffer& buffer = buffers_[argument.tensor.buffer];
      buffer.last = static_cast<int>(planned_.size());
    }
    planned_.push_back(std::move(planned));
  }

  // Greedy, largest first: each buffer at the lowest place where no buffer that lives at the same
  // time lies. Returns the arena's size.
  std::size_t PlaceBuffers() {
    std::vector<Buffer*> waiting, placed;
    for (Buffer& buffer : buffers_) {
      if (buffer.in_arena() && buffer.last >= 0) waiting.push_back(&buffer);
    }
    std::stable_sort(waiting.begin(), waiting.end(),
                     [](const Buffer* a, const Buffer* b) { return a->size > b->size; });
    std::size_t total = 0;
    for (Buffer* buffer : waiting) {
      for (const Buffer* other : placed) {  // ascending by place
        bool together = other->first <= buffer->last && buffer->first <= other->last;
        bool apart = buffer->place + buffer->size <= other->place;
        if (together && !apart) buffer->place = std::max(buffer->place, other->place + other->size);
      }
      auto after = std::find_if(placed.begin(), placed.end(),
                                [&](const Buffer* other) { return other->place > buffer->place; });
      placed.insert(after, buffer);
      total = std::max(total, buffer->place + buffer->size);
    }
    return total;
  }

  Schedule Finish() {
    schedule_.owned.push_back(Allocate(PlaceBuffers()));
    char* arena = schedule_.owned.back().get();
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
  Surroundings around_;
  std::vector<Tensor> tensors_;              // per value
  std::vector<std::vector<Tensor>> copies_;  // per value: in other layouts
  std::vector<int> targets_;                 // per value: the output it may be written to, or -1
  std::vector<Buffer> buffers_;
  std::vector<Planned> planned_;
  Schedule schedule_;
};

}  // namespace

void FreeMemory::operator()(void* memory) const { std::free(memory); }

Schedule Build(const Program& program, const Blob& blob, Layout layout) {
  return Builder(program, blob, layout).Build();
}

}  // namespace collage::onednn
