/* After PtlNIFini no memory of its descriptors is written, also if a long get was in progress. Rank 0
 * reads from rank 1. */
#include "meet.h"

#define LONG  (64u << 20)
#define PIECE (64u << 10)

int main(void)
{
    ptl_handle_ni_t ni, other;
    ptl_handle_ct_t done;
    ptl_handle_md_t md;
    ptl_handle_le_t entry;
    ptl_pt_index_t  index;
    ptl_ct_event_t  count;
    unsigned char  *bytes = calloc(LONG, 1), then[LONG / PIECE];

    CHECK(bytes);
    OK(PtlInit());
    meet_init();
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_NO_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, NULL, NULL, &ni));
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, NULL, NULL, &other));
    ptl_process_t *all = meet_all(ni);
    OK(PtlPTAlloc(ni, 0, PTL_EQ_NONE, 3, &index));
    if (meet_rank == 1) memset(bytes, 0x5a, LONG);
    ptl_le_t le = {bytes, LONG, PTL_CT_NONE, PTL_UID_ANY, PTL_LE_OP_GET};
    OK(PtlLEAppend(ni, index, &le, PTL_PRIORITY_LIST, NULL, &entry));
    meet_barrier();
    if (meet_rank == 0 && meet_size > 1) {
        OK(PtlCTAlloc(ni, &done));
        ptl_md_t of = meet_md(bytes, LONG, PTL_MD_EVENT_CT_REPLY, PTL_EQ_NONE, done);
        OK(PtlMDBind(ni, &of, &md));
        OK(PtlGet(md, 0, LONG, all[1], index, 0, 0, NULL));
        /* The first bytes are there: it has begun. */
        while (!*(volatile unsigned char *)bytes) OK(PtlCTGet(done, &count));
        OK(PtlNIFini(ni));
        for (size_t at = 0; at < sizeof then; at++) then[at] = bytes[at * PIECE];
        /* The library's thread goes on with what there is to do. */
        usleep(300000);
        for (size_t at = 0; at < sizeof then; at++) CHECK(then[at] == bytes[at * PIECE]);
    }
    meet_barrier();
    OK(PtlNIFini(other));
    meet_end();
    PtlFini();
    return 0;
}
