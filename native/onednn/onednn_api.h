// oneDNN's C functions and handles that free themselves. Types come from its headers, addresses
// from dlsym: the plug-in links nothing of it. Tested with oneDNN 3.2 on OpenMP (libgomp).
#ifndef COLLAGE_ONEDNN_API_H_
#define COLLAGE_ONEDNN_API_H_

#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>
#include <tvm/ffi/error.h>

#include <memory>
#include <string>
#include <vector>

#include "core/openmp.h"

namespace collage::onednn {

#define COLLAGE_ONEDNN_FUNCTIONS(F)                         \
  F(dnnl_engine_create)                                     \
  F(dnnl_get_effective_cpu_isa)                             \
  F(dnnl_stream_create)                                     \
  F(dnnl_stream_destroy)                                    \
  F(dnnl_status2str)                                        \
  F(dnnl_memory_desc_create_with_strides)                   \
  F(dnnl_memory_desc_create_with_tag)                       \
  F(dnnl_memory_desc_reshape)                               \
  F(dnnl_memory_desc_permute_axes)                          \
  F(dnnl_memory_desc_clone)                                 \
  F(dnnl_memory_desc_destroy)                               \
  F(dnnl_memory_desc_equal)                                 \
  F(dnnl_memory_desc_get_size)                              \
  F(dnnl_memory_desc_query)                                 \
  F(dnnl_memory_create)                                     \
  F(dnnl_memory_destroy)                                    \
  F(dnnl_memory_set_data_handle)                            \
  F(dnnl_post_ops_create)                                   \
  F(dnnl_post_ops_destroy)                                  \
  F(dnnl_post_ops_append_eltwise)                           \
  F(dnnl_post_ops_append_binary)                            \
  F(dnnl_primitive_attr_create)                             \
  F(dnnl_primitive_attr_destroy)                            \
  F(dnnl_primitive_attr_set_post_ops)                       \
  F(dnnl_primitive_attr_set_scratchpad_mode)                \
  F(dnnl_primitive_desc_destroy)                            \
  F(dnnl_primitive_desc_query)                              \
  F(dnnl_primitive_create)                                  \
  F(dnnl_primitive_destroy)                                 \
  F(dnnl_primitive_execute)                                 \
  F(dnnl_binary_primitive_desc_create)                      \
  F(dnnl_concat_primitive_desc_create)                      \
  F(dnnl_convolution_forward_primitive_desc_create)         \
  F(dnnl_deconvolution_forward_primitive_desc_create)       \
  F(dnnl_eltwise_forward_primitive_desc_create)             \
  F(dnnl_layer_normalization_forward_primitive_desc_create) \
  F(dnnl_lrn_forward_primitive_desc_create)                 \
  F(dnnl_matmul_primitive_desc_create)                      \
  F(dnnl_pooling_forward_primitive_desc_create)             \
  F(dnnl_reduction_primitive_desc_create)                   \
  F(dnnl_reorder_primitive_desc_create)                     \
  F(dnnl_resampling_forward_primitive_desc_create)          \
  F(dnnl_softmax_forward_primitive_desc_create)

using Type = dnnl_data_type_t;
using Dims = std::vector<dnnl_dim_t>;
using Desc = std::shared_ptr<dnnl_memory_desc>;
using Memory = std::shared_ptr<dnnl_memory>;
using PrimitiveDesc = std::shared_ptr<dnnl_primitive_desc>;
using Primitive = std::shared_ptr<dnnl_primitive>;
using Attributes = std::shared_ptr<dnnl_primitive_attr>;

class OneDnn {
 public:
  // The process's only instance. Throws a ffi RuntimeError when the library is missing.
  static const OneDnn& Get();

#define COLLAGE_DECLARE(name) decltype(&::name) name;
  COLLAGE_ONEDNN_FUNCTIONS(COLLAGE_DECLARE)
#undef COLLAGE_DECLARE
  // libgomp's, found through oneDNN's dependencies; per calling thread.
  int (*omp_get_max_threads)();
  void (*omp_set_num_threads)(int);

  dnnl_engine_t engine() const { return engine_; }

  // Throws a ffi RuntimeError with oneDNN's word for `status` unless it is success.
  void Check(dnnl_status_t status, const std::string& what) const;

  // Descriptors: row-major, with given strides, or of a layout that oneDNN may choose.
  Desc RowMajor(const Dims& dims, Type type = dnnl_f32) const;
  Desc Strided(const Dims& dims, const Dims& strides, Type type = dnnl_f32) const;
  Desc Any(const Dims& dims, Type type = dnnl_f32) const;
  Desc ChannelsLast(const Dims& dims, Type type = dnnl_f32) const;
  Desc Blocked(const Dims& dims, Type type = dnnl_f32) const;  // channels in blocks of `block()`
  int block() const { return block_; }

  // Null where the layout does not allow it without a copy.
  Desc Reshaped(const Desc& desc, const Dims& dims) const;
  // Axis i of the result is axis permutation[i] of `desc`.
  Desc Permuted(const Desc& desc, const std::vector<int>& permutation) const;

  Type TypeOf(const Desc& desc) const;
  Dims DimsOf(const Desc& desc) const;
  // Empty when the layout is blocked.
  Dims StridesOf(const Desc& desc) const;
  std::size_t SizeOf(const Desc& desc) const { return dnnl_memory_desc_get_size(desc.get()); }
  // Whether the same bytes mean the same numbers: strides of dimensions of one element do not count.
  bool Same(const Desc& left_layout, const Desc& right_layout) const;

  // The layout that a primitive wants for an argument; null when it has no such argument.
  Desc ArgumentOf(const PrimitiveDesc& primitive, int argument) const;
  std::string ImplementationOf(const PrimitiveDesc& primitive) const;

  Memory MakeMemory(const Desc& desc, void* data) const;
  Primitive MakePrimitive(const PrimitiveDesc& desc, const std::string& what) const;
  Desc Own(dnnl_memory_desc_t desc) const { return {desc, dnnl_memory_desc_destroy}; }
  PrimitiveDesc Own(dnnl_primitive_desc_t desc) const {
    return {desc, dnnl_primitive_desc_destroy};
  }

 private:
  OneDnn();

  dnnl_engine_t engine_ = nullptr;
  int block_ = 8;  // what fits one vector register
};

// Sets this thread's OpenMP threads, to fewer where there can be no more, and sets them back.
class ThreadScope {
 public:
  ThreadScope(const OneDnn& api, int threads) : api_(api), before_(api.omp_get_max_threads()) {
    threads = UsableThreads(threads);
    changed_ = before_ != threads;
    if (changed_) api_.omp_set_num_threads(threads);
  }
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;
  ~ThreadScope() {
    if (changed_) api_.omp_set_num_threads(before_);
  }

 private:
  const OneDnn& api_;
  int before_;
  bool changed_;
};

}  // namespace collage::onednn

#endif  // COLLAGE_ONEDNN_API_H_
