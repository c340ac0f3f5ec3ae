// The side of the native recorder that knows CPython, and no torch: the module that ncclwatch/rank/native.py uses.
// It is given a torch side, answers what that asks, and wraps Work.wait. Without one it has the hot path of the recorder
// in Python (hot_issue.h), which ncclwatch/rank/patches/hot_path.py puts into its places.

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "bridge.h"
#include "frames.h"
#include "hot_issue.h"
#include "signals.h"

namespace ncclwatch {
namespace {

const Torch* g_torch = nullptr;

// What one attach() is asked by the torch side. Never freed: a thread may be inside when the rank detaches.
struct Books {
  explicit Books(PyObject* held) : object(held), sites(held) { Py_INCREF(held); }

  PyObject* object;  // NativeRecorder
  Sites sites;
  Python answers{};
  std::atomic<uintptr_t> exception_seen{0};
};

Books* g_books = nullptr;

Books& books_of(void* self) { return *static_cast<Books*>(self); }

// Calls a method that returns a number. The caller's own exception is kept; what goes wrong here stays here.
int ask_number(Books& books, const char* name, PyObject* arguments) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  int found = -1;
  PyObject* method = PyObject_GetAttrString(books.object, name);
  PyObject* answer = method != nullptr && arguments != nullptr ? PyObject_CallObject(method, arguments) : nullptr;
  if (answer != nullptr && answer != Py_None) {
    const long number = PyLong_AsLong(answer);
    if (PyErr_Occurred() == nullptr) found = static_cast<int>(number);
  }
  settle_error(books.object);
  Py_XDECREF(answer);
  Py_XDECREF(arguments);
  Py_XDECREF(method);
  PyErr_Restore(type, value, trace);
  return found;
}

bool ends(void*) { return interpreter_ends(); }

int new_thread(void* self) {
  Gil gil;
  return ask_number(books_of(self), "new_thread", PyTuple_New(0));
}

int new_peer(void* self, int group, int peer) {
  Gil gil;
  return ask_number(books_of(self), "new_peer", Py_BuildValue("(ii)", group, peer));
}

uint32_t site(void* self, bool mode) { return books_of(self).sites.here(mode); }

uint32_t labelled(void* self, uint32_t id, uint32_t label) { return books_of(self).sites.labelled(id, label); }

// Records the exception that is being handled while the rank goes on, once for each.
void note_exception(void* self) {
  PyThreadState* python = PyGILState_GetThisThreadState();
  if (python == nullptr) return;
#if PY_VERSION_HEX >= 0x030b0000
  const _PyErr_StackItem* item = python->exc_info;
  while (item != nullptr && (item->exc_value == nullptr || item->exc_value == Py_None) && item->previous_item != nullptr) {
    item = item->previous_item;
  }
  if (item == nullptr || item->exc_value == nullptr || item->exc_value == Py_None) return;
  const auto error = reinterpret_cast<uintptr_t>(item->exc_value);
  if (books_of(self).exception_seen.exchange(error) == error) return;
#endif
  if (interpreter_ends()) return;
  Gil gil;
  ask_number(books_of(self), "note_exception", PyTuple_New(0));
}

void note_device(void* self, int index) {
  Gil gil;
  ask_number(books_of(self), "note_device", Py_BuildValue("(i)", index));
}

// -- Work.wait -------------------------------------------------------------------------------------

// Each wrapper holds what Work.wait was when it was made: another library may keep an old one of ours inside its own.
// Only the newest records.
PyObject* g_newest_original = nullptr;
PyTypeObject* g_work_type = nullptr;

// What torch's Python object of a C++ object points at: the first word after the object's head, for a class with one
// base and a holder of one word. ncclwatch/native/probe.py sees to it that this is so.
const void* pointee(PyObject* object) {
  return *reinterpret_cast<void**>(reinterpret_cast<char*>(object) + sizeof(PyObject));
}

PyObject* wait(PyObject* original, PyObject* const* arguments, Py_ssize_t count, PyObject* names) {
  Waited waited;
  const void* work = nullptr;
  if (original == g_newest_original && count > 0 && PyObject_TypeCheck(arguments[0], g_work_type)) {
    work = pointee(arguments[0]);
  }
  if (work == nullptr || !g_torch->find_work(work, &waited)) {
    return PyObject_Vectorcall(original, arguments, static_cast<size_t>(count), names);
  }
  g_torch->enter_work(&waited, g_books->sites.here(g_torch->grad_mode()));
  PyObject* result = PyObject_Vectorcall(original, arguments, static_cast<size_t>(count), names);
  g_torch->leave_work(&waited, work, result != nullptr);
  return result;
}

PyMethodDef g_wait_method = {
    "wait", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(wait)), METH_FASTCALL | METH_KEYWORDS,
    "torch.distributed.Work.wait, watched by ncclwatch"};

