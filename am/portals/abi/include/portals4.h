/*
 * portals4.h: the C interface of doorbell's libportals.
 *
 * Names, numbers and layouts are those of Portals 4 as Sandia's header has had them since May 2024, so
 * that programs written for it compile and link unchanged. Names of older headers are here, too, with
 * numbers of their own. The comments describe the calls in short; README.md beside this folder describes
 * how this library makes progress, how processes meet, and which headers are binary compatible.
 *
 * Every function returns PTL_OK or one of the codes of ptl_return. None of them changes anything when it
 * fails, except PtlNIFini with PTL_IN_USE: the interface has ended, but memory of its descriptors is
 * still being written after ten seconds.
 *
 * Environment: PTL_LIM_* (numbers) are the limits of a program that requests none; PTL_PROGRESS_THREAD=0
 * leaves progress to calls. An invalid value makes PtlNIInit fail with PTL_FAIL, and a line on the
 * standard error names the variable.
 */
#ifndef PORTALS4_H
#define PORTALS4_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---------------------------------------------------------------- return codes */

enum ptl_return {
    PTL_OK              = 0,  /* success */
    PTL_ARG_INVALID     = 1,  /* an invalid handle, pointer, option or index */
    PTL_CT_NONE_REACHED = 2,  /* PtlCTPoll: the time is up */
    PTL_EQ_DROPPED      = 3,  /* an event, but earlier ones were lost */
    PTL_EQ_EMPTY        = 4,  /* there is no event */
    PTL_FAIL            = 5,  /* any error without a code of its own */
    PTL_IGNORED         = 6,  /* it was set before, and is unchanged */
    PTL_IN_USE          = 7,  /* operations or headers still refer to it */
    PTL_LIST_TOO_LONG   = 8,  /* max_list_size entries are on this list */
    PTL_NO_INIT         = 9,  /* PtlInit, PtlNIInit or PtlSetMap has to come first */
    PTL_NO_SPACE        = 10, /* a limit of the interface is reached */
    PTL_PID_IN_USE      = 11, /* another process of this node has that process id */
    PTL_PT_FULL         = 12, /* no portal table entry is free */
    PTL_PT_EQ_NEEDED    = 13, /* flow control needs an event queue */
    PTL_PT_IN_USE       = 14, /* this portal table entry is taken, or not empty */
    PTL_ABORTED         = 15, /* PtlAbort has ended the wait */
    PTL_INTERRUPTED     = 16  /* of headers before October 2023; no call returns it */
};
#define PTL_STATUS_LAST (PTL_PT_IN_USE + 1)

/* ---------------------------------------------------------------- base types */

typedef uint64_t     ptl_size_t;
typedef uint64_t     ptl_match_bits_t;
typedef uint64_t     ptl_hdr_data_t;
typedef uint32_t     ptl_pt_index_t;
typedef uint32_t     ptl_nid_t;
typedef uint32_t     ptl_pid_t;
typedef uint32_t     ptl_rank_t;
typedef uint32_t     ptl_uid_t;
typedef unsigned int ptl_interface_t;
typedef unsigned int ptl_time_t; /* milliseconds */

typedef uint32_t         ptl_handle_any_t;
typedef ptl_handle_any_t ptl_handle_ni_t;
typedef ptl_handle_any_t ptl_handle_eq_t;
typedef ptl_handle_any_t ptl_handle_ct_t;
typedef ptl_handle_any_t ptl_handle_md_t;
typedef ptl_handle_any_t ptl_handle_le_t;
typedef ptl_handle_any_t ptl_handle_me_t;

typedef unsigned char ptl_ni_fail_t;
typedef unsigned char ptl_list_t;
typedef unsigned char ptl_search_op_t;
typedef unsigned char ptl_ack_req_t;
typedef unsigned char ptl_op_t;
typedef unsigned char ptl_datatype_t;
typedef unsigned char ptl_event_kind_t;

/* A process: a rank on a logical interface, a node and a process id on a physical one. */
typedef union {
    ptl_rank_t rank;
    struct {
        ptl_nid_t nid;
        ptl_pid_t pid;
    } phys;
} ptl_process_t;

