//! What the provider stands on, without it: two members in one thread, and the same messages.

use doorbell_fabric::memory::{ConstLoan, MutLoan};
use doorbell_job::Config;
use doorbell_job::lobby::PmlMember;
use doorbell_pml::{AtOnce, Rank, Source};

use crate::couple::{IGNORE, TAG};

/// The context of all messages.
const CONTEXT: u16 = 0x8000;
/// Polls between two readings of the clock, as in the provider.
const POLLS: u32 = 64;

fn config() -> Config {
    Config::from_variables(std::env::vars_os(), None).unwrap()
}

struct End {
    member: PmlMember,
    peer: Rank,
    polls: u32,
    bytes: ConstLoan,
    room: MutLoan,
}

/// Two members that have met.
pub(crate) struct Members {
    ends: [Box<End>; 2],
}

impl Members {
    /// Opens both, for messages of this length.
    pub(crate) fn meet(length: usize) -> Self {
        let mut members = [(); 2].map(|()| PmlMember::enter(config()).unwrap());
        let addresses = [members[0].address(0), members[1].address(0)];
        let peers = [
            members[0].resolve(&addresses[1]).unwrap(),
            members[1].resolve(&addresses[0]).unwrap(),
        ];
        let mut peers = peers.into_iter();
        Self {
            ends: members.map(|member| {
                Box::new(End {
                    member,
                    peer: peers.next().unwrap(),
                    polls: 0,
                    bytes: ConstLoan::of_static(vec![7; length].leak()),
                    room: MutLoan::of_static(vec![0; length].leak()),
                })
            }),
        }
    }

    /// One message, from the first end to the second; they change places.
    pub(crate) fn exchange(&mut self) {
        let [from, to] = &mut self.ends;
        let (pml, room) = (to.member.pml(), to.room);
        let request = pml.recv_loan(Source::Any, CONTEXT, TAG, IGNORE, room).unwrap();
        loop {
            let (peer, bytes) = (from.peer, from.bytes);
            match from.member.pml().send_at_once(peer, CONTEXT, TAG, bytes) {
                AtOnce::Left => break,
                AtOnce::Held => panic!("shared memory holds nothing back"),
                // They have not met.
                AtOnce::Refused => {
                    from.greet();
                    to.poll();
                }
            }
        }
        while to.member.pml().take_well_ended(request).is_none() {
            to.poll();
        }
        self.ends.swap(0, 1);
    }

    /// Closes both members.
    pub(crate) fn close(mut self) {
        for end in &mut self.ends {
            end.member.close(std::time::Duration::from_secs(10));
        }
    }
}

impl End {
    fn poll(&mut self) {
        self.member.poll();
        self.polls += 1;
        if self.polls.is_multiple_of(POLLS) {
            self.member.progress();
        }
    }

    /// Has the peer be met, by a message that no receive matches.
    fn greet(&mut self) {
        if self.polls == 0 {
            self.member.pml().inject(self.peer, CONTEXT, !TAG, &[]).unwrap();
        }
        self.poll();
    }
}