PyObject* make_wait(PyObject*, PyObject* arguments) {
  PyObject *original, *type;
  if (!PyArg_ParseTuple(arguments, "OO!", &original, &PyType_Type, &type)) return nullptr;
  PyObject* function = PyCFunction_New(&g_wait_method, original);
  if (function == nullptr) return nullptr;
  PyObject* method = PyInstanceMethod_New(function);
  Py_DECREF(function);
  if (method == nullptr) return nullptr;
  Py_INCREF(type);
  g_newest_original = original;
  g_work_type = reinterpret_cast<PyTypeObject*>(type);
  return method;
}

PyObject* address_in(PyObject*, PyObject* object) { return PyLong_FromVoidPtr(const_cast<void*>(pointee(object))); }

// -- a torch side, and what it is asked ---------------------------------------------------------------

PyObject* fail(const char* text) {
  PyErr_SetString(PyExc_RuntimeError, text);
  return nullptr;
}

PyObject* use(PyObject*, PyObject* address) {
  const auto* found = static_cast<const Torch*>(PyLong_AsVoidPtr(address));
  if (found == nullptr) return PyErr_Occurred() != nullptr ? nullptr : fail("it is no torch side of ncclwatch's");
  if (found->bridge != kBridge) return fail("it belongs to another version of ncclwatch");
  const char* wrong = found->declare();
  if (wrong != nullptr) return fail(wrong);
  g_torch = found;
  return PyUnicode_FromString(found->torch_version);
}

bool numbers_of(PyObject* sequence, std::vector<uint64_t>* numbers) {
  PyObject* items = PySequence_Fast(sequence, "numbers are asked for");
  if (items == nullptr) return false;
  for (Py_ssize_t n = 0; n < PySequence_Fast_GET_SIZE(items); ++n) {
    numbers->push_back(PyLong_AsUnsignedLongLong(PySequence_Fast_GET_ITEM(items, n)));
  }
  Py_DECREF(items);
  return PyErr_Occurred() == nullptr;
}

// begin(memory, layout, codes, dtypes, books)
PyObject* begin(PyObject*, PyObject* arguments) {
  PyObject *memory, *layout_numbers, *code_numbers, *dtype_codes, *object;
  if (!PyArg_ParseTuple(arguments, "OOOOO", &memory, &layout_numbers, &code_numbers, &dtype_codes, &object)) {
    return nullptr;
  }
  std::vector<uint64_t> layout, codes, dtypes;
  if (!numbers_of(layout_numbers, &layout) || !numbers_of(code_numbers, &codes) || !numbers_of(dtype_codes, &dtypes)) {
    return nullptr;
  }
  if (layout.size() != kLayoutNumbers || codes.size() != kCodeNumbers) {
    return fail("another layout than this was built for");
  }
  Py_buffer map;  // never given back: a thread may write to it after the end
  if (PyObject_GetBuffer(memory, &map, PyBUF_WRITABLE) != 0) return nullptr;
  Layout at;
  Codes known;
  std::copy(layout.begin(), layout.end(), reinterpret_cast<uint64_t*>(&at));
  std::copy(codes.begin(), codes.end(), reinterpret_cast<int*>(&known));
  const std::vector<uint8_t> types(dtypes.begin(), dtypes.end());
  auto* books = new Books(object);
  books->answers = {books, ends, new_thread, new_peer, site, labelled, note_exception, note_device};
  g_books = books;
  g_torch->begin(static_cast<char*>(map.buf), &at, &known, types.data(), types.size(), &books->answers);
  Py_RETURN_NONE;
}

