/*
 * Two processes of MPI, measured as doorbell measures its own: `doorbell compare-peers` compiles this with the compiler
 * of each MPI that is installed, and reads what rank 0 prints.
 *
 *   mpi_pair KIND SECONDS WINDOW ROUND BYTES...       KIND: latency, stream, blocking, overlap; ROUND: its most exchanges
 *
 * Rank 0 gives bounded orders, rank 1 follows them. One line is printed for each size: "row KIND bytes=8 mean_ns=...".
 * Half of the rounds of `latency` read the clock once a round: they make the mean. The others stamp every exchange:
 * they make the percentiles, and each sample has one clock reading in it (read_ns of the first line).
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum order { END, BOUNCE, SINK_WINDOW, SINK_BLOCKING, FEED };

#define DATA 1
#define ORDER 2
#define ANSWER 3
#define WINDOW_MAX 4096
/* Buffers that are received into take no more than this together, as long as two of them fit: as doorbell's own do. */
#define SINKS_BYTES ((size_t)4 << 20)
#define SAMPLES_MAX (1u << 20)
/* A round or a block takes about so long where they are not. */
#define ROUND_NS 20e6
/* Times that a computation, a receive and both at once are measured. */
#define REPEATS 9

/* Rank 0 sends out of the first buffer; rank 1 receives into all of them in turn. */
static char *buffers;
static size_t bytes;
static int window, sinks;
static long round_most;
static MPI_Request requests[WINDOW_MAX];

static double now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static char *sink(int message)
{
    return buffers + (size_t)message * bytes;
}

