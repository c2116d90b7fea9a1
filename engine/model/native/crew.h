// Threads that share out the items of one stage after another.
//
// One thread leads: it opens a stage of `count` items, takes items itself and goes on when all are
// done. The others take what is open. Nobody is waited for who holds no item, so a thread that lost
// its core (two cores, a server beside it) delays nothing; that is why this is no barrier and no
// OpenMP region. A helper that finds nothing to do for a while sleeps.
//
// `ticket` is [stage | count | next item]: taking an item is one compare-and-swap, which can only
// succeed while its stage is open, so what a stage is made of is read safely after it.
#pragma once

#include <immintrin.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace keepwarm {

class Crew {
  public:
    explicit Crew(int threads) {
        for (int i = 1; i < threads; i++) helpers_.emplace_back([this, i] { help(i); });
    }

    ~Crew() {
        ended_ = true;
        wake();
        for (auto& helper : helpers_) helper.join();
    }

    int threads() const { return int(helpers_.size()) + 1; }

    // Calls `work(item, thread)` once for each item of [0, count); returns when all are done.
    template <class Work>
    void share(long count, const Work& work) {
        if (helpers_.empty() || count <= 1) {
            for (long item = 0; item < count; item++) work(item, 0);
            return;
        }
        call_ = [](const void* work, long item, int thread) {
            (*static_cast<const Work*>(work))(item, thread);
        };
        work_ = &work;
        done_.store(0, std::memory_order_relaxed);
        stage_++;
        ticket_.store((stage_ << 40) | (uint64_t(count) << 20));
        if (asleep_.load() > 0) wake();
        while (take(0)) {
        }
        for (int spins = 0; done_.load(std::memory_order_acquire) < count; spins++) {
            _mm_pause();
            if (spins > PATIENCE) std::this_thread::yield();
        }
    }

  private:
    static constexpr int PATIENCE = 4000;       // pauses before the core is offered to others
    static constexpr int HELPER_SPINS = 20000;  // pauses before a helper sleeps: below a millisecond
    static constexpr uint64_t FIELD = (1 << 20) - 1;

    bool take(int thread) {
        uint64_t ticket = ticket_.load(std::memory_order_acquire);
        while ((ticket & FIELD) < ((ticket >> 20) & FIELD)) {
            if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) {
                call_(work_, long(ticket & FIELD), thread);
                done_.fetch_add(1, std::memory_order_release);
                return true;
            }
        }
        return false;
    }

    void help(int thread) {
        for (int spins = 0; !ended_; spins++) {
            if (take(thread)) {
                spins = 0;
            } else if (spins < HELPER_SPINS) {
                _mm_pause();
            } else {
                sleep();
                spins = 0;
            }
        }
    }

    void sleep() {
        std::unique_lock lock(mutex_);
        asleep_++;
        // Counted as asleep before the ticket is looked at again: whoever opens a stage sees it.
        woken_.wait(lock, [this] {
            uint64_t ticket = ticket_.load();
            return ended_ || (ticket & FIELD) < ((ticket >> 20) & FIELD);
        });
        asleep_--;
    }

    void wake() {
        std::lock_guard lock(mutex_);
        woken_.notify_all();
    }

    alignas(64) std::atomic<uint64_t> ticket_{0};
    alignas(64) std::atomic<long> done_{0};
    alignas(64) uint64_t stage_ = 0;
    void (*call_)(const void*, long, int) = nullptr;
    const void* work_ = nullptr;
    std::atomic<int> asleep_{0};
    std::atomic<bool> ended_{false};
    std::mutex mutex_;
    std::condition_variable woken_;
    std::vector<std::thread> helpers_;
};

}  // namespace keepwarm
