/*
 * Two processes of MPI, measured as doorbell measures its own: `doorbell-lab compare-peers` compiles this
 * with the compiler of each installed MPI, and reads what rank 0 prints.
 *
 *   mpi_pair KIND SECONDS WINDOW ROUND HZ BYTES[:STEPS]...
 *
 * KIND: latency, stream, blocking, overlap. ROUND: its most exchanges. HZ: ticks per second of the
 * processor's counter, which is read instead of the system's clock, as doorbell does; 0 if it cannot be
 * trusted. STEPS: of the computation that overlap is measured with, the same for every stack.
 *
 * The bytes sent never change, and are received into other memory, so that a rank never sends bytes that
 * it has just written. Rank 0 gives bounded orders, rank 1 carries them out. One line is printed for each
 * size: "row KIND bytes=8 mean_ns=...". Every exchange of `latency` is timed, and every figure of a row
 * is of the same exchanges; the clock is read while a message is in flight (the cost of a reading is
 * read_ns of the first line).
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

enum order { END, BOUNCE, SINK_WINDOW, SINK_BLOCKING, FEED };

#define DATA 1
#define ORDER 2
#define ANSWER 3
#define WINDOW_MAX 4096
/* Buffers that are received into take no more than this together, as long as two of them fit: as
 * doorbell's own do. */
#define SINKS_BYTES ((size_t)4 << 20)
#define SAMPLES_MAX (1u << 20)
/* A round or a block takes about so long where they are not. */
#define ROUND_NS 20e6
/* Times that a computation, a receive and both at once are measured. */
#define REPEATS 9
/*
 * The warm-up is doorbell's own (bench/src/load/warm.rs): blocks of so many nanoseconds, until so many of
 * them in a row were not this much better than the best one, with caps.
 */
#define WARM_BLOCK_NS 4e6
#define WARM_STEADY 4
#define WARM_BETTER 0.02
#define WARM_BLOCKS_MAX 60
#define WARM_NS_MAX 400e6
#define WARM_FIRST 4
#define WARM_MOST 100000

/* What is sent, which never changes; and what is received into: several buffers in turn where messages
 * stream. */
static char *ours;
static char *buffers;
static size_t bytes;
static int window, sinks;
static long round_most;
static MPI_Request requests[WINDOW_MAX];

/* Of the processor's counter: nanoseconds of a tick, or 0 where it is not read, and where it began. */
static double tick_ns;
static uint64_t first_tick;

