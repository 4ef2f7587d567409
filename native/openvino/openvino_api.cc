#include "openvino/openvino_api.h"

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/library.h"

namespace collage {

const OpenVino& OpenVino::Get() {
  static const OpenVino* runtime = nullptr;
  static std::mutex mutex;
  std::lock_guard<std::mutex> lock(mutex);
  if (runtime == nullptr) runtime = new OpenVino();
  return *runtime;
}

OpenVino::OpenVino() {
  void* library = OpenLibrary("openvino");
#define COLLAGE_FIND(name) name = FindSymbolAs<decltype(&::name)>(library, "openvino", #name);
  COLLAGE_OPENVINO_FUNCTIONS(COLLAGE_FIND)
#undef COLLAGE_FIND
  Check(ov_core_create(&core_));
}

void OpenVino::Check(ov_status_e status) const {
  if (status == ov_status_e::OK) return;
  const char* message = ov_get_last_err_msg();
  TVM_FFI_THROW(RuntimeError) << "openvino: " << ov_get_error_info(status) << ": "
                              << (message == nullptr ? "" : message);
}

OpenVinoModel OpenVino::Read(std::string_view bytes) const {
  ov_model_t* model = nullptr;
  Check(ov_core_read_model_from_memory_buffer(core_, bytes.data(), bytes.size(), nullptr, &model));
  return {model, ov_model_free};
}

OpenVinoCompiled OpenVino::Compile(const KernelSpec& settings, const ov_model_t* model) const {
  const Blob& blob = *settings.blob;
  std::string threads = std::to_string(settings.threads);
  std::string precision = blob.GetString("inference_precision", "f32");
  std::vector<std::pair<std::string, std::string>> config = blob.GetPairs("config");
  RefusePaths(config, "config");
  std::vector<ov_property_t> properties = {{"INFERENCE_NUM_THREADS", threads.c_str()},
                                           {"NUM_STREAMS", "1"},
                                           {"PERFORMANCE_HINT", "LATENCY"},
                                           {"INFERENCE_PRECISION_HINT", precision.c_str()}};
  if (blob.GetInt("alone", 0) == 0) properties.push_back({"ENABLE_CPU_PINNING", "NO"});
  for (const auto& [key, value] : config) properties.push_back({key.c_str(), value.c_str()});
  ov_compiled_model_t* compiled = nullptr;
  Check(ov_core_compile_model_props(core_, model, "CPU", properties.size(), properties.data(),
                                    &compiled));
  return {compiled, ov_compiled_model_free};
}

OpenVinoRequest OpenVino::MakeRequest(const ov_compiled_model_t* model) const {
  ov_infer_request_t* request = nullptr;
  Check(ov_compiled_model_create_infer_request(model, &request));
  return {request, ov_infer_request_free};
}

ov_element_type_e OpenVinoType(DLDataType type) {
  switch (type.lanes == 1 ? static_cast<int>(type.code) : -1) {
    case kDLFloat:
      if (type.bits == 32) return F32;
      if (type.bits == 16) return F16;
      if (type.bits == 64) return F64;
      break;
    case kDLInt:
      if (type.bits == 8) return I8;
      if (type.bits == 16) return I16;
      if (type.bits == 32) return I32;
      if (type.bits == 64) return I64;
      break;
    case kDLUInt:
      if (type.bits == 1) return BOOLEAN;
      if (type.bits == 8) return U8;
      if (type.bits == 16) return U16;
      if (type.bits == 32) return U32;
      if (type.bits == 64) return U64;
      break;
    case kDLBool:
      return BOOLEAN;
    case kDLBfloat:
      return BF16;
    default:
      break;
  }
  TVM_FFI_THROW(TypeError) << "openvino has no element type for DLPack code "
                           << static_cast<int>(type.code) << " with " << static_cast<int>(type.bits)
                           << " bits";
  TVM_FFI_UNREACHABLE();
}

DLDataType TypeOfOpenVino(ov_element_type_e element) {
  constexpr DLDataType kTypes[] = {
      {kDLFloat, 32, 1}, {kDLFloat, 16, 1}, {kDLFloat, 64, 1}, {kDLInt, 8, 1},  {kDLInt, 16, 1},
      {kDLInt, 32, 1},   {kDLInt, 64, 1},   {kDLBool, 8, 1},   {kDLUInt, 8, 1}, {kDLUInt, 16, 1},
      {kDLUInt, 32, 1},  {kDLUInt, 64, 1},  {kDLBfloat, 16, 1}};
  for (DLDataType type : kTypes) {
    if (OpenVinoType(type) == element) return type;
  }
  TVM_FFI_THROW(TypeError) << "openvino returned tensors of element type "
                           << static_cast<int>(element) << ", which no executable takes";
  TVM_FFI_UNREACHABLE();
}

}  // namespace collage
