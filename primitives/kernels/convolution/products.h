// A call of a convolution, or of the gradient of its images, as the product that it comes to.
#pragma once
#include "convolution/params.h"
#include "kernels/convolution/depthwise.h"
#include "kernels/convolution/grouped.h"
#include "kernels/convolution/implicit_gemm.h"

namespace mpsf::MPSF_ISA {
namespace {

// What all operations know: the weights' shape, the image x that is convolved, and the result y.
struct Geometry {
  Axis rows, cols;
  int images, groups, channels, out_channels;  // channels and out_channels of one group
  bool winograd;
  bool exchanged;  // weights are (channels, rows, cols, O), of one group

  template <typename Params>
  Geometry(const Params& p, int images, const int* weights)
      : rows(p.rows),
        cols(p.cols),
        images(images),
        groups(p.groups),
        channels(weights[p.exchanged ? 0 : 3]),
        out_channels(weights[p.exchanged ? 3 : 0] / groups),
        winograd(p.winograd != 0),
        exchanged(p.exchanged != 0) {}

  // The same with all pixels in one line, if each stands for itself.
  Geometry flat() const {
    const int64_t pixels = int64_t{images} * rows.n_in * cols.n_in;
    const auto alone = [](const Axis& a) {
      return a.size == 1 && a.stride == 1 && a.pad == 0 && a.n_in == a.n_out && a.begin == 0 && a.end == a.n_out;
    };
    if (!alone(rows) || !alone(cols) || pixels >= 1 << 30) return *this;
    Geometry g = *this;
    g.images = 1;
    g.rows.n_in = g.rows.n_out = g.rows.end = 1;
    g.cols.n_in = g.cols.n_out = g.cols.end = static_cast<int>(pixels);
    return g;
  }

  // The same for the input gradient, in which each pixel of an image that one window sees is a phase of its own: it
  // meets one tap at most.
  Geometry apart() const {
    constexpr int kMostPixels = 64, kFar = 1 << 12;
    const auto alone = [](const Axis& a) {
      return a.n_out == 1 && a.n_in <= kMostPixels && a.pad >= 0 && a.pad <= kFar && a.size <= kFar &&
             a.dilation <= kFar;
    };
    if (!alone(rows) || !alone(cols) || rows.n_in * cols.n_in > kMostPixels) return *this;
    Geometry g = *this;
    const auto far = [](const Axis& a) { return a.n_in + a.pad + a.size * a.dilation; };
    g.rows.stride = far(rows), g.cols.stride = far(cols);
    return g;
  }

  int64_t per_out() const { return int64_t{rows.size} * cols.size * channels; }
  // From one weight to the next tap's, channel's and output's.
  int64_t tap_stride() const { return exchanged ? out_channels : channels; }
  int64_t channel_stride() const { return exchanged ? int64_t{rows.size} * cols.size * out_channels : 1; }
  // So few multiplications that another thread would be through with its part before this one had heard of it.
  bool little() const {
    constexpr double kLittle = 1 << 16;
    return double(images) * rows.n_out * cols.n_out * groups * out_channels * per_out() < kLittle;
  }

