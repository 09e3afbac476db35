/* A variable with an invalid value: there is no interface, and nothing has changed. Runs alone, with the
 * variables that its arguments name. */
#include "meet.h"

int main(int count, char **names)
{
    ptl_handle_ni_t ni;
    ptl_ni_limits_t wanted;

    memset(&wanted, 0, sizeof wanted);
    OK(PtlInit());
    for (int at = 1; at < count; at++) {
        IS(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, NULL, NULL, &ni), PTL_FAIL);
        IS(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, &wanted, NULL, &ni), PTL_FAIL);
        CHECK(unsetenv(names[at]) == 0);
    }
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, NULL, NULL, &ni));
    OK(PtlNIFini(ni));
    PtlFini();
    return 0;
}
