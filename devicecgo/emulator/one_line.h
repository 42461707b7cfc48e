// one_line.h: names that callers give, as texts show them: a text is one line, whoever named what it tells of.
#pragma once

#include <string>
#include <string_view>

namespace meshrun::emu {

// Escapes control characters, line separators and what is no UTF-8: \n, \x1b, \u2028.
std::string one_line(std::string_view name);

}  // namespace meshrun::emu
