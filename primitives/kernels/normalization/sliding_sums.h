// Sums over windows that slide by one, by additions only: what is never added need not be taken away again, so nothing
// cancels. Along rows of pixels a run of windows is made of runs half as long; down the rows, of blocks of rows: a
// window is the end of one block and the beginning of the next (van Herk; Gil and Werman).
#pragma once
#include "kernels/vector/channels.h"
#include "kernels/vector/power.h"
#include "kernels/vector/simd.h"
#include "runtime/parallel.h"

namespace mpsf::MPSF_ISA {
namespace {

inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// How far a window reaches from its position along an axis. What lies outside is zero, so it need not reach further.
struct Reach {
  int64_t before, after;
  int64_t size() const { return before + after + 1; }
  Reach mirrored() const { return {after, before}; }
};

inline Reach reach_of(int64_t before, int64_t after, int64_t length) {
  return {smaller(before, length - 1), smaller(after, length - 1)};
}
inline Reach reach_of(int64_t size, int64_t length) { return reach_of(size / 2, (size - 1) / 2, length); }

// Where sums[i] is the sum of `size` elements `step` apart from in[i] on, for i < length; this may be `in` itself. Both
// have room for length + size * step + lanes elements.
template <typename A>
const A* run_sums(const A* in, A* sums, int64_t length, int64_t step, int64_t size) {
  constexpr int L = lanes<A>;
  const A* from = in;
  int64_t run = 1;
  for (int bit = 62 - __builtin_clzll(static_cast<unsigned long long>(size)); bit >= 0; --bit) {
    const bool odd = size >> bit & 1;
    if (size == 5) {  // all at once
      const int64_t four = 4 * step;
      for (int64_t i = 0; i < length; i += L) {
        const Vec<A> inner = load(in + i + step) + load(in + i + 3 * step), outer = load(in + i) + load(in + i + four);
        store(sums + i, outer + inner + load(in + i + 2 * step));
      }
      return sums;
    }
    const int64_t ahead = run * step, end = length + (size - 2 * run - odd) * step;
    if (odd) {
      for (int64_t i = 0; i < end; i += L)
        store(sums + i, load(from + i) + load(from + i + ahead) + load(in + i + 2 * ahead));
    } else {
      for (int64_t i = 0; i < end; i += L) store(sums + i, load(from + i) + load(from + i + ahead));
    }
    run = 2 * run + odd;
    from = sums;
  }
  return from;
}

constexpr int64_t kAdded = 7;  // rows of a window that are added one by one

// Rows come in from the top, one after the other, and the sums over windows of rows go out. Blocks of rows begin at
// multiples of the window's size, wherever the rows begin: so the order of additions depends on the position only.
template <typename A>
class FallingSums {
 public:
  // Rows [first, end) of so many elements will come.
  FallingSums(int64_t width, Reach reach, int64_t first, int64_t end)
      : width_(width),
        size_(reach.size()),
        first_(first),
        end_(end),
        kept_(smaller(size_, end - first)),
        rows_(kept_ * width),
        prefix_(width) {}

  // Takes row number `row`, whose elements are value(i, n), or a row of zeros behind the last; fills `sums`, unless it
  // is null, with the sums of the window that ends there.
  template <typename F>
  void push(int64_t row, A* sums, const F& value) {
    constexpr int L = lanes<A>;
    if (size_ <= kAdded) return add(row, sums, value);
    const int64_t begin = row - row % size_, top = row - size_ + 1;
    const bool fresh = row == begin || row == first_, there = row < end_;
    const A* suffix = sums && first_ <= top && top < begin ? kept(top) : nullptr;
    A* own = there ? kept(row) : nullptr;
    A* prefix = prefix_.get();
    const auto each = [&](int64_t i, int n) __attribute__((always_inline)) {
      Vec<A> added = {};
      if (there) {
        added = value(i, n);
        store_some(own + i, added, n);
      }
      if (!fresh) added += load_some(prefix + i, n);
      store_some(prefix + i, added, n);
      if (suffix) added += load_some(suffix + i, n);
      if (sums) store_some(sums + i, added, n);
    };
    int64_t i = 0;
    if (there && !fresh && suffix) {  // the usual case, without its conditions
      for (; i + L <= width_; i += L) {
        const Vec<A> added = value(i, L), front = added + load(prefix + i);
        const Vec<A> whole = front + load(suffix + i);
        store(own + i, added);
        store(prefix + i, front);
        store(sums + i, whole);
      }
    }
    for (; i + L <= width_; i += L) each(i, L);
    if (i < width_) each(i, static_cast<int>(width_ - i));
    if (row - begin == size_ - 1) close(larger(begin, first_), smaller(row, end_ - 1));
  }

