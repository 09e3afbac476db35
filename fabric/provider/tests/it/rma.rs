//! Reads and writes of a peer's memory: every call, long and short, scattered, with data, to oneself; and
//! what cannot be done.

use std::ffi::c_void;
use std::ptr;

use libc::iovec;
use libfabric_sys::*;

use crate::client::{
    Client, Found, Object, Room, Wait, Wants, bind, counter, opened, pattern, pointer, until,
};
use crate::pair::{run, run_killed};

/// The key of the memory that each part registers first.
pub(crate) const KEY: u64 = 0xbeef;
const THREE: i32 = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
pub(crate) const BOTH: u64 = FI_REMOTE_READ | FI_REMOTE_WRITE;
/// What one call moves: nothing, what fits an answer, a frame, a message; and what does not.
const LENGTHS: [usize; 8] = [0, 1, 8, 100, 4096, 20_000, 100_000, 3 << 20];

fn wants() -> Wants {
    Wants {
        caps: FI_MSG | FI_RMA | FI_SOURCE,
        ..Wants::default()
    }
}

/// Registers pieces of memory.
pub(crate) fn register(client: &Client, pieces: &[iovec], access: u64, key: u64) -> Object<fid_mr> {
    // SAFETY: the domain is open, and there are as many pieces.
    opened("fi_mr_regv", |to| unsafe {
        let (start, count) = (pieces.as_ptr(), pieces.len());
        fi_mr_regv(
            client.domain.0,
            start,
            count,
            access,
            0,
            key,
            0,
            to,
            ptr::null_mut(),
        )
    })
}

/// Registers all of a room.
pub(crate) fn expose(client: &Client, room: &mut Room, key: u64) -> Object<fid_mr> {
    let whole = room.piece(0, room.len());
    register(client, &[whole], BOTH, key)
}

/// Memory of the peer and here, of one structure of a call.
struct Both {
    here: Vec<iovec>,
    there: Vec<fi_rma_iov>,
}

impl Both {
    /// `bytes` in pieces of different lengths on both sides; there, from `addr` on.
    fn scattered(start: *mut c_void, length: usize, addr: u64, key: u64) -> Self {
        let cut = |parts: [usize; 4]| {
            let mut left = length;
            let mut lengths = parts.map(|part| {
                let part = (length * part / 16).min(left);
                left -= part;
                part
            });
            lengths[3] += left;
            lengths
        };
        let mut at = 0;
        let here = cut([1, 7, 0, 8]).map(|iov_len| {
            let iov_base = start.wrapping_byte_add(at);
            at += iov_len;
            iovec { iov_base, iov_len }
        });
        let mut addr = addr;
        let there = cut([5, 2, 6, 3]).map(|len| {
            let piece = fi_rma_iov { addr, len, key };
            addr += len as u64;
            piece
        });
        Self {
            here: here.to_vec(),
            there: there.to_vec(),
        }
    }

    fn message(&self, peer: fi_addr_t, context: usize, data: u64) -> fi_msg_rma {
        fi_msg_rma {
            msg_iov: self.here.as_ptr(),
            desc: ptr::null_mut(),
            iov_count: self.here.len(),
            addr: peer,
            rma_iov: self.there.as_ptr(),
            rma_iov_count: self.there.len(),
            context: pointer(context),
            data,
        }
    }
}

/// What the calls of one client name: its endpoint, the peer and its memory.
pub(crate) struct Calls<'a> {
    pub(crate) client: &'a Client,
    pub(crate) peer: fi_addr_t,
    pub(crate) addr: u64,
    pub(crate) key: u64,
}

const CONTEXT: usize = 0x77;
const WRITES: [&str; 7] = [
    "write",
    "writev",
    "writemsg",
    "writedata",
    "inject",
    "injectdata",
    "injectmsg",
];

