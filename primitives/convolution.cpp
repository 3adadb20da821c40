// Convolution of channels-last images and its gradients, with weights (O, rows, cols, C / groups).
#include "channels.h"
#include "conv_outer.h"
#include "conv_product.h"

namespace mpsf::MPSF_ISA {
namespace {

struct Geometry {
  Axis rows, cols;
  int groups;
};

inline Geometry geometry(const Call& call) {
  return {axis_at(call.params, 0), axis_at(call.params, 1), call.params[20]};
}

}  // namespace

void conv(const Call& call) {
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    using A = Acc<T>;
    const Tensor &x = call.in[0], &w = call.in[1], &y = call.out[0];
    const Geometry g = geometry(call);
    const int outs = w.shape[0] / g.groups, channels = w.shape[3];
    if (g.rows.end - g.rows.begin < g.rows.n_out || g.cols.end - g.cols.begin < g.cols.n_out) clear(data<T>(y), y.size);
    const int64_t per_out = int64_t{w.shape[1]} * w.shape[2] * channels;
    product<T>({data<T>(x), data<T>(y), x.shape[0], x.shape[1], x.shape[2], x.shape[3], y.shape[1], y.shape[2], y.shape[3],
                g.groups, channels, outs, data<A>(w), outs * per_out, channels, 1, per_out, w.shape[2],
                data<A>(call.in[2]), forward_side(g.rows), forward_side(g.cols)});
  });
}

void conv_grad_input(const Call& call) {
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    using A = Acc<T>;
    const Tensor &dy = call.in[0], &w = call.in[1], &dx = call.out[0];
    const Geometry g = geometry(call);
    const int outs = w.shape[0] / g.groups, channels = w.shape[3];
    const int64_t per_out = int64_t{w.shape[1]} * w.shape[2] * channels;
    for (int row = 0; row < phases(g.rows); ++row) {
      for (int col = 0; col < phases(g.cols); ++col) {
        product<T>({data<T>(dy), data<T>(dx), dy.shape[0], dy.shape[1], dy.shape[2], dy.shape[3], dx.shape[1], dx.shape[2], dx.shape[3],
                    g.groups, outs, channels, data<A>(w), outs * per_out, channels, per_out, 1, w.shape[2],
                    nullptr, input_side(g.rows, row), input_side(g.cols, col)});
      }
    }
  });
}

void conv_grad_weights(const Call& call) {
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    const Tensor &dy = call.in[0], &x = call.in[1], &dw = call.out[0];
    const Geometry g = geometry(call);
    weight_grad<T>({data<T>(dy), data<T>(x), data<Acc<T>>(dw), dy.shape[0], g.rows, g.cols, g.groups, dw.shape[3], dw.shape[0] / g.groups});
  });
}

void conv_grad_bias(const Call& call) {
  by_type(call.in[0].type, [&](auto zero) {
    using T = decltype(zero);
    using A = Acc<T>;
    const Tensor &dy = call.in[0], &db = call.out[0];
    if (db.size == 0) return;
    const T* from = data<T>(dy);
    A* const out[1] = {data<A>(db)};
    channel_sums<A>(rows_of<A>(dy), [&](int64_t offset, int64_t, int n, Vec<A>* terms) { terms[0] = load_some(from + offset, n); }, out);
  });
}

}  // namespace mpsf::MPSF_ISA
