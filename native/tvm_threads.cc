// Parallel loops of TVM's kernels on the pool that all kernels share. TVM's own pool would be a second
// one: of two pools on the same cores, one is always asleep or in the other's way.
//
// Libraries that TVM has compiled call what the runtime puts into their slot when they are loaded; the
// last one to register wins, and the plug-in is loaded after TVM's runtime. Barriers between the tasks of
// a loop (a pragma that no schedule here writes) are not provided: the handle that they need is null.
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/c_env_api.h>

#include <atomic>
#include <cstdint>

#include "thread_pool.h"

namespace collage {
namespace {

struct Group {  // TVMParallelGroupEnv
  void* barrier;
  std::int32_t tasks;
};

using Task = int (*)(int number, Group* group, void* data);

int Launch(Task task, void* data, int tasks) {
  int threads = DefaultThreads();
  Group group{nullptr, tasks > 0 ? tasks : threads};
  std::atomic<bool> failed{false};
  ParallelFor(threads, group.tasks, [&](std::int64_t number, int) {
    if (task(static_cast<int>(number), &group, data) != 0) failed = true;
  });
  return failed ? -1 : 0;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  TVMFFIEnvModRegisterContextSymbol("__TVMBackendParallelLaunch",
                                    reinterpret_cast<void*>(&Launch));
}

}  // namespace
}  // namespace collage
