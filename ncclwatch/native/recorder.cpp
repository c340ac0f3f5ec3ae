// Records what this rank has issued, what is through, and who waits. The native twin of ncclwatch/rank/recorder.py
// and of the kernels in ncclwatch/rank/patches/collectives.py, for those to whom a microsecond matters.
//
// One boxed kernel at the dispatch key BackendSelect sees each c10d op once, on the thread that issues it
// and in the backend's own order, and hands it on. It holds no lock while the backend works, takes the GIL
// only the first time that it meets a group, a thread or a line, and never throws into the user's
// collective: what it cannot read is counted as dropped.

#include <torch/csrc/utils/pybind.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>

#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "record.h"
#include "sites.h"

namespace py = pybind11;

namespace ncclwatch {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr size_t kWorksMax = 256;              // works of a group that are held at once
constexpr uint64_t kRetiredNs = 2'000'000'000;  // a backend drops a finished work within microseconds, if it gets a core
constexpr uint64_t kRetiredNumelMax = 4'000'000;
constexpr size_t kNewestKept = 8;  // of the retired works, however large
constexpr size_t kOpenMax = 4096;              // works that can be told apart when they are waited for
constexpr uint16_t kNoGroup = 0xFFFF;
constexpr uint32_t kInOrder = 1u << 30;        // IN_ORDER of ncclwatch.contract.ring.layout

// Codes of ncclwatch.contract.ring.layout that this file needs by name.
struct Codes {
  uint8_t send = 0, recv = 0, all_reduce = 0, all_gather = 0;
  uint8_t wait_collective = 0, wait_send = 0, wait_recv = 0;
  int reduce_ops = 0, other_dtype = 0;
  int meeting = 0, barrier = 0;  // MEETING of ncclwatch/rank/recorder.py, a bit for each op
};

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
};

struct Held {
  Issued issued;
  WorkPtr work;
  bool done = false;  // wait() has returned: some works of gloo never say that they are complete
};

struct Peer {
  int row = -1;
  uint32_t counts[4] = {0, 0, 0, 0};
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
  uint64_t enqueued = 0, completed = 0, prefix = 0;
  int64_t newest_event = -1;
  std::deque<Held> works;
  std::vector<Held> p2p_works;
  std::unordered_map<int, Peer> peers;
  std::vector<std::pair<uint64_t, uint32_t>> buckets;  // (elements, label) of DDP's gradient buckets, in order
  size_t next_bucket = 0;

  bool shown() const { return number != kNoGroup; }
};

// Everything of one attach(). Never freed: a thread may be inside when the rank detaches.
struct State {
  State(py::buffer map_, const Layout& layout, const Codes& codes_, py::object books_)
      : map(std::move(map_)),
        view(map.request(true)),
        ring(static_cast<char*>(view.ptr), layout),
        codes(codes_),
        books(std::move(books_)),
        sites(books.ptr()) {}

  py::buffer map;
  py::buffer_info view;
  Ring ring;
  Codes codes;
  py::object books;
  Sites sites;
  std::vector<uint8_t> dtypes;  // code by c10::ScalarType

  std::mutex groups_lock;
  std::unordered_map<const c10d::ProcessGroup*, Group*> groups;
  std::vector<std::unique_ptr<Group>> all_groups;

  std::mutex open_lock;
  std::unordered_map<const c10d::Work*, Issued> open;
  std::deque<const c10d::Work*> open_order;

  std::mutex retired_lock;
  std::deque<std::tuple<uint64_t, uint64_t, WorkPtr>> retired;
  uint64_t retired_numel = 0;

  std::atomic<uintptr_t> exception_seen{0};
};

std::atomic<State*> g_state{nullptr};
std::vector<std::unique_ptr<torch::Library>> g_libraries;

struct Thread {
  State* state = nullptr;  // of which attach() the rest is
  int row = -1;
  uint64_t issued = 0;
  uint32_t label = 0;
  std::vector<Wait> waits;
  Issued newest;
  long region = -1;  // inside of something that issues and waits in C++: waits when it was entered
  Issued region_op;  // the first of its operations that is not through
  const c10d::ProcessGroup* group_of = nullptr;
  Group* group = nullptr;
};

thread_local Thread t_thread;

// Asks books.<name>(...) with the GIL held; what goes wrong there becomes `otherwise`.
template <typename... Arguments>
py::object ask(State& state, const char* name, Arguments&&... arguments) {
  py::error_scope kept;
  try {
    return state.books.attr(name)(std::forward<Arguments>(arguments)...);
  } catch (const std::exception&) {
    PyErr_Clear();
    return py::none();
  }
}

