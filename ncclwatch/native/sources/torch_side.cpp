// Records what this rank has issued, what is through, and who waits: the side that knows torch's C++, and no Python.
// The native twin of ncclwatch/rank/recorder.py and of the kernels in ncclwatch/rank/patches/collectives.py.
//
// One boxed kernel at the dispatch key BackendSelect sees each c10d op once, on the thread that issues it
// and in the backend's own order, and hands it on. It holds no lock while the backend works, asks Python
// only the first time that it meets a group, a thread or a line, and never throws into the user's
// collective: what it cannot read is counted as dropped.

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>
#include <torch/version.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "bridge.h"
#include "record.h"

// glibc has it from 2.32 on, and the library of C++ would ask for it: this side is to load into an older one as well.
extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

namespace ncclwatch {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr size_t kP2pMax = 4096;                // sends and receives of a group that are under way at once
constexpr size_t kWorksMax = 256;              // works of a group that are held at once
constexpr uint64_t kRetiredNs = 2'000'000'000;  // a backend drops a finished work within microseconds, if it gets a core
constexpr uint64_t kRetiredNumelMax = 4'000'000;
constexpr size_t kNewestKept = 8;  // of the retired works, however large
constexpr size_t kOursAndPythons = 2;  // those who hold a work that its backend has let go of
constexpr size_t kOpenMax = 4096;              // works that can be told apart when they are waited for
constexpr uint16_t kNoGroup = 0xFFFF;
constexpr size_t kToldOfGroup = 4;  // numbers before its ranks
constexpr uint32_t kInOrder = 1u << 30;        // IN_ORDER of ncclwatch.contract.ring.layout
constexpr int kPeerWaited = 2, kPeerCounts = 4;  // PeerWord.SENDS_WAITED and SENDS of the same
constexpr uint64_t kWaitedBits = 20, kWaitedRunMax = 0xFFF;  // waited_word of the same
constexpr size_t kBatchMax = 4096;             // BATCH_MAX of ncclwatch/rank/messages.py

struct Group;

// One operation between its issue and its completion.
struct Issued {
  Group* group = nullptr;
  uint64_t seq = 0;
  uint64_t before = 0;  // the group's prefix hash without this operation
  uint64_t numel = 0;
  uint32_t site = 0;
  uint32_t label = 0;
  int32_t peer = -1;
  uint8_t op = 0;
  uint8_t kind = 0;
  bool on_host = false;
  bool meets = false;  // on the host, and nobody is through before all have come
  int32_t thread = -1;  // only of a message: the row of its thread, and how many collectives that had issued
  uint32_t after = 0;
};

struct Held {
  Issued issued;
  WorkPtr work;
  bool done = false;  // wait() has returned: some works of gloo never say that they are complete
};

struct Peer {
  int row = -1;
  uint32_t counts[4] = {0, 0, 0, 0};
  uint64_t waited[2] = {0, 0}, run[2] = {0, 0};  // of sends and recvs: the newest that was waited for, how many to it
};

struct Group {
  std::mutex lock;
  std::atomic_flag draining = ATOMIC_FLAG_INIT;
  std::atomic<bool> dead{false};
  std::string name;
  int number = kNoGroup;
  std::vector<int> ranks;
  bool host_waits = true;   // returning from wait() on host memory means that the work is done
  bool by_account = false;  // works on a GPU are NCCL's: never held, never asked
  std::atomic<int> device{-1};  // of the tensor that its newest operation of NCCL got
  uint64_t enqueued = 0, prefix = 0;
  std::atomic<uint64_t> completed{0};  // written under the lock, and read by anyone
  int64_t newest_event = -1;
  std::deque<Held> works;
  std::deque<Held> p2p_works;
  std::unordered_map<int, Peer> peers;
  std::vector<std::pair<uint64_t, uint32_t>> buckets;  // (elements, label) of DDP's gradient buckets, in order
  size_t next_bucket = 0;

  bool shown() const { return number != kNoGroup; }
};

// Everything of one attach(). Never freed: a thread may be inside when the rank detaches.
struct State {
  State(char* memory, const Layout& layout, const Codes& codes_, const Python& python_)
      : ring(memory, layout), codes(codes_), python(python_) {}

  bool ends() const { return python.ends(python.self); }

  Ring ring;
  Codes codes;
  Python python;
  std::vector<uint8_t> dtypes;  // code by c10::ScalarType

  std::mutex groups_lock;
  std::unordered_map<const c10d::ProcessGroup*, Group*> groups;
  std::vector<std::unique_ptr<Group>> all_groups;

  std::mutex open_lock;
  std::unordered_map<const c10d::Work*, Issued> open;
  std::deque<const c10d::Work*> open_order;
  std::unordered_map<const c10d::Work*, std::vector<Issued>> batches;  // messages issued as one, by the work of them all

  std::mutex retired_lock;
  std::deque<std::tuple<uint64_t, uint64_t, WorkPtr>> retired;
  uint64_t retired_numel = 0;

