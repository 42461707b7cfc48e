// launch.h: what the host hands to the engine. A Plan is one validated operation: its operands, and the program that each device
// runs. A Launch is its way through a queue.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "arguments.h"
#include "cost.h"
#include "dataflow.h"
#include "device_memory.h"
#include "program.h"
#include "semaphores.h"
#include "vector_clock.h"

namespace meshrun::emu {

class Context;
class Engine;

using SemaphoreRef = std::shared_ptr<Semaphore>;

// Operand is a tensor as a plan holds it: memory and how to look at it.
struct Operand {
  std::shared_ptr<Storage> storage;
  Spec spec;

  explicit operator bool() const { return storage != nullptr; }
  Memory& at(uint32_t device) const { return storage->at(device); }
  View view(uint32_t device) const { return storage ? View{storage->at(device).data, spec.dtype, spec.shape} : View{}; }
  Region whole() const { return Region::contiguous(0, spec.bytes()); }
  Access read(uint32_t device) const { return {&storage->at(device), whole(), false}; }
  Access write(uint32_t device) const { return {&storage->at(device), whole(), true}; }
};

class Plan {
 public:
  virtual ~Plan() = default;
  virtual const char* name() const = 0;
  virtual Program run(Context& context) const = 0;  // the program of one device

  // Storages that the plan uses, for the counts in Storage.
  struct Use {
    std::shared_ptr<Storage> storage;
    bool writes;
  };
  std::vector<Use> uses;

  // What its transfers and computing cost (cost.h).
  const Work* work = &kOtherWork;
  uint64_t increment_bytes = 1;  // on a link, that one increment stands for
  // It begins with a barrier: nobody may write to a peer, or raise more than the barrier, before the peer has entered.
  bool joins_first = false;
  // False: devices do it in their own time, beside what stands behind it in the queue. Events behind it wait for it all the same.
  bool in_queue = true;
  uint32_t axis = UINT32_MAX;  // of a collective: the first that it names
  Arguments arguments;
  bool has_peers = false;  // it names semaphores: what one device does another waits for
};

class Launch final : public DataOwner {
 public:
  Launch(Engine& engine, uint32_t devices);
  ~Launch() override;
  void reset();
  void data_done() override;

  std::shared_ptr<Plan> plan;  // null: a wait for an event
  uint32_t queue = 0;
  uint64_t number = 0;  // counts launches on the mesh, from 1; 0 = a write, or a wait for an event
  uint64_t seq = 0;     // the runtime's launch number
  StreamTag stream;
  uint64_t enqueued_ns = 0;
  // What the host had seen done when it enqueued this: commands per queue.
  std::array<uint64_t, 2> host_seen{};
  uint64_t fenced = 0;  // what was made up to here was fenced before

  // of a wait for an event
  uint32_t awaited_queue = 0;
  uint64_t awaited_position = 0;

  // the engine's
  std::unique_ptr<Context[]> contexts;
  LaunchTag tag;
  bool hangs = false;  // a fault: no device does anything in it
  bool fails = false;
  bool drops_barrier = false;  // nobody announces itself at its start barrier, and nobody waits there
  uint64_t late_ns = 0;
  // of the watch
  uint64_t limit_ns = 0;     // without progress; 0 = none
  uint64_t active_ns = 0;    // up to when something of it is known to be under way
  uint64_t progress_ns = 0;  // the same, with what its devices do before it; at the last look
  uint64_t deadline_ns = 0;
  void active_until(uint64_t ns) { active_ns = std::max(active_ns, ns); }
  // Devices that have another shape of the first input than the rest.
  struct Other {
    uint32_t device;
    Shape shape;
  };
  std::vector<Other> others;
  bool others_told = false;
  const Shape* other_shape(uint32_t device) const {
    for (const Other& o : others)
      if (o.device == device) return &o.shape;
    return nullptr;
  }
  std::vector<std::vector<Word*>> words;  // by device: words that this launch took over; the checker's
  uint32_t devices_left = 0;
  uint64_t start_ns = UINT64_MAX;
  uint64_t end_ns = 0;

  bool retired = false;  // on every device, in virtual time; under the lock

 private:
  Engine& engine_;
  uint32_t devices_;
};

}  // namespace meshrun::emu
