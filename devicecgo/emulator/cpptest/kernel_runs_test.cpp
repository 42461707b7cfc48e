#include "../kernel_runs.h"

#include "kernel_activations.h"
#include "kernel_test.h"

using namespace meshrun::emu;
using namespace meshrun::emu::test;

namespace {

// Every 5003rd float from low up to high, and the special ones.
std::vector<float> sweep_floats(float low, float high) {
  std::vector<float> v{0.0f, -0.0f, INFINITY, -INFINITY, NAN, low, high};
  for (uint64_t bits = 0; bits < 0x100000000u; bits += 5003) {
    const uint32_t b = static_cast<uint32_t>(bits);
    float f;
    std::memcpy(&f, &b, 4);
    if (f >= low && f <= high) v.push_back(f);
  }
  return v;
}

}  // namespace

TEST_CASE("exponential: within 2e-7 of the true value") {
  const std::vector<float> in = sweep_floats(-110, 95);
  std::vector<float> out = in;
  run::exponentials(out.data(), 0.0f, out.size());
  double worst = 0;
  size_t wrong = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    const double want = std::exp(static_cast<double>(in[i]));
    if (std::isnan(in[i])) {
      wrong += !std::isnan(out[i]);
    } else if (want < 1.1754944e-38) {
      wrong += out[i] != 0 && std::fabs(out[i] / want - 1) > 2e-7;
    } else if (want > 3.4028235e38) {
      wrong += !std::isinf(out[i]);
    } else {
      const double error = std::fabs(out[i] / want - 1);
      if (!(error <= worst)) worst = error;
    }
  }
  INFO("largest relative error " << worst << " over " << in.size() << " values");
  CHECK(worst < 2e-7);
  CHECK(wrong == 0);
}

TEST_CASE("exponentials: sum and shift for every length") {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const size_t n = seed;
    std::vector<float> x(n);
    for (auto& v : x) v = static_cast<float>(random.uniform(-20, 5));
    const std::vector<float> in = x;
    CHECK(run::largest(x.data(), n) == *std::max_element(x.begin(), x.end()));
    const float sum = run::exponentials(x.data(), 5.0f, n);
    double want = 0;
    for (size_t i = 0; i < n; ++i) {
      want += std::exp(static_cast<double>(in[i] - 5.0f));
      CHECK(x[i] == doctest::Approx(std::exp(static_cast<double>(in[i] - 5.0f))).epsilon(3e-7));
    }
    CHECK(sum == doctest::Approx(want).epsilon(1e-6));
  }
  CHECK(run::largest(nullptr, 0) == -INFINITY);
}

TEST_CASE("activations: close to the true value over the whole range") {
  const std::vector<float> in = sweep_floats(-3.4e38f, 3.4e38f);
  std::vector<float> out(in.size());
  for (uint32_t kind = MR_ACT_NONE; kind <= MR_ACT_TANH; ++kind) {
    run::activation(kind, in.data(), out.data(), in.size());
    double worst = 0;
    float at = 0;
    size_t wrong = 0;
    for (size_t i = 0; i < in.size(); ++i) {
      const double want = activate(kind, in[i]);
      if (std::isinf(in[i])) {
        wrong += out[i] != want && !(std::isnan(want) && std::isnan(out[i])) && !(in[i] < 0 && std::isnan(out[i]));
      } else if (std::isnan(in[i])) {
        wrong += !std::isnan(out[i]);
      } else if (std::fabs(want) < 1.2e-38) {
        wrong += std::fabs(out[i] - want) > 1.2e-38;
      } else {
        // Far out in the tail results shrink like e^-x*x; what is lost there is far below the size of the inputs.
        const double error = std::fabs(out[i] - want) / (std::fabs(want) + 1e-30);
        if (!(error <= worst)) worst = error, at = in[i];
      }
    }
    INFO("activation " << kind << ": largest relative error " << worst << " at " << at);
    CHECK(wrong == 0);
    CHECK(worst < (kind == MR_ACT_GELU_TANH ? 2e-5 : kind == MR_ACT_GELU ? 6e-6 : 5e-7));
  }
}

TEST_CASE("sums: accurate, and the same wherever the run lies") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Random random(seed);
    INFO("seed " << seed);
    const size_t n = seed < 100 ? seed : random.between(100, 20000);
    std::vector<float> memory(n);
    for (auto& v : memory) v = static_cast<float>(random.normal() + 3);
    const float* x = memory.data();
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; ++i) {
      sum += x[i];
      squares += (static_cast<double>(x[i]) - 2.5) * (static_cast<double>(x[i]) - 2.5);
    }
    CHECK(run::sum(x, n) == doctest::Approx(sum).epsilon(2e-6));
    CHECK(run::sum_of_squares(x, 2.5f, n) == doctest::Approx(squares).epsilon(2e-6));
    std::vector<float> shifted(n + 3);
    std::copy(x, x + n, shifted.begin() + 3);
    CHECK(run::sum(shifted.data() + 3, n) == run::sum(x, n));
  }
}
