#include "core/thread_pool.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/openmp.h"
#include "core/sizes.h"

namespace collage {
namespace {

using Task = std::function<void(std::int64_t, int)>;

// A wake-up takes longer than the time to the next loop of a region; a longer wait would block the core for the next
// kernel, possibly of another library.
constexpr std::chrono::microseconds kAwake{20};

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Stays awake until `ready` or for kAwake.
template <typename Ready>
void AwaitAwake(Ready ready) {
  auto end = std::chrono::steady_clock::now() + kAwake;
  do {
    for (int i = 0; i < 32; ++i) {
      if (ready()) return;
      Pause();
    }
  } while (std::chrono::steady_clock::now() < end);
}

// Reserves the pool for one caller. A mutex would deadlock: a task with a nested loop requests it in the thread that
// owns it.
class Turn {
 public:
  explicit Turn(std::atomic<bool>* busy) : busy_(busy), mine_(!busy->exchange(true)) {}
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    if (mine_) *busy_ = false;
  }

  bool is_mine() const { return mine_; }

 private:
  std::atomic<bool>* busy_;
  bool mine_;
};

class ThreadPool {
 public:
  void Run(int threads, std::int64_t count, const Task& task) {
    if (threads < 2 || count < 2) return RunAlone(count, task);
    Turn turn(&busy_);
    if (!turn.is_mine()) return RunAlone(count, task);
    threads = static_cast<int>(std::min<std::int64_t>(threads, count));
    next_ = 0;
    count_ = count;
    task_ = &task;
    if (!RunOnOpenMp(threads, [this](int worker) { Work(worker); })) RunOnOwn(threads);
    task_ = nullptr;
    if (failed_) {
      failed_ = false;
      std::rethrow_exception(std::exchange(error_, nullptr));
    }
  }

 private:
  static void RunAlone(std::int64_t count, const Task& task) {
    for (std::int64_t index = 0; index < count; ++index) task(index, 0);
  }

  void RunOnOwn(int threads) {
    Start(threads);
    Work(0);
    AwaitAwake([this] { return working_ == 0; });
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return working_ == 0; });
  }

  // With fewer threads where no more can be made.
  void Start(int threads) {
    std::lock_guard<std::mutex> lock(mutex_);
    while (static_cast<int>(threads_.size()) < threads - 1) {
      int worker = static_cast<int>(threads_.size()) + 1;
      try {
        threads_.emplace_back([this, worker, seen = round_.load()] { Wait(worker, seen); });
      } catch (const std::exception&) {
        break;
      }
    }
    wanted_ = std::min(threads - 1, static_cast<int>(threads_.size()));
    working_ = wanted_;
    ++round_;
    start_.notify_all();
  }

  void Wait(int worker, std::uint64_t seen) {
    for (;;) {
      AwaitAwake([&] { return round_ != seen; });
      std::unique_lock<std::mutex> lock(mutex_);
      start_.wait(lock, [&] { return round_ != seen; });
      seen = round_;
      if (worker > wanted_) continue;
      lock.unlock();
      Work(worker);
      lock.lock();
      if (--working_ == 0) done_.notify_one();
    }
  }

  // No exception passes through OpenMP or leaves a thread: the first exception ends the loop, and the caller rethrows
  // it after all workers have stopped.
  void Work(int worker) {
    try {
      for (std::int64_t index; (index = next_.fetch_add(1)) < count_;) (*task_)(index, worker);
    } catch (...) {
      if (!failed_.exchange(true)) error_ = std::current_exception();
      next_ = count_;
    }
  }

  std::atomic<bool> busy_{false};  // by the caller of Run
  const Task* task_ = nullptr;
  std::int64_t count_ = 0;
  std::atomic<std::int64_t> next_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;  // of the first worker that failed

  // What follows is for threads of our own.
  std::mutex mutex_;  // guards it; the two atomic ones are read without it by who is awake
  std::condition_variable start_, done_;
  std::vector<std::thread> threads_;
  std::atomic<std::uint64_t> round_{0};
  int wanted_ = 0;
  std::atomic<int> working_{0};
};

// Never destroyed: its threads sleep until the end of the process. A forked process has none of them, so it starts a new
// pool.
ThreadPool* NewPool();

ThreadPool*& Pool() {
  static ThreadPool* pool = NewPool();
  return pool;
}

ThreadPool* NewPool() {
  pthread_atfork(nullptr, nullptr, [] { Pool() = new ThreadPool; });
  return new ThreadPool;
}

std::atomic<int>& Default() {
  static std::atomic<int> threads{[] {
    const char* value = std::getenv("COLLAGE_THREADS");
    std::int64_t asked = value == nullptr ? 1 : std::strtoll(value, nullptr, 10);
    return static_cast<int>(std::clamp<std::int64_t>(asked, 1, kMostThreads));
  }()};
  return threads;
}

}  // namespace

int DefaultThreads() { return Default(); }

void SetDefaultThreads(int threads) { Default() = threads; }

void WakeThreads() {
  ParallelFor(Default(), Default(), [](std::int64_t, int) {});
}

void ParallelFor(int threads, std::int64_t count, const Task& task) {
  Pool()->Run(threads, count, task);
}

}  // namespace collage
