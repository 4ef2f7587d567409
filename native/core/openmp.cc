// Opened by its name at the first loop, so it is the one that oneDNN has opened or will open, and a
// machine without it works all the same. The entry point is the one that GCC calls for `#pragma omp
// parallel`.
#include "core/openmp.h"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

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
    auto* openmp = new OpenMp;
    if (void* handle = dlopen("libgomp.so.1", RTLD_NOW | RTLD_LOCAL)) {
      openmp->parallel =
          reinterpret_cast<decltype(openmp->parallel)>(dlsym(handle, "GOMP_parallel"));
      openmp->number =
          reinterpret_cast<decltype(openmp->number)>(dlsym(handle, "omp_get_thread_num"));
    }
    return openmp;
  }();
  return *library;
}

// The number of threads, at most `more`, that the system can create now. They end at once and release their
// resources for the next ones.
int CountCreatable(int more) {
  std::mutex gate;
  std::vector<std::thread> threads;
  std::unique_lock<std::mutex> closed(gate);
  while (static_cast<int>(threads.size()) < more) {
    try {
      threads.emplace_back([&gate] { std::lock_guard<std::mutex> open(gate); });
    } catch (const std::exception&) {
      break;
    }
  }
  closed.unlock();
  for (std::thread& thread : threads) thread.join();
  return static_cast<int>(threads.size());
}

}  // namespace

// OpenMP may release threads of a large team for a small one, so its existing threads do not count.
int UsableThreads(int threads) {
  thread_local int tried = 1, limit = 0;  // limit: 0 before the first refusal
  if (threads > tried && limit == 0) {
    int created = CountCreatable(threads - 1);
    // OpenMP ends the process where it cannot create a thread, so one thread's memory stays free.
    if (created < threads - 1) limit = std::max(1, created);
    tried = threads;
  }
  return limit == 0 ? threads : std::min(threads, limit);
}

bool RunOnOpenMp(int threads, const Body& body) {
  OpenMp& library = Library();
#if defined(__SANITIZE_THREAD__)
  return false;  // it does not see how OpenMP's threads wait for each other
#endif
  if (!library.parallel || !library.number || library.lost) return false;
  if (!library.used.exchange(true)) {
    pthread_atfork(nullptr, nullptr, [] { Library().lost = true; });
  }
  auto run = [](void* data) { (*static_cast<const Body*>(data))(Library().number()); };
  auto usable = static_cast<unsigned>(UsableThreads(threads));
  library.parallel(run, const_cast<Body*>(&body), usable, 0);
  return true;
}

}  // namespace collage
