// Sums over windows, powers, and what divides images by a power of windows' squares: spatial and cross-channel
// normalization, y = x * t^-beta with t = delta + alpha / N * (sum of x^2 over the window), and their gradients
// dx = dy * t^-beta - 2 alpha beta / N * x * (sum of dy * x * t^(-beta - 1) over the windows that read x).
#include "kernels/normalization/sliding_sums.h"
#include "kernels/normalization/small_windows.h"
#include "kernels/vector/channels.h"
#include "kernels/vector/power.h"
#include "kernels/vector/simd.h"
#include "normalization/params.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

// made = x * t^-beta, elementwise.
template <typename A>
void scaled(const Settings<A>& s, const A* x, const A* sums, int64_t length, A* made) {
  const A factor = s.factor, base = s.base;
  for_powers(
      s.power, length, [=](int64_t i, int n) { return load_some(sums + i, n) * factor + base; },
      [=](int64_t i, int n, Vec<A> power) { store_some(made + i, load_some(x + i, n) * power, n); });
}

// pulled = dy * t^-beta, and spread = dy * x * t^(-beta - 1).
template <typename A>
void scaled_grad(const Settings<A>& s, const A* dy, const A* x, const A* sums, int64_t length, A* pulled, A* spread) {
  const A factor = s.factor, delta = s.base;
  const auto base = [=](int64_t i, int n) { return load_some(sums + i, n) * factor + delta; };
  for_powers(s.power, length, base, [=](int64_t i, int n, Vec<A> power) {
    const Vec<A> own = load_some(dy + i, n) * power;
    const Vec<A> other = own * load_some(x + i, n) / base(i, n);
    store_some(pulled + i, own, n);
    store_some(spread + i, other, n);
  });
}

template <typename A>
void combined(const Settings<A>& s, const A* pulled, const A* x, const A* sums, int64_t length, A* made) {
  constexpr int L = lanes<A>;
  for (int64_t i = 0; i < length; i += L) {
    const int n = static_cast<int>(smaller(L, length - i));
    const Vec<A> across = load_some(x + i, n) * load_some(sums + i, n);
    store_some(made + i, load_some(pulled + i, n) - across * s.slope, n);
  }
}

// Windows of rows and columns ------------------------------------------------------------------------------

template <typename T>
void spatial(const Call& call) {
  using A = Acc<T>;
  const SquaresNormParams<double> p = params_as<SquaresNormParams<double>>(call.params);
  switch (p.size) {
    case 3:
      return spatial_near<3, T>(call);
    case 5:
      return spatial_near<5, T>(call);
    case 7:
      return spatial_near<7, T>(call);
  }
  const Tensor &x = call.in[0], &y = call.out[0];
  const Images images = images_of(x);
  const Settings<A> s(p, 2);
  const Reach down = reach_of(s.size, images.height), along = reach_of(s.size, images.width);
  parallel_parts<A>(images, down.size(), [&](const Part& part) {
    const int64_t width = images.width * part.channels;
    const int64_t first = larger(0, part.top - down.before), end = smaller(images.height, part.bottom + down.after);
    FallingSums<A> squares(width, down, first, end);
    RowSums<A> row(images.width, part.channels, along);
    Scratch<A> room(width), made(width);
    for (int64_t read = first; read < part.bottom + down.after; ++read) {
      const int64_t at = read - down.after;
      const A* in = read < end ? taken<A, T>(x, part, read, room.get()) : nullptr;
      squares.push(read, at >= part.top ? row.row() : nullptr, [=](int64_t i, int n) {
        const Vec<A> v = load_some(in + i, n);
        return v * v;
      });
      if (at < part.top) continue;
      if (at != read) in = taken<A, T>(x, part, at, room.get());
      scaled(s, in, row.sums(), width, made.get());
      put<T>(y, part, at, made.get());
    }
  });
}

