// Gives back what a signal handler raised while Python was asked something.
//
// Python may run the user's signal handlers in any of our calls, and handlers raise: Ctrl-C, sys.exit on SIGTERM, a
// limit of time. A kernel of the dispatcher cannot throw that into the user's collective. Handlers run on the main
// thread only, and so do pending calls: it is raised again there as soon as Python goes on.

#pragma once

#include <Python.h>

namespace ncclwatch {

inline int raise_again(void* error) {
  PyObject* value = static_cast<PyObject*>(error);
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(value)), value);
  Py_DECREF(value);
  return -1;
}

// Clears the error that is set, if any. `books` is asked is_of_signal(error); the GIL is held.
inline void settle_error(PyObject* books) {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&type, &value, &trace);
  if (type == nullptr) return;
  PyErr_NormalizeException(&type, &value, &trace);
  if (value != nullptr && trace != nullptr) PyException_SetTraceback(value, trace);
  Py_XDECREF(type);
  Py_XDECREF(trace);
  if (value == nullptr) return;
  PyObject* answer = PyObject_CallMethod(books, "is_of_signal", "O", value);
  const bool of_signal = answer == nullptr || PyObject_IsTrue(answer) == 1;  // no answer: another one has come
  PyErr_Clear();
  Py_XDECREF(answer);
  if (!of_signal || Py_AddPendingCall(&raise_again, value) != 0) Py_DECREF(value);
}

}  // namespace ncclwatch