static void *must_have(size_t size)
{
    void *memory = malloc(size ? size : 1);
    if (!memory) {
        fprintf(stderr, "mpi_pair: no memory for %zu bytes\n", size);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return memory;
}

static void give(enum order what, long count)
{
    long order[2] = {what, count};
    MPI_Send(order, 2, MPI_LONG, 1, ORDER, MPI_COMM_WORLD);
}

static void send_windows(long count)
{
    for (long sent = 0; sent < count; sent += window) {
        int batch = count - sent < window ? (int)(count - sent) : window;
        for (int i = 0; i < batch; i++)
            MPI_Isend(buffers, (int)bytes, MPI_CHAR, 1, DATA, MPI_COMM_WORLD, &requests[i]);
        MPI_Waitall(batch, requests, MPI_STATUSES_IGNORE);
    }
}

static void receive_windows(long count)
{
    for (long taken = 0; taken < count; taken += sinks) {
        int batch = count - taken < sinks ? (int)(count - taken) : sinks;
        for (int i = 0; i < batch; i++)
            MPI_Irecv(sink(i), (int)bytes, MPI_CHAR, 0, DATA, MPI_COMM_WORLD, &requests[i]);
        MPI_Waitall(batch, requests, MPI_STATUSES_IGNORE);
    }
}

/* Rank 1: does what it is told until it is told to end. */
static void follow(void)
{
    for (;;) {
        long order[2];
        char answer = 1;
        MPI_Recv(order, 2, MPI_LONG, 0, ORDER, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        switch (order[0]) {
        case BOUNCE:
            for (long i = 0; i < order[1]; i++) {
                MPI_Recv(buffers, (int)bytes, MPI_CHAR, 0, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(buffers, (int)bytes, MPI_CHAR, 0, DATA, MPI_COMM_WORLD);
            }
            break;
        case SINK_WINDOW:
            receive_windows(order[1]);
            MPI_Send(&answer, 1, MPI_CHAR, 0, ANSWER, MPI_COMM_WORLD);
            break;
        case SINK_BLOCKING:
            for (long i = 0; i < order[1]; i++)
                MPI_Recv(sink((int)(i % sinks)), (int)bytes, MPI_CHAR, 0, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(&answer, 1, MPI_CHAR, 0, ANSWER, MPI_COMM_WORLD);
            break;
        case FEED:
            MPI_Send(buffers, (int)bytes, MPI_CHAR, 0, DATA, MPI_COMM_WORLD);
            break;
        default:
            return;
        }
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A percentile with ten samples beyond it; a dash where there are fewer. */
static void print_percentile(const char *name, double *sorted, size_t samples, double quantile)
{
    if ((double)samples * (1.0 - quantile) + 1e-6 < 10.0)
        printf(" %s=-", name);
    else
        printf(" %s=%.1f", name, sorted[(size_t)((double)(samples - 1) * quantile)] / 2);
}

/* One round of exchanges; its time. With `stamps`, every exchange is timed by itself. */
static double bounce(long count, double *stamps)
{
    give(BOUNCE, count);
    double begun = now_ns(), last = begun;
    for (long i = 0; i < count; i++) {
        MPI_Send(buffers, (int)bytes, MPI_CHAR, 1, DATA, MPI_COMM_WORLD);
        MPI_Recv(buffers, (int)bytes, MPI_CHAR, 1, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (stamps) {
            double now = now_ns();
            stamps[i] = now - last;
            last = now;
        }
    }
    return now_ns() - begun;
}

/* As many as fit into a round of ROUND_NS, and at most `most`. */
static long fitting(double each_ns, long most)
{
    double count = ROUND_NS / (each_ns > 1 ? each_ns : 1);
    return count < 1 ? 1 : count > (double)most ? most : (long)count;
}

static void latency(double seconds)
{
    double *samples = must_have(SAMPLES_MAX * sizeof *samples);
    double each = bounce(1, NULL), begun = now_ns(), total = 0;
    /* Until a fifth of the time is over, nothing counts. */
    do {
        long count = fitting(each, round_most);
        each = bounce(count, NULL) / (double)count;
    } while (now_ns() - begun < seconds * 0.2e9);
    size_t taken = 0;
    long exchanges = 0, rounds = 0;
    begun = now_ns();
    do {
        long count = fitting(each, round_most);
        double took = bounce(count, NULL);
        each = took / (double)count;
        total += took;
        exchanges += count;
        rounds++;
        if (taken + (size_t)count <= SAMPLES_MAX) {
            bounce(count, samples + taken);
            taken += (size_t)count;
        }
    } while (now_ns() - begun < seconds * 1e9);
    qsort(samples, taken, sizeof *samples, by_value);
    printf("row latency bytes=%zu mean_ns=%.2f", bytes, total / (double)exchanges / 2);
    print_percentile("p50_ns", samples, taken, 0.5);
    print_percentile("p90_ns", samples, taken, 0.9);
    print_percentile("p99_ns", samples, taken, 0.99);
    print_percentile("p999_ns", samples, taken, 0.999);
    print_percentile("p9999_ns", samples, taken, 0.9999);
    printf(" max_ns=%.1f samples=%zu rounds=%ld\n", taken ? samples[taken - 1] / 2 : 0, taken, rounds);
    free(samples);
}

/* One block of messages in one direction and the answer to the last; its time. */
static double block(enum order how, long count)
{
    char answer;
    give(how, count);
    double begun = now_ns();
    if (how == SINK_WINDOW)
        send_windows(count);
    else
        for (long i = 0; i < count; i++)
            MPI_Send(buffers, (int)bytes, MPI_CHAR, 1, DATA, MPI_COMM_WORLD);
    MPI_Recv(&answer, 1, MPI_CHAR, 1, ANSWER, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return now_ns() - begun;
}

static void stream(enum order how, double seconds, const char *name)
{
    double each = block(how, window) / window, begun = now_ns(), total = 0;
    long messages = 0, rounds = 0;
    /* Whole windows, and two of them at least: the answer at the end is to be nothing beside them. */
    long least = 2L * window;
    do {
        long count = fitting(each, 1000000);
        count = count < least ? least : count;
        each = block(how, count) / (double)count;
    } while (now_ns() - begun < seconds * 0.2e9);
    begun = now_ns();
    do {
        long count = fitting(each, 1000000);
        count = count < least ? least : count;
        double took = block(how, count);
        each = took / (double)count;
        total += took;
        messages += count;
        rounds++;
    } while (now_ns() - begun < seconds * 1e9);
    printf("row %s bytes=%zu per_second=%.2f rounds=%ld\n", name, bytes, (double)messages / (total * 1e-9), rounds);
}

/* Work that needs no memory: what is measured is the core. */
static void compute(unsigned long steps)
{
    volatile uint64_t state = 1;
    for (unsigned long i = 0; i < steps; i++)
        state = state * 6364136223846793005u + 1;
}

static double timed_compute(unsigned long steps)
{
    double begun = now_ns();
    compute(steps);
    return now_ns() - begun;
}

/* One receive with `steps` of computation between posting it and waiting for it. */
static double receive(unsigned long steps)
{
    MPI_Request request;
    double begun = now_ns();
    MPI_Irecv(buffers, (int)bytes, MPI_CHAR, 1, DATA, MPI_COMM_WORLD, &request);
    give(FEED, 1);
    compute(steps);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    return now_ns() - begun;
}

static double middle(double *values)
{
    qsort(values, REPEATS, sizeof *values, by_value);
    return values[REPEATS / 2];
}

static void overlap(void)
{
    enum { PROBE = 200000 };
    double alone[REPEATS], computing[REPEATS], both[REPEATS];
    receive(0);
    double each = timed_compute(PROBE) / PROBE, warm = 0;
    for (int i = 0; i < REPEATS; i++)
        alone[i] = receive(0);
    warm = middle(alone);
    unsigned long steps = (unsigned long)(warm / (each > 0.01 ? each : 0.01));
    for (int i = 0; i < REPEATS; i++) {
        alone[i] = receive(0);
        computing[i] = timed_compute(steps);
        both[i] = receive(steps);
    }
    printf("row overlap bytes=%zu alone_ns=%.1f compute_ns=%.1f both_ns=%.1f\n", bytes, middle(alone),
           middle(computing), middle(both));
}

static double read_cost(void)
{
    double begun = now_ns();
    for (int i = 0; i < 1000; i++)
        now_ns();
    return (now_ns() - begun) / 1001;
}

static int usage(void)
{
    fprintf(stderr, "usage: mpi_pair latency|stream|blocking|overlap SECONDS WINDOW ROUND BYTES...\n");
    return 2;
}

int main(int argc, char **argv)
{
    int rank, ranks, length;
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    if (argc < 6)
        return usage();
    const char *kind = argv[1];
    double seconds = atof(argv[2]);
    window = atoi(argv[3]);
    round_most = atol(argv[4]);
    if (seconds <= 0 || window < 1 || window > WINDOW_MAX || round_most < 1)
        return usage();
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Get_library_version(library, &length);
    if (ranks != 2) {
        fprintf(stderr, "mpi_pair: there are %d ranks, and it takes 2\n", ranks);
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (rank == 0) {
        library[strcspn(library, "\r\n")] = 0;
        printf("library %s\nread_ns %.1f\n", library, read_cost());
    }
    for (int i = 5; i < argc; i++) {
        size_t size = strtoull(argv[i], NULL, 10);
        size_t fit = SINKS_BYTES / (size ? size : 1);
        sinks = fit < 2 ? 2 : fit > (size_t)window ? window : (int)fit;
        buffers = must_have(size * (size_t)sinks);
        memset(buffers, rank + 1, size * (size_t)sinks);
        bytes = size;
        if (rank == 1) {
            follow();
        } else {
            if (strcmp(kind, "latency") == 0)
                latency(seconds);
            else if (strcmp(kind, "stream") == 0)
                stream(SINK_WINDOW, seconds, "stream");
            else if (strcmp(kind, "blocking") == 0)
                stream(SINK_BLOCKING, seconds, "blocking");
            else if (strcmp(kind, "overlap") == 0)
                overlap();
            else
                fprintf(stderr, "mpi_pair: there is no kind \"%s\"\n", kind);
            give(END, 0);
            fflush(stdout);
        }
        free(buffers);
    }
    MPI_Finalize();
    return 0;
}
