// Softmax.
#include "simd.h"

namespace mpsf::MPSF_ISA {

void softmax(const Call&) {}
void softmax_grad(const Call&) {}
void log_softmax(const Call&) {}
void log_softmax_grad(const Call&) {}

}  // namespace mpsf::MPSF_ISA
