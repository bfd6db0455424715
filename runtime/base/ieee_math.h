#pragma once

// Functions of a real number that give the same bits everywhere. Those of the C library round in
// ways that differ between libraries and their versions, and between processors. These are written
// with additions, products, divisions and changes of bits alone, which IEEE 754 rounds in one way
// only, so no answer depends on where the program runs. They expect the rounding to nearest that
// every thread has.

namespace shoal::ieee {

/// exp(x) within 2 ulp; 0 below -708, where a double would be subnormal.
double exp(double x);

/// The natural logarithm within 2 ulp, of a normal number. -infinity for 0, NaN below.
double log(double x);

/// base ** exponent for a base > 0, with an error of about (1 + |exponent log(base)|) 2^-51 of the
/// result. This is far below half a unit of a float.
double pow(double base, double exponent);

/// Sine and cosine of x radians for |x| < 10^8, with an error below 2^-48 of the result if x is a
/// float. Rounded to float, they are within 0.5001 ulp. For greater x (a rope factor far below 1 at
/// the end of a very long context) they are less exact, and still the same everywhere.
double sin(double x);
double cos(double x);

}  // namespace shoal::ieee