/* One piece of memory of several. */
typedef struct {
    void      *iov_base;
    ptl_size_t iov_len;
} ptl_iovec_t;

#define PTL_EQ_NONE        ((ptl_handle_eq_t)0x3fffffffu)
#define PTL_CT_NONE        ((ptl_handle_ct_t)0x5fffffffu)
#define PTL_INVALID_HANDLE ((ptl_handle_any_t)0xffffffffu)
#define PTL_IFACE_DEFAULT  ((ptl_interface_t)0xffffffffu)
#define PTL_PID_ANY        ((ptl_pid_t)0xffffu)
#define PTL_PID_MAX        ((ptl_pid_t)1024u)
#define PTL_NID_ANY        ((ptl_nid_t)0xffffu)
#define PTL_UID_ANY        ((ptl_uid_t)0xffffffffu)
#define PTL_PT_ANY         ((ptl_pt_index_t)0xffffffffu)
#define PTL_RANK_ANY       ((ptl_rank_t)0xffffffffu)
#define PTL_TIME_FOREVER   ((ptl_time_t)0xffffffffu)
#define PTL_SIZE_MAX       ((ptl_size_t)0xffffffffffffffffull)

/* An option of MDs, LEs and MEs: start is an array of ptl_iovec_t, and length the number of its elements. */
#define PTL_IOVEC 1u

/* ---------------------------------------------------------------- the library */

/* The version of the numbers that a program was compiled with: the library tells by the name of its first
 * call. */
#define PTL_HEADER 2024
#ifdef __GNUC__
#define PTL_NAMED(name) __asm__(name)
#else
#define PTL_NAMED(name)
#endif

/* Counted: the library ends with as many PtlFini as there were PtlInit. */
int  PtlInit(void) PTL_NAMED("PtlInit_2024");
void PtlFini(void);
/* Ends every wait and poll in progress in this process, with PTL_ABORTED. */
void PtlAbort(void);

/* ---------------------------------------------------------------- network interfaces */

/* One of the first two, and one of the last two. */
#define PTL_NI_MATCHING          (1u << 0)
#define PTL_NI_NO_MATCHING       (1u << 1)
#define PTL_NI_LOGICAL           (1u << 2)
#define PTL_NI_PHYSICAL          (1u << 3)
#define PTL_NI_INIT_OPTIONS_MASK 0xfu

/* How an operation ended (ni_fail_type of an event). */
#define PTL_NI_OK             0
#define PTL_NI_UNDELIVERABLE  1
#define PTL_NI_DROPPED        2
#define PTL_NI_PT_DISABLED    3
#define PTL_NI_PERM_VIOLATION 4
#define PTL_NI_OP_VIOLATION   5
#define PTL_NI_NO_MATCH       6
#define PTL_NI_SEGV           7

/* Bits of ptl_ni_limits_t.features. */
#define PTL_TARGET_BIND_INACCESSIBLE (1u << 0)
#define PTL_TOTAL_DATA_ORDERING      (1u << 1)
#define PTL_COHERENT_ATOMICS         (1u << 2)

/* What an interface can hold. Each is exact: one more is refused. */
typedef struct {
    int          max_entries;
    int          max_unexpected_headers;
    int          max_mds;
    int          max_cts;
    int          max_eqs;
    int          max_pt_index; /* the largest index of the portal table */
    int          max_iovecs;
    int          max_list_size;
    int          max_triggered_ops; /* of one counting event */
    ptl_size_t   max_msg_size;
    ptl_size_t   max_atomic_size;
    ptl_size_t   max_fetch_atomic_size;
    ptl_size_t   max_waw_ordered_size;
    ptl_size_t   max_war_ordered_size;
    ptl_size_t   max_volatile_size;
    unsigned int features;
} ptl_ni_limits_t;

/* Status registers. */
typedef enum {
    PTL_SR_DROP_COUNT            = 0,
    PTL_SR_PERMISSION_VIOLATIONS = 1,
    PTL_SR_OPERATION_VIOLATIONS  = 2
} ptl_sr_index_t;
#define PTL_SR_LAST (PTL_SR_OPERATION_VIOLATIONS + 1)
typedef int ptl_sr_value_t;

