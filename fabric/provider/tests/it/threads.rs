//! Threads that share a domain.

use std::ffi::c_int;
use std::ptr;

use libfabric_sys::*;

use crate::client::{Client, Object, Wants, name_of, pointer, queue, until};
use crate::pair::run;

/// How many messages a thread sends, and receives.
const ROUNDS: usize = 200;

/// What a thread uses alone: an endpoint, its queue, and the address of its partner.
struct Part {
    endpoint: usize,
    queue: usize,
    peer: fi_addr_t,
}

impl Part {
    fn endpoint(&self) -> *mut fid_ep {
        ptr::with_exposed_provenance_mut(self.endpoint)
    }

    /// Reads one entry, if there is one.
    fn read(&self) -> Option<usize> {
        let mut entry: fi_cq_tagged_entry = Layout::zeroed();
        let queue = ptr::with_exposed_provenance_mut(self.queue);
        // SAFETY: the queue is open, and there is room for one entry of any format.
        let count = unsafe { fi_cq_read(queue, (&raw mut entry).cast(), 1) };
        assert!(count == 1 || count == -(FI_EAGAIN as isize), "{count}");
        (count == 1).then(|| entry.op_context.addr())
    }

    /// Calls until it is not refused for the moment. Entries that end meanwhile are kept.
    fn retry(&self, ended: &mut Vec<usize>, mut call: impl FnMut() -> isize) {
        let answer = until("it is refused for ever", || match call() {
            again if again == -(FI_EAGAIN as isize) => {
                ended.extend(self.read());
                None
            }
            answer => Some(answer as c_int),
        });
        assert_eq!(answer, 0);
    }

    /// Sends and receives in turn: the value that arrives is the partner's of the same round.
    fn exchange(&self, thread: usize) {
        for round in 1..=ROUNDS {
            let mine = [thread, round];
            let mut theirs = [0_usize; 2];
            let mut ended = Vec::new();
            let length = size_of_val(&mine);
            let (to, none) = (theirs.as_mut_ptr().cast(), ptr::null_mut());
            self.retry(&mut ended, || {
                // SAFETY: the room stays until the receive has ended.
                unsafe { fi_recv(self.endpoint(), to, length, none, self.peer, pointer(1)) }
            });
            self.retry(&mut ended, || {
                let from = mine.as_ptr().cast();
                // SAFETY: the bytes stay until the send has ended.
                unsafe { fi_send(self.endpoint(), from, length, none, self.peer, pointer(2)) }
            });
            while ended.len() < 2 {
                ended.push(until("a message is missing", || self.read()));
            }
            ended.sort_unstable();
            assert_eq!(ended, [1, 2]);
            assert_eq!(theirs, mine, "thread {thread}");
        }
    }
}

#[test]
fn threads_with_an_endpoint_each_share_a_domain() {
    run(
        "threads::threads_with_an_endpoint_each_share_a_domain",
        |mut role, library| {
            let wants = Wants {
                threading: FI_THREAD_SAFE,
                ..Wants::default()
            };
            let mut client = Client::meet(&mut role, library, &wants);
            for threads in [8, 16, 32] {
                let own: Vec<(Object<fid_ep>, Object<fid_cq>)> = (0..threads)
                    .map(|_| {
                        let queue = queue(&client.domain, FI_CQ_FORMAT_CONTEXT, 0, FI_WAIT_NONE);
                        (client.one_more(&queue), queue)
                    })
                    .collect();
                let parts: Vec<Part> = own
                    .iter()
                    .map(|(endpoint, queue)| Part {
                        endpoint: endpoint.0.expose_provenance(),
                        queue: queue.0.expose_provenance(),
                        peer: client.insert(&role.exchange(&name_of(endpoint))),
                    })
                    .collect();
                std::thread::scope(|scope| {
                    for (thread, part) in parts.iter().enumerate() {
                        scope.spawn(move || part.exchange(thread));
                    }
                });
                role.meet(&client);
            }
        },
    );
}
