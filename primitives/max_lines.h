// Which taps lead where, for maximum pooling.
#pragma once
#include "channels.h"
#include "geometry.h"
#include "lists.h"
#include "parallel.h"
#include "simd.h"

namespace mpsf::MPSF_ISA {
namespace {

struct Tap {
  int64_t at;  // the input or output that it leads to along one axis: its offset in elements
  int number;  // in the window, along that axis

  bool operator==(const Tap& other) const { return at == other.at && number == other.number; }
  Tap moved(int64_t step) const { return {at + step, number}; }
};

// Input that tap k of output o can win with, or -1: a state that a user wrote may name others.
inline int winnable(const Axis& a, int o, int k) {
  const int at = max_source(a, o, k);
  return at >= 0 && max_tap(a, o, at) == k ? at : -1;
}

// For each output the taps that can win, in order: where two read one pixel, the first.
template <typename F>
void list_reads(const Axis& a, Lists<Tap>& lists, const F& offset) {
  for (int o = 0; o < a.n_out; ++o) {
    for (int k = 0; k < a.size; ++k) {
      const int at = winnable(a, o, k);
      if (at >= 0) lists.add({offset(at), k});
    }
    lists.close();
  }
}

// For each input, in the given order, the outputs that it can win, with its tap there.
void list_readers(const Axis& a, Lists<Tap>& lists, const Order& order, int64_t pitch) {
  for (int64_t place = 0; place < a.n_in; ++place) {
    const int i = order.pixel(place);
    for (int o = max_reader_begin(a, i); o < max_reader_end(a, i); ++o) {
      const int k = max_tap(a, o, i);
      if (k >= 0) lists.add({o * pitch, k});
    }
    lists.close();
  }
}

}  // namespace
}  // namespace mpsf::MPSF_ISA
