// A backend of c10d with the semantics of NCCL, on a CPU.
//
// - A collective returns when it is enqueued. Each group has a stream: a thread that runs its operations one after
//   the other, through a gloo backend of the same ranks.
// - wait() orders the host's current stream after the work and blocks nobody. What is enqueued later, in any group,
//   begins after all that the current stream waits for. barrier's wait() blocks the host, as NCCL's does.
// - The future of a work is complete at once, as NCCL's is: DDP goes on before its buckets are reduced.
// - The host blocks when the queue is full, and where it reads a value: the ops that synchronise on a GPU have a kernel here that waits for the
//   current stream. It has no Python frame.
//
// Not as on a GPU: what is computed on the tensors is computed by the host and waits for nothing, so a result that is
// used before it is read may be the old one.

#include <torch/extension.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/library.h>
#include <pybind11/stl.h>

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace {

using c10d::OpType;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

constexpr size_t kQueueMax = 100;  // the host can be so far ahead; CUDA's launch queue holds about a thousand kernels

std::atomic<bool> g_forked{false};  // a forked child has no streams, and must not wait for them
thread_local bool t_blocking = false;  // inside torch's C++ that reads what it waits for

class StreamWork;
using StreamWorkPtr = c10::intrusive_ptr<StreamWork>;

// A host that waits for a device lets other Python threads run.
class WithoutGil {
 public:
  WithoutGil() : python_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~WithoutGil() {
    if (python_ != nullptr) PyEval_RestoreThread(python_);
  }

 private:
  PyThreadState* python_;
};

// What the host's current stream waits for: works whose wait() has been called.
struct Current {
  std::mutex lock;
  std::vector<StreamWorkPtr> works;
  std::exception_ptr failure;  // the first of any stream: the device is lost, and says so wherever it is used next

  void fail(std::exception_ptr found) {
    std::lock_guard<std::mutex> guard(lock);
    if (!failure) failure = std::move(found);
  }

  void rethrow() {
    std::lock_guard<std::mutex> guard(lock);
    if (failure) std::rethrow_exception(failure);
  }

  std::vector<StreamWorkPtr> unfinished();
  void add(StreamWorkPtr work);
  void synchronize();
};

Current& current() {
  static auto* one = new Current();  // never destroyed: threads outlive main()
  return *one;
}

class StreamWork final : public c10d::Work {
 public:
  StreamWork(OpType type, std::vector<at::Tensor> outputs)
      : Work(-1, type), outputs_(std::move(outputs)), is_barrier_(type == OpType::BARRIER) {}

  bool wait(std::chrono::milliseconds) override {
    current().add(StreamWorkPtr::unsafe_reclaim_from_nonowning(this));
    if (is_barrier_ || t_blocking) current().synchronize();
    return true;
  }

  void synchronize() override { wait(kNoTimeout); }

  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    current().add(StreamWorkPtr::unsafe_reclaim_from_nonowning(this));
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
    future->markCompleted(at::IValue(outputs_));
    return future;
  }

  std::vector<at::Tensor> result() override { return outputs_; }

  void run(const std::function<WorkPtr()>& operation) {
    std::exception_ptr failure;
    try {
      WorkPtr inner = operation();
      if (inner) inner->wait();
    } catch (...) {
      failure = std::current_exception();
    }
    if (failure) current().fail(failure);
    finish(failure);
    *done = true;
  }

  const std::shared_ptr<std::atomic<bool>> done = std::make_shared<std::atomic<bool>>(false);

  void block() {
    std::unique_lock<std::mutex> guard(mutex_);
    cv_.wait(guard, [this] { return completed_; });
  }

 private:
  const std::vector<at::Tensor> outputs_;
  const bool is_barrier_;
};

std::vector<StreamWorkPtr> Current::unfinished() {
  std::lock_guard<std::mutex> guard(lock);
  std::erase_if(works, [](const StreamWorkPtr& work) { return work->isCompleted(); });
  return works;
}