/* Counted per kind: a second call for a kind returns the first one's handle, whatever it requests.
 * desired and actual may be NULL. */
int PtlNIInit(ptl_interface_t iface, unsigned int options, ptl_pid_t pid, const ptl_ni_limits_t *desired,
              ptl_ni_limits_t *actual, ptl_handle_ni_t *ni_handle);
/* The last of a kind waits until no memory of its descriptors is written any more, for ten seconds at
 * most. */
int PtlNIFini(ptl_handle_ni_t ni_handle);
int PtlNIStatus(ptl_handle_ni_t ni_handle, ptl_sr_index_t status_register, ptl_sr_value_t *status);
/* The interface that a handle belongs to. */
int PtlNIHandle(ptl_handle_any_t handle, ptl_handle_ni_t *ni_handle);

/* Sets the process of each rank: once per interface; PTL_IGNORED later. */
int PtlSetMap(ptl_handle_ni_t ni_handle, ptl_size_t map_size, const ptl_process_t *mapping);
int PtlGetMap(ptl_handle_ni_t ni_handle, ptl_size_t map_size, ptl_process_t *mapping, ptl_size_t *actual_map_size);

int PtlGetUid(ptl_handle_ni_t ni_handle, ptl_uid_t *uid);
int PtlGetId(ptl_handle_ni_t ni_handle, ptl_process_t *id);
int PtlGetPhysId(ptl_handle_ni_t ni_handle, ptl_process_t *id);

/* ---------------------------------------------------------------- the portal table */

#define PTL_PT_ONLY_USE_ONCE      (1u << 0) /* a promise: every entry is used once */
#define PTL_PT_FLOWCTRL           (1u << 1) /* a message without room disables the entry and is not dropped */
#define PTL_PT_ONLY_TRUNCATE      (1u << 2) /* a promise: entries truncate and never refuse */
#define PTL_PT_MATCH_UNORDERED    (1u << 3) /* messages need not be matched in the order of their sending */
#define PTL_PT_ALLOC_DISABLED     (1u << 4) /* begins disabled */
#define PTL_PT_ALLOC_OPTIONS_MASK 0x1fu

int PtlPTAlloc(ptl_handle_ni_t ni_handle, unsigned int options, ptl_handle_eq_t eq_handle,
               ptl_pt_index_t pt_index_req, ptl_pt_index_t *pt_index);
int PtlPTFree(ptl_handle_ni_t ni_handle, ptl_pt_index_t pt_index);
/* Returns when operations in progress there have ended. */
int PtlPTDisable(ptl_handle_ni_t ni_handle, ptl_pt_index_t pt_index);
int PtlPTEnable(ptl_handle_ni_t ni_handle, ptl_pt_index_t pt_index);

/* ---------------------------------------------------------------- memory descriptors (initiator) */

#define PTL_MD_EVENT_CT_SEND         (1u << 1)
#define PTL_MD_EVENT_CT_REPLY        (1u << 2)
#define PTL_MD_EVENT_CT_ACK          (1u << 3)
#define PTL_MD_UNORDERED             (1u << 4)
#define PTL_MD_EVENT_SUCCESS_DISABLE (1u << 5)
#define PTL_MD_VOLATILE              (1u << 6) /* up to max_volatile_size bytes may be changed when the call returns */
#define PTL_MD_EVENT_SEND_DISABLE    (1u << 7)
#define PTL_MD_UNRELIABLE            (1u << 8)
#define PTL_MD_EVENT_CT_BYTES        (1u << 14)
#define PTL_MD_OPTIONS_MASK          0x41ffu

typedef struct {
    void           *start;
    ptl_size_t      length;
    unsigned int    options;
    ptl_handle_eq_t eq_handle;
    ptl_handle_ct_t ct_handle;
} ptl_md_t;

int PtlMDBind(ptl_handle_ni_t ni_handle, const ptl_md_t *md, ptl_handle_md_t *md_handle);
int PtlMDRelease(ptl_handle_md_t md_handle);

/* ---------------------------------------------------------------- list and match entries (target) */

#define PTL_PRIORITY_LIST 0
#define PTL_OVERFLOW_LIST 1

