// Threads that the plug-in's own kernels share. They sleep between calls, after some microseconds awake.
#ifndef COLLAGE_THREAD_POOL_H_
#define COLLAGE_THREAD_POOL_H_

#include <cstdint>
#include <functional>

namespace collage {

// Runs task(index, worker) for every index below `count`, on `threads` threads of which the caller is
// worker 0, and returns when all are done. Indices are handed out in order, to whoever is free. While
// another thread's call is under way, the caller does all the work itself. Tasks must not throw.
void ParallelFor(int threads, std::int64_t count,
                 const std::function<void(std::int64_t index, int worker)>& task);

}  // namespace collage

#endif  // COLLAGE_THREAD_POOL_H_