void Current::add(StreamWorkPtr work) {
  std::lock_guard<std::mutex> guard(lock);
  for (const StreamWorkPtr& known : works) {
    if (known.get() == work.get()) return;
  }
  works.push_back(std::move(work));
}

void Current::synchronize() {
  if (g_forked) return;
  std::vector<StreamWorkPtr> waited;
  {
    std::lock_guard<std::mutex> guard(lock);
    waited.swap(works);
    works = waited;  // others may still be ordered after them
  }
  if (waited.empty()) return rethrow();
  {
    WithoutGil free;
    for (const StreamWorkPtr& work : waited) work->block();
  }
  rethrow();
  unfinished();
}

// One stream. Its thread holds the state, so that nobody who drops a group waits for it.
struct Stream {
  struct Item {
    StreamWorkPtr work;
    std::vector<StreamWorkPtr> after;
    std::function<WorkPtr()> operation;
  };

  std::mutex lock;
  std::condition_variable changed, shorter;
  std::deque<Item> items;
  std::atomic<uint64_t> completed{0};
  bool closed = false;

  void put(Item item) {
    {
      WithoutGil free;
      std::unique_lock<std::mutex> guard(lock);
      shorter.wait(guard, [this] { return items.size() < kQueueMax; });
      items.push_back(std::move(item));
    }
    changed.notify_one();
  }

  void close() {
    {
      std::lock_guard<std::mutex> guard(lock);
      closed = true;
    }
    changed.notify_one();
  }

  void run() {
    for (;;) {
      Item item;
      {
        std::unique_lock<std::mutex> guard(lock);
        changed.wait(guard, [this] { return closed || !items.empty(); });
        if (items.empty()) return;
        item = std::move(items.front());
        items.pop_front();
      }
      shorter.notify_all();
      for (const StreamWorkPtr& before : item.after) before->block();
      item.work->run(item.operation);
      ++completed;
    }
  }
};

// What NCCL's flight recorder keeps of a group: an entry for each operation, and one for each batch after those that
// are in it, which nobody marks. All of a batch has the same two sequence numbers.
class Log {
 public:
  struct Entry {
    std::string name;
    uint64_t collective, message, op;
    std::shared_ptr<std::atomic<bool>> done;  // of what is in a batch: none
  };

  void begin(bool message) {
    std::lock_guard<std::mutex> guard(lock_);
    ++(message ? message_ : collective_);
  }

  void add(std::string name, std::shared_ptr<std::atomic<bool>> done, bool counts = true) {
    std::lock_guard<std::mutex> guard(lock_);
    op_ += counts;
    entries_.push_back({std::move(name), collective_, message_, op_, std::move(done)});
    if (entries_.size() > kEntriesMax) entries_.pop_front();
    ++added_;
  }

  // (number, name, collective_seq_id, p2p_seq_id, op_id, whether it is complete)
  std::vector<std::tuple<uint64_t, std::string, uint64_t, uint64_t, uint64_t, bool>> entries() {
    std::lock_guard<std::mutex> guard(lock_);
    std::vector<std::tuple<uint64_t, std::string, uint64_t, uint64_t, uint64_t, bool>> found;
    uint64_t number = added_ - entries_.size();
    for (const Entry& each : entries_) {
      found.emplace_back(number++, each.name, each.collective, each.message, each.op, each.done && *each.done);
    }
    return found;
  }

 private:
  static constexpr size_t kEntriesMax = 2000;
  std::mutex lock_;
  std::deque<Entry> entries_;
  uint64_t collective_ = 0, message_ = 0, op_ = 0, added_ = 0;
};

class StreamBackend final : public c10d::Backend {
 public:
  StreamBackend(c10::intrusive_ptr<c10d::Backend> inner, int rank, int size)
      : Backend(rank, size), inner_(std::move(inner)), stream_(std::make_shared<Stream>()) {
    std::thread([stream = stream_] { stream->run(); }).detach();
  }

