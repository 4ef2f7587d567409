// One function per kind of step: from the layouts of its operands to a oneDNN primitive.
#include <map>

#include "onednn/onednn_program.h"

namespace collage::onednn {
namespace {

// The inputs of the choice of one primitive.
struct PrimitiveRequest {
  const OneDnn& api;
  const Program& program;
  const Step& step;
  const LayoutContext& context;
  int attempt;
  Attributes attributes;

  const Dims& dims(int value) const { return program.values[value]; }
  int in(std::size_t position) const { return step.inputs[position]; }
  bool has(std::size_t position) const { return position < step.inputs.size(); }
  bool last() const { return attempt + 1 == Attempts(step); }

  // Dtype of a value: that of its layout; for a product's result, that of the preferred layout, else that of
  // factors; for any other result, that of the first operand.
  Type type(int value) const {
    if (context.layouts[value] != nullptr) return api.TypeOf(context.layouts[value]);
    if (!is_product()) return type(in(0));
    return context.preferred_layouts[value] == nullptr
               ? context.products
               : api.TypeOf(context.preferred_layouts[value]);
  }
  bool is_product() const {
    return step.op == "convolution" || step.op == "deconvolution" || step.op == "matmul";
  }

  Desc Plain(int value) const { return api.RowMajor(dims(value), type(value)); }
  Desc Any(int value) const { return api.Any(dims(value), type(value)); }

  // A factor of a product.
  Desc Factor(int value) const {
    if (type(value) == context.products) return CurrentLayout(value);
    return api.RowMajor(dims(value), context.products);
  }

  // The current layout, or plain in the last attempt.
  Desc CurrentLayout(int value) const { return last() ? Plain(value) : context.layouts[value]; }

  // oneDNN's choice for weights, packed once; else the current layout.
  Desc Packed(int value) const {
    if (last()) return Plain(value);
    return context.fixed[value] ? context.layouts[value] : Any(value);
  }

  // oneDNN's choice for the result, or plain in the last attempt.
  Desc Result() const { return last() ? Plain(step.output) : Any(step.output); }