  std::atomic<uintptr_t> exception_seen{0};
};

std::atomic<State*> g_state{nullptr};

struct Thread {
  State* state = nullptr;  // of which attach() the rest is
  int row = -1;
  uint64_t issued = 0;
  uint64_t messages = 0;  // sends and receives among them
  bool in_batch = false;
  std::vector<Issued> batch;
  uint32_t label = 0;
  std::vector<Wait> waits;
  Issued newest;
  long region = -1;  // inside of something that issues and waits in C++: waits when it was entered
  Issued region_op;  // the first of its operations that is not through
  const c10d::ProcessGroup* group_of = nullptr;
  Group* group = nullptr;
};

thread_local Thread t_thread;

Thread& thread_of(State& state) {
  Thread& thread = t_thread;
  if (thread.state != &state) {
    thread = Thread();
    thread.state = &state;
    if (!state.ends()) thread.row = state.python.new_thread(state.python.self);
  }
  return thread;
}

// -- groups ----------------------------------------------------------------------------------------

// Asks Python about a group through the dispatcher, so that torch itself makes the Python object of it: returns its
// row, the collectives that went unseen, host_waits, by_account and its ranks; nothing if Python does not know it.
std::vector<int64_t> told_of(const c10::IValue& boxed) {
  static const c10::OperatorHandle op = c10::Dispatcher::singleton().findSchemaOrThrow("ncclwatch::new_group", "");
  torch::jit::Stack stack{boxed};
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  return stack.back().toIntVector();
}

Group* meet(State& state, const c10::IValue& boxed, const c10::intrusive_ptr<c10d::ProcessGroup>& pg) {
  if (state.ends()) return nullptr;
  const std::vector<int64_t> told = told_of(boxed);
  if (told.size() < kToldOfGroup) return nullptr;
  auto group = std::make_unique<Group>();
  group->name = pg->getGroupName();
  group->number = static_cast<int>(told[0]);
  group->enqueued = group->completed = static_cast<uint64_t>(told[1]);
  group->host_waits = told[2] != 0;
  group->by_account = told[3] != 0;
  group->ranks.assign(told.begin() + kToldOfGroup, told.end());
  std::lock_guard<std::mutex> guard(state.groups_lock);
  Group*& slot = state.groups[pg.get()];
  if (slot == nullptr || slot->dead || slot->name != group->name) {  // else another thread met it meanwhile
    slot = group.get();
    state.all_groups.push_back(std::move(group));
  }
  return slot;
}

Group* group_of(State& state, Thread& thread, const c10::IValue& boxed) {
  const c10::IValue& capsule = boxed.toObjectRef().getSlot(0);
  auto pg = c10::static_intrusive_pointer_cast<c10d::ProcessGroup>(capsule.toCapsule());
  if (thread.group_of == pg.get() && !thread.group->dead && thread.group->name == pg->getGroupName()) {
    return thread.group;
  }
  Group* group = nullptr;
  {
    std::lock_guard<std::mutex> guard(state.groups_lock);
    const auto found = state.groups.find(pg.get());
    if (found != state.groups.end() && !found->second->dead && found->second->name == pg->getGroupName()) {
      group = found->second;
    }
  }
  if (group == nullptr) group = meet(state, boxed, pg);
  if (group != nullptr) {
    thread.group_of = pg.get();
    thread.group = group;
  }
  return group;
}

// -- completion ------------------------------------------------------------------------------------

// Keeps a finished work of gloo until its own thread has let go of it, so that the last to drop it is Python:
// see Recorder._retire in ncclwatch/rank/recorder.py.
// `waited`: the work whose wait() has just returned to Python, which therefore holds it. If only we do beside it,
// Python is the last anyway, and its tensors need not stay until the next operation: FSDP wants them back.
void retire(State& state, std::vector<Held>& finished, const c10d::Work* waited = nullptr) {
  std::vector<WorkPtr> dropped;
  {
    std::lock_guard<std::mutex> guard(state.open_lock);
    for (const Held& held : finished) state.open.erase(held.work.get());
  }
  std::lock_guard<std::mutex> guard(state.retired_lock);
  const uint64_t now = now_ns();
  for (Held& held : finished) {
    if (held.work.get() == waited && held.work.use_count() == kOursAndPythons) {
      dropped.push_back(std::move(held.work));
    } else if (held.issued.on_host) {
      state.retired_numel += held.issued.numel;
      state.retired.emplace_back(now, held.issued.numel, std::move(held.work));
    }
  }
  // Whoever is the only one to hold a work may drop it: its tensors are wanted back, for the next of their size.
  // Only the oldest few are looked at: a program may keep hundreds of its works, and this is on the path of each.
  size_t looks = kNewestKept;
  for (auto at = state.retired.begin(); at != state.retired.end() && looks > 0; --looks) {
    auto& [since, numel, work] = *at;
    if (work.use_count() > 1) {
      ++at;
      continue;
    }
    state.retired_numel -= numel;
    dropped.push_back(std::move(work));
    at = state.retired.erase(at);
  }
  while (state.retired.size() > kNewestKept &&
         (state.retired.size() > kWorksMax || state.retired_numel > kRetiredNumelMax)) {
    state.retired_numel -= std::get<1>(state.retired.front());
    dropped.push_back(std::move(std::get<2>(state.retired.front())));
    state.retired.pop_front();
  }
}

void sweep(State& state) {
  std::vector<WorkPtr> dropped;
  std::lock_guard<std::mutex> guard(state.retired_lock);
  const uint64_t now = now_ns();
  while (!state.retired.empty() && now - std::get<0>(state.retired.front()) >= kRetiredNs) {
    state.retired_numel -= std::get<1>(state.retired.front());
    dropped.push_back(std::move(std::get<2>(state.retired.front())));
    state.retired.pop_front();
  }
}

bool is_through(const Held& held) {
  try {
    return held.done || held.work->isCompleted();
  } catch (...) {
    return true;
  }
}

void show_done(State& state, Group& group) {
  if (group.shown()) state.ring.set_group_done(group.number, group.completed, group.newest_event);
}

// Notes the works of a group that are complete, oldest first. Never waits, and holds no lock while it asks a work:
// the answer may be Python's.
// Of sends and receives so many are asked, the oldest: this is on the path of each, and the pulse asks all.
void drain(State& state, Group& group, size_t p2p_max = kWorksMax, const c10d::Work* waited = nullptr) {
  if (group.draining.test_and_set(std::memory_order_acquire)) return;
  std::vector<Held> finished, p2p, kept;
  std::vector<bool> through;
  for (;;) {
    Held front;
    size_t held = 0;
    {
      std::lock_guard<std::mutex> guard(group.lock);
      held = group.works.size();
      if (held == 0) break;
      front = group.works.front();
    }
    if (!is_through(front) && held <= kWorksMax) break;
    std::lock_guard<std::mutex> guard(group.lock);
    // The group may have been destroyed, or recording ended, while the work was asked.
    if (group.works.empty() || group.works.front().work.get() != front.work.get()) break;
    group.completed = std::max(group.completed.load(), front.issued.seq);
    finished.push_back(std::move(front));
    group.works.pop_front();
  }
  {
    std::lock_guard<std::mutex> guard(group.lock);
    if (!finished.empty()) show_done(state, group);
    const auto asked = static_cast<long>(std::min(p2p_max, group.p2p_works.size()));
    p2p.assign(group.p2p_works.begin(), group.p2p_works.begin() + asked);
  }
  for (const Held& held : p2p) through.push_back(is_through(held));
  if (!p2p.empty()) {
    std::lock_guard<std::mutex> guard(group.lock);
    // They still lie in front, in their order, unless the group has been destroyed, or recording ended.
    const bool same =
        group.p2p_works.size() >= p2p.size() && group.p2p_works.front().work.get() == p2p.front().work.get();
    for (size_t i = 0; same && i < p2p.size(); ++i) {
      Held held = std::move(group.p2p_works.front());
      group.p2p_works.pop_front();
      if (through[i]) {
        Peer& peer = group.peers[held.issued.peer];
        const int at = held.issued.op == state.codes.send ? 1 : 3;
        ++peer.counts[at];
        if (peer.row >= 0) state.ring.set_peer(peer.row, kPeerCounts + at, peer.counts[at]);
        finished.push_back(std::move(held));
      } else {
        kept.push_back(std::move(held));
      }
    }
    for (; !kept.empty(); kept.pop_back()) group.p2p_works.push_front(std::move(kept.back()));
  }
  group.draining.clear(std::memory_order_release);
  if (!finished.empty()) retire(state, finished, waited);
}

void mark_done(Group& group, const c10d::Work* work) {
  std::lock_guard<std::mutex> guard(group.lock);
  for (Held& held : group.works) {
    if (held.work.get() == work) held.done = true;
  }
  for (Held& held : group.p2p_works) {
    if (held.work.get() == work) {
      held.done = true;
      return;
    }
  }
}

// -- waits -----------------------------------------------------------------------------------------

void enter(State& state, Thread& thread, uint8_t kind, uint32_t site, const Issued* issued, uint32_t number = 0) {
  Wait wait;
  wait.stamp = wait.again = state.ring.next_wait_stamp();
  wait.since = now_ns();
  wait.site = site;
  wait.seq = number;  // of the process group that it makes
  wait.group = kNoGroup;
  wait.kind = kind;
  wait.peer = -1;
  if (issued != nullptr) {
    wait.seq = static_cast<uint32_t>(issued->seq);
    wait.group = static_cast<uint16_t>(issued->group->number);
    wait.kind = issued->kind;
    wait.op = issued->op;
    wait.peer = issued->peer;
  }
  thread.waits.push_back(wait);
  if (thread.row >= 0) state.ring.set_wait(thread.row, wait);
}

void leave(State& state, Thread& thread) {
  if (!thread.waits.empty()) thread.waits.pop_back();
  if (thread.row >= 0) state.ring.set_wait(thread.row, thread.waits.empty() ? Wait() : thread.waits.back());
}

void leave_issue(State& state, Thread& thread, const Issued& issued) {
  if (thread.region >= 0) {
    if (thread.region_op.group != nullptr) drain(state, *thread.region_op.group);
    if (thread.region_op.group == nullptr || thread.region_op.seq <= thread.region_op.group->completed) {
      const Wait wait = thread.waits.back();
      thread.waits.resize(static_cast<size_t>(thread.region));
      thread.waits.push_back(wait);
      thread.region_op = issued;
      return;
    }
  }
  leave(state, thread);
}

// -- operations ------------------------------------------------------------------------------------

const at::Tensor* first_tensor(const c10::IValue& found) {
  const c10::IValue* at = &found;
  while (at->isList()) {
    const auto parts = at->toListRef();
    if (parts.empty()) return nullptr;
    at = &parts.front();
  }
  return at->isTensor() ? &at->toTensor() : nullptr;
}

uint64_t numel_of(const c10::IValue& sized) {
  if (sized.isTensor()) return static_cast<uint64_t>(sized.toTensor().numel());
  uint64_t sum = 0;
  for (const c10::IValue& part : sized.toListRef()) {
    if (part.isTensor()) sum += static_cast<uint64_t>(part.toTensor().numel());
  }
  return sum;
}

uint32_t bucket_label(Group& group, uint64_t numel) {
  if (group.next_bucket >= group.buckets.size() || group.buckets[group.next_bucket].first != numel) return 0;
  return group.buckets[group.next_bucket++].second;
}

int peer_row(State& state, Group& group, int peer) {
  {
    std::lock_guard<std::mutex> guard(group.lock);
    const auto known = group.peers.find(peer);
    if (known != group.peers.end()) return known->second.row;
  }
  return state.ends() ? -1 : state.python.new_peer(state.python.self, group.number, peer);
}

// Records how long a thread was blocked until an operation was through on the host: see Recorder.meter.
void meter(State& state, const Issued& issued, uint64_t since) {
  if (issued.meets) {
    state.ring.meter(issued.group->number, issued.seq, now_ns() - since);
  } else if (issued.kind != state.codes.wait_collective && issued.group->host_waits) {
    state.ring.add_time(state.ring.layout().word_peers_waited, now_ns() - since);
  }
}

// Before the backend gets it: NCCL ends a rank whose device another rank has, and nothing of it is recorded then.
void note_device(State& state, Group& group, int index) {
  if (group.device.exchange(index) == index || state.ends()) return;
  state.python.note_device(state.python.self, index);
}

bool issue(State& state, Thread& thread, const Spec& spec, const c10::IValue* arguments, Issued* issued) {
  const at::Tensor* tensor = first_tensor(arguments[spec.sized_by >= 0 ? spec.sized_by : 0]);
  if (tensor != nullptr && tensor->is_meta()) return false;  // a compiler tries the op on; nothing moves
  Group* group = group_of(state, thread, arguments[spec.group]);
  if (group == nullptr) {
    state.ring.count_dropped();
    return false;
  }
  if (group->by_account && tensor != nullptr && tensor->is_cuda()) {
    note_device(state, *group, static_cast<int>(tensor->get_device()));
  }
  Event event{};
  uint32_t dtype = 0;
  if (tensor != nullptr && spec.has_size) {
    const auto type = static_cast<size_t>(tensor->scalar_type());
    dtype = type < state.dtypes.size() ? state.dtypes[type] : static_cast<uint32_t>(state.codes.other_dtype);
    if (spec.sized_by >= 0) {
      event.numel = numel_of(arguments[spec.sized_by]);
    } else if (spec.is_p2p) {
      event.numel = static_cast<uint64_t>(tensor->numel());
    }
  }
  uint32_t reduce = 0;
  if (spec.reduce_op >= 0) {
    const auto boxed = arguments[spec.reduce_op].toObjectRef().getSlot(0).toCapsule();
    const auto op = c10::static_intrusive_pointer_cast<c10d::ReduceOp>(boxed);
    reduce = static_cast<uint32_t>(std::min(static_cast<int>(op->op_) + 1, state.codes.reduce_ops - 1));
  }
  int peer = -1;
  if (spec.root >= 0) {
    peer = static_cast<int>(arguments[spec.root].toInt());
    if (peer >= 0 && peer < static_cast<int>(group->ranks.size())) {
      peer = group->ranks[peer];
    } else if (group->ranks.empty()) {
      peer = -1;  // nobody knows who that is in the job
    }
  }
  event.op = static_cast<uint8_t>(spec.op);
  event.thread = static_cast<uint8_t>(thread.row >= 0 ? thread.row : 0xFF);
  event.group = static_cast<uint16_t>(group->number);
  event.signature = (static_cast<uint32_t>(peer + 1) & 0xFFFFF) | (dtype & 0x3F) << 20 | (reduce & 0xF) << 26;
  event.site = state.python.site(state.python.self, at::GradMode::is_enabled());
  if (event.site == 0) event.site = static_cast<uint32_t>(state.ring.word(state.ring.layout().word_backward_site));
  uint32_t label = thread.label;
  const int row = spec.is_p2p ? peer_row(state, *group, peer) : -1;
  state.python.note_exception(state.python.self);

  issued->group = group;
  issued->op = event.op;
  issued->peer = peer;
  issued->numel = event.numel;
  issued->on_host = group->host_waits && tensor != nullptr && tensor->is_cpu();
  issued->meets = (state.codes.meeting >> spec.op & 1) != 0 &&
                  (issued->on_host || (group->host_waits && spec.op == state.codes.barrier));
  {
    std::unique_lock<std::mutex> guard(group->lock);
    if (label == 0 && !group->buckets.empty() && event.op == state.codes.all_reduce) {
      label = bucket_label(*group, event.numel);
    }
    if (label != 0) {
      guard.unlock();  // the first time, a name is asked of Python
      event.site = state.python.labelled(state.python.self, event.site, label);
      guard.lock();
    }
    issued->site = event.site;
    issued->label = label;
    issued->before = group->prefix;
    if (spec.is_p2p) {
      Peer& known = group->peers[peer];
      known.row = row;
      const bool sends = event.op == state.codes.send;
      issued->kind = sends ? state.codes.wait_send : state.codes.wait_recv;
      issued->seq = ++known.counts[sends ? 0 : 2];
      if (row >= 0) state.ring.set_peer(row, kPeerCounts + (sends ? 0 : 2), known.counts[sends ? 0 : 2]);
    } else {
      issued->kind = state.codes.wait_collective;
      issued->seq = ++group->enqueued;
      const uint64_t agreed = event.op == state.codes.all_gather ? 0 : event.numel;  // its lists may be ragged
      const uint64_t mixed = uint64_t{event.op} * 0x9E3779B97F4A7C15u ^ agreed * 0xC2B2AE3D27D4EB4Fu ^
                             uint64_t{event.signature} * 0x165667B19E3779F9u;
      group->prefix = group->prefix * 0x100000001B3u + mixed + 1;
    }
    event.prefix = group->prefix;
    if (spec.async_op >= 0 && !arguments[spec.async_op].toBool()) event.signature |= kInOrder;  // no part of the hash
    event.seq = static_cast<uint32_t>(issued->seq);
    const int64_t number = state.ring.add_event(event);
    if (!spec.is_p2p) {
      group->newest_event = number;
      if (group->shown()) {
        state.ring.set_group_head(group->number, group->prefix, group->enqueued);
        show_done(state, *group);
      }
    }
  }
  ++thread.issued;
  if (thread.row >= 0) state.ring.set_thread_issued(thread.row, thread.issued);
  if (spec.is_p2p) {
    ++thread.messages;
    issued->thread = thread.row;
    issued->after = static_cast<uint32_t>(thread.issued - thread.messages);
    if (thread.in_batch && thread.batch.size() < kBatchMax) thread.batch.push_back(*issued);
  }
  thread.newest = *issued;
  return true;
}

// Takes an operation back that the backend refused to take (a wrong argument, say).
void refuse(State& state, const Issued& issued) {
  Group& group = *issued.group;
  std::lock_guard<std::mutex> guard(group.lock);
  if (issued.kind != state.codes.wait_collective) {
    Peer& peer = group.peers[issued.peer];
    const int at = issued.op == state.codes.send ? 0 : 2;
    uint32_t& count = peer.counts[at];
    if (count != issued.seq) return;
    --count;
    if (peer.row >= 0) state.ring.set_peer(peer.row, kPeerCounts + at, count);
    return;
  }
  if (group.enqueued != issued.seq) return;
  --group.enqueued;
  group.prefix = issued.before;
  if (group.shown()) state.ring.set_group_head(group.number, group.prefix, group.enqueued);
}

// Notes that an operation is over which its backend took, and ended with an exception.
void give_up(State& state, const Issued& issued) {
  Group& group = *issued.group;
  std::lock_guard<std::mutex> guard(group.lock);
  group.completed = std::max(group.completed.load(), issued.seq);
  show_done(state, group);
}

bool add_p2p(const Issued& issued, WorkPtr& work) {
  Group& group = *issued.group;
  std::lock_guard<std::mutex> guard(group.lock);
  if (group.dead || group.p2p_works.size() >= kP2pMax) return false;
  group.p2p_works.push_back({issued, std::move(work)});
  return true;
}

// It leaves no trace when it ends, so the oldest of these are forgotten.
void note_not_held(State& state, const c10d::Work* work) {
  std::lock_guard<std::mutex> guard(state.open_lock);
  state.open_order.push_back(work);
}

void hold_p2p(State& state, const Issued& issued, WorkPtr work) {
  if (add_p2p(issued, work)) return;
  drain(state, *issued.group);
  if (add_p2p(issued, work)) return;
  if (!issued.group->dead) state.ring.count_dropped();
  note_not_held(state, work.get());
}

void forget_oldest(State& state) {
  state.open.erase(state.open_order.front());
  state.batches.erase(state.open_order.front());
  state.open_order.pop_front();
}

void track(State& state, const Issued& issued, const c10::IValue* result) {
  Group& group = *issued.group;
  const bool collective = issued.kind == state.codes.wait_collective;
  WorkPtr work;
  if (result != nullptr && result->isObject()) {
    work = c10::static_intrusive_pointer_cast<c10d::Work>(result->toObjectRef().getSlot(0).toCapsule());
  }
  // A GPU's tensors are not kept alive, and NCCL's works are not asked: it tells itself how far it is. Of a call
  // that only is in the order of its stream (async_op=False) it returns none.
  const bool held_until_done = issued.on_host || !group.by_account;
  if (!work) {
    if (!collective || !held_until_done) return;
    std::lock_guard<std::mutex> guard(group.lock);
    group.completed = std::max(group.completed.load(), issued.seq);
    show_done(state, group);
    return;
  }
  {
    std::lock_guard<std::mutex> guard(state.open_lock);
    const bool fresh = state.open.insert_or_assign(work.get(), issued).second;
    if (!state.batches.empty()) state.batches.erase(work.get());  // of one that lay there before
    if (!held_until_done && fresh) {  // not held, so it leaves no trace when it ends: the oldest are forgotten
      state.open_order.push_back(work.get());
      if (state.open_order.size() > kOpenMax) {
        forget_oldest(state);
      }
    }
  }
  if (!held_until_done) return;
  if (!collective) {
    hold_p2p(state, issued, std::move(work));
    return;
  }
  size_t held = 0;
  WorkPtr replaced;  // dropped after the lock
  {
    std::lock_guard<std::mutex> guard(group.lock);
    if (group.dead) {  // destroyed, or detached, while its backend took this: nobody asks it any more
      note_not_held(state, work.get());
      return;
    }
    if (!group.host_waits && group.works.size() >= kWorksMax) {
      // The host is far ahead of a stream that ends its works in order: the newest stands for those before it.
      replaced = std::move(group.works.back().work);
      group.works.pop_back();
    }
    group.works.push_back({issued, std::move(work)});
    held = group.works.size();
  }
  if (replaced) {
    std::lock_guard<std::mutex> guard(state.open_lock);
    state.open.erase(replaced.get());
  }
  if (held > 1) drain(state, group);
}

class Kernel final : public c10::OperatorKernel {
 public:
  explicit Kernel(const Spec& spec) : spec_(spec) {}

  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const c10::DispatchKeySet below =
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
    State* state = g_state.load(std::memory_order_acquire);
    Issued issued;
    bool recorded = false;
    if (state != nullptr) {
      try {
        const size_t count = op.schema().arguments().size();
        recorded = issue(*state, thread_of(*state), spec_, &*(stack->end() - static_cast<long>(count)), &issued);
      } catch (...) {
        state->ring.count_dropped();
      }
    }
    if (!recorded) {
      op.redispatchBoxed(below, stack);
      return;
    }
    const size_t outputs = op.schema().returns().size();
    Thread& thread = t_thread;
    // Issuing may itself block: NCCL's first collective of a group, TORCH_DISTRIBUTED_DEBUG=DETAIL, monitored_barrier.
    enter(*state, thread, issued.kind, issued.site, &issued);
    try {
      op.redispatchBoxed(below, stack);
    } catch (...) {
      leave(*state, thread);
      // monitored_barrier returns no work: it is over when it is left, and its exception ends it.
      outputs > 0 ? refuse(*state, issued) : give_up(*state, issued);
      throw;
    }
    try {
      track(*state, issued, outputs > 0 ? &stack->back() : nullptr);
    } catch (...) {
      state->ring.count_dropped();
    }
    leave_issue(*state, thread, issued);
  }

