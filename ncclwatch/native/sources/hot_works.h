// Keeps the works of operations until they are complete, and says who waits for one: the C++ twin of Recorder.track,
// drain and meter, and of the waits of ncclwatch/rank/patches/collectives.py. See hot_path.h.

#pragma once

#include <vector>

#include "hot_path.h"

namespace ncclwatch {

// Of ncclwatch/rank/recorder.py.
constexpr Py_ssize_t kWorksMax = 256, kDrainAbove = 8, kNewestKept = 3;
constexpr int64_t kRetiredNumelMax = 262'144;
constexpr double kRetiredS = 2.0;

// Holds a lock of Python's for as long as it lives, unless somebody else does.
class Held {
 public:
  explicit Held(PyObject* lock) : lock_(lock) {
    bool mine = false;
    failed_ = !truth_of(Ref(PyObject_CallMethodOneArg(lock, g_names.acquire, Py_False)), &mine);
    if (!mine) lock_ = nullptr;
  }
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  ~Held() {
    if (lock_ == nullptr) return;
    const Kept kept;
    if (Ref(PyObject_CallMethodNoArgs(lock_, g_names.release)) == nullptr) PyErr_Clear();
  }

  bool failed() const { return failed_; }
  bool is_mine() const { return lock_ != nullptr; }

