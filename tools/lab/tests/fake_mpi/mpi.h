/*
 * An MPI of one process for the test of peers/mpi_pair.c: it plays the other side, and ends the program
 * with status 3 when something is sent out of memory that was received into, or when the bytes sent
 * change.
 *
 * FAKE_RANK is the rank. As rank 1 it gets the orders to bounce three messages, sink four, feed one, and
 * end.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int MPI_Comm, MPI_Datatype, MPI_Request, MPI_Status;
#define MPI_COMM_WORLD 0
#define MPI_CHAR 1
#define MPI_LONG 8
#define MPI_STATUS_IGNORE NULL
#define MPI_STATUSES_IGNORE NULL
#define MPI_MAX_LIBRARY_VERSION_STRING 256
#define FAKE_DATA 1
#define FAKE_ORDER 2

static const char *fake_sent, *fake_got[64];
static size_t fake_length;
static unsigned char fake_first;
static int fake_seen;

static void fake_wrong(const char *what)
{
    fprintf(stderr, "fake mpi: %s\n", what);
    exit(3);
}

/* An order: after the last one of a size, other buffers may lie where these were. */
static void fake_order(const long *order)
{
    if (order[0] == 0) {
        memset(fake_got, 0, sizeof fake_got);
        fake_sent = NULL;
    }
}

static void fake_data(const char *buffer, int bytes, int sending)
{
    if (sending) {
        if (fake_sent && fake_sent == buffer && fake_first != (unsigned char)buffer[0])
            fake_wrong("what is sent changed");
        fake_sent = buffer;
        fake_length = (size_t)bytes;
        fake_first = (unsigned char)buffer[0];
    } else {
        fake_got[fake_seen++ % 64] = buffer;
        memset((char *)(uintptr_t)buffer, 0x55, (size_t)bytes);
    }
    for (int i = 0; i < 64; i++)
        if (fake_sent && fake_got[i] && fake_got[i] < fake_sent + fake_length && fake_sent < fake_got[i] + bytes)
            fake_wrong("sent out of memory that was received into");
}

static int MPI_Send(const void *buffer, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm)
{
    (void)to, (void)type, (void)comm;
    if (tag == FAKE_DATA)
        fake_data(buffer, count, 1);
    else if (tag == FAKE_ORDER)
        fake_order(buffer);
    return 0;
}

static int MPI_Recv(void *buffer, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Status *status)
{
    static const long orders[][2] = {{1, 3}, {2, 2}, {3, 2}, {4, 1}, {0, 0}};
    static int next;
    (void)from, (void)type, (void)comm, (void)status;
    if (tag == FAKE_DATA)
        fake_data(buffer, count, 0);
    else if (tag == FAKE_ORDER) {
        memcpy(buffer, orders[next++ % 5], sizeof orders[0]);
        fake_order(buffer);
    } else
        memset(buffer, 1, (size_t)count);
    return 0;
}

static int MPI_Isend(const void *b, int n, MPI_Datatype t, int to, int tag, MPI_Comm c, MPI_Request *r)
{
    *r = 0;
    return MPI_Send(b, n, t, to, tag, c);
}

static int MPI_Irecv(void *b, int n, MPI_Datatype t, int from, int tag, MPI_Comm c, MPI_Request *r)
{
    *r = 0;
    return MPI_Recv(b, n, t, from, tag, c, NULL);
}

static int MPI_Wait(MPI_Request *r, MPI_Status *s) { (void)r, (void)s; return 0; }
static int MPI_Waitall(int n, MPI_Request *r, MPI_Status *s) { (void)n, (void)r, (void)s; return 0; }
static int MPI_Init(int *argc, char ***argv) { (void)argc, (void)argv; return 0; }
static int MPI_Finalize(void) { return 0; }
static int MPI_Comm_rank(MPI_Comm c, int *rank) { (void)c; *rank = atoi(getenv("FAKE_RANK")); return 0; }
static int MPI_Comm_size(MPI_Comm c, int *size) { (void)c; *size = 2; return 0; }
static int MPI_Abort(MPI_Comm c, int code) { (void)c; exit(code); }

static int MPI_Get_library_version(char *text, int *length)
{
    strcpy(text, "Fake\nMPI\t1");
    *length = (int)strlen(text);
    return 0;
}
