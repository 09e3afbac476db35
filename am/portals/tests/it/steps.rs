//! The calls of a program, made of one job: the model's or the real one. What a step does depends on nothing
//! but the program, so that both do the same.

use doorbell_fabric::memory::Region;
use doorbell_fabric::message::Landing;
use doorbell_fabric::ni::{
    ANY, AckReq, Atomic, Count, CtHandle, Entry, EntryHandle, EqGet, EqHandle, Event, FetchAtomic, Get, List,
    Md, MdHandle, MdOptions, Memory, NID_ANY, Ni, NiError, PID_ANY, Piece, Process, PtOptions, Put, Register,
    Target, Triggered,
};

use crate::program::{Movement, Operation, Shape, Step};
use crate::rig::{Rig, Setting, ask};

/// Bytes of a process for its descriptors, and for its entries.
pub(crate) const MDS: usize = 24 << 10;
pub(crate) const ENTRIES: usize = 64 << 10;

/// What a process holds.
pub(crate) struct Hands {
    pub(crate) memory: Region,
    pub(crate) eqs: Vec<EqHandle>,
    /// Two of the first level, two of the second, and what counts at descriptors and entries.
    pub(crate) cts: Vec<CtHandle>,
    pub(crate) mds: Vec<MdHandle>,
    pub(crate) entries: Vec<EntryHandle>,
    /// Where the next entry's memory begins.
    pub(crate) next: usize,
}

const OF_MDS: usize = 4;
const OF_ENTRIES: usize = 5;

/// Bytes of a process, different everywhere.
pub(crate) fn fill(rank: usize, length: usize) -> Vec<u8> {
    let word = |at: u64| {
        (at ^ (rank as u64) << 32)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
            .rotate_left(29)
            .to_le_bytes()
    };
    (0..length as u64 / 8).flat_map(word).collect()
}

fn part(memory: &Region, at: usize, length: usize) -> Memory {
    match memory.slice(at, length) {
        Some(slice) if length > 0 => Memory::One(Landing::Region(slice)),
        _ => Memory::Empty,
    }
}

/// The same bytes in three pieces.
fn pieces(memory: &Region, at: usize, length: usize) -> Memory {
    let (a, b) = (length / 3, length / 2);
    let bounds = [(0, a), (a, b - a), (b, length - b)];
    let piece = |(from, length)| Landing::Region(memory.slice(at + from, length).expect("inside"));
    Memory::Many(bounds.map(piece).into())
}

impl Hands {
    /// Gives a process its queues, counts, table entries and descriptors.
    pub(crate) fn new(rig: &mut dyn Rig, rank: usize) -> Self {
        let memory = Region::new(MDS + ENTRIES).expect("memory");
        memory.write(0, &fill(rank, MDS + ENTRIES));
        ask(rig, rank, |ni| {
            let eqs = vec![
                ni.eq_alloc(4096).expect("a queue"),
                ni.eq_alloc(4096).expect("a queue"),
            ];
            let cts: Vec<CtHandle> = (0..6).map(|_| ni.ct_alloc().expect("a count")).collect();
            let target = Some(eqs[0]);
            let tables = [
                (PtOptions::NONE, target),
                (PtOptions::FLOWCTRL, target),
                (PtOptions::NONE, None),
                (PtOptions::ALLOC_DISABLED, target),
            ];
            for (index, (options, eq)) in tables.into_iter().enumerate() {
                ni.pt_alloc(options, eq, Some(index as u32))
                    .expect("a table entry");
            }
            let mds = descriptors(&memory, eqs[1], cts[OF_MDS]);
            let mds = mds.map(|md| ni.md_bind(md).expect("a descriptor"));
            Self {
                memory,
                eqs,
                cts,
                mds: mds.into(),
                entries: Vec::new(),
                next: MDS,
            }
        })
    }

    fn entry(&mut self, setting: &Setting, shape: &Shape) -> Entry {
        let length = shape.length.min(ENTRIES / 2);
        if self.next + length > MDS + ENTRIES {
            self.next = MDS;
        }
        let at = self.next;
        self.next += length;
        let memory = if shape.in_pieces && length > 3 {
            pieces(&self.memory, at, length)
        } else {
            part(&self.memory, at, length)
        };
        let any = if setting.kind.logical {
            Process::rank(ANY)
        } else {
            Process::physical(NID_ANY, PID_ANY)
        };
        let from = shape
            .from
            .map(|rank| setting.name(rank % setting.processes.len()));
        Entry {
            memory,
            ct: shape.is_counted.then_some(self.cts[OF_ENTRIES]),
            uid: shape.uid.unwrap_or(ANY),
            options: shape.options,
            match_id: from.unwrap_or(any),
            match_bits: shape.match_bits,
            ignore_bits: shape.ignore_bits,
            min_free: shape.min_free,
        }
    }
}