PyObject* end(PyObject*, PyObject*) {
  g_torch->end();
  Py_RETURN_NONE;
}

PyObject* forget(PyObject*, PyObject*) {
  g_torch->forget();
  Py_RETURN_NONE;
}

// install([(name, op, sized_by, group, root, reduce_op, async_op, has_size, is_p2p), ...])
PyObject* install(PyObject*, PyObject* rows) {
  PyObject* items = PySequence_Fast(rows, "rows are asked for");
  if (items == nullptr) return nullptr;
  std::vector<Spec> specs;
  for (Py_ssize_t n = 0; n < PySequence_Fast_GET_SIZE(items); ++n) {
    Spec spec;
    if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(items, n), "siiiiiipp", &spec.name, &spec.op, &spec.sized_by,
                          &spec.group, &spec.root, &spec.reduce_op, &spec.async_op, &spec.has_size, &spec.is_p2p)) {
      Py_DECREF(items);
      return nullptr;
    }
    specs.push_back(spec);
  }
  const bool done = g_torch->install(specs.data(), specs.size());
  Py_DECREF(items);
  if (!done) return fail("torch does not take its kernels");
  Py_RETURN_NONE;
}

PyObject* thread_row(PyObject*, PyObject*) { return PyLong_FromLong(g_torch->thread_row()); }

PyObject* enter_wait(PyObject*, PyObject* arguments) {
  unsigned int kind, site, number;
  if (!PyArg_ParseTuple(arguments, "III", &kind, &site, &number)) return nullptr;
  g_torch->enter_wait(static_cast<uint8_t>(kind), site, number);
  Py_RETURN_NONE;
}

PyObject* leave_wait(PyObject*, PyObject*) {
  g_torch->leave_wait();
  Py_RETURN_NONE;
}

PyObject* begin_batch(PyObject*, PyObject*) {
  g_torch->begin_batch();
  Py_RETURN_NONE;
}

PyObject* end_batch(PyObject*, PyObject* work) {
  const bool known = g_work_type != nullptr && PyObject_TypeCheck(work, g_work_type);
  g_torch->end_batch(known ? pointee(work) : nullptr);
  Py_RETURN_NONE;
}

PyObject* enter_region(PyObject*, PyObject*) { return PyLong_FromLong(g_torch->enter_region()); }

PyObject* leave_region(PyObject*, PyObject* outer) {
  const long value = PyLong_AsLong(outer);
  if (value == -1 && PyErr_Occurred() != nullptr) return nullptr;
  g_torch->leave_region(value);
  Py_RETURN_NONE;
}

PyObject* set_label(PyObject*, PyObject* label) {
  const unsigned long value = PyLong_AsUnsignedLong(label);
  if (PyErr_Occurred() != nullptr) return nullptr;
  return PyLong_FromUnsignedLong(g_torch->set_label(static_cast<uint32_t>(value)));
}

PyObject* forget_group(PyObject*, PyObject* name) {
  const char* text = PyUnicode_AsUTF8(name);
  if (text == nullptr) return nullptr;
  g_torch->forget_group(text);
  Py_RETURN_NONE;
}

PyObject* drain_all(PyObject*, PyObject*) {
  Py_BEGIN_ALLOW_THREADS;
  g_torch->drain_all();
  Py_END_ALLOW_THREADS;
  g_torch->sweep();
  Py_RETURN_NONE;
}

