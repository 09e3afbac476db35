/* Prints what a C compiler makes of the types, for the test that compares it with the library's. */
#include <stdio.h>

#include "portals4.h"

#define SIZE(type) printf(#type " %zu\n", sizeof(type))
#define AT(type, field) printf(#type "." #field " %zu\n", offsetof(type, field))

int main(void)
{
    SIZE(ptl_size_t); SIZE(ptl_match_bits_t); SIZE(ptl_hdr_data_t); SIZE(ptl_handle_any_t); SIZE(ptl_pt_index_t);
    SIZE(ptl_interface_t); SIZE(ptl_time_t); SIZE(ptl_ack_req_t); SIZE(ptl_list_t); SIZE(ptl_search_op_t);
    SIZE(ptl_op_t); SIZE(ptl_datatype_t); SIZE(ptl_event_kind_t); SIZE(ptl_ni_fail_t); SIZE(ptl_sr_index_t);
    SIZE(ptl_sr_value_t);
    SIZE(ptl_process_t); AT(ptl_process_t, rank); AT(ptl_process_t, phys.nid); AT(ptl_process_t, phys.pid);
    SIZE(ptl_iovec_t); AT(ptl_iovec_t, iov_base); AT(ptl_iovec_t, iov_len);
    SIZE(ptl_ct_event_t); AT(ptl_ct_event_t, success); AT(ptl_ct_event_t, failure);
    SIZE(ptl_md_t); AT(ptl_md_t, start); AT(ptl_md_t, length); AT(ptl_md_t, options); AT(ptl_md_t, eq_handle);
    AT(ptl_md_t, ct_handle);
    SIZE(ptl_le_t); AT(ptl_le_t, start); AT(ptl_le_t, length); AT(ptl_le_t, ct_handle); AT(ptl_le_t, uid);
    AT(ptl_le_t, options);
    SIZE(ptl_me_t); AT(ptl_me_t, start); AT(ptl_me_t, length); AT(ptl_me_t, ct_handle); AT(ptl_me_t, uid);
    AT(ptl_me_t, options); AT(ptl_me_t, match_id); AT(ptl_me_t, match_bits); AT(ptl_me_t, ignore_bits);
    AT(ptl_me_t, min_free);
    SIZE(ptl_event_t); AT(ptl_event_t, start); AT(ptl_event_t, user_ptr); AT(ptl_event_t, hdr_data);
    AT(ptl_event_t, match_bits); AT(ptl_event_t, rlength); AT(ptl_event_t, mlength);
    AT(ptl_event_t, remote_offset); AT(ptl_event_t, initiator); AT(ptl_event_t, uid); AT(ptl_event_t, pt_index);
    AT(ptl_event_t, type); AT(ptl_event_t, ptl_list); AT(ptl_event_t, ni_fail_type);
    AT(ptl_event_t, atomic_operation); AT(ptl_event_t, atomic_type);
    SIZE(ptl_ni_limits_t); AT(ptl_ni_limits_t, max_entries); AT(ptl_ni_limits_t, max_unexpected_headers);
    AT(ptl_ni_limits_t, max_mds); AT(ptl_ni_limits_t, max_cts); AT(ptl_ni_limits_t, max_eqs);
    AT(ptl_ni_limits_t, max_pt_index); AT(ptl_ni_limits_t, max_iovecs); AT(ptl_ni_limits_t, max_list_size);
    AT(ptl_ni_limits_t, max_triggered_ops); AT(ptl_ni_limits_t, max_msg_size); AT(ptl_ni_limits_t, max_atomic_size);
    AT(ptl_ni_limits_t, max_fetch_atomic_size); AT(ptl_ni_limits_t, max_waw_ordered_size);
    AT(ptl_ni_limits_t, max_war_ordered_size); AT(ptl_ni_limits_t, max_volatile_size);
    AT(ptl_ni_limits_t, features);
    return 0;
}