template <typename T>
void spatial_grad(const Call& call) {
  using A = Acc<T>;
  const Tensor &dy = call.in[0], &x = call.in[1], &dx = call.out[0];
  const Images images = images_of(x);
  const Settings<A> s(params_as<SquaresNormParams<double>>(call.params), 2);
  const Reach down = reach_of(s.size, images.height), along = reach_of(s.size, images.width), up = down.mirrored();
  parallel_parts<A>(images, down.size(), [&](const Part& part) {
    const int64_t width = images.width * part.channels;
    // Rows whose windows read the part's, and rows that those windows read.
    const int64_t top = larger(0, part.top - up.before), bottom = smaller(images.height, part.bottom + up.after);
    const int64_t first = larger(0, top - down.before), end = smaller(images.height, bottom + down.after);
    FallingSums<A> squares(width, down, first, end), pulls(width, up, top, bottom);
    RowSums<A> row(images.width, part.channels, along), back(images.width, part.channels, along.mirrored());
    Scratch<A> x_room(width), dy_room(width), made(width), sums(width);
    const int64_t kept = up.after + 1;
    Scratch<A> pulled(kept * width);
    for (int64_t read = first; read < part.bottom + up.after + down.after; ++read) {
      const int64_t window = read - down.after, at = window - up.after;
      const A* in = read < end ? taken<A, T>(x, part, read, x_room.get()) : nullptr;
      if (window < bottom) {
        squares.push(read, window >= top ? row.row() : nullptr, [&](int64_t i, int n) {
          const Vec<A> v = load_some(in + i, n);
          return v * v;
        });
      }
      if (window < top) continue;
      const A* spread = nullptr;
      if (window < bottom) {
        if (window != read) in = taken<A, T>(x, part, window, x_room.get());
        const A* g = taken<A, T>(dy, part, window, dy_room.get());
        scaled_grad(s, g, in, row.sums(), width, &pulled[window % kept * width], back.row());
        spread = back.sums();
      }
      pulls.push(window, at >= part.top ? sums.get() : nullptr,
                 [&](int64_t i, int n) { return load_some(spread + i, n); });
      if (at < part.top) continue;
      if (at != window || window >= bottom) in = taken<A, T>(x, part, at, x_room.get());
      combined(s, &pulled[at % kept * width], in, sums.get(), width, made.get());
      put<T>(dx, part, at, made.get());
    }
  });
}

// Windows of channels --------------------------------------------------------------------------------------

// Pixels with zeros between them, wide enough that no window reads two.
template <typename A>
class PixelSums {
 public:
  PixelSums(int64_t pixels, int64_t channels, Reach reach)
      : channels_(channels),
        pitch_(channels + larger(reach.before, reach.after)),
        reach_(reach),
        room_(pixels * pitch_ + reach.size() + 2 * lanes<A>),
        apart_(room_),
        sums_(room_),
        dense_(pixels * channels + lanes<A>) {
    memset(static_cast<void*>(apart_.get()), 0, static_cast<size_t>(room_) * sizeof(A));
  }

  // The sums for so many pixels side by side, whose elements are value(i, n): vectors of n with zeros behind.
  template <typename F>
  const A* of(int64_t pixels, const F& value) {
    constexpr int L = lanes<A>;
    for (int64_t pixel = 0; pixel < pixels; ++pixel) {  // zeros behind a pixel stay, or the next one overwrites them
      A* to = &apart_[pixel * pitch_ + reach_.before];
      for (int64_t c = 0; c < channels_; c += L) {
        store(to + c, value(pixel * channels_ + c, static_cast<int>(smaller(L, channels_ - c))));
      }
    }
    const A* sums = run_sums(apart_.get(), sums_.get(), pixels * pitch_, int64_t{1}, reach_.size());
    for (int64_t pixel = 0; pixel < pixels; ++pixel) {
      A* to = &dense_[pixel * channels_];
      for (int64_t c = 0; c < channels_; c += L) store(to + c, load(sums + pixel * pitch_ + c));
    }
    return dense_.get();
  }

 private:
  int64_t channels_, pitch_;
  Reach reach_;
  int64_t room_;
  Scratch<A> apart_, sums_, dense_;
};

