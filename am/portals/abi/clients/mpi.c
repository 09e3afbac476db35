/*
 * Checks byte by byte what an MPI library does over its network: `mpi TEST`, under any launcher, with two
 * ranks or more. `mpi` alone lists the tests. `cargo xtask clients` runs each with Open MPI over
 * libportals, `cargo xtask mpi-clients` with several MPIs over libfabric.
 *
 * `steady` and `steady-one-sided` are not listed: they go on until the file MPI_STEADY_STOP of rank 0 is
 * there, while `cargo xtask mpi-clients --flap` cuts links.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, size;

#define CHECK(what)                                                                                                  \
    do {                                                                                                             \
        if (!(what)) {                                                                                               \
            fprintf(stderr, "rank %d, line %d: not so: %s\n", rank, __LINE__, #what);                                \
            fflush(stderr);                                                                                          \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                                            \
        }                                                                                                            \
    } while (0)

/* Around each threshold that such a library may have: inline, eager, rendezvous. */
static const int lengths[] = {0,    1,    7,     8,     63,    64,    500,    512,    1000,    1024,
                              1025, 2047, 2048,  2049,  4095,  4096,  8192,   16383,  65535,   65536,
                              65537, 100000, 131072, 262145, 1 << 20, (1 << 21) + 3, 1 << 22};
enum { LENGTHS = sizeof lengths / sizeof *lengths, MOST = 1 << 22 };

static unsigned char *here, *there;

static void fill(unsigned char *bytes, int length, unsigned seed)
{
    for (int at = 0; at < length; at++) bytes[at] = (unsigned char)(seed * 31 + (unsigned)at * 7 + (unsigned)at / 251);
}

