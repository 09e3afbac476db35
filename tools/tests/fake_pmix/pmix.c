/* A libpmix of one process that fails on purpose: FAULT names where and how, RANK and SIZE are the job
 * that it reports. It has only the functions that doorbell calls, with the types of pmix_common.h,
 * versions 3 to 5. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { char nspace[256]; uint32_t rank; } proc_t;
typedef struct {
    uint16_t type;
    union { bool flag; uint16_t uint16; uint32_t uint32; char *string; struct { char *bytes; size_t size; } bo; uint64_t words[3]; } data;
} value_t;

enum { SUCCESS = 0, ERROR = -1, UNREACHABLE = -25, NOT_FOUND = -46 };

static bool fault(const char *name) {
    const char *set = getenv("FAULT");
    return set && strcmp(set, name) == 0;
}

static uint32_t number(const char *name, uint32_t otherwise) {
    const char *set = getenv(name);
    return set ? (uint32_t)strtoul(set, NULL, 10) : otherwise;
}

static void hang(void) {
    for (;;) pause();
}

int PMIx_Init(proc_t *proc, void *info, size_t ninfo) {
    (void)info; (void)ninfo;
    if (fault("init fails")) return UNREACHABLE;
    if (fault("init hangs")) hang();
    /* A name without an end, at worst. */
    memset(proc->nspace, fault("endless name") ? 'n' : 0, sizeof proc->nspace);
    if (!fault("endless name")) strcpy(proc->nspace, "fake");
    proc->rank = number("RANK", 0);
    return SUCCESS;
}

int PMIx_Finalize(const void *info, size_t ninfo) {
    (void)info; (void)ninfo;
    if (fault("finalize hangs")) hang();
    return fault("finalize fails") ? ERROR : SUCCESS;
}

int PMIx_Abort(int status, const char *msg, proc_t *procs, size_t nprocs) {
    (void)status; (void)procs; (void)nprocs;
    if (msg) (void)!write(2, msg, strlen(msg));
    if (fault("abort hangs")) hang();
    return SUCCESS;
}

int PMIx_Put(uint8_t scope, const char *key, value_t *value) {
    (void)scope; (void)key; (void)value;
    return fault("put fails") ? ERROR : SUCCESS;
}

int PMIx_Commit(void) { return fault("commit fails") ? ERROR : SUCCESS; }

int PMIx_Fence(const proc_t *procs, size_t nprocs, const void *info, size_t ninfo) {
    (void)procs; (void)nprocs; (void)info; (void)ninfo;
    if (fault("fence hangs")) hang();
    return fault("fence fails") ? ERROR : SUCCESS;
}

static value_t *made(uint16_t type) {
    value_t *value = calloc(1, sizeof *value);
    value->type = type;
    return value;
}

int PMIx_Get(const proc_t *proc, const char *key, const void *info, size_t ninfo, value_t **into) {
    (void)proc; (void)info; (void)ninfo;
    *into = NULL;
    if (strcmp(key, "pmix.job.size") == 0) {
        if (fault("no size")) return NOT_FOUND;
        *into = made(14);
        (*into)->data.uint32 = number("SIZE", 2);
        return SUCCESS;
    }
    if (strncmp(key, "doorbell.", 9) != 0) return NOT_FOUND;
    if (fault("get hangs")) hang();
    if (fault("get fails")) return ERROR;
    if (fault("get nothing")) return NOT_FOUND;
    if (fault("get null")) return SUCCESS;
    if (fault("get number")) { *into = made(14); return SUCCESS; }
    if (fault("get text")) { *into = made(3); return SUCCESS; }
    *into = made(27);
    (*into)->data.bo.bytes = strdup("{\"hello\":");
    (*into)->data.bo.size = fault("get too much") ? (size_t)1 << 40 : strlen("{\"hello\":");
    return SUCCESS;
}

int PMIx_Spawn(const void *infos, size_t ninfo, const void *apps, size_t napps, char *nspace) {
    (void)infos, (void)ninfo, (void)apps, (void)napps, (void)nspace;
    return ERROR;
}

const char *PMIx_Error_string(int status) {
    return fault("no text") ? NULL : status == UNREACHABLE ? "UNREACHABLE" : "ERROR";
}
