// Which line of the user's own code is this? The C++ twin of ncclwatch/rank/sites.py.
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

  // Returns the id of the innermost line of the user's own, 0 if there is none on this thread.
  uint32_t here() {
    PyThreadState* thread = PyGILState_GetThisThreadState();
    if (thread == nullptr || interpreter_ends()) return 0;
#ifdef NCCLWATCH_OWN_FRAMES
    int depth = 0;
    for (_PyInterpreterFrame* frame = thread->cframe->current_frame; frame != nullptr && depth < kDepthMax;
         frame = frame->previous) {
      if (_PyFrame_IsIncomplete(frame)) continue;
      ++depth;
      if (is_users(frame->f_code)) {
        return id_of(frame->f_code, _PyInterpreterFrame_LASTI(frame) * static_cast<int>(sizeof(_Py_CODEUNIT)));
      }
    }
    return 0;
#else
    Gil gil;
    uint32_t found = 0;
    PyFrameObject* frame = PyThreadState_GetFrame(thread);
    for (int depth = 0; frame != nullptr && depth < kDepthMax; ++depth) {
      PyCodeObject* code = PyFrame_GetCode(frame);
      const bool users = is_users(code);
#if PY_VERSION_HEX >= 0x030b0000
      if (users) found = id_of(code, PyFrame_GetLasti(frame));
#else
      if (users) found = id_of(code, PyFrame_GetLineNumber(frame));  // 3.10 has no accessor for the instruction
#endif
      Py_DECREF(code);
      PyFrameObject* outer = users ? nullptr : PyFrame_GetBack(frame);
      Py_DECREF(frame);
      frame = outer;
    }
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

  bool is_users(PyCodeObject* code) {
    const auto key = reinterpret_cast<uintptr_t>(code);
    uint32_t users = 0;
    if (users_.find(key, 0, &users)) return users != 0;
    Gil gil;
    users = ask("is_users", Py_BuildValue("(O)", code), 0);
    if (users_.add(key, 0, users)) Py_INCREF(code);  // for good: its address is what it is known by
    return users != 0;
  }

  uint32_t id_of(PyCodeObject* code, int at) {
    const auto key = reinterpret_cast<uintptr_t>(code);
    uint32_t id = 0;
    if (ids_.find(key, static_cast<uintptr_t>(at), &id)) return id;
    Gil gil;
#if PY_VERSION_HEX >= 0x030b0000
    const int line = PyCode_Addr2Line(code, at);
#else
    const int line = at;
#endif
    id = ask("site", Py_BuildValue("(Oi)", code, line), 0);
    uint32_t held = 0;
    if (users_.find(key, 0, &held)) ids_.add(key, static_cast<uintptr_t>(at), id);
    return id;
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
