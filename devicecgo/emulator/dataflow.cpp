#include "dataflow.h"

#include <algorithm>
#include <exception>

#include "errors.h"

namespace meshrun::emu {

// Job is one kernel's split: pieces of [0, n) that any thread may take.
struct DataFlow::Job {
  Job(const std::function<void(size_t, size_t)>& f, size_t items, size_t per_piece, const std::atomic<bool>& stopped)
      : fn(f), n(items), piece(per_piece), stop(stopped) {}

  const std::function<void(size_t, size_t)>& fn;
  size_t n, piece;
  std::atomic<size_t> next{0};
  const std::atomic<bool>& stop;
  unsigned helpers = 0;      // under the lock
  std::exception_ptr error;  // under the lock

  bool open() const { return next.load(std::memory_order_relaxed) < n; }
  void take_pieces() {
    while (!stop.load(std::memory_order_relaxed)) {
      const size_t begin = next.fetch_add(piece, std::memory_order_relaxed);
      if (begin >= n) return;
      fn(begin, std::min(begin + piece, n));
    }
  }
};

class DataFlow::Team final : public Parallel {
 public:
  explicit Team(DataFlow& flow) : flow_(flow) {}

  void run(size_t n, size_t grain, const std::function<void(size_t, size_t)>& fn) override {
    if (n == 0) return;
    // Several pieces per thread even things out, and let a close that comes in between take effect.
    const size_t piece = std::max({grain, n / (size_t{flow_.threads_} * 8), size_t{1}});
    Job job(fn, n, piece, flow_.monitor_.stop);
    if (flow_.threads_ == 1 || n <= piece) {
      job.take_pieces();
      return;
    }
    Monitor& monitor = flow_.monitor_;
    {
      std::lock_guard lock(monitor.mutex);
      flow_.jobs_.push_back(&job);
      flow_.wake_for_work((n + piece - 1) / piece - 1);
    }
    std::exception_ptr error;
    try {
      job.take_pieces();
    } catch (...) {
      error = std::current_exception();
    }
    std::unique_lock lock(monitor.mutex);
    std::erase(flow_.jobs_, &job);
    monitor.team.wait(lock, [&] { return job.helpers == 0; });
    if (!error) error = job.error;
    lock.unlock();
    if (error) std::rethrow_exception(error);
  }

 private:
  DataFlow& flow_;
};

DataFlow::DataFlow(Monitor& monitor, unsigned threads) : monitor_(monitor), threads_(threads), team_(std::make_unique<Team>(*this)) {
  for (unsigned i = 1; i < threads; ++i) workers_.emplace_back([this] { work(); });
}

DataFlow::~DataFlow() {
  {
    std::lock_guard lock(monitor_.mutex);
    monitor_.stop = true;
    monitor_.workers.notify_all();
  }
  for (std::thread& t : workers_) t.join();
}

bool DataFlow::blocked(std::span<const Access> accesses) {
  blockers_.clear();
  if (outstanding_ == 0) return false;
  for (const Access& a : accesses) {
    if (a.region.empty()) continue;
    a.memory->ledger.conflicts(a.region, a.write, a.memory->bytes, [&](Task* task) {
      if (!task->done_.load(std::memory_order_acquire)) blockers_.push_back(task);
    });
  }
  return !blockers_.empty();
}

Task* DataFlow::fresh_task(DataOwner& owner, std::span<const Access> accesses) {
  if (accesses.size() > Task::kAccesses) throw error(MR_INTERNAL, "data work with %zu accesses: at most %zu", accesses.size(), Task::kAccesses);
  if (free_ == nullptr) {
    tasks_.push_back(std::make_unique<Task>());
    tasks_.back()->next_ = nullptr;
    free_ = tasks_.back().get();
  }
  Task* task = free_;
  free_ = task->next_;
  task->done_.store(false, std::memory_order_relaxed);
  task->owner_ = &owner;
  task->entry_count_ = 0;
  for (const Access& a : accesses) {
    if (a.region.empty()) continue;
    LedgerEntry& entry = task->entries_[task->entry_count_++];
    entry.task = task;
    entry.region = a.region;
    entry.write = a.write;
    a.memory->ledger.add(entry, a.memory->bytes);
  }
  ++outstanding_;
  return task;
}

void DataFlow::hand_over(Task* task) {
  // One memory conflicts with a task by several entries; it must be waited for once.
  std::sort(blockers_.begin(), blockers_.end());
  blockers_.erase(std::unique(blockers_.begin(), blockers_.end()), blockers_.end());
  std::lock_guard lock(monitor_.mutex);
  ++task->owner_->open_work;
  task->blockers_ = 0;
  for (Task* earlier : blockers_) {
    if (earlier->done_.load(std::memory_order_relaxed)) continue;
    earlier->successors_.push_back(task);
    ++task->blockers_;
  }
  if (task->blockers_ == 0) {
    push_back(task);
    if (monitor_.workers_asleep != 0) monitor_.workers.notify_one();
  }
}

void DataFlow::fail(DataOwner& owner, std::exception_ptr error) {
  int32_t code = MR_INTERNAL;
  std::string text = "unknown exception";
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    code = e.code();
    text = e.what();
  } catch (const std::exception& e) {
    text = e.what();
  } catch (...) {
  }
  std::lock_guard lock(monitor_.mutex);
  if (!owner.failure.empty()) return;
  owner.failure_code = code;
  owner.failure = std::move(text);
}

