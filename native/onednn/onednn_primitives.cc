// One function per kind of step: from the layouts around it to a oneDNN primitive.
#include <map>

#include "onednn/onednn_program.h"

namespace collage::onednn {
namespace {

// Everything that making one primitive needs.
struct Making {
  const OneDnn& api;
  const Program& program;
  const Step& step;
  const Surroundings& around;
  int attempt;
  Attributes attributes;

  const Dims& dims(int value) const { return program.values[value]; }
  int in(std::size_t position) const { return step.inputs[position]; }
  bool has(std::size_t position) const { return position < step.inputs.size(); }
  bool last() const { return attempt + 1 == Attempts(step); }

  // What a value holds: as it was made; a product's result what others wish for, else what products
  // multiply; any other result what the first operand holds.
  Type type(int value) const {
    if (around.layouts[value] != nullptr) return api.TypeOf(around.layouts[value]);
    if (!is_product()) return type(in(0));
    return around.wishes[value] == nullptr ? around.products : api.TypeOf(around.wishes[value]);
  }
  bool is_product() const {
    return step.op == "convolution" || step.op == "deconvolution" || step.op == "matmul";
  }

  Desc Plain(int value) const { return api.RowMajor(dims(value), type(value)); }
  Desc Any(int value) const { return api.Any(dims(value), type(value)); }

  // An operand that a product multiplies.
  Desc Factor(int value) const {
    if (type(value) == around.products) return AsItLies(value);
    return api.RowMajor(dims(value), around.products);
  }

  // As it lies, or plain in the last attempt.
  Desc AsItLies(int value) const { return last() ? Plain(value) : around.layouts[value]; }

  // oneDNN's choice for what is packed once, else as it lies.
  Desc Packed(int value) const {
    if (last()) return Plain(value);
    return around.fixed[value] ? around.layouts[value] : Any(value);
  }

  // The result in oneDNN's choice, or plain in the last attempt.
  Desc Result() const { return last() ? Plain(step.output) : Any(step.output); }

