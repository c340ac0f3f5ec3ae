// Drives the torch side against a stand-in for torch (stand_in/), from many threads at once: for the sanitizers.
//
// Threads issue collectives and sends and wait for them; a backend's own thread ends the works; a pulse asks all groups;
// groups are destroyed and made anew, as often as is asked; the rank detaches and attaches. Says "over" at its end.

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>

#include "../../ncclwatch/native/sources/torch_side.cpp"

namespace {

using namespace ncclwatch;

constexpr int kIssuing = 3;
constexpr int kGroups = 4;
constexpr int kAllReduce = 1, kSend = 2, kRecv = 3;
constexpr int kWaitCollective = 1, kWaitSend = 2, kWaitRecv = 3;
constexpr int kBurst = 40;
constexpr uint64_t kAttached = 4;  // groups are destroyed before the rank detaches
constexpr int kRows = 8192;  // a row is given again only when nobody has it any more

const Torch& side = *ncclwatch_torch_side();
std::atomic<bool> over{false};   // nothing new is issued
std::atomic<bool> ended{false};  // and nobody waits any more

// -- a backend that ends its works on a thread of its own --------------------------------------------

std::mutex under_way_lock;
std::condition_variable under_way_more;
std::deque<std::shared_ptr<c10d::Work>> under_way;

void back(c10::Stack* stack) {
  auto work = std::make_shared<c10d::Work>();
  {
    std::lock_guard<std::mutex> guard(under_way_lock);
    under_way.push_back(work);
  }
  under_way_more.notify_one();
  stack->clear();
  stack->push_back(c10::IValue::boxed(c10::IValue::Capsule(std::move(work))));
}

void end_works() {
  for (;;) {
    std::shared_ptr<c10d::Work> work;
    {
      std::unique_lock<std::mutex> guard(under_way_lock);
      under_way_more.wait(guard, [] { return ended || !under_way.empty(); });
      if (under_way.empty()) return;
      work = std::move(under_way.front());
      under_way.pop_front();
    }
    work->through.store(true, std::memory_order_release);
  }
}

// -- groups, which come and go -------------------------------------------------------------------------

std::mutex groups_lock;
std::shared_ptr<c10d::ProcessGroup> groups[kGroups];
std::atomic<int> made{0};

std::shared_ptr<c10d::ProcessGroup> fresh_group() {
  auto group = std::make_shared<c10d::ProcessGroup>();
  group->name = "group " + std::to_string(made++);
  return group;
}

std::shared_ptr<c10d::ProcessGroup> group_at(int number) {
  std::lock_guard<std::mutex> guard(groups_lock);
  return groups[number % kGroups];
}

// -- what the Python side would answer -------------------------------------------------------------------

std::atomic<int> rows{0};

Python answers() {
  return {
      nullptr,
      [](void*) { return false; },
      [](void*) { return rows++ % kRows; },
      [](void*, int group, int) { return group; },
      [](void*, bool) -> uint32_t { return 7; },
      [](void*, uint32_t site, uint32_t label) { return site + label; },
      [](void*) {},
      [](void*, int) {},
  };
}

const Python python = answers();
std::vector<uint64_t> memory(1 << 20);

void attach() {
  Layout at{};
  at.group_bytes = at.thread_bytes = at.peer_bytes = 64, at.wait_at = 32, at.meter_bytes = 256;
  at.groups_at = 4096;
  at.threads_at = at.groups_at + kRows * at.group_bytes;
  at.peers_at = at.threads_at + kRows * at.thread_bytes;
  at.meters_at = at.peers_at + kRows * at.peer_bytes;
  at.events_at = at.meters_at + kRows * at.meter_bytes;
  at.meters_max = kRows, at.events_max = 1 << 10;
  at.word_events_head = 0, at.word_forwards = 1, at.word_dropped = 2, at.word_batch = 3, at.word_backward_site = 4;
  at.word_waited = 5, at.word_peers_waited = 6;
  const Codes codes{kSend, kRecv, kAllReduce, 4, kWaitCollective, kWaitSend, kWaitRecv, 10, 9, 1 << kAllReduce, 5};
  const uint8_t dtypes[] = {1, 2, 3};
  side.begin(reinterpret_cast<char*>(memory.data()), &at, &codes, dtypes, 3, &python);
}

// -- what the program does ---------------------------------------------------------------------------------

std::shared_ptr<c10d::Work> issue(const char* name, const std::shared_ptr<c10d::ProcessGroup>& group) {
  c10::Stack stack;
  stack.push_back(c10::IValue{at::Tensor{5}});
  stack.push_back(c10::IValue::boxed(c10::IValue::Capsule(group)));
  stack.push_back(c10::IValue{int64_t{0}});
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(&stack);
  return std::static_pointer_cast<c10d::Work>(stack.back().toObjectRef().getSlot(0).toCapsule().shared());
}

// As Work.wait of the Python side.
void wait(const std::shared_ptr<c10d::Work>& work) {
  Waited waited;
  const bool known = side.find_work(work.get(), &waited);
  if (known) side.enter_work(&waited, 9);
  while (!work->isCompleted()) std::this_thread::yield();
  if (known) side.leave_work(&waited, work.get(), true);
}

void train(int number) {
  for (int round = number; !over; ++round) {
    const auto group = group_at(round);
    side.set_label(static_cast<uint32_t>(round % 3));
    std::vector<std::shared_ptr<c10d::Work>> works;
    const long outer = side.enter_region();
    if (round % 3 != 0) side.begin_batch();
    for (int n = 0; n < kBurst; ++n) {
      works.push_back(issue(n % 3 == 0 ? "c10d::send" : n % 3 == 1 ? "c10d::recv_" : "c10d::allreduce_", group));
    }
    side.leave_region(outer);
    if (round % 3 == 1) side.end_batch(works.back().get());  // else it is left open, as by an exception
    for (const auto& work : works) {
      if (round % 2 == 0) wait(work);
    }
    side.enter_wait(9, 3, 0);
    side.leave_wait();
  }
}

void pulse() {
  for (uint64_t round = 0; !over; ++round) {
    side.drain_all();
    side.sweep();
    const std::string name = group_at(static_cast<int>(round))->name;
    const uint64_t numels[] = {5, 5};
    const uint32_t labels[] = {1, 2};
    side.set_buckets(name.c_str(), numels, labels, 2);
    side.begin_backward();
    side.set_completed(name.c_str(), round);
  }
}

void destroy_groups(uint64_t rounds) {
  for (uint64_t round = 0; round < rounds; ++round) {
    const auto fresh = fresh_group();
    std::shared_ptr<c10d::ProcessGroup> gone;
    {
      std::lock_guard<std::mutex> guard(groups_lock);
      gone = std::exchange(groups[round % kGroups], fresh);
    }
    side.forget_group(gone->name.c_str());
    std::this_thread::yield();
    if (round % kAttached == 0) {
      side.end();
      attach();
    }
  }
  over = true;
}

void make_ops() {
  auto& ops = c10::Dispatcher::singleton().ops;
  for (const char* name : {"c10d::allreduce_", "c10d::send", "c10d::recv_", "_c10d_functional::wait_tensor"}) {
    ops[name] = {{{"tensor", "group", "peer"}, {"work"}}, {}, back};
  }
  ops["ncclwatch::new_group"].backend = [](c10::Stack* stack) {
    static std::atomic<int64_t> number{0};
    const int64_t n = number++;
    // Every other group is on a device: nobody holds its works, and its backend tells what is complete.
    stack->push_back(c10::IValue{std::vector<int64_t>{n % kRows, 0, (n + 1) % 2, n % 2, 0}});
  };
}

}  // namespace

int main(int, char** arguments) {
  make_ops();
  for (auto& group : groups) group = fresh_group();
  const Spec specs[] = {
      {"allreduce_", kAllReduce, 0, 1, -1, -1, -1, 1, 0},
      {"send", kSend, 0, 1, 2, -1, -1, 1, 1},
      {"recv_", kRecv, 0, 1, 2, -1, -1, 1, 1},
  };
  if (side.declare() != nullptr || !side.install(specs, 3)) return 1;
  attach();
  std::thread backend(end_works);
  std::vector<std::thread> threads;
  for (int n = 0; n < kIssuing; ++n) threads.emplace_back(train, n);
  threads.emplace_back(pulse);
  threads.emplace_back(pulse);
  threads.emplace_back(destroy_groups, std::strtoul(arguments[1], nullptr, 10));
  for (auto& thread : threads) thread.join();
  {
    std::lock_guard<std::mutex> guard(under_way_lock);
    ended = true;
  }
  under_way_more.notify_all();
  backend.join();
  side.end();
  std::puts("over");
  return 0;
}
