// Regions that oneDNN runs on the CPU. Blob: a program (onednn_program.h) and its weights; header
// entry "layout" says how convolutions lay out activations: "any" (the default: oneDNN's choice),
// "blocked" or "plain"; "products" what convolutions and matrix products multiply: "f32" (the
// default) or "bf16".
//
// Everything is done once, at construction: primitives, packed weights, the arena, the arguments of
// every call. A call sets the memories whose pointer changed and executes the list. The environment
// variable COLLAGE_ONEDNN_VERBOSE=1 prints that list, with oneDNN's implementations.
#include <cstdio>
#include <cstdlib>

#include "core/kernel.h"
#include "onednn/onednn_builder.h"
#include "core/sizes.h"

namespace collage::onednn {
namespace {

class OneDnnKernel : public Kernel {
 public:
  explicit OneDnnKernel(const KernelSpec& spec)
      : api_(OneDnn::Get()), program_(Program::Parse(*spec.blob)), threads_(spec.threads) {
    ThreadScope scope(api_, threads_);
    schedule_ = Build(program_, *spec.blob, ParseLayout(spec.blob->GetString("layout", "any")),
                      ParseType(spec.blob->GetString("products", "f32")));
    dnnl_stream_t stream = nullptr;
    api_.Check(api_.dnnl_stream_create(&stream, api_.engine(), dnnl_stream_default_flags),
               "a stream");
    stream_ = {stream, api_.dnnl_stream_destroy};
    bound_.assign(schedule_.bindings.size(), nullptr);
    for (const std::vector<int>* side : {&program_.inputs, &program_.outputs}) {
      for (int value : *side) {
        expected_.push_back({ElementsOf(program_.values[value], 1, "onednn"), kFloat32});
      }
    }
    if (std::getenv("COLLAGE_ONEDNN_VERBOSE") != nullptr) Print();
  }

  void Run(DLTensor* const* args, int count) final {
    // A scalar is a value of shape [1], so only the numbers of elements are compared.
    CheckArguments("onednn", expected_, args, count);
    for (std::size_t i = 0; i < bound_.size(); ++i) {
      if (DataOf(args[i]) != bound_[i]) Bind(i, DataOf(args[i]));
    }
    ThreadScope scope(api_, threads_);
    dnnl_stream_t stream = stream_.get();
    for (const Call& call : schedule_.calls) {
      dnnl_status_t status = api_.dnnl_primitive_execute(call.primitive.get(), stream,
                                                         static_cast<int>(call.arguments.size()),
                                                         call.arguments.data());
      if (status != dnnl_success) api_.Check(status, call.name);
    }
  }

 private:
  // The pointer counts as bound only when every memory has it.
  void Bind(std::size_t position, void* data) {
    bound_[position] = nullptr;
    for (const Binding& binding : schedule_.bindings[position]) {
      api_.Check(api_.dnnl_memory_set_data_handle(binding.memory.get(),
                                                  static_cast<char*>(data) + binding.offset),
                 "an argument");
    }
    bound_[position] = data;
  }

  void Print() const {
    for (const Call& call : schedule_.calls)
      std::fprintf(stderr, "onednn: %s\n", call.name.c_str());
  }

  const OneDnn& api_;
  Program program_;
  int threads_;
  Schedule schedule_;
  std::shared_ptr<dnnl_stream> stream_;
  std::vector<Argument> expected_;
  std::vector<void*> bound_;  // per argument: the pointer that its memories have
};

const RegisterKernel kRegistered("onednn", [](const KernelSpec& spec) {
  return std::unique_ptr<Kernel>(new OneDnnKernel(spec));
});

}  // namespace
}  // namespace collage::onednn