Thread& thread_of(State& state) {
  Thread& thread = t_thread;
  if (thread.state != &state) {
    thread = Thread();
    thread.state = &state;
    if (!interpreter_ends()) {
      py::gil_scoped_acquire gil;
      const py::object row = ask(state, "new_thread");
      if (!row.is_none()) thread.row = row.cast<int>();
    }
  }
  return thread;
}

// -- groups ----------------------------------------------------------------------------------------

Group* meet(State& state, const c10::intrusive_ptr<c10d::ProcessGroup>& pg) {
  if (interpreter_ends()) return nullptr;
  py::gil_scoped_acquire gil;
  const py::object found = ask(state, "new_group", py::cast(pg));
  if (found.is_none()) return nullptr;
  const auto [number, ranks, enqueued, host_waits, by_account] =
      found.cast<std::tuple<int, std::vector<int>, uint64_t, bool, bool>>();
  auto group = std::make_unique<Group>();
  group->name = pg->getGroupName();
  group->number = number;
  group->ranks = ranks;
  group->host_waits = host_waits;
  group->by_account = by_account;
  group->enqueued = group->completed = enqueued;
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
  if (group == nullptr) group = meet(state, pg);
  if (group != nullptr) {
    thread.group_of = pg.get();
    thread.group = group;
  }
  return group;
}

// -- completion ------------------------------------------------------------------------------------

