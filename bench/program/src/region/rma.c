/* Random gets of one rank from windows of the others, beside `ropewalk-bench region`: the last rank is the origin.
 * Arguments: bytes of each window, milliseconds of each measurement, gets in flight, sizes. One line for each size on standard output:
 * size, median and 99th percentile of round trips in seconds, gets a second. */

#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t seed = 5;

static uint64_t below(uint64_t bound)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (seed >> 20) % bound;
}

static int less(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { ROUNDS_MAX = 100000 };

int main(int count, char **arguments)
{
    int rank, ranks;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count < 5 || ranks < 2)
        MPI_Abort(MPI_COMM_WORLD, 2);
    uint64_t part = strtoull(arguments[1], NULL, 10);
    double most = atof(arguments[2]) / 1000;
    int in_flight = atoi(arguments[3]);
    int is_origin = rank == ranks - 1;
    unsigned char *memory;
    MPI_Win window;
    MPI_Win_allocate(is_origin ? 0 : (MPI_Aint)part, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    if (!is_origin)
        memset(memory, rank + 1, part);
    MPI_Barrier(MPI_COMM_WORLD);
    if (is_origin) {
        double *times = malloc(ROUNDS_MAX * sizeof *times);
        for (int target = 0; target < ranks - 1; target++)
            MPI_Win_lock(MPI_LOCK_SHARED, target, 0, window);
        for (int at = 4; at < count; at++) {
            int size = atoi(arguments[at]);
            unsigned char *into = malloc((size_t)size * in_flight);
            int rounds = 0;
            double begun = MPI_Wtime();
            while (rounds < ROUNDS_MAX && (rounds < 100 || MPI_Wtime() - begun < most)) {
                int target = (int)below(ranks - 1);
                MPI_Aint from = (MPI_Aint)below(part - size + 1);
                double before = MPI_Wtime();
                MPI_Get(into, size, MPI_BYTE, target, from, size, MPI_BYTE, window);
                MPI_Win_flush(target, window);
                times[rounds++] = MPI_Wtime() - before;
                if (into[0] != target + 1 || into[size - 1] != target + 1)
                    MPI_Abort(MPI_COMM_WORLD, 3);
            }
            qsort(times, rounds, sizeof *times, less);
            double median = times[rounds / 2], late = times[(int)((rounds - 1) * 0.99)];
            uint64_t done = 0;
            begun = MPI_Wtime();
            do {
                for (int one = 0; one < in_flight; one++)
                    MPI_Get(into + (size_t)one * size, size, MPI_BYTE, (int)below(ranks - 1), (MPI_Aint)below(part - size + 1), size,
                            MPI_BYTE, window);
                MPI_Win_flush_all(window);
                done += in_flight;
            } while (MPI_Wtime() - begun < most);
            printf("%d %.9f %.9f %.3f\n", size, median, late, done / (MPI_Wtime() - begun));
            free(into);
        }
        for (int target = 0; target < ranks - 1; target++)
            MPI_Win_unlock(target, window);
        free(times);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_free(&window);
    MPI_Finalize();
    return 0;
}
