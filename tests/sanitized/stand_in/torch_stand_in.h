// As much of torch's C++ as torch_side.cpp uses, all of it instrumented: a sanitizer cannot look into the real one.
//
// An op is a name with a kernel of ours in front of a backend; whoever calls it puts its arguments on a stack.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

namespace torch {
struct CustomClassHolder {
  virtual ~CustomClassHolder() = default;
};
}  // namespace torch

namespace c10 {

template <typename T>
class intrusive_ptr {
 public:
  intrusive_ptr() = default;
  explicit intrusive_ptr(std::shared_ptr<T> held) : held_(std::move(held)) {}
  T* get() const { return held_.get(); }
  T* operator->() const { return held_.get(); }
  T& operator*() const { return *held_; }
  explicit operator bool() const { return held_ != nullptr; }
  size_t use_count() const { return static_cast<size_t>(held_.use_count()); }
  const std::shared_ptr<T>& shared() const { return held_; }

 private:
  std::shared_ptr<T> held_;
};

template <typename T, typename U>
intrusive_ptr<T> static_intrusive_pointer_cast(const intrusive_ptr<U>& from) {
  return intrusive_ptr<T>(std::static_pointer_cast<T>(from.shared()));
}

enum class ScalarType : int8_t { Byte, Char, Float };
enum class DeviceType : int8_t { CPU, CUDA };

namespace impl {

// One device with one stream, in which all work is.
struct VirtualGuardImpl {
  explicit VirtualGuardImpl(DeviceType) {}
  int getDevice() const { return 0; }
  int getStream(int) const { return 0; }
  int getDefaultStream(int) const { return 0; }
};

inline bool hasDeviceGuardImpl(DeviceType) { return true; }

}  // namespace impl

}  // namespace c10

namespace at {
struct Tensor {
  int64_t elements = 1;
  int64_t numel() const { return elements; }
  c10::ScalarType scalar_type() const { return c10::ScalarType::Float; }
  bool is_cpu() const { return true; }
  bool is_cuda() const { return false; }
  bool is_meta() const { return false; }
  int64_t get_device() const { return -1; }
};
struct GradMode {
  static bool is_enabled() { return true; }
};
}  // namespace at

namespace c10 {

struct IValue;

struct Object {
  std::vector<IValue> slots;
  const IValue& getSlot(size_t n) const;
};

struct IValue {
  using Capsule = intrusive_ptr<torch::CustomClassHolder>;
  std::variant<std::monostate, at::Tensor, std::vector<IValue>, std::shared_ptr<Object>, Capsule, int64_t, bool,
               std::vector<int64_t>>
      held;

  bool isTensor() const { return std::holds_alternative<at::Tensor>(held); }
  bool isList() const { return std::holds_alternative<std::vector<IValue>>(held); }
  bool isObject() const { return std::holds_alternative<std::shared_ptr<Object>>(held); }
  const at::Tensor& toTensor() const { return std::get<at::Tensor>(held); }
  const std::vector<IValue>& toListRef() const { return std::get<std::vector<IValue>>(held); }
  const Object& toObjectRef() const { return *std::get<std::shared_ptr<Object>>(held); }
  const Capsule& toCapsule() const { return std::get<Capsule>(held); }
  int64_t toInt() const { return std::get<int64_t>(held); }
  bool toBool() const { return std::get<bool>(held); }
  std::vector<int64_t> toIntVector() const { return std::get<std::vector<int64_t>>(held); }

  // A C++ object as torch's Python hands it to an op: in the first slot of an object.
  static IValue boxed(Capsule capsule) {
    auto object = std::make_shared<Object>();
    object->slots.push_back(IValue{std::move(capsule)});
    return IValue{std::move(object)};
  }
};

inline const IValue& Object::getSlot(size_t n) const { return slots[n]; }

enum class DispatchKey { CPU, BackendSelect };

struct DispatchKeySet {
  enum FullAfter { FULL_AFTER };
  DispatchKeySet() = default;
  explicit DispatchKeySet(DispatchKey) {}
  DispatchKeySet(FullAfter, DispatchKey) {}
  friend DispatchKeySet operator&(DispatchKeySet left, DispatchKeySet) { return left; }
};

struct FunctionSchema {
  std::vector<std::string> arguments_, returns_;
  const std::vector<std::string>& arguments() const { return arguments_; }
  const std::vector<std::string>& returns() const { return returns_; }
};

struct OperatorKernel {
  virtual ~OperatorKernel() = default;
};

class OperatorHandle;
using Stack = std::vector<IValue>;
using Boxed = std::function<void(const OperatorHandle&, DispatchKeySet, Stack*)>;

// What an op is: what it takes and gives, the kernel that stands before its backend, and the backend.
struct Op {
  FunctionSchema schema;
  Boxed before;
  std::function<void(Stack*)> backend;
};

class OperatorHandle {
 public:
  explicit OperatorHandle(const Op* op) : op_(op) {}
  const FunctionSchema& schema() const { return op_->schema; }
  void redispatchBoxed(DispatchKeySet, Stack* stack) const { op_->backend(stack); }
  void callBoxed(Stack* stack) const { op_->before(*this, DispatchKeySet(), stack); }

 private:
  const Op* op_;
};

class Dispatcher {
 public:
  static Dispatcher& singleton() {
    static Dispatcher dispatcher;
    return dispatcher;
  }
  OperatorHandle findSchemaOrThrow(const char* name, const char*) { return OperatorHandle(&ops.at(name)); }
  std::map<std::string, Op> ops;
};

}  // namespace c10

namespace c10d {

struct ReduceOp : torch::CustomClassHolder {
  int op_ = 0;
};

struct Work : torch::CustomClassHolder {
  std::atomic<bool> through{false};
  virtual bool isCompleted() {
    std::this_thread::yield();  // some take a lock here, or Python's
    return through.load(std::memory_order_acquire);
  }
};

struct ProcessGroup : torch::CustomClassHolder {
  std::string name;
  const std::string& getGroupName() const { return name; }
  int getRank() const { return 0; }
  int getSize() const { return 1; }
};

}  // namespace c10d

namespace torch {

namespace jit {
using Stack = c10::Stack;
}

struct CppFunction {
  c10::Boxed boxed;
  template <typename Functor>
  static CppFunction makeFromBoxedFunctor(std::unique_ptr<Functor> functor) {
    std::shared_ptr<Functor> held = std::move(functor);
    return {[held](const c10::OperatorHandle& op, c10::DispatchKeySet keys, c10::Stack* stack) {
      (*held)(op, keys, stack);
    }};
  }
};

class Library {
 public:
  enum Kind { IMPL, FRAGMENT };
  Library(Kind, std::string space, std::optional<c10::DispatchKey>, const char*, int) : space_(std::move(space)) {}
  void impl(const std::string& name, CppFunction function) {
    c10::Dispatcher::singleton().ops[space_ + "::" + name].before = std::move(function.boxed);
  }
  void def(const char*) {}
  template <typename Function>
  void def(const char*, Function) {}

 private:
  std::string space_;
};

}  // namespace torch
