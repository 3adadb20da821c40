// What a convolution's neuron makes of z, of those that it applies itself.
#ifndef MPSF_NEURON_H
#define MPSF_NEURON_H
#include "shared/functions.h"
// Activations stand behind their functions.
#include "activation/activations.h"

MPSF_FN float activated_by(int kind, float z, ActivationParams p) {
  if (kind == kRelu) return activated<kRelu>(z, p);
  if (kind == kSigmoid) return activated<kSigmoid>(z, p);
  if (kind == kTanh) return activated<kTanh>(z, p);
  if (kind == kElu) return activated<kElu>(z, p);
  return z;
}

#endif