 private:
  PyObject* lock_;
  bool failed_ = false;
};

inline double seconds(uint64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e9; }

inline bool signed_of(PyObject* object, int64_t* found) {
  uint64_t value = 0;
  if (!number_of(object, &value)) return false;
  *found = static_cast<int64_t>(value);
  return true;
}

inline bool signed_in(PyObject* object, PyObject* name, int64_t* found) {
  return signed_of(Ref(PyObject_GetAttr(object, name)), found);
}

// A place of a tuple that Python has put into a deque.
inline PyObject* part_of(PyObject* entry, int index) {
  if (entry == nullptr) return nullptr;
  if (PyTuple_Check(entry)) return PyTuple_GetItem(entry, index);
  PyErr_SetString(PyExc_TypeError, "a tuple is asked for");
  return nullptr;
}

// -- works that are through ----------------------------------------------------------------------------

struct Weighed {
  int64_t count = 0, numel = 0;
};

// Whether the oldest of the retired works may go.
inline bool may_go(PyObject* retired, const Weighed& weighed, double old, bool* go) {
  *go = false;
  if (weighed.count == 0) return true;
  *go = (weighed.count > kNewestKept && weighed.numel > kRetiredNumelMax) || weighed.count > kWorksMax;
  if (*go) return true;
  const Ref oldest(PySequence_GetItem(retired, 0));
  PyObject* at = part_of(oldest, 0);
  const double since = at == nullptr ? -1.0 : PyFloat_AsDouble(at);
  *go = since < old;
  return at != nullptr && (since != -1.0 || PyErr_Occurred() == nullptr);
}

inline bool weigh(PyObject* retired, Weighed* weighed) {
  for (Py_ssize_t size = PySequence_Size(retired); weighed->count < size; size = PySequence_Size(retired)) {
    const Ref entry(PySequence_GetItem(retired, static_cast<Py_ssize_t>(weighed->count)));
    int64_t numel = 0;
    if (!signed_of(part_of(entry, 1), &numel)) return false;
    weighed->numel += numel;
    ++weighed->count;
  }
  return PyErr_Occurred() == nullptr;
}

// Takes off what may go.
inline bool let_go(PyObject* retired, Weighed* weighed, std::vector<Ref>* gone) {
  const double old = seconds(now_ns()) - kRetiredS;
  for (bool go = true;;) {
    if (!may_go(retired, *weighed, old, &go)) return false;
    if (!go) return true;
    Ref entry(PyObject_CallMethodNoArgs(retired, g_names.popleft));
    int64_t numel = 0;
    if (!signed_of(part_of(entry, 1), &numel)) return false;
    --weighed->count;
    weighed->numel -= numel;
    gone->push_back(std::move(entry));
  }
}

// See Recorder._sweep.
inline bool sweep(const Hot& hot, PyObject* recorder) {
  std::vector<Ref> gone;  // what is dropped may run anything: the last of all
  const Held held(hot.sweeping);
  if (!held.is_mine()) return !held.failed();
  Weighed weighed;
  if (!signed_in(recorder, g_names._weighed, &weighed.count) ||
      !signed_in(recorder, g_names._retired_numel, &weighed.numel)) {
    return false;
  }
  const bool whole = weigh(hot.retired, &weighed) && let_go(hot.retired, &weighed, &gone);
  const Kept kept;
  return set_signed(recorder, g_names._weighed, weighed.count) &&
         set_signed(recorder, g_names._retired_numel, weighed.numel) && whole;
}

// See Recorder._retire.
inline bool retire(const Hot& hot, PyObject* recorder, PyObject* issued, PyObject* work) {
  bool on_host = false;
  if (!truth_in(issued, g_names.on_host, &on_host)) return false;
  if (on_host) {
    const Ref numel(PyObject_GetAttr(issued, g_names.numel)), at(PyFloat_FromDouble(seconds(now_ns())));
    if (numel == nullptr || at == nullptr) return false;
    const Ref entry(PyTuple_Pack(3, static_cast<PyObject*>(at), static_cast<PyObject*>(numel), work));
    if (entry == nullptr || Ref(PyObject_CallMethodOneArg(hot.retired, g_names.append, entry)) == nullptr) return false;
  }
  return sweep(hot, recorder);
}

inline bool is_through(PyObject* issued, PyObject* work, bool* through) {
  if (!truth_in(issued, g_names.done, through)) return false;
  return *through || truth_of(Ref(PyObject_CallMethodNoArgs(work, g_names.is_completed)), through);
}

inline bool forget_work(const Hot& hot, PyObject* work) {
  const Ref key(PyLong_FromVoidPtr(work));
  if (key == nullptr) return false;
  const Ref known = Ref::to(PyDict_GetItemWithError(hot.open_works, key));
  return known == nullptr ? PyErr_Occurred() == nullptr : PyDict_DelItem(hot.open_works, key) == 0;
}

// Takes the oldest work of a group that is through, or is one too many; `more`: whether there was one.
inline bool take_first(const Hot& hot, PyObject* recorder, PyObject* works, uint64_t* completed, bool* more) {
  *more = false;
  const Py_ssize_t size = PySequence_Size(works);
  if (size <= 0) return size == 0;
  {
    const Ref first(PySequence_GetItem(works, 0));
    PyObject *issued = part_of(first, 0), *work = part_of(first, 1);
    if (issued == nullptr || work == nullptr || !is_through(issued, work, more)) return false;
    *more = *more || size > kWorksMax;
    if (!*more) return true;
  }
  const Ref entry(PyObject_CallMethodNoArgs(works, g_names.popleft));
  PyObject *issued = part_of(entry, 0), *work = part_of(entry, 1);
  uint64_t seq = 0;
  if (issued == nullptr || work == nullptr || !forget_work(hot, work) || !retire(hot, recorder, issued, work) ||
      !number_in(issued, g_names.seq, &seq)) {
    return false;
  }
  if (seq > *completed) *completed = seq;
  return true;
}

// See Recorder._complete.
inline bool complete(Hot& hot, PyObject* group, uint64_t seq) {
  uint64_t completed = 0, number = 0, newest = 0;
  if (!number_in(group, g_names.completed, &completed) || !number_in(group, g_names.number, &number) ||
      !number_in(group, g_names.newest_event, &newest)) {
    return false;
  }
  if (seq > completed) {
    completed = seq;
    if (!set_number(group, g_names.completed, completed)) return false;
  }
  if (number != kNoGroup) hot.ring.set_group_done(static_cast<int>(number), completed, static_cast<int64_t>(newest));
  return true;
}

// See Recorder.drain.
inline bool drain(Hot& hot, PyObject* recorder, PyObject* group) {
  const Ref lock(PyObject_GetAttr(group, g_names.draining));
  if (lock == nullptr) return false;
  const Held held(lock);
  if (!held.is_mine()) return !held.failed();
  const Ref works(PyObject_GetAttr(group, g_names.works));
  uint64_t before = 0, completed = 0;
  if (works == nullptr || !number_in(group, g_names.completed, &completed)) return false;
  for (bool more = true; more;) {
    if (!take_first(hot, recorder, works, &completed, &more)) return false;
  }
  if (!number_in(group, g_names.completed, &before)) return false;
  if (completed != before && !complete(hot, group, completed)) return false;
  bool others = false;
  if (!truth_in(group, g_names.p2p_works, &others)) return false;
  if (!others) return true;
  const Ref some(PyLong_FromSsize_t(kWorksMax));
  return some != nullptr &&
         Ref(PyObject_CallMethodObjArgs(recorder, g_names._drain_p2p, group, static_cast<PyObject*>(some), nullptr)) !=
             nullptr;
}

// -- works that are under way --------------------------------------------------------------------------

// See Recorder._know.
inline bool know(const Hot& hot, PyObject* issued, PyObject* work) {
  const Ref key(PyLong_FromVoidPtr(work));
  if (key == nullptr || PyDict_SetItem(hot.open_works, key, issued) != 0) return false;
  const Ref entry(PyTuple_Pack(2, static_cast<PyObject*>(key), issued));
  if (entry == nullptr || Ref(PyObject_CallMethodOneArg(hot.unheld, g_names.append, entry)) == nullptr) return false;
  Py_ssize_t size = PySequence_Size(hot.unheld);
  for (; size > kWorksMax; size = PySequence_Size(hot.unheld)) {
    const Ref oldest(PyObject_CallMethodNoArgs(hot.unheld, g_names.popleft));
    PyObject *known = part_of(oldest, 0), *whose = part_of(oldest, 1);
    if (known == nullptr || whose == nullptr) return false;
    PyObject* found = PyDict_GetItemWithError(hot.open_works, known);
    if (found == nullptr ? PyErr_Occurred() != nullptr : found == whose && PyDict_DelItem(hot.open_works, known) != 0) {
      return false;
    }
  }
  return size >= 0;
}

inline bool hold(Hot& hot, PyObject* recorder, PyObject* issued, PyObject* group, PyObject* works, PyObject* work) {
  const Ref key(PyLong_FromVoidPtr(work)), entry(PyTuple_Pack(2, issued, work));
  if (key == nullptr || entry == nullptr || PyDict_SetItem(hot.open_works, key, issued) != 0) return false;
  if (Ref(PyObject_CallMethodOneArg(works, g_names.append, entry)) == nullptr) return false;
  const Py_ssize_t size = PySequence_Size(works);
  if (size <= kDrainAbove) return size >= 0;
  return drain(hot, recorder, group);
}

// See Recorder.track.
inline bool track(Hot& hot, PyObject* recorder, PyObject* issued, PyObject* work) {
  bool by_account = false, on_host = false, host_waits = false;
  uint64_t kind = 0;
  const Ref group(PyObject_GetAttr(issued, g_names.group));
  if (group == nullptr || !truth_in(group, g_names.by_account, &by_account) ||
      !truth_in(issued, g_names.on_host, &on_host) || !truth_in(group, g_names.host_waits, &host_waits) ||
      !number_in(issued, g_names.kind, &kind)) {
    return false;
  }
  if (by_account && !on_host) return work == Py_None || know(hot, issued, work);
  const Ref works(PyObject_GetAttr(group, g_names.works));
  const Py_ssize_t size = works == nullptr ? -1 : PySequence_Size(works);
  if (size < 0) return false;
  if (work != Py_None && kind == static_cast<uint64_t>(hot.codes.wait_collective) && (host_waits || size < kWorksMax)) {
    return hold(hot, recorder, issued, group, works, work);
  }
  return Ref(PyObject_CallMethodObjArgs(recorder, g_names.track, issued, work, nullptr)) != nullptr;
}

// -- waits for a work ----------------------------------------------------------------------------------

// See Recorder.meter.
inline bool meter(Hot& hot, PyObject* issued, PyObject* group, uint64_t blocked_ns) {
  bool host_waits = false, on_host = false;
  uint64_t kind = 0, op = 0, number = 0, seq = 0;
  if (!truth_in(group, g_names.host_waits, &host_waits)) return false;
  if (!host_waits) return true;
  if (!number_in(issued, g_names.kind, &kind) || !number_in(issued, g_names.op, &op) ||
      !truth_in(issued, g_names.on_host, &on_host) || !number_in(issued, g_names.seq, &seq) ||
      !number_in(group, g_names.number, &number)) {
    return false;
  }
  if (kind != static_cast<uint64_t>(hot.codes.wait_collective)) {
    hot.ring.add_time(hot.ring.layout().word_peers_waited, blocked_ns);
  } else if ((hot.codes.meeting >> op & 1) != 0 && (on_host || op == static_cast<uint64_t>(hot.codes.barrier))) {
    hot.ring.meter(static_cast<int>(number), seq, blocked_ns);
  }
  return true;
}

// The site of a wait for an operation, whose line calls `skipped` frames out.
inline bool site_of_wait(Hot& hot, PyObject* issued, int skipped, uint64_t* found) {
  uint32_t site = 0;
  bool labelled = false;
  if (!hot.ways.here(hot.sites, skipped, &site)) return false;
  *found = site;
  if (site == 0) return number_in(issued, g_names.site, found);
  const Ref label(PyObject_GetAttr(issued, g_names.label));
  if (!truth_of(label, &labelled)) return false;
  if (!labelled) return true;
  const Ref number(PyLong_FromUnsignedLong(site));
  return number != nullptr &&
         number_of(Ref(PyObject_CallMethodObjArgs(hot.sites, g_names.labelled, static_cast<PyObject*>(number),
                                                  static_cast<PyObject*>(label), nullptr)),
                   found);
}

// Says that this thread waits for an operation; returns the wait around it, nullptr with an exception set.
inline Ref enter_work(Hot& hot, PyObject* recorder, PyObject* issued, int skipped) {
  uint64_t row = 0, site = 0, stamp = 0, since = 0, seq = 0, number = 0, kind = 0, op = 0, peer = 0;
  const Ref state = state_in(hot), group(PyObject_GetAttr(issued, g_names.group));
  if (state == nullptr || group == nullptr || !site_of_wait(hot, issued, skipped, &site)) return Ref();
  if (!number_in_dict(state, g_names.row, &row)) return Ref();
  if (static_cast<int64_t>(row) == kUnseen) {
    if (Ref(PyObject_CallMethodNoArgs(recorder, g_names.thread)) == nullptr) return Ref();
    if (!number_in_dict(state, g_names.row, &row)) return Ref();
  }
  Ref outer = Ref::to(PyDict_GetItemWithError(state, g_names.wait));
  if (outer == nullptr || static_cast<int64_t>(row) < 0) return outer;
  if (!number_in(issued, g_names.seq, &seq) || !number_in(group, g_names.number, &number) ||
      !number_in(issued, g_names.kind, &kind) || !number_in(issued, g_names.op, &op) ||
      !number_in(issued, g_names.peer, &peer) || !next_of(hot.wait_stamps, &stamp) || !hot.now(&since)) {
    return Ref();
  }
  Wait wait = made_wait(stamp, since, site, seq);
  wait.group = static_cast<uint16_t>(number);
  wait.kind = static_cast<uint8_t>(kind);
  wait.op = static_cast<uint8_t>(op);
  wait.peer = static_cast<int32_t>(peer);
  return put_wait(hot, state, row, wait) ? std::move(outer) : Ref();
}

// The operation has been waited for. Of messages on a device Python sees to it.
inline bool note_waited(Hot& hot, PyObject* recorder, PyObject* issued, uint64_t began_ns) {
  const Ref on_host(PyObject_GetAttr(issued, g_names.on_host)), group(PyObject_GetAttr(issued, g_names.group));
  uint64_t kind = 0;
  bool by_account = false;
  if (on_host == nullptr || group == nullptr || PyObject_SetAttr(issued, g_names.done, on_host) != 0 ||
      !number_in(issued, g_names.kind, &kind) || !truth_in(group, g_names.by_account, &by_account)) {
    return false;
  }
  if (!by_account || kind == static_cast<uint64_t>(hot.codes.wait_collective)) {
    return meter(hot, issued, group, now_ns() - began_ns);
  }
  const Ref blocked(PyLong_FromUnsignedLongLong(now_ns() - began_ns));
  return blocked != nullptr && Ref(PyObject_CallMethodObjArgs(recorder, g_names.meter, issued,
                                                              static_cast<PyObject*>(blocked), nullptr)) != nullptr;
}

inline bool leave_work(Hot& hot, PyObject* outer) {
  const Ref state = state_in(hot);
  return state != nullptr && leave(hot, state, outer);
}

inline bool drain_its_group(Hot& hot, PyObject* recorder, PyObject* issued) {
  const Ref group(PyObject_GetAttr(issued, g_names.group));
  return group != nullptr && drain(hot, recorder, group);
}

// Calls what waits for an operation; `settle` is asked about what goes wrong around it.
template <typename Call>
PyObject* watched(Hot& hot, PyObject* recorder, PyObject* issued, PyObject* settle, int skipped, Call call) {
  const Ref outer = enter_work(hot, recorder, issued, skipped);
  if (outer == nullptr && !settled(settle, recorder)) return nullptr;
  const uint64_t began_ns = now_ns();
  Ref result(call());
  if (result != nullptr && !note_waited(hot, recorder, issued, began_ns) && !settled(settle, recorder)) result = Ref();
  {
    const Kept kept;
    if (outer != nullptr && !leave_work(hot, outer)) settled(settle, recorder);
  }
  {
    const Kept kept;
    if (!drain_its_group(hot, recorder, issued)) settled(settle, recorder);
  }
  return PyErr_Occurred() != nullptr ? nullptr : result.release();
}

// What a wait of torch's is wrapped with.
struct Waiter {
  Ref current, original, settle;
  Ref after;  // of a kernel: the keys of the kernels behind it
};

constexpr const char* kWaiterName = "ncclwatch.waiter";

// Work.wait
inline PyObject* wait_for_work(PyObject* self, PyObject* const* given, Py_ssize_t count, PyObject* names) {
  const auto* waiter = static_cast<const Waiter*>(PyCapsule_GetPointer(self, kWaiterName));
  if (waiter == nullptr) return nullptr;
  const auto call = [&] { return PyObject_Vectorcall(waiter->original, given, static_cast<size_t>(count), names); };
  const Ref recorder(PyObject_CallNoArgs(waiter->current));
  if (recorder == nullptr) return nullptr;
  if (recorder == Py_None || count == 0) return call();
  Hot* hot = hot_of(recorder);
  const Ref key(hot == nullptr ? nullptr : PyLong_FromVoidPtr(given[0]));
  const Ref issued = Ref::to(key == nullptr ? nullptr : PyDict_GetItemWithError(hot->open_works, key));
  if (PyErr_Occurred() != nullptr && !settled(waiter->settle, recorder)) return nullptr;
  return issued == nullptr ? call() : watched(*hot, recorder, issued, waiter->settle, 0, call);
}

// Whether what this thread issued last is still to be waited for: `newest` is left empty where not.
inline bool find_newest(const Hot& hot, PyObject* recorder, Ref* newest) {
  const Ref state = state_in(hot);
  uint64_t row = 0;
  if (state == nullptr || !number_in_dict(state, g_names.row, &row)) return false;
  // A thread that is not Python's own: what it has issued is kept for it by the recorder.
  if (static_cast<int64_t>(row) == kUnseen && Ref(PyObject_CallMethodNoArgs(recorder, g_names.thread)) == nullptr) {
    return false;
  }
  Ref found = Ref::to(state == nullptr ? nullptr : PyDict_GetItemWithError(state, g_names.newest));
  if (found == nullptr || found == Py_None) return found != nullptr || PyErr_Occurred() == nullptr;
  uint64_t seq = 0, completed = 0;
  const Ref group(PyObject_GetAttr(found, g_names.group));
  if (group == nullptr || !number_in(found, g_names.seq, &seq) || !number_in(group, g_names.completed, &completed)) {
    return false;
  }
  if (seq > completed) *newest = std::move(found);
  return true;
}

// The arguments of a kernel with the keys that the next one is found by.
inline Ref handed_on(PyObject* given, PyObject* after) {
  const Py_ssize_t count = PyTuple_GET_SIZE(given);
  if (count == 0) {
    PyErr_SetString(PyExc_TypeError, "a set of keys is asked for");
    return Ref();
  }
  Ref keys(PyNumber_And(PyTuple_GET_ITEM(given, 0), after));
  Ref handed(keys == nullptr ? nullptr : PyTuple_New(count));
  if (handed == nullptr) return handed;
  PyTuple_SET_ITEM(static_cast<PyObject*>(handed), 0, keys.release());
  for (Py_ssize_t n = 1; n < count; ++n) {
    PyTuple_SET_ITEM(static_cast<PyObject*>(handed), n, Ref::to(PyTuple_GET_ITEM(given, n)).release());
  }
  return handed;
}

// The wait of functional collectives; it names no work, so the newest one of this thread is meant.
inline PyObject* wait_tensor(PyObject* self, PyObject* given, PyObject* names) {
  const auto* waiter = static_cast<const Waiter*>(PyCapsule_GetPointer(self, kWaiterName));
  const Ref handed(waiter == nullptr ? Ref() : handed_on(given, waiter->after));
  if (handed == nullptr) return nullptr;
  const auto call = [&] { return PyObject_Call(waiter->original, handed, names); };
  const Ref recorder(PyObject_CallNoArgs(waiter->current));
  if (recorder == nullptr) return nullptr;
  if (recorder == Py_None) return call();
  Hot* hot = hot_of(recorder);
  Ref newest;
  if ((hot == nullptr || !find_newest(*hot, recorder, &newest)) && !settled(waiter->settle, recorder)) return nullptr;
  return newest == nullptr ? call() : watched(*hot, recorder, newest, waiter->settle, 0, call);
}

}  // namespace ncclwatch
