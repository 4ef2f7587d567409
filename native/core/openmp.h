// The threads of GNU OpenMP, which oneDNN's loops run on too.
#ifndef COLLAGE_OPENMP_H_
#define COLLAGE_OPENMP_H_

#include <functional>

namespace collage {

// How many of `threads` threads this one may have OpenMP use, itself included: OpenMP ends the process when it
// cannot make one, so it is asked for no more than could be made.
int UsableThreads(int threads);

// Runs body(worker) on at most `threads` threads of which the caller is worker 0, and returns when all
// have ended. False, and nothing ran, where the library is not installed or this process was forked
// from one that had used it: its threads are not here, and waiting for them would never end.
bool RunOnOpenMp(int threads, const std::function<void(int worker)>& body);

}  // namespace collage

#endif  // COLLAGE_OPENMP_H_
