// kernel_targets.h: compiles one kernel core for each instruction set. The .cpp file of a core says
//
//   #define MESHRUN_KERNEL_CORE "kernel_reduce_core.h"
//   #include "kernel_targets.h"
//
// and then calls MESHRUN_BEST(function)(arguments...), which takes the best copy that the machine can run. Cores are written
// with the vectors of kernel_simd.h; they include nothing else, since std functions compiled here could be linked into
// code that runs on older machines. Lambdas in cores capture by [=] even what is nothing: one without captures is also a
// plain function, which GCC compiles without the instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>

#if defined(__x86_64__) && !defined(MESHRUN_NO_AVX2)
#define MESHRUN_HAS_AVX2 1
#include <immintrin.h>
#endif

#ifdef MESHRUN_HAS_AVX2

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define MESHRUN_SIMD_AVX2 1
namespace meshrun::emu::avx2 {
namespace {
#include MESHRUN_KERNEL_CORE
}
}  // namespace meshrun::emu::avx2
#undef MESHRUN_SIMD_AVX2
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

namespace meshrun::emu {
inline bool cpu_has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  return has;
}
}  // namespace meshrun::emu
#define MESHRUN_BEST(function) (cpu_has_avx2() ? avx2::function : portable::function)

#else
#define MESHRUN_BEST(function) portable::function
#endif

namespace meshrun::emu::portable {
namespace {
#include MESHRUN_KERNEL_CORE
}
}  // namespace meshrun::emu::portable
