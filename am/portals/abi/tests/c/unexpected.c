/* Messages that come before an entry for them: kept by an overflow entry, found by a search, taken by an
 * append. */
#include "meet.h"

int main(void)
{
    ptl_handle_ni_t ni;
    ptl_handle_eq_t eq, mq;
    ptl_handle_ct_t acked;
    ptl_handle_md_t md;
    ptl_handle_me_t over, entry;
    ptl_pt_index_t  index;
    char            room[64] = {0}, want[8] = {0};
    uint64_t        word;
    ptl_event_t     event;

    OK(PtlInit());
    meet_init();
    ni = meet_logical(PTL_NI_MATCHING);
    OK(PtlEQAlloc(ni, 100, &eq));
    OK(PtlEQAlloc(ni, 10, &mq));
    OK(PtlCTAlloc(ni, &acked));
    OK(PtlPTAlloc(ni, 0, eq, 4, &index));
    ptl_me_t me    = meet_me(room, sizeof room, 0, PTL_ME_OP_PUT | PTL_ME_MANAGE_LOCAL | PTL_ME_EVENT_COMM_DISABLE);
    me.ignore_bits = ~(ptl_match_bits_t)0;
    me.min_free    = 8;
    OK(PtlMEAppend(ni, index, &me, PTL_OVERFLOW_LIST, NULL, &over));
    meet_next(eq, PTL_EVENT_LINK);
    meet_barrier();

    ptl_md_t of = meet_md(&word, 8, PTL_MD_EVENT_CT_ACK | PTL_MD_EVENT_SEND_DISABLE, mq, acked);
    OK(PtlMDBind(ni, &of, &md));
    ptl_process_t right = meet_peer((meet_rank + 1) % meet_size);
    for (uint64_t at = 0; at < 3; at++) {
        word = 100 + at;
        OK(PtlPut(md, 0, 8, at == 1 ? PTL_CT_ACK_REQ : PTL_ACK_REQ, right, index, at, 0, NULL, at));
        CHECK(meet_reach(acked, at + 1).failure == 0);
        if (at == 1) continue;
        /* Its sender learns that nobody has waited for it. */
        event = meet_next(mq, PTL_EVENT_ACK);
        CHECK(event.ptl_list == PTL_OVERFLOW_LIST && event.mlength == 8 && event.remote_offset == 8 * at);
    }
    meet_barrier();

    me = meet_me(want, 8, 7, PTL_ME_OP_PUT | PTL_ME_USE_ONCE);
    OK(PtlMESearch(ni, index, &me, PTL_SEARCH_ONLY, &me));
    event = meet_next(eq, PTL_EVENT_SEARCH);
    CHECK(event.ni_fail_type == PTL_NI_NO_MATCH && event.user_ptr == &me);
    me.match_bits = 1;
    OK(PtlMESearch(ni, index, &me, PTL_SEARCH_ONLY, &me));
    event = meet_next(eq, PTL_EVENT_SEARCH);
    CHECK(event.ni_fail_type == PTL_NI_OK && event.hdr_data == 1 && event.mlength == 8);
    OK(PtlMESearch(ni, index, &me, PTL_SEARCH_DELETE, &me));
    event = meet_next(eq, PTL_EVENT_PUT_OVERFLOW);
    CHECK(event.hdr_data == 1 && event.start == room + 8 && *(uint64_t *)event.start == 101);
    OK(PtlMESearch(ni, index, &me, PTL_SEARCH_DELETE, &me));
    CHECK(meet_next(eq, PTL_EVENT_SEARCH).ni_fail_type == PTL_NI_NO_MATCH);

    IS(PtlMEUnlink(over), PTL_IN_USE);
    for (uint64_t at = 0; at < 3; at += 2) {
        me.match_bits = at;
        OK(PtlMEAppend(ni, index, &me, PTL_PRIORITY_LIST, want, &entry));
        event = meet_next(eq, PTL_EVENT_PUT_OVERFLOW);
        CHECK(event.user_ptr == want && event.match_bits == at && event.start == room + 8 * at);
        CHECK(*(uint64_t *)event.start == 100 + at);
        meet_next(eq, PTL_EVENT_AUTO_UNLINK);
    }
    OK(PtlMEUnlink(over));
    IS(PtlEQGet(eq, &event), PTL_EQ_EMPTY);
    OK(PtlPTFree(ni, index));
    OK(PtlNIFini(ni));
    meet_end();
    PtlFini();
    return 0;
}