/// Descriptors that are counted, post events, or lie in pieces; the last one is for the bytes that fetching
/// atomics send.
fn descriptors(memory: &Region, eq: EqHandle, ct: CtHandle) -> [Md; 6] {
    let counts = MdOptions::EVENT_CT_SEND | MdOptions::EVENT_CT_ACK | MdOptions::EVENT_CT_REPLY;
    let quiet = MdOptions::EVENT_SUCCESS_DISABLE | MdOptions::EVENT_SEND_DISABLE | counts;
    let md = |memory, options, eq, ct| Md {
        memory,
        options,
        eq,
        ct,
    };
    let (whole, cut) = (part(memory, 0, MDS), pieces(memory, 0, MDS));
    [
        md(whole.clone(), counts, Some(eq), Some(ct)),
        md(
            whole.clone(),
            counts | MdOptions::EVENT_CT_BYTES,
            Some(eq),
            Some(ct),
        ),
        md(whole.clone(), quiet, Some(eq), Some(ct)),
        md(cut, MdOptions::NONE, Some(eq), None),
        md(
            whole.clone(),
            MdOptions::EVENT_CT_ACK | MdOptions::EVENT_CT_REPLY,
            None,
            Some(ct),
        ),
        md(whole, MdOptions::NONE, None, None),
    ]
}

/// How a call ended.
pub(crate) type Ended = Result<(), NiError>;

/// A job that a program is played on.
pub(crate) struct Cast<'a> {
    pub(crate) rig: &'a mut dyn Rig,
    pub(crate) setting: &'a Setting,
    pub(crate) hands: Vec<Hands>,
}

impl<'a> Cast<'a> {
    pub(crate) fn new(rig: &'a mut dyn Rig, setting: &'a Setting) -> Self {
        let hands = (0..setting.processes.len())
            .map(|rank| Hands::new(rig, rank))
            .collect();
        Self { rig, setting, hands }
    }

    /// Makes the call of a step; `number` marks its events at all processes that take part.
    pub(crate) fn play(&mut self, number: u64, step: &Step) -> Ended {
        let ranks = self.setting.processes.len();
        match step {
            Step::Append {
                rank,
                pt,
                list,
                shape,
            } => {
                let rank = rank % ranks;
                let entry = self.hands[rank].entry(self.setting, shape);
                let made = ask(self.rig, rank, |ni| ni.append(*pt, entry, *list, number))?;
                self.hands[rank].entries.push(made);
                Ok(())
            }
            Step::Unlink { rank, which } => {
                let rank = rank % ranks;
                let all = &self.hands[rank].entries;
                if all.is_empty() {
                    return Ok(());
                }
                let entry = all[which % all.len()];
                ask(self.rig, rank, |ni| ni.unlink(entry))
            }
            Step::Search { rank, pt, how, shape } => {
                let rank = rank % ranks;
                let entry = self.hands[rank].entry(self.setting, shape);
                ask(self.rig, rank, |ni| ni.search(*pt, &entry, *how, number))
            }
            Step::Operate { rank, what, times } => {
                let rank = rank % ranks;
                let call = self.operation(rank, number, what);
                (0..*times).try_for_each(|_| {
                    ask(self.rig, rank, |ni| match &call {
                        Triggered::Put(put) => ni.put(put),
                        Triggered::Get(get) => ni.get(get),
                        Triggered::Atomic(atomic) => ni.atomic(atomic),
                        Triggered::FetchAtomic(fetch) => ni.fetch_atomic(fetch),
                        _ => Ok(()),
                    })
                })
            }
            Step::Trigger {
                rank,
                ct,
                threshold,
                what,
            } => {
                let rank = rank % ranks;
                let call = self.operation(rank, number, what);
                self.trigger(rank, 2 + ct, *threshold, call)
            }
            Step::TriggerCount {
                rank,
                from,
                to,
                threshold,
                by,
                sets,
            } => {
                let rank = rank % ranks;
                let to = self.hands[rank].cts[2 + to];
                let call = if *sets {
                    Triggered::CtSet(to, Count::success(*by))
                } else {
                    Triggered::CtInc(to, Count::success(*by))
                };
                self.trigger(rank, *from, *threshold, call)
            }
            Step::TriggerAppend {
                rank,
                threshold,
                pt,
                shape,
            } => {
                let rank = rank % ranks;
                let entry = Box::new(self.hands[rank].entry(self.setting, shape));
                let call = Triggered::Append {
                    pt_index: *pt,
                    entry,
                    list: List::Priority,
                    user_ptr: number,
                };
                self.trigger(rank, 0, *threshold, call)
            }
            Step::Count {
                rank,
                ct,
                by,
                fails,
                sets,
            } => {
                let rank = rank % ranks;
                let ct = self.hands[rank].cts[*ct];
                let by = if *fails {
                    Count {
                        success: 0,
                        failure: *by,
                    }
                } else {
                    Count::success(*by)
                };
                ask(self.rig, rank, |ni| {
                    if *sets {
                        ni.ct_set(ct, by)
                    } else {
                        ni.ct_inc(ct, by)
                    }
                })
            }
            Step::Cancel { rank, ct } => {
                let rank = rank % ranks;
                let ct = self.hands[rank].cts[*ct];
                ask(self.rig, rank, |ni| ni.ct_cancel_triggered(ct))
            }
            Step::Enable { rank, pt } => ask(self.rig, rank % ranks, |ni| ni.pt_enable(*pt)),
            Step::Disable { rank, pt } => ask(self.rig, rank % ranks, |ni| ni.pt_disable(*pt)).map(|_| ()),
        }
    }