 private:
  Spec spec_;
};

// The wait of functional collectives; it names no work, so the newest one of this thread is meant.
class WaitTensor final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const c10::DispatchKeySet below =
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect);
    State* state = g_state.load(std::memory_order_acquire);
    Thread& thread = t_thread;
    const bool waits = state != nullptr && thread.state == state && thread.newest.group != nullptr &&
                       thread.newest.seq > thread.newest.group->completed;
    if (!waits) {
      op.redispatchBoxed(below, stack);
      return;
    }
    const Issued issued = thread.newest;
    enter(*state, thread, issued.kind, issued.site, &issued);
    const uint64_t since = now_ns();
    try {
      op.redispatchBoxed(below, stack);
    } catch (...) {
      leave(*state, thread);
      throw;
    }
    meter(*state, issued, since);
    leave(*state, thread);
    drain(*state, *issued.group);
  }
};

// -- what the Python side asks ------------------------------------------------------------------------

std::vector<Group*> living(State& state) {
  std::lock_guard<std::mutex> guard(state.groups_lock);
  std::vector<Group*> found;
  for (const auto& group : state.all_groups) {
    if (!group->dead) found.push_back(group.get());
  }
  return found;
}

State* state_or_null() { return g_state.load(std::memory_order_acquire); }

// A function for Python: what goes wrong in it is counted, and never thrown.
template <typename Do>
void with_state(Do act) noexcept {
  State* state = state_or_null();
  if (state == nullptr) return;
  try {
    act(*state);
  } catch (...) {
    state->ring.count_dropped();
  }
}