impl Calls<'_> {
    pub(crate) fn try_read(&self, room: &mut Room, at: u64) -> isize {
        let (ep, len, null) = (self.client.endpoint.0, room.len(), ptr::null_mut());
        // SAFETY: the endpoint is open, and the memory stays until the operation has ended, here and below.
        unsafe {
            let addr = self.addr + at;
            fi_read(
                ep,
                room.start(),
                len,
                null,
                self.peer,
                addr,
                self.key,
                pointer(CONTEXT),
            )
        }
    }

    pub(crate) fn try_write(&self, bytes: &[u8], at: u64) -> isize {
        let (ep, start, null) = (self.client.endpoint.0, bytes.as_ptr().cast(), ptr::null_mut());
        let addr = self.addr + at;
        // SAFETY: as above.
        unsafe {
            fi_write(
                ep,
                start,
                bytes.len(),
                null,
                self.peer,
                addr,
                self.key,
                pointer(CONTEXT),
            )
        }
    }

    /// Waits until the operation has ended well, and checks its entry.
    fn ended(&self, flag: u64) {
        let entry = self.client.next().entry();
        assert_eq!((entry.op_context, entry.flags), (pointer(CONTEXT), FI_RMA | flag));
    }

    /// Writes by the call of this name. Returns the data that it brings.
    pub(crate) fn write_by(&self, call: &str, bytes: &[u8]) -> Option<u64> {
        let (ep, start, len, null) = (
            self.client.endpoint.0,
            bytes.as_ptr().cast::<c_void>(),
            bytes.len(),
            ptr::null_mut(),
        );
        let (peer, addr, key, context) = (self.peer, self.addr, self.key, pointer(CONTEXT));
        let data = 0x1122_3344_5566_7788 + len as u64;
        let both = Both::scattered(start.cast_mut(), len, addr, key);
        let message = both.message(peer, CONTEXT, data);
        let one = iovec {
            iov_base: start.cast_mut(),
            iov_len: len,
        };
        // SAFETY: as above.
        self.client.retry(|| unsafe {
            match call {
                "write" => fi_write(ep, start, len, null, peer, addr, key, context),
                "writev" => {
                    let (iov, count) = match len {
                        100 => (both.here.as_ptr(), 4),
                        _ => (&raw const one, 1),
                    };
                    fi_writev(ep, iov, ptr::null_mut(), count, peer, addr, key, context)
                }
                "writemsg" => fi_writemsg(ep, &raw const message, FI_COMPLETION | FI_DELIVERY_COMPLETE),
                "writedata" => fi_writedata(ep, start, len, null, data, peer, addr, key, context),
                "inject" => fi_inject_write(ep, start, len, peer, addr, key),
                "injectdata" => fi_inject_writedata(ep, start, len, data, peer, addr, key),
                _ => fi_writemsg(
                    ep,
                    &raw const message,
                    FI_INJECT | FI_DELIVERY_COMPLETE | FI_REMOTE_CQ_DATA,
                ),
            }
        });
        if !matches!(call, "inject" | "injectdata") {
            self.ended(FI_WRITE);
        }
        matches!(call, "writedata" | "injectdata" | "injectmsg").then_some(data)
    }

    /// Reads by each of the three calls, and checks what comes.
    pub(crate) fn expect(&self, bytes: &[u8]) {
        for call in 0..3 {
            let mut room = Room::new(bytes.len());
            let (ep, start, len) = (self.client.endpoint.0, room.start(), room.len());
            let (peer, addr, key, context) = (self.peer, self.addr, self.key, pointer(CONTEXT));
            let both = Both::scattered(start, len, addr, key);
            let message = both.message(peer, CONTEXT, 0);
            // SAFETY: as above.
            self.client.retry(|| unsafe {
                match call {
                    0 => fi_read(ep, start, len, ptr::null_mut(), peer, addr, key, context),
                    1 => fi_readv(
                        ep,
                        both.here.as_ptr(),
                        ptr::null_mut(),
                        4,
                        peer,
                        addr,
                        key,
                        context,
                    ),
                    _ => fi_readmsg(ep, &raw const message, FI_COMPLETION),
                }
            });
            self.ended(FI_READ);
            assert!(room.bytes() == bytes, "{call} {len}");
        }
    }
}

