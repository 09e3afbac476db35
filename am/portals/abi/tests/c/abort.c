/* PtlAbort ends every wait of the process, and the next ones wait again. Runs alone. */
#include <pthread.h>

#include "meet.h"

static ptl_handle_ct_t ct;
static ptl_handle_eq_t eq;

static void *waits(void *which)
{
    ptl_ct_event_t count;
    ptl_event_t    event;
    unsigned int   at;
    ptl_size_t     test = 1;

    switch ((intptr_t)which) {
    case 0: return (void *)(intptr_t)PtlCTWait(ct, 1, &count);
    case 1: return (void *)(intptr_t)PtlCTPoll(&ct, &test, 1, PTL_TIME_FOREVER, &count, &at);
    case 2: return (void *)(intptr_t)PtlEQWait(eq, &event);
    default: return (void *)(intptr_t)PtlEQPoll(&eq, 1, 600000, &event, &at);
    }
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
    /* Nobody waits: nothing to be ended. */
    PtlAbort();
    IS(PtlEQPoll(&eq, 1, 1, &event, &at), PTL_EQ_EMPTY);
    for (int round = 0; round < 3; round++) {
        for (intptr_t which = 0; which < 4; which++) {
            CHECK(pthread_create(&threads[which], NULL, waits, (void *)which) == 0);
        }
        /* Once while they look, once while they sleep. */
        usleep(round == 0 ? 3000 : 20000);
        PtlAbort();
        for (int which = 0; which < 4; which++) {
            CHECK(pthread_join(threads[which], &code) == 0);
            CHECK((intptr_t)code == PTL_ABORTED);
        }
    }
    IS(PtlEQPoll(&eq, 1, 1, &event, &at), PTL_EQ_EMPTY);
    /* A wait of one thread ends by what another one does. */
    CHECK(pthread_create(&threads[0], NULL, waits, (void *)0) == 0);
    usleep(5000);
    OK(PtlCTInc(ct, (ptl_ct_event_t){1, 0}));
    CHECK(pthread_join(threads[0], &code) == 0 && (intptr_t)code == PTL_OK);
    PtlFini();
    return 0;
}