 private:
  template <typename F>
  void add(int64_t row, A* sums, const F& value) {
    const int64_t begin = larger(first_, row - size_ + 1), end = smaller(row, end_);
    const A* above[kAdded];
    for (int64_t i = begin; i < end; ++i) above[i - begin] = kept(i);
    const auto known = [&]<int Count>() { add<Count>(row, sums, value, above, Count); };
    switch (end - begin) {
      case 2:
        return known.template operator()<2>();
      case 4:
        return known.template operator()<4>();
      default:
        return add<0>(row, sums, value, above, static_cast<int>(end - begin));
    }
  }

  // So many rows above, which are Count where that is known.
  template <int Count, typename F>
  void add(int64_t row, A* const sums, const F& value, const A* const (&above)[kAdded], int count) {
    constexpr int L = lanes<A>;
    A* const own = row < end_ ? kept(row) : nullptr;
    const A* rows[kAdded];
    for (int j = 0; j < kAdded; ++j) rows[j] = j < count ? above[j] : nullptr;
    const auto each = [=](int64_t i, int n) __attribute__((always_inline)) {
      Vec<A> sum = {};
      if (sums) {
        for (int j = 0; j < (Count ? Count : count); ++j) sum += load_some(rows[j] + i, n);
      }
      if (own) {
        const Vec<A> added = value(i, n);
        store_some(own + i, added, n);
        sum += added;
      }
      if (sums) store_some(sums + i, sum, n);
    };
    int64_t i = 0;
    for (; i + L <= width_; i += L) each(i, L);
    if (i < width_) each(i, static_cast<int>(width_ - i));
  }

  A* kept(int64_t row) const { return &rows_[(row - first_) % kept_ * width_]; }

  // Every row of a block becomes the sum of itself and those below it.
  void close(int64_t begin, int64_t last) {
    for_columns<A>(width_, [&]<int N>(int64_t column, int n) {
      constexpr int L = lanes<A>;
      Vec<A> sum[N] = {};
      for (int64_t row = last; row >= begin; --row) {
        A* at = kept(row) + column;
        for (int v = 0; v < N; ++v) {
          sum[v] += load_some(at + v * L, n);
          store_some(at + v * L, sum[v], n);
        }
      }
    });
  }

  int64_t width_, size_, first_, end_, kept_;
  Scratch<A> rows_, prefix_;
};

// A row between zeros, as windows along it want it, and their sums.
template <typename A>
class RowSums {
 public:
  // So many pixels, each of `step` elements.
  RowSums(int64_t pixels, int64_t step, Reach reach)
      : width_(pixels * step), step_(step), reach_(reach), row_(room()), sums_(room()) {
    memset(static_cast<void*>(row_.get()), 0, static_cast<size_t>(room()) * sizeof(A));
  }
  A* row() const { return &row_[reach_.before * step_]; }
  const A* sums() const { return run_sums(row_.get(), sums_.get(), width_, step_, reach_.size()); }

 private:
  int64_t room() const { return width_ + reach_.size() * step_ + lanes<A>; }

