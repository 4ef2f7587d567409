// A GPU that is none: memory that only kernels and copies may touch, streams, and graphs of closures.
#ifndef SIMULATED_GPU_H_
#define SIMULATED_GPU_H_

#include <cstddef>
#include <functional>
#include <string>

namespace simulated {

constexpr int kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kIllegalAddress = 700;
constexpr int kCaptureUnsupported = 900;

using Work = std::function<void()>;

// Runs `work` now, with the device's memory open, or adds it to the graph that `stream` captures.
int Enqueue(void* stream, const char* name, Work work);

// Whether `pointer` is in memory of the device that is allocated.
bool IsDevice(const void* pointer);

// SIMULATED_GPU_CAPABILITY, 90 where it is not set.
int Capability();

// The context is lost, as by a kernel that reads a bad address: every later call returns this.
int Lose(int error);
int Lost();

// Adds a line to the log.
void Log(const std::string& line);

// An error while any stream captures, whose capture it spoils: for calls that wait or allocate.
int NotCaptured(const char* what);

}  // namespace simulated

#endif  // SIMULATED_GPU_H_
