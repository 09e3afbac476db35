//! Requests to the kernel over netlink(7): messages, attributes, replies.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

// libc's constants, in the types that message fields have.
pub(crate) const ERROR: u16 = libc::NLMSG_ERROR as u16;
const DONE: u16 = libc::NLMSG_DONE as u16;
pub(crate) const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
pub(crate) const CREATE: u16 = libc::NLM_F_CREATE as u16;
const DUMP: u16 = libc::NLM_F_DUMP as u16;
/// The list changed during the dump.
const INTERRUPTED: u16 = libc::NLM_F_DUMP_INTR as u16;
/// Attempts to dump a list that changes meanwhile.
const AGAIN: usize = 8;
/// Largest part of a dump that the kernel sends at once, in bytes.
const PIECE: usize = 32 << 10;
/// Size of `nlmsghdr`.
pub(crate) const HEADER: usize = 16;

/// Appends an attribute with its padding.
pub(crate) fn attribute(body: &mut Vec<u8>, what: u16, value: &[u8]) {
    body.extend_from_slice(&(4 + value.len() as u16).to_ne_bytes());
    body.extend_from_slice(&what.to_ne_bytes());
    body.extend_from_slice(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// Iterates over the attributes in `bytes`, up to the first malformed one.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head = bytes.first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([head[0], head[1]]));
        // The upper two bits are flags for nesting and byte order.
        let what = u16::from_ne_bytes([head[2], head[3]]) & 0x3fff;
        let value = bytes.get(4..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((what, value))
    })
}

/// Iterates over the types and bodies of the messages in `bytes`, up to the first malformed one.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let head = bytes.first_chunk::<HEADER>()?;
        let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let body = bytes.get(HEADER..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some((u16::from_ne_bytes([head[4], head[5]]), body))
    })
}

/// The body of a reply, or the error number of an `NLMSG_ERROR`.
pub(crate) type Answer = Result<Vec<u8>, i32>;

/// The netlink family of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    /// Routing netlink: routes, links, addresses.
    Route,
    /// Generic netlink: families without a number of their own.
    Generic,
}

/// Sends one routing request and returns its reply.
pub(crate) fn request(kind: u16, reply_kind: u16, body: &[u8]) -> io::Result<Answer> {
    request_in(Family::Route, kind, reply_kind, body)
}

/// Sends one request of a family and returns its reply.
pub(crate) fn request_in(family: Family, kind: u16, reply_kind: u16, body: &[u8]) -> io::Result<Answer> {
    read_answer(&exchange(family, kind, body)?, reply_kind)
}

/// Sends one message and receives the reply, which the kernel queues before `send` returns.
fn exchange(family: Family, what: u16, body: &[u8]) -> io::Result<Vec<u8>> {
    let how = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let protocol = match family {
        // NETLINK_ROUTE is protocol 0.
        Family::Route => None,
        Family::Generic => Some(rustix::net::netlink::GENERIC),
    };
    // An unbound socket sends to the kernel.
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, how, protocol)?;
    rustix::net::send(&socket, &message(what, REQUEST, body), SendFlags::empty())?;
    let mut bytes = vec![0; 16 << 10];
    let (length, _) = rustix::net::recv(&socket, &mut bytes, RecvFlags::empty())?;
    bytes.truncate(length);
    Ok(bytes)
}

/// Dumps all objects of a kind: message types and bodies.
pub(crate) fn dump(question: u16, body: &[u8]) -> io::Result<Vec<(u16, Vec<u8>)>> {
    let how = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, how, None)?;
    let mut bytes = vec![0; PIECE];
    for _ in 0..AGAIN {
        let mut all = Vec::new();
        let mut whole = true;
        rustix::net::send(
            &socket,
            &message(question, REQUEST | DUMP, body),
            SendFlags::empty(),
        )?;
        // The kernel queues the next part when one has been read.
        loop {
            let (length, _) = rustix::net::recv(&socket, &mut bytes, RecvFlags::empty())?;
            let piece = bytes.get(..length).ok_or_else(strange)?;
            whole &= flags(piece) & INTERRUPTED == 0;
            if take_piece(piece, &mut all)? {
                break;
            }
        }
        if whole {
            return Ok(all);
        }
    }
    Err(io::Error::other("the list kept changing while it was read"))
}

