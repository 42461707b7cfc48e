#include "lateness.h"

#include <algorithm>

#include "context.h"

namespace meshrun::emu {

void Absences::add(Absence a) {
  for (const Absence& other : all_)
    if (other.from_ns < a.to_ns && a.to_ns <= other.to_ns) a.to_ns = other.from_ns;
  if (a.from_ns >= a.to_ns) return;
  // What else it meets ended before it.
  std::erase_if(all_, [&](const Absence& other) { return a.from_ns <= other.from_ns && other.to_ns <= a.to_ns; });
  for (Absence& other : all_)
    if (other.from_ns < a.from_ns) other.to_ns = std::min(other.to_ns, a.from_ns);
  all_.insert(std::find_if(all_.begin(), all_.end(), [&](const Absence& other) { return other.from_ns > a.from_ns; }), a);
}

uint64_t Absences::ns() const {
  uint64_t ns = 0;
  for (const Absence& a : all_) ns += a.ns();
  return ns;
}

void Lateness::waited(Context& context, const Owed& owed, uint64_t from_ns, uint64_t to_ns) {
  const Launch& launch = context.launch();
  const uint32_t self = context.device();
  const auto came = [&](uint32_t d) { return launch.contexts[d].entered ? launch.contexts[d].start_ns : UINT64_MAX; };
  uint32_t debtor = owed.device;
  if (owed.device == Owed::kLine) {  // the last to come
    const Line line = Line::of(machine_, self, owed.axis);
    debtor = line.device(1);
    for (uint32_t i = 2; i < line.length; ++i)
      if (came(line.device(i)) > came(debtor)) debtor = line.device(i);
  }
  const uint64_t entry_ns = came(debtor);
  const Absences& theirs = launch.contexts[debtor].absences;
  if (debtor == self || (entry_ns <= from_ns && theirs.end_ns() <= from_ns)) return;

  const auto book = [&](uint64_t from, uint64_t to, uint32_t late) {
    if (from < to && late != self) context.absences.add({from, to, late});
  };
  // Until it came it is to blame itself, unless it was held up by others in earlier launches.
  const uint64_t absent_ns = std::min(to_ns, entry_ns);
  uint64_t done_ns = from_ns;
  if (from_ns < absent_ns)
    devices_[debtor].queues[launch.queue].for_each([&](const Absence& a) {
      const uint64_t from = std::max(a.from_ns, done_ns), to = std::min(a.to_ns, absent_ns);
      if (from >= to) return;
      book(done_ns, from, debtor);
      book(from, to, a.late);
      done_ns = to;
    });
  book(done_ns, absent_ns, debtor);
  // From then on, those that it waited for.
  for (const Absence& a : theirs.all()) book(std::max(a.from_ns, from_ns), std::min(a.to_ns, to_ns), a.late);
}

void Lateness::left(const Context& context) {
  for (const Absence& a : context.absences.all()) devices_[context.device()].queues[context.launch().queue].push(a);
}

void Lateness::sum_up(const Launch& launch, OperationStats& stats, std::vector<uint64_t>& per_device) {
  uint64_t most_ns = 0;
  for (uint32_t d = 0; d < devices_.size(); ++d) {
    const Absences& absences = launch.contexts[d].absences;
    if (absences.empty()) continue;
    const uint64_t ns = absences.ns();
    most_ns = std::max(most_ns, ns);
    per_device[d] += ns;
    for (const Absence& a : absences.all()) {
      Device& late = devices_[a.late];
      late.mine_ns += a.ns();
      late.most_ns = std::max(late.most_ns, late.mine_ns);
    }
    for (const Absence& a : absences.all()) devices_[a.late].mine_ns = 0;
  }
  if (most_ns == 0) return;
  stats.waiting_ns += most_ns;
  for (uint32_t d = 0; d < devices_.size(); ++d) {
    if (devices_[d].most_ns == 0) continue;
    auto late = std::find_if(stats.late.begin(), stats.late.end(), [&](const LateDevice& l) { return l.device == d; });
    if (late == stats.late.end()) late = stats.late.insert(late, {.device = d});
    ++late->launches;
    late->ns += std::exchange(devices_[d].most_ns, 0);
  }
}

}  // namespace meshrun::emu