void DataFlow::run(Task* task, std::unique_lock<std::mutex>& lock) {
  std::array<Task*, kMostChained> chain{task};
  size_t n = 1;
  while (n < kMostChained && (chain[n] = take_next_of_chain(*chain[n - 1])) != nullptr) ++n;
  ++running_;
  lock.unlock();
  if (!monitor_.stop.load(std::memory_order_relaxed))
    guarded(*task->owner_, [&] {
      if (n == 1) {
        task->call_(task->closure_, *team_);
      } else {
        task->call_chain_(chain.data(), n, *team_);
      }
    });
  lock.lock();
  --running_;
  size_t freed = 0;
  for (size_t i = 0; i < n; ++i) freed += finish(chain[i]);
  if (freed > 1) wake_for_work(freed - 1);
}

// The piece that does the next hop of the same chunk, if it waits for this one alone. It is then the caller's to do.
Task* DataFlow::take_next_of_chain(Task& task) {
  if (task.chain_.id == 0) return nullptr;
  for (auto it = task.successors_.begin(); it != task.successors_.end(); ++it) {
    Task* next = *it;
    if (next->blockers_ != 1 || next->owner_ != task.owner_ || next->chain_ != task.chain_ || next->call_chain_ != task.call_chain_) continue;
    next->blockers_ = 0;
    task.successors_.erase(it);
    return next;
  }
  return nullptr;
}

size_t DataFlow::finish(Task* task) {
  task->done_.store(true, std::memory_order_release);
  size_t freed = 0;
  for (size_t i = task->successors_.size(); i-- > 0;) {  // backwards, so that the first comes to stand in front
    Task* next = task->successors_[i];
    if (--next->blockers_ != 0) continue;
    push_front(next);
    ++freed;
  }
  task->successors_.clear();
  task->next_ = finished_;
  finished_ = task;
  DataOwner* owner = task->owner_;
  if (--owner->open_work == 0) {
    owner->data_done();
    monitor_.wake_engine();
  } else if (want_room_) {
    monitor_.wake_engine();
  }
  return freed;
}

void DataFlow::wake_for_work(size_t pieces) {
  for (size_t i = 0; i < std::min<size_t>(pieces, monitor_.workers_asleep); ++i) monitor_.workers.notify_one();
  if (pieces > monitor_.workers_asleep) monitor_.wake_engine();
}

bool DataFlow::join_job(std::unique_lock<std::mutex>& lock) {
  for (Job* job : jobs_) {
    if (!job->open()) continue;
    ++job->helpers;
    lock.unlock();
    std::exception_ptr error;
    try {
      job->take_pieces();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !job->error) job->error = error;
    if (--job->helpers == 0) monitor_.team.notify_all();
    return true;
  }
  return false;
}

bool DataFlow::help(std::unique_lock<std::mutex>& lock) {
  if (Task* task = pop()) {
    run(task, lock);
    return true;
  }
  return join_job(lock);
}

void DataFlow::work() {
  std::unique_lock lock(monitor_.mutex);
  while (!monitor_.stop.load(std::memory_order_relaxed)) {
    if (help(lock)) continue;
    ++monitor_.workers_asleep;
    monitor_.workers.wait(lock);
    --monitor_.workers_asleep;
  }
}

void DataFlow::reclaim(std::unique_lock<std::mutex>&) {
  while (Task* task = finished_) {
    finished_ = task->next_;
    for (uint32_t i = 0; i < task->entry_count_; ++i) Ledger::remove(task->entries_[i]);
    task->next_ = free_;
    free_ = task;
    --outstanding_;
  }
}

void DataFlow::abandon(std::unique_lock<std::mutex>& lock) {
  ready_head_ = ready_tail_ = nullptr;
  ready_count_ = 0;
  while (running_ != 0) {
    // What runs may still free others; they are dropped too.
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
    ready_head_ = ready_tail_ = nullptr;
    ready_count_ = 0;
  }
}

void DataFlow::push_front(Task* task) {
  task->next_ = ready_head_;
  ready_head_ = task;
  if (ready_tail_ == nullptr) ready_tail_ = task;
  ++ready_count_;
}

void DataFlow::push_back(Task* task) {
  task->next_ = nullptr;
  (ready_tail_ != nullptr ? ready_tail_->next_ : ready_head_) = task;
  ready_tail_ = task;
  ++ready_count_;
}

Task* DataFlow::pop() {
  Task* task = ready_head_;
  if (task == nullptr) return nullptr;
  ready_head_ = task->next_;
  if (ready_head_ == nullptr) ready_tail_ = nullptr;
  --ready_count_;
  return task;
}

}  // namespace meshrun::emu