    fn trigger(&mut self, rank: usize, ct: usize, threshold: u64, call: Triggered) -> Ended {
        let ct = self.hands[rank].cts[ct];
        if let Some(entry) = ask(self.rig, rank, |ni| ni.trigger(ct, threshold, call))? {
            self.hands[rank].entries.push(entry);
        }
        Ok(())
    }

    fn operation(&self, rank: usize, number: u64, what: &Operation) -> Triggered {
        let hands = &self.hands[rank];
        let target = Target {
            process: self.setting.name(what.to % self.setting.processes.len()),
            pt_index: what.pt,
            match_bits: what.bits,
            remote_offset: what.offset,
        };
        let piece = |md: usize| Piece {
            md: hands.mds[md],
            offset: what.at,
        };
        let put = |ack, length| Put {
            from: piece(what.md),
            length,
            ack,
            target,
            user_ptr: number,
            hdr_data: number,
        };
        match what.kind {
            // Bytes are not counted by an acknowledgement that carries no length.
            Movement::Put(ack) if what.md == 1 && ack == AckReq::Oc => {
                Triggered::Put(put(AckReq::Ct, what.length))
            }
            Movement::Put(ack) => Triggered::Put(put(ack, what.length)),
            Movement::Get => Triggered::Get(Get {
                into: piece(what.md),
                length: what.length,
                target,
                user_ptr: number,
            }),
            Movement::Atomic(kind, datatype, ack) => {
                let length = what.length.min(512) / datatype.size() as u64 * datatype.size() as u64;
                let ack = if what.md == 1 { AckReq::Full } else { ack };
                Triggered::Atomic(Atomic {
                    put: put(ack, length),
                    kind,
                    datatype,
                })
            }
            Movement::Fetch(kind, datatype, operand) => {
                let size = datatype.size() as u64;
                let length = if kind as u8 > 10 {
                    size
                } else {
                    what.length.min(512) / size * size
                };
                let mut bytes = [0; 32];
                bytes[..8].copy_from_slice(&operand.to_le_bytes());
                Triggered::FetchAtomic(FetchAtomic {
                    into: piece(what.md),
                    from: Piece {
                        md: hands.mds[5],
                        offset: what.at + 1000,
                    },
                    length,
                    target,
                    user_ptr: number,
                    hdr_data: number,
                    kind,
                    datatype,
                    operand: bytes,
                })
            }
        }
    }

    /// Takes every event of a queue. None of these queues is ever full.
    pub(crate) fn events(&mut self, rank: usize, queue: usize) -> Vec<Event> {
        let eq = self.hands[rank].eqs[queue];
        let mut all = Vec::new();
        loop {
            match ask(self.rig, rank, |ni| ni.eq_get(eq)).expect("a queue") {
                EqGet::Empty => return all,
                EqGet::Event(event) => all.push(event),
                EqGet::Dropped(event) => panic!("events were lost before {event:?}"),
            }
        }
    }

    pub(crate) fn counts(&mut self, rank: usize) -> Vec<Count> {
        let cts = self.hands[rank].cts.clone();
        ask(self.rig, rank, |ni: &mut dyn Ni| {
            cts.iter().map(|ct| ni.ct_get(*ct).expect("a count")).collect()
        })
    }

    pub(crate) fn registers(&mut self, rank: usize) -> [u64; 3] {
        let all = [
            Register::DropCount,
            Register::PermissionViolations,
            Register::OperationViolations,
        ];
        ask(self.rig, rank, |ni| all.map(|register| ni.status(register)))
    }

    pub(crate) fn bytes(&self, rank: usize) -> Vec<u8> {
        let mut bytes = vec![0; MDS + ENTRIES];
        self.hands[rank].memory.read(0, &mut bytes);
        bytes
    }
}