#define PTL_SEARCH_ONLY   0
#define PTL_SEARCH_DELETE 1

#define PTL_ME_OP_PUT                 (1u << 1)
#define PTL_ME_OP_GET                 (1u << 2)
#define PTL_ME_USE_ONCE               (1u << 3)
#define PTL_ME_UNEXPECTED_HDR_DISABLE (1u << 4)
#define PTL_ME_IS_ACCESSIBLE          (1u << 5)
#define PTL_ME_EVENT_LINK_DISABLE     (1u << 6)
#define PTL_ME_EVENT_COMM_DISABLE     (1u << 7)
#define PTL_ME_EVENT_FLOWCTRL_DISABLE (1u << 8)
#define PTL_ME_EVENT_SUCCESS_DISABLE  (1u << 9)
#define PTL_ME_EVENT_OVER_DISABLE     (1u << 10)
#define PTL_ME_EVENT_UNLINK_DISABLE   (1u << 11)
#define PTL_ME_EVENT_CT_COMM          (1u << 12)
#define PTL_ME_EVENT_CT_OVERFLOW      (1u << 13)
#define PTL_ME_EVENT_CT_BYTES         (1u << 14)
#define PTL_ME_ACK_DISABLE            (1u << 19) /* of headers before May 2024: no acknowledgement */
/* Of match entries only. */
#define PTL_ME_MANAGE_LOCAL           (1u << 15) /* the entry places messages one behind the other */
#define PTL_ME_NO_TRUNCATE            (1u << 16) /* messages that do not fit skip it */
#define PTL_ME_MAY_ALIGN              (1u << 17)
#define PTL_ME_LOCAL_INC_UH_RLENGTH   (1u << 18)
#define PTL_ME_APPEND_OPTIONS_MASK    0xfffffu

#define PTL_LE_OP_PUT                 PTL_ME_OP_PUT
#define PTL_LE_OP_GET                 PTL_ME_OP_GET
#define PTL_LE_USE_ONCE               PTL_ME_USE_ONCE
#define PTL_LE_UNEXPECTED_HDR_DISABLE PTL_ME_UNEXPECTED_HDR_DISABLE
#define PTL_LE_IS_ACCESSIBLE          PTL_ME_IS_ACCESSIBLE
#define PTL_LE_EVENT_LINK_DISABLE     PTL_ME_EVENT_LINK_DISABLE
#define PTL_LE_EVENT_COMM_DISABLE     PTL_ME_EVENT_COMM_DISABLE
#define PTL_LE_EVENT_FLOWCTRL_DISABLE PTL_ME_EVENT_FLOWCTRL_DISABLE
#define PTL_LE_EVENT_SUCCESS_DISABLE  PTL_ME_EVENT_SUCCESS_DISABLE
#define PTL_LE_EVENT_OVER_DISABLE     PTL_ME_EVENT_OVER_DISABLE
#define PTL_LE_EVENT_UNLINK_DISABLE   PTL_ME_EVENT_UNLINK_DISABLE
#define PTL_LE_EVENT_CT_COMM          PTL_ME_EVENT_CT_COMM
#define PTL_LE_EVENT_CT_OVERFLOW      PTL_ME_EVENT_CT_OVERFLOW
#define PTL_LE_EVENT_CT_BYTES         PTL_ME_EVENT_CT_BYTES
#define PTL_LE_ACK_DISABLE            PTL_ME_ACK_DISABLE
#define PTL_LE_APPEND_OPTIONS_MASK    0x87fffu

typedef struct {
    void           *start;
    ptl_size_t      length;
    ptl_handle_ct_t ct_handle;
    ptl_uid_t       uid;
    unsigned int    options;
} ptl_le_t;

typedef struct {
    void            *start;
    ptl_size_t       length;
    ptl_handle_ct_t  ct_handle;
    ptl_uid_t        uid;
    unsigned int     options;
    ptl_process_t    match_id;
    ptl_match_bits_t match_bits;
    ptl_match_bits_t ignore_bits;
    ptl_size_t       min_free; /* with PTL_ME_MANAGE_LOCAL: unlinked when fewer bytes are free; 0: never */
} ptl_me_t;