// set_buckets(name, [(elements, label), ...])
PyObject* set_buckets(PyObject*, PyObject* arguments) {
  const char* name;
  PyObject* buckets;
  if (!PyArg_ParseTuple(arguments, "sO", &name, &buckets)) return nullptr;
  PyObject* items = PySequence_Fast(buckets, "buckets are asked for");
  if (items == nullptr) return nullptr;
  std::vector<uint64_t> numels;
  std::vector<uint32_t> labels;
  for (Py_ssize_t n = 0; n < PySequence_Fast_GET_SIZE(items); ++n) {
    unsigned long long numel;
    unsigned int label;
    if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(items, n), "KI", &numel, &label)) {
      Py_DECREF(items);
      return nullptr;
    }
    numels.push_back(numel);
    labels.push_back(label);
  }
  Py_DECREF(items);
  g_torch->set_buckets(name, numels.data(), labels.data(), labels.size());
  Py_RETURN_NONE;
}

PyObject* begin_backward(PyObject*, PyObject*) {
  g_torch->begin_backward();
  Py_RETURN_NONE;
}

PyObject* set_completed(PyObject*, PyObject* arguments) {
  const char* name;
  unsigned long long seq;
  if (!PyArg_ParseTuple(arguments, "sK", &name, &seq)) return nullptr;
  g_torch->set_completed(name, seq);
  Py_RETURN_NONE;
}

// What the op ncclwatch::new_group calls: asks NativeRecorder about a group. [] if it cannot be had: torch calls this
// inside of a collective, which what is raised here would end in silence. No line of Python lies between torch and this.
PyObject* new_group(PyObject*, PyObject* boxed) {
  if (g_books == nullptr) return PyList_New(0);
  PyObject* told = PyObject_CallMethod(g_books->object, "new_group", "O", boxed);
  if (told != nullptr) return told;
  settle_error(g_books->object);
  return PyList_New(0);
}

// -- without a torch side -----------------------------------------------------------------------------

void forget_hot(PyObject* capsule) {
  auto* hot = static_cast<Hot*>(PyCapsule_GetPointer(capsule, kHotName));
  PyBuffer_Release(&hot->map);
  delete hot;
}

// Whether a recorder has what is kept of it.
bool take(PyObject* recorder, Hot* hot) {
  const std::pair<Ref*, PyObject*> parts[] = {
      {&hot->groups, g_names.groups},   {&hot->sites, g_names.sites},         {&hot->open_works, g_names.open_works},
      {&hot->retired, g_names._retired}, {&hot->sweeping, g_names._sweeping}, {&hot->unheld, g_names._unheld},
  };
  for (const auto& [part, name] : parts) *part = Ref(PyObject_GetAttr(recorder, name));
  hot->thread = Ref(PyObject_CallMethodNoArgs(recorder, g_names.state));
  if (PyErr_Occurred() != nullptr) return false;
  if (PyDict_Check(hot->groups) && PyDict_Check(hot->open_works)) return true;
  PyErr_SetString(PyExc_TypeError, "a recorder is asked for");
  return false;
}

// make_hot(recorder, memory, layout, codes, events, wait_stamps, clock)
PyObject* make_hot(PyObject*, PyObject* arguments) {
  PyObject *recorder, *memory, *layout_numbers, *code_numbers, *events, *wait_stamps, *clock;
  if (!PyArg_ParseTuple(arguments, "OOOOOOO", &recorder, &memory, &layout_numbers, &code_numbers, &events, &wait_stamps,
                        &clock)) {
    return nullptr;
  }
  std::vector<uint64_t> numbers, codes;
  if (!numbers_of(layout_numbers, &numbers) || !numbers_of(code_numbers, &codes) || !intern_names()) return nullptr;
  if (numbers.size() != kLayoutNumbers || codes.size() != kCodeNumbers) {
    return fail("another layout than this was built for");
  }
  if (!PyIter_Check(events) || !PyIter_Check(wait_stamps)) return fail("counters are asked for");
  Layout layout;
  Codes known;
  std::copy(numbers.begin(), numbers.end(), reinterpret_cast<uint64_t*>(&layout));
  std::copy(codes.begin(), codes.end(), reinterpret_cast<int*>(&known));
  Py_buffer map;
  if (PyObject_GetBuffer(memory, &map, PyBUF_WRITABLE) != 0) return nullptr;
  auto* hot = new Hot(map, layout, known);
  hot->events = Ref::to(events);
  hot->wait_stamps = Ref::to(wait_stamps);
  hot->clock = Ref::to(clock == Py_None ? nullptr : clock);
  PyObject* capsule = take(recorder, hot) ? PyCapsule_New(hot, kHotName, forget_hot) : nullptr;
  if (capsule == nullptr) {
    PyBuffer_Release(&map);
    delete hot;
  }
  return capsule;
}

