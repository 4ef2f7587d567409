// An original model in ONNX Runtime. Entries of the settings are those of SessionOptions, and
//   input_names, output_names  names of the model's inputs and outputs, in the order of the values
// An input without a value has a default in the model.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/original_model.h"
#include "onnxruntime/onnxruntime_session.h"
#include "onnxruntime/onnxruntime_values.h"

namespace collage {
namespace {

constexpr char kWeightsFolder[] = "session.model_external_initializers_file_folder_path";

class OnnxRuntimeModel : public OriginalModel {
 public:
  OnnxRuntimeModel(const KernelSpec& settings, const ModelSource& source)
      : runtime_(OnnxRuntime::Get(settings.threads)),
        session_(nullptr, runtime_.Function<ort::ReleaseSession>()),
        outputs_(settings.blob->GetStrings("output_names")) {
    runtime_.NeedVersion(ort::kOptionalApiVersion);
    SessionOptions options(runtime_, *settings.blob, settings.threads);
    if (!source.weights_folder.empty()) {
      options.Set(kWeightsFolder, source.weights_folder.c_str());
    }
    session_ = runtime_.Make<ort::CreateSessionFromArray, ort::ReleaseSession, ort::Session>(
        runtime_.env(), static_cast<const void*>(source.bytes.data()), source.bytes.size(),
        options.get());
    for (const std::string& name : settings.blob->GetStrings("input_names")) {
      inputs_.push_back({name, ElementOf(name)});
    }
  }

  ModelValues Run(const ModelValues& inputs) final {
    if (inputs.size() != inputs_.size()) {
      TVM_FFI_THROW(ValueError) << "the model has " << inputs_.size() << " inputs, not "
                                << inputs.size();
    }
    std::vector<OwnedValue> owned;
    std::vector<const char*> names, output_names;
    std::vector<const ort::Value*> values;
    for (std::size_t i = 0; i < inputs_.size(); ++i) {
      const ModelValue& value = inputs[static_cast<std::int64_t>(i)];
      if (value == nullptr) continue;
      owned.push_back(ToOnnxRuntime(runtime_, value, inputs_[i]));
      names.push_back(inputs_[i].name.c_str());
      values.push_back(owned.back().get());
    }
    for (const std::string& name : outputs_) output_names.push_back(name.c_str());
    std::vector<ort::Value*> results(outputs_.size(), nullptr);
    runtime_.Call<ort::Run>(session_.get(), nullptr, names.data(), values.data(), values.size(),
                            output_names.data(), output_names.size(), results.data());
    return Returned(results);
  }

 private:
  ModelValues Returned(const std::vector<ort::Value*>& results) const {
    std::vector<OwnedValue> owned;
    owned.reserve(results.size());
    for (ort::Value* result : results) {
      owned.emplace_back(result, runtime_.Function<ort::ReleaseValue>());
    }
    ModelValues outputs;
    for (OwnedValue& value : owned) {
      outputs.push_back(FromOnnxRuntime(runtime_, std::move(value)));
    }
    return outputs;
  }

  // The element type of a tensor input; 0 for an input of another type, or that only overrides a default.
  int ElementOf(const std::string& name) const {
    std::size_t count = 0;
    runtime_.Call<ort::SessionGetInputCount>(session_.get(), &count);
    for (std::size_t i = 0; i < count; ++i) {
      char* text = nullptr;
      runtime_.Call<ort::SessionGetInputName>(session_.get(), i, runtime_.allocator(), &text);
      bool same = name == text;
      runtime_.Call<ort::AllocatorFree>(runtime_.allocator(), static_cast<void*>(text));
      if (same) return ElementAt(i);
    }
    return 0;
  }

  int ElementAt(std::size_t position) const {
    auto type = runtime_.Make<ort::SessionGetInputTypeInfo, ort::ReleaseTypeInfo, ort::TypeInfo>(
        session_.get(), position);
    const ort::TensorInfo* tensor = nullptr;  // a part of `type`; null for other types
    runtime_.Call<ort::CastTypeInfoToTensorInfo>(type.get(), &tensor);
    int element = 0;
    if (tensor != nullptr) runtime_.Call<ort::GetTensorElementType>(tensor, &element);
    return element;
  }

  const OnnxRuntime& runtime_;
  std::unique_ptr<ort::Session, ort::ReleaseSession::Type> session_;
  std::vector<InputType> inputs_;
  std::vector<std::string> outputs_;
};

const RegisterFramework kRegistered("onnxruntime", [](const KernelSpec& settings,
                                                      const ModelSource& source) {
  return std::unique_ptr<OriginalModel>(new OnnxRuntimeModel(settings, source));
});

}  // namespace
}  // namespace collage