  ~StreamBackend() override { stream_->close(); }

  const std::string getBackendName() const override { return "stream"; }
  bool supportsCoalescing() const override { return true; }

  WorkPtr broadcast(std::vector<at::Tensor>& tensors, const c10d::BroadcastOptions& options) override {
    return call(options.asyncOp, OpType::BROADCAST, tensors,
               [=, inner = inner_]() mutable { return inner->broadcast(tensors, options); });
  }

  WorkPtr allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& options) override {
    return call(options.asyncOp, OpType::ALLREDUCE, tensors,
               [=, inner = inner_]() mutable { return inner->allreduce(tensors, options); });
  }

  WorkPtr allreduce_coalesced(std::vector<at::Tensor>& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override {
    return call(options.asyncOp, OpType::ALLREDUCE_COALESCED, tensors,
               [=, inner = inner_]() mutable { return inner->allreduce_coalesced(tensors, options); });
  }

  WorkPtr reduce(std::vector<at::Tensor>& tensors, const c10d::ReduceOptions& options) override {
    return call(options.asyncOp, OpType::REDUCE, tensors, [=, inner = inner_]() mutable { return inner->reduce(tensors, options); });
  }

  WorkPtr allgather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                    const c10d::AllgatherOptions& options) override {
    return call(options.asyncOp, OpType::ALLGATHER, outputs.empty() ? std::vector<at::Tensor>() : outputs[0],
               [=, inner = inner_]() mutable { return inner->allgather(outputs, inputs, options); });
  }

  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    return call(options.asyncOp, OpType::_ALLGATHER_BASE, {output},
               [=, inner = inner_]() mutable { return inner->_allgather_base(output, input, options); });
  }

  WorkPtr gather(std::vector<std::vector<at::Tensor>>& outputs, std::vector<at::Tensor>& inputs,
                 const c10d::GatherOptions& options) override {
    return call(options.asyncOp, OpType::GATHER, outputs.empty() ? std::vector<at::Tensor>() : outputs[0],
               [=, inner = inner_]() mutable { return inner->gather(outputs, inputs, options); });
  }

  WorkPtr scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                  const c10d::ScatterOptions& options) override {
    return call(options.asyncOp, OpType::SCATTER, outputs,
               [=, inner = inner_]() mutable { return inner->scatter(outputs, inputs, options); });
  }

  WorkPtr reduce_scatter(std::vector<at::Tensor>& outputs, std::vector<std::vector<at::Tensor>>& inputs,
                         const c10d::ReduceScatterOptions& options) override {
    return call(options.asyncOp, OpType::REDUCE_SCATTER, outputs,
               [=, inner = inner_]() mutable { return inner->reduce_scatter(outputs, inputs, options); });
  }

  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& options) override {
    return call(options.asyncOp, OpType::_REDUCE_SCATTER_BASE, {output},
               [=, inner = inner_]() mutable { return inner->_reduce_scatter_base(output, input, options); });
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_sizes,
                        std::vector<int64_t>& input_sizes, const c10d::AllToAllOptions& options) override {
    return call(options.asyncOp, OpType::ALLTOALL_BASE, {output}, [=, inner = inner_]() mutable {
      return inner->alltoall_base(output, input, output_sizes, input_sizes, options);
    });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    return call(options.asyncOp, OpType::BARRIER, {}, [=, inner = inner_]() { return inner->barrier(options); });
  }

  // As NCCL's: one after the other in the stream, unless they are issued together (batch_isend_irecv).
  WorkPtr send(std::vector<at::Tensor>& tensors, int target, int tag) override {
    return put_p2p(OpType::SEND, "send " + std::to_string(getRank()) + "->" + std::to_string(target), {},
                   [=, inner = inner_]() mutable { return inner->send(tensors, target, tag); });
  }

  WorkPtr recv(std::vector<at::Tensor>& tensors, int source, int tag) override {
    return put_p2p(OpType::RECV, "recv " + std::to_string(getRank()) + "<-" + std::to_string(source), tensors,
                   [=, inner = inner_]() mutable { return inner->recv(tensors, source, tag); });
  }

  void startCoalescing() override { together_.emplace(); }

  WorkPtr endCoalescing() override {
    std::vector<std::function<WorkPtr()>> operations;
    if (together_) operations = std::move(*together_);
    together_.reset();
    StreamWorkPtr work = put(OpType::COALESCED, {}, [operations]() -> WorkPtr {
      std::vector<WorkPtr> begun;
      for (const auto& operation : operations) begun.push_back(operation());
      for (const auto& work : begun) work->wait();
      return {};
    });
    if (!operations.empty()) log_.add("coalesced", work->done, false);
    return work;
  }

  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return enqueued_; }
  uint64_t completed() const { return stream_->completed; }
  Log& log() { return log_; }
  void setTimeout(std::chrono::milliseconds) override {}
  void shutdown() override { current().synchronize(); }

 private:
  // As NCCL's: a call that only has to come before what follows in the caller's stream is ordered here, and has no work.
  WorkPtr call(bool async, OpType type, std::vector<at::Tensor> outputs, std::function<WorkPtr()> operation) {
    StreamWorkPtr work = put(type, std::move(outputs), std::move(operation));
    log_.begin(false);
    log_.add(c10d::opTypeToString(type), work->done);
    if (async) return work;
    work->wait(kNoTimeout);
    return {};
  }

  StreamWorkPtr put(OpType type, std::vector<at::Tensor> outputs, std::function<WorkPtr()> operation) {
    current().rethrow();
    auto work = c10::make_intrusive<StreamWork>(type, std::move(outputs));
    ++enqueued_;
    stream_->put({work, current().unfinished(), std::move(operation)});
    return work;
  }

  WorkPtr put_p2p(OpType type, std::string name, std::vector<at::Tensor> outputs, std::function<WorkPtr()> operation) {
    if (together_) {
      if (together_->empty()) log_.begin(true);
      log_.add(std::move(name), {});
      together_->push_back(std::move(operation));
      return {};
    }
    StreamWorkPtr work = put(type, std::move(outputs), std::move(operation));
    log_.begin(true);
    log_.add(std::move(name), work->done);
    return work;
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  std::shared_ptr<Stream> stream_;
  uint64_t enqueued_ = 0;
  Log log_;
  std::optional<std::vector<std::function<WorkPtr()>>> together_;
};

