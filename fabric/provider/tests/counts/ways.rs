//! The ways of a message from one end to the other.

use libfabric_sys::{FI_ATOMIC_READ, FI_SUM};

use crate::couple::{Couple, End};

/// Which calls send and receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// fi_tsend, to a posted fi_trecv.
    Tagged,
    /// fi_send, to a posted fi_recv.
    Untagged,
    /// fi_tinject, to a posted fi_trecv.
    Injected,
    /// fi_tsenddata, with the same data each time, to a posted fi_trecv.
    WithData,
    /// fi_tsend, before the fi_trecv.
    Unexpected,
    /// fi_write, whose end is read by its caller.
    Written,
    /// fi_writedata, whose data are read at the other end.
    WrittenWithData,
    /// fi_inject_write, whose end is no entry.
    InjectWritten,
    /// fi_read, whose end is read by its caller.
    Read,
    /// fi_atomic, whose end is read by its caller.
    Atomic,
    /// fi_fetch_atomic, as above.
    FetchAtomic,
    /// fi_fetch_atomic that only reads, as above.
    AtomicRead,
    /// fi_compare_atomic, as above.
    CompareAtomic,
    /// fi_inject_atomic, whose end is no entry.
    InjectAtomic,
}

impl Way {
    fn is_one_sided(self) -> bool {
        !matches!(
            self,
            Self::Tagged | Self::Untagged | Self::Injected | Self::WithData | Self::Unexpected
        )
    }

    /// Locked instructions of one message of this length.
    pub(crate) fn locked(self, length: usize) -> u64 {
        match self {
            Self::Atomic | Self::FetchAtomic | Self::CompareAtomic | Self::InjectAtomic => length as u64 / 8,
            _ => 0,
        }
    }

    fn post(self, end: &mut End) {
        match self {
            Self::Untagged => end.receive(),
            _ => end.receive_tagged(),
        }
    }

    fn send(self, end: &End, other: &End) {
        match self {
            Self::Tagged | Self::Unexpected => end.send_tagged(),
            Self::Untagged => end.send(),
            Self::Injected => end.inject_tagged(),
            Self::WithData => end.send_tagged_data(),
            Self::Written => end.write(),
            Self::WrittenWithData => end.write_data(),
            Self::InjectWritten => end.inject_write(),
            Self::Read => end.read(),
            Self::Atomic => end.atomic(),
            Self::FetchAtomic => end.fetch_atomic(FI_SUM),
            Self::AtomicRead => end.fetch_atomic(FI_ATOMIC_READ),
            Self::CompareAtomic => end.compare_atomic(),
            Self::InjectAtomic => end.inject_atomic(),
        }
        if !matches!(self, Self::Injected | Self::InjectWritten | Self::InjectAtomic) {
            end.read_entry(other);
        }
    }
}

impl Couple {
    /// One message, read, write or atomic, from the first end to the second; they change places.
    pub(crate) fn exchange(&mut self, way: Way) {
        let [from, to] = &mut self.ends;
        if way.is_one_sided() {
            way.send(from, to);
            match way {
                Way::WrittenWithData => to.read_entry(from),
                Way::InjectWritten | Way::InjectAtomic => {
                    to.advance();
                    from.advance();
                }
                _ => {}
            }
            self.ends.swap(0, 1);
            return;
        }
        if way == Way::Unexpected {
            way.send(from, to);
            to.advance();
            way.post(to);
        } else {
            way.post(to);
            way.send(from, to);
        }
        to.read_entry(from);
        self.ends.swap(0, 1);
    }

    /// Some messages, of which the first is received when all have been sent; the ends change places.
    pub(crate) fn exchange_row(&mut self, way: Way, count: usize) {
        let [from, to] = &mut self.ends;
        (0..count).for_each(|_| way.post(to));
        (0..count).for_each(|_| way.send(from, to));
        (0..count).for_each(|_| to.read_entry(from));
        self.ends.swap(0, 1);
    }
}