  Recipe Finish(dnnl_status_t status, dnnl_primitive_desc_t made,
                std::vector<std::pair<int, int>> reads) const {
    return {status == dnnl_success ? api.Own(made) : nullptr, std::move(reads)};
  }
};

bool PrefersChannelsLast(const Making& making) {
  const OneDnn& api = making.api;
  auto is_channels_last = [&](int value, const Desc& desc) {
    if (desc == nullptr || making.dims(value).size() < 3) return false;
    Type type = api.TypeOf(desc);
    return api.Same(desc, api.ChannelsLast(making.dims(value), type)) &&
           !api.Same(desc, api.RowMajor(making.dims(value), type));
  };
  return is_channels_last(making.in(0), making.around.layouts[making.in(0)]) ||
         is_channels_last(making.step.output, making.around.wishes[making.step.output]);
}

// How a convolution's activations should lie; oneDNN's choice where the layout does not fit.
Desc InLayout(const Making& making, Layout layout, int value, Type type) {
  const OneDnn& api = making.api;
  const Dims& dims = making.dims(value);
  switch (layout) {
    case Layout::kPlain:
      return api.RowMajor(dims, type);
    case Layout::kChannelsLast:
      return api.ChannelsLast(dims, type);
    case Layout::kBlocked:
      return dims[1] % api.block() == 0 ? api.Blocked(dims, type) : api.Any(dims, type);
    case Layout::kAny:
      break;
  }
  return api.Any(dims, type);
}

Recipe Convolution(const Making& making) {
  const OneDnn& api = making.api;
  const Step& step = making.step;
  int x = making.in(0), w = making.in(1), y = step.output;
  Layout first = PrefersChannelsLast(making) ? Layout::kChannelsLast : making.around.layout;
  Type factors = making.around.products;
  auto layout = [&](int value, Type type) {
    Layout chosen = making.attempt == 0 ? first : Layout::kAny;
    return InLayout(making, making.last() ? Layout::kPlain : chosen, value, type);
  };
  Desc source = layout(x, factors), weights = api.Any(making.dims(w), factors);
  Desc result = layout(y, making.type(y));
  Desc bias = making.has(2) ? making.Plain(making.in(2)) : nullptr;
  auto create = step.op == "convolution" ? api.dnnl_convolution_forward_primitive_desc_create
                                         : api.dnnl_deconvolution_forward_primitive_desc_create;
  auto algorithm = step.op == "convolution" ? dnnl_convolution_direct : dnnl_deconvolution_direct;
  dnnl_primitive_desc_t made = nullptr;
  dnnl_status_t status =
      create(&made, api.engine(), dnnl_forward_inference, algorithm, source.get(), weights.get(),
             bias.get(), result.get(), step.dims("strides").data(), step.dims("dilations").data(),
             step.dims("pads_begin").data(), step.dims("pads_end").data(), making.attributes.get());
  std::vector<std::pair<int, int>> reads = {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}};
  if (bias != nullptr) reads.emplace_back(DNNL_ARG_BIAS, making.in(2));
  return making.Finish(status, made, std::move(reads));
}

Recipe MatMul(const Making& making) {
  const OneDnn& api = making.api;
  int a = making.in(0), b = making.in(1), y = making.step.output;
  Desc wish = making.attempt == 0 ? making.around.wishes[y] : nullptr;
  bool packed = !making.around.fixed[b];
  Desc left = making.Factor(a);
  Desc right = packed ? api.Any(making.dims(b), making.around.products) : making.Factor(b);
  Desc result = wish == nullptr ? making.Plain(y) : wish;
  Desc bias = making.has(2) ? making.Plain(making.in(2)) : nullptr;
  dnnl_primitive_desc_t made = nullptr;
  dnnl_status_t status =
      api.dnnl_matmul_primitive_desc_create(&made, api.engine(), left.get(), right.get(),
                                            bias.get(), result.get(), making.attributes.get());
  std::vector<std::pair<int, int>> reads = {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}};
  if (bias != nullptr) reads.emplace_back(DNNL_ARG_BIAS, making.in(2));
  return making.Finish(status, made, std::move(reads));
}

Recipe Eltwise(const Making& making) {
  Desc source = making.AsItLies(making.in(0)), result = making.Result();
  dnnl_primitive_desc_t made = nullptr;
  dnnl_status_t status = making.api.dnnl_eltwise_forward_primitive_desc_create(
      &made, making.api.engine(), dnnl_forward_inference, making.step.main.algorithm, source.get(),
      result.get(), making.step.main.alpha, making.step.main.beta, making.attributes.get());
  return making.Finish(status, made, {{DNNL_ARG_SRC, making.in(0)}});
}

// The second operand of a binary algorithm lies as the first where they have one shape.
Recipe Binary(const Making& making) {
  int a = making.in(0), b = making.in(1);
  bool equal = making.dims(a) == making.dims(b);
  Desc left = making.AsItLies(a);
  Desc right = equal && making.type(a) == making.type(b) ? left : making.Packed(b);
  Desc result = making.Result();
  dnnl_primitive_desc_t made = nullptr;
  dnnl_status_t status = making.api.dnnl_binary_primitive_desc_create(
      &made, making.api.engine(), making.step.main.algorithm, left.get(), right.get(), result.get(),
      making.attributes.get());
  return making.Finish(status, made, {{DNNL_ARG_SRC_0, a}, {DNNL_ARG_SRC_1, b}});
}

Recipe Pooling(const Making& making) {
  const Step& step = making.step;
  Desc source = making.AsItLies(making.in(0)), result = making.Result();
  dnnl_primitive_desc_t made = nullptr;
  dnnl_status_t status = making.api.dnnl_pooling_forward_primitive_desc_create(
      &made, making.api.engine(), dnnl_forward_inference, step.algorithm(), source.get(),
      result.get(), step.dims("strides").data(), step.dims("kernel").data(),
      step.dims("dilations").data(), step.dims("pads_begin").data(), step.dims("pads_end").data(),
      making.attributes.get());
  return making.Finish(status, made, {{DNNL_ARG_SRC, making.in(0)}});
}

