// Finds the line of the user's own code, and who called it. The C++ twin of ncclwatch/rank/where/call_sites.py.
//
// A collective reaches the dispatcher with the GIL released. A thread's own Python frames stand
// still meanwhile, and nobody else changes them, so they are read without the GIL; it is taken only
// the first time that a code object or a line is met, to ask Python about it.

#pragma once

#include <Python.h>
#if PY_VERSION_HEX >= 0x030b0000 && PY_VERSION_HEX < 0x030c0000 && !defined(NCCLWATCH_PUBLIC_FRAMES)
#define NCCLWATCH_OWN_FRAMES 1
#define Py_BUILD_CORE 1
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#endif

#include <atomic>
#include <cstdint>
#include <memory>

namespace ncclwatch {

// A table that is written under the GIL and read by anyone: a key is published after its value, and never changed.
template <typename Value>
class Known {
 public:
  bool find(uintptr_t key, uintptr_t more, Value* found) const {
    for (size_t probe = start(key, more), steps = 0; steps < kSlots; ++steps, probe = (probe + 1) % kSlots) {
      const uintptr_t at = slots_[probe].key.load(std::memory_order_acquire);
      if (at == 0) return false;
      if (at == key && slots_[probe].more == more) {
        *found = slots_[probe].value;
        return true;
      }
    }
    return false;
  }

  // Returns whether it was added: not when it is there already, nor when the table is full.
  bool add(uintptr_t key, uintptr_t more, Value value) {
    Value there;
    if (used_ > kSlots / 4 * 3 || find(key, more, &there)) return false;
    size_t probe = start(key, more);
    while (slots_[probe].key.load(std::memory_order_relaxed) != 0) probe = (probe + 1) % kSlots;
    slots_[probe].more = more;
    slots_[probe].value = value;
    slots_[probe].key.store(key, std::memory_order_release);
    ++used_;
    return true;
  }

 private:
  static constexpr size_t kSlots = 1 << 14;

  struct Slot {
    std::atomic<uintptr_t> key{0};
    uintptr_t more = 0;
    Value value{};
  };

  static size_t start(uintptr_t key, uintptr_t more) {
    return ((key >> 4) * 0x9E3779B97F4A7C15u ^ more * 0xC2B2AE3D27D4EB4Fu) >> 40 & (kSlots - 1);
  }

  std::unique_ptr<Slot[]> slots_{new Slot[kSlots]};
  size_t used_ = 0;
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
    for (_PyInterpreterFrame* frame = thread->cframe->current_frame; frame != nullptr && route.wants_more();
         frame = frame->previous) {
      if (_PyFrame_IsIncomplete(frame)) continue;
      const int at = _PyInterpreterFrame_LASTI(frame) * static_cast<int>(sizeof(_Py_CODEUNIT));
      route.pass(frame->f_code, at, is_users(frame->f_code));
    }
    return id_of(route, mode);
#else
    Gil gil;
    PyFrameObject* held[kFramesMax] = {};  // their code lives as long as they do
    PyFrameObject* frame = PyThreadState_GetFrame(thread);
    while (frame != nullptr && route.wants_more()) {
      PyCodeObject* code = PyFrame_GetCode(frame);
#if PY_VERSION_HEX >= 0x030b0000
      const int at = PyFrame_GetLasti(frame);
#else
      const int at = PyFrame_GetLineNumber(frame);  // 3.10 has no accessor for the instruction
#endif
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
    labelled_.add(uintptr_t{site} + 1, label, id);
    return id;
  }

 private:
  static constexpr int kDepthMax = 80;
  static constexpr int kCallersDepthMax = 24;  // beyond, a framework calls, not the user
  static constexpr size_t kFramesMax = 8;      // the line itself and CALLERS_MAX of ncclwatch.contract.ring.call_sites

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
  };

  bool is_users(PyCodeObject* code) {
    const auto key = reinterpret_cast<uintptr_t>(code);
    uint32_t users = 0;
    if (users_.find(key, 0, &users)) return users != 0;
    Gil gil;
    users = ask("is_users", Py_BuildValue("(O)", code), 0);
    if (users_.add(key, 0, users)) Py_INCREF(code);  // for good: its address is what it is known by
    return users != 0;
  }

  uint32_t id_of(const Route& route, bool mode) {
    if (route.count == 0) return 0;
    const auto key = reinterpret_cast<uintptr_t>(route.places[0].code);
    uint64_t more = mode ? 1 : 0;
    for (size_t n = 0; n < route.count; ++n) {
      const auto code = reinterpret_cast<uintptr_t>(route.places[n].code);
      more = (more ^ code) * 0x9E3779B97F4A7C15u;
      more = (more ^ more >> 29 ^ static_cast<uint64_t>(route.places[n].at)) * 0xC2B2AE3D27D4EB4Fu;
    }
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
    if (all_held) ids_.add(key, more, id);
    return id;
  }

  static int line_of(const Route::Place& place) {
#if PY_VERSION_HEX >= 0x030b0000
    return PyCode_Addr2Line(place.code, place.at);
#else
    return place.at;
#endif
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
    PyErr_Clear();
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