// Ops that synchronise on a GPU: their result, or its size, goes to the host.
constexpr const char* kReads[] = {"_local_scalar_dense", "equal", "nonzero", "masked_select", "_unique2",
                                  "unique_dim", "unique_consecutive", "is_set_to"};

class Read final : public c10::OperatorKernel {
 public:
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    current().synchronize();
    op.redispatchBoxed(
        keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, c10::DispatchKey::BackendSelect), stack);
  }
};

void watch_reads() {
  static torch::Library* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::BackendSelect, __FILE__, __LINE__);
  for (const char* name : kReads) {
    library->impl(name, torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Read>()));
  }
  pthread_atfork(nullptr, nullptr, [] { g_forked = true; });
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, module) {
  pybind11::class_<StreamBackend, c10d::Backend, c10::intrusive_ptr<StreamBackend>>(module, "StreamBackend")
      .def(pybind11::init<c10::intrusive_ptr<c10d::Backend>, int, int>(),
           pybind11::call_guard<pybind11::gil_scoped_release>())
      .def_property_readonly("enqueued", [](StreamBackend& self) { return self.getSequenceNumberForGroup(); })
      .def_property_readonly("completed", &StreamBackend::completed)
      .def_property_readonly("entries", [](StreamBackend& self) { return self.log().entries(); });
  module.def("watch_reads", &watch_reads);
  module.def("synchronize", [] { current().synchronize(); });
  module.def("set_blocking", [](bool on) { return std::exchange(t_blocking, on); });
}