void forget_way(PyObject* capsule) { delete static_cast<Way*>(PyCapsule_GetPointer(capsule, kWayName)); }

template <typename Function>
PyCFunction c_function(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(function));
}

PyMethodDef g_kernel_method = {"kernel", c_function(kernel), METH_VARARGS | METH_KEYWORDS,
                               "Record one kind of operation, and hand it on."};

// make_kernel(numbers, asked, around): see make_kernel of ncclwatch/rank/patches/hot_path.py.
PyObject* make_kernel(PyObject*, PyObject* arguments) {
  Way way;
  PyObject *unbox, *group_of, *reduce_code, *dtypes, *note_used, *record, *issued;
  PyObject *current, *redispatch, *after, *script_object, *work_of, *missed, *refused, *left;
  if (!PyArg_ParseTuple(arguments, "(iiiiiiiiiiiII)(OOOO!OOO!)(OOOOOOOO)", &way.op, &way.sized_at, &way.group_at,
                        &way.root_at, &way.reduce_at, &way.async_at, &way.has_size, &way.is_p2p, &way.size_agreed,
                        &way.in_buckets, &way.kind, &way.reduce_max, &way.other_dtype, &unbox, &group_of, &reduce_code,
                        &PyDict_Type, &dtypes, &note_used, &record, &PyType_Type, &issued, &current, &redispatch, &after,
                        &script_object, &work_of, &missed, &refused, &left)) {
    return nullptr;
  }
  if (!intern_names()) return nullptr;
  const std::pair<Ref*, PyObject*> parts[] = {
      {&way.unbox, unbox},     {&way.group_of, group_of},     {&way.reduce_code, reduce_code},
      {&way.dtypes, dtypes},   {&way.note_used, note_used},   {&way.record, record},
      {&way.issued, issued},   {&way.current, current},       {&way.redispatch, redispatch},
      {&way.after, after},     {&way.work_of, work_of},       {&way.script_object, script_object},
      {&way.missed, missed},   {&way.refused, refused},       {&way.left, left},
  };
  for (const auto& [part, object] : parts) *part = Ref::to(object);
  const Ref capsule(PyCapsule_New(new Way(std::move(way)), kWayName, forget_way));
  return capsule == nullptr ? nullptr : PyCFunction_New(&g_kernel_method, capsule);
}

void forget_waiter(PyObject* capsule) { delete static_cast<Waiter*>(PyCapsule_GetPointer(capsule, kWaiterName)); }

PyObject* made_waiter(PyMethodDef* method, Waiter waiter) {
  if (!intern_names()) return nullptr;
  const Ref capsule(PyCapsule_New(new Waiter(std::move(waiter)), kWaiterName, forget_waiter));
  return capsule == nullptr ? nullptr : PyCFunction_New(method, capsule);
}

PyMethodDef g_wait_for_work_method = {"wait", c_function(wait_for_work), METH_FASTCALL | METH_KEYWORDS,
                                      "torch.distributed.Work.wait, watched by ncclwatch"};
PyMethodDef g_wait_tensor_method = {"wait_tensor", c_function(wait_tensor), METH_VARARGS | METH_KEYWORDS,
                                    "The wait of functional collectives, watched by ncclwatch"};

