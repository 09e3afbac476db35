/* Every rank writes to its neighbour, small and large: match bits choose the entry, events report the
 * outcome. */
#include "meet.h"

#define LARGE (3u << 20)

int main(void)
{
    ptl_handle_ni_t ni;
    ptl_handle_eq_t eq, mq;
    ptl_handle_me_t small, large;
    ptl_handle_md_t md, big;
    ptl_pt_index_t  index;
    uint64_t        word = 0, out;
    unsigned char  *room = calloc(LARGE, 1), *bytes = malloc(LARGE);

    OK(PtlInit());
    meet_init();
    ni = meet_logical(PTL_NI_MATCHING);
    int right = (meet_rank + 1) % meet_size, left = (meet_rank + meet_size - 1) % meet_size;

    OK(PtlEQAlloc(ni, 64, &eq));
    OK(PtlEQAlloc(ni, 64, &mq));
    OK(PtlPTAlloc(ni, 0, eq, 3, &index));
    CHECK(index == 3);
    ptl_me_t me = meet_me(&word, sizeof word, 0xaa00, PTL_ME_OP_PUT | PTL_ME_USE_ONCE);
    me.ignore_bits = 0xff;
    OK(PtlMEAppend(ni, index, &me, PTL_PRIORITY_LIST, &small, &small));
    me = meet_me(room, LARGE, 0xbb00, PTL_ME_OP_PUT | PTL_ME_EVENT_LINK_DISABLE);
    OK(PtlMEAppend(ni, index, &me, PTL_PRIORITY_LIST, &large, &large));
    ptl_event_t event = meet_next(eq, PTL_EVENT_LINK);
    CHECK(event.user_ptr == &small && event.pt_index == index && event.ni_fail_type == PTL_NI_OK);
    meet_barrier();

    out         = 1000 + (uint64_t)meet_rank;
    ptl_md_t of = meet_md(&out, sizeof out, 0, mq, PTL_CT_NONE);
    OK(PtlMDBind(ni, &of, &md));
    OK(PtlPut(md, 0, sizeof out, PTL_ACK_REQ, meet_peer(right), index, 0xaa42, 0, &out, 77));
    event = meet_next(mq, PTL_EVENT_SEND);
    CHECK(event.user_ptr == &out && event.ni_fail_type == PTL_NI_OK && event.mlength == sizeof out);
    event = meet_next(mq, PTL_EVENT_ACK);
    CHECK(event.user_ptr == &out && event.mlength == sizeof out && event.remote_offset == 0);

    /* AUTO_UNLINK comes behind the event of the put that used the entry up. */
    event = meet_next(eq, PTL_EVENT_PUT);
    CHECK(word == 1000 + (uint64_t)left);
    CHECK(event.start == &word && event.user_ptr == &small && event.hdr_data == 77 && event.match_bits == 0xaa42);
    CHECK(event.rlength == 8 && event.mlength == 8 && event.initiator.rank == (ptl_rank_t)left);
    CHECK(event.pt_index == index && event.ptl_list == PTL_PRIORITY_LIST && event.uid == geteuid());

    event = meet_next(eq, PTL_EVENT_AUTO_UNLINK);
    CHECK(event.user_ptr == &small && event.pt_index == index);

    /* The first entry is used up: the same bits find nothing now. */
    meet_barrier();
    OK(PtlPut(md, 0, sizeof out, PTL_ACK_REQ, meet_peer(right), index, 0xaa42, 0, NULL, 0));
    meet_next(mq, PTL_EVENT_SEND);
    event = meet_next(mq, PTL_EVENT_ACK);
    CHECK(event.ni_fail_type == PTL_NI_DROPPED);
    meet_barrier();
    int drops;
    OK(PtlNIStatus(ni, PTL_SR_DROP_COUNT, &drops));
    CHECK(drops == 1);

    for (unsigned at = 0; at < LARGE; at++) bytes[at] = (unsigned char)(at * 7 + at / 251 + (unsigned)meet_rank);
    of = meet_md(bytes, LARGE, 0, mq, PTL_CT_NONE);
    OK(PtlMDBind(ni, &of, &big));
    OK(PtlPut(big, 5, LARGE - 5, PTL_ACK_REQ, meet_peer(right), index, 0xbb00, 2, NULL, 0));
    event = meet_next(eq, PTL_EVENT_PUT);
    CHECK(event.mlength == LARGE - 5 && event.remote_offset == 2 && event.start == room + 2);
    for (unsigned at = 5; at < LARGE; at++) {
        CHECK(room[at - 3] == (unsigned char)(at * 7 + at / 251 + (unsigned)left));
    }
    meet_next(mq, PTL_EVENT_SEND);
    event = meet_next(mq, PTL_EVENT_ACK);
    CHECK(event.mlength == LARGE - 5);

    /* Longer than what is left of the entry: cut. Everybody has looked at its room by now. */
    meet_barrier();
    OK(PtlPut(big, 0, 100, PTL_ACK_REQ, meet_peer(right), index, 0xbb00, LARGE - 10, NULL, 0));
    meet_next(mq, PTL_EVENT_SEND);
    event = meet_next(mq, PTL_EVENT_ACK);
    CHECK(event.mlength == 10 && event.ni_fail_type == PTL_NI_OK);
    event = meet_next(eq, PTL_EVENT_PUT);
    CHECK(event.rlength == 100 && event.mlength == 10);

    meet_barrier();
    OK(PtlMEUnlink(large));
    IS(PtlMEUnlink(large), PTL_ARG_INVALID);
    OK(PtlMDRelease(md));
    OK(PtlMDRelease(big));
    OK(PtlPTFree(ni, index));
    OK(PtlEQFree(eq));
    OK(PtlEQFree(mq));
    OK(PtlNIFini(ni));
    meet_end();
    PtlFini();
    return 0;
}
