// The convolutions of the AMX level over a model of its instructions, as a library that test_tiles.py calls.
#include <stdlib.h>
#include <string.h>

#include "runtime/call.h"

namespace mpsf {
namespace below {  // what the level leaves to AVX-512 is not tested here
void conv(const Call&) { abort(); }
void conv_grad_input(const Call&) { abort(); }
void conv_grad_weights(const Call&) { abort(); }
}  // namespace below
namespace tested {
void conv(const Call&);
void conv_grad_input(const Call&);
void conv_grad_weights(const Call&);
}  // namespace tested
}  // namespace mpsf

extern "C" [[gnu::visibility("default")]] void run(const char* op, const mpsf::Tensor* in, const mpsf::Tensor* out,
                                                   int out_count, const int* params) {
  const mpsf::Call call = {in, out, out_count, params};
  if (strcmp(op, "conv") == 0) {
    mpsf::tested::conv(call);
  } else if (strcmp(op, "conv_grad_input") == 0) {
    mpsf::tested::conv_grad_input(call);
  } else {
    mpsf::tested::conv_grad_weights(call);
  }
}