// Calls f(offset, pixels) for pixels that lie side by side, `most` of them or fewer, which a chunk of work goes through
// one after the other; make() makes what they share.
template <typename Make, typename F>
void parallel_pixels(const Tensor& image, const Make& make, const F& f) {
  constexpr int64_t kTogether = 1 << 11;
  const int64_t channels = image.shape[3], count = image.size / channels, most = 1 + kTogether / channels;
  parallel_groups(count, channels, channels, [&](int64_t begin, int64_t end) {
    auto shared = make(smaller(most, end - begin));
    for (int64_t pixel = begin; pixel < end; pixel += most) {
      f(shared, pixel * channels, smaller(most, end - pixel));
    }
    stream_end();
  });
}

// `length` elements of an image from `offset` on, in the accumulator's type.
template <typename T>
const Acc<T>* flat(const T* from, int64_t length, Acc<T>* room) {
  using A = Acc<T>;
  constexpr int L = lanes<A>;
  if constexpr (sizeof(T) == sizeof(A)) {
    return from;
  } else {
    for (int64_t i = 0; i < length; i += L) {
      const int n = static_cast<int>(smaller(L, length - i));
      store_some(room + i, load_some(from + i, n), n);
    }
    return room;
  }
}

template <typename T>
void put_flat(const Tensor& image, int64_t offset, int64_t length, const Acc<T>* made) {
  constexpr int L = lanes<Acc<T>>;
  T* to = data<T>(image) + offset;
  const bool streamed = image.streamed && offset % L == 0;
  for (int64_t i = 0; i < length; i += L) {
    const int n = static_cast<int>(smaller(L, length - i));
    store_result(to + i, load_some(made + i, n), n, streamed && n == L);
  }
}

template <typename T>
void cross_channel(const Call& call) {
  using A = Acc<T>;
  const int64_t channels = call.in[0].shape[3];
  const Settings<A> s(params_as<SquaresNormParams<double>>(call.params), 1);
  const Reach reach = reach_of(s.size, channels);
  struct Shared {
    PixelSums<A> sums;
    Scratch<A> x, made;
  };
  parallel_pixels(
      call.out[0],
      [&](int64_t most) {
        return Shared{{most, channels, reach}, Scratch<A>(most * channels), Scratch<A>(most * channels)};
      },
      [&](Shared& shared, int64_t offset, int64_t pixels) {
        const int64_t length = pixels * channels;
        const A* x = flat(data<T>(call.in[0]) + offset, length, shared.x.get());
        const A* sums = shared.sums.of(pixels, [&](int64_t i, int n) {
          const Vec<A> v = load_some(x + i, n);
          return v * v;
        });
        scaled(s, x, sums, length, shared.made.get());
        put_flat<T>(call.out[0], offset, length, shared.made.get());
      });
}

template <typename T>
void cross_channel_grad(const Call& call) {
  using A = Acc<T>;
  const int64_t channels = call.in[0].shape[3];
  const Settings<A> s(params_as<SquaresNormParams<double>>(call.params), 1);
  const Reach reach = reach_of(s.size, channels);
  struct Shared {
    PixelSums<A> squares, pulls;
    Scratch<A> dy, x, pulled, spread;
  };
  parallel_pixels(
      call.out[0],
      [&](int64_t most) {
        const int64_t room = most * channels;
        return Shared{{most, channels, reach}, {most, channels, reach.mirrored()},
                      Scratch<A>(room),        Scratch<A>(room),
                      Scratch<A>(room),        Scratch<A>(room)};
      },
      [&](Shared& shared, int64_t offset, int64_t pixels) {
        const int64_t length = pixels * channels;
        const A* dy = flat(data<T>(call.in[0]) + offset, length, shared.dy.get());
        const A* x = flat(data<T>(call.in[1]) + offset, length, shared.x.get());
        A *pulled = shared.pulled.get(), *spread = shared.spread.get();
        const A* squares = shared.squares.of(pixels, [&](int64_t i, int n) {
          const Vec<A> v = load_some(x + i, n);
          return v * v;
        });
        scaled_grad(s, dy, x, squares, length, pulled, spread);
        const A* sums = shared.pulls.of(pixels, [&](int64_t i, int n) { return load_some(spread + i, n); });
        combined(s, pulled, x, sums, length, spread);
        put_flat<T>(call.out[0], offset, length, spread);
      });
}

// Sums as they are -----------------------------------------------------------------------------------------