  PrimitiveChoice Finish(dnnl_status_t status, dnnl_primitive_desc_t descriptor,
                         std::vector<std::pair<int, int>> reads) const {
    return {status == dnnl_success ? api.Own(descriptor) : nullptr, std::move(reads)};
  }
};

bool PrefersChannelsLast(const PrimitiveRequest& request) {
  const OneDnn& api = request.api;
  auto is_channels_last = [&](int value, const Desc& desc) {
    if (desc == nullptr || request.dims(value).size() < 3) return false;
    Type type = api.TypeOf(desc);
    return api.Same(desc, api.ChannelsLast(request.dims(value), type)) &&
           !api.Same(desc, api.RowMajor(request.dims(value), type));
  };
  return is_channels_last(request.in(0), request.context.layouts[request.in(0)]) ||
         is_channels_last(request.step.output,
                          request.context.preferred_layouts[request.step.output]);
}

// The layout of a convolution's activations; oneDNN's choice if `layout` does not fit.
Desc InLayout(const PrimitiveRequest& request, Layout layout, int value, Type type) {
  const OneDnn& api = request.api;
  const Dims& dims = request.dims(value);
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

PrimitiveChoice Convolution(const PrimitiveRequest& request) {
  const OneDnn& api = request.api;
  const Step& step = request.step;
  int x = request.in(0), w = request.in(1), y = step.output;
  Layout first = PrefersChannelsLast(request) ? Layout::kChannelsLast : request.context.layout;
  Type factors = request.context.products;
  auto layout = [&](int value, Type type) {
    Layout chosen = request.attempt == 0 ? first : Layout::kAny;
    return InLayout(request, request.last() ? Layout::kPlain : chosen, value, type);
  };
  Desc source = layout(x, factors), weights = api.Any(request.dims(w), factors);
  Desc result = layout(y, request.type(y));
  Desc bias = request.has(2) ? request.Plain(request.in(2)) : nullptr;
  auto create = step.op == "convolution" ? api.dnnl_convolution_forward_primitive_desc_create
                                         : api.dnnl_deconvolution_forward_primitive_desc_create;
  auto algorithm = step.op == "convolution" ? dnnl_convolution_direct : dnnl_deconvolution_direct;
  dnnl_primitive_desc_t descriptor = nullptr;
  dnnl_status_t status = create(
      &descriptor, api.engine(), dnnl_forward_inference, algorithm, source.get(), weights.get(),
      bias.get(), result.get(), step.dims("strides").data(), step.dims("dilations").data(),
      step.dims("pads_begin").data(), step.dims("pads_end").data(), request.attributes.get());
  std::vector<std::pair<int, int>> reads = {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, w}};
  if (bias != nullptr) reads.emplace_back(DNNL_ARG_BIAS, request.in(2));
  return request.Finish(status, descriptor, std::move(reads));
}

PrimitiveChoice MatMul(const PrimitiveRequest& request) {
  const OneDnn& api = request.api;
  int a = request.in(0), b = request.in(1), y = request.step.output;
  Desc preferred = request.attempt == 0 ? request.context.preferred_layouts[y] : nullptr;
  bool packed = !request.context.fixed[b];
  Desc left = request.Factor(a);
  Desc right = packed ? api.Any(request.dims(b), request.context.products) : request.Factor(b);
  Desc result = preferred == nullptr ? request.Plain(y) : preferred;
  Desc bias = request.has(2) ? request.Plain(request.in(2)) : nullptr;
  dnnl_primitive_desc_t descriptor = nullptr;
  dnnl_status_t status =
      api.dnnl_matmul_primitive_desc_create(&descriptor, api.engine(), left.get(), right.get(),
                                            bias.get(), result.get(), request.attributes.get());
  std::vector<std::pair<int, int>> reads = {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}};
  if (bias != nullptr) reads.emplace_back(DNNL_ARG_BIAS, request.in(2));
  return request.Finish(status, descriptor, std::move(reads));
}

PrimitiveChoice Eltwise(const PrimitiveRequest& request) {
  Desc source = request.CurrentLayout(request.in(0)), result = request.Result();
  dnnl_primitive_desc_t descriptor = nullptr;
  dnnl_status_t status = request.api.dnnl_eltwise_forward_primitive_desc_create(
      &descriptor, request.api.engine(), dnnl_forward_inference, request.step.main.algorithm,
      source.get(), result.get(), request.step.main.alpha, request.step.main.beta,
      request.attributes.get());
  return request.Finish(status, descriptor, {{DNNL_ARG_SRC, request.in(0)}});
}

// Operands of a binary algorithm with equal shapes have one layout.
PrimitiveChoice Binary(const PrimitiveRequest& request) {
  int a = request.in(0), b = request.in(1);
  bool equal = request.dims(a) == request.dims(b);
  Desc left = request.CurrentLayout(a);
  Desc right = equal && request.type(a) == request.type(b) ? left : request.Packed(b);
  Desc result = request.Result();
  dnnl_primitive_desc_t descriptor = nullptr;
  dnnl_status_t status = request.api.dnnl_binary_primitive_desc_create(
      &descriptor, request.api.engine(), request.step.main.algorithm, left.get(), right.get(),
      result.get(), request.attributes.get());
  return request.Finish(status, descriptor, {{DNNL_ARG_SRC_0, a}, {DNNL_ARG_SRC_1, b}});
}

PrimitiveChoice Pooling(const PrimitiveRequest& request) {
  const Step& step = request.step;
  Desc source = request.CurrentLayout(request.in(0)), result = request.Result();
  dnnl_primitive_desc_t descriptor = nullptr;
  dnnl_status_t status = request.api.dnnl_pooling_forward_primitive_desc_create(
      &descriptor, request.api.engine(), dnnl_forward_inference, step.algorithm(), source.get(),
      result.get(), step.dims("strides").data(), step.dims("kernel").data(),
      step.dims("dilations").data(), step.dims("pads_begin").data(), step.dims("pads_end").data(),
      request.attributes.get());
  return request.Finish(status, descriptor, {{DNNL_ARG_SRC, request.in(0)}});
}

PrimitiveChoice Softmax(const PrimitiveRequest& request) {
  Desc source = request.CurrentLayout(request.in(0)), result = request.Result();
  dnnl_primitive_desc_t descriptor = nullptr;
  dnnl_status_t status = request.api.dnnl_softmax_forward_primitive_desc_create(
      &descriptor, request.api.engine(), dnnl_forward_inference, request.step.algorithm(),
      source.get(), result.get(), static_cast<int>(request.step.integer("axis")),
      request.attributes.get());
  return request.Finish(status, descriptor, {{DNNL_ARG_SRC, request.in(0)}});
}

PrimitiveChoice LayerNormalization(const PrimitiveRequest& request) {
  unsigned flags = dnnl_use_scale;
  if (request.has(2)) flags |= dnnl_use_shift;
  Desc source = request.Plain(request.in(0)), result = request.Plain(request.step.output);
  dnnl_primitive_desc_t descriptor = nullptr;
  dnnl_status_t status = request.api.dnnl_layer_normalization_forward_primitive_desc_create(
      &descriptor, request.api.engine(), dnnl_forward_inference, source.get(), result.get(),
      nullptr, request.step.number("epsilon"), flags, request.attributes.get());
  std::vector<std::pair<int, int>> reads = {{DNNL_ARG_SRC, request.in(0)},
                                            {DNNL_ARG_SCALE, request.in(1)}};
  if (request.has(2)) reads.emplace_back(DNNL_ARG_SHIFT, request.in(2));
  return request.Finish(status, descriptor, std::move(reads));
}

PrimitiveChoice Lrn(const PrimitiveRequest& request) {
  const Step& step = request.step;
  Desc source = request.CurrentLayout(request.in(0)), result = request.Result();
  dnnl_primitive_desc_t descriptor = nullptr;
  dnnl_status_t status = request.api.dnnl_lrn_forward_primitive_desc_create(
      &descriptor, request.api.engine(), dnnl_forward_inference, dnnl_lrn_across_channels,
      source.get(), result.get(), step.integer("size"), step.number("alpha"), step.number("beta"),
      step.number("bias"), request.attributes.get());
  return request.Finish(status, descriptor, {{DNNL_ARG_SRC, request.in(0)}});
}

PrimitiveChoice Reduction(const PrimitiveRequest& request) {
  Desc source = request.CurrentLayout(request.in(0)), result = request.Result();
  dnnl_primitive_desc_t descriptor = nullptr;
  dnnl_status_t status = request.api.dnnl_reduction_primitive_desc_create(
      &descriptor, request.api.engine(), request.step.algorithm(), source.get(), result.get(), 0, 0,
      request.attributes.get());
  return request.Finish(status, descriptor, {{DNNL_ARG_SRC, request.in(0)}});
}

PrimitiveChoice Resampling(const PrimitiveRequest& request) {
  Desc source = request.CurrentLayout(request.in(0)), result = request.Result();
  dnnl_primitive_desc_t descriptor = nullptr;
  dnnl_status_t status = request.api.dnnl_resampling_forward_primitive_desc_create(
      &descriptor, request.api.engine(), dnnl_forward_inference, request.step.algorithm(), nullptr,
      source.get(), result.get(), request.attributes.get());
  return request.Finish(status, descriptor, {{DNNL_ARG_SRC, request.in(0)}});
}

// The first operand other than a weight, else the first.
int FirstFixed(const PrimitiveRequest& request) {
  for (int value : request.step.inputs) {
    if (request.context.fixed[value]) return value;
  }
  return request.in(0);
}

// The current layout, unless the first operand has another dtype; for a weight, the first operand's layout.
Desc InOneType(const PrimitiveRequest& request, int value) {
  const OneDnn& api = request.api;
  const Dims& dims = request.dims(value);
  int first = FirstFixed(request);
  Type type = request.type(first);
  if (request.context.fixed[value]) {
    return request.type(value) == type ? request.CurrentLayout(value) : api.RowMajor(dims, type);
  }
  const Dims& first_dims = request.dims(first);
  const Desc& first_layout = request.context.layouts[first];
  bool image = dims.size() >= 3 && dims.size() <= 5 && !request.last();
  if (image && api.Same(first_layout, api.ChannelsLast(first_dims, type)))
    return api.ChannelsLast(dims, type);
  if (image && api.Same(first_layout, api.Blocked(first_dims, type)))
    return api.Blocked(dims, type);
  return api.RowMajor(dims, type);
}

PrimitiveChoice Concat(const PrimitiveRequest& request) {
  std::vector<Desc> layouts;
  std::vector<const_dnnl_memory_desc_t> sources;
  std::vector<std::pair<int, int>> reads;
  for (std::size_t i = 0; i < request.step.inputs.size(); ++i) {
    layouts.push_back(InOneType(request, request.in(i)));
    sources.push_back(layouts.back().get());
    reads.emplace_back(DNNL_ARG_MULTIPLE_SRC + static_cast<int>(i), request.in(i));
  }
  Desc result = request.Result();
  dnnl_primitive_desc_t descriptor = nullptr;
  dnnl_status_t status = request.api.dnnl_concat_primitive_desc_create(
      &descriptor, request.api.engine(), result.get(), static_cast<int>(sources.size()),
      static_cast<int>(request.step.integer("axis")), sources.data(), request.attributes.get());
  return request.Finish(status, descriptor, std::move(reads));
}

using PrimitiveFactory = PrimitiveChoice (*)(const PrimitiveRequest&);

PrimitiveFactory FindFactory(const Step& step) {
  static const std::map<std::string, PrimitiveFactory> kFactories = {
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
  return kFactories.at(step.op);
}

// oneDNN picks the layout of an operand with the result's shape; a smaller one remains plain.
Desc PostOpOperand(const PrimitiveRequest& request, int value) {
  bool is_full = request.dims(value) == request.dims(request.step.output);
  return is_full && !request.last() ? request.Any(value) : request.Plain(value);
}

Attributes MakeAttributes(const PrimitiveRequest& request, std::size_t post_op_count) {
  const OneDnn& api = request.api;
  dnnl_post_ops_t ops = nullptr;
  api.Check(api.dnnl_post_ops_create(&ops), request.step.name);
  std::shared_ptr<dnnl_post_ops> guard(ops, api.dnnl_post_ops_destroy);
  for (std::size_t i = 0; i < post_op_count; ++i) {
    const PostOp& post_op = request.step.post_ops[i];
    if (post_op.value < 0) {
      api.Check(
          api.dnnl_post_ops_append_eltwise(ops, post_op.algorithm, post_op.alpha, post_op.beta),
          request.step.name);
      continue;
    }
    Desc operand = PostOpOperand(request, post_op.value);
    api.Check(api.dnnl_post_ops_append_binary(ops, post_op.algorithm, operand.get()),
              request.step.name);
  }
  dnnl_primitive_attr_t descriptor = nullptr;
  api.Check(api.dnnl_primitive_attr_create(&descriptor), request.step.name);
  Attributes attributes(descriptor, api.dnnl_primitive_attr_destroy);
  api.Check(api.dnnl_primitive_attr_set_post_ops(descriptor, ops), request.step.name);
  api.Check(api.dnnl_primitive_attr_set_scratchpad_mode(descriptor, dnnl_scratchpad_mode_user),
            request.step.name);
  return attributes;
}

}  // namespace

int Attempts(const Step& step) {
  if (step.op == "layer_normalization") return 1;
  return step.op == "convolution" || step.op == "deconvolution" || step.op == "matmul" ? 3 : 2;
}

PrimitiveChoice ChoosePrimitive(const Program& program, const Step& step,
                                const LayoutContext& context, int attempt,
                                std::size_t post_op_count) {
  PrimitiveRequest request{OneDnn::Get(), program, step, context, attempt, nullptr};
  PrimitiveFactory factory = FindFactory(step);
  request.attributes = MakeAttributes(request, post_op_count);
  PrimitiveChoice choice = factory(request);
  for (std::size_t i = 0; i < post_op_count; ++i) {
    if (step.post_ops[i].value < 0) continue;
    int argument = DNNL_ARG_ATTR_MULTIPLE_POST_OP(static_cast<int>(i)) | DNNL_ARG_SRC_1;
    choice.reads.emplace_back(argument, step.post_ops[i].value);
  }
  return choice;
}

}  // namespace collage::onednn
