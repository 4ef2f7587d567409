// One pool for the plug-in's own kernels and TVM's loops; they run in turn. The threads are OpenMP's, in common with
// oneDNN, so a region finds the threads of the previous region awake. Without OpenMP they are threads of the plug-in;
// these sleep after some microseconds.
#ifndef COLLAGE_THREAD_POOL_H_
#define COLLAGE_THREAD_POOL_H_

#include <cstdint>
#include <functional>

namespace collage {

// Runs task(index, worker) for every index below `count` on `threads` threads, the caller as worker 0, and returns after
// all tasks. Free threads take indices in order. During another call, in another thread or around this one, the caller
// runs all tasks itself; with fewer available threads, fewer are used. The first exception of a task ends the loop, and
// the caller throws it after all threads have stopped.
void ParallelFor(int threads, std::int64_t count,
                 const std::function<void(std::int64_t index, int worker)>& task);

// Thread count of kernels without one in their blob, and of the libraries' pools: COLLAGE_THREADS (default: 1) until it
// is set.
int DefaultThreads();
void SetDefaultThreads(int threads);

// Runs an empty loop: afterwards the threads are in the state after any other kernel.
void WakeThreads();

}  // namespace collage

#endif  // COLLAGE_THREAD_POOL_H_
