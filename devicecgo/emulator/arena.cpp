#include "arena.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "errors.h"

namespace meshrun::emu {

Arena::Arena(uint64_t capacity, uint64_t unit, From from) : capacity_(capacity), unit_(unit), from_(from) {
  if (const uint64_t whole = capacity / unit * unit; whole != 0) free_.emplace(0, whole);
}

std::optional<uint64_t> Arena::take(uint64_t bytes, std::string owner) {
  const uint64_t size = round(std::max<uint64_t>(bytes, 1));
  const auto enough = [&](const auto& block) { return block.second >= size; };
  auto block = free_.end();
  if (from_ == From::bottom) {
    block = std::find_if(free_.begin(), free_.end(), enough);
  } else if (const auto last = std::find_if(free_.rbegin(), free_.rend(), enough); last != free_.rend()) {
    block = std::prev(last.base());
  }
  if (block == free_.end()) return std::nullopt;
  const auto [start, length] = *block;
  const uint64_t address = from_ == From::bottom ? start : start + length - size;
  free_.erase(block);
  if (length != size) free_.emplace(from_ == From::bottom ? start + size : start, length - size);
  live_.emplace(address, Live{size, std::move(owner)});
  live_bytes_ += size;
  peak_ = std::max(peak_, live_bytes_);
  return address;
}

void Arena::give_back(uint64_t address) {
  const auto live = live_.find(address);
  if (live == live_.end()) throw error(MR_INTERNAL, "memory at %llu is given back twice", static_cast<unsigned long long>(address));
  uint64_t start = address, length = live->second.bytes;
  live_bytes_ -= length;
  live_.erase(live);
  auto next = free_.lower_bound(start);
  if (next != free_.end() && next->first == start + length) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == start) {
      start = before->first;
      length += before->second;
      free_.erase(before);
    }
  }
  free_.emplace(start, length);
}

uint64_t Arena::largest_free() const {
  uint64_t largest = 0;
  for (const auto& [address, bytes] : free_) largest = std::max(largest, bytes);
  return largest;
}

std::string Arena::owners(size_t most) const {
  std::map<std::string, uint64_t> bytes;
  for (const auto& [address, live] : live_) bytes[live.owner] += live.bytes;
  std::vector<std::pair<std::string, uint64_t>> sorted(bytes.begin(), bytes.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (size_t i = 0; i < std::min(most, sorted.size()); ++i)
    text += format("%s%s %llu", i == 0 ? "" : "; ", sorted[i].first.c_str(), static_cast<unsigned long long>(sorted[i].second));
  if (sorted.size() > most) text += format("; and %zu more", sorted.size() - most);
  return text.empty() ? "nothing" : text;
}

std::string owner_of(const std::string& name) {
  if (const size_t bank = name.rfind(".bank"); bank != std::string::npos) return name.substr(0, bank);
  const size_t dot = name.rfind('.');
  if (dot != std::string::npos && dot + 1 < name.size() && name.find_first_not_of("0123456789", dot + 1) == std::string::npos) return name.substr(0, dot);
  return name;
}

}  // namespace meshrun::emu
