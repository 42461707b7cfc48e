// program_conv3d.cpp: a convolution on one device, its H and W padding local or from a compact halo.
#include "program_conv3d.h"

#include "ops.h"
#include "program_local.h"

namespace meshrun::emu {

HaloSticks Convolving::sticks() const {
  const Shape& x = input.spec.shape;
  return {x.product(0, 2), x.dims[2], x.dims[3], conv.padding[1], conv.padding[1], conv.padding[2], conv.padding[2]};
}

template <class Op>
Convolving convolving(Request& r, const Op& op) {
  Convolving c;
  c.input = r.input("input", op.input);
  c.weight = r.input("weight", op.weight);
  c.bias = r.optional("bias", op.bias);
  r.floats("input", c.input);
  r.floats("weight", c.weight);
  r.floats("bias", c.bias);
  const Spec& x = c.input.spec;
  if (x.shape.rank != 5) throw r.reject("input is %s: must be [N,T,H,W,C]", text(x.shape).c_str());
  if (x.layout != MR_ROW_MAJOR) throw r.reject("input is %s: must be row major", text(x).c_str());
  r.choice("mode", op.mode, MR_PAD_ZEROS, MR_PAD_REPLICATE);
  const uint32_t channels = x.shape.dims[4];
  if (op.groups < 1 || channels % op.groups != 0) throw r.reject("groups is %u: must divide the %u channels of input %s", op.groups, channels, text(x.shape).c_str());

  c.output = in_dram(x);
  for (uint32_t i = 0; i < 3; ++i) {
    for (const auto& [field, value] : {std::pair{"kernel", op.kernel[i]}, {"stride", op.stride[i]}, {"dilation", op.dilation[i]}})
      if (value < 1) throw r.reject("%s[%u] is 0: must be at least 1", field, i);
    const uint64_t padded = x.shape.dims[i + 1] + 2 * uint64_t{op.padding[i]};
    const uint64_t reach = uint64_t{op.dilation[i]} * (op.kernel[i] - 1) + 1;
    if (reach > padded)
      throw r.reject("kernel[%u] is %u with dilation[%u] %u: reaches over %llu, but dim %u of input %s padded by %u is %llu", i, op.kernel[i], i, op.dilation[i],
                     static_cast<unsigned long long>(reach), i + 1, text(x.shape).c_str(), op.padding[i], static_cast<unsigned long long>(padded));
    const uint64_t outputs = (padded - reach) / op.stride[i] + 1;
    if (outputs > UINT32_MAX) throw r.reject("padding[%u] is %u: the output is too long", i, op.padding[i]);
    c.output.shape.dims[i + 1] = static_cast<uint32_t>(outputs);
    c.conv.kernel[i] = op.kernel[i];
    c.conv.stride[i] = op.stride[i];
    c.conv.padding[i] = op.padding[i];
    c.conv.dilation[i] = op.dilation[i];
    c.taps *= op.kernel[i];
    if (c.taps > UINT32_MAX) throw r.reject("kernel is %u,%u,%u: too many taps", op.kernel[0], op.kernel[1], op.kernel[2]);
  }
  c.conv.groups = op.groups;
  c.conv.replicate = op.mode == MR_PAD_REPLICATE;

  const Shape& w = c.weight.spec.shape;
  if (w.rank != 2 || w.dims[0] != c.taps * (channels / op.groups) || w.dims[1] % op.groups != 0)
    throw r.reject("weight is %s: must be [%llu,O] (%llu taps x %u channels of a group), and the %u groups must divide O", text(w).c_str(),
                   static_cast<unsigned long long>(c.taps * (channels / op.groups)), static_cast<unsigned long long>(c.taps), channels / op.groups, op.groups);
  if (c.bias) {
    const Shape& b = c.bias.spec.shape;
    if (b.back(0) != w.dims[1] || b.elements() != w.dims[1]) throw r.reject("bias is %s: must be [1,%u]", text(b).c_str(), w.dims[1]);
  }
  c.output.shape.dims[4] = w.dims[1];
  return c;
}
template Convolving convolving(Request&, const mr_conv3d&);
template Convolving convolving(Request&, const mr_np_conv3d&);

std::unique_ptr<Plan> plan_conv3d(Request& r, mr_conv3d& op) {
  r.allow_present(0);
  const Convolving c = convolving(r, op);
  const Operand halo = r.optional("halo", op.halo);
  if (halo) {
    Spec wanted = c.input.spec;
    wanted.shape = {};
    wanted.shape.rank = 2;
    const uint64_t sticks = c.sticks().count();
    if (sticks == 0) throw r.reject("halo is given, but padding[1] and padding[2] are 0: there is nothing in it");
    if (sticks > UINT32_MAX) throw r.reject("padding is %u,%u: too many sticks", op.padding[1], op.padding[2]);
    wanted.shape.dims = {static_cast<uint32_t>(sticks), c.input.spec.shape.dims[4]};
    r.check_spec("halo", halo, wanted);
  }
  const double pixels = static_cast<double>(c.output.shape.product(0, 4));
  return local(r, {c.input, c.weight, c.bias, halo}, r.output("output", op.output, c.output), c.flops(pixels),
               [conv = c.conv](const ConstView* in, View to, Parallel& par) {
                 conv3d(conv, in[0], in[1], in[2], in[3], OutputBox::whole(to.shape), to, par);
               });
}

}  // namespace meshrun::emu
