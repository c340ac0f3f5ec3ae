// What the hot path of the recorder in Python stands on, where no torch side fits: `hot_issue.h` records operations, and
// `hot_works.h` their works and the waits for them. All three are the C++ twin of ncclwatch/rank/patches/collectives.py,
// and of what that calls of ncclwatch/rank/recorder.py.
//
// Everything that is known stays where the recorder in Python keeps it: this reads and sets the attributes of its
// objects, draws from its counters, and writes to its ring. So what is rare is left to Python. The GIL is held
// throughout.

#pragma once

#include <Python.h>

#include <cstdint>
#include <utility>

#include "frames.h"
#include "record.h"

namespace ncclwatch {

// A reference of ours.
class Ref {
 public:
  explicit Ref(PyObject* stolen = nullptr) : object_(stolen) {}
  ~Ref() { Py_XDECREF(object_); }
  Ref(Ref&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    return *this;
  }

  static Ref to(PyObject* borrowed) {
    Py_XINCREF(borrowed);
    return Ref(borrowed);
  }

  operator PyObject*() const { return object_; }
  PyObject* release() { return std::exchange(object_, nullptr); }

 private:
  PyObject* object_;
};

#define NCCLWATCH_NAMES(each)                                                                                      \
  each(__dict__) each(_drain_p2p) each(_note_exception) each(_others) each(_retired) each(_retired_numel)          \
  each(_sweeping) each(_unheld) each(_users) each(_weighed) each(acquire) each(append) each(batch_word)            \
  each(before) each(buckets) each(by_account) each(completed) each(device) each(done) each(draining)               \
  each(dtype) each(enqueued) each(forwards) each(get_device) each(grad_mode) each(group) each(group_name)          \
  each(groups) each(here) each(host_waits) each(hot) each(inside) each(is_completed) each(is_cpu)                  \
  each(is_cuda) each(is_meta) each(issued) each(kind) each(label) each(labelled) each(leave_issue) each(meter)     \
  each(newest) each(newest_event) each(next_label) each(number) each(numel) each(of_backward) each(on_host)        \
  each(op) each(open_works) each(p2p_works) each(peer) each(popleft) each(prefix) each(ranks) each(release)        \
  each(row) each(seq) each(seqs) each(site) each(sites) each(state) each(thread) each(track) each(wait)            \
  each(works)

struct Names {
#define NCCLWATCH_EACH(name) PyObject* name;
  NCCLWATCH_NAMES(NCCLWATCH_EACH)
#undef NCCLWATCH_EACH
};

inline Names g_names;

inline bool intern_names() {
  if (g_names.works != nullptr) return true;
#define NCCLWATCH_EACH(name) \
  if ((g_names.name = PyUnicode_InternFromString(#name)) == nullptr) return false;
  NCCLWATCH_NAMES(NCCLWATCH_EACH)
#undef NCCLWATCH_EACH
  return true;
}

// Whole numbers as Python has them, of any sign.
inline bool number_of(PyObject* object, uint64_t* found) {
  if (object == nullptr) return false;
  *found = PyLong_AsUnsignedLongLongMask(object);
  return *found != ~uint64_t{0} || PyErr_Occurred() == nullptr;
}

inline bool number_in(PyObject* object, PyObject* name, uint64_t* found) {
  return number_of(Ref(PyObject_GetAttr(object, name)), found);
}

inline bool number_in_dict(PyObject* dict, PyObject* name, uint64_t* found) {
  PyObject* value = PyDict_GetItemWithError(dict, name);
  if (value == nullptr && PyErr_Occurred() == nullptr) PyErr_SetObject(PyExc_KeyError, name);
  return number_of(value, found);
}

inline bool truth_of(PyObject* object, bool* found) {
  if (object == nullptr) return false;
  const int said = PyObject_IsTrue(object);
  *found = said == 1;
  return said >= 0;
}

inline bool truth_in(PyObject* object, PyObject* name, bool* found) {
  return truth_of(Ref(PyObject_GetAttr(object, name)), found);
}

inline bool set_number(PyObject* object, PyObject* name, uint64_t value) {
  const Ref number(PyLong_FromUnsignedLongLong(value));
  return number != nullptr && PyObject_SetAttr(object, name, number) == 0;
}

inline bool set_signed(PyObject* object, PyObject* name, int64_t value) {
  const Ref number(PyLong_FromLongLong(value));
  return number != nullptr && PyObject_SetAttr(object, name, number) == 0;
}

// The ways that have been met: what Sites.here of call_sites.py has answered, found again without it.
class Ways {
 public:
  Ways() = default;
  Ways(const Ways&) = delete;
  Ways& operator=(const Ways&) = delete;
  ~Ways() { forget_codes(); }

  // The id of the user's line that led to the frame `skipped` frames out; false with an exception set.
  bool here(PyObject* sites, int skipped, uint32_t* found) {
#ifdef NCCLWATCH_OWN_FRAMES
    bool mode = false;
    const Ref ask_mode(PyObject_GetAttr(sites, g_names.grad_mode));
    if (ask_mode == nullptr || !truth_of(Ref(PyObject_CallNoArgs(ask_mode)), &mode)) return false;
    Route route;
    const bool met = read(skipped, &route, [&](PyCodeObject* code, uint32_t* users) {
      return codes_.find(reinterpret_cast<uintptr_t>(code), 0, users);
    });
    if (met && route.count == 0) {
      *found = 0;
      return true;
    }
    if (met && ways_.find(route.key(), route.more(mode), found)) return true;
    if (!ask(sites, skipped, found)) return false;
    learn(sites, skipped, mode, *found);
    return true;
#else
    return ask(sites, skipped, found);
#endif
  }

 private:
  static bool ask(PyObject* sites, int skipped, uint32_t* found) {
    const Ref depth(PyLong_FromLong(skipped + 1));
    if (depth == nullptr) return false;
    uint64_t number = 0;
    if (!number_of(Ref(PyObject_CallMethodOneArg(sites, g_names.here, depth)), &number)) return false;
    *found = static_cast<uint32_t>(number);
    return true;
  }

#ifdef NCCLWATCH_OWN_FRAMES
  // Reads the way of this thread; false where `whose(code, users)` does not know one on it.
  template <typename Whose>
  static bool read(int skipped, Route* route, Whose whose) {
    bool met = true;
    walk(PyThreadState_Get(), [&](PyCodeObject* code, int at) {
      if (skipped > 0) {
        --skipped;
        return true;
      }
      uint32_t users = 0;
      met = whose(code, &users);
      if (!met) return false;
      route->pass(code, at, users != 0);
      return route->wants_more();
    });
    return met;
  }

  void learn(PyObject* sites, int skipped, bool mode, uint32_t id) {
    if (codes_.is_full()) {  // a program may make code for ever: what is still in use comes back
      ways_.clear();
      forget_codes();
    }
    if (ways_.is_full()) ways_.clear();
    const Ref users(PyObject_GetAttr(sites, g_names._users)), others(PyObject_GetAttr(sites, g_names._others));
    Route route;
    if (users != nullptr && others != nullptr &&
        read(skipped, &route, [&](PyCodeObject* code, uint32_t* mine) { return meet(code, users, others, mine); }) &&
        route.count != 0) {
      ways_.add(route.key(), route.more(mode), id);
    }
    PyErr_Clear();
  }

  bool meet(PyCodeObject* code, PyObject* users, PyObject* others, uint32_t* mine) {
    const auto key = reinterpret_cast<uintptr_t>(code);
    if (codes_.find(key, 0, mine)) return true;
    const Ref number(PyLong_FromVoidPtr(code));
    if (number == nullptr) return false;
    *mine = PyDict_Contains(users, number) == 1;
    if (*mine == 0 && PyDict_Contains(others, number) != 1) return false;
    if (!codes_.add(key, 0, *mine)) return false;
    Py_INCREF(code);  // as long as its address is what it is known by
    return true;
  }
#endif

  void forget_codes() {
    for (const uintptr_t code : codes_.clear()) Py_DECREF(reinterpret_cast<PyObject*>(code));
  }

  Known<uint32_t> codes_;
  Known<uint32_t> ways_;
};

// What one Recorder keeps, and its ring.
struct Hot {
  Hot(const Py_buffer& memory, const Layout& layout, const Codes& known)
      : map(memory), ring(static_cast<char*>(memory.buf), layout), codes(known) {}

  Py_buffer map;
  Ring ring;
  Codes codes;
  Ways ways;
  Ref groups, thread, sites, open_works, retired, sweeping, unheld;
  Ref events, wait_stamps;  // its counters
  Ref clock;                // nullptr: the one of this machine

  bool now(uint64_t* found) const {
    if (clock != nullptr) return number_of(Ref(PyObject_CallNoArgs(clock)), found);
    *found = now_ns();
    return true;
  }
};

constexpr const char* kHotName = "ncclwatch.hot";

inline Hot* hot_of(PyObject* recorder) {
  const Ref capsule(PyObject_GetAttr(recorder, g_names.hot));
  return capsule == nullptr ? nullptr : static_cast<Hot*>(PyCapsule_GetPointer(capsule, kHotName));
}

constexpr uint64_t kNoGroup = 0xFFFF, kNoThread = 0xFF, kInOrder = 1u << 30;
constexpr int64_t kUnseen = -1;  // as the row of a thread, of ncclwatch/rank/operations.py

// -- the exception that is set ------------------------------------------------------------------------

// Takes it.
inline Ref taken_error() {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  if (value != nullptr && trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  return Ref(value);
}

inline void raise_error(Ref error) {
  PyObject* value = error.release();
  PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(value));
  Py_INCREF(type);
  PyErr_Restore(type, value, PyException_GetTraceback(value));
}

// Keeps it for as long as this lives; one that is set meanwhile goes before it, as in a `finally`.
class Kept {
 public:
  Kept() : error_(PyErr_Occurred() != nullptr ? taken_error() : Ref()) {}
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  ~Kept() {
    if (error_ == nullptr) return;
    if (PyErr_Occurred() != nullptr) {
      Ref later = taken_error();
      if (later != error_) PyException_SetContext(later, error_.release());
      raise_error(std::move(later));
    } else {
      raise_error(std::move(error_));
    }
  }

 private:
  Ref error_;
};

// Asks Python about it: settle(recorder, error). True where it was ours, and is counted; what is the program's is raised.
inline bool settled(PyObject* settle, PyObject* recorder) {
  const Ref error = taken_error();
  return Ref(PyObject_CallFunctionObjArgs(settle, recorder, static_cast<PyObject*>(error), nullptr)) != nullptr;
}

// -- waits --------------------------------------------------------------------------------------------

// A thread's own dictionary.
inline Ref state_in(const Hot& hot) { return Ref(PyObject_GetAttr(hot.thread, g_names.__dict__)); }

inline Wait made_wait(uint64_t stamp, uint64_t since, uint64_t site, uint64_t seq) {
  const auto folded = static_cast<uint32_t>(stamp);
  Wait wait;
  wait.stamp = wait.again = folded != 0 ? folded : 1;
  wait.since = since;
  wait.site = static_cast<uint32_t>(site);
  wait.seq = static_cast<uint32_t>(seq);
  return wait;
}

// Says in the ring what a thread is inside of, and to itself.
inline bool put_wait(Hot& hot, PyObject* state, uint64_t row, const Wait& wait) {
  const Ref bytes(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(&wait), sizeof wait));
  if (bytes == nullptr || PyDict_SetItem(state, g_names.wait, bytes) != 0) return false;
  hot.ring.set_wait(static_cast<int>(row), wait);
  return true;
}

// The thread is back in the wait around the one that it leaves.
inline bool leave(Hot& hot, PyObject* state, PyObject* outer) {
  uint64_t row = 0;
  if (!PyBytes_Check(outer) || PyBytes_GET_SIZE(outer) != sizeof(Wait)) {
    PyErr_SetString(PyExc_TypeError, "a wait is asked for");
    return false;
  }
  if (PyDict_SetItem(state, g_names.wait, outer) != 0 || !number_in_dict(state, g_names.row, &row)) return false;
  if (static_cast<int64_t>(row) < 0) return true;
  Wait wait;
  std::memcpy(&wait, PyBytes_AS_STRING(outer), sizeof wait);
  hot.ring.set_wait(static_cast<int>(row), wait);
  return true;
}

inline bool next_of(PyObject* counter, uint64_t* found) { return number_of(Ref(PyIter_Next(counter)), found); }

}  // namespace ncclwatch
