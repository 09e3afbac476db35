/* Names of older headers, as Open MPI and GASNet use them: they compile, and do what they say. Runs alone. */
#include "meet.h"

/* Every code has a number of its own: this would not compile otherwise. */
static const char *name_of(int code)
{
    switch (code) {
        case PTL_OK: return "OK";
        case PTL_ARG_INVALID: return "ARG_INVALID";
        case PTL_CT_NONE_REACHED: return "CT_NONE_REACHED";
        case PTL_EQ_DROPPED: return "EQ_DROPPED";
        case PTL_EQ_EMPTY: return "EQ_EMPTY";
        case PTL_FAIL: return "FAIL";
        case PTL_IGNORED: return "IGNORED";
        case PTL_IN_USE: return "IN_USE";
        case PTL_LIST_TOO_LONG: return "LIST_TOO_LONG";
        case PTL_NO_INIT: return "NO_INIT";
        case PTL_NO_SPACE: return "NO_SPACE";
        case PTL_PID_IN_USE: return "PID_IN_USE";
        case PTL_PT_FULL: return "PT_FULL";
        case PTL_PT_EQ_NEEDED: return "PT_EQ_NEEDED";
        case PTL_PT_IN_USE: return "PT_IN_USE";
        case PTL_ABORTED: return "ABORTED";
        case PTL_INTERRUPTED: return "INTERRUPTED";
        default: return "?";
    }
}

/* A put that requests an acknowledgement, into an entry that gives none: SEND comes, PUT comes, ACK does
 * not. */
static void silent_put(ptl_handle_ni_t ni, ptl_pt_index_t index, ptl_process_t self, ptl_handle_eq_t eq)
{
    static uint64_t  from = 7;
    ptl_handle_eq_t  mq;
    ptl_handle_ct_t  ct;
    ptl_handle_md_t  md;
    ptl_event_t      event;
    ptl_ct_event_t   counted;

    OK(PtlEQAlloc(ni, 16, &mq));
    OK(PtlCTAlloc(ni, &ct));
    ptl_md_t of = meet_md(&from, sizeof from, PTL_MD_EVENT_CT_ACK, mq, ct);
    OK(PtlMDBind(ni, &of, &md));
    OK(PtlPut(md, 0, sizeof from, PTL_ACK_REQ, self, index, 1, 0, NULL, 0));
    meet_next(mq, PTL_EVENT_SEND);
    meet_next(eq, PTL_EVENT_PUT);
    /* The next one finds no entry, and is acknowledged as that: nothing of the first one came before. */
    OK(PtlPut(md, 0, sizeof from, PTL_ACK_REQ, self, index + 1, 1, 0, &from, 0));
    meet_next(mq, PTL_EVENT_SEND);
    event = meet_next(mq, PTL_EVENT_ACK);
    CHECK(event.user_ptr == &from && event.ni_fail_type == PTL_NI_DROPPED);
    OK(PtlCTGet(ct, &counted));
    CHECK(counted.success == 0 && counted.failure == 1);
    OK(PtlMDRelease(md));
    OK(PtlCTFree(ct));
    OK(PtlEQFree(mq));
}

int main(void)
{
    static uint64_t word;
    CHECK(strcmp(name_of(PTL_INTERRUPTED), "INTERRUPTED") == 0 && strcmp(name_of(PTL_ABORTED), "ABORTED") == 0);
    CHECK((PTL_ME_ACK_DISABLE & PTL_ME_APPEND_OPTIONS_MASK) == PTL_ME_ACK_DISABLE);
    CHECK((PTL_LE_ACK_DISABLE & PTL_LE_APPEND_OPTIONS_MASK) == PTL_LE_ACK_DISABLE);
    CHECK(PTL_HEADER == 2024);

    OK(PtlInit());
    for (int matching = 0; matching < 2; matching++) {
        ptl_handle_ni_t  ni;
        ptl_handle_eq_t  eq;
        ptl_pt_index_t   index;
        ptl_process_t    self;
        ptl_handle_any_t entry;
        unsigned int     kind = matching ? PTL_NI_MATCHING : PTL_NI_NO_MATCHING;

        OK(PtlNIInit(PTL_IFACE_DEFAULT, kind | PTL_NI_PHYSICAL, PTL_PID_ANY, NULL, NULL, &ni));
        OK(PtlGetPhysId(ni, &self));
        OK(PtlEQAlloc(ni, 16, &eq));
        OK(PtlPTAlloc(ni, 0, eq, 3, &index));
        if (matching) {
            ptl_me_t me = meet_me(&word, sizeof word, 1, PTL_ME_OP_PUT | PTL_ME_ACK_DISABLE);
            me.match_id.phys.nid = PTL_NID_ANY;
            me.match_id.phys.pid = PTL_PID_ANY;
            OK(PtlMEAppend(ni, index, &me, PTL_PRIORITY_LIST, NULL, &entry));
        } else {
            ptl_le_t le = { .start     = &word,
                            .length    = sizeof word,
                            .ct_handle = PTL_CT_NONE,
                            .uid       = PTL_UID_ANY,
                            .options   = PTL_LE_OP_PUT | PTL_LE_ACK_DISABLE };
            OK(PtlLEAppend(ni, index, &le, PTL_PRIORITY_LIST, NULL, &entry));
        }
        meet_next(eq, PTL_EVENT_LINK);
        silent_put(ni, index, self, eq);
        CHECK(word == 7);
        word = 0;
        OK(matching ? PtlMEUnlink(entry) : PtlLEUnlink(entry));
        OK(PtlPTFree(ni, index));
        OK(PtlEQFree(eq));
        OK(PtlNIFini(ni));
    }
    PtlFini();
    return 0;
}
