#include "onednn/onednn_api.h"

#include <mutex>

#include "core/library.h"

namespace collage::onednn {

const OneDnn& OneDnn::Get() {
  static const OneDnn* api = nullptr;
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (api == nullptr) api = new OneDnn();
  return *api;
}

OneDnn::OneDnn() {
  void* library = OpenLibrary("onednn");
#define COLLAGE_FIND(name) name = FindSymbolAs<decltype(&::name)>(library, "onednn", #name);
  COLLAGE_ONEDNN_FUNCTIONS(COLLAGE_FIND)
#undef COLLAGE_FIND
  omp_get_max_threads = FindSymbolAs<int (*)()>(library, "onednn", "omp_get_max_threads");
  omp_set_num_threads = FindSymbolAs<void (*)(int)>(library, "onednn", "omp_set_num_threads");
  Check(dnnl_engine_create(&engine_, dnnl_cpu, 0), "the engine");
  bool wide = (dnnl_get_effective_cpu_isa() & dnnl_cpu_isa_avx512_core) == dnnl_cpu_isa_avx512_core;
  if (wide) block_ = 16;
}

void OneDnn::Check(dnnl_status_t status, const std::string& what) const {
  if (status == dnnl_success) return;
  TVM_FFI_THROW(RuntimeError) << "onednn: " << what << ": " << dnnl_status2str(status);
}

Desc OneDnn::RowMajor(const Dims& dims, Type type) const {
  Dims strides(dims.size(), 1);
  for (std::size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return Strided(dims, strides, type);
}

Desc OneDnn::Strided(const Dims& dims, const Dims& strides, Type type) const {
  dnnl_memory_desc_t desc = nullptr;
  Check(dnnl_memory_desc_create_with_strides(&desc, static_cast<int>(dims.size()), dims.data(),
                                             type, strides.data()),
        "a layout with strides");
  return Own(desc);
}

Desc OneDnn::Any(const Dims& dims, Type type) const {
  dnnl_memory_desc_t desc = nullptr;
  Check(dnnl_memory_desc_create_with_tag(&desc, static_cast<int>(dims.size()), dims.data(), type,
                                         dnnl_format_tag_any),
        "an open layout");
  return Own(desc);
}

Desc OneDnn::ChannelsLast(const Dims& dims, Type type) const {
  Dims strides(dims.size(), 1);
  dnnl_dim_t step = dims[1];
  for (std::size_t i = dims.size(); i-- > 2; step *= dims[i]) strides[i] = step;
  strides[0] = step;
  return Strided(dims, strides, type);
}

Desc OneDnn::Blocked(const Dims& dims, Type type) const {
  static constexpr dnnl_format_tag_t kNarrow[] = {dnnl_aBc8b, dnnl_aBcd8b, dnnl_aBcde8b};
  static constexpr dnnl_format_tag_t kWide[] = {dnnl_aBc16b, dnnl_aBcd16b, dnnl_aBcde16b};
  dnnl_memory_desc_t desc = nullptr;
  Check(dnnl_memory_desc_create_with_tag(&desc, static_cast<int>(dims.size()), dims.data(), type,
                                         (block_ == 16 ? kWide : kNarrow)[dims.size() - 3]),
        "a blocked layout");
  return Own(desc);
}

Desc OneDnn::Reshaped(const Desc& desc, const Dims& dims) const {
  dnnl_memory_desc_t layout = nullptr;
  dnnl_status_t status =
      dnnl_memory_desc_reshape(&layout, desc.get(), static_cast<int>(dims.size()), dims.data());
  return status == dnnl_success ? Own(layout) : nullptr;
}

Desc OneDnn::Permuted(const Desc& desc, const std::vector<int>& permutation) const {
  std::vector<int> target(permutation.size());
  for (std::size_t i = 0; i < permutation.size(); ++i) target[permutation[i]] = static_cast<int>(i);
  dnnl_memory_desc_t layout = nullptr;
  Check(dnnl_memory_desc_permute_axes(&layout, desc.get(), target.data()), "a permuted layout");
  return Own(layout);
}

Type OneDnn::TypeOf(const Desc& desc) const {
  Type type = dnnl_data_type_undef;
  Check(dnnl_memory_desc_query(desc.get(), dnnl_query_data_type, &type), "a layout's type");
  return type;
}

Dims OneDnn::DimsOf(const Desc& desc) const {
  int rank = 0;
  const dnnl_dims_t* dims = nullptr;
  Check(dnnl_memory_desc_query(desc.get(), dnnl_query_ndims_s32, &rank), "a layout's rank");
  Check(dnnl_memory_desc_query(desc.get(), dnnl_query_dims, &dims), "a layout's dimensions");
  return Dims(*dims, *dims + rank);
}

Dims OneDnn::StridesOf(const Desc& desc) const {
  int blocks = 0;
  dnnl_format_kind_t kind = dnnl_format_kind_undef;
  Check(dnnl_memory_desc_query(desc.get(), dnnl_query_format_kind, &kind), "a layout's kind");
  if (kind != dnnl_blocked) return {};
  Check(dnnl_memory_desc_query(desc.get(), dnnl_query_inner_nblks_s32, &blocks), "blocks");
  if (blocks != 0) return {};
  const dnnl_dims_t* strides = nullptr;
  Check(dnnl_memory_desc_query(desc.get(), dnnl_query_strides, &strides), "a layout's strides");
  return Dims(*strides, *strides + DimsOf(desc).size());
}

bool OneDnn::Same(const Desc& left_layout, const Desc& right_layout) const {
  if (dnnl_memory_desc_equal(left_layout.get(), right_layout.get())) return true;
  if (TypeOf(left_layout) != TypeOf(right_layout)) return false;
  Dims dims = DimsOf(left_layout), left = StridesOf(left_layout), right = StridesOf(right_layout);
  if (dims != DimsOf(right_layout) || left.empty() || right.empty()) return false;
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] != 1 && left[i] != right[i]) return false;
  }
  return true;
}

Desc OneDnn::ArgumentOf(const PrimitiveDesc& primitive, int argument) const {
  const_dnnl_memory_desc_t layout = nullptr;
  dnnl_memory_desc_t copy = nullptr;
  dnnl_status_t status =
      dnnl_primitive_desc_query(primitive.get(), dnnl_query_exec_arg_md, argument, &layout);
  if (status != dnnl_success || layout == nullptr) return nullptr;
  Check(dnnl_memory_desc_clone(&copy, layout), "a copy of a layout");
  return Own(copy);
}

std::string OneDnn::ImplementationOf(const PrimitiveDesc& primitive) const {
  const char* name = nullptr;
  Check(dnnl_primitive_desc_query(primitive.get(), dnnl_query_impl_info_str, 0, &name),
        "an implementation's name");
  return name == nullptr ? "" : name;
}

Memory OneDnn::MakeMemory(const Desc& desc, void* data) const {
  dnnl_memory_t memory = nullptr;
  Check(dnnl_memory_create(&memory, desc.get(), engine_, data), "a memory");
  return {memory, dnnl_memory_destroy};
}

Primitive OneDnn::MakePrimitive(const PrimitiveDesc& desc, const std::string& what) const {
  dnnl_primitive_t primitive = nullptr;
  Check(dnnl_primitive_create(&primitive, desc.get()), what);
  return {primitive, dnnl_primitive_destroy};
}

}  // namespace collage::onednn