int PtlLEAppend(ptl_handle_ni_t ni_handle, ptl_pt_index_t pt_index, const ptl_le_t *le, ptl_list_t ptl_list,
                void *user_ptr, ptl_handle_le_t *le_handle);
int PtlLEUnlink(ptl_handle_le_t le_handle);
int PtlLESearch(ptl_handle_ni_t ni_handle, ptl_pt_index_t pt_index, const ptl_le_t *le,
                ptl_search_op_t ptl_search_op, void *user_ptr);
int PtlMEAppend(ptl_handle_ni_t ni_handle, ptl_pt_index_t pt_index, const ptl_me_t *me, ptl_list_t ptl_list,
                void *user_ptr, ptl_handle_me_t *me_handle);
int PtlMEUnlink(ptl_handle_me_t me_handle);
int PtlMESearch(ptl_handle_ni_t ni_handle, ptl_pt_index_t pt_index, const ptl_me_t *me,
                ptl_search_op_t ptl_search_op, void *user_ptr);

/* ---------------------------------------------------------------- event queues */

#define PTL_EVENT_GET                   0
#define PTL_EVENT_GET_OVERFLOW          1
#define PTL_EVENT_PUT                   2
#define PTL_EVENT_PUT_OVERFLOW          3
#define PTL_EVENT_ATOMIC                4
#define PTL_EVENT_ATOMIC_OVERFLOW       5
#define PTL_EVENT_FETCH_ATOMIC          6
#define PTL_EVENT_FETCH_ATOMIC_OVERFLOW 7
#define PTL_EVENT_REPLY                 8
#define PTL_EVENT_SEND                  9
#define PTL_EVENT_ACK                   10
#define PTL_EVENT_PT_DISABLED           11
#define PTL_EVENT_LINK                  12
#define PTL_EVENT_AUTO_UNLINK           13
#define PTL_EVENT_AUTO_FREE             14
#define PTL_EVENT_SEARCH                15

typedef struct {
    void            *start;
    void            *user_ptr;
    ptl_hdr_data_t   hdr_data;
    ptl_match_bits_t match_bits;
    ptl_size_t       rlength; /* requested */
    ptl_size_t       mlength; /* moved */
    ptl_size_t       remote_offset;
    ptl_process_t    initiator;
    ptl_uid_t        uid;
    ptl_pt_index_t   pt_index;
    ptl_event_kind_t type;
    ptl_list_t       ptl_list;
    ptl_ni_fail_t    ni_fail_type;
    ptl_op_t         atomic_operation;
    ptl_datatype_t   atomic_type;
} ptl_event_t;

int PtlEQAlloc(ptl_handle_ni_t ni_handle, ptl_size_t count, ptl_handle_eq_t *eq_handle);
int PtlEQFree(ptl_handle_eq_t eq_handle);
int PtlEQGet(ptl_handle_eq_t eq_handle, ptl_event_t *event);
int PtlEQWait(ptl_handle_eq_t eq_handle, ptl_event_t *event);
int PtlEQPoll(const ptl_handle_eq_t *eq_handles, unsigned int size, ptl_time_t timeout, ptl_event_t *event,
              unsigned int *which);

/* ---------------------------------------------------------------- counting events */

typedef struct {
    ptl_size_t success;
    ptl_size_t failure;
} ptl_ct_event_t;

typedef enum {
    PTL_CT_OPERATION = 0,
    PTL_CT_BYTE      = 1
} ptl_ct_type_t;

int PtlCTAlloc(ptl_handle_ni_t ni_handle, ptl_handle_ct_t *ct_handle);
int PtlCTFree(ptl_handle_ct_t ct_handle);
int PtlCTCancelTriggered(ptl_handle_ct_t ct_handle);
int PtlCTGet(ptl_handle_ct_t ct_handle, ptl_ct_event_t *event);
/* Return when success + failure has reached the test, or anything has failed. */
int PtlCTWait(ptl_handle_ct_t ct_handle, ptl_size_t test, ptl_ct_event_t *event);
int PtlCTPoll(const ptl_handle_ct_t *ct_handles, const ptl_size_t *tests, unsigned int size, ptl_time_t timeout,
              ptl_ct_event_t *event, unsigned int *which);
