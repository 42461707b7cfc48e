#include "one_line.h"

#include <cstdint>

#include "errors.h"

namespace meshrun::emu {
namespace {

// How many bytes the first character has, and which it is; 0 bytes: it is no UTF-8.
size_t decode(std::string_view s, uint32_t& character) {
  const auto at = [&](size_t i) { return static_cast<uint8_t>(s[i]); };
  const uint8_t lead = at(0);
  character = lead;
  if (lead < 0x80) return 1;
  const size_t bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 0;
  if (bytes == 0 || lead > 0xf4 || s.size() < bytes) return 0;
  character = lead & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
    character = character << 6 | (at(i) & 0x3fu);
  }
  constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = character >= 0xd800 && character <= 0xdfff;
  return character < kLeast[bytes] || character > 0x10ffff || surrogate ? 0 : bytes;
}

std::string shown(std::string_view bytes, uint32_t character) {
  switch (character) {
    case '\n':
      return "\\n";
    case '\r':
      return "\\r";
    case '\t':
      return "\\t";
    case 0x2028:
    case 0x2029:
      return format("\\u%04x", character);
  }
  if (character < 0x20 || character == 0x7f) return format("\\x%02x", character);
  if (character >= 0x80 && character < 0xa0) return format("\\u%04x", character);
  return std::string(bytes);
}

}  // namespace

std::string one_line(std::string_view name) {
  std::string line;
  while (!name.empty()) {
    uint32_t character = 0;
    const size_t bytes = decode(name, character);
    line += bytes != 0 ? shown(name.substr(0, bytes), character) : format("\\x%02x", static_cast<uint8_t>(name.front()));
    name.remove_prefix(bytes != 0 ? bytes : 1);
  }
  return line;
}

}  // namespace meshrun::emu
