//! The state of the model.

use std::collections::{BTreeMap, VecDeque};

use doorbell_fabric::ni::{
    AtomicKind, Count, CtHandle, Datatype, Entry, EqHandle, Event, Kind, List, Md, MdHandle, NiError,
    NiLimits, Process, PtOptions, Triggered,
};

use super::Wrong;

/// Which interface: of which process, of which kind (by its number).
pub(crate) type Key = (usize, u32);

/// All processes of a job.
pub(crate) struct World {
    pub(crate) wrong: Option<Wrong>,
    pub(crate) interfaces: BTreeMap<Key, Interface>,
    /// The processes' physical names.
    pub(crate) names: Vec<Process>,
    /// Requests that were begun and not yet carried out.
    pub(crate) begun: VecDeque<Request>,
    /// What has been triggered and not yet been done.
    pub(crate) fired: VecDeque<(Key, Waiting)>,
    /// Whether requests wait until the test lets the world go on: for wrong orders.
    pub(crate) held: bool,
}

/// One interface of one process.
pub(crate) struct Interface {
    pub(crate) kind: Kind,
    pub(crate) me: Process,
    pub(crate) uid: u32,
    pub(crate) limits: NiLimits,
    /// Ranks, by their physical names.
    pub(crate) map: Option<Vec<Process>>,
    pub(crate) table: Vec<Option<Pt>>,
    pub(crate) entries: Vec<Option<Linked>>,
    /// Entries of triggered appends that wait.
    pub(crate) reserved: Vec<usize>,
    pub(crate) mds: Vec<Option<Md>>,
    pub(crate) eqs: Vec<Option<Eq>>,
    pub(crate) cts: Vec<Option<Ct>>,
    pub(crate) registers: [u64; 3],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PtState {
    Enabled,
    Disabled,
    AutoDisabled,
}

/// A portal table entry.
pub(crate) struct Pt {
    pub(crate) options: PtOptions,
    pub(crate) eq: Option<EqHandle>,
    pub(crate) state: PtState,
    /// By number in `Interface::entries`, in the order in which they were appended.
    pub(crate) priority: Vec<usize>,
    pub(crate) overflow: Vec<usize>,
    /// The unexpected headers, the oldest first.
    pub(crate) headers: Vec<Header>,
}

impl Pt {
    pub(crate) fn list(&mut self, list: List) -> &mut Vec<usize> {
        match list {
            List::Priority => &mut self.priority,
            List::Overflow => &mut self.overflow,
        }
    }
}

/// An entry that was appended.
pub(crate) struct Linked {
    pub(crate) entry: Entry,
    pub(crate) pt_index: u32,
    pub(crate) list: List,
    pub(crate) user_ptr: u64,
    /// Where the next message goes, with MANAGE_LOCAL.
    pub(crate) local: u64,
    /// Headers of messages that it took and that are not consumed yet.
    pub(crate) headers: usize,
    /// It is off its list, and only waits for its headers.
    pub(crate) is_unlinked: bool,
}

/// What is remembered of a message that matched an overflow entry.
#[derive(Clone)]
pub(crate) struct Header {
    pub(crate) request: Request,
    /// The overflow entry.
    pub(crate) entry: usize,
    pub(crate) place: u64,
    pub(crate) start: usize,
    pub(crate) mlength: u64,
}

/// An event queue.
pub(crate) struct Eq {
    pub(crate) count: usize,
    pub(crate) events: VecDeque<Event>,
    /// Some were overwritten, which was not reported yet.
    pub(crate) has_dropped: bool,
}

/// A counting event.
#[derive(Default)]
pub(crate) struct Ct {
    pub(crate) count: Count,
    /// In issue order.
    pub(crate) waiting: Vec<(u64, Waiting)>,
}

/// A triggered operation; of an append, the number of its entry.
pub(crate) type Waiting = (Triggered, Option<usize>);

/// The operation of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Op {
    Put,
    Get,
    Atomic(AtomicKind, Datatype),
    Fetch(AtomicKind, Datatype, [u8; 32]),
}

