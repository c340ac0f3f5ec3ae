// Writes one record into the ring. The C++ twin of ncclwatch/rank/ring/ringfile.py.
//
// The layout is that of ncclwatch/contract/ring/layout.py, whose offsets arrive in `Layout`. Everything
// bigger than a word is made of 16-byte cells, each written by one vector store, so that a reader
// in another process never sees half of one.

#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <ctime>

#include "bridge.h"

namespace ncclwatch {

using Cell = unsigned int __attribute__((vector_size(16)));

// One store, whole to each reader: x86-64 with AVX, and arm64 with LSE2, which ncclwatch/native/fitness.py asks for.
// Where a thread comes a whole ring too late, two write one cell, and its stamp tells a reader whose it is. No language
// has such a store, so ThreadSanitizer is not asked about it.
__attribute__((no_sanitize_thread)) inline void put_cell(char* at, const void* from) {
#ifdef __aarch64__
  uint64_t half[2];
  std::memcpy(half, from, sizeof half);
  asm volatile("stp %0, %1, [%2]" : : "r"(half[0]), "r"(half[1]), "r"(at) : "memory");
#else
  Cell cell;
  std::memcpy(&cell, from, sizeof cell);
  *reinterpret_cast<volatile Cell*>(at) = cell;
#endif
}

inline uint64_t now_ns() {
  timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return static_cast<uint64_t>(at.tv_sec) * 1000000000u + static_cast<uint64_t>(at.tv_nsec);
}

// What a thread is inside of: two cells with one stamp.
struct __attribute__((packed)) Wait {
  uint32_t stamp = 0;
  uint64_t since = 0;
  uint32_t site = 0;
  uint32_t again = 0;
  uint32_t seq = 0;
  uint16_t group = 0;
  uint8_t kind = 0;
  uint8_t op = 0;
  int32_t peer = 0;
};
static_assert(sizeof(Wait) == 32);

// One operation as issued: four cells with one stamp.
struct __attribute__((packed)) Event {
  uint32_t stamp_a;
  uint64_t time;
  uint16_t group;
  uint8_t op;
  uint8_t thread;
  uint32_t stamp_b;
  uint64_t numel;
  uint32_t site;
  uint32_t stamp_c;
  uint64_t prefix;
  uint32_t seq;
  uint32_t stamp_d;
  uint32_t batch;
  uint32_t forwards;
  uint32_t signature;
};
static_assert(sizeof(Event) == 64);

class Ring {
 public:
  Ring(char* base, const Layout& layout) : base_(base), layout_(layout) {}

  uint64_t word(uint64_t index) const {
    return __atomic_load_n(word_at(index), __ATOMIC_RELAXED);
  }

  void set_word(uint64_t index, uint64_t value) {
    __atomic_store_n(word_at(index), value, __ATOMIC_RELAXED);
  }

  void count_dropped() {
    __atomic_fetch_add(word_at(layout_.word_dropped), 1, __ATOMIC_RELAXED);
  }

  // Appends an operation and returns its number.
  int64_t add_event(Event event) {
    const uint64_t number = events_.fetch_add(1, std::memory_order_relaxed);
    event.time = now_ns();
    event.batch = static_cast<uint32_t>(word(layout_.word_batch));
    event.forwards = static_cast<uint32_t>(word(layout_.word_forwards));
    put_event(number, event);
    return static_cast<int64_t>(number);
  }

