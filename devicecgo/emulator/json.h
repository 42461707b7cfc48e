// json.h: writes JSON. No reader; the emulator reads none.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>

namespace meshrun::emu {

class Json {
 public:
  Json& begin_object() { return open('{'); }
  Json& end_object() { return close('}'); }
  Json& begin_array() { return open('['); }
  Json& end_array() { return close(']'); }
  Json& key(std::string_view k) {
    separate();
    quote(k);
    text_ += ':';
    fresh_ = true;
    return *this;
  }
  template <std::integral T>
  Json& value(T v) {
    separate();
    if constexpr (std::same_as<T, bool>) {
      text_ += v ? "true" : "false";
    } else {
      text_ += std::to_string(v);
    }
    return *this;
  }
  Json& value(std::string_view v) {
    separate();
    quote(v);
    return *this;
  }
  Json& value(const char* v) { return value(std::string_view(v)); }
  Json& null() { return raw("null"); }
  Json& raw(std::string_view json) {
    separate();
    text_ += json;
    return *this;
  }
  template <class T>
  Json& field(std::string_view k, const T& v) {
    return key(k).value(v);
  }
  std::string take() { return std::move(text_); }

 private:
  Json& open(char c) {
    separate();
    text_ += c;
    fresh_ = true;
    return *this;
  }
  Json& close(char c) {
    text_ += c;
    fresh_ = false;
    return *this;
  }
  void separate() {
    if (!fresh_) text_ += ',';
    fresh_ = false;
  }
  void quote(std::string_view s) {
    text_ += '"';
    for (const char c : s) {
      switch (c) {
        case '"':
          text_ += "\\\"";
          break;
        case '\\':
          text_ += "\\\\";
          break;
        case '\n':
          text_ += "\\n";
          break;
        case '\t':
          text_ += "\\t";
          break;
        default:
          if (static_cast<unsigned char>(c) < 0x20) {
            constexpr char hex[] = "0123456789abcdef";
            text_ += "\\u00";
            text_ += hex[c >> 4 & 15];
            text_ += hex[c & 15];
          } else {
            text_ += c;
          }
      }
    }
    text_ += '"';
  }
  std::string text_;
  bool fresh_ = true;  // nothing before the next value that a comma must part it from
};

}  // namespace meshrun::emu
