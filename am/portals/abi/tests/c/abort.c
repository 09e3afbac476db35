/* PtlAbort ends every wait of the process, and the next ones wait again. Runs alone. */
#include <pthread.h>

#include "meet.h"

static ptl_handle_ct_t ct;
static ptl_handle_eq_t eq;
static int             ended;

static intptr_t waits_for(intptr_t which)
{
    ptl_ct_event_t count;
    ptl_event_t    event;
    unsigned int   at;
    ptl_size_t     test = 1;

    switch (which) {
    case 0: return PtlCTWait(ct, 1, &count);
    case 1: return PtlCTPoll(&ct, &test, 1, PTL_TIME_FOREVER, &count, &at);
    case 2: return PtlEQWait(eq, &event);
    default: return PtlEQPoll(&eq, 1, 600000, &event, &at);
    }
}

static void *waits(void *which)
{
    intptr_t code = waits_for((intptr_t)which);

    __atomic_add_fetch(&ended, 1, __ATOMIC_SEQ_CST);
    return (void *)code;
}

static int over;

static void *looks(void *none)
{
    ptl_event_t  event;
    unsigned int at;

    while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST)) {
        int code = PtlEQPoll(&eq, 1, 0, &event, &at);
        CHECK(code == PTL_EQ_EMPTY || code == PTL_ABORTED);
    }
    return none;
}

int main(void)
{
    ptl_handle_ni_t ni;
    pthread_t       threads[4];
    void           *code;
    ptl_event_t     event;
    unsigned int    at;

    OK(PtlInit());
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, NULL, NULL, &ni));
    OK(PtlCTAlloc(ni, &ct));
    OK(PtlEQAlloc(ni, 1, &eq));
    /* No call waits: there is nothing to end. */
    PtlAbort();
    IS(PtlEQPoll(&eq, 1, 1, &event, &at), PTL_EQ_EMPTY);
    for (int round = 0; round < 3; round++) {
        for (intptr_t which = 0; which < 4; which++) {
            CHECK(pthread_create(&threads[which], NULL, waits, (void *)which) == 0);
        }
        /* Once while they look, twice while they sleep. One that has not begun to wait is ended by a later call. */
        usleep(round == 0 ? 1000 : 20000);
        for (int tries = 0; __atomic_load_n(&ended, __ATOMIC_SEQ_CST) < 4 * (round + 1); tries++) {
            CHECK(tries < 20000);
            PtlAbort();
            usleep(1000);
        }
        for (int which = 0; which < 4; which++) {
            CHECK(pthread_join(threads[which], &code) == 0);
            CHECK((intptr_t)code == PTL_ABORTED);
        }
    }
    IS(PtlEQPoll(&eq, 1, 1, &event, &at), PTL_EQ_EMPTY);
    /* Of waits that end by themselves just then, nothing stays behind. */
    for (int round = 0; round < 20; round++) {
        over = 0;
        CHECK(pthread_create(&threads[0], NULL, looks, NULL) == 0);
        for (int tries = 0; tries < 2000; tries++) PtlAbort();
        __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
        CHECK(pthread_join(threads[0], NULL) == 0);
        IS(PtlEQPoll(&eq, 1, 1, &event, &at), PTL_EQ_EMPTY);
    }
    /* A wait of one thread ends by what another one does. */
    CHECK(pthread_create(&threads[0], NULL, waits, (void *)0) == 0);
    usleep(5000);
    OK(PtlCTInc(ct, (ptl_ct_event_t){1, 0}));
    CHECK(pthread_join(threads[0], &code) == 0 && (intptr_t)code == PTL_OK);
    PtlFini();
    return 0;
}
