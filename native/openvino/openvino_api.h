// OpenVINO's C functions, and models and requests that are made with them.
//
// One core serves the process; a compiled model has one stream and as many threads as the process. Settings of a
// compiled model, in the header of a blob:
//   inference_precision  "f32" (default), "bf16" or "f16": precision of matrix products
//   config               [key, value, key, value, ...]: more properties of the compiled model
//   alone                1: OpenVINO pins its threads, for a process without other computation
#ifndef COLLAGE_OPENVINO_API_H_
#define COLLAGE_OPENVINO_API_H_

#include <dlpack/dlpack.h>
#include <openvino/c/openvino.h>

#include <memory>
#include <string_view>

#include "core/kernel.h"

namespace collage {

// The C functions in use. The headers give their types; dlsym gives their addresses.
#define COLLAGE_OPENVINO_FUNCTIONS(F)            \
  F(ov_core_create)                              \
  F(ov_core_read_model_from_memory_buffer)       \
  F(ov_core_compile_model_props)                 \
  F(ov_model_free)                               \
  F(ov_model_reshape_by_port_indexes)            \
  F(ov_shape_to_partial_shape)                   \
  F(ov_partial_shape_free)                       \
  F(ov_compiled_model_inputs_size)               \
  F(ov_compiled_model_outputs_size)              \
  F(ov_compiled_model_create_infer_request)      \
  F(ov_compiled_model_free)                      \
  F(ov_infer_request_set_input_tensor_by_index)  \
  F(ov_infer_request_set_output_tensor_by_index) \
  F(ov_infer_request_get_output_tensor_by_index) \
  F(ov_infer_request_infer)                      \
  F(ov_infer_request_free)                       \
  F(ov_tensor_create_from_host_ptr)              \
  F(ov_tensor_get_shape)                         \
  F(ov_tensor_get_element_type)                  \
  F(ov_tensor_data)                              \
  F(ov_shape_free)                               \
  F(ov_tensor_free)                              \
  F(ov_get_error_info)                           \
  F(ov_get_last_err_msg)

using OpenVinoModel = std::unique_ptr<ov_model_t, decltype(&ov_model_free)>;
using OpenVinoCompiled = std::unique_ptr<ov_compiled_model_t, decltype(&ov_compiled_model_free)>;
using OpenVinoRequest = std::unique_ptr<ov_infer_request_t, decltype(&ov_infer_request_free)>;

class OpenVino {
 public:
  static const OpenVino& Get();

  // Throws a ffi RuntimeError with OpenVINO's message.
  void Check(ov_status_e status) const;

  OpenVinoModel Read(std::string_view bytes) const;
  OpenVinoCompiled Compile(const KernelSpec& settings, const ov_model_t* model) const;
  OpenVinoRequest MakeRequest(const ov_compiled_model_t* model) const;

#define COLLAGE_DECLARE(name) decltype(&::name) name;
  COLLAGE_OPENVINO_FUNCTIONS(COLLAGE_DECLARE)
#undef COLLAGE_DECLARE

 private:
  OpenVino();

  ov_core_t* core_ = nullptr;
};

// OpenVINO's element type of a DLPack type.
ov_element_type_e OpenVinoType(DLDataType type);

// The DLPack type of an element type.
DLDataType TypeOfOpenVino(ov_element_type_e element);

}  // namespace collage

#endif  // COLLAGE_OPENVINO_API_H_
