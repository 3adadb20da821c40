// Functions of float vectors where a register holds sixteen: by a polynomial for each piece of the axis, whose
// coefficients lie in registers. They take half of the instructions of an exponential and a quotient, or a third.
#pragma once
#include "kernels/vector/vector_math.h"

namespace mpsf::MPSF_ISA {
namespace {

// activations.h has these, for numbers of any size.
template <typename Real>
MPSF_POINTWISE Real gelu_by_density(Real x);
template <typename Real>
MPSF_POINTWISE Real gelu_slope_by_density(Real x);
template <typename Real>
MPSF_POINTWISE Real sigmoid_slope_by_decay(Real x);

#if defined(__AVX512F__)

// A piece lies around each multiple of a step from 0 on. Its coefficients stand in a column, that of power 0 first, and
// belong to powers of the distance from that multiple.
constexpr int kPieces = 16;

// What the normal distribution has below -s, and s times its density less that; by steps of 1 / 4.
alignas(64) constexpr float kTails[7][kPieces] = {
    {0.5f, 0.401293665f, 0.308537543f, 0.22662735f, 0.158655256f, 0.105649777f, 0.066807203f, 0.0400591567f,
     0.0227501318f, 0.0122244731f, 0.00620966544f, 0.00297976332f, 0.00134989806f, 0.000577025057f, 0.000232629085f,
     8.84172841e-05f},
    {-0.398942292f, -0.386668116f, -0.352065325f, -0.301137418f, -0.241970718f, -0.182649091f, -0.1295176f,
     -0.086277321f, -0.0539909676f, -0.0317396522f, -0.0175283011f, -0.00909356214f, -0.00443184841f, -0.00202904805f,
     -0.000872682722f, -0.0003525957f},
    {0.0f, 0.0483335145f, 0.0880163312f, 0.112926535f, 0.120985359f, 0.11415568f, 0.0971381962f, 0.0754926577f,
     0.0539909676f, 0.0357071087f, 0.021910375f, 0.0125036482f, 0.00664777262f, 0.00329720299f, 0.00152719475f,
     0.000661116908f},
    {0.0664901286f, 0.0604166947f, 0.0440080948f, 0.0219580103f, 1.63594109e-07f, -0.0171231776f, -0.0269827135f,
     -0.0296577886f, -0.026995508f, -0.0214904454f, -0.0153373191f, -0.00994612277f, -0.00590914907f, -0.00323379831f,
     -0.00163627556f, -0.000767623715f},
    {0.0f, -0.0118315695f, -0.0201703031f, -0.0229381137f, -0.0201641899f, -0.0136749186f, -0.00607119035f,
     0.000393135793f, 0.00449921191f, 0.00613714941f, 0.00593406847f, 0.0047540064f, 0.00332389958f, 0.00207793294f,
     0.0011772156f, 0.000609467155f},
    {-0.00994115416f, -0.00844530854f, -0.00457526697f, 0.000137686438f, 0.00401188945f, 0.00596496416f, 0.00585352955f,
     0.00430596853f, 0.0022528253f, 0.000469029037f, -0.000659266196f, -0.00111784809f, -0.00110565044f,
     -0.000865194714f, -0.000579188636f, -0.000342781423f},
    {4.20389539e-45f, 0.00192314317f, 0.00306050386f, 0.00303088874f, 0.0020126733f, 0.000578024774f, -0.000652249728f,
     -0.0013041707f, -0.00134617742f, -0.00099047157f, -0.00051436614f, -0.000120793164f, 0.000109437351f,
     0.000190980121f, 0.000180246134f, 0.000132458983f},
};
alignas(64) constexpr float kBends[7][kPieces] = {
    {-0.5f, -0.304626644f, -0.13250488f, -0.000774278247f, 0.0833154693f, 0.122661583f, 0.127469197f, 0.110926151f,
     0.0852318034f, 0.0591897443f, 0.0376110859f, 0.0220275335f, 0.0119456472f, 0.00601738133f, 0.00282176025f,
     0.0012338165f},
    {0.797884583f, 0.749169469f, 0.616114318f, 0.432885051f, 0.241970733f, 0.0799089745f, -0.0323793963f,
     -0.0916696489f, -0.107981935f, -0.0972026885f, -0.0744952783f, -0.0505829416f, -0.031022938f, -0.0173737239f,
     -0.00894499756f, -0.00425318535f},
    {0.0f, -0.190313205f, -0.330061227f, -0.388184965f, -0.362956077f, -0.278254479f, -0.169991851f, -0.0707743615f,
     -3.53926888e-10f, 0.0379388034f, 0.049298346f, 0.0445442498f, 0.0332388617f, 0.0216378961f, 0.0125993565f,
     0.00665248884f},
    {-0.265959501f, -0.229834437f, -0.135691583f, -0.0190181006f, 0.080655396f, 0.136866644f, 0.144357651f, 0.1158792f,
     0.0719885454f, 0.0307276957f, 0.00200878433f, -0.0125094913f, -0.0162501894f, -0.0140779633f, -0.00993595272f,
     -0.0060715382f},
    {0.0f, 0.0697461963f, 0.112311535f, 0.114138931f, 0.080656819f, 0.0309547428f, -0.0136594763f, -0.0396872945f,
     -0.0449923575f, -0.0358815789f, -0.0213399902f, -0.00833184924f, -6.77407428e-08f, 0.00367608108f, 0.00423958572f,
     0.00336436648f},
    {0.0595822483f, 0.0477377847f, 0.0182577092f, -0.0144396173f, -0.0361018106f, -0.0400830619f, -0.02922865f,
     -0.0121416869f, 0.00262362347f, 0.0105405748f, 0.011658852f, 0.00869452488f, 0.00466347253f, 0.00146893866f,
     -0.000307782175f, -0.000921983796f},
    {-4.20389539e-45f, -0.0150854792f, -0.0225422643f, -0.019408172f, -0.00872878823f, 0.00306179398f, 0.0104004042f,
     0.0114019485f, 0.00778711354f, 0.00279914308f, -0.000983036472f, -0.00262435433f, -0.00254137907f, -0.00166101696f,
     -0.000742718636f, -0.000136211776f},
};
// The slope of a sigmoid; by steps of 1 / 2.
alignas(64) constexpr float kSlopes[6][kPieces] = {
    {0.25f, 0.23500371f, 0.196611941f, 0.149146453f, 0.104993589f, 0.0701037124f, 0.0451766588f, 0.0284530241f,
     0.0176627059f, 0.0108662294f, 0.00664805667f, 0.00405357173f, 0.00246650935f, 0.00149892876f, 0.000910221192f,
     0.000552473066f},
    {0.0f, -0.0575567819f, -0.0908577442f, -0.0947302207f, -0.0799625069f, -0.0594678372f, -0.0408915728f,
     -0.0267849807f, -0.0170273352f, -0.010627456f, -0.00655906787f, -0.0040205745f, -0.00245431182f, -0.00149442838f,
     -0.000908562681f, -0.000551862293f},
    {-0.0624975488f, -0.0481774881f, -0.0176644828f, 0.00783793721f, 0.0194256809f, 0.020308543f, 0.0164657757f,
     0.011797905f, 0.00789547898f, 0.00507889595f, 0.00319143361f, 0.00197748514f, 0.00121499842f, 0.000742720265f,
     0.000452622626f, 0.000275319297f},
    {0.0f, 0.0174577218f, 0.020584045f, 0.0124695292f, 0.00346438261f, -0.00157342514f, -0.00312062656f,
     -0.00293998234f, -0.0022364147f, -0.00154029042f, -0.00100596994f, -0.000637500198f, -0.000396944117f,
     -0.000244590658f, -0.000149772648f, -9.13669428e-05f},
    {0.0102894465f, 0.00561285717f, -0.0020542338f, -0.00494746352f, -0.00361132436f, -0.00151142455f, -0.000217944224f,
     0.000283768313f, 0.000371846545f, 0.000311325362f, 0.000223427298f, 0.000148964624f, 9.54662028e-05f,
     5.98228326e-05f, 3.69992013e-05f, 2.27060555e-05f},
    {0.0f, -0.00320127606f, -0.00234818039f, -6.43854364e-05f, 0.000875245489f, 0.000710593653f, 0.000334260723f,
     9.42787156e-05f, -6.71941416e-06f, -3.43156535e-05f, -3.36602025e-05f, -2.5559144e-05f, -1.74923025e-05f,
     -1.13641527e-05f, -7.17539615e-06f, -4.45724618e-06f},
};

// A number that leaves the multiple of 1 / Steps that is next to s, and its number in the last bits, when it is added.
template <int Steps>
constexpr float kRounding = 0x1.8p23f / Steps;

// Of 0 <= s < reach<Steps>.
template <int Steps, int Powers>
MPSF_INLINE Vec<float> in_pieces(const float (&coefficients)[Powers][kPieces], Vec<float> s) {
  const Vec<float> moved = s + kRounding<Steps>, distance = s - (moved - kRounding<Steps>);
  const auto at = [&](int power) __attribute__((always_inline)) {
    return Vec<float>(
        _mm512_maskz_permutexvar_ps(0xffff, bit_cast<__m512i>(moved), bit_cast<__m512>(load(coefficients[power]))));
  };
  Vec<float> sum = at(Powers - 1);
#pragma GCC unroll 8
  for (int power = Powers - 2; power >= 0; --power) sum = fused(sum, distance, at(power));
  return sum;
}

template <int Steps>
constexpr float kReach = (kPieces - 0.5f) / Steps;

// near(), and far() where pieces do not reach, which is asked for only where that is: what a number becomes does not
// depend on those beside it.
template <int Steps, typename Near>
MPSF_INLINE Vec<float> by_pieces(Vec<float> x, const Near& near, Vec<float> (*far)(Vec<float>)) {
  const Vec<float> s = absolute(x), made = near(s);
  const __mmask16 reached = _mm512_cmp_ps_mask(s, splat(kReach<Steps>), _CMP_LT_OQ);  // no NaN
  if (__builtin_expect(reached == 0xffff, 1)) return made;
  return _mm512_mask_blend_ps(reached, far(x), made);
}

__attribute__((noinline)) Vec<float> far_gelu(Vec<float> x);
__attribute__((noinline)) Vec<float> far_gelu_slope(Vec<float> x);
__attribute__((noinline)) Vec<float> far_sigmoid_slope(Vec<float> x);

MPSF_INLINE Vec<float> gelu(Vec<float> x) {
  const auto near = [x](Vec<float> s) __attribute__((always_inline)) {
    return at_least(x, 0) - s * in_pieces<4>(kTails, s);
  };
  return by_pieces<4>(x, near, far_gelu);
}

MPSF_INLINE Vec<float> gelu_slope(Vec<float> x) {
  const auto near = [x](Vec<float> s) __attribute__((always_inline)) {
    const Vec<float> bent = in_pieces<4>(kBends, s);
    return x < 0 ? -bent : bent + 1;
  };
  return by_pieces<4>(x, near, far_gelu_slope);
}

MPSF_INLINE Vec<float> sigmoid_slope(Vec<float> x) {
  const auto near = [](Vec<float> s) __attribute__((always_inline)) { return in_pieces<2>(kSlopes, s); };
  return by_pieces<2>(x, near, far_sigmoid_slope);
}

#endif

}  // namespace
}  // namespace mpsf::MPSF_ISA
