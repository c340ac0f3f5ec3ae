// Finds the line of the user's own code, and who called it. The C++ twin of ncclwatch/rank/where/call_sites.py.
//
// A collective reaches the dispatcher with the GIL released. A thread's own Python frames stand
// still meanwhile, and nobody else changes them, so they are read without the GIL; it is taken only
// the first time that a code object or a line is met, to ask Python about it.

#pragma once

#include <Python.h>
#include <frameobject.h>
#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030e0000 && !defined(NCCLWATCH_PUBLIC_FRAMES)
#define NCCLWATCH_OWN_FRAMES 1
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#elif PY_VERSION_HEX < 0x030b0000
#define NCCLWATCH_OWN_FRAMES 1
#endif

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "signals.h"

namespace ncclwatch {

// A table that is written under the GIL and read by anyone: a key is published after its value. When the table is
// cleared its version is odd for as long, and who has read meanwhile has found nothing.
template <typename Value>
class Known {
 public:
  bool find(uintptr_t key, uintptr_t more, Value* found) const {
    const uint32_t version = version_.load(std::memory_order_acquire);
    for (size_t probe = start(key, more), steps = 0; steps < kSlots; ++steps, probe = (probe + 1) % kSlots) {
      const uintptr_t at = slots_[probe].key.load(std::memory_order_acquire);
      if (at == 0) return false;
      if (at == key && slots_[probe].more.load(std::memory_order_relaxed) == more) {
        *found = slots_[probe].value.load(std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_acquire);
        return version % 2 == 0 && version_.load(std::memory_order_relaxed) == version;
      }
    }
    return false;
  }

  bool is_full() const { return used_ > kSlots / 4 * 3; }

  // Returns whether it was added: not when it is there already, nor when the table is full.
  bool add(uintptr_t key, uintptr_t more, Value value) {
    Value there;
    if (is_full() || find(key, more, &there)) return false;
    size_t probe = start(key, more);
    while (slots_[probe].key.load(std::memory_order_relaxed) != 0) probe = (probe + 1) % kSlots;
    slots_[probe].more.store(more, std::memory_order_relaxed);
    slots_[probe].value.store(value, std::memory_order_relaxed);
    slots_[probe].key.store(key, std::memory_order_release);
    ++used_;
    return true;
  }

  // Forgets all, and returns the keys.
  std::vector<uintptr_t> clear() {
    std::vector<uintptr_t> keys;
    version_.fetch_add(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    for (size_t n = 0; n < kSlots; ++n) {
      const uintptr_t key = slots_[n].key.exchange(0, std::memory_order_relaxed);
      if (key != 0) keys.push_back(key);
    }
    used_ = 0;
    version_.fetch_add(1, std::memory_order_release);
    return keys;
  }

 private:
  static constexpr size_t kSlots = 1 << 14;

  struct Slot {
    std::atomic<uintptr_t> key{0};
    std::atomic<uintptr_t> more{0};
    std::atomic<Value> value{};
  };

  static size_t start(uintptr_t key, uintptr_t more) {
    return ((key >> 4) * 0x9E3779B97F4A7C15u ^ more * 0xC2B2AE3D27D4EB4Fu) >> 40 & (kSlots - 1);
  }

  std::unique_ptr<Slot[]> slots_{new Slot[kSlots]};
  size_t used_ = 0;
  std::atomic<uint32_t> version_{0};
};

class Gil {
 public:
  Gil() : state_(PyGILState_Ensure()) {}
  ~Gil() { PyGILState_Release(state_); }
  Gil(const Gil&) = delete;
  Gil& operator=(const Gil&) = delete;

 private:
  PyGILState_STATE state_;
};

inline bool interpreter_ends() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

#ifdef NCCLWATCH_OWN_FRAMES
// Calls `each(code, instruction)` for the frames of a thread from the inside out, until it returns false. The thread is
// the caller's own.
template <typename Each>
void walk(PyThreadState* thread, Each each) {
#if PY_VERSION_HEX < 0x030b0000
  for (PyFrameObject* frame = thread->frame; frame != nullptr; frame = frame->f_back) {
    if (!each(frame->f_code, frame->f_lasti * 2)) return;
  }
#else
#if PY_VERSION_HEX < 0x030d0000
  _PyInterpreterFrame* frame = thread->cframe->current_frame;
#else
  _PyInterpreterFrame* frame = thread->current_frame;
#endif
  for (; frame != nullptr; frame = frame->previous) {
    if (_PyFrame_IsIncomplete(frame)) continue;
#if PY_VERSION_HEX < 0x030d0000
    PyCodeObject* code = frame->f_code;
#else
    PyCodeObject* code = _PyFrame_GetCode(frame);
#endif
    if (!each(code, _PyInterpreterFrame_LASTI(frame) * static_cast<int>(sizeof(_Py_CODEUNIT)))) return;
  }
#endif
}
#endif

constexpr int kDepthMax = 80;
constexpr int kCallersDepthMax = 24;  // beyond, a framework calls, not the user
constexpr size_t kFramesMax = 8;      // the line itself and CALLERS_MAX of ncclwatch.contract.ring.call_sites

// The user's frames from the inside out: a code object and the instruction that it is at.
struct Route {
  struct Place {
    PyCodeObject* code;
    int at;
  };
  Place places[kFramesMax];
  size_t count = 0;
  int left = kDepthMax;

  bool wants_more() const { return left > 0 && count < kFramesMax; }

  void pass(PyCodeObject* code, int at, bool users) {
    --left;
    if (!users) return;
    if (count == 0) left = kCallersDepthMax;
    places[count++] = {code, at};
  }

  // What it is known by in a table; `mode`: whether gradients are recorded.
  uintptr_t key() const { return reinterpret_cast<uintptr_t>(places[0].code); }

