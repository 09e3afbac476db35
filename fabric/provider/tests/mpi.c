/*
 * What becomes of the processes of an MPI job: `mpi killed|fork|exit|_exit`, with two ranks or more. Started
 * by `tests/it/mpi.rs`.
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(what)                                                            \
    do {                                                                       \
        if (!(what)) {                                                         \
            fprintf(stderr, "rank %d, line %d: not so: %s\n", rank, __LINE__,  \
                    #what);                                                    \
            fflush(stderr);                                                    \
            _exit(9);                                                          \
        }                                                                      \
    } while (0)

static int rank, size;

static void all_talk(void)
{
    for (int turn = 0; turn < 10; turn++) {
        int sum = 0;
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        CHECK(sum == size * (size - 1) / 2);
    }
}

/* Rank 1 dies. Whoever needs it gets an error, and the others go on. */
static void killed(void)
{
    char bytes[8] = {0};
    int  other    = rank == 0 ? 2 : 0;
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (rank == 1) kill(getpid(), SIGKILL);
    CHECK(MPI_Recv(bytes, 8, MPI_BYTE, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE) != MPI_SUCCESS);
    CHECK(MPI_Send(bytes, 8, MPI_BYTE, 1, 3, MPI_COMM_WORLD) != MPI_SUCCESS);
    CHECK(MPI_Sendrecv_replace(bytes, 8, MPI_BYTE, other, 4, other, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    printf("rank %d goes on\n", rank);
    fflush(stdout);
    _exit(0);
}

/* Children that end by exit, by _exit, by exec, and one that calls MPI, which is the parent's. */
static void forked(void)
{
    char bytes[8] = {0};
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int how = 0; how < 4; how++) {
        pid_t child = fork();
        int   status;
        if (child == 0) {
            if (how == 0) exit(0);
            if (how == 1) _exit(0);
            if (how == 2) execl("/bin/sh", "sh", "-c", "exit 0", (char *)NULL);
            _exit(MPI_Send(bytes, 8, MPI_BYTE, (rank + 1) % size, 9, MPI_COMM_WORLD) == MPI_SUCCESS);
        }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        all_talk();
    }
    printf("rank %d goes on\n", rank);
}

int main(int count, char **words)
{
    const char *what = count == 2 ? words[1] : "";
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    all_talk();
    if (!strcmp(what, "killed")) killed();
    if (!strcmp(what, "fork")) forked();
    if (!strcmp(what, "exit")) exit(0);
    if (!strcmp(what, "_exit")) _exit(0);
    return MPI_Finalize();
}
