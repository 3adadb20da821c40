// The activations that other operations apply themselves, numbered as in mpsfunc/_neuron.py. NaN stays NaN.
#ifndef MPSF_NEURON_H
#define MPSF_NEURON_H

MPSF_FN float activated(float z, int neuron) { return neuron == 1 && z <= 0 ? 0.0f : z; }

// The gradient of z from that of what was activated; a relu is right-differentiable at 0, and NaN lets it through.
MPSF_FN float through_neuron(float dy, float z, int neuron) { return neuron == 1 && z < 0 ? 0.0f : dy; }

#endif
