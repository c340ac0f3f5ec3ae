// Records one operation, where no torch side fits: what torch's dispatcher calls before the backend. The C++ twin of
// _make_kernel of ncclwatch/rank/patches/collectives.py, and of Recorder.issue. See hot_path.h.

#pragma once

#include "hot_works.h"

namespace ncclwatch {

// How the arguments of one c10d op are read, and what Python is asked meanwhile.
struct Way {
  int op, sized_at, group_at, root_at, reduce_at, async_at, has_size, is_p2p, size_agreed, in_buckets, kind;
  unsigned int reduce_max, other_dtype;
  Ref unbox, group_of, reduce_code, dtypes, note_used, record, issued;
  Ref current, redispatch, after, script_object, work_of;
  Ref missed, refused, left;
};

constexpr const char* kWayName = "ncclwatch.way";

// What is read of the arguments of an operation.
struct Read {
  Ref tensor, group;
  uint64_t numel = 0, dtype = 0, reduce_op = 0;
  int64_t peer = -1;
  uint32_t site = 0;
  bool in_order = false, on_host = false;

  // As signature_word of the layout.
  uint64_t word() const {
    return (static_cast<uint64_t>(peer + 1) & 0xFFFFF) | (dtype & 0x3F) << 20 | (reduce_op & 0xF) << 26;
  }
};

// An argument of an op, which follow the keys that a kernel is given first; nullptr with an exception set.
inline PyObject* argument(PyObject* given, int index) { return PyTuple_GetItem(given, index + 1); }

inline bool read_numel(PyObject* tensors, PyObject* tensor, uint64_t* numel) {
  if (tensors == tensor) return number_of(Ref(PyObject_CallMethodNoArgs(tensor, g_names.numel)), numel);
  *numel = 0;
  for (Py_ssize_t n = 0; n < PyList_GET_SIZE(tensors); ++n) {  // Python runs meanwhile: its length is asked each time
    const Ref part = Ref::to(PyList_GET_ITEM(tensors, n));
    uint64_t size = 0;
    if (!number_of(Ref(PyObject_CallMethodNoArgs(part, g_names.numel)), &size)) return false;
    *numel += size;
  }
  return true;
}

// Reads what members agree on of the tensors; `meta`: a compiler tries the op on, and nothing moves.
inline bool read_tensors(const Way& way, PyObject* given, Read* read, bool* meta) {
  const Ref tensors = Ref::to(argument(given, way.sized_at > 0 ? way.sized_at : 0));
  if (tensors == nullptr) return false;
  Ref tensor = Ref::to(tensors);
  for (PyObject* outer = tensor; PyList_CheckExact(outer); outer = tensor) {
    tensor = Ref::to(PyList_GET_SIZE(outer) > 0 ? PyList_GET_ITEM(outer, 0) : Py_None);
  }
  if (tensor == Py_None) return true;
  if (!truth_in(tensor, g_names.is_meta, meta)) return false;
  if (*meta) return true;
  if (way.has_size != 0) {
    const Ref dtype(PyObject_GetAttr(tensor, g_names.dtype));
    if (dtype == nullptr) return false;
    PyObject* code = PyDict_GetItemWithError(way.dtypes, dtype);
    read->dtype = way.other_dtype;
    if (code == nullptr ? PyErr_Occurred() != nullptr : !number_of(code, &read->dtype)) return false;
    if ((way.sized_at >= 0 || way.is_p2p != 0) && !read_numel(tensors, tensor, &read->numel)) return false;
  }
  read->tensor = std::move(tensor);
  return true;
}

inline bool read_group(const Hot& hot, const Way& way, PyObject* recorder, PyObject* given, Read* read) {
  PyObject* boxed = argument(given, way.group_at);
  if (boxed == nullptr) return false;
  const Ref unboxed(PyObject_CallOneArg(way.unbox, boxed));
  if (unboxed == nullptr) return false;
  const Ref name(PyObject_GetAttr(unboxed, g_names.group_name));
  if (name == nullptr) return false;
  read->group = Ref::to(PyDict_GetItemWithError(hot.groups, name));
  if (read->group != nullptr) return true;
  if (PyErr_Occurred() != nullptr) return false;
  read->group = Ref(PyObject_CallFunctionObjArgs(way.group_of, recorder, static_cast<PyObject*>(unboxed), nullptr));
  return read->group != nullptr;
}

// Notes the device of a tensor that NCCL is about to get, where it is another one than last time.
inline bool note_device(const Way& way, PyObject* recorder, const Read& read) {
  bool by_account = false, on_gpu = false;
  if (!truth_in(read.group, g_names.by_account, &by_account)) return false;
  if (!by_account || read.tensor == nullptr) return true;
  if (!truth_in(read.tensor, g_names.is_cuda, &on_gpu)) return false;
  if (!on_gpu) return true;
  uint64_t device = 0, before = 0;
  if (!number_of(Ref(PyObject_CallMethodNoArgs(read.tensor, g_names.get_device)), &device)) return false;
  if (!number_in(read.group, g_names.device, &before)) return false;
  if (device == before) return true;
  if (!set_signed(read.group, g_names.device, static_cast<int64_t>(device))) return false;
  const Ref number(PyLong_FromLongLong(static_cast<int64_t>(device)));
  if (number == nullptr) return false;
  const Ref noted(PyObject_CallFunctionObjArgs(way.note_used, recorder, static_cast<PyObject*>(number), nullptr));
  return noted != nullptr;
}

// The rank in the job of a rank of the group; -1: the group's members are not known.
inline bool read_peer(const Way& way, PyObject* given, Read* read) {
  if (way.root_at < 0) return true;
  PyObject* root = argument(given, way.root_at);
  uint64_t rank = 0;
  if (!number_of(root, &rank)) return false;
  const Ref ranks(PyObject_GetAttr(read->group, g_names.ranks));
  if (ranks == nullptr) return false;
  const Py_ssize_t size = PySequence_Size(ranks);
  if (size <= 0) return size == 0;
  read->peer = static_cast<int64_t>(rank);
  if (rank >= static_cast<uint64_t>(size)) return true;
  uint64_t known = 0;
  if (!number_of(Ref(PySequence_GetItem(ranks, static_cast<Py_ssize_t>(rank))), &known)) return false;
  read->peer = static_cast<int64_t>(known);
  return true;
}

inline bool read_site(Hot& hot, uint32_t* site) {
  if (!hot.ways.here(hot.sites, 0, site)) return false;
  if (*site != 0) return true;
  uint64_t backward = 0;
  if (!number_of(Ref(PyObject_CallMethodNoArgs(hot.sites, g_names.of_backward)), &backward)) return false;
  *site = static_cast<uint32_t>(backward);
  return true;
}

inline bool read_rest(Hot& hot, const Way& way, PyObject* recorder, PyObject* given, Read* read) {
  if (!read_group(hot, way, recorder, given, read) || !note_device(way, recorder, *read)) return false;
  if (way.reduce_at >= 0) {
    PyObject* boxed = argument(given, way.reduce_at);
    if (boxed == nullptr || !number_of(Ref(PyObject_CallOneArg(way.reduce_code, boxed)), &read->reduce_op)) return false;
    if (read->reduce_op > way.reduce_max) read->reduce_op = way.reduce_max;
  }
  if (!read_peer(way, given, read) || !read_site(hot, &read->site)) return false;
  if (way.async_at >= 0 && way.async_at < PyTuple_GET_SIZE(given) - 1) {
    bool async = false;
    if (!truth_of(argument(given, way.async_at), &async)) return false;
    read->in_order = !async;
  }
  if (read->tensor == nullptr) return true;
  bool host_waits = false, is_cpu = false;
  if (!truth_in(read->group, g_names.host_waits, &host_waits)) return false;
  if (host_waits && !truth_in(read->tensor, g_names.is_cpu, &is_cpu)) return false;
  read->on_host = host_waits && is_cpu;
  return true;
}

// An operation that is under way: its `Issued`, and the wait around it. Without one nothing moves, or it went missing.
struct Begun {
  Ref issued, outer;
};

// Leaves an operation to Recorder.issue: what is sent from one to one, or is its thread's first.
inline bool record_in_python(const Way& way, PyObject* recorder, const Read& read, Begun* begun) {
  const Ref signature(Py_BuildValue("(LKK)", static_cast<long long>(read.peer),
                                    static_cast<unsigned long long>(read.dtype),
                                    static_cast<unsigned long long>(read.reduce_op)));
  if (signature == nullptr) return false;
  const Ref made(PyObject_CallFunction(way.record, "OOiKOIOO", recorder, static_cast<PyObject*>(read.group), way.op,
                                       static_cast<unsigned long long>(read.numel), static_cast<PyObject*>(signature),
                                       read.site, read.in_order ? Py_True : Py_False,
                                       read.on_host ? Py_True : Py_False));
  if (made == nullptr || made == Py_None) return made != nullptr;
  begun->issued = Ref::to(part_of(made, 0));
  begun->outer = Ref::to(part_of(made, 1));
  return begun->issued != nullptr && begun->outer != nullptr;
}

inline bool note_exception(PyObject* recorder) {
  PyObject *type = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_GetExcInfo(&type, &value, &trace);
  const bool one = value != nullptr && value != Py_None;
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
  return !one || Ref(PyObject_CallMethodNoArgs(recorder, g_names._note_exception)) != nullptr;
}

// What Recorder.issue and enter find out before they count.
struct Counted {
  uint64_t row = 0, issued = 0, group = 0, completed = 0, prefix = 0, seq = 0, batch = 0, forwards = 0, event = 0, stamp = 0;
  uint64_t issued_ns = 0, since_ns = 0;
  uint64_t site = 0;  // with what the operation is for
  Ref label;          // that
};

// What an operation is for, as Recorder.issue finds it: what its thread says, or the gradient bucket that is next.
inline bool find_label(const Hot& hot, const Way& way, PyObject* state, const Read& read, Counted* counted) {
  bool bucketed = false, labelled = false;
  counted->site = read.site;
  counted->label = Ref::to(PyDict_GetItemWithError(state, g_names.label));
  if (!truth_of(counted->label, &labelled)) return false;
  if (!labelled && way.in_buckets != 0) {
    if (!truth_in(read.group, g_names.buckets, &bucketed)) return false;
    if (bucketed) {
      const Ref numel(PyLong_FromUnsignedLongLong(read.numel));
      if (numel == nullptr) return false;
      counted->label = Ref(PyObject_CallMethodOneArg(read.group, g_names.next_label, numel));
      if (!truth_of(counted->label, &labelled)) return false;
    }
  }
  if (!labelled) return true;
  const Ref site(PyLong_FromUnsignedLong(read.site));
  return site != nullptr &&
         number_of(Ref(PyObject_CallMethodObjArgs(hot.sites, g_names.labelled, static_cast<PyObject*>(site),
                                                  static_cast<PyObject*>(counted->label), nullptr)),
                   &counted->site);
}

// Makes an `Issued` without running Python.
inline Ref make_issued(const Way& way, const Read& read, const Counted& counted) {
  auto* type = reinterpret_cast<PyTypeObject*>(static_cast<PyObject*>(way.issued));
  Ref made(type->tp_alloc(type, 0));
  if (made == nullptr) return made;
  const bool whole = PyObject_SetAttr(made, g_names.group, read.group) == 0 &&
                     set_signed(made, g_names.op, way.op) && set_number(made, g_names.seq, counted.seq) &&
                     set_number(made, g_names.site, counted.site) && set_signed(made, g_names.peer, read.peer) &&
                     set_number(made, g_names.before, counted.prefix) &&
                     set_number(made, g_names.numel, read.numel) &&
                     PyObject_SetAttr(made, g_names.label, counted.label) == 0 &&
                     set_signed(made, g_names.kind, way.kind) &&
                     PyObject_SetAttr(made, g_names.on_host, read.on_host ? Py_True : Py_False) == 0 &&
                     PyObject_SetAttr(made, g_names.done, Py_False) == 0;
  return whole ? std::move(made) : Ref();
}

inline Wait wait_for(const Way& way, const Read& read, const Counted& counted) {
  Wait wait = made_wait(counted.stamp, counted.since_ns, read.site, counted.seq);
  wait.group = static_cast<uint16_t>(counted.group);
  wait.kind = static_cast<uint8_t>(way.kind);
  wait.op = static_cast<uint8_t>(way.op);
  wait.peer = static_cast<int32_t>(read.peer);
  return wait;
}

inline Event event_of(const Way& way, const Read& read, const Counted& counted, uint64_t prefix) {
  const bool has_row = static_cast<int64_t>(counted.row) >= 0;
  Event event{};
  event.time = counted.issued_ns;
  event.group = static_cast<uint16_t>(counted.group);
  event.op = static_cast<uint8_t>(way.op);
  event.thread = static_cast<uint8_t>(has_row ? counted.row : kNoThread);
  event.numel = read.numel;
  event.site = static_cast<uint32_t>(counted.site);
  event.prefix = prefix;
  event.seq = static_cast<uint32_t>(counted.seq);
  event.batch = static_cast<uint32_t>(counted.batch);
  event.forwards = static_cast<uint32_t>(counted.forwards);
  event.signature = static_cast<uint32_t>(read.word() | (read.in_order ? kInOrder : 0));
  return event;
}

// The prefix hash of a group with this operation, see Recorder.issue.
inline uint64_t mixed_prefix(const Way& way, const Read& read, uint64_t before) {
  const uint64_t agreed = way.size_agreed != 0 ? read.numel : 0;
  const uint64_t mixed = static_cast<uint64_t>(way.op) * 0x9E3779B97F4A7C15u ^ agreed * 0xC2B2AE3D27D4EB4Fu ^
                         read.word() * 0x165667B19E3779F9u;
  return before * 0x100000001B3u + mixed + 1;
}

// Writes it all, once nothing can go wrong any more but memory.
inline bool write(Hot& hot, const Way& way, PyObject* state, const Read& read, const Counted& counted, Begun* begun) {
  Ring& ring = hot.ring;
  const uint64_t prefix = mixed_prefix(way, read, counted.prefix);
  Ref issued = make_issued(way, read, counted);
  if (issued == nullptr) return false;
  if (!set_number(read.group, g_names.prefix, prefix) || !set_number(read.group, g_names.enqueued, counted.seq)) {
    return false;
  }
  ring.put_event(counted.event, event_of(way, read, counted, prefix));
  if (counted.group != kNoGroup) {
    if (!set_number(read.group, g_names.newest_event, counted.event)) return false;
    ring.set_group_head(static_cast<int>(counted.group), prefix, counted.seq);
    ring.set_group_done(static_cast<int>(counted.group), counted.completed, static_cast<int64_t>(counted.event));
  }
  const Ref so_far(PyLong_FromUnsignedLongLong(counted.issued + 1));
  if (so_far == nullptr || PyDict_SetItem(state, g_names.issued, so_far) != 0) return false;
  if (PyDict_SetItem(state, g_names.newest, issued) != 0) return false;
  Ref outer = Ref::to(PyDict_GetItemWithError(state, g_names.wait));
  if (outer == nullptr) return false;
  if (static_cast<int64_t>(counted.row) >= 0) {
    ring.set_thread_issued(static_cast<int>(counted.row), counted.issued + 1);
    if (!put_wait(hot, state, counted.row, wait_for(way, read, counted))) return false;
  }
  begun->issued = std::move(issued);
  begun->outer = std::move(outer);
  return true;
}

// From an operation's number on nothing runs that could raise what a signal handler raises.
inline bool record(Hot& hot, const Way& way, PyObject* recorder, const Read& read, Begun* begun) {
  const Ref state = state_in(hot);
  Counted counted;
  if (state == nullptr || !number_in_dict(state, g_names.row, &counted.row)) return false;
  if (way.is_p2p != 0 || static_cast<int64_t>(counted.row) == kUnseen) {
    return record_in_python(way, recorder, read, begun);
  }
  if (!find_label(hot, way, state, read, &counted) || !note_exception(recorder)) return false;
  const Ref seqs(PyObject_GetAttr(read.group, g_names.seqs));
  if (seqs == nullptr || !number_in(read.group, g_names.number, &counted.group) ||
      !number_in(read.group, g_names.completed, &counted.completed) ||
      !number_in(read.group, g_names.prefix, &counted.prefix) || !number_in(recorder, g_names.batch_word, &counted.batch) ||
      !number_in(recorder, g_names.forwards, &counted.forwards) || !number_in_dict(state, g_names.issued, &counted.issued)) {
    return false;
  }
  if (!hot.now(&counted.issued_ns) || !hot.now(&counted.since_ns)) return false;
  if (!next_of(seqs, &counted.seq) || !next_of(hot.events, &counted.event)) return false;
  if (static_cast<int64_t>(counted.row) >= 0 && !next_of(hot.wait_stamps, &counted.stamp)) return false;
  return write(hot, way, state, read, counted, begun);
}

// Records what a kernel is given, before the backend gets it.
inline bool issue(Hot* hot, const Way& way, PyObject* recorder, PyObject* given, Begun* begun) {
  Read read;
  bool meta = false;
  if (hot == nullptr || !read_tensors(way, given, &read, &meta)) return false;
  if (meta) return true;
  return read_rest(*hot, way, recorder, given, &read) && record(*hot, way, recorder, read, begun);
}

// The work that a backend has answered with, None without.
inline Ref work_in(const Way& way, PyObject* result) {
  PyObject* box = result;
  if (PyTuple_Check(result) || PyList_Check(result)) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(result);
    box = size > 0 ? PySequence_Fast_GET_ITEM(result, size - 1) : Py_None;
  }
  const Ref held = Ref::to(box);
  const int one = PyObject_IsInstance(held, way.script_object);
  if (one < 0) return Ref();
  return one == 1 ? Ref(PyObject_CallOneArg(way.work_of, held)) : Ref::to(Py_None);
}