// make_hot_wait(original, current, settle): Work.wait
PyObject* make_hot_wait(PyObject*, PyObject* arguments) {
  PyObject *original, *current, *settle;
  if (!PyArg_ParseTuple(arguments, "OOO", &original, &current, &settle)) return nullptr;
  const Ref made(made_waiter(&g_wait_for_work_method,
                             Waiter{Ref::to(current), Ref::to(original), Ref::to(settle), Ref()}));
  return made == nullptr ? nullptr : PyInstanceMethod_New(made);
}

// make_hot_wait_tensor(redispatch, current, settle, after): the kernel of _c10d_functional.wait_tensor
PyObject* make_hot_wait_tensor(PyObject*, PyObject* arguments) {
  PyObject *redispatch, *current, *settle, *after;
  if (!PyArg_ParseTuple(arguments, "OOOO", &redispatch, &current, &settle, &after)) return nullptr;
  return made_waiter(&g_wait_tensor_method,
                     Waiter{Ref::to(current), Ref::to(redispatch), Ref::to(settle), Ref::to(after)});
}

PyMethodDef g_methods[] = {
    {"make_hot", make_hot, METH_VARARGS, "Return what the hot path keeps of one recorder in Python."},
    {"make_kernel", make_kernel, METH_VARARGS, "Return what records one kind of operation: kernel(keys, *arguments)."},
    {"make_hot_wait", make_hot_wait, METH_VARARGS, "Return Work.wait, watched for a recorder in Python."},
    {"make_hot_wait_tensor", make_hot_wait_tensor, METH_VARARGS, "Return the kernel of wait_tensor, watched likewise."},
    {"use", use, METH_O, "Use the torch side at an address; returns the version of torch that it was built for."},
    {"address_in", address_in, METH_O, "Return the address that a Python object of torch's C++ points at."},
    {"begin", begin, METH_VARARGS, "Record into a ring's memory from now on."},
    {"end", end, METH_NOARGS, "Record no more."},
    {"forget", forget, METH_NOARGS, "Be off, in a forked child."},
    {"install", install, METH_O, "Put the kernels before those of the backends."},
    {"make_wait", make_wait, METH_VARARGS, "Return Work.wait, watched."},
    {"thread_row", thread_row, METH_NOARGS, "Return this thread's row, -1 without."},
    {"enter_wait", enter_wait, METH_VARARGS, "Say that this thread enters a wait."},
    {"begin_batch", begin_batch, METH_NOARGS, "Say that this thread begins to issue messages as one."},
    {"end_batch", end_batch, METH_O, "Say that it has, and which work stands for all of them."},
    {"leave_wait", leave_wait, METH_NOARGS, "Say that it left its wait."},
    {"enter_region", enter_region, METH_NOARGS, "Enter what issues operations and waits for them."},
    {"leave_region", leave_region, METH_O, "Leave it."},
    {"set_label", set_label, METH_O, "Say what this thread's next operations are for; returns what it was."},
    {"forget_group", forget_group, METH_O, "Forget a group that was destroyed."},
    {"drain_all", drain_all, METH_NOARGS, "Note what is complete in all groups."},
    {"set_buckets", set_buckets, METH_VARARGS, "Say which gradient buckets a group has."},
    {"begin_backward", begin_backward, METH_NOARGS, "Begin with the first bucket again."},
    {"set_completed", set_completed, METH_VARARGS, "Say how far a group is by its backend's account."},
    {"new_group", new_group, METH_O, "Ask the newest recorder about a group."},
    {nullptr, nullptr, 0, nullptr}};

PyModuleDef g_module = {PyModuleDef_HEAD_INIT, "_ncclwatch_native", "The native recorder's Python side.", -1, g_methods,
                        nullptr, nullptr, nullptr, nullptr};

}  // namespace
}  // namespace ncclwatch

PyMODINIT_FUNC PyInit__ncclwatch_native() { return PyModule_Create(&ncclwatch::g_module); }