int PtlCTSet(ptl_handle_ct_t ct_handle, ptl_ct_event_t new_ct);
int PtlCTInc(ptl_handle_ct_t ct_handle, ptl_ct_event_t increment);

/* ---------------------------------------------------------------- data movement */

#define PTL_NO_ACK_REQ 0
#define PTL_ACK_REQ    1 /* an event with length and offset */
#define PTL_CT_ACK_REQ 2 /* a count */
#define PTL_OC_ACK_REQ 3 /* a count: it was done at the target */

int PtlPut(ptl_handle_md_t md_handle, ptl_size_t local_offset, ptl_size_t length, ptl_ack_req_t ack_req,
           ptl_process_t target_id, ptl_pt_index_t pt_index, ptl_match_bits_t match_bits, ptl_size_t remote_offset,
           void *user_ptr, ptl_hdr_data_t hdr_data);
int PtlGet(ptl_handle_md_t md_handle, ptl_size_t local_offset, ptl_size_t length, ptl_process_t target_id,
           ptl_pt_index_t pt_index, ptl_match_bits_t match_bits, ptl_size_t remote_offset, void *user_ptr);

#define PTL_MIN      0
#define PTL_MAX      1
#define PTL_SUM      2
#define PTL_PROD     3
#define PTL_LOR      4
#define PTL_LAND     5
#define PTL_BOR      6
#define PTL_BAND     7
#define PTL_LXOR     8
#define PTL_BXOR     9
/* Of PtlSwap only. The conditional ones compare the operand with what is at the target. */
#define PTL_SWAP     10
#define PTL_CSWAP    11
#define PTL_CSWAP_NE 12
#define PTL_CSWAP_LE 13
#define PTL_CSWAP_LT 14
#define PTL_CSWAP_GE 15
#define PTL_CSWAP_GT 16
#define PTL_MSWAP    17
#define PTL_OP_LAST  18

#define PTL_INT8_T              0
#define PTL_UINT8_T             1
#define PTL_INT16_T             2
#define PTL_UINT16_T            3
#define PTL_INT32_T             4
#define PTL_UINT32_T            5
#define PTL_FLOAT               6
#define PTL_INT64_T             7
#define PTL_UINT64_T            8
#define PTL_DOUBLE              9
#define PTL_FLOAT_COMPLEX       10
#define PTL_DOUBLE_COMPLEX      11
#define PTL_LONG_DOUBLE         12
#define PTL_LONG_DOUBLE_COMPLEX 13
#define PTL_DATATYPE_LAST       14

int PtlAtomic(ptl_handle_md_t md_handle, ptl_size_t local_offset, ptl_size_t length, ptl_ack_req_t ack_req,
              ptl_process_t target_id, ptl_pt_index_t pt_index, ptl_match_bits_t match_bits,
              ptl_size_t remote_offset, void *user_ptr, ptl_hdr_data_t hdr_data, ptl_op_t operation,
              ptl_datatype_t datatype);
int PtlFetchAtomic(ptl_handle_md_t get_md_handle, ptl_size_t local_get_offset, ptl_handle_md_t put_md_handle,
                   ptl_size_t local_put_offset, ptl_size_t length, ptl_process_t target_id,
                   ptl_pt_index_t pt_index, ptl_match_bits_t match_bits, ptl_size_t remote_offset, void *user_ptr,
                   ptl_hdr_data_t hdr_data, ptl_op_t operation, ptl_datatype_t datatype);
int PtlSwap(ptl_handle_md_t get_md_handle, ptl_size_t local_get_offset, ptl_handle_md_t put_md_handle,
            ptl_size_t local_put_offset, ptl_size_t length, ptl_process_t target_id, ptl_pt_index_t pt_index,
            ptl_match_bits_t match_bits, ptl_size_t remote_offset, void *user_ptr, ptl_hdr_data_t hdr_data,
            const void *operand, ptl_op_t operation, ptl_datatype_t datatype);
/* What atomics have done to memory can be read by the processor, and the other way round. */
int PtlAtomicSync(void);

