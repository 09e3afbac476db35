//! The ways of a message from one end to the other.

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
}

impl Way {
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
        }
        if !matches!(self, Self::Injected | Self::InjectWritten) {
            end.read_entry(other);
        }
    }
}

impl Couple {
    /// One message, read or write, from the first end to the second; they change places.
    pub(crate) fn exchange(&mut self, way: Way) {
        let [from, to] = &mut self.ends;
        if matches!(
            way,
            Way::Written | Way::WrittenWithData | Way::InjectWritten | Way::Read
        ) {
            way.send(from, to);
            match way {
                Way::WrittenWithData => to.read_entry(from),
                Way::InjectWritten => {
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
