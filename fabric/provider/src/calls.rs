//! What the calls of fi_msg(3) and fi_tagged(3) do. They differ by the tag alone.

use std::ffi::c_void;

use libc::iovec;
use libfabric_sys::*;

use crate::domain::State;
use crate::ep::{EndpointObject, Receive, Room, Send, Space, endpoint, flags};
use crate::errno::{Errno, Result};
use crate::memory::{bytes, lent, lent_pieces, room, room_pieces};

/// One call of a client, by its name; the space of its messages is known when it is compiled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<const TAGGED: bool>(pub(crate) &'static str);

/// Where a message goes to, and what it brings beside its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination {
    pub(crate) address: fi_addr_t,
    /// 0 for an untagged message.
    pub(crate) tag: u64,
    pub(crate) data: Option<u64>,
}

/// Which messages a receive takes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    pub(crate) address: fi_addr_t,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
}

impl Destination {
    /// The send of a call with this context and these flags.
    #[inline(always)]
    fn send(self, context: *mut c_void, flags: u64) -> Send {
        Send {
            to: self.address,
            tag: self.tag,
            data: self.data,
            context: context.expose_provenance(),
            flags,
        }
    }
}

impl Pattern {
    /// The pattern of untagged messages.
    pub(crate) const fn untagged(address: fi_addr_t) -> Self {
        Self {
            address,
            tag: 0,
            ignore: 0,
        }
    }

    /// The receive of a call with this context and these flags.
    #[inline(always)]
    pub(crate) fn receive(self, context: *mut c_void, flags: u64) -> Receive {
        Receive {
            from: self.address,
            tag: self.tag,
            ignore: self.ignore,
            context: context.expose_provenance(),
            flags,
        }
    }
}

/// The structures of messages of both spaces, as far as they are alike.
pub(crate) trait Message: Copy {
    /// The pieces of memory, and how many.
    fn pieces(&self) -> (*const iovec, usize);
    /// The client's context.
    fn context(&self) -> *mut c_void;
    /// The destination; `flags` are those of the call.
    fn destination(&self, flags: u64) -> Destination;
    /// The messages to be received.
    fn pattern(&self) -> Pattern;
}

/// The remote data of a call with these flags.
fn data(flags: u64, data: u64) -> Option<u64> {
    (flags & FI_REMOTE_CQ_DATA != 0).then_some(data)
}

impl Message for fi_msg {
    fn pieces(&self) -> (*const iovec, usize) {
        (self.msg_iov, self.iov_count)
    }

    fn context(&self) -> *mut c_void {
        self.context
    }

    fn destination(&self, flags: u64) -> Destination {
        Destination {
            address: self.addr,
            tag: 0,
            data: data(flags, self.data),
        }
    }

    fn pattern(&self) -> Pattern {
        Pattern::untagged(self.addr)
    }
}

impl Message for fi_msg_tagged {
    fn pieces(&self) -> (*const iovec, usize) {
        (self.msg_iov, self.iov_count)
    }

    fn context(&self) -> *mut c_void {
        self.context
    }

    fn destination(&self, flags: u64) -> Destination {
        Destination {
            address: self.addr,
            tag: self.tag,
            data: data(flags, self.data),
        }
    }

    fn pattern(&self) -> Pattern {
        Pattern {
            address: self.addr,
            tag: self.tag,
            ignore: self.ignore,
        }
    }
}

impl<const TAGGED: bool> Call<TAGGED> {
    /// The space of its messages.
    pub(crate) const SPACE: Space = if TAGGED { Space::Tagged } else { Space::Untagged };

    /// The flags of receives of an endpoint whose calls take none.
    #[inline(always)]
    fn receive_flags(self, endpoint: &EndpointObject) -> u64 {
        match Self::SPACE {
            Space::Untagged => endpoint.receive_flags(),
            // Only untagged buffers take many messages.
            Space::Tagged => endpoint.receive_flags() & !FI_MULTI_RECV,
        }
    }

    /// Receives into one piece of memory.
    ///
    /// # Safety
    /// `ep` is an open endpoint, and the memory may be written until the operation has ended.
    #[inline(always)]
    pub(crate) unsafe fn receive(
        self,
        ep: *mut fid_ep,
        (buf, len): (*mut c_void, usize),
        of: Pattern,
        context: *mut c_void,
    ) -> isize {
        // SAFETY: by the contract of this function.
        let endpoint = unsafe { endpoint(ep) };
        // SAFETY: as above.
        let room = Room::One(unsafe { room(buf, len) });
        let call = of.receive(context, self.receive_flags(endpoint));
        endpoint.run(self.0, |state| {
            state.receive(endpoint.number(), Self::SPACE, room, &call)
        })
    }