/* ---------------------------------------------------------------- triggered operations */

/* Done when success + failure of trig_ct_handle reaches the threshold; at once if it has. */
int PtlTriggeredPut(ptl_handle_md_t md_handle, ptl_size_t local_offset, ptl_size_t length, ptl_ack_req_t ack_req,
                    ptl_process_t target_id, ptl_pt_index_t pt_index, ptl_match_bits_t match_bits,
                    ptl_size_t remote_offset, void *user_ptr, ptl_hdr_data_t hdr_data,
                    ptl_handle_ct_t trig_ct_handle, ptl_size_t threshold);
int PtlTriggeredGet(ptl_handle_md_t md_handle, ptl_size_t local_offset, ptl_size_t length,
                    ptl_process_t target_id, ptl_pt_index_t pt_index, ptl_match_bits_t match_bits,
                    ptl_size_t remote_offset, void *user_ptr, ptl_handle_ct_t trig_ct_handle,
                    ptl_size_t threshold);
int PtlTriggeredAtomic(ptl_handle_md_t md_handle, ptl_size_t local_offset, ptl_size_t length,
                       ptl_ack_req_t ack_req, ptl_process_t target_id, ptl_pt_index_t pt_index,
                       ptl_match_bits_t match_bits, ptl_size_t remote_offset, void *user_ptr,
                       ptl_hdr_data_t hdr_data, ptl_op_t operation, ptl_datatype_t datatype,
                       ptl_handle_ct_t trig_ct_handle, ptl_size_t threshold);
int PtlTriggeredFetchAtomic(ptl_handle_md_t get_md_handle, ptl_size_t local_get_offset,
                            ptl_handle_md_t put_md_handle, ptl_size_t local_put_offset, ptl_size_t length,
                            ptl_process_t target_id, ptl_pt_index_t pt_index, ptl_match_bits_t match_bits,
                            ptl_size_t remote_offset, void *user_ptr, ptl_hdr_data_t hdr_data,
                            ptl_op_t operation, ptl_datatype_t datatype, ptl_handle_ct_t trig_ct_handle,
                            ptl_size_t threshold);
int PtlTriggeredSwap(ptl_handle_md_t get_md_handle, ptl_size_t local_get_offset, ptl_handle_md_t put_md_handle,
                     ptl_size_t local_put_offset, ptl_size_t length, ptl_process_t target_id,
                     ptl_pt_index_t pt_index, ptl_match_bits_t match_bits, ptl_size_t remote_offset,
                     void *user_ptr, ptl_hdr_data_t hdr_data, const void *operand, ptl_op_t operation,
                     ptl_datatype_t datatype, ptl_handle_ct_t trig_ct_handle, ptl_size_t threshold);
int PtlTriggeredCTInc(ptl_handle_ct_t ct_handle, ptl_ct_event_t increment, ptl_handle_ct_t trig_ct_handle,
                      ptl_size_t threshold);
int PtlTriggeredCTSet(ptl_handle_ct_t ct_handle, ptl_ct_event_t new_ct, ptl_handle_ct_t trig_ct_handle,
                      ptl_size_t threshold);
/* Extensions: the handle is returned at once, the entry is on its list when the trigger has fired. */
int PtlTriggeredMEAppend(ptl_handle_ni_t ni_handle, ptl_pt_index_t pt_index, ptl_me_t *me, ptl_list_t ptl_list,
                         void *user_ptr, ptl_handle_me_t *me_handle, ptl_handle_ct_t trig_ct_handle,
                         ptl_size_t threshold);
int PtlTriggeredMEUnlink(ptl_handle_me_t me_handle, ptl_handle_ct_t trig_ct_handle, ptl_size_t threshold);

/* ---------------------------------------------------------------- the rest */

/* Between the two, started operations may wait for each other before they leave. */
int PtlStartBundle(ptl_handle_ni_t ni_handle);
int PtlEndBundle(ptl_handle_ni_t ni_handle);
/* Other than zero when both name the same object. */
int PtlHandleIsEqual(ptl_handle_any_t handle1, ptl_handle_any_t handle2);

#ifdef __cplusplus
}
#endif

#endif