void begin(char* memory, const Layout* layout, const Codes* codes, const uint8_t* dtypes, size_t count,
           const Python* python) {
  auto state = std::make_unique<State>(memory, *layout, *codes, *python);
  state->dtypes.assign(dtypes, dtypes + count);
  g_state.store(state.release(), std::memory_order_release);
}

void end() {
  State* state = g_state.exchange(nullptr);
  if (state == nullptr) return;
  std::vector<Held> dropped;  // with the GIL held, and no lock
  for (Group* group : living(*state)) {  // a thread that is inside may meet another one meanwhile
    group->dead = true;
    std::lock_guard<std::mutex> guard(group->lock);
    for (Held& held : group->works) dropped.push_back(std::move(held));
    for (Held& held : group->p2p_works) dropped.push_back(std::move(held));
    group->works.clear();
    group->p2p_works.clear();
  }
  std::deque<std::tuple<uint64_t, uint64_t, WorkPtr>> retired;
  std::lock_guard<std::mutex> guard(state->retired_lock);
  retired.swap(state->retired);
}

// Be off, and touch nothing that the parent may have held locked.
void forget() { g_state.store(nullptr); }

// The kernels are never taken away: a thread may be inside. Without a recorder they hand on what they get.
bool install(const Spec* specs, size_t count) {
  static bool installed = false;
  if (installed) return true;
  try {
    auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "c10d", c10::DispatchKey::BackendSelect,
                                                    __FILE__, __LINE__);
    for (size_t n = 0; n < count; ++n) {
      library->impl(specs[n].name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(specs[n])));
    }
    auto functional = std::make_unique<torch::Library>(torch::Library::IMPL, "_c10d_functional",
                                                       c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
    functional->impl("wait_tensor", torch::CppFunction::makeFromBoxedFunctor(std::make_unique<WaitTensor>()));
    library.release();
    functional.release();
  } catch (const std::exception&) {
    return false;
  }
  installed = true;
  return true;
}

