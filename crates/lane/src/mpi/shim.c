/* What lanes of MPI call, with the same binary interface for every MPI: that of MPI itself differs between
 * implementations. Compiled where it runs, with the mpicc of the MPI that is there. */

#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(ROPEWALK_OPEN_MPI) && !defined(OPEN_MPI)
#error "this mpicc is not that of Open MPI, and mpirun is"
#endif
#if defined(ROPEWALK_MPICH) && !defined(MPICH_VERSION)
#error "this mpicc is not that of MPICH, and mpirun is"
#endif

/* A request is a pointer in one MPI, a number in another. */
_Static_assert(sizeof(MPI_Request) <= sizeof(uint64_t), "a request has more than 8 bytes");

static uint64_t from_request(MPI_Request request) {
    uint64_t number = 0;
    memcpy(&number, &request, sizeof request);
    return number;
}

static MPI_Request to_request(uint64_t number) {
    MPI_Request request;
    memcpy(&request, &number, sizeof request);
    return request;
}

/* MPICH notifies ranks by SIGUSR1 that another one has ended. */
static void ignore(int number) { (void)number; }

/* `variables`: of the environment, NAME=VALUE, kept for good; the last one is NULL. */
int ropewalk_mpi_init(char **variables, int *rank, int *size, int *tag_max) {
    int provided = 0, found = 0, error;
    int *most = NULL;
    for (; *variables != NULL; variables++) putenv(*variables);
    signal(SIGUSR1, ignore);
    error = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided);
    if (error != MPI_SUCCESS) return error;
    if (provided < MPI_THREAD_SERIALIZED) return MPI_ERR_OTHER;
    error = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (error != MPI_SUCCESS) return error;
    error = MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &found);
    if (error != MPI_SUCCESS) return error;
    *tag_max = found && most != NULL ? *most : 32767;
    error = MPI_Comm_rank(MPI_COMM_WORLD, rank);
    if (error != MPI_SUCCESS) return error;
    return MPI_Comm_size(MPI_COMM_WORLD, size);
}

int ropewalk_mpi_send(const void *bytes, int length, int peer, int tag, uint64_t *request) {
    MPI_Request own;
    int error = MPI_Isend(bytes, length, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &own);
    if (error == MPI_SUCCESS) *request = from_request(own);
    return error;
}

int ropewalk_mpi_receive(void *bytes, int length, int peer, int tag, uint64_t *request) {
    MPI_Request own;
    int error = MPI_Irecv(bytes, length, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &own);
    if (error == MPI_SUCCESS) *request = from_request(own);
    return error;
}

/* Whether a request is done; then it is no more, and `length` has the bytes of a message that was received. */
int ropewalk_mpi_test(uint64_t *request, int *done, int *length) {
    MPI_Request own = to_request(*request);
    MPI_Status status;
    int error = MPI_Test(&own, done, &status);
    *request = from_request(own);
    *length = 0;
    if (error == MPI_SUCCESS && *done) MPI_Get_count(&status, MPI_BYTE, length);
    return error;
}

/* Takes back a receive, which is done soon after. */
int ropewalk_mpi_cancel(uint64_t *request) {
    MPI_Request own = to_request(*request);
    return MPI_Cancel(&own);
}

/* What an error means, with a 0 at the end. */
void ropewalk_mpi_text(int error, char *text, int room) {
    char own[MPI_MAX_ERROR_STRING + 1];
    int length = 0;
    if (room <= 0) return;
    memset(own, 0, sizeof own);
    if (MPI_Error_string(error, own, &length) != MPI_SUCCESS) own[0] = 0;
    strncpy(text, own, (size_t)room - 1);
    text[room - 1] = 0;
}
