//! One object of each kind, the endpoint with the peer that it is itself.

use std::ffi::{c_int, c_void};
use std::ptr;

use libfabric_sys::*;

use crate::opened::{Object, Opened, open};

/// One object of each kind. Fields are dropped in this order.
pub(crate) struct Everything {
    /// Enabled, and bound to what follows.
    pub(crate) endpoint: Object<fid_ep>,
    /// Opened, and nothing else.
    pub(crate) bare: Object<fid_ep>,
    pub(crate) completions: Object<fid_cq>,
    /// It may be bound to the counter.
    pub(crate) registration: Object<fid_mr>,
    pub(crate) counter: Object<fid_cntr>,
    pub(crate) vector: Object<fid_av>,
    pub(crate) polls: Object<fid_poll>,
    /// It is of the wait set.
    pub(crate) events: Object<fid_eq>,
    pub(crate) waits: Object<fid_wait>,
    pub(crate) opened: Opened,
}

/// Binds an object to another one, by the common table.
pub(crate) fn bind(object: *mut fid, other: *mut fid, flags: u64) -> c_int {
    // SAFETY: the object is open.
    let table = unsafe { (*object).ops };
    // SAFETY: the table of an open object.
    let bind = unsafe { (*table).bind }.unwrap();
    // SAFETY: both objects are there.
    unsafe { bind(object, other, flags) }
}

impl Everything {
    /// Opens all of it.
    pub(crate) fn open(library: Library) -> Self {
        let opened = Opened::any(library);
        let (domain, entry) = (opened.domain.0, opened.info.as_ptr().cast_mut());
        let null = ptr::null_mut::<c_void>();
        let mut wait_attributes = fi_wait_attr {
            wait_obj: FI_WAIT_UNSPEC,
            flags: 0,
        };
        // SAFETY: the fabric is open.
        let waits = open("fi_wait_open", |to| unsafe {
            fi_wait_open(opened.fabric.0, &raw mut wait_attributes, to)
        });
        let mut attributes = fi_eq_attr {
            wait_obj: FI_WAIT_SET,
            wait_set: waits.0,
            ..Layout::zeroed()
        };
        // SAFETY: the fabric and the set are open.
        let events = open("fi_eq_open", |to| unsafe {
            fi_eq_open(opened.fabric.0, &raw mut attributes, to, null)
        });
        // SAFETY: the domain is open, here and below.
        let polls = open("fi_poll_open", |to| unsafe {
            fi_poll_open(domain, ptr::null_mut(), to)
        });
        // SAFETY: as above.
        let registration = open("fi_mr_reg", |to| unsafe {
            fi_mr_reg(domain, ptr::null(), 0, FI_READ, 0, 1, 0, to, null)
        });
        let mut attributes: fi_av_attr = Layout::zeroed();
        // SAFETY: as above.
        let vector = open("fi_av_open", |to| unsafe {
            fi_av_open(domain, &raw mut attributes, to, null)
        });
        // SAFETY: as above.
        let counter = open("fi_cntr_open", |to| unsafe {
            fi_cntr_open(domain, ptr::null_mut(), to, null)
        });
        let mut attributes = fi_cq_attr {
            format: FI_CQ_FORMAT_TAGGED,
            ..Layout::zeroed()
        };
        // SAFETY: as above.
        let completions = open("fi_cq_open", |to| unsafe {
            fi_cq_open(domain, &raw mut attributes, to, null)
        });
        let [endpoint, bare] = [(); 2].map(|()| {
            // SAFETY: as above, and the entry is of its provider.
            open("fi_endpoint", |to| unsafe {
                fi_endpoint(domain, entry, to, null)
            })
        });
        let all = Self {
            endpoint,
            bare,
            completions,
            counter,
            vector,
            registration,
            polls,
            events,
            waits,
            opened,
        };
        assert_eq!(all.bind(all.completions.fid(), FI_TRANSMIT | FI_RECV), 0);
        assert_eq!(all.bind(all.vector.fid(), 0), 0);
        assert_eq!(all.bind(all.counter.fid(), FI_SEND), 0);
        // SAFETY: the endpoint is open.
        assert_eq!(unsafe { fi_enable(all.endpoint.0) }, 0);
        all
    }

    /// Binds an object to the endpoint.
    fn bind(&self, object: *mut fid, flags: u64) -> c_int {
        bind(self.endpoint.fid(), object, flags)
    }

    /// Inserts the endpoint's own name.
    pub(crate) fn insert_oneself(&self) -> fi_addr_t {
        self.insert(self)
    }

    /// Inserts the name of an endpoint.
    pub(crate) fn insert(&self, other: &Self) -> fi_addr_t {
        let (mut name, mut length, mut address) = ([0_u8; 64], 64, FI_ADDR_NOTAVAIL);
        // SAFETY: the endpoint is open, and the memory has this length.
        let named = unsafe { fi_getname(other.endpoint.fid(), name.as_mut_ptr().cast(), &raw mut length) };
        assert_eq!(named, 0);
        let (vector, null) = (self.vector.0, ptr::null_mut());
        // SAFETY: the vector is open, with one name and a place for its number.
        let count = unsafe { fi_av_insert(vector, name.as_ptr().cast(), 1, &raw mut address, 0, null) };
        assert_eq!(count, 1);
        address
    }

    /// Makes progress; no completion is read.
    pub(crate) fn advance(&self) {
        // SAFETY: the queue is open; there is no room for an entry.
        unsafe { fi_cq_read(self.completions.0, ptr::null_mut(), 0) };
    }

    /// Posts a receive of a message without bytes, of any sender.
    pub(crate) fn receive_empty(&self) {
        let (ep, null) = (self.endpoint.0, ptr::null_mut());
        // SAFETY: the endpoint is open; no byte is received.
        assert_eq!(unsafe { fi_recv(ep, null, 0, null, FI_ADDR_UNSPEC, null) }, 0);
    }

    /// Sends a message without bytes to a peer, which is inserted.
    pub(crate) fn send_empty_to(&self, other: &Self) {
        let (ep, to, null) = (self.endpoint.0, self.insert(other), ptr::null_mut());
        // SAFETY: the endpoint is open; no byte is sent.
        assert_eq!(unsafe { fi_send(ep, null, 0, null, to, null) }, 0);
    }

    /// Reads one completion.
    pub(crate) fn next(&self) -> fi_cq_tagged_entry {
        let mut entry: fi_cq_tagged_entry = Layout::zeroed();
        for _ in 0..1_000_000 {
            // SAFETY: the queue is open, and there is room for an entry.
            match unsafe { fi_cq_read(self.completions.0, (&raw mut entry).cast(), 1) } {
                1 => return entry,
                result => assert_eq!(result, -(FI_EAGAIN as isize)),
            }
        }
        panic!("nothing has ended")
    }
}
