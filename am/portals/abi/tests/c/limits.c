/* Limits are exact, and what cannot be is refused by the right code. Runs alone. */
#include "meet.h"

int main(void)
{
    ptl_handle_ni_t ni, again, physical;
    ptl_ni_limits_t wanted, got;
    ptl_handle_md_t md[4];
    ptl_handle_ct_t ct[5];
    ptl_handle_eq_t eq[3];
    ptl_handle_me_t me[4];
    ptl_pt_index_t  index, other;
    ptl_process_t   own, map[2];
    ptl_size_t      size;
    ptl_event_t     event;
    ptl_ct_event_t  one = {1, 0};
    unsigned int    which;
    char            byte;

    IS(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING | PTL_NI_LOGICAL, PTL_PID_ANY, NULL, NULL, &ni), PTL_NO_INIT);
    OK(PtlInit());
    OK(PtlInit());
    IS(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING, PTL_PID_ANY, NULL, NULL, &ni), PTL_ARG_INVALID);
    IS(PtlNIInit(PTL_IFACE_DEFAULT, 15, PTL_PID_ANY, NULL, NULL, &ni), PTL_ARG_INVALID);
    IS(PtlNIInit(PTL_IFACE_DEFAULT, 16 | 5, PTL_PID_ANY, NULL, NULL, &ni), PTL_ARG_INVALID);
    IS(PtlNIInit(PTL_IFACE_DEFAULT, 5, PTL_PID_ANY, NULL, NULL, NULL), PTL_ARG_INVALID);
    IS(PtlNIInit(PTL_IFACE_DEFAULT, 5, PTL_PID_MAX + 1, NULL, NULL, &ni), PTL_ARG_INVALID);

    memset(&wanted, 0, sizeof wanted);
    wanted.max_entries = wanted.max_mds = 3;
    wanted.max_unexpected_headers = wanted.max_iovecs = 2;
    wanted.max_cts = 4;
    wanted.max_eqs = 2;
    wanted.max_pt_index = 100000;
    wanted.max_list_size = 2;
    wanted.max_triggered_ops = 2;
    wanted.max_msg_size = 1000;
    wanted.max_atomic_size = wanted.max_fetch_atomic_size = 64;
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING | PTL_NI_LOGICAL, PTL_PID_ANY, &wanted, &got, &ni));
    CHECK(got.max_entries == 3 && got.max_mds == 3 && got.max_cts == 4 && got.max_eqs == 2);
    CHECK(got.max_pt_index >= 63 && got.max_pt_index < 100000 && got.max_waw_ordered_size >= 64);
    CHECK(got.max_triggered_ops == 2 && got.max_msg_size == 1000 && got.max_list_size == 2);
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING | PTL_NI_LOGICAL, PTL_PID_ANY, NULL, &got, &again));
    CHECK(again == ni && got.max_mds == 3);
    OK(PtlNIFini(again));

    IS(PtlGetId(ni, &own), PTL_NO_INIT);
    OK(PtlGetPhysId(ni, &own));
    map[0] = own;
    IS(PtlSetMap(ni, PTL_SIZE_MAX, map), PTL_ARG_INVALID);
    OK(PtlSetMap(ni, 1, map));
    IS(PtlSetMap(ni, 1, map), PTL_IGNORED);
    memset(map, 0, sizeof map);
    OK(PtlGetMap(ni, 2, map, &size));
    CHECK(size == 1 && map[0].phys.nid == own.phys.nid && map[0].phys.pid == own.phys.pid);
    OK(PtlGetId(ni, map));
    CHECK(map[0].rank == 0);
    OK(PtlNIInit(0, PTL_NI_MATCHING | PTL_NI_PHYSICAL, own.phys.pid, NULL, NULL, &physical));
    IS(PtlNIInit(0, PTL_NI_NO_MATCHING | PTL_NI_PHYSICAL, 3, NULL, NULL, &again), PTL_ARG_INVALID);
    OK(PtlGetId(physical, map));
    CHECK(map[0].phys.nid == own.phys.nid && map[0].phys.pid == own.phys.pid);
    IS(PtlSetMap(physical, 1, map), PTL_ARG_INVALID);

    ptl_md_t of = meet_md(&byte, 1, 0, PTL_EQ_NONE, PTL_CT_NONE);
    for (int at = 0; at < 3; at++) OK(PtlMDBind(ni, &of, &md[at]));
    IS(PtlMDBind(ni, &of, &md[3]), PTL_NO_SPACE);
    OK(PtlMDRelease(md[1]));
    IS(PtlMDRelease(md[1]), PTL_ARG_INVALID);
    OK(PtlMDBind(ni, &of, &md[1]));
    of.options = 1u << 20;
    IS(PtlMDBind(ni, &of, &md[3]), PTL_ARG_INVALID);
    IS(PtlMDBind(ni, NULL, &md[3]), PTL_ARG_INVALID);
    for (int at = 0; at < 4; at++) OK(PtlCTAlloc(ni, &ct[at]));
    IS(PtlCTAlloc(ni, &ct[4]), PTL_NO_SPACE);
    for (int at = 0; at < 2; at++) OK(PtlEQAlloc(ni, 4, &eq[at]));
    IS(PtlEQAlloc(ni, 4, &eq[2]), PTL_NO_SPACE);
    OK(PtlTriggeredCTInc(ct[1], one, ct[0], 1));
    OK(PtlTriggeredCTInc(ct[1], one, ct[0], 1));
    IS(PtlTriggeredCTInc(ct[1], one, ct[0], 1), PTL_NO_SPACE);
    OK(PtlTriggeredCTInc(ct[1], one, ct[2], 1));

    OK(PtlPTAlloc(ni, 0, eq[0], 7, &index));
    IS(PtlPTAlloc(ni, 0, eq[0], 7, &other), PTL_PT_IN_USE);
    IS(PtlPTAlloc(ni, 1u << 9, eq[0], 8, &other), PTL_ARG_INVALID);
    IS(PtlPTAlloc(ni, 0, ct[0], 8, &other), PTL_ARG_INVALID);
    ptl_me_t entry = meet_me(&byte, 1, 0, PTL_ME_OP_PUT | PTL_ME_EVENT_LINK_DISABLE);
    for (int at = 0; at < 2; at++) OK(PtlMEAppend(ni, index, &entry, PTL_PRIORITY_LIST, NULL, &me[at]));
    IS(PtlMEAppend(ni, index, &entry, PTL_PRIORITY_LIST, NULL, &me[2]), PTL_LIST_TOO_LONG);
    OK(PtlMEAppend(ni, index, &entry, PTL_OVERFLOW_LIST, NULL, &me[2]));
    IS(PtlMEAppend(ni, index, &entry, PTL_OVERFLOW_LIST, NULL, &me[3]), PTL_NO_SPACE);
    IS(PtlMEAppend(ni, index, &entry, 2, NULL, &me[3]), PTL_ARG_INVALID);
    IS(PtlMEAppend(ni, index + 1, &entry, 0, NULL, &me[3]), PTL_ARG_INVALID);
    IS(PtlPTFree(ni, index), PTL_PT_IN_USE);

    /* Handles: whose they are, and what is none. */
    OK(PtlNIHandle(md[0], &again));
    CHECK(again == ni && PtlHandleIsEqual(ni, again) && !PtlHandleIsEqual(ni, physical));
    ptl_handle_any_t wrong[] = {PTL_EQ_NONE, PTL_CT_NONE, PTL_INVALID_HANDLE, 0, 1, ni ^ 4, md[0] ^ 0x8000};
    for (size_t at = 0; at < sizeof wrong / sizeof wrong[0]; at++) {
        IS(PtlCTGet(wrong[at], &one), PTL_ARG_INVALID);
        IS(PtlEQGet(wrong[at], &event), PTL_ARG_INVALID);
        IS(PtlEQFree(wrong[at]), PTL_ARG_INVALID);
        IS(PtlMDRelease(wrong[at]), PTL_ARG_INVALID);
        IS(PtlMEUnlink(wrong[at]), PTL_ARG_INVALID);
        IS(PtlNIFini(wrong[at]), PTL_ARG_INVALID);
        IS(PtlPut(wrong[at], 0, 1, 0, map[0], index, 0, 0, NULL, 0), PTL_ARG_INVALID);
    }
    IS(PtlEQGet(eq[0], NULL), PTL_ARG_INVALID);
    IS(PtlEQGet(eq[0], &event), PTL_EQ_EMPTY);
    IS(PtlEQPoll(eq, 2, 10, &event, &which), PTL_EQ_EMPTY);
    IS(PtlEQPoll(eq, 0, 10, &event, &which), PTL_ARG_INVALID);
    ptl_size_t tests[2] = {1, 1};
    IS(PtlCTPoll(ct, tests, 2, 10, &one, &which), PTL_CT_NONE_REACHED);
    tests[1] = 0;
    OK(PtlCTPoll(ct, tests, 2, 10, &one, &which));
    CHECK(which == 1);
    IS(PtlPut(md[0], 0, 1, 9, map[0], index, 0, 0, NULL, 0), PTL_ARG_INVALID);
    IS(PtlPut(md[0], 0, 2, 0, map[0], index, 0, 0, NULL, 0), PTL_ARG_INVALID);

    /* To itself: a queue of four tells that more have come. */
    map[0].rank = 0;
    for (int at = 0; at < 9; at++) OK(PtlPut(md[0], 0, 1, 0, map[0], index, 0, 0, NULL, (ptl_hdr_data_t)at));
    for (int at = 0; at < 1000; at++) IS(PtlEQGet(eq[1], &event), PTL_EQ_EMPTY);
    IS(PtlEQWait(eq[0], &event), PTL_EQ_DROPPED);
    ptl_hdr_data_t last = event.hdr_data;
    while (PtlEQGet(eq[0], &event) == PTL_OK) {
        CHECK(event.hdr_data == last + 1);
        last = event.hdr_data;
    }
    CHECK(last == 8);

    OK(PtlStartBundle(ni));
    OK(PtlEndBundle(ni));
    /* What is left does not hinder the end. */
    OK(PtlNIFini(ni));
    IS(PtlNIFini(ni), PTL_ARG_INVALID);
    IS(PtlCTGet(ct[0], &one), PTL_ARG_INVALID);
    OK(PtlNIFini(physical));
    PtlFini();
    /* And once more. */
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_NO_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, NULL, NULL, &ni));
    OK(PtlGetId(ni, &own));
    PtlFini();
    IS(PtlGetId(ni, &own), PTL_NO_INIT);
    OK(PtlInit());
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_NO_MATCHING | PTL_NI_PHYSICAL, 77, NULL, NULL, &ni));
    OK(PtlGetId(ni, &own));
    CHECK(own.phys.pid == 77);
    /* A child has no interface, and hurts nobody. */
    pid_t child = fork();
    if (child == 0) _exit(PtlGetId(ni, &own) == PTL_FAIL ? 0 : 1);
    CHECK(child > 0);
    int status = 1;
    extern pid_t waitpid(pid_t, int *, int);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    OK(PtlGetId(ni, &own));
    return 0;
}
