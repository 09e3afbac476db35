/* Reading: small, large, in pieces, cut; without matching, by physical names. */
#include "meet.h"

#define LARGE (1u << 20)

int main(void)
{
    ptl_handle_ni_t ni;
    ptl_handle_ct_t done, seen;
    ptl_handle_md_t md, pieces;
    ptl_handle_le_t entry;
    ptl_pt_index_t  index;
    unsigned char  *room = calloc(LARGE, 1), *bytes = malloc(LARGE);

    OK(PtlInit());
    meet_init();
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_NO_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, NULL, NULL, &ni));
    ptl_process_t *all = meet_all(ni);
    ptl_process_t  peer = all[(meet_rank + 1) % meet_size];
    unsigned char  theirs = (unsigned char)((meet_rank + 1) % meet_size);

    for (unsigned at = 0; at < LARGE; at++) bytes[at] = (unsigned char)(at * 3 + at / 255 + (unsigned)meet_rank);
    OK(PtlCTAlloc(ni, &seen));
    OK(PtlPTAlloc(ni, 0, PTL_EQ_NONE, PTL_PT_ANY, &index));
    ptl_le_t le = {bytes, LARGE, seen, geteuid(), PTL_LE_OP_GET | PTL_LE_EVENT_CT_COMM};
    OK(PtlLEAppend(ni, index, &le, PTL_PRIORITY_LIST, NULL, &entry));
    meet_barrier();

    OK(PtlCTAlloc(ni, &done));
    ptl_md_t of = meet_md(room, LARGE, PTL_MD_EVENT_CT_REPLY, PTL_EQ_NONE, done);
    OK(PtlMDBind(ni, &of, &md));
    OK(PtlGet(md, 10, 20, peer, index, 0, 1000, NULL));
    CHECK(meet_reach(done, 1).failure == 0);
    for (unsigned at = 0; at < 20; at++) {
        CHECK(room[10 + at] == (unsigned char)((1000 + at) * 3 + (1000 + at) / 255 + theirs));
    }
    OK(PtlGet(md, 0, LARGE, peer, index, 0, 0, NULL));
    CHECK(meet_reach(done, 2).failure == 0);
    for (unsigned at = 0; at < LARGE; at++) CHECK(room[at] == (unsigned char)(at * 3 + at / 255 + theirs));

    /* Into three pieces, one of them empty. */
    memset(room, 0, LARGE);
    ptl_iovec_t three[] = {{room + 5, 3}, {NULL, 0}, {room, 2}};
    of = meet_md(three, 3, PTL_IOVEC | PTL_MD_EVENT_CT_REPLY, PTL_EQ_NONE, done);
    OK(PtlMDBind(ni, &of, &pieces));
    memset(three, 0, sizeof three);
    OK(PtlGet(pieces, 1, 4, peer, index, 0, 0, NULL));
    CHECK(meet_reach(done, 3).failure == 0);
    CHECK(room[5] == 0 && room[6] == theirs && room[7] == theirs + 3 && room[0] == theirs + 6);
    CHECK(room[1] == (unsigned char)(theirs + 9));

    /* Beyond the entry: nothing is read, and that is well. */
    OK(PtlGet(md, 0, 8, peer, index, 0, LARGE + 8, NULL));
    CHECK(meet_reach(done, 4).failure == 0);
    /* More than the descriptor has. */
    IS(PtlGet(md, LARGE - 4, 8, peer, index, 0, 0, NULL), PTL_ARG_INVALID);
    /* What the entry does not allow. */
    ptl_handle_ct_t acked;
    OK(PtlCTAlloc(ni, &acked));
    ptl_handle_md_t put;
    of = meet_md(room, 8, PTL_MD_EVENT_CT_ACK, PTL_EQ_NONE, acked);
    OK(PtlMDBind(ni, &of, &put));
    OK(PtlPut(put, 0, 8, PTL_CT_ACK_REQ, peer, index, 0, 0, NULL, 0));
    CHECK(meet_reach(acked, 1).failure == 1);
    /* No entry matches. */
    ptl_process_t other = all[meet_rank];
    other.phys.pid = 1000;
    OK(PtlCTSet(done, (ptl_ct_event_t){0, 0}));
    OK(PtlGet(md, 0, 8, other, index, 0, 0, NULL));
    CHECK(meet_reach(done, 1).failure == 1);

    CHECK(meet_reach(seen, 4).success >= 4);
    meet_barrier();
    int violations;
    OK(PtlNIStatus(ni, PTL_SR_OPERATION_VIOLATIONS, &violations));
    CHECK(violations == 1);
    OK(PtlLEUnlink(entry));
    OK(PtlPTFree(ni, index));
    OK(PtlNIFini(ni));
    meet_end();
    PtlFini();
    return 0;
}
