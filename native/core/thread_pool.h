// One pool for all that runs in turn: the plug-in's own kernels and the loops of TVM's. They are OpenMP's
// threads, which oneDNN has too, so that a region finds awake those that the one before it has used.
// Without OpenMP they are threads of the plug-in, which sleep after some microseconds.
#ifndef COLLAGE_THREAD_POOL_H_
#define COLLAGE_THREAD_POOL_H_

#include <cstdint>
#include <functional>

namespace collage {

// Runs task(index, worker) for every index below `count`, on `threads` threads of which the caller is
// worker 0, and returns when all are done. Indices are handed out in order, to whoever is free. While
// another call is under way, in another thread or around this one, the caller does all the work itself;
// where no more threads can be made, there are fewer. The first exception of a task ends the loop: the
// caller throws it when no thread is at work any more.
void ParallelFor(int threads, std::int64_t count,
                 const std::function<void(std::int64_t index, int worker)>& task);

// Threads of kernels whose blob does not say how many, and of the libraries' pools: 1, or what
// COLLAGE_THREADS says, until it is set.
int DefaultThreads();
void SetDefaultThreads(int threads);

// Runs a loop that does nothing, after which the threads are as awake as another kernel would leave them.
void WakeThreads();

}  // namespace collage

#endif  // COLLAGE_THREAD_POOL_H_