bool grad_mode() { return at::GradMode::is_enabled(); }

int thread_row() {
  int row = -1;
  with_state([&](State& state) { row = thread_of(state).row; });
  return row;
}

void enter_wait(uint8_t kind, uint32_t site, uint32_t number) {
  with_state([&](State& state) { enter(state, thread_of(state), kind, site, nullptr, number); });
}

void leave_wait() {
  with_state([](State& state) { leave(state, thread_of(state)); });
}

long enter_region() {
  long outer = -1;
  with_state([&](State& state) {
    Thread& thread = thread_of(state);
    outer = std::exchange(thread.region, static_cast<long>(thread.waits.size()));
  });
  return outer;
}

void leave_region(long outer) {
  with_state([&](State& state) {
    Thread& thread = thread_of(state);
    if (thread.region >= 0) thread.waits.resize(std::min(thread.waits.size(), static_cast<size_t>(thread.region)));
    thread.region = outer;
    thread.region_op = Issued();
    if (thread.row >= 0) state.ring.set_wait(thread.row, thread.waits.empty() ? Wait() : thread.waits.back());
  });
}

uint32_t set_label(uint32_t label) {
  uint32_t before = 0;
  with_state([&](State& state) { before = std::exchange(thread_of(state).label, label); });
  return before;
}

