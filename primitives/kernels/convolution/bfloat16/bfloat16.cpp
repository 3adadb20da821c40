// Convolutions of bfloat16 for processors that multiply it as it is. All else that a level does is what the one below
// it does, MPSF_BELOW.
#include "convolution/params.h"
#include "kernels/convolution/bfloat16/depthwise_pairs.h"
#include "kernels/convolution/bfloat16/pair_dots.h"
#include "kernels/convolution/bfloat16/pair_grad.h"
#include "kernels/convolution/bfloat16/pair_product.h"
#include "kernels/convolution/products.h"

namespace mpsf::MPSF_BELOW {
void conv(const Call&);
void conv_layout(const Call&);
void conv_laid_out(const Call&);
int64_t layout_words(Type, const int* shape, int groups);
void conv_grad_input(const Call&);
void conv_grad_weights(const Call&);
}  // namespace mpsf::MPSF_BELOW

namespace mpsf::MPSF_ISA {
namespace {

// Wider weights are not rounded.
bool has_pairs(const Call& call) { return call.in[0].type == Type::bf16 && call.in[1].type == Type::bf16; }

bool multiplies_pairs(const Call& call, const Geometry& g) {
  return has_pairs(call) && !g.depthwise() && !g.small_groups<float>();
}

// Calls f for each phase of an input gradient.
template <typename F>
void for_phases(const Geometry& g, const F& f) {
  for (int row = 0; row < phases(g.rows); ++row) {
    for (int col = 0; col < phases(g.cols); ++col) f(input_axis(g.rows, row), input_axis(g.cols, col));
  }
}

bool is_turned(const Geometry& g) { return g.depthwise() && g.out_channels == 1; }

// The convolution to be, or an image's gradient, but for its weights.
Depthwise<Bfloat> turned(const Geometry& g, const Call& call, const Neuron<float>& neuron, bool forward,
                         const ConvAxis& rows, const ConvAxis& cols) {
  const Axis &down = g.rows, &across = g.cols;
  Depthwise<Bfloat> d = {};
  d.source = data<Bfloat>(call.in[0]), d.result = data<Bfloat>(call.out[0]);
  d.images = g.images;
  d.source_rows = forward ? down.n_in : down.n_out, d.source_cols = forward ? across.n_in : across.n_out;
  d.result_rows = forward ? down.n_out : down.n_in, d.result_cols = forward ? across.n_out : across.n_in;
  d.channels = g.groups, d.planes = d.source_step = d.result_step = 1;
  d.bias = data<float>(call.in[2]), d.neuron = &neuron;
  d.streamed = call.out[0].streamed && g.groups % lanes<float> == 0;
  d.rows = rows, d.cols = cols;
  return d;
}

void multiply_turns(const Geometry& g, const Call& call, const Neuron<float>& neuron, bool forward,
                    const ConvAxis& rows, const ConvAxis& cols) {
  const Depthwise<Bfloat> d = turned(g, call, neuron, forward, rows, cols);
  depthwise_of_turns(d, data<Bfloat>(call.in[1]), g.rows.size, g.cols.size);
}

// Of weights of one channel a group and one output for each; 0 of others.
int64_t turned_size(const int* shape, int groups) {
  const bool depthwise = is_depthwise(groups, shape[3], shape[0] / groups) && shape[0] == groups;
  return depthwise ? turned_size(groups, shape[1], shape[2]) : 0;
}

}  // namespace

void conv(const Call& call) {
  const ConvParams<double> p = params_as<ConvParams<double>>(call.params);
  const Geometry g(p, call.in[0].shape[0], call.in[1].shape);
  const ConvAxis rows = forward_axis(g.rows), cols = forward_axis(g.cols);
  const bool turns = has_pairs(call) && is_turned(g) && has_turns(rows, cols);
  if (!turns && !multiplies_pairs(call, g)) return MPSF_BELOW::conv(call);
  if (call.out[0].size == 0) return;
  if (g.partial()) clear(data<Bfloat>(call.out[0]), call.out[0].size);
  const Neuron<float> neuron(activation_of(p));
  if (turns) return multiply_turns(g, call, neuron, true, rows, cols);
  if (few_forward(g.flat(), call, neuron)) return;
  product_of_pairs(forward_product<Bfloat, Bfloat>(g.flat(), call, neuron));
}

int64_t layout_words(Type weights, const int* shape, int groups) {
  if (weights != Type::bf16) return MPSF_BELOW::layout_words(weights, shape, groups);
  if (const int64_t size = turned_size(shape, groups)) return Layout::kWords + size / 2;
  const int64_t depth = whole_units(int64_t{shape[1]} * shape[2] * shape[3]);
  return words_of_blocks<float>(shape, groups, kPairLanes, depth, sizeof(Bfloat));
}

void conv_layout(const Call& call) {
  if (call.in[0].type != Type::bf16) return MPSF_BELOW::conv_layout(call);
  const ConvLayoutParams params = params_as<ConvLayoutParams>(call.params);
  const PairProduct p = weights_product<Bfloat, Bfloat>(call.in[0].shape, params.groups, data<Bfloat>(call.in[0]));
  write_header(p, params.isa, true, call.out[0].data);
  Bfloat* const to = reinterpret_cast<Bfloat*>(data<float>(call.out[0]) + Layout::kWords);
  const int* const shape = call.in[0].shape;
  if (turned_size(shape, params.groups) > 0) {
    return lay_out_turns(p.rows, p.cols, shape[0], p.weights, shape[1], shape[2], to);
  }
  lay_out_all_pairs(p, 0, (p.out_channels + kPairLanes - 1) / kPairLanes, to);
}

void conv_laid_out(const Call& call) {
  const Layout* layout = static_cast<const Layout*>(call.in[1].data);
  if (!layout->pairs) return MPSF_BELOW::conv_laid_out(call);
  const ConvParams<double> p = params_as<ConvParams<double>>(call.params);
  const Geometry g = laid_out_geometry(p, call);
  if (call.out[0].size == 0) return;
  if (g.partial()) clear(data<Bfloat>(call.out[0]), call.out[0].size);
  const Neuron<float> neuron(activation_of(p));
  const Bfloat *const laid = reinterpret_cast<const Bfloat*>(layout + 1), *const added = call.in_count > 3
                                                                                             ? data<Bfloat>(call.in[3])
                                                                                             : nullptr;
  if (is_turned(g)) {
    const ConvAxis rows = forward_axis(g.rows), cols = forward_axis(g.cols);
    return depthwise_of_laid_turns(turned(g, call, neuron, true, rows, cols), laid, added);
  }
  PairProduct product = forward_product<Bfloat, Bfloat>(g.flat(), call, neuron);
  product.laid = laid, product.added = added;
  product_of_pairs(product);
}

void conv_grad_input(const Call& call) {
  const ConvParams<double> p = params_as<ConvParams<double>>(call.params);
  Geometry g(p, call.in[0].shape[0], call.in[1].shape);
  bool turns = has_pairs(call) && is_turned(g);
  if (turns) for_phases(g, [&](const ConvAxis& rows, const ConvAxis& cols) { turns = turns && has_turns(rows, cols); });
  if (!turns && !multiplies_pairs(call, g)) return MPSF_BELOW::conv_grad_input(call);
  if (call.out[0].size == 0) return;
  const Neuron<float> neuron(activation_of(p));
  if (turns) {
    return for_phases(
        g, [&](const ConvAxis& rows, const ConvAxis& cols) { multiply_turns(g, call, neuron, false, rows, cols); });
  }
  if (input_folded<Bfloat, Bfloat>(g, call, neuron, product_of_pairs)) return;
  g = g.flat().apart();
  if (few_input(g, call, neuron)) return;
  for_phases(g, [&](const ConvAxis& rows, const ConvAxis& cols) {
    product_of_pairs(input_product<Bfloat, Bfloat>(g, call, neuron, rows, cols));
  });
}

void conv_grad_weights(const Call& call) {
  const ConvGradWeightsParams p = params_as<ConvGradWeightsParams>(call.params);
  Geometry g(p, call.in[0].shape[0], call.out[0].shape);
  if (call.in[0].type != Type::bf16 || g.depthwise()) return MPSF_BELOW::conv_grad_weights(call);
  g = g.flat();
  PairGrad grad = {};
  const bool rounded = call.out[0].type == Type::bf16;
  if (rounded) {
    grad.rounded = data<Bfloat>(call.out[0]);
  } else {
    grad.dw = data<float>(call.out[0]);
  }
  grad.dy = data<Bfloat>(call.in[0]), grad.x = data<Bfloat>(call.in[1]);
  if (call.out_count > 1) grad.db = data<float>(call.out[1]);
  grad.images = g.images, grad.rows = g.rows, grad.cols = g.cols;
  grad.groups = g.groups, grad.channels = g.channels, grad.out_channels = g.out_channels;
  grad.streamed = call.out[0].streamed && g.channels % lanes<float> == 0 && !g.exchanged;
  grad.exchanged = g.exchanged;
  if (!g.exchanged || !takes_windows(grad)) return weight_grad_of_pairs(grad);
  const Scratch<float> turned(grad.size());
  grad.dw = turned.get(), grad.rounded = nullptr, grad.exchanged = false;
  weight_grad_of_pairs(grad);
  const auto put = [&](auto* to) {
    exchange(turned.get(), g.out_channels, int64_t{g.rows.size} * g.cols.size, g.channels, to);
  };
  rounded ? put(data<Bfloat>(call.out[0])) : put(data<float>(call.out[0]));
}

}  // namespace mpsf::MPSF_ISA