  uint64_t more(bool mode) const {
    uint64_t mixed = mode ? 1 : 0;
    for (size_t n = 0; n < count; ++n) {
      mixed = (mixed ^ reinterpret_cast<uintptr_t>(places[n].code)) * 0x9E3779B97F4A7C15u;
      mixed = (mixed ^ mixed >> 29 ^ static_cast<uint64_t>(places[n].at)) * 0xC2B2AE3D27D4EB4Fu;
    }
    return mixed;
  }
};

class Sites {
 public:
  // `books` is asked is_users(code) and site(code, line); the GIL is held.
  explicit Sites(PyObject* books) : books_(books) {}

  // Returns the id of the innermost line of the user's own and of its callers, 0 if there is none on this thread.
  // `mode`: whether gradients are recorded; one way in two modes is two ways.
  uint32_t here(bool mode) {
    PyThreadState* thread = PyGILState_GetThisThreadState();
    if (thread == nullptr || interpreter_ends()) return 0;
    Route route;
#ifdef NCCLWATCH_OWN_FRAMES
    walk(thread, [&](PyCodeObject* code, int at) {
      route.pass(code, at, is_users(code));
      return route.wants_more();
    });
    return id_of(route, mode);
#else
    Gil gil;
    PyFrameObject* held[kFramesMax] = {};  // their code lives as long as they do
    PyFrameObject* frame = PyThreadState_GetFrame(thread);
    while (frame != nullptr && route.wants_more()) {
      PyCodeObject* code = PyFrame_GetCode(frame);
      const int at = PyFrame_GetLasti(frame);
      const bool users = is_users(code);
      PyFrameObject* outer = PyFrame_GetBack(frame);
      if (users) {
        held[route.count] = frame;
      } else {
        Py_DECREF(frame);
      }
      route.pass(code, at, users);
      Py_DECREF(code);
      frame = outer;
    }
    Py_XDECREF(frame);
    const uint32_t found = id_of(route, mode);
    for (PyFrameObject* each : held) Py_XDECREF(each);
    return found;
#endif
  }

  // Returns the site with a label (a gradient bucket, an FSDP unit) as a site of its own.
  uint32_t labelled(uint32_t site, uint32_t label) {
    uint32_t id = 0;
    if (labelled_.find(uintptr_t{site} + 1, label, &id)) return id;
    Gil gil;
    id = ask("labelled", Py_BuildValue("(II)", site, label), site);
    if (labelled_.is_full()) labelled_.clear();
    labelled_.add(uintptr_t{site} + 1, label, id);
    return id;
  }

 private:
  bool is_users(PyCodeObject* code) {
    const auto key = reinterpret_cast<uintptr_t>(code);
    uint32_t users = 0;
    if (users_.find(key, 0, &users)) return users != 0;
    Gil gil;
    users = ask("is_users", Py_BuildValue("(O)", code), 0);
    if (users_.is_full()) make_room();
    if (users_.add(key, 0, users)) Py_INCREF(code);  // as long as its address is what it is known by
    return users != 0;
  }

  // A program may make code for ever: what is still in use comes back.
  void make_room() {
    ids_.clear();
    const std::vector<uintptr_t> codes = users_.clear();
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    for (const uintptr_t code : codes) Py_DECREF(reinterpret_cast<PyObject*>(code));
    PyErr_Restore(type, value, trace);
  }

  uint32_t id_of(const Route& route, bool mode) {
    if (route.count == 0) return 0;
    const uintptr_t key = route.key();
    const uint64_t more = route.more(mode);
    uint32_t id = 0;
    if (ids_.find(key, more, &id)) return id;
    Gil gil;
    PyObject* callers = PyList_New(0);
    for (size_t n = 1; callers != nullptr && n < route.count; ++n) {
      PyObject* caller = Py_BuildValue("(Oi)", route.places[n].code, line_of(route.places[n]));
      if (caller != nullptr) PyList_Append(callers, caller);
      Py_XDECREF(caller);
    }
    id = ask("site", Py_BuildValue("(OiN)", route.places[0].code, line_of(route.places[0]), callers), 0);
    uint32_t held = 0;
    bool all_held = true;  // a code object that nobody keeps alive may give its address to another one
    for (size_t n = 0; n < route.count; ++n) {
      all_held = all_held && users_.find(reinterpret_cast<uintptr_t>(route.places[n].code), 0, &held);
    }
    if (ids_.is_full()) ids_.clear();
    if (all_held) ids_.add(key, more, id);
    return id;
  }

  static int line_of(const Route::Place& place) {
    return PyCode_Addr2Line(place.code, place.at);
  }

  // Calls books.<name>(*arguments) and returns its number; what goes wrong there stays there. Steals `arguments`.
  uint32_t ask(const char* name, PyObject* arguments, uint32_t otherwise) {
    PyObject *type, *value, *trace;  // an exception that the caller is about to raise is not ours to lose
    PyErr_Fetch(&type, &value, &trace);
    uint32_t found = otherwise;
    PyObject* method = PyObject_GetAttrString(books_, name);
    PyObject* answer = method != nullptr && arguments != nullptr ? PyObject_CallObject(method, arguments) : nullptr;
    if (answer != nullptr) {
      const unsigned long number = PyLong_AsUnsignedLong(answer);
      if (PyErr_Occurred() == nullptr) found = static_cast<uint32_t>(number);
    }
    settle_error(books_);
    Py_XDECREF(answer);
    Py_XDECREF(arguments);
    Py_XDECREF(method);
    PyErr_Restore(type, value, trace);
    return found;
  }

  PyObject* books_;
  Known<uint32_t> users_;
  Known<uint32_t> ids_;
  Known<uint32_t> labelled_;
};

}  // namespace ncclwatch
