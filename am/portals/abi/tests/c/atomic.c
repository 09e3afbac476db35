/* Everybody adds to the memory of rank 0, fetches, swaps; on the way conditions hold or do not. */
#include "meet.h"

struct target {
    int64_t  sum;
    uint64_t ticket;
    double   most;
    uint32_t lock;
    uint32_t pad;
    uint64_t masked;
};

int main(void)
{
    ptl_handle_ni_t ni;
    ptl_handle_ct_t seen, done;
    ptl_handle_md_t in, out;
    ptl_handle_me_t entry;
    ptl_pt_index_t  index;
    struct target   target = {5, 0, -1e9, 7, 0, 0xf0f0}, own = {0}, old = {0};
    int             n;

    OK(PtlInit());
    meet_init();
    n  = meet_size;
    ni = meet_logical(PTL_NI_MATCHING);
    OK(PtlCTAlloc(ni, &seen));
    OK(PtlCTAlloc(ni, &done));
    OK(PtlPTAlloc(ni, 0, PTL_EQ_NONE, 9, &index));
    ptl_me_t me  = meet_me(&target, sizeof target, 1, PTL_ME_OP_PUT | PTL_ME_OP_GET | PTL_ME_EVENT_CT_COMM);
    me.ct_handle = seen;
    OK(PtlMEAppend(ni, index, &me, PTL_PRIORITY_LIST, NULL, &entry));
    meet_barrier();

    ptl_md_t of = meet_md(&own, sizeof own, PTL_MD_EVENT_CT_ACK, PTL_EQ_NONE, done);
    OK(PtlMDBind(ni, &of, &out));
    of = meet_md(&old, sizeof old, PTL_MD_EVENT_CT_REPLY, PTL_EQ_NONE, done);
    OK(PtlMDBind(ni, &of, &in));
    ptl_process_t zero = meet_peer(0);

    own.sum = meet_rank + 1;
    OK(PtlAtomic(out, 0, 8, PTL_CT_ACK_REQ, zero, index, 1, 0, NULL, 0, PTL_SUM, PTL_INT64_T));
    own.most = meet_rank * 1.5;
    OK(PtlAtomic(out, 16, 8, PTL_CT_ACK_REQ, zero, index, 1, 16, NULL, 0, PTL_MAX, PTL_DOUBLE));
    own.ticket = 1;
    OK(PtlFetchAtomic(in, 8, out, 8, 8, zero, index, 1, 8, NULL, 0, PTL_SUM, PTL_UINT64_T));
    CHECK(meet_reach(done, 3).failure == 0);
    CHECK(old.ticket < (uint64_t)n);

    /* One of all gets the lock. */
    uint32_t is_free = 7, other = 1234;
    own.lock = 100 + (uint32_t)meet_rank;
    OK(PtlSwap(in, 24, out, 24, 4, zero, index, 1, 24, NULL, 0, &other, PTL_CSWAP, PTL_UINT32_T));
    CHECK(meet_reach(done, 4).failure == 0);
    CHECK(old.lock != other);
    OK(PtlSwap(in, 24, out, 24, 4, zero, index, 1, 24, NULL, 0, &is_free, PTL_CSWAP, PTL_UINT32_T));
    CHECK(meet_reach(done, 5).failure == 0);
    int has_lock = old.lock == 7;
    if (has_lock) {
        uint64_t mask = 0xff00;
        own.masked    = 0xabcd;
        OK(PtlSwap(in, 32, out, 32, 8, zero, index, 1, 32, NULL, 0, &mask, PTL_MSWAP, PTL_UINT64_T));
        CHECK(meet_reach(done, 6).failure == 0);
        CHECK(old.masked == 0xf0f0);
    }
    /* What cannot be. */
    IS(PtlAtomic(out, 0, 7, PTL_NO_ACK_REQ, zero, index, 1, 0, NULL, 0, PTL_SUM, PTL_INT64_T), PTL_ARG_INVALID);
    IS(PtlAtomic(out, 0, 8, PTL_NO_ACK_REQ, zero, index, 1, 0, NULL, 0, PTL_SWAP, PTL_INT64_T), PTL_ARG_INVALID);
    IS(PtlAtomic(out, 16, 8, PTL_NO_ACK_REQ, zero, index, 1, 0, NULL, 0, PTL_BXOR, PTL_DOUBLE), PTL_ARG_INVALID);
    IS(PtlAtomic(out, 0, 8, PTL_NO_ACK_REQ, zero, index, 1, 0, NULL, 0, PTL_SUM, PTL_DATATYPE_LAST),
       PTL_ARG_INVALID);
    IS(PtlSwap(in, 0, out, 0, 8, zero, index, 1, 0, NULL, 0, NULL, PTL_CSWAP, PTL_INT64_T), PTL_ARG_INVALID);

    if (meet_rank == 0) {
        CHECK(meet_reach(seen, (ptl_size_t)(5 * n + 1)).failure == 0);
        OK(PtlAtomicSync());
        CHECK(target.sum == 5 + n * (n + 1) / 2 && target.ticket == (uint64_t)n && target.most == (n - 1) * 1.5);
        CHECK(target.lock >= 100 && target.lock < 100 + (uint32_t)n && target.masked == 0xabf0);
    }
    meet_barrier();
    OK(PtlMEUnlink(entry));
    OK(PtlNIFini(ni));
    meet_end();
    PtlFini();
    return 0;
}
