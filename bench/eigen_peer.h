// What bench/eigen_peer.cpp gives to the rest of the program.
#pragma once

void quire_eigen_product(bool transpose_a, bool transpose_b, long m, long n, long k, const float* a, const float* b, float* c);
const char* quire_eigen_build();
/// Whether this processor has the instructions that it was compiled for.
bool quire_eigen_runs();