// What `Waited` holds.
struct Waiting {
  Issued issued;
  uint64_t since = 0;
};
static_assert(sizeof(Waiting) <= sizeof(Waited) && std::is_trivially_copyable_v<Waiting>);

bool find_work(const void* work, Waited* found) {
  bool known = false;
  with_state([&](State& state) {
    std::lock_guard<std::mutex> guard(state.open_lock);
    const auto at = state.open.find(static_cast<const c10d::Work*>(work));
    if (at == state.open.end()) return;
    const Waiting waiting{at->second, now_ns()};
    std::memcpy(found->bytes, &waiting, sizeof waiting);
    known = true;
  });
  return known;
}

Waiting waiting_of(const Waited* waited) {
  Waiting waiting;
  std::memcpy(&waiting, waited->bytes, sizeof waiting);
  return waiting;
}

void enter_work(const Waited* waited, uint32_t site) {
  with_state([&](State& state) {
    const Issued issued = waiting_of(waited).issued;
    if (site != 0 && issued.label != 0) site = state.python.labelled(state.python.self, site, issued.label);
    enter(state, thread_of(state), issued.kind, site != 0 ? site : issued.site, &issued);
  });
}

// In another stream wait() holds back only what is issued there.
bool in_default_stream() {
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return true;
  const c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
  return guard.getStream(guard.getDevice()) == guard.getDefaultStream(guard.getDevice());
}

