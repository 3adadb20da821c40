// The geometry of windows along one spatial axis. Metal, CUDA and C++ all include this file, and none says it again.
// Everything counts elements of that axis; mpsfunc/windows/placement.py fills an Axis in.
#ifndef MPSF_GEOMETRY_H
#define MPSF_GEOMETRY_H
#include "shared/base.h"

struct Axis {
  int n_in, n_out;  // how long the input and the output are
  int size;         // taps in a window
  int stride;       // input elements between two windows
  int dilation;     // input elements between two taps
  int pad;          // output 0 starts at input -pad; negative when it starts inside
  int edge;         // 0: a tap outside reads zero and counts, 1: the window shrinks to the image (other than averages:
                    // below), 3: windows part the input evenly, whatever stride, dilation and pad say, 4: as 0, but an
                    // average divides by zero_pad
  int zero_pad;     // zeros in front of the input that still count when the window shrinks
  int begin, end;   // outputs outside [begin, end) do not exist for values or gradients
  int zero_pad_after;  // zeros behind the input that count then
};

MPSF_FN bool selected(Axis a, int o) { return o >= a.begin && o < a.end; }

// i of n equal parts, in units of which there are `of`: rounded down and up.
MPSF_FN int part_down(int i, int n, int of) { return int(long(i) * of / n); }
MPSF_FN int part_up(int i, int n, int of) { return int((long(i) * of + n - 1) / n); }

// Input position of the first tap of output o; may lie outside the image. In a convolution edge is 0.
MPSF_FN int strided(Axis a, int o) { return o * a.stride - a.pad; }
MPSF_FN int first(Axis a, int o) { return a.edge == 3 ? part_down(o, a.n_out, a.n_in) : strided(a, o); }

// Taps of output o; `size` is the most that any has.
MPSF_FN int taps(Axis a, int o) { return a.edge == 3 ? part_up(o + 1, a.n_out, a.n_in) - first(a, o) : a.size; }

// Of the taps of output o, [tap_begin, tap_end) fall on the image.
MPSF_FN int tap_begin(Axis a, int o) { return max_int(0, ceil_div(-first(a, o), a.dilation)); }
MPSF_FN int tap_end(Axis a, int o) {
  return max_int(tap_begin(a, o), min_int(taps(a, o), floor_div(a.n_in - 1 - first(a, o), a.dilation) + 1));
}

// Convolutions ---------------------------------------------------------------------------------------------

// Where in the input output o looks with its tap k; -1 where there is no image.
MPSF_FN int source(Axis a, int o, int k) {
  int i = strided(a, o) + k * a.dilation;
  return i >= 0 && i < a.n_in ? i : -1;
}

// Undoes source: the selected output that looks at input i with its tap k, and -1 if there is none.
MPSF_FN int target(Axis a, int i, int k) {
  int t = i + a.pad - k * a.dilation;
  if (t < 0 || t % a.stride != 0) return -1;
  int o = t / a.stride;
  return selected(a, o) ? o : -1;
}

// Averages -------------------------------------------------------------------------------------------------

// The selected outputs whose window spans input i are [reader_begin, reader_end).
// With dilation 1 each of them reads i exactly once; otherwise ask reads().
MPSF_FN int reader_begin(Axis a, int i) {
  if (a.edge == 3) return max_int(a.begin, part_down(i, a.n_in, a.n_out));
  return max_int(a.begin, ceil_div(i + a.pad - (a.size - 1) * a.dilation, a.stride));
}
MPSF_FN int reader_end(Axis a, int i) {
  if (a.edge == 3) return min_int(a.end, part_up(i + 1, a.n_in, a.n_out));
  return min_int(a.end, floor_div(i + a.pad, a.stride) + 1);
}
MPSF_FN bool reads(Axis a, int o, int i) { return a.dilation == 1 || (i - first(a, o)) % a.dilation == 0; }

// What an average over output o is divided by along this axis; 0 when the shrunken window is empty.
MPSF_FN int divisor(Axis a, int o) {
  if (a.edge != 1) return a.edge == 4 ? a.zero_pad : taps(a, o);
  int low = -a.zero_pad - first(a, o), high = a.n_in - 1 + a.zero_pad_after - first(a, o);
  int from = max_int(0, ceil_div(low, a.dilation)), to = min_int(a.size - 1, floor_div(high, a.dilation));
  return max_int(0, to - from + 1);
}

// Maxima and norms, where edge 1 reads the edge pixel for a tap outside and 2 passes such a tap by ---------

// The taps of output o that read are [edge_tap_begin, edge_tap_end), and where one stands that reads the edge.
MPSF_FN int edge_tap_begin(Axis a, int o) { return a.edge == 1 ? 0 : tap_begin(a, o); }
MPSF_FN int edge_tap_end(Axis a, int o) { return a.edge == 1 ? a.size : tap_end(a, o); }
MPSF_FN int onto_image(Axis a, int i) { return max_int(0, min_int(i, a.n_in - 1)); }

// Input that tap k of output o reads, or -1.
MPSF_FN int edge_source(Axis a, int o, int k) {
  int i = first(a, o) + k * a.dilation;
  if (a.edge == 1) return onto_image(a, i);
  if (a.edge == 3 && k >= taps(a, o)) return -1;
  return i >= 0 && i < a.n_in ? i : -1;
}

// The taps of output o that read input i are [first, first + count).
struct Taps {
  int first, count;
};
MPSF_FN Taps taps_on(Axis a, int o, int i) {
  int distance = i - first(a, o), last = taps(a, o) - 1;
  bool low = a.edge == 1 && i == 0, high = a.edge == 1 && i == a.n_in - 1;
  int from = low ? 0 : ceil_div(distance, a.dilation), to = high ? last : floor_div(distance, a.dilation);
  from = max_int(0, from);
  Taps on = {from, max_int(0, min_int(last, to) - from + 1)};
  return on;
}

// The first of them, which is the only one that can win, or -1.
MPSF_FN int edge_tap(Axis a, int o, int i) {
  Taps on = taps_on(a, o, i);
  return on.count > 0 ? on.first : -1;
}

// The selected outputs that may read input i are [edge_reader_begin, edge_reader_end).
MPSF_FN int edge_reader_begin(Axis a, int i) { return a.edge == 1 && i == 0 ? a.begin : reader_begin(a, i); }
MPSF_FN int edge_reader_end(Axis a, int i) { return a.edge == 1 && i == a.n_in - 1 ? a.end : reader_end(a, i); }

// Whether output o reads a zero of the padding.
MPSF_FN bool hangs_over(Axis a, int o) {
  return a.edge == 0 && (first(a, o) < 0 || first(a, o) + (a.size - 1) * a.dilation >= a.n_in);
}

#endif
