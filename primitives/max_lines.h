// Which taps lead where, for maximum pooling, and orders of a line's pixels that make neighbours of those that do the
// same, so that few channels fill whole vectors too.
#pragma once
#include "channels.h"
#include "geometry.h"
#include "parallel.h"
#include "simd.h"

namespace mpsf::MPSF_ISA {
namespace {

struct Tap {
  int64_t at;  // the input or output that it leads to along one axis: its offset in elements
  int number;  // in the window, along that axis
};

// Lists of taps, one after the other: list number i is [begin(i), end(i)).
class Lists {
 public:
  Lists(int count, int64_t most) : count_(count), starts_(count + 1), taps_(most) { starts_[0] = 0; }
  void add(Tap tap) { taps_[end_++] = tap; }
  void close() { starts_[++closed_] = end_; }
  int64_t count() const { return count_; }
  const Tap* begin(int64_t i) const { return taps_.get() + starts_[i]; }
  const Tap* end(int64_t i) const { return begin(i + 1); }
  int size(int64_t i) const { return static_cast<int>(end(i) - begin(i)); }
  int64_t total() const { return end_; }

  // Whether list i + 1 has the taps of list i, each `step` elements further.
  bool goes_on(int64_t i, int64_t step) const {
    if (i + 1 == count_ || size(i) != size(i + 1)) return false;
    bool same = true;
    for (const Tap *tap = begin(i), *next = end(i); tap < end(i); ++tap, ++next) {
      same &= next->at == tap->at + step && next->number == tap->number;
    }
    return same;
  }

 private:
  int64_t count_;
  Scratch<int64_t> starts_;
  Scratch<Tap> taps_;
  int64_t closed_ = 0, end_ = 0;
};

// Neighbours that do the same with pixels side by side are one vector: for each position how many such begin there.
class Runs {
 public:
  Runs(const Lists& lists, int64_t channels) : counts_(lists.count()) {
    for (int64_t i = lists.count() - 1; i >= 0; --i) counts_[i] = lists.goes_on(i, channels) ? counts_[i + 1] + 1 : 1;
  }
  int64_t operator[](int64_t i) const { return counts_[i]; }

 private:
  Scratch<int64_t> counts_;
};

// Input that tap k of output o can win with, or -1: a state that a user wrote may name others.
inline int winnable(const Axis& a, int o, int k) {
  const int at = max_source(a, o, k);
  return at >= 0 && max_tap(a, o, at) == k ? at : -1;
}

// An order of a line's pixels in which those `step` apart are neighbours: first the multiples of the step, then what
// follows each of them, and so on.
class Order {
 public:
  Order(int64_t size, int64_t step) : pixels_(size), places_(size) {
    int64_t place = 0;
    for (int64_t phase = 0; phase < smaller(step, size); ++phase) {
      for (int64_t pixel = phase; pixel < size; pixel += step) {
        places_[pixel] = place;
        pixels_[place++] = static_cast<int>(pixel);
      }
    }
  }
  int64_t place(int64_t pixel) const { return places_[pixel]; }
  int pixel(int64_t place) const { return pixels_[place]; }

 private:
  Scratch<int> pixels_;
  Scratch<int64_t> places_;
};

// For each output the taps that can win, in order: where two read one pixel, the first.
template <typename F>
void list_reads(const Axis& a, Lists& lists, const F& offset) {
  for (int o = 0; o < a.n_out; ++o) {
    for (int k = 0; k < a.size; ++k) {
      const int at = winnable(a, o, k);
      if (at >= 0) lists.add({offset(at), k});
    }
    lists.close();
  }
}

// For each input, in the given order, the outputs that it can win, with its tap there.
void list_readers(const Axis& a, Lists& lists, const Order& order, int64_t pitch) {
  for (int64_t place = 0; place < a.n_in; ++place) {
    const int i = order.pixel(place);
    for (int o = max_reader_begin(a, i); o < max_reader_end(a, i); ++o) {
      const int k = max_tap(a, o, i);
      if (k >= 0) lists.add({o * pitch, k});
    }
    lists.close();
  }
}

int64_t pairs(const Axis& a) { return int64_t{a.n_out} * lesser(a.size, a.n_in) + 1; }

// Pixel i of `to` is that at from + offsets[i]; both are lines of so many pixels. Copies more than a pixel at a time
// where there is more, which the next one overwrites.
template <int Bytes, typename T>
void reorder(const T* from, const int64_t* offsets, int64_t pixels, int64_t channels, T* to) {
  constexpr int64_t kCopied = Bytes / static_cast<int64_t>(sizeof(T));
  const int64_t last = pixels * channels - kCopied;
  for (int64_t i = 0; i < pixels; ++i) {
    if (offsets[i] <= last && i * channels <= last) {
      memcpy(static_cast<void*>(to + i * channels), from + offsets[i], Bytes);
    } else {
      for (int64_t c = 0; c < channels; ++c) to[i * channels + c] = from[offsets[i] + c];
    }
  }
}

template <typename T>
void reorder(const T* from, const int64_t* offsets, int64_t pixels, int64_t channels, T* to) {
  const int64_t bytes = channels * static_cast<int64_t>(sizeof(T));
  if (bytes <= 16) return reorder<16>(from, offsets, pixels, channels, to);
  if (bytes <= 32) return reorder<32>(from, offsets, pixels, channels, to);
  reorder<64>(from, offsets, pixels, channels, to);
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