// See ncclwatch/rank/messages.py: what this thread issues from now on comes after a message that it has waited for.
void order(State& state, const Thread& thread, const Issued& waited, const c10d::Work* work) {
  if (waited.kind == state.codes.wait_collective || !waited.group->by_account || !in_default_stream()) return;
  std::vector<Issued> all{waited};
  {
    std::lock_guard<std::mutex> guard(state.open_lock);
    const auto batch = state.batches.find(work);
    if (batch != state.batches.end()) all = batch->second;
  }
  const auto now = static_cast<uint32_t>(thread.issued - thread.messages);
  for (const Issued& each : all) {
    std::lock_guard<std::mutex> guard(each.group->lock);
    Peer& peer = each.group->peers[each.peer];
    const int at = each.op == state.codes.send ? 0 : 1;
    uint64_t &newest = peer.waited[at], &run = peer.run[at];
    if (newest < each.seq + run && each.seq <= newest) continue;
    // Of those up to the newest without a gap: one between them may not count.
    run = each.thread != thread.row || each.after != now ? 0 : each.seq == newest + 1 ? run + 1 : 1;
    newest = each.seq;
    const uint64_t word = std::min(run, kWaitedRunMax) << kWaitedBits | (newest & ((1u << kWaitedBits) - 1));
    if (peer.row >= 0) state.ring.set_peer(peer.row, kPeerWaited + at, static_cast<uint32_t>(word));
  }
}

void begin_batch() {
  with_state([&](State& state) {
    Thread& thread = thread_of(state);
    thread.in_batch = true;
    thread.batch.clear();
  });
}

