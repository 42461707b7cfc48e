// ops_local.cpp: the operations of one device alone. Each checks its operands, works out the result's shape, and names its kernel.
#include <cmath>

#include "kernel_attention.h"
#include "kernel_copy.h"
#include "kernel_elementwise.h"
#include "kernel_matmul.h"
#include "kernel_norm.h"
#include "kernel_rope.h"
#include "kernel_shape.h"
#include "ops.h"
#include "program_local.h"

namespace meshrun::emu {
namespace {

Spec result(const Spec& like, const Shape& shape) {
  Spec s = in_dram(like);
  s.shape = shape;
  return s;
}

double elements(const Operand& operand) { return static_cast<double>(operand.spec.shape.elements()); }

void no_row_major_blocks(const Request& r, const Spec& spec) {
  if (spec.dtype == DType::bfloat8_b && spec.layout != MR_TILE) throw r.reject("layout is row major: bfloat8_b must be in tile layout");
}

}  // namespace

std::unique_ptr<Plan> plan_matmul(Request& r, mr_matmul& op) {
  r.allow_present(0);
  const Operand a = r.input("input", op.input), w = r.input("weight", op.weight), bias = r.optional("bias", op.bias);
  r.floats("input", a);
  r.floats("weight", w);
  r.floats("bias", bias);
  r.choice("activation", op.activation, MR_ACT_NONE, MR_ACT_TANH);
  r.choice("transpose_b", op.transpose_b, 0, 1);
  if (op.dtype != MR_BFLOAT8_B) r.choice("dtype", op.dtype, MR_BFLOAT16, MR_FLOAT32);
  const Shape &x = a.spec.shape, &y = w.spec.shape;
  if (x.rank < 2) throw r.reject("input is %s: must be of rank 2 or more", text(x).c_str());
  if (y.rank < 2) throw r.reject("weight is %s: must be of rank 2 or more", text(y).c_str());
  const bool transposed = op.transpose_b != 0;
  const uint32_t k = transposed ? y.back(0) : y.back(1), n = transposed ? y.back(1) : y.back(0);
  if (x.back(0) != k)
    throw r.reject("input is %s and weight %s%s: inner dims are %u and %u", text(x).c_str(), text(y).c_str(), transposed ? " (transposed)" : "", x.back(0), k);
  Shape out = x;
  out.dims[out.rank - 1] = n;
  Shape batch = y;
  batch.dims[y.rank - 1] = batch.dims[y.rank - 2] = 1;
  r.broadcasts("weight (its dims in front of the matrix)", batch, out);
  if (bias) {
    const Shape& b = bias.spec.shape;
    if (b.back(0) != n || b.back(1) != 1) throw r.reject("bias is %s: must be [...,1,%u]", text(b).c_str(), n);
    r.broadcasts("bias", b, out);
  }
  Spec wanted = result(a.spec, out);
  wanted.dtype = static_cast<DType>(op.dtype);
  no_row_major_blocks(r, wanted);
  const double flops = 2.0 * static_cast<double>(out.elements()) * k;
  return local(r, {a, w, bias}, r.output("output", op.output, wanted), flops,
               [activation = op.activation, transposed](const ConstView* in, View to, Parallel& par) {
                 matmul(in[0], in[1], in[2], activation, transposed, to, par);
               });
}

std::unique_ptr<Plan> plan_norm(Request& r, mr_norm& op) {
  r.allow_present(0);
  const Operand x = r.input("input", op.input), weight = r.optional("weight", op.weight), bias = r.optional("bias", op.bias);
  r.floats("input", x);
  r.floats("weight", weight);
  r.floats("bias", bias);
  r.choice("kind", op.kind, MR_NORM_LAYER, MR_NORM_RMS);
  if (!(op.epsilon >= 0) || !std::isfinite(op.epsilon)) throw r.reject("epsilon is %g: must be at least 0", static_cast<double>(op.epsilon));
  if (weight) r.broadcasts("weight", weight.spec.shape, x.spec.shape);
  if (bias) r.broadcasts("bias", bias.spec.shape, x.spec.shape);
  return local(r, {x, weight, bias}, r.output("output", op.output, result(x.spec, x.spec.shape)), 8 * elements(x),
               [kind = op.kind, epsilon = op.epsilon](const ConstView* in, View to, Parallel& par) {
                 norm(kind, in[0], in[1], in[2], epsilon, to, par);
               });
}

std::unique_ptr<Plan> plan_rope(Request& r, mr_rope& op) {
  r.allow_present(0);
  const Operand x = r.input("input", op.input), cos = r.input("cos", op.cos), sin = r.input("sin", op.sin);
  r.floats("input", x);
  r.floats("cos", cos);
  r.floats("sin", sin);
  r.rank4("input", x);
  r.choice("mode", op.mode, MR_ROPE_INTERLEAVED, MR_ROPE_HALF);
  if (x.spec.shape.back(0) % 2 != 0) throw r.reject("input is %s: the last dim must be even", text(x.spec.shape).c_str());
  r.rope_table("cos", cos, x.spec.shape);
  r.rope_table("sin", sin, x.spec.shape);
  return local(r, {x, cos, sin}, r.output("output", op.output, result(x.spec, x.spec.shape)), 4 * elements(x),
               [mode = op.mode](const ConstView* in, View to, Parallel& par) { rope(mode, in[0], in[1], in[2], to, par); });
}

std::unique_ptr<Plan> plan_sdpa(Request& r, mr_sdpa& op) {
  r.allow_present(MR_HAS_SCALE | MR_HAS_LOGICAL_N);
  const Operand q = r.input("q", op.q), k = r.input("k", op.k), v = r.input("v", op.v);
  r.attention("q", q, "k", k, "v", v);
  const uint32_t keys = k.spec.shape.dims[2];
  uint32_t valid = keys;
  if (r.has(MR_HAS_LOGICAL_N)) r.choice("logical_n", valid = op.logical_n, 1, keys);
  const float scale = r.has(MR_HAS_SCALE) ? op.scale : 1 / std::sqrt(static_cast<float>(q.spec.shape.dims[3]));
  return local(r, {q, k, v}, r.output("output", op.output, result(q.spec, q.spec.shape)), 4 * elements(q) * valid,
               [scale, valid](const ConstView* in, View to, Parallel& par) {
                 Attention attention(in[0], scale);
                 attention.add(in[1], in[2], valid, par);
                 attention.finish(to, par);
               });
}

std::unique_ptr<Plan> plan_binary(Request& r, mr_binary& op) {
  r.allow_present(MR_HAS_SCALAR);
  const Operand a = r.input("a", op.a);
  r.floats("a", a);
  r.choice("kind", op.kind, MR_BINARY_ADD, MR_BINARY_MUL);
  if (r.has(MR_HAS_SCALAR)) {
    if (op.b != 0) throw r.reject("b and scalar are both given: one or the other");
    return local(r, {a}, r.output("output", op.output, result(a.spec, a.spec.shape)), elements(a),
                 [kind = op.kind, scalar = op.scalar](const ConstView* in, View to, Parallel& par) { binary_scalar(kind, in[0], scalar, to, par); },
                 true);
  }
  const Operand b = r.input("b", op.b);
  r.floats("b", b);
  const Shape &x = a.spec.shape, &y = b.spec.shape;
  Shape out;
  out.rank = std::max(x.rank, y.rank);
  for (uint32_t i = 0; i < out.rank; ++i) {
    if (x.back(i) != y.back(i) && x.back(i) != 1 && y.back(i) != 1)
      throw r.reject("a is %s and b %s: do not broadcast", text(x).c_str(), text(y).c_str());
    out.dims[out.rank - 1 - i] = std::max(x.back(i), y.back(i));
  }
  return local(r, {a, b}, r.output("output", op.output, result(a.spec, out)), static_cast<double>(out.elements()),
               [kind = op.kind](const ConstView* in, View to, Parallel& par) { binary(kind, in[0], in[1], to, par); }, x == out && y == out);
}

std::unique_ptr<Plan> plan_addcmul(Request& r, mr_addcmul& op) {
  r.allow_present(0);
  const Operand input = r.input("input", op.input), x = r.input("x", op.x), y = r.input("y", op.y);
  r.floats("input", input);
  r.floats("x", x);
  r.floats("y", y);
  r.broadcasts("x", x.spec.shape, input.spec.shape);
  r.broadcasts("y", y.spec.shape, input.spec.shape);
  return local(r, {input, x, y}, r.output("output", op.output, result(input.spec, input.spec.shape)), 2 * elements(input),
               [](const ConstView* in, View to, Parallel& par) { addcmul(in[0], in[1], in[2], to, par); });
}

std::unique_ptr<Plan> plan_activation(Request& r, mr_activation& op) {
  r.allow_present(0);
  const Operand input = r.input("input", op.input);
  r.floats("input", input);
  r.choice("kind", op.kind, MR_ACT_GELU, MR_ACT_TANH);
  return local(r, {input}, r.output("output", op.output, result(input.spec, input.spec.shape)), 10 * elements(input),
               [kind = op.kind](const ConstView* in, View to, Parallel& par) { activation(kind, in[0], to, par); });
}

std::unique_ptr<Plan> plan_slice(Request& r, mr_slice& op) {
  r.allow_present(0);
  const Operand input = r.input("input", op.input);
  const Shape& in = input.spec.shape;
  if (op.rank != in.rank) throw r.reject("rank is %u: input %s has %u", op.rank, text(in).c_str(), in.rank);
  Shape out = in;
  std::array<uint32_t, MR_MAX_RANK> begin{};
  for (uint32_t i = 0; i < in.rank; ++i) {
    if (op.begin[i] >= op.end[i] || op.end[i] > in.dims[i])
      throw r.reject("begin[%u] is %u and end[%u] %u: must be 0 <= begin < end <= %u", i, op.begin[i], i, op.end[i], in.dims[i]);
    begin[i] = op.begin[i];
    out.dims[i] = op.end[i] - op.begin[i];
  }
  const Operand output = r.output("output", op.output, result(input.spec, out));
  return local(r, {input}, output, 0, [begin](const ConstView* from, View to, Parallel& par) { slice(from[0], begin.data(), to, par); }, false,
               2.0 * static_cast<double>(output.spec.device_bytes()));
}

std::unique_ptr<Plan> plan_concat(Request& r, mr_concat& op) {
  r.allow_present(0);
  r.choice("count", op.count, 1, MR_MAX_CONCAT);
  std::vector<Operand> inputs;
  for (uint32_t i = 0; i < op.count; ++i) inputs.push_back(r.input("inputs", op.inputs[i]));
  const Spec& first = inputs.front().spec;
  r.along(op.dim, first.shape.rank - 1);
  Shape out = first.shape;
  for (uint32_t i = 1; i < op.count; ++i) {
    Spec same = inputs[i].spec;
    if (op.dim < same.shape.rank) same.shape.dims[op.dim] = first.shape.dims[op.dim];
    if (!(same.shape == first.shape) || same.dtype != first.dtype || same.layout != first.layout)
      throw r.reject("inputs[%u] is %s: must be as inputs[0], %s, but for dim %u", i, text(inputs[i].spec).c_str(), text(first).c_str(), op.dim);
    out.dims[op.dim] += inputs[i].spec.shape.dims[op.dim];
  }
  const Operand output = r.output("output", op.output, result(first, out));
  return local(r, std::move(inputs), output, 0, [n = op.count, dim = op.dim](const ConstView* in, View to, Parallel& par) { concat(in, n, dim, to, par); });
}

std::unique_ptr<Plan> plan_reshape(Request& r, mr_reshape& op) {
  r.allow_present(0);
  const Operand input = r.input("input", op.input);
  r.choice("rank", op.rank, 1, MR_MAX_RANK);
  Shape out;
  out.rank = op.rank;
  unsigned __int128 count = 1;
  for (uint32_t i = 0; i < op.rank; ++i) {
    out.dims[i] = op.dims[i];
    count = std::min<unsigned __int128>(count * op.dims[i], UINT64_MAX);
  }
  if (count != input.spec.shape.elements()) throw r.reject("dims are %s: not as many elements as input %s", text(out).c_str(), text(input.spec.shape).c_str());
  return local(r, {input}, r.output("output", op.output, result(input.spec, out)), 0, [](const ConstView* in, View to, Parallel& par) {
    copy(to.data, in[0].data, to.shape.elements() * element_bytes(to.dtype), par);
  });
}

std::unique_ptr<Plan> plan_permute(Request& r, mr_permute& op) {
  r.allow_present(0);
  const Operand input = r.input("input", op.input);
  const Shape& in = input.spec.shape;
  if (op.rank != in.rank) throw r.reject("rank is %u: input %s has %u", op.rank, text(in).c_str(), in.rank);
  Shape out = in;
  std::array<uint32_t, MR_MAX_RANK> order{};
  uint32_t seen = 0;
  for (uint32_t i = 0; i < in.rank; ++i) {
    if (op.order[i] >= in.rank || (seen >> op.order[i] & 1u) != 0) throw r.reject("order[%u] is %u: each dim of 0..%u once", i, op.order[i], in.rank - 1);
    seen |= 1u << op.order[i];
    order[i] = op.order[i];
    out.dims[i] = in.dims[order[i]];
  }
  return local(r, {input}, r.output("output", op.output, result(input.spec, out)), 0,
               [order](const ConstView* from, View to, Parallel& par) { permute(from[0], order.data(), to, par); });
}

std::unique_ptr<Plan> plan_convert(Request& r, mr_convert& op) {
  r.allow_present(0);
  const Operand input = r.input("input", op.input);
  r.choice("dtype", op.dtype, MR_BFLOAT16, MR_BFLOAT8_B);
  r.choice("layout", op.layout, MR_TILE, MR_ROW_MAJOR);
  Spec wanted = result(input.spec, input.spec.shape);
  wanted.dtype = static_cast<DType>(op.dtype);
  wanted.layout = op.layout;
  const bool same = wanted.dtype == input.spec.dtype;
  no_row_major_blocks(r, wanted);
  return local(r, {input}, r.output("output", op.output, wanted), elements(input), [same](const ConstView* in, View to, Parallel& par) {
    if (same) {
      copy(to.data, in[0].data, to.shape.elements() * element_bytes(to.dtype), par);
    } else {
      convert(in[0], to, par);
    }
  });
}

}  // namespace meshrun::emu