/// A request on its way.
#[derive(Clone)]
pub(crate) struct Request {
    pub(crate) from: Key,
    /// The initiator, as the target's interface calls it.
    pub(crate) initiator: Process,
    pub(crate) uid: u32,
    pub(crate) to: Option<Key>,
    pub(crate) op: Op,
    pub(crate) pt_index: u32,
    pub(crate) match_bits: u64,
    pub(crate) rlength: u64,
    pub(crate) remote_offset: u64,
    pub(crate) hdr_data: u64,
    pub(crate) data: Vec<u8>,
    pub(crate) then: Then,
}

/// What the initiator does with the answer.
#[derive(Clone, Copy)]
pub(crate) struct Then {
    pub(crate) user_ptr: u64,
    /// Where an ack is posted or counted, when one was requested: the descriptor, and whether by a full
    /// event.
    pub(crate) ack: Option<(MdHandle, bool)>,
    /// Where a reply goes.
    pub(crate) into: Option<(MdHandle, u64)>,
}

impl World {
    /// A job of these processes (by their physical names), none of which has an interface.
    pub(crate) fn new(names: Vec<Process>) -> Self {
        Self {
            wrong: None,
            interfaces: BTreeMap::new(),
            names,
            begun: VecDeque::new(),
            fired: VecDeque::new(),
            held: false,
        }
    }

    /// Whether the world follows this wrong rule.
    pub(crate) fn is(&self, wrong: Wrong) -> bool {
        self.wrong == Some(wrong)
    }

    /// Gives a process an interface. With ranks, its rank is its number.
    pub(crate) fn open(&mut self, process: usize, kind: Kind, uid: u32, limits: NiLimits) {
        let me = if kind.logical {
            Process::rank(process as u32)
        } else {
            self.names[process]
        };
        let table = (0..=limits.max_pt_index).map(|_| None).collect();
        self.interfaces.insert(
            (process, kind.number()),
            Interface {
                kind,
                me,
                uid,
                limits,
                map: None,
                table,
                entries: Vec::new(),
                reserved: Vec::new(),
                mds: Vec::new(),
                eqs: Vec::new(),
                cts: Vec::new(),
                registers: [0; 3],
            },
        );
    }

    pub(crate) fn at(&mut self, key: Key) -> &mut Interface {
        self.interfaces.get_mut(&key).expect("the interface is open")
    }
}

impl Interface {
    pub(crate) fn pt(&mut self, index: u32) -> Option<&mut Pt> {
        self.table.get_mut(index as usize)?.as_mut()
    }

    pub(crate) fn md(&self, md: MdHandle) -> Option<&Md> {
        self.mds.get(md.0 as usize)?.as_ref()
    }

    pub(crate) fn ct(&mut self, ct: CtHandle) -> Option<&mut Ct> {
        self.cts.get_mut(ct.0 as usize)?.as_mut()
    }

    pub(crate) fn has_ct(&self, ct: Option<CtHandle>) -> bool {
        ct.is_none_or(|ct| matches!(self.cts.get(ct.0 as usize), Some(Some(_))))
    }

    pub(crate) fn has_eq(&self, eq: Option<EqHandle>) -> bool {
        eq.is_none_or(|eq| matches!(self.eqs.get(eq.0 as usize), Some(Some(_))))
    }

    /// Entries that are linked, or wait for their headers, or for what triggers them.
    pub(crate) fn live_entries(&self) -> usize {
        self.entries.iter().flatten().count() + self.reserved.len()
    }

    /// Whether there is room for an entry.
    pub(crate) fn judge_room(&mut self, pt_index: u32, list: List) -> Result<(), NiError> {
        let most = self.limits.max_list_size as usize;
        let pt = self.pt(pt_index).ok_or(NiError::ArgInvalid("pt_index"))?;
        if pt.list(list).len() >= most {
            return Err(NiError::ListTooLong);
        }
        if self.live_entries() >= self.limits.max_entries as usize {
            return Err(NiError::NoSpace("max_entries"));
        }
        Ok(())
    }

    /// What waits for a counting event is forgotten.
    pub(crate) fn forget(&mut self, waiting: &[(u64, Waiting)]) {
        for (_, (_, slot)) in waiting {
            self.reserved.retain(|other| Some(*other) != *slot);
        }
    }

    pub(crate) fn live_headers(&self) -> usize {
        self.table.iter().flatten().map(|pt| pt.headers.len()).sum()
    }

    /// The entry, which is there.
    pub(crate) fn linked(&mut self, entry: usize) -> &mut Linked {
        self.entries[entry].as_mut().expect("the entry is there")
    }
}