Recipe Softmax(const Making& making) {
  Desc source = making.AsItLies(making.in(0)), result = making.Result();
  dnnl_primitive_desc_t made = nullptr;
  dnnl_status_t status = making.api.dnnl_softmax_forward_primitive_desc_create(
      &made, making.api.engine(), dnnl_forward_inference, making.step.algorithm(), source.get(),
      result.get(), static_cast<int>(making.step.integer("axis")), making.attributes.get());
  return making.Finish(status, made, {{DNNL_ARG_SRC, making.in(0)}});
}

Recipe LayerNormalization(const Making& making) {
  unsigned flags = dnnl_use_scale;
  if (making.has(2)) flags |= dnnl_use_shift;
  Desc source = making.Plain(making.in(0)), result = making.Plain(making.step.output);
  dnnl_primitive_desc_t made = nullptr;
  dnnl_status_t status = making.api.dnnl_layer_normalization_forward_primitive_desc_create(
      &made, making.api.engine(), dnnl_forward_inference, source.get(), result.get(), nullptr,
      making.step.number("epsilon"), flags, making.attributes.get());
  std::vector<std::pair<int, int>> reads = {{DNNL_ARG_SRC, making.in(0)},
                                            {DNNL_ARG_SCALE, making.in(1)}};
  if (making.has(2)) reads.emplace_back(DNNL_ARG_SHIFT, making.in(2));
  return making.Finish(status, made, std::move(reads));
}

Recipe Lrn(const Making& making) {
  const Step& step = making.step;
  Desc source = making.AsItLies(making.in(0)), result = making.Result();
  dnnl_primitive_desc_t made = nullptr;
  dnnl_status_t status = making.api.dnnl_lrn_forward_primitive_desc_create(
      &made, making.api.engine(), dnnl_forward_inference, dnnl_lrn_across_channels, source.get(),
      result.get(), step.integer("size"), step.number("alpha"), step.number("beta"),
      step.number("bias"), making.attributes.get());
  return making.Finish(status, made, {{DNNL_ARG_SRC, making.in(0)}});
}

Recipe Reduction(const Making& making) {
  Desc source = making.AsItLies(making.in(0)), result = making.Result();
  dnnl_primitive_desc_t made = nullptr;
  dnnl_status_t status = making.api.dnnl_reduction_primitive_desc_create(
      &made, making.api.engine(), making.step.algorithm(), source.get(), result.get(), 0, 0,
      making.attributes.get());
  return making.Finish(status, made, {{DNNL_ARG_SRC, making.in(0)}});
}

Recipe Resampling(const Making& making) {
  Desc source = making.AsItLies(making.in(0)), result = making.Result();
  dnnl_primitive_desc_t made = nullptr;
  dnnl_status_t status = making.api.dnnl_resampling_forward_primitive_desc_create(
      &made, making.api.engine(), dnnl_forward_inference, making.step.algorithm(), nullptr,
      source.get(), result.get(), making.attributes.get());
  return making.Finish(status, made, {{DNNL_ARG_SRC, making.in(0)}});
}

// The first operand that is no weight, else the first.
int FirstFixed(const Making& making) {
  for (int value : making.step.inputs) {
    if (making.around.fixed[value]) return value;
  }
  return making.in(0);
}

// As it lies, unless the first operand holds another type; a weight as the first operand lies.
Desc InOneType(const Making& making, int value) {
  const OneDnn& api = making.api;
  const Dims& dims = making.dims(value);
  int first = FirstFixed(making);
  Type type = making.type(first);
  if (making.around.fixed[value]) {
    return making.type(value) == type ? making.AsItLies(value) : api.RowMajor(dims, type);
  }
  const Dims& whole = making.dims(first);
  const Desc& lies = making.around.layouts[first];
  bool image = dims.size() >= 3 && dims.size() <= 5 && !making.last();
  if (image && api.Same(lies, api.ChannelsLast(whole, type))) return api.ChannelsLast(dims, type);
  if (image && api.Same(lies, api.Blocked(whole, type))) return api.Blocked(dims, type);
  return api.RowMajor(dims, type);
}