static double now_ns(void)
{
#if defined(__x86_64__)
    if (tick_ns > 0)
        return (double)(__rdtsc() - first_tick) * tick_ns;
#endif
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
            MPI_Isend(ours, (int)bytes, MPI_CHAR, 1, DATA, MPI_COMM_WORLD, &requests[i]);
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
                MPI_Send(ours, (int)bytes, MPI_CHAR, 0, DATA, MPI_COMM_WORLD);
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
            MPI_Send(ours, (int)bytes, MPI_CHAR, 0, DATA, MPI_COMM_WORLD);
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

/*
 * One round of exchanges; its time. With `stamps`, every exchange is timed as doorbell's own are
 * (bench/src/load/ pingpong.rs): the clock is read while the message is under way, from one such moment
 * to the next; what is before the first and behind the last is one exchange together.
 */
static double bounce(long count, double *stamps)
{
    give(BOUNCE, count);
    double begun = now_ns(), first = 0, last = begun;
    for (long i = 0; i < count; i++) {
        MPI_Send(ours, (int)bytes, MPI_CHAR, 1, DATA, MPI_COMM_WORLD);
        if (stamps) {
            double now = now_ns();
            if (i == 0)
                first = now - begun;
            else
                stamps[i - 1] = now - last;
            last = now;
        }
        MPI_Recv(buffers, (int)bytes, MPI_CHAR, 1, DATA, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    double end = now_ns();
    if (stamps && count > 0)
        stamps[count - 1] = first + (end - last);
    return end - begun;
}

/* As many as fit into a round of ROUND_NS, and at most `most`. */
static long fitting(double each_ns, long most)
{
    double count = ROUND_NS / (each_ns > 1 ? each_ns : 1);
    return count < 1 ? 1 : count > (double)most ? most : (long)count;
}

/* Blocks until they stop getting better; nanoseconds of an exchange or message in the best one. */
static double warmed(double (*block)(long), long least, long most)
{
    double best = 0, each = 0, spent = 0;
    int blocks = 0, idle = 0;
    while (idle < WARM_STEADY && blocks < WARM_BLOCKS_MAX && spent < WARM_NS_MAX) {
        long count = least;
        if (blocks > 0 && WARM_BLOCK_NS / (each > 1 ? each : 1) > (double)least)
            count = (long)(WARM_BLOCK_NS / (each > 1 ? each : 1));
        count = count > most ? most : count;
        double took = block(count);
        each = took / (double)count;
        int better = blocks == 0 || each < best * (1 - WARM_BETTER);
        idle = better ? 0 : idle + 1;
        best = better ? each : best;
        spent += took;
        blocks++;
    }
    return best;
}

static double bounce_block(long count)
{
    return bounce(count, NULL);
}

static void latency(double seconds)
{
    double *samples = must_have(SAMPLES_MAX * sizeof *samples);
    long most = round_most < WARM_MOST ? round_most : WARM_MOST;
    double each = warmed(bounce_block, WARM_FIRST < most ? WARM_FIRST : most, most), begun, total = 0;
    size_t taken = 0;
    long rounds = 0;
    begun = now_ns();
    do {
        long room = (long)(SAMPLES_MAX - taken), most_now = round_most < room ? round_most : room;
        long count = fitting(each, most_now);
        double took = bounce(count, samples + taken);
        each = took / (double)count;
        total += took;
        taken += (size_t)count;
        rounds++;
    } while (taken < SAMPLES_MAX && now_ns() - begun < seconds * 1e9);
    qsort(samples, taken, sizeof *samples, by_value);
    printf("row latency bytes=%zu mean_ns=%.2f", bytes, total / (double)taken / 2);
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
            MPI_Send(ours, (int)bytes, MPI_CHAR, 1, DATA, MPI_COMM_WORLD);
    MPI_Recv(&answer, 1, MPI_CHAR, 1, ANSWER, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    return now_ns() - begun;
}

static double window_block(long count)
{
    return block(SINK_WINDOW, count);
}

static double blocking_block(long count)
{
    return block(SINK_BLOCKING, count);
}

static void stream(enum order how, double seconds, const char *name)
{
    /* Whole windows, and two of them at least: the answer at the end is to be nothing beside them. */
    long messages = 0, rounds = 0, least = 2L * window;
    double each = warmed(how == SINK_WINDOW ? window_block : blocking_block, window, WARM_MOST), begun, total = 0;
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

static void overlap(unsigned long steps)
{
    double alone[REPEATS], computing[REPEATS], both[REPEATS];
    /* The first ones connect and fault pages in. */
    for (int i = 0; i < REPEATS; i++)
        receive(0);
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
    fprintf(stderr, "usage: mpi_pair latency|stream|blocking|overlap SECONDS WINDOW ROUND HZ BYTES[:STEPS]...\n");
    return 2;
}

int main(int argc, char **argv)
{
    int rank, ranks, length;
    char library[MPI_MAX_LIBRARY_VERSION_STRING];
    if (argc < 7)
        return usage();
    const char *kind = argv[1];
    double seconds = atof(argv[2]);
    window = atoi(argv[3]);
    round_most = atol(argv[4]);
    double ticks_a_second = atof(argv[5]);
#if defined(__x86_64__)
    if (ticks_a_second > 0) {
        tick_ns = 1e9 / ticks_a_second;
        first_tick = __rdtsc();
    }
#endif
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
        for (char *at = library; *at; at++)
            if ((unsigned char)*at <= ' ')
                *at = ' ';
        printf("library %s\nread_ns %.1f\n", library, read_cost());
    }
    for (int i = 6; i < argc; i++) {
        char *end;
        size_t size = strtoull(argv[i], &end, 10);
        unsigned long steps = *end == ':' ? strtoul(end + 1, NULL, 10) : 0;
        size_t fit = SINKS_BYTES / (size ? size : 1);
        sinks = fit < 2 ? 2 : fit > (size_t)window ? window : (int)fit;
        buffers = must_have(size * (size_t)sinks);
        memset(buffers, 0, size * (size_t)sinks);
        ours = must_have(size);
        memset(ours, rank + 1, size);
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
                overlap(steps);
            else
                fprintf(stderr, "mpi_pair: there is no kind \"%s\"\n", kind);
            give(END, 0);
            fflush(stdout);
        }
        free(buffers);
        free(ours);
    }
    MPI_Finalize();
    return 0;
}
