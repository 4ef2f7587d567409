#include "onednn/onednn_builder.h"

#include <set>

#include "onednn/onednn_analysis.h"

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
      : api_(OneDnn::Get()), program_(program), blob_(blob), facts_(Analyse(program)) {
    std::size_t count = program.values.size();
    tensors_.resize(count);
    copies_.resize(count);
    around_.layouts.resize(count);
    around_.wishes = facts_.wishes;
    around_.fixed.assign(count, true);
    around_.layout = layout;
    around_.products = products;
    std::size_t weights = 0;
    for (const TensorView& tensor : blob.tensors()) weights += tensor.nbytes;
    schedule_.weights = Pool(weights);
    for (std::size_t i = 0; products != dnnl_f32 && i < count; ++i) WishIn(products, i);
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
  // Arguments of the kernel hold float32; values that stay inside what products multiply.
  void WishIn(Type type, std::size_t value) {
    Desc wish = around_.wishes[value];
    if (wish == nullptr || facts_.targets[value] >= 0) return;
    Dims strides = api_.StridesOf(wish);
    around_.wishes[value] =
        strides.empty() ? nullptr : api_.Strided(api_.DimsOf(wish), strides, type);
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
      around_.fixed[value] = false;
    }
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

  // oneDNN 3.2's simple resampling takes an element's place in memory for its place in row-major
  // order when it looks up a post-operation's operand, and works on one element at a time.
  static bool IsSimple(const std::string& implementation) {
    return implementation.rfind("simple", 0) == 0;
  }

  // The first way that is fast with all post-operations, else with as many as possible; a way with
  // the reference implementation when there is no other.
  Recipe BestRecipe(const Step& step, std::size_t* posts) {
    Recipe reference;
    for (std::size_t count = step.post.size() + 1; count-- > 0;) {
      for (int attempt = 0; attempt < Attempts(step); ++attempt) {
        Recipe recipe = MakeRecipe(program_, step, around_, attempt, count);
        if (recipe.primitive == nullptr) continue;
        std::string implementation = api_.ImplementationOf(recipe.primitive);
        if (count > 0 && IsSimple(implementation)) continue;
        if (implementation.rfind("ref", 0) != 0) {
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
    Planned planned{
        step.name + " " + api_.ImplementationOf(recipe.primitive), recipe.primitive, {}};
    for (auto [code, value] : recipe.reads) {
      Desc wanted = api_.ArgumentOf(recipe.primitive, code);
      planned.arguments.push_back({code, Read(value, wanted, step.name)});
    }
    Desc made = api_.ArgumentOf(recipe.primitive, DNNL_ARG_DST);
    bool complete = posts == step.post.size();
    Tensor result{made, NewBuffer(output, made, complete), 0};
    const Tensor& source = planned.arguments[0].tensor;
    if (buffers_[result.buffer].in_arena() && MayOverwrite(step, source, made)) result = source;
    planned.arguments.push_back({DNNL_ARG_DST, result});
    AddScratchpad(&planned);
    Define(output, result);
    copies_[output].clear();
    Push(std::move(planned));
  }

  // Whether the result may take the place of the first operand, which nobody reads any more.
  bool MayOverwrite(const Step& step, const Tensor& source, const Desc& result) const {
    static const std::set<std::string> kInPlace = {"eltwise", "binary", "softmax",
                                                   "layer_normalization"};
    int value = step.inputs[0];
    if (kInPlace.count(step.op) == 0 || !buffers_[source.buffer].in_arena()) return false;
    if (!api_.Same(source.desc, result)) return false;
    for (std::size_t i = 1; i < step.inputs.size(); ++i) {
      if (facts_.roots[step.inputs[i]] == facts_.roots[value]) return false;
    }
    for (const PostOp& post : step.post) {
      if (post.value >= 0 && facts_.roots[post.value] == facts_.roots[value]) return false;
    }
    return value == step.output || facts_.last_reads[facts_.roots[value]] <= step.position;
  }

  void AddScratchpad(Planned* planned) {
    Desc desc = api_.ArgumentOf(planned->primitive, DNNL_ARG_SCRATCHPAD);
    if (desc == nullptr || api_.SizeOf(desc) == 0) return;
    planned->arguments.push_back({DNNL_ARG_SCRATCHPAD, {desc, ArenaBuffer(desc), 0}});
  }

  // `value` in the layout `wanted`: as it lies, a reordered copy made before, or a new one.
  Tensor Read(int value, const Desc& wanted, const std::string& name) {
    const Tensor& found = tensors_[value];
    if (found.desc == nullptr)
      TVM_FFI_THROW(ValueError) << "onednn: " << name << " reads too early";
    bool in_place = around_.fixed[value] && api_.Same(found.desc, wanted);
    if (in_place) return {wanted, found.buffer, found.offset};
    for (const Tensor& copy : copies_[value]) {
      if (api_.Same(copy.desc, wanted)) return {wanted, copy.buffer, copy.offset};
    }
    Tensor copy{wanted, -1, 0};
    if (around_.fixed[value]) {
      copy.buffer = ArenaBuffer(wanted);
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
    api_.Check(api_.dnnl_primitive_attr_set_scratchpad_mode(attributes, dnnl_scratchpad_mode_user),
               name);
    dnnl_primitive_desc_t made = nullptr;
    api_.Check(api_.dnnl_reorder_primitive_desc_create(&made, from.desc.get(), api_.engine(),
                                                       to.desc.get(), api_.engine(), attributes),
               name);
    Planned planned{name, api_.Own(made), {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}};
    AddScratchpad(&planned);
    return planned;
  }

  // Reorders a weight now, into memory of its own.
  int Pack(const std::string& name, const Tensor& from, const Desc& wanted) {
    int number = buffers_.AddOwn(schedule_.weights.Take(api_.SizeOf(wanted)));
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
      if (found.desc == nullptr)
        TVM_FFI_THROW(ValueError) << "onednn: output " << i << " is not made";
      if (buffers_[found.buffer].argument == argument && api_.Same(found.desc, plain)) continue;
      Tensor output{plain, buffers_.AddArgument(argument), 0};
      Push(Reorder("output " + std::to_string(i), found, output));
    }
  }

  // Straight in the kernel's output where the layout is right.
  int NewBuffer(int value, const Desc& desc, bool complete) {
    bool direct = complete && facts_.targets[value] >= 0 && api_.Same(desc, around_.wishes[value]);
    return direct ? buffers_.AddArgument(facts_.targets[value]) : ArenaBuffer(desc);
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
  const Analysis facts_;
  Surroundings around_;
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