template <typename A>
void sums_down(const Tensor& x, const Tensor& y, Reach reach) {
  const Images images = images_of(x);
  parallel_parts<A>(images, reach.size(), [&](const Part& part) {
    const int64_t width = images.width * part.channels;
    const int64_t first = larger(0, part.top - reach.before), end = smaller(images.height, part.bottom + reach.after);
    FallingSums<A> sums(width, reach, first, end);
    Scratch<A> room(width), made(width);
    for (int64_t read = first; read < part.bottom + reach.after; ++read) {
      const int64_t at = read - reach.after;
      const A* in = read < end ? taken<A, A>(x, part, read, room.get()) : nullptr;
      sums.push(read, at >= part.top ? made.get() : nullptr, [&](int64_t i, int n) { return load_some(in + i, n); });
      if (at >= part.top) put<A>(y, part, at, made.get());
    }
  });
}

template <typename A>
void sums_along(const Tensor& x, const Tensor& y, Reach reach) {
  const Images images = images_of(x);
  const int64_t pitch = images.pitch();
  parallel_groups(images.count * images.height, pitch, pitch, [&](int64_t begin, int64_t end) {
    RowSums<A> row(images.width, images.channels, reach);
    for (int64_t line = begin; line < end; ++line) {
      memcpy(row.row(), data<A>(x) + line * pitch, static_cast<size_t>(pitch) * sizeof(A));
      put_flat<A>(y, line * pitch, pitch, row.sums());
    }
    stream_end();
  });
}

template <typename A>
void sums_across(const Tensor& x, const Tensor& y, Reach reach) {
  const int64_t channels = x.shape[3];
  parallel_pixels(
      y, [&](int64_t most) { return PixelSums<A>(most, channels, reach); },
      [&](PixelSums<A>& sums, int64_t offset, int64_t pixels) {
        const A* from = data<A>(x) + offset;
        const A* made = sums.of(pixels, [&](int64_t i, int n) { return load_some(from + i, n); });
        put_flat<A>(y, offset, pixels * channels, made);
      });
}

// f(A()) for images of float or double.
template <typename F>
void by_accumulator(const Tensor& image, const F& f) {
  if (image.type == Type::f32) return f(float());
  if (image.type == Type::f64) return f(double());
}

}  // namespace

void window_sum(const Call& call) {
  const Tensor &x = call.in[0], &y = call.out[0];
  if (y.size == 0) return;
  const WindowSumParams p = params_as<WindowSumParams>(call.params);
  const Reach reach = reach_of(p.before, p.after, x.shape[p.axis]);
  by_accumulator(x, [&](auto zero) {
    using A = decltype(zero);
    if (p.axis == 1) return sums_down<A>(x, y, reach);
    if (p.axis == 2) return sums_along<A>(x, y, reach);
    sums_across<A>(x, y, reach);
  });
}

void power(const Call& call) {
  const PowerParams<double> p = params_as<PowerParams<double>>(call.params);
  by_accumulator(call.in[0], [&](auto zero) {
    using A = decltype(zero);
    const Tensor& result = call.out[0];
    const Power<A> power(p.exponent);
    const bool slow = sizeof(A) == 8 && power.kind() == Raise::other;
    const int64_t chunk = slow ? kChunkElements / 16 : kChunkElements;
    parallel_for((result.size + chunk - 1) / chunk, [&](int64_t i) {
      const A* t = data<A>(call.in[0]) + i * chunk;
      A* to = data<A>(result) + i * chunk;
      for_powers(
          power, smaller(chunk, result.size - i * chunk), [&](int64_t at, int n) { return load_some(t + at, n); },
          [&](int64_t at, int n, Vec<A> v) { store_result(to + at, v, n, result.streamed && n == lanes<A>); });
      stream_end();
    });
  });
}

void spatial_norm(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { spatial<decltype(zero)>(call); });
}

void spatial_norm_grad(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { spatial_grad<decltype(zero)>(call); });
}

void cross_channel_norm(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { cross_channel<decltype(zero)>(call); });
}

void cross_channel_norm_grad(const Call& call) {
  if (call.out[0].size == 0) return;
  by_type(call.in[0].type, [&](auto zero) { cross_channel_grad<decltype(zero)>(call); });
}

}  // namespace mpsf::MPSF_ISA
