// Parallel loops of TVM's kernels on the pool that all kernels share. TVM's own pool would be a second
// one: of two pools on the same cores, one is always asleep or in the other's way.
//
// Libraries that TVM has compiled call what the runtime puts into their slot when they are loaded; the
// last one to register wins, and the plug-in is loaded after TVM's runtime. Barriers between the tasks of
// a loop (a pragma that no schedule here writes) are not provided: the handle that they need is null.
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <cstdint>
#include <exception>

#include "core/thread_pool.h"

namespace collage {
namespace {

struct Group {  // TVMParallelGroupEnv
  void* barrier;
  std::int32_t tasks;
};

using Task = int (*)(int number, Group* group, void* data);

// The error of a task, which waits in the thread that ran it.
[[noreturn]] void ThrowRaised() {
  TVMFFIObjectHandle raised = nullptr;
  TVMFFIErrorMoveFromRaised(&raised);
  if (raised == nullptr) TVM_FFI_THROW(RuntimeError) << "a task of a parallel loop failed";
  using Unsafe = tvm::ffi::details::ObjectUnsafe;
  throw Unsafe::ObjectRefFromObjectPtr<tvm::ffi::Error>(
      Unsafe::ObjectPtrFromOwned<tvm::ffi::Object>(static_cast<TVMFFIObject*>(raised)));
}

// Called by C: an error is left for the caller, in its own thread.
int Launch(Task task, void* data, int tasks) {
  try {
    int threads = DefaultThreads();
    Group group{nullptr, tasks > 0 ? tasks : threads};
    ParallelFor(threads, group.tasks, [&](std::int64_t number, int) {
      if (task(static_cast<int>(number), &group, data) != 0) ThrowRaised();
    });
    return 0;
  } catch (const tvm::ffi::Error& error) {
    tvm::ffi::details::SetSafeCallRaised(error);
  } catch (const std::exception& error) {
    TVMFFIErrorSetRaisedFromCStr("RuntimeError", error.what());
  }
  return -1;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  TVMFFIEnvModRegisterContextSymbol("__TVMBackendParallelLaunch", reinterpret_cast<void*>(&Launch));
}

}  // namespace
}  // namespace collage