  // Stores the operation with a number: all but its stamps is said.
  void put_event(uint64_t number, Event event) {
    const uint32_t folded = static_cast<uint32_t>(number + 1);
    const uint32_t stamp = folded ? folded : 1;
    event.stamp_a = event.stamp_b = event.stamp_c = event.stamp_d = stamp;
    char* at = base_ + layout_.events_at + number % layout_.events_max * sizeof(Event);
    const char* from = reinterpret_cast<const char*>(&event);
    for (int cell = 0; cell < 4; ++cell) put_cell(at + 16 * cell, from + 16 * cell);
    // Of two threads the later one's number stays.
    uint64_t* head = word_at(layout_.word_events_head);
    for (uint64_t at = __atomic_load_n(head, __ATOMIC_RELAXED); at <= number;) {
      if (__atomic_compare_exchange_n(head, &at, number + 1, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) break;
    }
  }

  void set_group_head(int group, uint64_t prefix, uint64_t enqueued) {
    put_pair(layout_.groups_at + group * layout_.group_bytes + 16, prefix, enqueued);
  }

  void set_group_done(int group, uint64_t completed, int64_t newest_event) {
    put_pair(layout_.groups_at + group * layout_.group_bytes + 32, completed, static_cast<uint64_t>(newest_event + 1));
  }

  void set_thread_issued(int row, uint64_t issued) {
    auto* at = reinterpret_cast<uint64_t*>(base_ + layout_.threads_at + row * layout_.thread_bytes + 8);
    __atomic_store_n(at, issued, __ATOMIC_RELAXED);
  }

  uint32_t next_wait_stamp() {
    const uint32_t stamp = wait_stamps_.fetch_add(1, std::memory_order_relaxed) + 1;
    return stamp ? stamp : 1;
  }

  void set_wait(int row, const Wait& wait) {
    char* at = base_ + layout_.threads_at + row * layout_.thread_bytes + layout_.wait_at;
    const char* from = reinterpret_cast<const char*>(&wait);
    put_cell(at, from);
    put_cell(at + 16, from + 16);
  }

  // One word of a row of p2p counters: on a device, who counts what is complete is not who counts what is issued.
  void set_peer(int row, int word, uint32_t value) {
    auto* at = reinterpret_cast<uint32_t*>(base_ + layout_.peers_at + row * layout_.peer_bytes) + word;
    __atomic_store_n(at, value, __ATOMIC_RELAXED);
  }

  void add_time(uint64_t index, uint64_t nanoseconds) {
    __atomic_fetch_add(word_at(index), nanoseconds, __ATOMIC_RELAXED);
  }

  // Adds how long this rank was blocked in a collective of a group, at its end: see RingFile.meter. Two threads that
  // wait in one group at once may lose one of the two boundaries.
  void meter(int group, uint64_t seq, uint64_t blocked) {
    const uint64_t total = __atomic_fetch_add(word_at(layout_.word_waited), blocked, __ATOMIC_RELAXED);
    if (group < 0 || static_cast<uint64_t>(group) >= layout_.meters_max) return;
    const uint64_t at = layout_.meters_at + static_cast<uint64_t>(group) * layout_.meter_bytes;
    auto* head = reinterpret_cast<uint64_t*>(base_ + at);
    const uint64_t before = __atomic_load_n(head, __ATOMIC_RELAXED);
    if (seq <= before) return;
    constexpr uint64_t kSlotBytes = 16;
    const uint64_t last = layout_.meter_bytes / kSlotBytes - 2;
    const uint64_t crossed = 63 - static_cast<uint64_t>(__builtin_clzll(before ^ seq));
    const uint64_t slot = crossed < last ? crossed : last;
    const uint64_t boundary = seq >> slot << slot;
    const uint64_t now_ms = now_ns() / 1'000'000u & 0xFFFFFFFFu;
    put_pair(at + kSlotBytes * (1 + slot), (boundary & 0xFFFFFFFFu) | (now_ms ? now_ms : 1) << 32, total);
    __atomic_store_n(head, seq, __ATOMIC_RELAXED);
  }

  const Layout& layout() const { return layout_; }

 private:
  uint64_t* word_at(uint64_t index) const {
    return reinterpret_cast<uint64_t*>(base_ + layout_.words_at) + index;
  }

  void put_pair(uint64_t at, uint64_t first, uint64_t second) {
    const uint64_t pair[2] = {first, second};
    put_cell(base_ + at, pair);
  }

  char* base_;
  Layout layout_;
  std::atomic<uint64_t> events_{0};
  std::atomic<uint32_t> wait_stamps_{0};
};

}  // namespace ncclwatch
