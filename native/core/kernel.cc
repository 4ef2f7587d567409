#include "core/kernel.h"

#include <tvm/ffi/dtype.h>

#include <map>

#include "core/sizes.h"

namespace collage {
namespace {

std::map<std::string, KernelFactory>& Registry() {
  static auto* registry = new std::map<std::string, KernelFactory>();
  return *registry;
}

}  // namespace

RegisterKernel::RegisterKernel(const char* kind, KernelFactory factory) {
  Registry()[kind] = factory;
}

KernelSpec ReadSpec(std::string_view bytes, int threads) {
  KernelSpec spec{Blob::Parse(bytes), threads};
  spec.threads = static_cast<int>(
      InRange(spec.blob->GetInt("threads", threads), 1, kMostThreads, "a blob's 'threads'"));
  return spec;
}

Argument ReadArgument(const json::Object& entry) {
  return {ElementsOf(Integers(entry, "shape"), 0, "an extent of an argument's 'shape'"),
          ParseType(Get<tvm::ffi::String>(entry, "dtype"))};
}

void RefuseArgument(const char* kind, std::size_t position, const Argument& expected,
                    const DLTensor& tensor) {
  TVM_FFI_THROW(ValueError) << kind << " kernel: tensor " << position << " must hold "
                            << expected.elements << " numbers of "
                            << tvm::ffi::DLDataTypeToString(expected.dtype) << "; it holds "
                            << CountOf(tensor) << " of "
                            << tvm::ffi::DLDataTypeToString(tensor.dtype);
  TVM_FFI_UNREACHABLE();
}

KernelFactory FindKernelFactory(const std::string& kind) {
  auto entry_of_kind = Registry().find(kind);
  if (entry_of_kind != Registry().end()) return entry_of_kind->second;
  std::string kinds;
  for (const auto& entry : Registry()) kinds += (kinds.empty() ? "" : ", ") + entry.first;
  TVM_FFI_THROW(ValueError) << "no kernel of kind '" << kind
                            << "' in this build; it has: " << kinds;
  TVM_FFI_UNREACHABLE();
}

}  // namespace collage
