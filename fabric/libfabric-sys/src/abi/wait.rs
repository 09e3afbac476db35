//! Wait objects, wait sets and poll sets.
//!
//! Sources: `rdma/fi_eq.h`; fi_poll(3).

use std::ffi::{c_int, c_void};

use libc::{pollfd, pthread_cond_t, pthread_mutex_t};

use super::fabric::fid;

/// The C enumeration of this name: a plain number, since the other side may write any.
pub type fi_wait_obj = u32;

structures! {
    /// What a wait set is to wait by. fi_poll(3).
    pub struct fi_wait_attr = 16 {
        wait_obj: fi_wait_obj = 0;
        flags: u64 = 8;
    }

    /// A wait set. fi_poll(3).
    pub struct fid_wait = 32 {
        fid: fid = 0;
        ops: *mut fi_ops_wait = 24;
    }

    /// What the command `FI_GETWAIT` gives for `FI_WAIT_MUTEX_COND`. fi_cq(3).
    pub struct fi_mutex_cond = 16 {
        mutex: *mut pthread_mutex_t = 0;
        cond: *mut pthread_cond_t = 8;
    }

    /// What the command `FI_GETWAIT` gives for `FI_WAIT_POLLFD`. fi_cq(3).
    pub struct fi_wait_pollfd = 24, since 1.10 {
        change_index: u64 = 0;
        nfds: usize = 8;
        fd: *mut pollfd = 16;
    }

    /// What a poll set is to be like. fi_poll(3).
    pub struct fi_poll_attr = 8 {
        flags: u64 = 0;
    }

    /// A poll set. fi_poll(3).
    pub struct fid_poll = 32 {
        fid: fid = 0;
        ops: *mut fi_ops_poll = 24;
    }
}

tables! {
    /// What a wait set can do. fi_poll(3).
    pub table fi_ops_wait = 2 {
        1: wait(waitset: *mut fid_wait, timeout: c_int) -> c_int;
    }

    /// What a poll set can do. fi_poll(3).
    pub table fi_ops_poll = 4 {
        1: poll(pollset: *mut fid_poll, context: *mut *mut c_void, count: c_int) -> c_int;
        2: poll_add(pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int;
        3: poll_del(pollset: *mut fid_poll, event_fid: *mut fid, flags: u64) -> c_int;
    }
}

constants! {
    fi_wait_obj {
        FI_WAIT_NONE = 0;
        FI_WAIT_UNSPEC = 1;
        FI_WAIT_SET = 2;
        FI_WAIT_FD = 3;
        FI_WAIT_MUTEX_COND = 4;
        FI_WAIT_YIELD = 5;
        FI_WAIT_POLLFD = 6;
    }
}
