// errors.h: the one exception type of the emulator. It carries an ABI code; the text names the operation, the field, the value
// and the rule.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <exception>
#include <string>

#include "meshrun_driver.h"

namespace meshrun::emu {

class Error : public std::exception {
 public:
  Error(int32_t code, std::string text) : code_(code), text_(std::move(text)) {}
  int32_t code() const { return code_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  int32_t code_;
  std::string text_;
};

[[gnu::format(printf, 1, 0)]] inline std::string vformat(const char* text, va_list args) {
  char buffer[MR_MESSAGE_BYTES];
  std::vsnprintf(buffer, sizeof buffer, text, args);
  return buffer;
}

[[gnu::format(printf, 1, 2)]] inline std::string format(const char* text, ...) {
  va_list args;
  va_start(args, text);
  std::string s = vformat(text, args);
  va_end(args);
  return s;
}

[[gnu::format(printf, 2, 3)]] inline Error error(int32_t code, const char* text, ...) {
  va_list args;
  va_start(args, text);
  Error e(code, vformat(text, args));
  va_end(args);
  return e;
}

}  // namespace meshrun::emu
