/* Flow control: a message without an entry disables the table entry, fails with an event, and can be sent
 * again when that is enabled. */
#include "meet.h"

int main(void)
{
    ptl_handle_ni_t ni;
    ptl_handle_eq_t eq, mq;
    ptl_handle_md_t md;
    ptl_handle_me_t entry;
    ptl_pt_index_t  index;
    uint64_t        word = 42, room = 0;
    ptl_event_t     event;

    OK(PtlInit());
    meet_init();
    ni = meet_logical(PTL_NI_MATCHING);
    OK(PtlEQAlloc(ni, 100, &eq));
    OK(PtlEQAlloc(ni, 100, &mq));
    IS(PtlPTAlloc(ni, PTL_PT_FLOWCTRL, PTL_EQ_NONE, 1, &index), PTL_PT_EQ_NEEDED);
    OK(PtlPTAlloc(ni, PTL_PT_FLOWCTRL, eq, 1, &index));
    ptl_md_t of = meet_md(&word, 8, 0, mq, PTL_CT_NONE);
    OK(PtlMDBind(ni, &of, &md));
    meet_barrier();

    ptl_process_t zero = meet_peer(0);
    if (meet_rank != 0) {
        OK(PtlPut(md, 0, 8, PTL_ACK_REQ, zero, index, 5, 0, NULL, 0));
        meet_next(mq, PTL_EVENT_SEND);
        event = meet_next(mq, PTL_EVENT_ACK);
        CHECK(event.ni_fail_type == PTL_NI_PT_DISABLED);
    } else if (meet_size > 1) {
        event = meet_next(eq, PTL_EVENT_PT_DISABLED);
        CHECK(event.pt_index == index);
    }
    meet_barrier();
    if (meet_rank == 0) {
        ptl_me_t me = meet_me(&room, 8, 5, PTL_ME_OP_PUT | PTL_ME_EVENT_LINK_DISABLE);
        OK(PtlMEAppend(ni, index, &me, PTL_PRIORITY_LIST, NULL, &entry));
        OK(PtlPTEnable(ni, index));
    }
    meet_barrier();
    if (meet_rank != 0) {
        OK(PtlPut(md, 0, 8, PTL_ACK_REQ, zero, index, 5, 0, NULL, 0));
        meet_next(mq, PTL_EVENT_SEND);
        CHECK(meet_next(mq, PTL_EVENT_ACK).ni_fail_type == PTL_NI_OK);
    } else {
        for (int rank = 1; rank < meet_size; rank++) CHECK(meet_next(eq, PTL_EVENT_PUT).mlength == 8);
        CHECK(room == (meet_size > 1 ? 42 : 0));
    }
    meet_barrier();
    /* Disabled by hand. */
    if (meet_rank == 0) OK(PtlPTDisable(ni, index));
    meet_barrier();
    if (meet_rank != 0) {
        OK(PtlPut(md, 0, 8, PTL_ACK_REQ, zero, index, 5, 0, NULL, 0));
        meet_next(mq, PTL_EVENT_SEND);
        CHECK(meet_next(mq, PTL_EVENT_ACK).ni_fail_type == PTL_NI_PT_DISABLED);
    }
    meet_barrier();
    IS(PtlEQGet(eq, &event), PTL_EQ_EMPTY);
    if (meet_rank == 0) {
        IS(PtlPTFree(ni, index), PTL_PT_IN_USE);
        OK(PtlMEUnlink(entry));
    }
    OK(PtlPTFree(ni, index));
    OK(PtlNIFini(ni));
    meet_end();
    PtlFini();
    return 0;
}