void end_batch(const void* of_all) {
  with_state([&](State& state) {
    Thread& thread = thread_of(state);
    thread.in_batch = false;
    std::vector<Issued> batch;
    batch.swap(thread.batch);
    if (of_all == nullptr || batch.empty() || !batch.back().group->by_account) return;
    const auto* work = static_cast<const c10d::Work*>(of_all);
    std::lock_guard<std::mutex> guard(state.open_lock);
    if (state.open.insert_or_assign(work, batch.back()).second) state.open_order.push_back(work);
    state.batches[work] = std::move(batch);
    if (state.open_order.size() > kOpenMax) forget_oldest(state);
  });
}

void leave_work(const Waited* waited, const void* work, bool done) {
  with_state([&](State& state) {
    const Waiting waiting = waiting_of(waited);
    if (done) meter(state, waiting.issued, waiting.since);
    if (done) order(state, thread_of(state), waiting.issued, static_cast<const c10d::Work*>(work));
    leave(state, thread_of(state));
    const auto* through = static_cast<const c10d::Work*>(work);
    if (done && waiting.issued.on_host) mark_done(*waiting.issued.group, through);
    drain(state, *waiting.issued.group, kWorksMax, done ? through : nullptr);
  });
}

std::vector<Group*> living(State& state, const char* name) {
  std::vector<Group*> found = living(state);
  std::erase_if(found, [name](const Group* group) { return group->name != name; });
  return found;
}

void forget_group(const char* name) {
  with_state([&](State& state) {
    for (Group* group : living(state, name)) {
      drain(state, *group);
      group->dead = true;
      std::vector<Held> left;  // about to be through: a backend tells us later than it tells whoever waited
      {
        std::lock_guard<std::mutex> guard(group->lock);
        for (Held& held : group->works) left.push_back(std::move(held));
        for (Held& held : group->p2p_works) left.push_back(std::move(held));
        group->works.clear();
        group->p2p_works.clear();
      }
      retire(state, left);
    }
  });
}

void drain_all() {
  with_state([](State& state) {
    for (Group* group : living(state)) drain(state, *group, kP2pMax);
  });
}

void sweep_retired() {
  with_state([](State& state) { sweep(state); });
}

void set_buckets(const char* name, const uint64_t* numels, const uint32_t* labels, size_t count) {
  with_state([&](State& state) {
    for (Group* group : living(state, name)) {
      std::lock_guard<std::mutex> guard(group->lock);
      group->buckets.clear();
      for (size_t n = 0; n < count; ++n) group->buckets.emplace_back(numels[n], labels[n]);
      group->next_bucket = 0;
    }
  });
}

void begin_backward() {
  with_state([](State& state) {
    for (Group* group : living(state)) {
      std::lock_guard<std::mutex> guard(group->lock);
      group->next_bucket = 0;
    }
  });
}

// For groups on a device: how far the backend says it is.
void set_completed(const char* name, uint64_t seq) {
  with_state([&](State& state) {
    for (Group* group : living(state, name)) {
      std::lock_guard<std::mutex> guard(group->lock);
      if (seq <= group->completed || seq > group->enqueued) continue;
      group->completed = seq;
      show_done(state, *group);
    }
  });
}

// -- what Python checks before anything is recorded ---------------------------------------------------

// What this side reads of each kind of argument: another layout of torch's than that of the headers would show here.
std::vector<int64_t> read_tensor(const at::Tensor& tensor) {
  return {tensor.numel(), static_cast<int64_t>(tensor.scalar_type()), tensor.is_cpu(), tensor.is_meta()};
}

std::vector<int64_t> read_group(const c10::intrusive_ptr<c10d::ProcessGroup>& group) {
  return {group->getRank(), group->getSize()};
}

int64_t read_work(const c10::intrusive_ptr<c10d::Work>& work) { return reinterpret_cast<int64_t>(work.get()); }

// Makes the ops of both sides; returns what went wrong, nullptr if nothing did.
const char* declare() {
  static std::string wrong;
  static bool declared = false;
  if (declared) return nullptr;
  try {
    auto library = std::make_unique<torch::Library>(torch::Library::FRAGMENT, "ncclwatch", std::nullopt, __FILE__, __LINE__);
    library->def("new_group(__torch__.torch.classes.c10d.ProcessGroup group) -> int[]");
    library->def("read_tensor(Tensor tensor) -> int[]", read_tensor);
    library->def("read_group(__torch__.torch.classes.c10d.ProcessGroup group) -> int[]", read_group);
    library->def("read_work(__torch__.torch.classes.c10d.Work work) -> int", read_work);
    library.release();
  } catch (const std::exception& error) {
    wrong = error.what();
    return wrong.c_str();
  }
  declared = true;
  return nullptr;
}

constexpr Torch kTorch = {
    kBridge, TORCH_VERSION, declare, begin, end, forget, install, grad_mode,
    thread_row, enter_wait, leave_wait, enter_region, leave_region, set_label,
    find_work, enter_work, leave_work, begin_batch, end_batch,
    forget_group, drain_all, sweep_retired, set_buckets, begin_backward, set_completed,
};

}  // namespace
}  // namespace ncclwatch

const ncclwatch::Torch* ncclwatch_torch_side() { return &ncclwatch::kTorch; }