    /// Receives into pieces of memory.
    ///
    /// # Safety
    /// `ep` is an open endpoint, `iov` has `count` pieces, and their memory may be written until the
    /// operation has ended.
    #[inline(always)]
    pub(crate) unsafe fn receive_pieces(
        self,
        ep: *mut fid_ep,
        (iov, count): (*const iovec, usize),
        of: Pattern,
        context: *mut c_void,
    ) -> isize {
        // SAFETY: by the contract of this function.
        let endpoint = unsafe { endpoint(ep) };
        let call = of.receive(context, self.receive_flags(endpoint));
        endpoint.run(self.0, |state| {
            // SAFETY: by the contract of this function.
            let room = unsafe { room_pieces(iov, count) }?;
            state.receive(endpoint.number(), Self::SPACE, room, &call)
        })
    }

    /// Receives what a structure describes; `run` is what a call with good flags does.
    ///
    /// # Safety
    /// `ep` is an open endpoint; `message` is null or the caller's.
    #[inline(always)]
    pub(crate) unsafe fn receive_message<M: Message>(
        self,
        ep: *mut fid_ep,
        message: *const M,
        (flags, ours): (u64, u64),
        run: impl FnOnce(&mut State, &EndpointObject, &M) -> Result<isize>,
    ) -> isize {
        // SAFETY: by the contract of this function.
        let endpoint = unsafe { endpoint(ep) };
        endpoint.run(self.0, |state| {
            flags::check(flags, ours)?;
            // SAFETY: by the contract of this function.
            let message = unsafe { message.as_ref() }.ok_or(Errno(FI_EINVAL))?;
            run(state, endpoint, message)
        })
    }

    /// Sends one piece of memory.
    ///
    /// # Safety
    /// `ep` is an open endpoint, and the memory may be read until the operation has ended.
    #[inline(always)]
    pub(crate) unsafe fn send(
        self,
        ep: *mut fid_ep,
        (buf, len): (*const c_void, usize),
        to: Destination,
        context: *mut c_void,
    ) -> isize {
        // SAFETY: by the contract of this function.
        let endpoint = unsafe { endpoint(ep) };
        // SAFETY: as above.
        let loan = unsafe { lent(buf, len) };
        let call = to.send(context, endpoint.send_flags());
        endpoint.run(self.0, |state| {
            state.send(endpoint.number(), Self::SPACE, loan, &call)
        })
    }

    /// Sends pieces of memory.
    ///
    /// # Safety
    /// `ep` is an open endpoint, `iov` has `count` pieces, and their memory may be read until the operation
    /// has ended.
    #[inline(always)]
    pub(crate) unsafe fn send_pieces(
        self,
        ep: *mut fid_ep,
        (iov, count): (*const iovec, usize),
        to: Destination,
        context: *mut c_void,
    ) -> isize {
        // SAFETY: by the contract of this function.
        let endpoint = unsafe { endpoint(ep) };
        let call = to.send(context, endpoint.send_flags());
        endpoint.run(self.0, |state| {
            // SAFETY: by the contract of this function.
            let bytes = unsafe { lent_pieces(iov, count) }?;
            state.send_pieces(endpoint.number(), Self::SPACE, bytes, &call)
        })
    }

    /// Sends what a structure describes.
    ///
    /// # Safety
    /// `ep` is an open endpoint; `message` is null or the caller's, and its memory may be read until the
    /// operation has ended.
    #[inline(always)]
    pub(crate) unsafe fn send_message<M: Message>(
        self,
        ep: *mut fid_ep,
        message: *const M,
        flags: u64,
    ) -> isize {
        // SAFETY: by the contract of this function.
        let endpoint = unsafe { endpoint(ep) };
        endpoint.run(self.0, |state| {
            flags::check(flags, flags::SEND)?;
            // SAFETY: by the contract of this function.
            let message = unsafe { message.as_ref() }.ok_or(Errno(FI_EINVAL))?;
            let (iov, count) = message.pieces();
            // SAFETY: by the contract of this function.
            let bytes = unsafe { lent_pieces(iov, count) }?;
            let call = message.destination(flags).send(message.context(), flags);
            state.send_pieces(endpoint.number(), Self::SPACE, bytes, &call)
        })
    }

    /// Sends bytes that are taken before the call returns.
    ///
    /// # Safety
    /// `ep` is an open endpoint, and the memory may be read during the call.
    #[inline(always)]
    pub(crate) unsafe fn inject(
        self,
        ep: *mut fid_ep,
        (buf, len): (*const c_void, usize),
        to: Destination,
    ) -> isize {
        // SAFETY: by the contract of this function.
        let endpoint = unsafe { endpoint(ep) };
        endpoint.run(self.0, |state| {
            // SAFETY: by the contract of this function.
            let bytes = unsafe { bytes(buf, len) }?;
            let Destination { address, tag, data } = to;
            state.inject(endpoint.number(), Self::SPACE, bytes, address, tag, data)
        })
    }
}
