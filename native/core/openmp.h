// The threads of GNU OpenMP, in common with oneDNN.
#ifndef COLLAGE_OPENMP_H_
#define COLLAGE_OPENMP_H_

#include <functional>

namespace collage {

// The number of OpenMP threads that this thread can start, itself included, at most `threads`: OpenMP ends the process
// on failure to create a thread.
int UsableThreads(int threads);

// Runs body(worker) on at most `threads` threads, the caller as worker 0, and returns after all of them. Returns false
// without a run if the library is not installed or this process is the fork of a process with OpenMP threads: a forked
// process has none of them, and a wait for them would never end.
bool RunOnOpenMp(int threads, const std::function<void(int worker)>& body);

}  // namespace collage

#endif  // COLLAGE_OPENMP_H_
