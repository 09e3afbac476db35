/* Shared by the test programs: checks that print where they failed, and a PMI-1 client for the launcher,
 * which every Portals program has of its own. Without a launcher, a program is rank 0 of 1. */
#ifndef MEET_H
#define MEET_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "portals4.h"

static int meet_rank, meet_size = 1, meet_fd = -1, meet_maps;
static char meet_job[300];

#define CHECK(what)                                                                                                  \
    do {                                                                                                             \
        if (!(what)) {                                                                                               \
            fprintf(stderr, "rank %d, %s:%d: not so: %s\n", meet_rank, __FILE__, __LINE__, #what);                   \
            exit(1);                                                                                                 \
        }                                                                                                            \
    } while (0)

/* A call returns this. */
#define IS(call, code)                                                                                               \
    do {                                                                                                             \
        int is = (call);                                                                                             \
        if (is != (code)) {                                                                                          \
            fprintf(stderr, "rank %d, %s:%d: %s is %d and not %s\n", meet_rank, __FILE__, __LINE__, #call, is,       \
                    #code);                                                                                          \
            exit(1);                                                                                                 \
        }                                                                                                            \
    } while (0)

#define OK(call) IS(call, PTL_OK)

/* One turn of the conversation: a line there, a line back. */
static void meet_turn(char *answer, size_t room, const char *format, ...)
{
    char    line[1100];
    size_t  length, done = 0;
    va_list words;

    va_start(words, format);
    length = (size_t)vsnprintf(line, sizeof line, format, words);
    va_end(words);
    CHECK(length < sizeof line);
    while (done < length) {
        ssize_t wrote = write(meet_fd, line + done, length - done);
        CHECK(wrote > 0);
        done += (size_t)wrote;
    }
    for (done = 0; done + 1 < room; done++) {
        CHECK(read(meet_fd, answer + done, 1) == 1);
        if (answer[done] == '\n') break;
    }
    answer[done] = 0;
}

static void meet_init(void)
{
    char        answer[1100];
    const char *fd = getenv("PMI_FD"), *rank = getenv("PMI_RANK"), *size = getenv("PMI_SIZE");

    if (!fd || !rank || !size) return;
    meet_fd   = atoi(fd);
    meet_rank = atoi(rank);
    meet_size = atoi(size);
    meet_turn(answer, sizeof answer, "cmd=init pmi_version=1 pmi_subversion=1\n");
    CHECK(strstr(answer, "rc=0"));
    meet_turn(answer, sizeof answer, "cmd=get_my_kvsname\n");
    CHECK(sscanf(answer, "cmd=my_kvsname kvsname=%255s", meet_job) == 1);
}

static void meet_barrier(void)
{
    char answer[100];

    if (meet_fd < 0) return;
    meet_turn(answer, sizeof answer, "cmd=barrier_in\n");
    CHECK(strstr(answer, "barrier_out"));
}

/* Everybody's process. */
static ptl_process_t *meet_all(ptl_handle_ni_t ni)
{
    char           answer[1100];
    ptl_process_t *all = calloc((size_t)meet_size, sizeof *all), own;
    int            map = meet_maps++;

    OK(PtlGetPhysId(ni, &own));
    all[meet_rank] = own;
    if (meet_fd < 0) return all;
    meet_turn(answer, sizeof answer, "cmd=put kvsname=%s key=m%d-%d value=%u.%u\n", meet_job, map, meet_rank,
              own.phys.nid, own.phys.pid);
    meet_barrier();
    for (int rank = 0; rank < meet_size; rank++) {
        char *value;
        meet_turn(answer, sizeof answer, "cmd=get kvsname=%s key=m%d-%d\n", meet_job, map, rank);
        value = strstr(answer, "value=");
        CHECK(value && sscanf(value, "value=%u.%u", &all[rank].phys.nid, &all[rank].phys.pid) == 2);
    }
    return all;
}

/* A logical interface with its map. */
static ptl_handle_ni_t meet_logical(unsigned int matching)
{
    ptl_handle_ni_t ni;
    ptl_process_t  *all;

    OK(PtlNIInit(PTL_IFACE_DEFAULT, matching | PTL_NI_LOGICAL, PTL_PID_ANY, NULL, NULL, &ni));
    all = meet_all(ni);
    OK(PtlSetMap(ni, (ptl_size_t)meet_size, all));
    free(all);
    return ni;
}

static void meet_end(void)
{
    char answer[100];

    if (meet_fd < 0) return;
    meet_turn(answer, sizeof answer, "cmd=finalize\n");
    close(meet_fd);
}

static ptl_process_t meet_peer(int rank)
{
    ptl_process_t peer;

    memset(&peer, 0xee, sizeof peer);
    peer.rank = (ptl_rank_t)rank;
    return peer;
}

static ptl_ct_event_t meet_reach(ptl_handle_ct_t ct, ptl_size_t test)
{
    ptl_ct_event_t count;

    OK(PtlCTWait(ct, test, &count));
    return count;
}

static ptl_event_t meet_next(ptl_handle_eq_t eq, ptl_event_kind_t type)
{
    ptl_event_t  event;
    unsigned int which;

    OK(PtlEQPoll(&eq, 1, 20000, &event, &which));
    CHECK(which == 0);
    if (event.type != type) {
        fprintf(stderr, "rank %d: event %d came and not %d\n", meet_rank, event.type, type);
        exit(1);
    }
    return event;
}

static ptl_me_t meet_me(void *start, ptl_size_t length, ptl_match_bits_t bits, unsigned int options)
{
    ptl_me_t me;

    memset(&me, 0, sizeof me);
    me.start         = start;
    me.length        = length;
    me.ct_handle     = PTL_CT_NONE;
    me.uid           = PTL_UID_ANY;
    me.options       = options;
    me.match_id.rank = PTL_RANK_ANY;
    me.match_bits    = bits;
    return me;
}

static ptl_md_t meet_md(void *start, ptl_size_t length, unsigned int options, ptl_handle_eq_t eq, ptl_handle_ct_t ct)
{
    ptl_md_t md = {start, length, options, eq, ct};
    return md;
}

#endif