/// The union of all messages' flags.
fn flags(mut bytes: &[u8]) -> u16 {
    let mut all = 0;
    while let Some(head) = bytes.first_chunk::<HEADER>() {
        all |= u16::from_ne_bytes([head[6], head[7]]);
        let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
        bytes = bytes.get(length.max(HEADER).next_multiple_of(4)..).unwrap_or(&[]);
    }
    all
}

/// Collects one part of a dump; returns true for the last one.
fn take_piece(bytes: &[u8], all: &mut Vec<(u16, Vec<u8>)>) -> io::Result<bool> {
    for (kind, body) in messages(bytes) {
        match kind {
            DONE => return Ok(true),
            ERROR => {
                let number = body.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
                let number = number.filter(|number| *number < 0).ok_or_else(strange)?;
                return Err(io::Error::from_raw_os_error(number.saturating_neg()));
            }
            _ => all.push((kind, body.to_vec())),
        }
    }
    Ok(false)
}

/// Builds a message with its header.
pub(crate) fn message(what: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut message = Vec::with_capacity(HEADER + body.len());
    message.extend_from_slice(&((HEADER + body.len()) as u32).to_ne_bytes());
    message.extend_from_slice(&what.to_ne_bytes());
    message.extend_from_slice(&flags.to_ne_bytes());
    message.resize(HEADER, 0);
    message.extend_from_slice(body);
    message
}

fn strange() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel's reply is malformed")
}

fn read_answer(bytes: &[u8], wanted: u16) -> io::Result<Answer> {
    let head = bytes.first_chunk::<HEADER>().ok_or_else(strange)?;
    let length = u32::from_ne_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let body = bytes.get(HEADER..length).ok_or_else(strange)?;
    match u16::from_ne_bytes([head[4], head[5]]) {
        kind if kind == wanted => Ok(Ok(body.to_vec())),
        ERROR => {
            let number = body.first_chunk().map(|bytes| i32::from_ne_bytes(*bytes));
            let number = number.filter(|number| *number < 0).ok_or_else(strange)?;
            Ok(Err(number.saturating_neg()))
        }
        _ => Err(strange()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_ends_with_its_end_message_and_refusals_have_their_number() {
        let mut all = Vec::new();
        let piece = [message(16, 2, &[7; 4]), message(16, INTERRUPTED, &[8; 6])].concat();
        assert!(!take_piece(&piece, &mut all).unwrap());
        assert_eq!(flags(&piece), 2 | INTERRUPTED);
        assert!(take_piece(&message(DONE, 2, &[0; 4]), &mut all).unwrap());
        assert_eq!(all, [(16, vec![7; 4]), (16, vec![8; 6])]);
        let refused = message(ERROR, 0, &(-libc::EPERM).to_ne_bytes());
        assert_eq!(
            take_piece(&refused, &mut all).unwrap_err().raw_os_error(),
            Some(libc::EPERM)
        );
        for cut in 0..piece.len() {
            let _ = (flags(&piece[..cut]), take_piece(&piece[..cut], &mut all));
        }
    }

    #[test]
    fn broken_answers_do_no_harm_and_refusals_have_their_number() {
        const ANSWER: u16 = 24;
        let mut bytes = 24u32.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&ANSWER.to_ne_bytes());
        bytes.resize(HEADER + 8, 7);
        assert_eq!(read_answer(&bytes, ANSWER).unwrap(), Ok(vec![7; 8]));
        for cut in 0..bytes.len() {
            assert!(read_answer(&bytes[..cut], ANSWER).is_err());
            let _ = attributes(&bytes[..cut]).count();
        }
        let refusal = |number: i32| {
            let mut bytes = 20u32.to_ne_bytes().to_vec();
            bytes.extend_from_slice(&ERROR.to_ne_bytes());
            bytes.resize(HEADER, 0);
            bytes.extend_from_slice(&number.to_ne_bytes());
            read_answer(&bytes, ANSWER)
        };
        assert_eq!(refusal(-libc::EACCES).unwrap(), Err(libc::EACCES));
        assert_eq!(refusal(0).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(refusal(i32::MIN).unwrap(), Err(i32::MAX));
    }
}
