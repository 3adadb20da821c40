// Work element by element on operands that lie under a result of images (metal/elementwise/broadcast.h): whole pixels,
// or parts of one, at a time, for which each operand has its entries side by side, repeated in the cache where they are
// shared.
#pragma once
#include "kernels/vector/channels.h"
#include "shared/geometry.h"
// A text of metal/ stands behind what it needs.
#include "elementwise/broadcast.h"

namespace mpsf::MPSF_ISA {
namespace {

struct Result {
  int64_t n, h, w, c;
  template <typename Params>
  explicit Result(const Params& p) : n(p.n), h(p.h), w(p.w), c(p.c) {}
};

// Elements that are worked on at a time; what is repeated stays in the fastest cache.
constexpr int64_t kTogether = 1 << 11;

typedef uint8_t Byte;

// A vector of N elements of any type.
template <typename T, int N>
struct VectorOfMany {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};
template <typename T, int N>
using Many = typename VectorOfMany<T, N>::type;

// n lanes of a vector of A from any element type; nothing beyond is touched.
template <typename A, typename T>
MPSF_INLINE Vec<A> taken_as(const T* p, int n) {
  if constexpr (sizeof(T) == 1) {
    constexpr int L = lanes<A>;
    Many<Byte, L> bytes;
    if (n == L) {
      memcpy(&bytes, p, sizeof(bytes));
    } else {
      Byte some[L] = {};
      for (int i = 0; i < n; ++i) some[i] = p[i];
      memcpy(&bytes, some, sizeof(bytes));
    }
    using Ints = Many<int32_t, L>;
    return __builtin_convertvector(__builtin_convertvector(bytes, Ints), Vec<A>);
  } else {
    return load_some(p, n);
  }
}

// Entries of an operand in memory. Such a source hands out `count` entries from `first` on; it has room(), in entries,
// to make them in, and an `operand`.
template <typename T>
struct Stored {
  using Entry = T;
  const T* stored;
  Operand operand;
  Stored(const Tensor& tensor, const Operand& lying) : stored(data<T>(tensor)), operand(lying) {}
  static constexpr int64_t room() { return 0; }
  const T* entries(int64_t first, int64_t, T*) const { return stored + first; }
};

// One thread's view of an operand: the entries under some pixels, or under a part of one.
template <typename Source>
class Seen {
  using T = typename Source::Entry;

 public:
  Seen(const Source& source, const Result& result)
      : source_(source),
        operand_(source.operand),
        result_(result),
        across_(operand_.w != result.w),
        deep_(operand_.c != result.c),
        made_(Source::room()),
        repeated_(across_ || deep_ ? kTogether : 0) {}

  // Under `count` elements of the pixels from x on, from channel c on: whole pixels, or one pixel's part.
  const T* under(int64_t b, int64_t y, int64_t x, int64_t c, int64_t count) {
    const int64_t image = operand_.images == 1 ? 0 : b / operand_.per % operand_.images;
    const int64_t line = image * operand_.h + (operand_.h == 1 ? 0 : y);
    if (!across_ && !deep_) return source_.entries((line * result_.w + x) * result_.c + c, count, made_.get());
    const int64_t pixels = count < result_.c ? 1 : count / result_.c, each = count / pixels;
    if (across_ && line != line_) have_ = 0;
    line_ = line;
    if (!deep_) {
      if (pixels == 1) return source_.entries(line * result_.c + c, each, made_.get());
      if (have_ < count) {
        const T* entries = source_.entries(line * each, each, made_.get());
        for (int64_t i = 0; i < count; i += each) copy(entries, each, &repeated_[i]);
        have_ = count;
      }
    } else if (across_) {
      if (have_ < count) {
        fill(*source_.entries(line, 1, made_.get()), count, repeated_.get());
        have_ = count;
      }
    } else {
      const T* entries = source_.entries(line * result_.w + x, pixels, made_.get());
      for (int64_t i = 0; i < pixels; ++i) fill(entries[i], each, &repeated_[i * each]);
    }
    return repeated_.get();
  }

 private:
  static void copy(const T* from, int64_t count, T* to) {
    for (int64_t i = 0; i < count; ++i) to[i] = from[i];
  }
  static void fill(T value, int64_t count, T* to) {
    for (int64_t i = 0; i < count; ++i) to[i] = value;
  }

  const Source& source_;
  const Operand operand_;
  const Result& result_;
  bool across_, deep_;  // whether all pixels of a line share entries, and all channels of a pixel
  int64_t line_ = -1, have_ = 0;
  Scratch<T> made_, repeated_;
};

// Pixels of a result that are worked on together, cut by its shape alone.
template <typename A>
struct Tiles {
  int64_t pixels, channels, across, down, count;  // of a tile; tiles of a line's pixels and of a pixel; of all

  explicit Tiles(const Result& r) {
    pixels = smaller(r.w, kTogether / r.c > 0 ? kTogether / r.c : 1);
    const int64_t even = lanes<A> / gcd(r.c, lanes<A>);  // pixels that fill whole vectors
    if (pixels > even) pixels -= pixels % even;
    channels = smaller(r.c, kTogether);
    across = (r.w + pixels - 1) / pixels;
    down = (r.c + channels - 1) / channels;
    count = r.n * r.h * across * down;
  }
};

template <typename O, typename A, typename F, typename... Views>
void fill_tiles(O* to, bool streamed, const Result& r, const Tiles<A>& tiles, int64_t begin, int64_t end, const F& f,
                Views&&... views) {
  constexpr int L = lanes<A>;
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t part = tile % tiles.down, run = tile / tiles.down % tiles.across;
    const int64_t line = tile / tiles.down / tiles.across;
    const int64_t c = part * tiles.channels, x = run * tiles.pixels;
    const int64_t count = smaller(tiles.pixels, r.w - x) * smaller(tiles.channels, r.c - c);
    const int64_t offset = (line * r.w + x) * r.c + c;
    O* const made = to + offset;
    const bool past = streamed && offset % L == 0;
    [&](const auto*... entries) {
      const F by_value = f;
      int64_t i = 0;
      for (; i + L <= count; i += L) store_result(made + i, by_value(taken_as<A>(entries + i, L)...), L, past);
      if (i < count) {
        const int n = static_cast<int>(count - i);
        store_result(made + i, by_value(taken_as<A>(entries + i, n)...), n, false);
      }
    }(views.under(line / r.h, line % r.h, x, c, count)...);
  }
}

// Fills a result of O with f of vectors of A, one from each source.
template <typename O, typename A, typename F, typename... Sources>
void elementwise(const Tensor& out, const Result& r, const F& f, const Sources&... sources) {
  const Tiles<A> tiles(r);
  const int64_t several = 1 + kChunkElements / (tiles.pixels * tiles.channels);
  parallel_for((tiles.count + several - 1) / several, [&](int64_t chunk) {
    fill_tiles<O>(data<O>(out), out.streamed, r, tiles, chunk * several, smaller(tiles.count, (chunk + 1) * several), f,
                  Seen<Sources>(sources, r)...);
    stream_end();
  });
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
