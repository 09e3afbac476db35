/* A program that was compiled with a header of its own: all that it knows of the library are these two. */
#include <stdio.h>
#include <stdlib.h>

int  PtlInit(void);
void PtlFini(void);

int main(int count, char **wanted)
{
    int failed = 0;
    for (int at = 0; at < 2; at++) {
        int code = PtlInit();
        if (count != 2 || code != atoi(wanted[1])) {
            fprintf(stderr, "PtlInit returns %d\n", code);
            failed = 1;
        }
        if (code == 0)
            PtlFini();
    }
    return failed;
}