  int64_t out_stride() const { return exchanged ? 1 : per_out(); }
  bool partial() const { return rows.end - rows.begin < rows.n_out || cols.end - cols.begin < cols.n_out; }
  bool depthwise() const { return is_depthwise(groups, channels, out_channels); }
  template <typename A>
  bool small_groups() const {
    return is_small_group<A>(groups, channels, out_channels);
  }
};

// Of a call whose weights are laid out, so that their shape follows from the images'.
inline Geometry laid_out_geometry(const ConvParams<double>& p, const Call& call) {
  const int shape[4] = {call.out[0].shape[3], p.rows.size, p.cols.size, call.in[0].shape[3] / p.groups};
  return Geometry(p, call.in[0].shape[0], shape);
}

inline Activation<double> activation_of(const ConvParams<double>& p) { return {p.kind, p.a, p.b, p.c}; }

// Convolution as a product: channels of x times weights give output channels.
template <typename T, typename W = Acc<T>>
Product<T, W> forward_product(const Geometry& g, const Call& call, const Neuron<Acc<T>>& neuron) {
  using A = Acc<T>;
  Product<T, W> p = {};
  p.source = data<T>(call.in[0]);
  p.result = data<T>(call.out[0]);
  p.images = g.images;
  p.source_rows = g.rows.n_in, p.source_cols = g.cols.n_in, p.source_channels = g.groups * g.channels;
  p.result_rows = g.rows.n_out, p.result_cols = g.cols.n_out, p.result_channels = g.groups * g.out_channels;
  p.groups = g.groups, p.channels = g.channels, p.out_channels = g.out_channels;
  p.weights = data<W>(call.in[1]);
  p.group_stride = g.out_channels * g.per_out(), p.tap_stride = g.tap_stride();
  p.channel_stride = g.channel_stride(), p.out_stride = g.out_stride();
  p.kernel_cols = g.cols.size;
  p.bias = data<A>(call.in[2]), p.neuron = &neuron;
  p.streamed = call.out[0].streamed && p.out_channels % lanes<A> == 0;
  p.rows = forward_axis(g.rows), p.cols = forward_axis(g.cols);
  return p;
}

// What there is to know of weights of this shape to lay them out for `forward_product`.
template <typename T, typename W>
Product<T, W> weights_product(const int* shape, int groups, const W* weights) {
  Product<T, W> p = {};
  p.groups = groups, p.channels = shape[3], p.out_channels = shape[0] / groups;
  p.weights = weights;
  p.rows.taps = shape[1], p.cols.taps = p.kernel_cols = shape[2];
  p.rows.tap_step = p.cols.tap_step = p.cols.src_tap = 1;
  p.tap_stride = shape[3], p.channel_stride = 1, p.out_stride = p.depth();
  p.group_stride = p.out_channels * p.depth();
  return p;
}

// Words of weights that are laid out for blocks of so many lanes, as numbers of so many bytes; 0 where kernels lay out
// nothing, or lanes would be mostly empty.
template <typename A>
int64_t words_of_blocks(const int* shape, int groups, int lanes, int64_t depth, int bytes) {
  const int outs = shape[0] / groups, blocks = (outs + lanes - 1) / lanes;
  if (is_depthwise(groups, shape[3], outs) || is_small_group<A>(groups, shape[3], outs)) return 0;
  if (2 * outs < blocks * lanes || depth == 0) return 0;
  return Layout::kWords + int64_t{groups} * blocks * lanes * depth * bytes / 4;
}

template <typename T, typename W>
void write_header(const Product<T, W>& p, int isa, bool pairs, void* to) {
  const Layout header = {Layout::kMagic, isa, pairs, p.groups, p.out_channels, static_cast<int>(p.depth()), {}};
  memcpy(to, &header, sizeof(header));
}

// Backward output channels of dy times weights give channels, for one phase or for all.
template <typename T, typename W = Acc<T>>
Product<T, W> input_product(const Geometry& g, const Call& call, const Neuron<Acc<T>>& neuron, const ConvAxis& rows,
                            const ConvAxis& cols) {
  using A = Acc<T>;
  Product<T, W> p = {};
  p.source = data<T>(call.in[0]);
  p.result = data<T>(call.out[0]);
  p.images = g.images;
  p.source_rows = g.rows.n_out, p.source_cols = g.cols.n_out, p.source_channels = g.groups * g.out_channels;
  p.result_rows = g.rows.n_in, p.result_cols = g.cols.n_in, p.result_channels = g.groups * g.channels;
  p.groups = g.groups, p.channels = g.out_channels, p.out_channels = g.channels;
  p.weights = data<W>(call.in[1]);
  p.group_stride = g.out_channels * g.per_out(), p.tap_stride = g.tap_stride();
  p.channel_stride = g.out_stride(), p.out_stride = g.channel_stride();
  p.kernel_cols = g.cols.size;
  p.bias = data<A>(call.in[2]), p.neuron = &neuron;
  p.streamed = call.out[0].streamed && p.out_channels % lanes<A> == 0;
  p.rows = rows, p.cols = cols;
  return p;
}

// With few channels all phases share the lanes of one product, whose output makes a pixel of each. It reads the
// union of what the phases read, with zero weights where they do not. `run` takes that product.
template <typename T, typename W = Acc<T>, typename F>
bool input_folded(const Geometry& g, const Call& call, const Neuron<Acc<T>>& neuron, const F& run) {
  using A = Acc<T>;
  const int down = phases(g.rows), across = phases(g.cols);
  const bool touching = g.rows.dilation == 1 && g.cols.dilation == 1;
  if (g.groups > 1 || !touching || (down == 1 && across == 1)) return false;
  if (int64_t{down} * across > kTileLanes<A> || int64_t{down} * across * g.channels > kTileLanes<A>) return false;
  const int out_channels = down * across * g.channels;
  const auto whole = [](const Axis& a, int count) {
    ConvAxis all = input_axis(a, 0);
    int begin = all.src_first, end = begin + all.taps;
    for (int phase = 1; phase < count; ++phase) {
      const ConvAxis axis = input_axis(a, phase);
      if (axis.taps == 0) continue;
      begin = begin < end ? min_int(begin, axis.src_first) : axis.src_first;
      end = max_int(end, axis.src_first + axis.taps);
    }
    all.src_first = begin, all.taps = end - begin, all.tap_first = 0, all.tap_step = 1, all.src_tap = 1;
    return all;
  };
  const ConvAxis rows = whole(g.rows, down), cols = whole(g.cols, across);
  const int vectors = (out_channels + lanes<A> - 1) / lanes<A>, apart = (g.channels + lanes<A> - 1) / lanes<A>;
  if (int64_t{rows.taps} * cols.taps * vectors > int64_t{g.rows.size} * g.cols.size * apart) return false;

  const W* w = data<W>(call.in[1]);
  const A* b = data<A>(call.in[2]);
  const Scratch<W> weights(int64_t{rows.taps} * cols.taps * g.out_channels * out_channels);
  const Scratch<A> bias(out_channels);
  clear(weights.get(), int64_t{rows.taps} * cols.taps * g.out_channels * out_channels);
  for (int phase = 0; phase < down * across; ++phase) {
    const ConvAxis down_axis = input_axis(g.rows, phase / across), across_axis = input_axis(g.cols, phase % across);
    for (int q = 0; q < down_axis.taps; ++q) {
      for (int p = 0; p < across_axis.taps; ++p) {
        const int row = down_axis.tap_first + q * down_axis.tap_step,
                  col = across_axis.tap_first + p * across_axis.tap_step;
        const int tap =
            (down_axis.src_first + q - rows.src_first) * cols.taps + across_axis.src_first + p - cols.src_first;
        const W* from = w + (int64_t{row} * g.cols.size + col) * g.tap_stride();
        W* to = &weights[int64_t{tap} * g.out_channels * out_channels + phase * g.channels];
        for (int out = 0; out < g.out_channels; ++out, from += g.out_stride(), to += out_channels) {
          for (int c = 0; c < g.channels; ++c) to[c] = from[c * g.channel_stride()];
        }
      }
    }
    for (int c = 0; c < g.channels; ++c) bias[phase * g.channels + c] = b[c];
  }
  Product<T, W> p = {};
  p.source = data<T>(call.in[0]);
  p.result = data<T>(call.out[0]);
  p.images = g.images;
  p.source_rows = g.rows.n_out, p.source_cols = g.cols.n_out, p.source_channels = g.out_channels;
  p.result_rows = g.rows.n_in, p.result_cols = g.cols.n_in, p.result_channels = g.channels;
  p.groups = 1, p.channels = g.out_channels, p.out_channels = out_channels;
  p.weights = weights.get();
  p.tap_stride = int64_t{g.out_channels} * out_channels, p.channel_stride = out_channels, p.out_stride = 1;
  p.kernel_cols = cols.taps;
  p.bias = bias.get(), p.neuron = &neuron;
  p.rows = rows, p.cols = cols;
  p.fold_rows = down, p.fold_cols = across;
  run(p);
  return true;
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
