/* A peer that reads nothing for a while holds up none of the program's other calls. Rank 0 writes more
 * to rank 1 than there is room for. */
#include <time.h>

#include "meet.h"

#define PUTS  1000
#define PIECE 64

static double now(void)
{
    struct timespec time;

    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(void)
{
    ptl_handle_ni_t ni;
    ptl_handle_ct_t done, go;
    ptl_handle_md_t md;
    ptl_handle_le_t entry;
    ptl_pt_index_t  index;
    ptl_ct_event_t  count;
    unsigned char  *bytes = calloc(PIECE, 1);

    CHECK(bytes);
    meet_init();
    /* It is to be asleep, and its library with it. */
    if (meet_rank == 1) setenv("PTL_PROGRESS_THREAD", "0", 1);
    OK(PtlInit());
    ni = meet_logical(PTL_NI_NO_MATCHING);
    OK(PtlPTAlloc(ni, 0, PTL_EQ_NONE, 3, &index));
    OK(PtlCTAlloc(ni, &done));
    ptl_le_t le = {bytes, PIECE, done, PTL_UID_ANY, PTL_LE_OP_PUT | PTL_LE_EVENT_CT_COMM};
    OK(PtlLEAppend(ni, index, &le, PTL_PRIORITY_LIST, NULL, &entry));
    meet_barrier();
    if (meet_rank == 1) {
        usleep(2000000);
        /* Its answers leave in its calls: until the last one has come. */
        meet_reach(done, PUTS + 1);
    } else if (meet_size > 1) {
        double longest = 0, began = now();
        ptl_md_t of = meet_md(bytes, PIECE, PTL_MD_EVENT_CT_ACK, PTL_EQ_NONE, done);
        OK(PtlMDBind(ni, &of, &md));
        OK(PtlCTAlloc(ni, &go));
        for (int put = 0; put < PUTS; put++) {
            OK(PtlTriggeredPut(md, 0, PIECE, PTL_CT_ACK_REQ, meet_peer(1), index, 0, 0, NULL, 0, go, 1));
        }
        OK(PtlCTInc(go, (ptl_ct_event_t){1, 0}));
        while (now() - began < 1.5) {
            double then = now();
            OK(PtlCTGet(done, &count));
            if (now() - then > longest) longest = now() - then;
            /* Long enough for the library's thread to take over. */
            usleep(5000);
        }
        CHECK(longest < 0.2);
        meet_reach(done, PUTS);
        OK(PtlPut(md, 0, PIECE, PTL_NO_ACK_REQ, meet_peer(1), index, 0, 0, NULL, 0));
    }
    meet_barrier();
    OK(PtlNIFini(ni));
    meet_end();
    PtlFini();
    return 0;
}
