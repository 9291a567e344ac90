// Running one function on several threads, without a thread pool of our own.
//
// Note [Whose threads]
// torch's intra-op pool is an OpenMP runtime whose idle threads spin for a while. A second pool would fight them for the
// same cores (docs/decisions/0004-threads.md has the measurement), so the loader passes us the GOMP_parallel of the
// runtime that torch has already loaded, and our work runs on torch's own threads.
#pragma once

#include <atomic>
#include <cstdint>

namespace slimgrad {

void use_pool(void* gomp_parallel);

// Call work(data) on up to `threads` threads at once and return when all calls have returned.
void run_parallel(int threads, void (*work)(void*), void* data);

// IEEE defaults (no flush-to-zero, round to nearest) while alive: the same bytes whatever the caller's settings.
class DefaultFloats {
 public:
  DefaultFloats();
  ~DefaultFloats();
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;

 private:
  alignas(16) unsigned char saved_[64];
};

constexpr int64_t kBlocksPerThread = 8;  // about 0.1 ms of work: less is not worth waking a thread for

// Call body(next) on as many threads as `count` blocks are worth, under IEEE defaults; each takes its blocks from `next`.
template <class Body>
void for_each_thread(int64_t count, int threads, Body body) {
  struct Shared {
    Body* body;
    std::atomic<int64_t> next{0};
  } shared{&body};
  auto work = [](void* data) {
    auto* s = static_cast<Shared*>(data);
    const DefaultFloats guard;
    (*s->body)(s->next);
  };
  const int64_t useful = (count + kBlocksPerThread - 1) / kBlocksPerThread;
  run_parallel(useful < threads ? static_cast<int>(useful) : threads, work, &shared);
}

// Call body(i) for i in [0, count), dealt out to threads in order. body returns false to stop all.
template <class Body>
bool for_each_block(int64_t count, int threads, Body body) {
  std::atomic<bool> ok{true};
  for_each_thread(count, threads, [&](std::atomic<int64_t>& next) {
    for (int64_t i; ok.load(std::memory_order_relaxed) && (i = next.fetch_add(1)) < count;)
      if (!body(i)) ok.store(false);
  });
  return ok.load();
}

}  // namespace slimgrad
