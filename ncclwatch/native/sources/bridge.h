// What the two sides of the native recorder are to each other: C functions and plain numbers, and nothing else.
//
// The torch side knows torch's C++ and no Python: one is built for each minor version of torch. The Python side knows
// CPython and no torch: one is built for each minor version of Python. So every pair fits that agrees on this file.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ncclwatch {

constexpr uint32_t kBridge = 2;  // counts up with each change of this file

// Where things are in the ring: `_LAYOUT` of ncclwatch/rank/native.py, in this order.
struct Layout {
  uint64_t words_at, groups_at, group_bytes, threads_at, thread_bytes, wait_at, peers_at, peer_bytes, events_at,
      events_max;
  uint64_t word_events_head, word_forwards, word_dropped, word_batch, word_backward_site;
  uint64_t meters_at, meter_bytes, meters_max, word_waited, word_peers_waited;
};
constexpr size_t kLayoutNumbers = sizeof(Layout) / sizeof(uint64_t);

// Codes of ncclwatch.contract.ring.layout that are needed by name: `_CODES` of ncclwatch/rank/native.py.
struct Codes {
  int send, recv, all_reduce, all_gather;
  int wait_collective, wait_send, wait_recv;
  int reduce_ops, other_dtype;
  int meeting, barrier;  // MEETING of ncclwatch/rank/operations.py, a bit for each op
};
constexpr size_t kCodeNumbers = sizeof(Codes) / sizeof(int);

// How the arguments of one c10d op are read: positions in its schema, -1 where there is none.
struct Spec {
  const char* name;
  int op, sized_by, group, root, reduce_op, async_op, has_size, is_p2p;
};

// What the torch side asks of Python. Each may be called on any thread, with the GIL or without, and never throws.
struct Python {
  void* self;
  bool (*ends)(void* self);  // the interpreter is being torn down: nothing else may be asked
  int (*new_thread)(void* self);  // a row, -1 without
  int (*new_peer)(void* self, int group, int peer);
  uint32_t (*site)(void* self, bool mode);  // of the user's line on this thread, 0 if there is none
  uint32_t (*labelled)(void* self, uint32_t site, uint32_t label);
  void (*note_exception)(void* self);
  void (*note_device)(void* self, int index);
};

// An operation that a thread waits for, found by its work. The torch side's own.
struct Waited {
  alignas(8) unsigned char bytes[64];
};

// What Python asks of the torch side. None of it throws; where no recorder is in force it does nothing.
struct Torch {
  uint32_t bridge;
  const char* torch_version;  // of the headers it was built with, say 2.13.0

  const char* (*declare)();  // makes the ops by which Python checks this side; what went wrong, nullptr if nothing did

  // `dtypes`: codes by number of torch's ScalarType. `python` and the memory stay for good.
  void (*begin)(char* memory, const Layout* layout, const Codes* codes, const uint8_t* dtypes, size_t count,
                const Python* python);
  void (*end)();     // with the GIL
  void (*forget)();  // in a forked child
  bool (*install)(const Spec* specs, size_t count);  // once for a process; kernels stay, and hand on when nobody records
  bool (*grad_mode)();

  int (*thread_row)();
  void (*enter_wait)(uint8_t kind, uint32_t site, uint32_t number);
  void (*leave_wait)();
  long (*enter_region)();
  void (*leave_region)(long outer);
  uint32_t (*set_label)(uint32_t label);

  bool (*find_work)(const void* work, Waited* found);  // by the address of a c10d::Work
  void (*enter_work)(const Waited* waited, uint32_t site);
  void (*leave_work)(const Waited* waited, const void* work, bool done);
  void (*begin_batch)();
  void (*end_batch)(const void* work);  // that of all messages of the batch; nullptr: they have none

  void (*forget_group)(const char* name);
  void (*drain_all)();  // without the GIL
  void (*sweep)();      // with the GIL: what is dropped may hold Python objects
  void (*set_buckets)(const char* name, const uint64_t* numels, const uint32_t* labels, size_t count);
  void (*begin_backward)();
  void (*set_completed)(const char* name, uint64_t seq);
};

}  // namespace ncclwatch

// The one symbol of a torch side.
extern "C" __attribute__((visibility("default"))) const ncclwatch::Torch* ncclwatch_torch_side();
