/* The library's thread receives none of the program's signals: one that all its threads block stays
 * pending. */
#include <signal.h>

#include "meet.h"

static volatile sig_atomic_t taken;

static void takes(int number)
{
    taken = number;
}

int main(void)
{
    ptl_handle_ni_t  ni;
    struct sigaction action = {.sa_handler = takes};
    sigset_t         one, before, after;

    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    OK(PtlInit());
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &before) == 0);
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, NULL, NULL, &ni));
    CHECK(pthread_sigmask(SIG_SETMASK, NULL, &after) == 0);
    for (int number = 1; number < 32; number++) CHECK(sigismember(&before, number) == sigismember(&after, number));
    CHECK(pthread_sigmask(SIG_BLOCK, &one, NULL) == 0);
    CHECK(kill(getpid(), SIGUSR1) == 0);
    usleep(100000);
    CHECK(!taken);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &one, NULL) == 0);
    CHECK(taken == SIGUSR1);
    PtlFini();
    return 0;
}
