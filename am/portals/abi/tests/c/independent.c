/* Targets that make no calls: rank 0 reads and writes the memory of all ranks while they are in the
 * launcher's barrier. */
#include "meet.h"

int main(void)
{
    ptl_handle_ni_t ni;
    ptl_handle_ct_t done;
    ptl_handle_md_t md;
    ptl_handle_le_t entry;
    ptl_pt_index_t  index;
    uint64_t        own[2], word[2];

    OK(PtlInit());
    meet_init();
    ni     = meet_logical(PTL_NI_NO_MATCHING);
    own[0] = 7 + (uint64_t)meet_rank;
    own[1] = 0;
    OK(PtlPTAlloc(ni, 0, PTL_EQ_NONE, 0, &index));
    ptl_le_t le = {own, sizeof own, PTL_CT_NONE, PTL_UID_ANY, PTL_LE_OP_GET | PTL_LE_OP_PUT};
    OK(PtlLEAppend(ni, index, &le, PTL_PRIORITY_LIST, NULL, &entry));
    meet_barrier();
    if (meet_rank == 0) {
        OK(PtlCTAlloc(ni, &done));
        ptl_md_t of = meet_md(word, sizeof word, PTL_MD_EVENT_CT_REPLY | PTL_MD_EVENT_CT_ACK, PTL_EQ_NONE, done);
        OK(PtlMDBind(ni, &of, &md));
        for (int round = 0, count = 0; round < 50; round++) {
            for (int rank = 0; rank < meet_size; rank++) {
                ptl_process_t peer = meet_peer(rank);
                word[1] = (uint64_t)round;
                OK(PtlPut(md, 8, 8, PTL_CT_ACK_REQ, peer, index, 0, 8, NULL, 0));
                CHECK(meet_reach(done, (ptl_size_t)++count).failure == 0);
                word[0] = word[1] = 0;
                OK(PtlGet(md, 0, 16, peer, index, 0, 0, NULL));
                CHECK(meet_reach(done, (ptl_size_t)++count).failure == 0);
                CHECK(word[0] == 7 + (uint64_t)rank && word[1] == (uint64_t)round);
            }
            if (round % 10 == 0) usleep(2000);
        }
    }
    meet_barrier();
    CHECK(own[1] == 49);
    meet_barrier();
    /* No PtlFini: what was sent has to arrive all the same. */
    if (meet_rank == meet_size - 1) {
        static uint64_t last = 4711;
        ptl_md_t        of = meet_md(&last, 8, 0, PTL_EQ_NONE, PTL_CT_NONE);
        OK(PtlMDBind(ni, &of, &md));
        OK(PtlPut(md, 0, 8, PTL_NO_ACK_REQ, meet_peer(0), index, 0, 8, NULL, 0));
    }
    if (meet_rank == 0) {
        volatile uint64_t *came = &own[1];
        for (int waited = 0; *came != 4711; waited++) {
            CHECK(waited < 10000);
            usleep(1000);
        }
    }
    meet_end();
    return 0;
}