/// The calls of a client into the memory that its peer has registered first.
pub(crate) fn calls(client: &Client) -> Calls<'_> {
    Calls {
        client,
        peer: client.peer,
        addr: 0,
        key: KEY,
    }
}

/// Moves bytes by every call, of every length.
fn move_all(calls: &Calls<'_>, mut data_came: impl FnMut(u64, usize)) {
    for (number, length) in LENGTHS.into_iter().enumerate() {
        for (at, call) in WRITES.into_iter().enumerate() {
            if call.starts_with("inject") && length > 4096 {
                continue;
            }
            let mut bytes = pattern(length, number * 10 + at);
            if let Some(data) = calls.write_by(call, &bytes) {
                data_came(data, length);
            }
            let written = bytes.clone();
            if call.starts_with("inject") {
                // They were taken.
                bytes.fill(0xdd);
            }
            calls.expect(&written);
        }
    }
}

#[test]
fn every_call_moves_its_bytes_and_data_comes_behind_them() {
    let test = "rma::every_call_moves_its_bytes_and_data_comes_behind_them";
    run(test, |mut role, library| {
        let client = Client::meet(&mut role, library, &wants());
        let mut room = Room::new(4 << 20);
        let _registration = expose(&client, &mut room, KEY);
        role.meet(&client);
        if role.is_first() {
            let mut expected = Vec::new();
            move_all(&calls(&client), |data, length| expected.push((data, length)));
            assert_eq!(expected.len(), 8 + 2 * 5);
            for (data, length) in &expected {
                role.exchange(&data.to_le_bytes());
                role.exchange(&length.to_le_bytes());
            }
            role.exchange(&[0; 8]);
        } else {
            let mut came = Vec::new();
            let mut ends = false;
            while !ends {
                // What has come before that is found behind it.
                ends = role.is_called();
                while let Some(found) = client.read() {
                    let Found::Entry(entry, sender) = found else {
                        panic!("{found:?}")
                    };
                    assert_eq!(entry.flags, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
                    assert_eq!((sender, entry.op_context), (client.peer, ptr::null_mut()));
                    came.push((entry.data, entry.len));
                }
            }
            let mut word = || u64::from_le_bytes(role.exchange(&[0; 8]).try_into().unwrap());
            for (data, length) in &came {
                assert_eq!((word(), word()), (*data, *length as u64));
            }
            assert_eq!(word(), 0);
        }
        role.meet(&client);
    });
}

#[test]
fn every_call_moves_its_bytes_to_oneself() {
    run("rma::every_call_moves_its_bytes_to_oneself", |_, library| {
        let client = Client::open(library, &wants());
        let mut room = Room::new(4 << 20);
        let _registration = expose(&client, &mut room, KEY);
        let me = client.insert(&client.name());
        let calls = Calls {
            peer: me,
            ..calls(&client)
        };
        for (call, length) in [
            ("write", 3 << 20),
            ("writev", 100),
            ("writemsg", 20_000),
            ("inject", 4096),
        ] {
            let bytes = pattern(length, 3);
            assert_eq!(calls.write_by(call, &bytes), None);
            calls.expect(&bytes);
        }
        // The write and its data are both read here, in either order.
        let bytes = pattern(8, 1);
        let (ep, start, null) = (client.endpoint.0, bytes.as_ptr().cast(), ptr::null_mut());
        // SAFETY: the endpoint is open, and the memory stays.
        client.retry(|| unsafe { fi_writedata(ep, start, 8, null, 99, me, 0, KEY, pointer(1)) });
        let mut flags = [client.next().entry(), client.next().entry()].map(|entry| (entry.flags, entry.data));
        flags.sort_unstable();
        let with_data = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA;
        let mut wanted = [(FI_RMA | FI_WRITE, 0), (with_data, 99)];
        wanted.sort_unstable();
        assert_eq!(flags, wanted);
    });
}

#[test]
fn memory_is_named_by_its_address_where_the_client_wants_that() {
    let test = "rma::memory_is_named_by_its_address_where_the_client_wants_that";
    run(test, |mut role, library| {
        let wants = Wants {
            mr_mode: THREE,
            ..wants()
        };
        let client = Client::meet(&mut role, library, &wants);
        let mut room = Room::new(4 << 20);
        let (start, length) = (room.start().addr() as u64, room.len());
        // In two pieces, which are one behind the other.
        let pieces = [room.piece(0, 1000), room.piece(1000, length - 1000)];
        let registration = register(&client, &pieces, BOTH, 0);
        // SAFETY: the registration is open.
        let key = unsafe { fi_mr_key(registration.0) };
        let mut word = |word: u64| u64::from_le_bytes(role.exchange(&word.to_le_bytes()).try_into().unwrap());
        let (addr, key) = (word(start), word(key));
        if role.is_first() {
            let calls = Calls {
                client: &client,
                peer: client.peer,
                addr,
                key,
            };
            calls.expect(&[0xee; 3000]);
            for length in [8, 5000, 1 << 20] {
                let bytes = pattern(length, length);
                calls.write_by("write", &bytes);
                calls.expect(&bytes);
            }
        }
        role.meet(&client);
    });
}

/// The error number of the next failure, which is of an operation with this flag.
fn failed(client: &Client, flag: u64) -> i32 {
    let failure = client.next().failure();
    assert_eq!(
        (failure.op_context, failure.flags),
        (pointer(CONTEXT), FI_RMA | flag)
    );
    failure.err
}

#[test]
fn what_cannot_be_done_fails_here_and_leaves_the_peer_as_it_is() {
    let test = "rma::what_cannot_be_done_fails_here_and_leaves_the_peer_as_it_is";
    run(test, |mut role, library| {
        let client = Client::meet(&mut role, library, &wants());
        let mut rooms = [(); 3].map(|()| Room::new(1 << 20));
        let mut registrations = Vec::new();
        for (room, (access, key)) in
            rooms
                .iter_mut()
                .zip([(BOTH, KEY), (FI_REMOTE_READ, 1), (FI_REMOTE_WRITE, 2)])
        {
            let whole = room.piece(0, room.len());
            registrations.push(register(&client, &[whole], access, key));
        }
        role.meet(&client);
        if role.is_first() {
            for (key, at, length, written, read) in [
                (99, 0, 8, FI_ENOKEY, FI_ENOKEY),
                (99, 0, 1 << 20, FI_ENOKEY, FI_ENOKEY),
                (1, 0, 8, FI_EACCES, 0),
                (1, 0, 1 << 20, FI_EACCES, 0),
                (2, 0, 8, 0, FI_EACCES),
                (2, 0, 1 << 20, 0, FI_EACCES),
                (KEY, (1 << 20) - 7, 8, FI_EINVAL, FI_EINVAL),
                (KEY, 1, 1 << 20, FI_EINVAL, FI_EINVAL),
                (KEY, u64::MAX - 3, 8, FI_EINVAL, FI_EINVAL),
            ] {
                let calls = Calls {
                    key,
                    ..calls(&client)
                };
                let bytes = pattern(length, 1);
                client.retry(|| calls.try_write(&bytes, at));
                match written {
                    0 => calls.ended(FI_WRITE),
                    _ => assert_eq!(failed(&client, FI_WRITE), written, "{key} {at} {length}"),
                }
                let mut room = Room::new(length);
                client.retry(|| calls.try_read(&mut room, at));
                match read {
                    0 => calls.ended(FI_READ),
                    _ => assert_eq!(failed(&client, FI_READ), read, "{key} {at} {length}"),
                }
            }
            // Injected ones fail by an entry, too.
            let (ep, bytes) = (client.endpoint.0, [1_u8; 8]);
            // SAFETY: the endpoint is open, and the memory there.
            client.retry(|| unsafe { fi_inject_write(ep, bytes.as_ptr().cast(), 8, client.peer, 0, 99) });
            let failure = client.next().failure();
            assert_eq!((failure.err, failure.op_context), (FI_ENOKEY, ptr::null_mut()));
            // Lengths that differ, and flags of others.
            let mut both = Both::scattered(bytes.as_ptr().cast_mut().cast(), 8, 0, KEY);
            both.there[0].len += 1;
            let message = both.message(client.peer, 1, 0);
            for (flags, errno) in [
                (0, FI_EINVAL),
                (FI_COMMIT_COMPLETE, FI_EOPNOTSUPP),
                (FI_PEEK, FI_EOPNOTSUPP),
                (1 << 63, FI_EBADFLAGS),
            ] {
                // SAFETY: as above.
                let answers = unsafe { [fi_writemsg(ep, &message, flags), fi_readmsg(ep, &message, flags)] };
                assert_eq!(answers, [-(errno as isize); 2], "{flags:#x}");
            }
            role.meet(&client);
        } else {
            role.meet(&client);
            assert!(client.read().is_none());
            assert!(rooms[0].bytes() == vec![0xee; 1 << 20] && rooms[1].bytes() == vec![0xee; 1 << 20]);
            assert!(rooms[2].bytes() == pattern(1 << 20, 1));
        }
    });
}

#[test]
fn pages_that_are_not_there_are_errors_at_the_initiator() {
    let test = "rma::pages_that_are_not_there_are_errors_at_the_initiator";
    run(test, |mut role, library| {
        let client = Client::meet(&mut role, library, &wants());
        let mut room = Room::new(1 << 20);
        let all = iovec {
            iov_base: ptr::null_mut(),
            iov_len: usize::MAX,
        };
        let _all = register(&client, &[all], BOTH, KEY);
        // A piece that is there, and one that is not.
        let _pieces = register(
            &client,
            &[room.piece(0, 1000), iovec { iov_len: 8192, ..all }],
            BOTH,
            5,
        );
        let start = room.start().expose_provenance() as u64;
        let theirs = u64::from_le_bytes(role.exchange(&start.to_le_bytes()).try_into().unwrap());
        if role.is_first() {
            let calls = calls(&client);
            for length in [8, 5000, 1 << 20] {
                for hole in [0, 4096, 1 << 62] {
                    let bytes = pattern(length, 1);
                    client.retry(|| calls.try_write(&bytes, hole));
                    assert_eq!(failed(&client, FI_WRITE), FI_EFAULT, "{hole} {length}");
                    let mut room = Room::new(length);
                    client.retry(|| calls.try_read(&mut room, hole));
                    assert_eq!(failed(&client, FI_READ), FI_EFAULT, "{hole} {length}");
                }
                let there = Calls {
                    addr: theirs,
                    ..self::calls(&client)
                };
                let bytes = pattern(length, 2);
                there.write_by("write", &bytes);
                there.expect(&bytes);
            }
            let pieces = Calls {
                key: 5,
                ..self::calls(&client)
            };
            let bytes = pattern(1000, 3);
            pieces.write_by("write", &bytes);
            pieces.expect(&bytes);
            client.retry(|| pieces.try_write(&bytes, 500));
            assert_eq!(failed(&client, FI_WRITE), FI_EFAULT);
        }
        role.meet(&client);
    });
}

#[test]
fn operations_count_by_their_kind_and_failures_apart() {
    let test = "rma::operations_count_by_their_kind_and_failures_apart";
    run(test, |mut role, library| {
        let wants = Wants {
            selective: true,
            depth: 4,
            ..wants()
        };
        let client = Client::meet(&mut role, library, &wants);
        let [reads, writes] = [FI_READ, FI_WRITE].map(|flag| {
            let counter = counter(&client.domain, Wait::on(FI_WAIT_UNSPEC));
            bind(&client.endpoint, counter.0.cast(), flag);
            counter
        });
        let mut room = Room::new(1 << 20);
        let _registration = expose(&client, &mut room, KEY);
        role.meet(&client);
        if role.is_first() {
            let calls = calls(&client);
            let bytes = pattern(100, 1);
            // More than may be under way at once: each is refused until there is room.
            for number in 0..40 {
                client.retry(|| calls.try_write(&bytes, number * 100));
            }
            let (ep, start) = (client.endpoint.0, bytes.as_ptr().cast());
            // SAFETY: the endpoint is open, and the memory there.
            client.retry(|| unsafe { fi_inject_write(ep, start, 100, client.peer, 0, KEY) });
            // SAFETY: the counter is open.
            assert_eq!(unsafe { fi_cntr_wait(writes.0, 41, 60_000) }, 0);
            let mut rooms = [(); 3].map(|()| Room::new(100_000));
            for room in &mut rooms {
                client.retry(|| calls.try_read(room, 0));
            }
            // SAFETY: as above.
            assert_eq!(unsafe { fi_cntr_wait(reads.0, 3, 60_000) }, 0);
            assert!(rooms.iter().all(|room| room.bytes()[..100] == bytes));
            assert!(client.read().is_none(), "no entry is wanted");
            let unknown = Calls { key: 9, ..calls };
            client.retry(|| unknown.try_write(&bytes, 0));
            assert_eq!(failed(&client, FI_WRITE), FI_ENOKEY);
            // SAFETY: as above.
            let counts = unsafe {
                [
                    fi_cntr_read(writes.0),
                    fi_cntr_readerr(writes.0),
                    fi_cntr_read(reads.0),
                ]
            };
            assert_eq!(counts, [41, 1, 3]);
        }
        role.meet(&client);
        drop(client.endpoint);
    });
}

/// A fenced message comes when the long write before it is done, and so does a fenced read.
#[test]
fn a_fence_waits_for_what_was_written_before() {
    run(
        "rma::a_fence_waits_for_what_was_written_before",
        |mut role, library| {
            let client = Client::meet(&mut role, library, &wants());
            const LONG: usize = 8 << 20;
            let mut room = Room::new(LONG);
            let _registration = expose(&client, &mut room, KEY);
            role.meet(&client);
            if role.is_first() {
                let calls = calls(&client);
                let (bytes, mut last) = (vec![7; LONG], Room::new(8));
                client.retry(|| calls.try_write(&bytes, 0));
                let piece = iovec {
                    iov_base: bytes.as_ptr().cast_mut().cast(),
                    iov_len: 8,
                };
                let message = fi_msg {
                    msg_iov: &raw const piece,
                    iov_count: 1,
                    addr: client.peer,
                    context: pointer(2),
                    ..Layout::zeroed()
                };
                // SAFETY: the endpoint is open, and the memory stays, here and below.
                client.retry(|| unsafe { fi_sendmsg(client.endpoint.0, &message, FI_FENCE | FI_COMPLETION) });
                client.retry(|| calls.try_write(&bytes, 0));
                let mut both = Both::scattered(last.start(), 8, LONG as u64 - 8, KEY);
                both.here = vec![last.piece(0, 8)];
                let message = both.message(client.peer, 3, 0);
                // SAFETY: as above.
                client.retry(|| unsafe { fi_readmsg(client.endpoint.0, &message, FI_FENCE | FI_COMPLETION) });
                let order: Vec<_> = (0..4).map(|_| client.next().entry().op_context.addr()).collect();
                assert_eq!(order, [CONTEXT, 2, CONTEXT, 3]);
                assert_eq!(last.bytes(), [7; 8]);
            } else {
                client.expect(&[7; 8], None);
                assert_eq!((room.byte(0), room.byte(LONG - 1)), (7, 7));
            }
            role.meet(&client);
        },
    );
}

/// Of a transfer that a close cuts nothing is written behind it.
#[test]
fn a_closed_registration_is_not_touched_any_more() {
    run(
        "rma::a_closed_registration_is_not_touched_any_more",
        |mut role, library| {
            const LONG: usize = 16 << 20;
            let client = Client::meet(&mut role, library, &wants());
            let mut room = Room::new(LONG);
            let registration = expose(&client, &mut room, KEY);
            role.meet(&client);
            if role.is_first() {
                let calls = calls(&client);
                let (bytes, mut back) = (vec![7; LONG], Room::new(LONG));
                client.retry(|| calls.try_write(&bytes, 0));
                client.retry(|| calls.try_read(&mut back, 0));
                for _ in 0..2 {
                    match client.next() {
                        Found::Entry(..) => {}
                        Found::Failure(failure) => {
                            assert!([FI_ECANCELED, FI_ENOKEY].contains(&failure.err), "{failure:?}");
                        }
                    }
                }
                client.retry(|| calls.try_write(&bytes[..8], 0));
                assert_eq!(failed(&client, FI_WRITE), FI_ENOKEY);
                role.meet(&client);
            } else {
                until("nothing comes", || {
                    client.advance();
                    (room.byte(0) != 0xee).then_some(())
                });
                drop(registration);
                let before = room.bytes();
                role.meet(&client);
                assert!(room.bytes() == before, "it was written after the close");
                let again = expose(&client, &mut room, KEY);
                drop(again);
            }
        },
    );
}

#[test]
fn operations_on_a_killed_peer_fail() {
    run_killed("rma::operations_on_a_killed_peer_fail", |mut role, library| {
        let client = Client::meet(&mut role, library, &wants());
        let mut room = Room::new(1 << 20);
        let _registration = expose(&client, &mut room, KEY);
        if !role.is_first() {
            role.exchange(&std::process::id().to_le_bytes());
            until("it is killed", || {
                client.read();
                None::<()>
            });
        }
        let pid = u32::from_le_bytes(role.exchange(&[0; 4]).try_into().unwrap());
        let calls = calls(&client);
        calls.write_by("write", &pattern(8, 1));
        // SAFETY: a process of this test.
        unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        let (bytes, mut back) = (vec![1; 1 << 20], Room::new(1 << 20));
        loop {
            // Those that the peer has done before its end do not fail.
            client.retry(|| calls.try_write(&bytes, 0));
            if let Found::Failure(failure) = client.next() {
                assert_eq!(failure.err, FI_EHOSTUNREACH);
                break;
            }
        }
        client.retry(|| calls.try_read(&mut back, 0));
        assert_eq!(failed(&client, FI_READ), FI_EHOSTUNREACH);
        drop(role);
    });
}

#[test]
fn an_endpoint_is_closed_when_its_writes_have_arrived() {
    run(
        "rma::an_endpoint_is_closed_when_its_writes_have_arrived",
        |mut role, library| {
            const LONG: usize = 4 << 20;
            let client = Client::meet(&mut role, library, &wants());
            let mut room = Room::new(LONG);
            let _registration = expose(&client, &mut room, KEY);
            role.meet(&client);
            if role.is_first() {
                let bytes = vec![7; LONG];
                client.retry(|| calls(&client).try_write(&bytes, 0));
                drop(client.endpoint);
                role.call();
                role.wait();
            } else {
                until("the other one does not end", || {
                    client.advance();
                    role.is_called().then_some(())
                });
                assert!(room.bytes() == [7; LONG]);
                role.wait();
                role.call();
            }
        },
    );
}
