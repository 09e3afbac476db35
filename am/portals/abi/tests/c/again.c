/* One thread ends the library while another one initialises it again: its handles work. Runs alone. */
#include <pthread.h>

#include "meet.h"

static void *ends(void *none)
{
    PtlFini();
    return none;
}

int main(void)
{
    ptl_handle_ni_t ni;
    ptl_handle_ct_t ct;
    pthread_t       thread;

    for (int round = 0; round < 100; round++) {
        OK(PtlInit());
        OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, NULL, NULL, &ni));
        CHECK(pthread_create(&thread, NULL, ends, NULL) == 0);
        usleep((unsigned int)(round % 10) * 50);
        OK(PtlInit());
        OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, NULL, NULL, &ni));
        CHECK(pthread_join(thread, NULL) == 0);
        OK(PtlCTAlloc(ni, &ct));
        OK(PtlCTFree(ct));
        PtlFini();
        IS(PtlCTAlloc(ni, &ct), PTL_NO_INIT);
    }
    return 0;
}
