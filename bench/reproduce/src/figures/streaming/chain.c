/* A bare chain over MPI: rank 0 makes blocks, each rank passes what it receives to the next, the last one drops it and prints when
 * its first block arrived and when its last one had. Arguments: bytes of a block, blocks. */

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static unsigned long long now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

int main(int count, char **words) {
    int rank, size;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (count != 3) return 1;
    int length = atoi(words[1]);
    long blocks = atol(words[2]);
    char *block = calloc(1, length);
    unsigned long long began = 0;
    for (long at = 0; at < blocks; at++) {
        if (rank > 0) MPI_Recv(block, length, MPI_BYTE, rank - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (at == 0) began = now();
        if (rank + 1 < size) MPI_Send(block, length, MPI_BYTE, rank + 1, 0, MPI_COMM_WORLD);
    }
    if (rank + 1 == size)
        printf("{\"began\": %llu, \"ended\": %llu, \"bytes\": %llu}\n", began, now(), (unsigned long long)length * blocks);
    MPI_Finalize();
    return 0;
}