Recipe Concat(const Making& making) {
  std::vector<Desc> held;
  std::vector<const_dnnl_memory_desc_t> sources;
  std::vector<std::pair<int, int>> reads;
  for (std::size_t i = 0; i < making.step.inputs.size(); ++i) {
    held.push_back(InOneType(making, making.in(i)));
    sources.push_back(held.back().get());
    reads.emplace_back(DNNL_ARG_MULTIPLE_SRC + static_cast<int>(i), making.in(i));
  }
  Desc result = making.Result();
  dnnl_primitive_desc_t made = nullptr;
  dnnl_status_t status = making.api.dnnl_concat_primitive_desc_create(
      &made, making.api.engine(), result.get(), static_cast<int>(sources.size()),
      static_cast<int>(making.step.integer("axis")), sources.data(), making.attributes.get());
  return making.Finish(status, made, std::move(reads));
}

using Maker = Recipe (*)(const Making&);

Maker FindMaker(const Step& step) {
  static const std::map<std::string, Maker> kMakers = {
      {"convolution", Convolution},
      {"deconvolution", Convolution},
      {"matmul", MatMul},
      {"eltwise", Eltwise},
      {"binary", Binary},
      {"pooling", Pooling},
      {"softmax", Softmax},
      {"layer_normalization", LayerNormalization},
      {"lrn", Lrn},
      {"reduction", Reduction},
      {"resampling", Resampling},
      {"concat", Concat},
  };
  return kMakers.at(step.op);
}

// oneDNN picks the layout of an operand of the result's shape; a smaller one stays plain.
Desc OperandOfPost(const Making& making, int value) {
  bool whole = making.dims(value) == making.dims(making.step.output);
  return whole && !making.last() ? making.Any(value) : making.Plain(value);
}

Attributes MakeAttributes(const Making& making, std::size_t posts) {
  const OneDnn& api = making.api;
  dnnl_post_ops_t ops = nullptr;
  api.Check(api.dnnl_post_ops_create(&ops), making.step.name);
  std::shared_ptr<dnnl_post_ops> guard(ops, api.dnnl_post_ops_destroy);
  for (std::size_t i = 0; i < posts; ++i) {
    const PostOp& post = making.step.post[i];
    if (post.value < 0) {
      api.Check(api.dnnl_post_ops_append_eltwise(ops, post.algorithm, post.alpha, post.beta),
                making.step.name);
      continue;
    }
    Desc operand = OperandOfPost(making, post.value);
    api.Check(api.dnnl_post_ops_append_binary(ops, post.algorithm, operand.get()),
              making.step.name);
  }
  dnnl_primitive_attr_t made = nullptr;
  api.Check(api.dnnl_primitive_attr_create(&made), making.step.name);
  Attributes attributes(made, api.dnnl_primitive_attr_destroy);
  api.Check(api.dnnl_primitive_attr_set_post_ops(made, ops), making.step.name);
  api.Check(api.dnnl_primitive_attr_set_scratchpad_mode(made, dnnl_scratchpad_mode_user),
            making.step.name);
  return attributes;
}

}  // namespace

int Attempts(const Step& step) {
  if (step.op == "layer_normalization") return 1;
  return step.op == "convolution" || step.op == "deconvolution" || step.op == "matmul" ? 3 : 2;
}

Recipe MakeRecipe(const Program& program, const Step& step, const Surroundings& around, int attempt,
                  std::size_t posts) {
  Making making{OneDnn::Get(), program, step, around, attempt, nullptr};
  Maker make = FindMaker(step);
  making.attributes = MakeAttributes(making, posts);
  Recipe recipe = make(making);
  for (std::size_t i = 0; i < posts; ++i) {
    if (step.post[i].value < 0) continue;
    int argument = DNNL_ARG_ATTR_MULTIPLE_POST_OP(static_cast<int>(i)) | DNNL_ARG_SRC_1;
    recipe.reads.emplace_back(argument, step.post[i].value);
  }
  return recipe;
}

}  // namespace collage::onednn