// Keeps a finished work of gloo until its own thread has let go of it, so that the last to drop it is Python:
// see Recorder._retire in ncclwatch/rank/recorder.py.
void retire(State& state, std::vector<Held>& finished) {
  std::vector<WorkPtr> dropped;
  {
    std::lock_guard<std::mutex> guard(state.open_lock);
    for (const Held& held : finished) state.open.erase(held.work.get());
  }
  std::lock_guard<std::mutex> guard(state.retired_lock);
  const uint64_t now = now_ns();
  for (Held& held : finished) {
    if (held.issued.on_host) {
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
void drain(State& state, Group& group) {
  if (group.draining.test_and_set(std::memory_order_acquire)) return;
  std::vector<Held> finished, p2p;
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
    group.completed = std::max(group.completed, front.issued.seq);
    finished.push_back(std::move(front));
    group.works.pop_front();
  }
  {
    std::lock_guard<std::mutex> guard(group.lock);
    if (!finished.empty()) show_done(state, group);
    p2p = group.p2p_works;
  }
  for (const Held& held : p2p) through.push_back(is_through(held));
  if (!p2p.empty()) {
    std::lock_guard<std::mutex> guard(group.lock);
    for (size_t i = 0; i < p2p.size(); ++i) {
      if (!through[i]) continue;
      for (auto at = group.p2p_works.begin(); at != group.p2p_works.end(); ++at) {
        if (at->work.get() != p2p[i].work.get()) continue;
        Peer& peer = group.peers[at->issued.peer];
        ++peer.counts[at->issued.op == state.codes.send ? 1 : 3];
        if (peer.row >= 0) state.ring.set_peer(peer.row, peer.counts);
        finished.push_back(std::move(*at));
        group.p2p_works.erase(at);
        break;
      }
    }
  }
  group.draining.clear(std::memory_order_release);
  if (!finished.empty()) retire(state, finished);
}

void mark_done(Group& group, const c10d::Work* work) {
  std::lock_guard<std::mutex> guard(group.lock);
  for (Held& held : group.works) {
    if (held.work.get() == work) held.done = true;
  }
  for (Held& held : group.p2p_works) {
    if (held.work.get() == work) held.done = true;
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

// How the arguments of one c10d op are read: positions in its schema, -1 where there is none.
struct Spec {
  int op, sized_by, group, root, reduce_op, async_op;
  bool has_size, is_p2p;
};

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
  if (interpreter_ends()) return -1;
  py::gil_scoped_acquire gil;
  const py::object row = ask(state, "new_peer", group.number, peer);
  return row.is_none() ? -1 : row.cast<int>();
}

// Records how long a thread was blocked until an operation was through on the host: see Recorder.meter.
void meter(State& state, const Issued& issued, uint64_t since) {
  if (issued.meets) {
    state.ring.meter(issued.group->number, issued.seq, now_ns() - since);
  } else if (issued.kind != state.codes.wait_collective && issued.group->host_waits) {
    state.ring.add_time(state.ring.layout().word_peers_waited, now_ns() - since);
  }
}

// Records the exception that is being handled while the rank goes on, once for each.
void note_exception(State& state) {
#if PY_VERSION_HEX >= 0x030b0000
  const PyThreadState* python = PyGILState_GetThisThreadState();
  if (python == nullptr) return;
  const _PyErr_StackItem* item = python->exc_info;
  while (item != nullptr && (item->exc_value == nullptr || item->exc_value == Py_None) && item->previous_item != nullptr) {
    item = item->previous_item;
  }
  if (item == nullptr || item->exc_value == nullptr || item->exc_value == Py_None) return;
  const auto error = reinterpret_cast<uintptr_t>(item->exc_value);
  if (state.exception_seen.exchange(error) == error || interpreter_ends()) return;
  py::gil_scoped_acquire gil;
  ask(state, "note_exception");
#else
  if (interpreter_ends() || PyGILState_GetThisThreadState() == nullptr) return;
  py::gil_scoped_acquire gil;
  ask(state, "note_exception");
#endif
}

// Before the backend gets it: NCCL ends a rank whose device another rank has, and nothing of it is recorded then.
void note_device(State& state, Group& group, int index) {
  if (group.device.exchange(index) == index || interpreter_ends()) return;
  py::gil_scoped_acquire gil;
  ask(state, "note_device", index);
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
    if (peer >= 0 && peer < static_cast<int>(group->ranks.size())) peer = group->ranks[peer];
  }
  event.op = static_cast<uint8_t>(spec.op);
  event.thread = static_cast<uint8_t>(thread.row >= 0 ? thread.row : 0xFF);
  event.group = static_cast<uint16_t>(group->number);
  event.signature = (static_cast<uint32_t>(peer + 1) & 0xFFFFF) | (dtype & 0x3F) << 20 | (reduce & 0xF) << 26;
  event.site = state.sites.here(at::GradMode::is_enabled());
  if (event.site == 0) event.site = static_cast<uint32_t>(state.ring.word(state.ring.layout().word_backward_site));
  uint32_t label = thread.label;
  const int row = spec.is_p2p ? peer_row(state, *group, peer) : -1;
  note_exception(state);

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
      event.site = state.sites.labelled(event.site, label);
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
      if (row >= 0) state.ring.set_peer(row, known.counts);
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
  thread.newest = *issued;
  return true;
}

// Takes an operation back that the backend refused to take (a wrong argument, say).
void refuse(State& state, const Issued& issued) {
  Group& group = *issued.group;
  std::lock_guard<std::mutex> guard(group.lock);
  if (issued.kind != state.codes.wait_collective || group.enqueued != issued.seq) return;
  --group.enqueued;
  group.prefix = issued.before;
  if (group.shown()) state.ring.set_group_head(group.number, group.prefix, group.enqueued);
}

void track(State& state, const Issued& issued, const c10::IValue* result) {
  Group& group = *issued.group;
  const bool collective = issued.kind == state.codes.wait_collective;
  WorkPtr work;
  if (result != nullptr && result->isObject()) {
    work = c10::static_intrusive_pointer_cast<c10d::Work>(result->toObjectRef().getSlot(0).toCapsule());
  }
  if (!work) {
    if (!collective) return;
    std::lock_guard<std::mutex> guard(group.lock);
    group.completed = std::max(group.completed, issued.seq);
    show_done(state, group);
    return;
  }
  // A GPU's tensors are not kept alive, and NCCL's works are not asked: it tells itself how far it is.
  const bool held_until_done = issued.on_host || !group.by_account;
  {
    std::lock_guard<std::mutex> guard(state.open_lock);
    const bool fresh = state.open.insert_or_assign(work.get(), issued).second;
    if (!held_until_done && fresh) {  // not held, so it leaves no trace when it ends: the oldest are forgotten
      state.open_order.push_back(work.get());
      if (state.open_order.size() > kOpenMax) {
        state.open.erase(state.open_order.front());
        state.open_order.pop_front();
      }
    }
  }
  if (!held_until_done) return;
  size_t held = 0;
  WorkPtr replaced;  // dropped after the lock
  {
    std::lock_guard<std::mutex> guard(group.lock);
    if (!collective) {
      if (group.p2p_works.size() < kWorksMax) group.p2p_works.push_back({issued, std::move(work)});
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
      refuse(*state, issued);
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

// -- Work.wait -------------------------------------------------------------------------------------

// Each wrapper holds what Work.wait was when it was made: another library may keep an old one of ours inside its own.
// Only the newest records.
PyObject* g_newest_original = nullptr;

const c10d::Work* work_of(PyObject* self) {
  try {
    return py::cast<c10d::Work*>(py::handle(self));
  } catch (const std::exception&) {
    PyErr_Clear();
    return nullptr;
  }
}

PyObject* wait(PyObject* original, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  State* state = original == g_newest_original ? g_state.load(std::memory_order_acquire) : nullptr;
  const c10d::Work* work = state != nullptr && count > 0 ? work_of(arguments[0]) : nullptr;
  Issued issued;
  if (work != nullptr) {
    std::lock_guard<std::mutex> guard(state->open_lock);
    const auto found = state->open.find(work);
    if (found != state->open.end()) issued = found->second;
  }
  if (issued.group == nullptr) return PyObject_Vectorcall(original, arguments, static_cast<size_t>(count), names);
  Thread& thread = thread_of(*state);
  uint32_t site = state->sites.here(at::GradMode::is_enabled());
  if (site != 0 && issued.label != 0) site = state->sites.labelled(site, issued.label);
  enter(*state, thread, issued.kind, site != 0 ? site : issued.site, &issued);
  const uint64_t since = now_ns();
  PyObject* result = PyObject_Vectorcall(original, arguments, static_cast<size_t>(count), names);
  if (result != nullptr) meter(*state, issued, since);
  leave(*state, thread);
  if (result != nullptr && issued.on_host) mark_done(*issued.group, work);
  drain(*state, *issued.group);
  return result;
}

PyMethodDef g_wait_method = {
    "wait", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(wait)), METH_FASTCALL | METH_KEYWORDS,
    "torch.distributed.Work.wait, watched by ncclwatch"};

// -- what ncclwatch/rank/native.py calls -------------------------------------------------------------

State* state_or_null() { return g_state.load(std::memory_order_acquire); }

void begin(py::buffer map, const std::vector<uint64_t>& at, const std::vector<int>& codes, py::dict dtypes,
           py::object books) {
  if (at.size() != 20 || codes.size() != 11) throw std::invalid_argument("another layout than this was built for");
  const Layout layout{at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8], at[9],
                      at[10], at[11], at[12], at[13], at[14], at[15], at[16], at[17], at[18], at[19]};
  Codes known;
  known.send = static_cast<uint8_t>(codes[0]);
  known.recv = static_cast<uint8_t>(codes[1]);
  known.all_reduce = static_cast<uint8_t>(codes[2]);
  known.all_gather = static_cast<uint8_t>(codes[3]);
  known.wait_collective = static_cast<uint8_t>(codes[4]);
  known.wait_send = static_cast<uint8_t>(codes[5]);
  known.wait_recv = static_cast<uint8_t>(codes[6]);
  known.reduce_ops = codes[7];
  known.other_dtype = codes[8];
  known.meeting = codes[9];
  known.barrier = codes[10];
  auto state = std::make_unique<State>(std::move(map), layout, known, std::move(books));
  state->dtypes.assign(static_cast<size_t>(c10::ScalarType::NumOptions), static_cast<uint8_t>(known.other_dtype));
  for (const auto& [dtype, code] : dtypes) {
    const auto type = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
    state->dtypes[static_cast<size_t>(type)] = code.cast<uint8_t>();
  }
  g_state.store(state.release(), std::memory_order_release);
}

void end() {
  State* state = g_state.exchange(nullptr);
  if (state == nullptr) return;
  std::vector<Held> dropped;  // with the GIL held, and no lock
  for (const auto& group : state->all_groups) {
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

// In a forked child: be off, and touch nothing that the parent may have held locked.
void forget() { g_state.store(nullptr); }

using Row = std::tuple<std::string, int, int, int, int, int, int, bool, bool>;

void install(const std::vector<Row>& ops) {
  auto library = std::make_unique<torch::Library>(torch::Library::IMPL, "c10d", c10::DispatchKey::BackendSelect,
                                                  __FILE__, __LINE__);
  for (const auto& [name, op, sized_by, group, root, reduce_op, async_op, has_size, is_p2p] : ops) {
    const Spec spec{op, sized_by, group, root, reduce_op, async_op, has_size, is_p2p};
    library->impl(name.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(spec)));
  }
  auto functional = std::make_unique<torch::Library>(torch::Library::IMPL, "_c10d_functional",
                                                     c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
  functional->impl("wait_tensor", torch::CppFunction::makeFromBoxedFunctor(std::make_unique<WaitTensor>()));
  g_libraries.push_back(std::move(library));
  g_libraries.push_back(std::move(functional));
}

void uninstall() { g_libraries.clear(); }

py::object make_wait(const py::object& original) {
  PyObject* function = PyCFunction_New(&g_wait_method, original.ptr());
  if (function == nullptr) throw py::error_already_set();
  PyObject* method = PyInstanceMethod_New(function);
  Py_DECREF(function);
  if (method == nullptr) throw py::error_already_set();
  g_newest_original = original.ptr();
  return py::reinterpret_steal<py::object>(method);
}

int thread_row() {
  State* state = state_or_null();
  return state == nullptr ? -1 : thread_of(*state).row;
}

uint32_t site_here() {
  State* state = state_or_null();
  return state == nullptr ? 0 : state->sites.here(at::GradMode::is_enabled());
}

void enter_wait(uint8_t kind, uint32_t site, uint32_t number) {
  State* state = state_or_null();
  if (state != nullptr) enter(*state, thread_of(*state), kind, site, nullptr, number);
}

void leave_wait() {
  State* state = state_or_null();
  if (state != nullptr) leave(*state, thread_of(*state));
}

long enter_region() {
  State* state = state_or_null();
  if (state == nullptr) return -1;
  Thread& thread = thread_of(*state);
  return std::exchange(thread.region, static_cast<long>(thread.waits.size()));
}

void leave_region(long outer) {
  State* state = state_or_null();
  if (state == nullptr) return;
  Thread& thread = thread_of(*state);
  if (thread.region >= 0) thread.waits.resize(std::min(thread.waits.size(), static_cast<size_t>(thread.region)));
  thread.region = outer;
  thread.region_op = Issued();
  if (thread.row >= 0) state->ring.set_wait(thread.row, thread.waits.empty() ? Wait() : thread.waits.back());
}

uint32_t set_label(uint32_t label) {
  State* state = state_or_null();
  if (state == nullptr) return 0;
  return std::exchange(thread_of(*state).label, label);
}

std::vector<Group*> living(State& state) {
  std::lock_guard<std::mutex> guard(state.groups_lock);
  std::vector<Group*> found;
  for (const auto& group : state.all_groups) {
    if (!group->dead) found.push_back(group.get());
  }
  return found;
}

void forget_group(const std::string& name) {
  State* state = state_or_null();
  if (state == nullptr) return;
  for (Group* group : living(*state)) {
    if (group->name != name) continue;
    drain(*state, *group);
    group->dead = true;
    std::vector<Held> left;  // about to be through: a backend tells us later than it tells whoever waited
    {
      std::lock_guard<std::mutex> guard(group->lock);
      for (Held& held : group->works) left.push_back(std::move(held));
      for (Held& held : group->p2p_works) left.push_back(std::move(held));
      group->works.clear();
      group->p2p_works.clear();
    }
    retire(*state, left);
  }
}

void drain_all() {
  State* state = state_or_null();
  if (state == nullptr) return;
  {
    py::gil_scoped_release free;
    for (Group* group : living(*state)) drain(*state, *group);
  }
  sweep(*state);  // with the GIL: what is dropped here may hold Python objects
}

void set_buckets(const std::string& name, const std::vector<std::pair<uint64_t, uint32_t>>& buckets) {
  State* state = state_or_null();
  if (state == nullptr) return;
  for (Group* group : living(*state)) {
    if (group->name != name) continue;
    std::lock_guard<std::mutex> guard(group->lock);
    group->buckets = buckets;
    group->next_bucket = 0;
  }
}

void begin_backward() {
  State* state = state_or_null();
  if (state == nullptr) return;
  for (Group* group : living(*state)) {
    std::lock_guard<std::mutex> guard(group->lock);
    group->next_bucket = 0;
  }
}

// For groups on a device: how far the backend says it is.
void set_completed(const std::string& name, uint64_t seq) {
  State* state = state_or_null();
  if (state == nullptr) return;
  for (Group* group : living(*state)) {
    if (group->name != name) continue;
    std::lock_guard<std::mutex> guard(group->lock);
    if (seq <= group->completed || seq > group->enqueued) continue;
    group->completed = seq;
    show_done(*state, *group);
  }
}

}  // namespace
}  // namespace ncclwatch

PYBIND11_MODULE(_ncclwatch_native, module) {
  using namespace ncclwatch;
  module.def("begin", &begin);
  module.def("end", &end);
  module.def("forget", &forget);
  module.def("install", &install);
  module.def("uninstall", &uninstall);
  module.def("make_wait", &make_wait);
  module.def("thread_row", &thread_row);
  module.def("site_here", &site_here);
  module.def("enter_wait", &enter_wait);
  module.def("leave_wait", &leave_wait);
  module.def("enter_region", &enter_region);
  module.def("leave_region", &leave_region);
  module.def("set_label", &set_label);
  module.def("forget_group", &forget_group);
  module.def("drain_all", &drain_all);
  module.def("set_buckets", &set_buckets);
  module.def("begin_backward", &begin_backward);
  module.def("set_completed", &set_completed);
}
