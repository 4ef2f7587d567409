#include "kernel.h"

#include <map>

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

KernelFactory FindKernelFactory(const std::string& kind) {
  auto found = Registry().find(kind);
  if (found != Registry().end()) return found->second;
  std::string known;
  for (const auto& entry : Registry()) known += (known.empty() ? "" : ", ") + entry.first;
  TVM_FFI_THROW(ValueError) << "no kernel of kind '" << kind
                            << "' in this build; it has: " << known;
  TVM_FFI_UNREACHABLE();
}

}  // namespace collage
