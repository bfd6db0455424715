// Runs MPI_Allreduce of 1 KiB, 64 KiB and 4 MiB of floats, twenty times each. Every rank checks
// every sum.
#include <cstdio>
#include <mpi.h>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int wrong = 0;
  for (const int count : {256, 16384, 1048576}) {
    for (int round = 0; round < 20; ++round) {
      std::vector<float> mine(count, static_cast<float>(rank + 1 + round)), sum(count);
      MPI_Allreduce(mine.data(), sum.data(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      for (const float value : sum)
        wrong += value != static_cast<float>(ranks * (ranks + 1) / 2 + ranks * round);
    }
  }
  if (rank == 0) std::printf("%d ranks, %d wrong\n", ranks, wrong);
  MPI_Finalize();
  return wrong == 0 ? 0 : 1;
}