  int64_t width_, step_;
  Reach reach_;
  Scratch<A> row_, sums_;
};

// Parts of images ------------------------------------------------------------------------------------------

struct Images {
  int64_t count, height, width, channels;
  int64_t pitch() const { return width * channels; }
};

inline Images images_of(const Tensor& image) {
  return {image.shape[0], image.shape[1], image.shape[2], image.shape[3]};
}

// Some channels of rows of an image. Windows do not mix channels, so that a part's rows stay in the caches.
struct Part {
  int64_t image, top, bottom, first, channels;
};

constexpr int64_t kSliceBytes = 256;  // channels of a part at least, as sums

// Calls f(part) for parts that make up the images. Images are cut into rows only where there are few, since the rows of
// a window, so many, are then read twice.
template <typename Sum, typename F>
void parallel_parts(const Images& images, int64_t window, const F& f) {
  constexpr int64_t kSmall = 1 << 13, kFew = 16, kUnit = 16;
  const int64_t area = images.height * images.width, least = kSliceBytes / static_cast<int64_t>(sizeof(Sum));
  const int64_t slice = larger(least, kSmall / area);
  const int64_t slices = larger(1, images.channels / slice), parts = images.count * slices;
  int64_t slabs = parts < kFew ? (kFew + parts - 1) / parts : 1;
  slabs = smaller(slabs, smaller(images.height / (2 * window), area * images.channels / slices / kSmall));
  slabs = larger(slabs, 1);
  const auto channel = [&](int64_t i) {
    return i == slices ? images.channels : images.channels * i / slices / kUnit * kUnit;
  };
  const int64_t group = 1 + kSmall / (area * images.channels / slices / slabs + 1);
  parallel_for((parts * slabs + group - 1) / group, [&](int64_t task) {
    for (int64_t i = task * group; i < smaller(parts * slabs, (task + 1) * group); ++i) {
      const int64_t slab = i % slabs, at = i / slabs % slices, first = channel(at);
      f(Part{i / slabs / slices, images.height * slab / slabs, images.height * (slab + 1) / slabs, first,
             channel(at + 1) - first});
    }
    stream_end();
  });
}

MPSF_INLINE void store_as(float* p, Vec<float> v, int n) { store_some(p, v, n); }
MPSF_INLINE void store_as(double* p, Vec<double> v, int n) { store_some(p, v, n); }
MPSF_INLINE void store_as(double* p, Vec<float> v, int n) {
  const Pair pair = split(v);
  constexpr int L = lanes<double>;
  store_some(p, pair.low, n < L ? n : L);
  if (n > L) store_some(p + L, pair.high, n - L);
}

template <typename A>
MPSF_INLINE Vec<A> load_as(const A* p, int n) {
  return load_some(p, n);
}
template <typename A>
MPSF_INLINE Vec<A> load_as(const double* p, int n) requires(sizeof(A) == 4) {
  constexpr int L = lanes<double>;
  return join(load_some(p, n < L ? n : L), n > L ? load_some(p + L, n - L) : Vec<double>{});
}

// Calls f(offset, at, length) for the runs of elements side by side of some pixels of a part's row: where they lie in
// the image's row, and among the part's.
template <typename F>
MPSF_INLINE void for_runs(const Images& images, const Part& part, int64_t begin, int64_t end, const F& f) {
  const bool whole = part.channels == images.channels;
  const int64_t runs = whole ? 1 : end - begin, length = whole ? (end - begin) * part.channels : part.channels;
  for (int64_t run = 0; run < runs; ++run) {
    f((begin + run) * images.channels + part.first, begin * part.channels + run * length, length);
  }
}

// Calls f(offset, at, n) for their vectors.
template <typename A, typename F>
MPSF_INLINE void for_pixels(const Images& images, const Part& part, int64_t begin, int64_t end, const F& f) {
  for_runs(
      images, part, begin, end, [&](int64_t offset, int64_t at, int64_t length) __attribute__((always_inline)) {
        for_each<A>(
            length, [&](int64_t i, int n) __attribute__((always_inline)) { f(offset + i, at + i, n); });
      });
}

template <typename A, typename F>
MPSF_INLINE void for_part(const Images& images, const Part& part, const F& f) {
  for_pixels<A>(images, part, 0, images.width, f);
}

// Whether a part's vectors go past the caches.
template <typename A>
bool streams(const Tensor& image, const Images& images, const Part& part) {
  constexpr int L = lanes<A>;
  const bool even = part.channels == images.channels
                        ? images.pitch() % L == 0
                        : images.channels % L == 0 && part.first % L == 0 && part.channels % L == 0;
  return image.streamed && even;
}

// A part's elements of one row, side by side; in `room` unless they lie so in the image.
template <typename B, typename T>
const B* taken(const Tensor& image, const Part& part, int64_t row, B* room) {
  const Images images = images_of(image);
  const T* from = data<T>(image) + (part.image * images.height + row) * images.pitch();
  if constexpr (sizeof(T) == sizeof(B)) {
    if (part.channels == images.channels) return from;
  }
  for_part<Acc<T>>(images, part,
                   [&](int64_t offset, int64_t at, int n) { store_as(room + at, load_some(from + offset, n), n); });
  return room;
}

// The inverse.
template <typename T, typename B>
void put(const Tensor& image, const Part& part, int64_t row, const B* made) {
  using A = Acc<T>;
  const Images images = images_of(image);
  T* to = data<T>(image) + (part.image * images.height + row) * images.pitch();
  const bool streamed = streams<A>(image, images, part);
  for_part<A>(images, part, [&](int64_t offset, int64_t at, int n) {
    store_result(to + offset, load_as<A>(made + at, n), n, streamed);
  });
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