// The operation has been taken by its backend.
inline bool taken(Hot& hot, const Way& way, PyObject* recorder, const Begun& begun, PyObject* result) {
  const Ref work = work_in(way, result);
  if (work == nullptr || !track(hot, recorder, begun.issued, work)) return false;
  const Ref state = state_in(hot);
  bool inside = false;
  if (state == nullptr || !truth_of(PyDict_GetItemWithError(state, g_names.inside), &inside)) return false;
  if (!inside) return leave(hot, state, begun.outer);
  return Ref(PyObject_CallMethodObjArgs(recorder, g_names.leave_issue, static_cast<PyObject*>(begun.outer),
                                        static_cast<PyObject*>(begun.issued), nullptr)) != nullptr;
}

// Gives the exception that is set to how(recorder, issued, outer, error), which may raise another one, or that again.
inline bool handed_over(PyObject* how, PyObject* recorder, const Begun& begun) {
  const Ref error = taken_error();
  return Ref(PyObject_CallFunctionObjArgs(how, recorder, static_cast<PyObject*>(begun.issued),
                                          static_cast<PyObject*>(begun.outer), static_cast<PyObject*>(error),
                                          nullptr)) != nullptr;
}

// What torch's dispatcher calls for one kind of operation: kernel(keys, *arguments).
inline PyObject* kernel(PyObject* self, PyObject* given, PyObject* names) {
  const auto* way = static_cast<const Way*>(PyCapsule_GetPointer(self, kWayName));
  const Ref handed(way == nullptr ? Ref() : handed_on(given, way->after));
  if (handed == nullptr) return nullptr;
  const Ref recorder(PyObject_CallNoArgs(way->current));
  if (recorder == nullptr) return nullptr;
  if (recorder == Py_None) return PyObject_Call(way->redispatch, handed, names);
  Hot* hot = hot_of(recorder);
  Begun begun;
  if (!issue(hot, *way, recorder, given, &begun)) {
    begun = Begun();
    if (!settled(way->missed, recorder)) return nullptr;
  }
  Ref result(PyObject_Call(way->redispatch, handed, names));
  if (begun.issued == nullptr) return result.release();
  if (result == nullptr) {
    handed_over(way->refused, recorder, begun);
    return nullptr;
  }
  if (!taken(*hot, *way, recorder, begun, result) && !handed_over(way->left, recorder, begun)) return nullptr;
  return result.release();
}

}  // namespace ncclwatch
