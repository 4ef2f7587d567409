// Opened by its name at the first loop, so it is the one that oneDNN has opened or will open, and a
// machine without it works all the same. The entry point is the one that GCC calls for `#pragma omp
// parallel`.
#include "openmp.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>

namespace collage {
namespace {

using Body = std::function<void(int)>;

struct OpenMp {
  void (*parallel)(void (*body)(void*), void* data, unsigned threads, unsigned flags) = nullptr;
  int (*number)() = nullptr;
  std::atomic<bool> used{false};
  std::atomic<bool> lost{false};
};

OpenMp& Library() {
  static OpenMp* library = [] {
    auto* made = new OpenMp;
    if (void* handle = dlopen("libgomp.so.1", RTLD_NOW | RTLD_LOCAL)) {
      made->parallel = reinterpret_cast<decltype(made->parallel)>(dlsym(handle, "GOMP_parallel"));
      made->number = reinterpret_cast<decltype(made->number)>(dlsym(handle, "omp_get_thread_num"));
    }
    return made;
  }();
  return *library;
}

}  // namespace

bool RunOnOpenMp(int threads, const Body& body) {
  OpenMp& library = Library();
  if (!library.parallel || !library.number || library.lost) return false;
  if (!library.used.exchange(true)) {
    pthread_atfork(nullptr, nullptr, [] { Library().lost = true; });
  }
  auto run = [](void* data) { (*static_cast<const Body*>(data))(Library().number()); };
  library.parallel(run, const_cast<Body*>(&body), static_cast<unsigned>(threads), 0);
  return true;
}

}  // namespace collage
