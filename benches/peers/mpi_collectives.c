/* MPI's all-reduce of N floats and MPI's barrier, for benches/peers.sh.
 *
 *   mpicc -O3 -o mpi_collectives mpi_collectives.c
 *   mpirun -n 2 ./mpi_collectives all-reduce 25557032 9     (elements, repeats)
 *   mpirun -n 2 ./mpi_collectives barrier 2000 9            (barriers in a row, repeats)
 *   mpirun -n 1 ./mpi_collectives version
 *
 * Rank 0 prints the seconds of one all-reduce, or of one barrier: the median over the repeats of the slowest rank's.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UPS = 2 };

/* How often a sum is made in a row: of few elements so often that the clock does not count. The bench does the same. */
static long in_a_row(long count) { return count <= 1024 ? 200 : count <= 100000 ? 10 : 1; }

static int ascending(const void *left, const void *right) {
  double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

static void fail(const char *why) {
  fprintf(stderr, "mpi_collectives: %s\n", why);
  MPI_Abort(MPI_COMM_WORLD, 1);
  exit(1);
}

/* What is measured: `count` elements, or barriers. Returns this rank's seconds for one of it. */
static double all_reduce(const float *given, float *sum, long count) {
  long sums = in_a_row(count);
  double begun = MPI_Wtime();
  for (long i = 0; i < sums; i++) MPI_Allreduce(given, sum, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  return (MPI_Wtime() - begun) / sums;
}

static double barriers(long count) {
  double begun = MPI_Wtime();
  for (long i = 0; i < count; i++) MPI_Barrier(MPI_COMM_WORLD);
  return (MPI_Wtime() - begun) / count;
}

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (argc == 2 && strcmp(argv[1], "version") == 0) {
    char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n")] = '\0';
    if (rank == 0) puts(text);
    MPI_Finalize();
    return 0;
  }
  long count = argc == 4 ? atol(argv[2]) : 0;
  int repeats = argc == 4 ? atoi(argv[3]) : 0;
  int reduces = argc == 4 && strcmp(argv[1], "all-reduce") == 0;
  if (count < 1 || count > 0x7fffffff || repeats < 1 || (!reduces && strcmp(argv[1], "barrier") != 0))
    fail("usage: mpi_collectives (all-reduce ELEMENTS | barrier COUNT) REPEATS");

  float *given = NULL, *sum = NULL;
  if (reduces) {
    given = malloc(count * sizeof *given);
    sum = malloc(count * sizeof *sum);
    if (!given || !sum) fail("out of memory");
    /* Written, so that no page is first touched while the clock runs. */
    for (long i = 0; i < count; i++) {
      given[i] = (float)((i * 40503L + rank) % 2003 - 1001) * 1e-6f;
      sum[i] = 0.0f;
    }
  }
  double *seconds = malloc(repeats * sizeof *seconds);
  if (!seconds) fail("out of memory");
  for (int repeat = -WARM_UPS; repeat < repeats; repeat++) {
    MPI_Barrier(MPI_COMM_WORLD);
    double own = reduces ? all_reduce(given, sum, count) : barriers(count);
    double slowest;
    MPI_Allreduce(&own, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (repeat >= 0) seconds[repeat] = slowest;
  }
  qsort(seconds, repeats, sizeof *seconds, ascending);
  if (rank == 0) printf("%.9f\n", seconds[repeats / 2]);
  MPI_Finalize();
  return 0;
}