static void check(const unsigned char *bytes, int length, unsigned seed)
{
    for (int at = 0; at < length; at++) {
        if (bytes[at] == (unsigned char)(seed * 31 + (unsigned)at * 7 + (unsigned)at / 251)) continue;
        fprintf(stderr, "rank %d: byte %d of %d is %d (message %u)\n", rank, at, length, bytes[at], seed);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

static void received(MPI_Status *status, int source, int tag, int length)
{
    int count;
    CHECK(status->MPI_SOURCE == source && status->MPI_TAG == tag);
    MPI_Get_count(status, MPI_BYTE, &count);
    CHECK(count == length);
}

static void hello(void)
{
    int all = 0, flag;
    MPI_Allreduce(&rank, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(all == size * (size - 1) / 2);
    MPI_Initialized(&flag);
    CHECK(flag);
}

static void ring(void)
{
    int left = (rank + size - 1) % size, right = (rank + 1) % size;
    for (int turn = 0; turn < 100; turn++) {
        int token = turn;
        if (rank == 0) {
            MPI_Send(&token, 1, MPI_INT, right, 5, MPI_COMM_WORLD);
            MPI_Recv(&token, 1, MPI_INT, left, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            CHECK(token == turn + size - 1);
        } else {
            MPI_Recv(&token, 1, MPI_INT, left, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            token++;
            MPI_Send(&token, 1, MPI_INT, right, 5, MPI_COMM_WORLD);
        }
    }
}

/* Each even rank and the next one: a message of each length, there and back. */
enum kind { STANDARD, SYNCHRONOUS, READY, BUFFERED, NONBLOCKING, NONBLOCKING_SYNCHRONOUS };

static void send_as(enum kind kind, int length, int to, int tag)
{
    MPI_Request request;
    switch (kind) {
        case STANDARD: MPI_Send(here, length, MPI_BYTE, to, tag, MPI_COMM_WORLD); return;
        case SYNCHRONOUS: MPI_Ssend(here, length, MPI_BYTE, to, tag, MPI_COMM_WORLD); return;
        case READY: MPI_Rsend(here, length, MPI_BYTE, to, tag, MPI_COMM_WORLD); return;
        case BUFFERED: MPI_Bsend(here, length, MPI_BYTE, to, tag, MPI_COMM_WORLD); return;
        case NONBLOCKING: MPI_Isend(here, length, MPI_BYTE, to, tag, MPI_COMM_WORLD, &request); break;
        case NONBLOCKING_SYNCHRONOUS: MPI_Issend(here, length, MPI_BYTE, to, tag, MPI_COMM_WORLD, &request); break;
    }
    MPI_Wait(&request, MPI_STATUS_IGNORE);
}

static void pairs(enum kind kind, int unexpected)
{
    int   peer = rank ^ 1, room = MOST + MPI_BSEND_OVERHEAD;
    void *buffer = kind == BUFFERED ? malloc((size_t)room) : NULL;
    if (buffer) MPI_Buffer_attach(buffer, room);
    for (int at = 0; at < LENGTHS; at++) {
        int length = lengths[at];
        for (int turn = 0; turn < 2; turn++) {
            int sends = (rank & 1) == turn;
            if (peer >= size) {
                MPI_Barrier(MPI_COMM_WORLD);
                continue;
            }
            if (sends) {
                fill(here, length, (unsigned)(at * 2 + turn));
                if (!unexpected) MPI_Barrier(MPI_COMM_WORLD);
                send_as(kind, length, peer, at);
                if (unexpected) MPI_Barrier(MPI_COMM_WORLD);
            } else {
                MPI_Request request;
                MPI_Status  status;
                memset(there, 0xee, (size_t)length);
                if (unexpected && kind != SYNCHRONOUS && length <= 1024) MPI_Barrier(MPI_COMM_WORLD);
                if (unexpected) {
                    /* It has arrived, and no receive was posted for it. */
                    MPI_Probe(peer, at, MPI_COMM_WORLD, &status);
                    received(&status, peer, at, length);
                }
                MPI_Irecv(there, length, MPI_BYTE, peer, at, MPI_COMM_WORLD, &request);
                if (!unexpected) MPI_Barrier(MPI_COMM_WORLD);
                MPI_Wait(&request, &status);
                if (unexpected && !(kind != SYNCHRONOUS && length <= 1024)) MPI_Barrier(MPI_COMM_WORLD);
                received(&status, peer, at, length);
                check(there, length, (unsigned)(at * 2 + turn));
            }
        }
    }
    if (buffer) {
        MPI_Buffer_detach(&buffer, &room);
        free(buffer);
    }
}

static void standard(void) { pairs(STANDARD, 0); }
static void synchronous(void) { pairs(SYNCHRONOUS, 0); }
static void ready(void) { pairs(READY, 0); }
static void buffered(void) { pairs(BUFFERED, 0); }
static void nonblocking(void) { pairs(NONBLOCKING, 0); }
static void nonblocking_synchronous(void) { pairs(NONBLOCKING_SYNCHRONOUS, 0); }
static void unexpected(void) { pairs(STANDARD, 1); }
static void unexpected_synchronous(void) { pairs(SYNCHRONOUS, 1); }

/* Sendrecv around the ring, in both directions at a time. */
static void exchange(void)
{
    int left = (rank + size - 1) % size, right = (rank + 1) % size;
    for (int at = 0; at < LENGTHS; at++) {
        MPI_Status status;
        fill(here, lengths[at], (unsigned)(rank * 100 + at));
        MPI_Sendrecv(here, lengths[at], MPI_BYTE, right, 1, there, lengths[at], MPI_BYTE, left, 1, MPI_COMM_WORLD, &status);
        received(&status, left, 1, lengths[at]);
        check(there, lengths[at], (unsigned)(left * 100 + at));
    }
}

/* Receives that were posted in another order than the sends. */
static void tags(void)
{
    enum { MANY = 64, LENGTH = 3000 };
    MPI_Request requests[MANY];
    int         peer = rank ^ 1;
    if (peer < size) {
        if (rank & 1) {
            for (int at = 0; at < MANY; at++) {
                fill(here + at * LENGTH, LENGTH, (unsigned)at);
                MPI_Isend(here + at * LENGTH, at * LENGTH / MANY, MPI_BYTE, peer, at, MPI_COMM_WORLD, &requests[at]);
            }
            MPI_Waitall(MANY, requests, MPI_STATUSES_IGNORE);
        } else {
            for (int at = MANY - 1; at >= 0; at--) {
                MPI_Status status;
                MPI_Recv(there, LENGTH, MPI_BYTE, peer, at, MPI_COMM_WORLD, &status);
                received(&status, peer, at, at * LENGTH / MANY);
                check(there, at * LENGTH / MANY, (unsigned)at);
            }
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Everyone sends to rank 0, which takes what comes; what one sent comes in order. */
static void any_source(void)
{
    enum { EACH = 50 };
    if (rank == 0) {
        int next[1024] = {0};
        for (int at = 0; at < EACH * (size - 1); at++) {
            MPI_Status status;
            int        count;
            MPI_Recv(there, MOST, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            CHECK(status.MPI_TAG == next[status.MPI_SOURCE]++);
            MPI_Get_count(&status, MPI_BYTE, &count);
            CHECK(count == status.MPI_TAG * 97);
            check(there, count, (unsigned)(status.MPI_SOURCE * 1000 + status.MPI_TAG));
        }
    } else {
        for (int at = 0; at < EACH; at++) {
            fill(here, at * 97, (unsigned)(rank * 1000 + at));
            MPI_Send(here, at * 97, MPI_BYTE, 0, at, MPI_COMM_WORLD);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Many more short messages than a receiver has room for, from everyone to rank 0, which begins late. */
static void flood(void)
{
    enum { EACH = 20000 };
    if (rank == 0) {
        int *next = calloc((size_t)size, sizeof *next), word[2];
        sleep(2);
        for (int at = 0; at < EACH * (size - 1); at++) {
            MPI_Status status;
            MPI_Recv(word, 2, MPI_INT, MPI_ANY_SOURCE, 3, MPI_COMM_WORLD, &status);
            CHECK(word[0] == status.MPI_SOURCE && word[1] == next[status.MPI_SOURCE]++);
        }
        free(next);
    } else {
        for (int at = 0; at < EACH; at++) {
            int word[2] = {rank, at};
            MPI_Send(word, 2, MPI_INT, 0, 3, MPI_COMM_WORLD);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void truncated(void)
{
    int peer = rank ^ 1;
    if (peer < size) {
        if (rank & 1) {
            fill(here, 100000, 4);
            MPI_Send(here, 100000, MPI_BYTE, peer, 1, MPI_COMM_WORLD);
            MPI_Send(here, 100, MPI_BYTE, peer, 2, MPI_COMM_WORLD);
        } else {
            MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
            int code = MPI_Recv(there, 10, MPI_BYTE, peer, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            int class = 0;
            MPI_Error_class(code, &class);
            CHECK(class == MPI_ERR_TRUNCATE);
            MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
            MPI_Recv(there, 100, MPI_BYTE, peer, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check(there, 100, 4);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void persistent(void)
{
    int         left = (rank + size - 1) % size, right = (rank + 1) % size;
    MPI_Request both[2];
    MPI_Send_init(here, 5000, MPI_BYTE, right, 2, MPI_COMM_WORLD, &both[0]);
    MPI_Recv_init(there, 5000, MPI_BYTE, left, 2, MPI_COMM_WORLD, &both[1]);
    for (int turn = 0; turn < 30; turn++) {
        fill(here, 5000, (unsigned)(rank + turn));
        MPI_Startall(2, both);
        MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
        check(there, 5000, (unsigned)(left + turn));
    }
    MPI_Request_free(&both[0]);
    MPI_Request_free(&both[1]);
}

static void matched_probe(void)
{
    int left = (rank + size - 1) % size, right = (rank + 1) % size;
    for (int at = 0; at < LENGTHS; at++) {
        MPI_Request request;
        MPI_Message message;
        MPI_Status  status;
        fill(here, lengths[at], (unsigned)(rank + at));
        MPI_Isend(here, lengths[at], MPI_BYTE, right, at, MPI_COMM_WORLD, &request);
        MPI_Mprobe(left, at, MPI_COMM_WORLD, &message, &status);
        received(&status, left, at, lengths[at]);
        MPI_Mrecv(there, lengths[at], MPI_BYTE, &message, &status);
        check(there, lengths[at], (unsigned)(left + at));
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
}

/* Looks without waiting: at nothing, then at what has come; and a receive that nothing matches is cancelled. */
static void immediate_probe(void)
{
    int left = (rank + size - 1) % size, right = (rank + 1) % size, flag = 1;
    MPI_Iprobe(MPI_ANY_SOURCE, 77, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
    CHECK(!flag);
    for (int at = 0; at < LENGTHS; at++) {
        MPI_Request request;
        MPI_Status  status;
        fill(here, lengths[at], (unsigned)(rank + at));
        MPI_Isend(here, lengths[at], MPI_BYTE, right, at, MPI_COMM_WORLD, &request);
        for (flag = 0; !flag;) MPI_Iprobe(left, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, &status);
        received(&status, left, at, lengths[at]);
        MPI_Recv(there, lengths[at], MPI_BYTE, left, at, MPI_COMM_WORLD, &status);
        check(there, lengths[at], (unsigned)(left + at));
        MPI_Wait(&request, MPI_STATUS_IGNORE);
    }
}

static void cancel(void)
{
    int left = (rank + size - 1) % size, right = (rank + 1) % size;
    for (int turn = 0; turn < 100; turn++) {
        MPI_Request never, comes;
        MPI_Status  status;
        int         flag;
        MPI_Irecv(there, 1000, MPI_BYTE, left, 1, MPI_COMM_WORLD, &never);
        MPI_Irecv(there + 1000, 1000, MPI_BYTE, left, 2, MPI_COMM_WORLD, &comes);
        MPI_Cancel(&never);
        MPI_Wait(&never, &status);
        MPI_Test_cancelled(&status, &flag);
        CHECK(flag);
        MPI_Barrier(MPI_COMM_WORLD);
        fill(here, 1000, (unsigned)(rank + turn));
        MPI_Send(here, 1000, MPI_BYTE, right, 2, MPI_COMM_WORLD);
        MPI_Wait(&comes, &status);
        MPI_Test_cancelled(&status, &flag);
        CHECK(!flag);
        check(there + 1000, 1000, (unsigned)(left + turn));
        /* What was cancelled takes no message any more. */
        MPI_Send(here, 8, MPI_BYTE, right, 1, MPI_COMM_WORLD);
        MPI_Recv(there, 8, MPI_BYTE, left, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
}

/* From 1 byte to 4 MiB to each rank. */
static void all_to_all(void)
{
    unsigned char *sent = malloc((size_t)MOST * (size_t)size), *got = malloc((size_t)MOST * (size_t)size);
    CHECK(sent && got);
    for (int each = 1; each <= MOST; each *= 4) {
        for (int to = 0; to < size; to++) fill(sent + (size_t)to * (size_t)each, each, (unsigned)(rank * 100 + to));
        memset(got, 0, (size_t)each * (size_t)size);
        MPI_Alltoall(sent, each, MPI_BYTE, got, each, MPI_BYTE, MPI_COMM_WORLD);
        for (int of = 0; of < size; of++) check(got + (size_t)of * (size_t)each, each, (unsigned)(of * 100 + rank));
    }
    free(sent);
    free(got);
}

/* The last thing that a rank does before it ends is to send: the message arrives. */
static void last_message(void)
{
    enum { LENGTH = 64 };
    if (rank == 0) {
        usleep(200000);
        for (int from = 1; from < size; from++) {
            MPI_Recv(there, LENGTH, MPI_BYTE, from, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            check(there, LENGTH, (unsigned)from);
        }
    } else {
        fill(here, LENGTH, (unsigned)rank);
        MPI_Send(here, LENGTH, MPI_BYTE, 0, 9, MPI_COMM_WORLD);
    }
}

enum { THREADS = 4, ROUNDS = 500 };

/* One thread of a rank and the one of the same number of its neighbour, with tags of their own. */
static void *thread(void *number)
{
    int           tag = (int)(size_t)number, peer = rank ^ 1;
    unsigned char sent[2000], got[2000];
    for (int turn = 0; turn < ROUNDS && peer < size; turn++) {
        int        length = turn * 4;
        MPI_Status status;
        fill(sent, length, (unsigned)(rank * 10 + tag + turn));
        MPI_Sendrecv(sent, length, MPI_BYTE, peer, tag, got, length, MPI_BYTE, peer, tag, MPI_COMM_WORLD, &status);
        received(&status, peer, tag, length);
        check(got, length, (unsigned)(peer * 10 + tag + turn));
    }
    return NULL;
}

static void threads(void)
{
    pthread_t started[THREADS];
    int       level;
    MPI_Query_thread(&level);
    CHECK(level == MPI_THREAD_MULTIPLE);
    for (size_t at = 0; at < THREADS; at++) CHECK(pthread_create(&started[at], NULL, thread, (void *)at) == 0);
    for (int at = 0; at < THREADS; at++) pthread_join(started[at], NULL);
}

static void barrier(void)
{
    for (int turn = 0; turn < 500; turn++) MPI_Barrier(MPI_COMM_WORLD);
}

static void broadcast(void)
{
    for (int at = 0; at < LENGTHS; at++) {
        int root = at % size;
        if (rank == root) fill(there, lengths[at], (unsigned)at);
        else memset(there, 0, (size_t)lengths[at]);
        MPI_Bcast(there, lengths[at], MPI_BYTE, root, MPI_COMM_WORLD);
        check(there, lengths[at], (unsigned)at);
    }
}

static void reduce(void)
{
    static const int counts[] = {1, 2, 100, 1000, 10000, 200000};
    for (int at = 0; at < (int)(sizeof counts / sizeof *counts); at++) {
        int   *own = (int *)here, *all = (int *)there, count = counts[at], root = at % size;
        double mine = rank + 0.5, most, sum;
        for (int n = 0; n < count; n++) own[n] = rank * 3 + n;
        memset(all, 0, (size_t)count * sizeof *all);
        MPI_Allreduce(own, all, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        for (int n = 0; n < count; n++) CHECK(all[n] == 3 * size * (size - 1) / 2 + n * size);
        memset(all, 0, (size_t)count * sizeof *all);
        MPI_Reduce(own, all, count, MPI_INT, MPI_MAX, root, MPI_COMM_WORLD);
        for (int n = 0; rank == root && n < count; n++) CHECK(all[n] == 3 * (size - 1) + n);
        MPI_Scan(own, all, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
        for (int n = 0; n < count; n++) CHECK(all[n] == 3 * rank * (rank + 1) / 2 + n * (rank + 1));
        MPI_Allreduce(&mine, &most, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
        CHECK(most == size - 0.5 && sum == size * (size - 1) / 2.0 + size * 0.5);
    }
}

static void gather(void)
{
    for (int each = 1; each <= 100000; each *= 10) {
        int root = each % size;
        fill(here, each, (unsigned)rank);
        memset(there, 0, (size_t)(each * size));
        MPI_Gather(here, each, MPI_BYTE, there, each, MPI_BYTE, root, MPI_COMM_WORLD);
        for (int of = 0; rank == root && of < size; of++) check(there + of * each, each, (unsigned)of);
        memset(there, 0, (size_t)(each * size));
        MPI_Allgather(here, each, MPI_BYTE, there, each, MPI_BYTE, MPI_COMM_WORLD);
        for (int of = 0; of < size; of++) check(there + of * each, each, (unsigned)of);
        for (int to = 0; to < size; to++) fill(here + to * each, each, (unsigned)(rank * 100 + to));
        MPI_Scatter(here, each, MPI_BYTE, there, each, MPI_BYTE, root, MPI_COMM_WORLD);
        check(there, each, (unsigned)(root * 100 + rank));
        MPI_Alltoall(here, each, MPI_BYTE, there, each, MPI_BYTE, MPI_COMM_WORLD);
        for (int of = 0; of < size; of++) check(there + of * each, each, (unsigned)(of * 100 + rank));
    }
}

static void nonblocking_collectives(void)
{
    for (int turn = 0; turn < 30; turn++) {
        MPI_Request requests[3];
        int         own = rank + turn, sum = 0, word = rank == 0 ? turn : -1;
        MPI_Iallreduce(&own, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, &requests[0]);
        MPI_Ibcast(&word, 1, MPI_INT, 0, MPI_COMM_WORLD, &requests[1]);
        MPI_Ibarrier(MPI_COMM_WORLD, &requests[2]);
        MPI_Waitall(3, requests, MPI_STATUSES_IGNORE);
        CHECK(sum == size * (size - 1) / 2 + size * turn && word == turn);
    }
}

static void communicators(void)
{
    for (int turn = 0; turn < 20; turn++) {
        MPI_Comm half, copy;
        int      number, many, sum;
        MPI_Comm_split(MPI_COMM_WORLD, rank & 1, -rank, &half);
        MPI_Comm_rank(half, &number);
        MPI_Comm_size(half, &many);
        MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, half);
        CHECK(sum == many * (many - 1) + (rank & 1) * many && number == many - 1 - rank / 2);
        MPI_Comm_dup(half, &copy);
        MPI_Barrier(copy);
        MPI_Comm_free(&copy);
        MPI_Comm_free(&half);
    }
}

/* One-sided: a window of every rank, written and read by its neighbours. */
static MPI_Win window(int **memory, int count)
{
    MPI_Win win;
    MPI_Alloc_mem((MPI_Aint)((size_t)count * sizeof **memory), MPI_INFO_NULL, memory);
    for (int at = 0; at < count; at++) (*memory)[at] = -1;
    MPI_Win_create(*memory, (MPI_Aint)((size_t)count * sizeof **memory), sizeof **memory, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
    return win;
}

static void fence(void)
{
    enum { MANY = 300000 };
    int     left = (rank + size - 1) % size, right = (rank + 1) % size, *memory, *own = (int *)here;
    MPI_Win win = window(&memory, MANY);
    for (int count = 1; count <= MANY; count *= 7) {
        MPI_Win_fence(0, win);
        for (int at = 0; at < count; at++) own[at] = rank * MANY + at;
        MPI_Put(own, count, MPI_INT, right, 0, count, MPI_INT, win);
        MPI_Win_fence(0, win);
        for (int at = 0; at < count; at++) CHECK(memory[at] == left * MANY + at);
        memset(there, 0, (size_t)count * sizeof(int));
        MPI_Get(there, count, MPI_INT, right, 0, count, MPI_INT, win);
        MPI_Win_fence(0, win);
        for (int at = 0; at < count; at++) CHECK(((int *)there)[at] == rank * MANY + at);
    }
    MPI_Win_free(&win);
    MPI_Free_mem(memory);
}

static void accumulate(void)
{
    int     *memory, one = 1;
    MPI_Win win = window(&memory, 1000);
    for (int turn = 0; turn < 10; turn++) {
        MPI_Win_fence(0, win);
        if (rank == 0) memset(memory, 0, 1000 * sizeof *memory);
        MPI_Win_fence(0, win);
        for (int at = 0; at < 100; at++) ((int *)here)[at] = at;
        MPI_Accumulate(here, 100, MPI_INT, 0, 0, 100, MPI_INT, MPI_SUM, win);
        MPI_Accumulate(&one, 1, MPI_INT, 0, 500, 1, MPI_INT, MPI_SUM, win);
        MPI_Win_fence(0, win);
        if (rank == 0) {
            for (int at = 0; at < 100; at++) CHECK(memory[at] == at * size);
            CHECK(memory[500] == size);
        }
    }
    MPI_Win_free(&win);
    MPI_Free_mem(memory);
}

static void locks(void)
{
    int     *memory, ticket, taken[2] = {0, 0};
    MPI_Win win = window(&memory, 8);
    memory[0] = memory[1] = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    for (int turn = 0; turn < 50; turn++) {
        int one = 1, word;
        MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, win);
        MPI_Get(&word, 1, MPI_INT, 0, 0, 1, MPI_INT, win);
        MPI_Win_flush(0, win);
        word++;
        MPI_Put(&word, 1, MPI_INT, 0, 0, 1, MPI_INT, win);
        MPI_Win_unlock(0, win);
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
        MPI_Fetch_and_op(&one, &ticket, MPI_INT, 0, 1, MPI_SUM, win);
        MPI_Win_unlock(0, win);
        CHECK(ticket >= turn && ticket < 50 * size);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
    MPI_Get(taken, 2, MPI_INT, 0, 0, 2, MPI_INT, win);
    MPI_Win_unlock(0, win);
    CHECK(taken[0] == 50 * size && taken[1] == 50 * size);
    MPI_Win_free(&win);
    MPI_Free_mem(memory);
}

static void groups(void)
{
    int       left = (rank + size - 1) % size, right = (rank + 1) % size, *memory, word = rank + 7;
    MPI_Win   win = window(&memory, 4);
    MPI_Group world, to, from;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &right, &to);
    MPI_Group_incl(world, 1, &left, &from);
    for (int turn = 0; turn < 20; turn++) {
        MPI_Win_post(from, 0, win);
        MPI_Win_start(to, 0, win);
        MPI_Put(&word, 1, MPI_INT, right, turn % 4, 1, MPI_INT, win);
        MPI_Win_complete(win);
        MPI_Win_wait(win);
        CHECK(memory[turn % 4] == left + 7);
    }
    MPI_Group_free(&world);
    MPI_Group_free(&to);
    MPI_Group_free(&from);
    MPI_Win_free(&win);
    MPI_Free_mem(memory);
}

static void compare_and_swap(void)
{
    int     *memory, mine = rank + 1, none = 0, old, got = 0, all;
    MPI_Win win = window(&memory, 2);
    memory[0] = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock_all(0, win);
    MPI_Compare_and_swap(&mine, &none, &old, MPI_INT, 0, 0, win);
    MPI_Win_flush(0, win);
    got = old == 0;
    MPI_Win_unlock_all(win);
    MPI_Allreduce(&got, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    CHECK(all == 1);
    MPI_Win_free(&win);
    MPI_Free_mem(memory);
}

/* A turn of messages: a sum and an exchange of bytes between all ranks, of lengths that change. */
static void steady_messages(int turn)
{
    static const int counts[] = {1, 300, 20000}, lengths_each[] = {8, 3000, 70000, 1 << 20};
    int              count = counts[turn % 3], each = lengths_each[turn % 4], *own = (int *)here, *all = (int *)there;
    for (int n = 0; n < count; n++) own[n] = rank * 3 + n + turn;
    memset(all, 0, (size_t)count * sizeof *all);
    MPI_Allreduce(own, all, count, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    for (int n = 0; n < count; n++) CHECK(all[n] == 3 * size * (size - 1) / 2 + (n + turn) * size);
    if (each > MOST / size) each = MOST / size;
    for (int to = 0; to < size; to++) fill(here + to * each, each, (unsigned)(rank * 100 + to + turn));
    memset(there, 0, (size_t)(each * size));
    MPI_Alltoall(here, each, MPI_BYTE, there, each, MPI_BYTE, MPI_COMM_WORLD);
    for (int of = 0; of < size; of++) check(there + of * each, each, (unsigned)(of * 100 + rank + turn));
}

/* The window of a rank: a counter, and bytes that its left neighbour puts. */
enum { STEADY_ROOM = 1 << 17 };
static MPI_Win        steady_window;
static unsigned char *steady_memory;

static void steady_read(void *into, int length, MPI_Aint at, int of)
{
    memset(into, 0, (size_t)length);
    MPI_Win_lock(MPI_LOCK_SHARED, of, 0, steady_window);
    MPI_Get(into, length, MPI_BYTE, of, at, length, MPI_BYTE, steady_window);
    MPI_Win_unlock(of, steady_window);
}

/* A turn of one-sided operations: each rank puts to its right, adds one to the counter of one rank, and
 * reads what its left neighbour was given. The counter has each increment once. */
static void steady_one_sided_turn(int turn)
{
    static const int sizes[] = {8, 3000, 100000};
    int              left = (rank + size - 1) % size, right = (rank + 1) % size, owner = turn % size;
    int              each = sizes[turn % 3], before = turn / size * size;
    long             one = 1, old = -1, now = 0;
    fill(here, each, (unsigned)(rank * 7 + turn));
    MPI_Win_lock_all(0, steady_window);
    MPI_Put(here, each, MPI_BYTE, right, sizeof(long), each, MPI_BYTE, steady_window);
    MPI_Fetch_and_op(&one, &old, MPI_LONG, owner, 0, MPI_SUM, steady_window);
    MPI_Win_unlock_all(steady_window);
    CHECK(old >= before && old < before + size);
    MPI_Barrier(MPI_COMM_WORLD);
    steady_read(there, each, sizeof(long), rank);
    check(there, each, (unsigned)(left * 7 + turn));
    steady_read(there, each, sizeof(long), left);
    check(there, each, (unsigned)((left + size - 1) % size * 7 + turn));
    steady_read(&now, sizeof now, 0, owner);
    CHECK(now == before + size);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* Turns until the file is there, at least one; without a file, a hundred. Rank 0 prints about once a second
 * where it is, and at the end the longest turn. */
static void steady_turns(void (*also)(int))
{
    const char *stop = getenv("MPI_STEADY_STOP");
    int         turn = 0, goes_on = 1, at = 0;
    double      begun = MPI_Wtime(), printed = 0, longest = 0, longest_at = 0;
    if (rank == 0) printf("steady: begun, %d ranks\n", size);
    fflush(stdout);
    while (goes_on) {
        double from = MPI_Wtime(), took;
        steady_messages(turn);
        if (also) also(turn);
        turn++;
        if (rank == 0) goes_on = stop ? access(stop, F_OK) != 0 : turn < 100;
        MPI_Bcast(&goes_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
        took = MPI_Wtime() - from;
        if (took > longest) longest = took, longest_at = from - begun, at = turn;
        if (rank != 0 || from - begun < printed + 1) continue;
        printed = from - begun;
        printf("steady: turn %d at %.1f s\n", turn, printed);
        fflush(stdout);
    }
    if (rank == 0) {
        double all = MPI_Wtime() - begun;
        printf("row steady turns=%d seconds=%.3f longest_s=%.4f longest_turn=%d longest_at_s=%.3f\n", turn, all, longest, at,
               longest_at);
    }
}

static void steady(void)
{
    steady_turns(NULL);
}

static void steady_one_sided(void)
{
    MPI_Alloc_mem(STEADY_ROOM, MPI_INFO_NULL, &steady_memory);
    memset(steady_memory, 0, STEADY_ROOM);
    MPI_Win_create(steady_memory, STEADY_ROOM, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &steady_window);
    steady_turns(steady_one_sided_turn);
    MPI_Win_free(&steady_window);
    MPI_Free_mem(steady_memory);
}

static const struct {
    const char *name;
    void (*run)(void);
    enum { PLAIN, NEEDS_THREADS, ENDS_BY_ITSELF, NOT_LISTED } needs;
} tests[] = {
    {"hello", hello, PLAIN},
    {"ring", ring, PLAIN},
    {"send", standard, PLAIN},
    {"ssend", synchronous, PLAIN},
    {"rsend", ready, PLAIN},
    {"bsend", buffered, PLAIN},
    {"isend", nonblocking, PLAIN},
    {"issend", nonblocking_synchronous, PLAIN},
    {"unexpected", unexpected, PLAIN},
    {"unexpected-ssend", unexpected_synchronous, PLAIN},
    {"sendrecv", exchange, PLAIN},
    {"tags", tags, PLAIN},
    {"any-source", any_source, PLAIN},
    {"flood", flood, PLAIN},
    {"truncated", truncated, PLAIN},
    {"persistent", persistent, PLAIN},
    {"mprobe", matched_probe, PLAIN},
    {"iprobe", immediate_probe, PLAIN},
    {"cancel", cancel, PLAIN},
    {"alltoall", all_to_all, PLAIN},
    {"last-message", last_message, ENDS_BY_ITSELF},
    {"threads", threads, NEEDS_THREADS},
    {"barrier", barrier, PLAIN},
    {"bcast", broadcast, PLAIN},
    {"reduce", reduce, PLAIN},
    {"gather", gather, PLAIN},
    {"nonblocking-collectives", nonblocking_collectives, PLAIN},
    {"communicators", communicators, PLAIN},
    {"fence", fence, PLAIN},
    {"accumulate", accumulate, PLAIN},
    {"locks", locks, PLAIN},
    {"groups", groups, PLAIN},
    {"compare-and-swap", compare_and_swap, PLAIN},
    {"steady", steady, NOT_LISTED},
    {"steady-one-sided", steady_one_sided, NOT_LISTED},
};

int main(int count, char **words)
{
    enum { TESTS = sizeof tests / sizeof *tests };
    int at = 0, level;
    if (count != 2) {
        for (at = 0; at < TESTS; at++) {
            if (tests[at].needs != NOT_LISTED) puts(tests[at].name);
        }
        return count == 1 ? 0 : 2;
    }
    while (at < TESTS && strcmp(tests[at].name, words[1]) != 0) at++;
    if (at == TESTS) {
        fprintf(stderr, "there is no test %s; without a name this program lists them\n", words[1]);
        return 2;
    }
    MPI_Init_thread(&count, &words, tests[at].needs == NEEDS_THREADS ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    here  = malloc(2 * MOST);
    there = malloc(2 * MOST);
    CHECK(here && there);
    tests[at].run();
    if (tests[at].needs != ENDS_BY_ITSELF) MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("%s: passed, %d ranks\n", words[1], size);
    free(here);
    free(there);
    MPI_Finalize();
    return 0;
}
