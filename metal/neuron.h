// The activations that a convolution applies itself, numbered as in mpsfunc/_neuron.py. NaN stays NaN.
#ifndef MPSF_NEURON_H
#define MPSF_NEURON_H

MPSF_FN float activated(float z, int neuron) { return neuron == 1 && z <= 0 ? 0.0f : z; }

#endif
