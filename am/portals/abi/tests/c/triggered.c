/* A token goes round the ring without anybody's help: each rank's count triggers the put to the next. */
#include "meet.h"

int main(void)
{
    ptl_handle_ni_t ni;
    ptl_handle_ct_t came, other;
    ptl_handle_md_t md;
    ptl_handle_me_t entry;
    ptl_pt_index_t  index;
    uint64_t        token = 0;
    ptl_ct_event_t  one = {1, 0}, count;

    OK(PtlInit());
    meet_init();
    ni = meet_logical(PTL_NI_MATCHING);
    OK(PtlCTAlloc(ni, &came));
    OK(PtlCTAlloc(ni, &other));
    OK(PtlPTAlloc(ni, 0, PTL_EQ_NONE, 2, &index));
    ptl_me_t me  = meet_me(&token, 8, 9, PTL_ME_OP_PUT | PTL_ME_EVENT_CT_COMM);
    me.ct_handle = came;
    OK(PtlMEAppend(ni, index, &me, PTL_PRIORITY_LIST, NULL, &entry));
    ptl_md_t of = meet_md(&token, 8, 0, PTL_EQ_NONE, PTL_CT_NONE);
    OK(PtlMDBind(ni, &of, &md));
    ptl_process_t right = meet_peer((meet_rank + 1) % meet_size);
    for (int round = 1; meet_rank > 0 && round <= 3; round++) {
        OK(PtlTriggeredPut(md, 0, 8, PTL_NO_ACK_REQ, right, index, 9, 0, NULL, 0, came, (ptl_size_t)round));
    }
    /* Thresholds in any order; those that are cancelled never happen. */
    OK(PtlTriggeredCTInc(other, one, came, 3));
    OK(PtlTriggeredCTSet(other, (ptl_ct_event_t){40, 0}, came, 2));
    OK(PtlTriggeredCTInc(other, one, came, 1));
    meet_barrier();
    for (int round = 1; round <= 3; round++) {
        if (meet_rank == 0) {
            token = 500 + (uint64_t)round;
            OK(PtlPut(md, 0, 8, PTL_NO_ACK_REQ, right, index, 9, 0, NULL, 0));
        }
        CHECK(meet_reach(came, (ptl_size_t)round).failure == 0);
        CHECK(token == 500 + (uint64_t)round);
        meet_barrier();
    }
    CHECK(meet_reach(other, 41).success == 41);

    /* Satisfied already: at once. */
    OK(PtlTriggeredCTInc(other, one, came, 3));
    CHECK(meet_reach(other, 42).success == 42);
    OK(PtlTriggeredCTInc(other, one, came, 4));
    OK(PtlCTCancelTriggered(came));
    OK(PtlCTInc(came, one));
    OK(PtlCTGet(came, &count));
    CHECK(count.success == 4 && count.failure == 0);
    OK(PtlCTGet(other, &count));
    CHECK(count.success == 42);
    IS(PtlCTInc(came, (ptl_ct_event_t){1, 1}), PTL_ARG_INVALID);
    /* A failure ends a wait. */
    OK(PtlCTInc(came, (ptl_ct_event_t){0, 1}));
    CHECK(meet_reach(came, 1000000).failure == 1);

    meet_barrier();
    OK(PtlMEUnlink(entry));
    OK(PtlCTFree(came));
    IS(PtlCTGet(came, &count), PTL_ARG_INVALID);
    OK(PtlNIFini(ni));
    meet_end();
    PtlFini();
    return 0;
}
