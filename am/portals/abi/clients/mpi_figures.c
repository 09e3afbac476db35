/*
 * Times what several ranks do together, and what one does to another's memory:
 *
 *   mpi_figures SECONDS [one-sided]
 *
 * Rank 0 times each operation by itself and prints a line for each kind and size: "row allreduce bytes=8
 * mean_ns=... p50_ns=...". One-sided operations are of rank 0 on the last rank, which is in a call of MPI
 * meanwhile. `cargo xtask mpi-clients --figures` compares with it what carries the messages.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 16, WARM = 32, SAMPLES = 1 << 16, MOST = 1 << 20 };

static int     rank, size;
static double  seconds, samples[SAMPLES];
static char   *here, *there;
static MPI_Win win;

static void allreduce(int bytes)
{
    MPI_Allreduce(here, there, bytes / (int)sizeof(int), MPI_INT, MPI_SUM, MPI_COMM_WORLD);
}

static void alltoall(int bytes)
{
    MPI_Alltoall(here, bytes, MPI_BYTE, there, bytes, MPI_BYTE, MPI_COMM_WORLD);
}

static void put(int bytes)
{
    MPI_Put(here, bytes, MPI_BYTE, size - 1, 0, bytes, MPI_BYTE, win);
    MPI_Win_flush(size - 1, win);
}

static void get(int bytes)
{
    MPI_Get(there, bytes, MPI_BYTE, size - 1, 0, bytes, MPI_BYTE, win);
    MPI_Win_flush(size - 1, win);
}

static void fetch_and_add(int bytes)
{
    static long one = 1, old;
    (void)bytes;
    MPI_Fetch_and_op(&one, &old, MPI_LONG, size - 1, 0, MPI_SUM, win);
    MPI_Win_flush(size - 1, win);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Batches until the time is over. Between them all ranks learn from rank 0 whether another one follows. */
static void measure(const char *name, void (*operation)(int), int bytes, int by_all)
{
    int    taken = 0, goes_on = 1;
    double begun, total = 0;
    for (int at = 0; at < WARM && (by_all || rank == 0); at++) operation(bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    begun = MPI_Wtime();
    while (goes_on) {
        for (int at = 0; at < BATCH && (by_all || rank == 0); at++) {
            double from = MPI_Wtime();
            operation(bytes);
            samples[taken + at] = (MPI_Wtime() - from) * 1e9;
        }
        taken += BATCH;
        goes_on = MPI_Wtime() - begun < seconds && taken + BATCH <= SAMPLES;
        MPI_Bcast(&goes_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    if (rank != 0) return;
    for (int at = 0; at < taken; at++) total += samples[at];
    qsort(samples, (size_t)taken, sizeof *samples, by_value);
    printf("row %s bytes=%d mean_ns=%.1f p50_ns=%.1f samples=%d\n", name, bytes, total / taken, samples[taken / 2], taken);
}

int main(int count, char **words)
{
    char *memory;
    int   one_sided = count == 3 && strcmp(words[2], "one-sided") == 0;
    if (count < 2 || count > 3 || (count == 3 && !one_sided) || (seconds = atof(words[1])) <= 0) {
        fprintf(stderr, "usage: mpi_figures SECONDS [one-sided]\n");
        return 2;
    }
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    here  = calloc((size_t)size, MOST);
    there = calloc((size_t)size, MOST);
    if (!here || !there) MPI_Abort(MPI_COMM_WORLD, 1);
    measure("allreduce", allreduce, 8, 1);
    measure("allreduce", allreduce, 65536, 1);
    measure("alltoall", alltoall, 8, 1);
    measure("alltoall", alltoall, 65536, 1);
    if (one_sided) {
        MPI_Alloc_mem(MOST, MPI_INFO_NULL, &memory);
        memset(memory, 0, MOST);
        MPI_Win_create(memory, MOST, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
        MPI_Win_lock_all(0, win);
        measure("put", put, 8, 0);
        measure("put", put, 65536, 0);
        measure("put", put, MOST, 0);
        measure("get", get, 8, 0);
        measure("get", get, 65536, 0);
        measure("fetch-and-add", fetch_and_add, 8, 0);
        MPI_Win_unlock_all(win);
        MPI_Win_free(&win);
        MPI_Free_mem(memory);
    }
    free(here);
    free(there);
    MPI_Finalize();
    return 0;
}
